//! The ring: the handle to one thread's loop.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::driver::{Driver, WaitPolicy};
use crate::epoll;
use crate::executor::TaskFuture;
use crate::heartbeat::Heartbeat;
use crate::kernel::{self, Unsupported};
use crate::limits::{IoDriver, POLLS_PER_TURN, RingOptions};
use crate::pool::BufferPool;
use crate::ring_state::RingState;
use crate::sleep::{Sleep, Timeout};
use crate::tick::Tick;
use crate::wake::{WakeFlag, WakeHandle};

/// A thread's loop. Clones are handles to the same one.
///
/// The last dropped handle ends every operation and waits for it before memory is freed. Tasks usually hold
/// handles of their own, so a program that needs a definite moment calls [`Ring::shutdown`].
#[derive(Clone)]
pub struct Ring {
    pub(crate) core: Rc<RingState>,
}

impl Ring {
    /// A ring on this machine's kernel, with the driver that `options` name. It belongs to the calling thread.
    pub fn open(options: RingOptions) -> Result<Self, Unsupported> {
        match options.driver {
            IoDriver::IoUring => {
                let (driver, pool, wake_flag) = kernel::open(&options)?;
                Ok(Self::new(Box::new(driver), pool, wake_flag, options))
            }
            IoDriver::Epoll => {
                let opened = epoll::open(&options).map_err(|why| Unsupported::failed("epoll", &why));
                let (driver, pool, wake_flag) = opened?;
                Ok(Self::new(Box::new(driver), pool, wake_flag, options))
            }
        }
    }

    /// The same on io_uring.
    pub fn kernel(options: RingOptions) -> Result<Self, Unsupported> {
        Self::open(RingOptions { driver: IoDriver::IoUring, ..options })
    }

    /// The same on epoll.
    pub fn epoll(options: RingOptions) -> Result<Self, Unsupported> {
        Self::open(RingOptions { driver: IoDriver::Epoll, ..options })
    }

    pub(crate) fn new(
        driver: Box<dyn Driver>,
        pool: Rc<BufferPool>,
        wake_flag: Arc<WakeFlag>,
        options: RingOptions,
    ) -> Self {
        Self { core: Rc::new(RingState::new(driver, pool, wake_flag, options)) }
    }

    /// Runs the loop until `future` is done. Spawned tasks run meanwhile, and are kept between two calls.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let core = &*self.core;
        let _running = core.executor.enter();
        let (main, waker) = core.executor.main();
        let mut future = pin!(future);
        core.advance();
        loop {
            let mut polls = POLLS_PER_TURN;
            loop {
                while core.executor.run(main, &mut polls) {
                    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        core.turn(WaitPolicy::None); // submits what the last poll left, above all closes
                        return output;
                    }
                }
                // All runnable tasks had their poll: what is left of the budget is for those that wait for it.
                if polls == 0 || !core.turn_budget.grant() {
                    break;
                }
            }
            core.turn(core.wait_policy());
        }
    }

    /// Adds a task. A task that panics is dropped and counted, and the others continue.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.spawn_boxed(Box::pin(future)); // one allocation per task
    }

    /// Adds a task that is already boxed.
    pub fn spawn_boxed(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        self.core.executor.spawn(TaskFuture::Boxed(future));
    }

    /// Adds a task in the memory of an ended one of the same type, for futures that are large and short-lived. Each type
    /// keeps some memory, so there should be few.
    pub fn spawn_recycled(&self, future: impl Future<Output = ()> + 'static) {
        let core = &*self.core;
        core.executor.spawn(TaskFuture::Recycled(core.task_memory.task(future)));
    }

    /// Number of tasks that ended in a panic.
    #[must_use]
    pub fn panicked(&self) -> u64 {
        self.core.executor.panicked()
    }

    /// The time at the start of this turn of the loop.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.core.now()
    }

    pub fn sleep_until(&self, at: Tick) -> Sleep {
        Sleep::new(Rc::clone(&self.core), at)
    }

    pub fn sleep(&self, wait: Duration) -> Sleep {
        self.sleep_until(self.now() + wait)
    }

    /// Limits `future` to the time `wait`.
    pub fn timeout<F: Future>(&self, wait: Duration, future: F) -> Timeout<F> {
        self.within(Some(self.now() + wait), future)
    }

    /// Limits `future` to the time until `at`, if there is a deadline.
    pub fn within<F: Future>(&self, at: Option<Tick>, future: F) -> Timeout<F> {
        Timeout::new(future, at.map(|at| self.sleep_until(at)))
    }

    /// From now until `at` the loop polls for work instead of sleeping, and yields its processor between
    /// two polls. For waits that are no longer than the wake-up of a sleeping processor.
    pub fn busy_poll_until(&self, at: Tick) {
        self.core.awake_until.set(at);
    }

    /// Resolves when no task is runnable and the kernel has no completions: the best moment for batched
    /// work. A loop under constant load is never idle, so combine this with a timeout.
    pub async fn idle(&self) {
        self.core.idle_waiters.next().await;
    }

    /// Lets the other runnable tasks run first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|cx| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Charges expensive work to the budget of this turn ([`crate::TURN_STEPS_MAX`]), after it was done.
    #[inline]
    pub fn charge(&self, steps: usize) {
        self.core.turn_budget.charge(steps);
    }

    /// Whether a task may begin more expensive work in this turn; otherwise it awaits
    /// [`budget_remaining`](Self::budget_remaining) first.
    #[inline]
    #[must_use]
    pub fn has_budget_remaining(&self) -> bool {
        self.core.turn_budget.has_remaining()
    }

    /// Resolves at once while this turn has budget left, and otherwise in a later turn: completions, timers
    /// and all runnable tasks come first, and other tasks that wait here come in order.
    pub async fn budget_remaining(&self) {
        self.core.turn_budget.remaining().await;
    }

    /// The state of this loop that other threads may read while it runs.
    #[must_use]
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.core.options.heartbeat
    }

    /// A handle with which other threads wake this ring; see [`Ring::woken`].
    #[must_use]
    pub fn wake_handle(&self) -> WakeHandle {
        WakeHandle(Arc::clone(&self.core.wake_flag))
    }

    /// Resolves once after each burst of [`WakeHandle::wake`], for one of the waiting tasks.
    pub async fn woken(&self) {
        poll_fn(|cx| {
            if self.core.wake_flag.take_call() {
                return Poll::Ready(());
            }
            let mut listeners = self.core.listeners.borrow_mut();
            if !listeners.iter().any(|listener| listener.will_wake(cx.waker())) {
                listeners.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Drops all tasks, ends all operations and waits until the kernel has finished with each. Do not call
    /// it inside [`block_on`](Self::block_on).
    pub fn shutdown(&self) {
        assert!(!self.core.executor.is_running(), "a task cannot end the loop that polls it");
        self.core.executor.clear();
        self.core.drain();
    }
}
