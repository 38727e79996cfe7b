//! Tasks of one thread and who is to be polled next.
//!
//! A wake on the ring's own thread is a push to a local queue. A wake from elsewhere (a waker may
//! travel) goes through the doorbell.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use crate::prefetch::prefetch;
use crate::remote::Doorbell;

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

thread_local! {
    /// The queue of the ring that runs on this thread now.
    static RUNNING: RefCell<Option<Rc<Ready>>> = const { RefCell::new(None) };
}

/// Names rings, so that a waker knows whether the ring that runs on this thread is its own.
static RINGS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Executor {
    ready: Rc<Ready>,
    doorbell: Arc<Doorbell>,
    slots: RefCell<Slots>,
    panicked: Cell<u64>,
}

/// Who is to be polled, oldest first.
struct Ready {
    ring: u64,
    queue: RefCell<VecDeque<Arc<Wakeup>>>,
}

#[derive(Default)]
struct Slots {
    /// `None` while its task is being polled, and when it is free.
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
}

struct Task {
    future: TaskFuture,
    waker: Waker,
}

/// A task's name, as its wakers carry it.
pub(crate) struct Wakeup {
    ring: u64,
    /// `None` for the future that `block_on` runs.
    slot: Option<usize>,
    /// In a queue already; a second wake changes nothing.
    queued: AtomicBool,
    /// Its slot may belong to another task by now.
    finished: AtomicBool,
    doorbell: Arc<Doorbell>,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let ready = RUNNING.try_with(|running| running.borrow().clone()).ok().flatten();
        match ready.filter(|ready| ready.ring == self.ring) {
            Some(ready) => ready.queue.borrow_mut().push_back(self),
            None => Arc::clone(&self.doorbell).leave(self),
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.load(Ordering::Acquire) {
            Arc::clone(self).wake();
        }
    }
}

impl Executor {
    pub(crate) fn new(doorbell: Arc<Doorbell>) -> Self {
        let ring = RINGS.fetch_add(1, Ordering::Relaxed);
        Self {
            ready: Rc::new(Ready { ring, queue: RefCell::default() }),
            doorbell,
            slots: RefCell::default(),
            panicked: Cell::new(0),
        }
    }

    pub(crate) fn spawn(&self, future: TaskFuture) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.tasks.push(None);
            slots.tasks.len() - 1
        });
        let wakeup = self.wakeup(Some(slot));
        slots.tasks[slot] = Some(Task { future, waker: Waker::from(Arc::clone(&wakeup)) });
        self.ready.queue.borrow_mut().push_back(wakeup);
    }

    /// A name for `block_on`'s own future, queued for its first poll.
    pub(crate) fn main(&self) -> Arc<Wakeup> {
        let wakeup = self.wakeup(None);
        self.ready.queue.borrow_mut().push_back(Arc::clone(&wakeup));
        wakeup
    }

    /// Marks this executor as the one that runs on this thread, until the guard is dropped.
    pub(crate) fn enter(&self) -> Entered {
        RUNNING.with_borrow_mut(|running| {
            assert!(running.is_none(), "block_on inside block_on would never come back");
            *running = Some(Rc::clone(&self.ready));
        });
        Entered
    }

    /// Whether this thread is inside this executor now.
    pub(crate) fn is_running(&self) -> bool {
        RUNNING.with_borrow(|running| running.as_ref().is_some_and(|ready| ready.ring == self.ready.ring))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ready.queue.borrow().is_empty()
    }

    /// Queues what other threads have woken.
    pub(crate) fn take_in(&self, tasks: Vec<Arc<Wakeup>>) {
        self.ready.queue.borrow_mut().extend(tasks);
    }

    /// Polls up to `polls_max` tasks. Returns early, with `true`, when it is `main`'s turn.
    pub(crate) fn run(&self, main: &Arc<Wakeup>, polls: &mut usize) -> bool {
        while *polls > 0 {
            let Some(next) = self.ready.queue.borrow_mut().pop_front() else { return false };
            *polls -= 1;
            self.look_ahead();
            next.queued.store(false, Ordering::Release);
            match next.slot {
                Some(slot) if !next.finished.load(Ordering::Acquire) => self.poll(slot, &next),
                Some(_) => {}
                None if Arc::ptr_eq(&next, main) => return true,
                None => {} // a waker of an earlier block_on
            }
        }
        false
    }

    /// Tasks that panicked so far.
    pub(crate) fn panicked(&self) -> u64 {
        self.panicked.get()
    }

    /// Drops all tasks, those included that are made while others are dropped.
    pub(crate) fn clear(&self) {
        loop {
            let tasks = std::mem::take(&mut self.slots.borrow_mut().tasks);
            self.slots.borrow_mut().free.clear();
            let queued = self.ready.queue.take();
            if tasks.is_empty() && queued.is_empty() {
                return;
            }
            for wakeup in queued {
                wakeup.finished.store(true, Ordering::Release);
            }
            for task in tasks.into_iter().flatten() {
                self.discard(task.future);
            }
        }
    }

    /// Asks for the memory of the task that comes after the one to be polled now.
    fn look_ahead(&self) {
        let queue = self.ready.queue.borrow();
        let Some(slot) = queue.front().and_then(|next| next.slot) else { return };
        if let Some(Some(task)) = self.slots.borrow().tasks.get(slot) {
            prefetch(&*task.future);
        }
    }

    fn poll(&self, slot: usize, wakeup: &Wakeup) {
        let taken = self.slots.borrow_mut().tasks.get_mut(slot).and_then(Option::take);
        let Some(mut task) = taken else { return };
        let mut cx = Context::from_waker(&task.waker);
        // A task that panicked is not polled again, so nobody sees what it left half done.
        let result = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut cx)));
        if let Ok(std::task::Poll::Pending) = result {
            self.slots.borrow_mut().tasks[slot] = Some(task);
            return;
        }
        wakeup.finished.store(true, Ordering::Release);
        if result.is_err() {
            self.panicked.set(self.panicked.get() + 1);
        }
        self.discard(task.future);
        self.slots.borrow_mut().free.push(slot);
    }

    /// Drops a future, whose destructor may panic as well.
    fn discard(&self, future: TaskFuture) {
        if catch_unwind(AssertUnwindSafe(|| drop(future))).is_err() {
            self.panicked.set(self.panicked.get() + 1);
        }
    }

    /// A name for something that is put into the queue at once.
    fn wakeup(&self, slot: Option<usize>) -> Arc<Wakeup> {
        Arc::new(Wakeup {
            ring: self.ready.ring,
            slot,
            queued: true.into(),
            finished: false.into(),
            doorbell: Arc::clone(&self.doorbell),
        })
    }
}

/// See [`Executor::enter`].
pub(crate) struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        RUNNING.with(|running| running.take());
    }
}
