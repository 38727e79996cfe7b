//! The state of a ring and one turn of its loop. [`Ring`](crate::Ring) is the handle to it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::driver::{Driver, WaitPolicy};
use crate::executor::Executor;
use crate::idle::IdleWaiters;
use crate::limits::RingOptions;
use crate::op::{Completion, Op, OpKey, PendingCloses};
use crate::pool::BufferPool;
use crate::slab::{MultishotPoll, OpSlab};
use crate::task_memory::TaskMemory;
use crate::tick::Tick;
use crate::timer::TimerHeap;
use crate::turn_budget::TurnBudget;
use crate::wake::WakeFlag;

/// The parts of a ring. Each part has its own cell, and none is borrowed while foreign code (a poll, a
/// wake, a destructor of a task) runs.
pub(crate) struct RingState {
    pub(crate) timers: RefCell<TimerHeap>,
    pub(crate) closing: Rc<PendingCloses>,
    pub(crate) driver: RefCell<Box<dyn Driver>>,
    pub(crate) pool: Rc<BufferPool>,
    pub(crate) options: RingOptions,
    pub(crate) slab: RefCell<OpSlab>,
    pub(crate) executor: Executor,
    pub(crate) task_memory: TaskMemory,
    pub(crate) wake_flag: Arc<WakeFlag>,
    /// Tasks that wait for a wake from another thread.
    pub(crate) listeners: RefCell<Vec<Waker>>,
    now: Cell<Tick>,
    pub(crate) awake_until: Cell<Tick>,
    /// A task waits for the result of a turn without a wait.
    notified: Cell<bool>,
    pub(crate) idle_waiters: IdleWaiters,
    pub(crate) turn_budget: TurnBudget,
    /// Kept between turns for its allocation.
    answers: RefCell<Vec<Completion>>,
}

impl RingState {
    pub(crate) fn new(
        driver: Box<dyn Driver>,
        pool: Rc<BufferPool>,
        wake_flag: Arc<WakeFlag>,
        options: RingOptions,
    ) -> Self {
        Self {
            now: Cell::new(driver.now()),
            awake_until: Cell::new(Tick::ZERO),
            notified: Cell::default(),
            idle_waiters: IdleWaiters::default(),
            turn_budget: TurnBudget::default(),
            slab: RefCell::default(),
            timers: RefCell::default(),
            executor: Executor::new(Arc::clone(&wake_flag)),
            task_memory: TaskMemory::default(),
            closing: Rc::default(),
            answers: RefCell::default(),
            listeners: RefCell::default(),
            driver: RefCell::new(driver),
            pool,
            wake_flag,
            options,
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.now.get()
    }

    /// Starts an operation; dropping the ticket cancels it.
    pub(crate) fn start(self: &Rc<Self>, op: Op) -> OpTicket {
        OpTicket { key: self.submit(op), core: Rc::clone(self), taken: false }
    }

    /// Starts an operation whose result is polled by its key, or not at all.
    pub(crate) fn submit(&self, op: Op) -> OpKey {
        let key = self.slab.borrow_mut().insert(op);
        // SAFETY: the op stays in the slab until its last completion was handled (`OpSlab::remove`
        // asserts it), and what it points to is boxed, counted or a buffer of the pool: none of it moves when
        // the slab grows. `RingState::drop` waits for all completions before the slab is dropped.
        unsafe { self.driver.borrow_mut().start(key, self.slab.borrow().op(key)) };
        key
    }

    /// One turn of the loop: submit, wait, handle completions, wake.
    pub(crate) fn turn(&self, wait_policy: WaitPolicy) {
        for handle in self.closing.take() {
            let key = self.submit(Op::Close(handle));
            self.slab.borrow_mut().orphan(key); // no task waits for it, and it must not be cancelled
        }
        let mut answers = self.answers.take();
        self.options.heartbeat.beat();
        self.driver.borrow_mut().turn(wait_policy, &mut answers);
        self.advance();
        for answer in answers.drain(..) {
            self.take_in(answer);
        }
        self.answers.replace(answers);
        self.wake_due();
        self.wake_remote_tasks();
        self.turn_budget.begin_turn();
    }

    fn take_in(&self, answer: Completion) {
        let key = answer.key;
        let effect = self.slab.borrow_mut().answer(answer, &self.options, &self.closing);
        if effect.pause {
            self.driver.borrow_mut().cancel(key);
        }
        if let Some(waiter) = effect.wake {
            waiter.wake(&self.executor);
        }
    }

    fn wake_due(&self) {
        loop {
            let due = self.timers.borrow_mut().pop_due(self.now());
            let Some(waiter) = due else { return };
            waiter.wake(&self.executor);
        }
    }

    fn wake_remote_tasks(&self) {
        if !self.wake_flag.is_set() {
            return;
        }
        self.executor.take_in(self.wake_flag.answer());
        if self.wake_flag.is_woken() {
            for listener in self.listeners.take() {
                listener.wake();
            }
        }
    }

    /// Polls the end of a detached send. Its success is no completion that would end a wait of the loop, so
    /// the next turn does not wait.
    pub(crate) fn poll_posted(&self, key: OpKey, cx: &Context<'_>) -> Poll<i32> {
        let end = self.slab.borrow_mut().poll_posted(key, &self.executor, cx);
        self.notified.set(self.notified.get() || end.is_pending());
        end
    }

    /// Ends `key`, whose result is not needed any more.
    pub(crate) fn abandon(&self, key: OpKey) {
        if self.slab.borrow_mut().abandon(key) {
            self.driver.borrow_mut().cancel(key);
        }
    }

    pub(crate) fn advance(&self) {
        self.now.set(self.driver.borrow().now());
    }

    pub(crate) fn wait_policy(&self) -> WaitPolicy {
        let is_busy = !self.executor.is_idle() || self.turn_budget.is_waited_for();
        if self.notified.take() || is_busy || self.wake_flag.is_set() {
            self.idle_waiters.interrupted();
            return WaitPolicy::None;
        }
        if !self.idle_waiters.may_sleep() {
            return WaitPolicy::None;
        }
        let (now, awake) = (self.now(), self.awake_until.get());
        match self.timers.borrow_mut().next() {
            next if awake > now => WaitPolicy::Awake(next.map_or(awake, |next| next.min(awake)) - now),
            Some(at) => WaitPolicy::Until(at - now),
            None => WaitPolicy::Forever,
        }
    }

    /// Cancels everything and waits for the last completions.
    pub(crate) fn drain(&self) {
        let keys = self.slab.borrow().running_keys();
        for key in keys {
            if !matches!(self.slab.borrow().op(key), Op::Close(_)) && self.slab.borrow_mut().cancel(key) {
                self.driver.borrow_mut().cancel(key);
            }
        }
        loop {
            self.turn(WaitPolicy::None);
            if self.slab.borrow().running() == 0 && self.closing.is_empty() {
                return;
            }
            self.turn(WaitPolicy::Forever);
        }
    }
}

impl Drop for RingState {
    fn drop(&mut self) {
        self.executor.clear();
        self.drain();
    }
}

/// Ownership of an operation's completions.
pub(crate) struct OpTicket {
    core: Rc<RingState>,
    key: OpKey,
    /// The completions were taken and the slab has removed the operation.
    taken: bool,
}

impl OpTicket {
    /// The result of an operation that completes once, with what it owned.
    pub(crate) async fn outcome(mut self) -> (i32, Op) {
        poll_fn(|cx| {
            let outcome = self.core.slab.borrow_mut().poll_outcome(self.key, &self.core.executor, cx);
            self.taken = outcome.is_ready();
            outcome
        })
        .await
    }

    /// The next result of a multishot operation; after `Ended` the ticket must not be used.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<MultishotPoll> {
        let next = self.core.slab.borrow_mut().poll_next(self.key, &self.core.executor, cx);
        self.taken = matches!(next, Poll::Ready(MultishotPoll::Ended(_)));
        next
    }

    /// Number of queued results, and the outcome if it has ended.
    pub(crate) fn peek(&self) -> (usize, Option<i32>) {
        self.core.slab.borrow().peek(self.key)
    }

    /// Copies its received bytes, present and future, out of the receive buffers.
    pub(crate) fn detach(&self) {
        self.core.slab.borrow_mut().detach(self.key);
    }

    /// Requests its end; its completions still arrive.
    pub(crate) fn cancel(&self) {
        if self.core.slab.borrow_mut().cancel(self.key) {
            self.core.driver.borrow_mut().cancel(self.key);
        }
    }
}

impl Drop for OpTicket {
    fn drop(&mut self) {
        if !self.taken {
            self.core.abandon(self.key);
        }
    }
}
