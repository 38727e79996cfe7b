//! The tasks of one thread and their ready queue.
//!
//! A task is woken by its id, which is pushed to a local queue. A waker that left its task (it may move to
//! other threads) carries the id; a wake on another thread goes through the wake flag.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use crate::prefetch::prefetch;
use crate::ready_queue::{RUNNING, ReadyQueue, TaskId};
use crate::task_memory::RecycledFuture;
use crate::wake::{TaskWaker, WakeFlag};

/// The future of a task.
pub(crate) enum TaskFuture {
    Boxed(Pin<Box<dyn Future<Output = ()>>>),
    /// Its memory is used again.
    Recycled(Pin<Box<dyn RecycledFuture>>),
}

impl TaskFuture {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Boxed(future) => future.as_mut().poll(cx),
            Self::Recycled(future) => future.as_mut().poll(cx),
        }
    }

    fn prefetch(&self) {
        match self {
            Self::Boxed(future) => prefetch(&**future),
            Self::Recycled(future) => prefetch(&**future),
        }
    }

    /// Drops the future.
    fn end(self) {
        match self {
            Self::Boxed(future) => drop(future),
            Self::Recycled(future) => future.recycle(),
        }
    }
}

/// Numbers the rings, so that a waker knows whether the ring on this thread is its own.
static RINGS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Executor {
    ready: Rc<ReadyQueue>,
    wake_flag: Arc<WakeFlag>,
    slots: RefCell<TaskSlots>,
    /// The task that is being polled, and the data pointer of its waker.
    polled: Cell<Option<(TaskId, *const ())>>,
    panicked: Cell<u64>,
}

/// The slot of the future that `block_on` runs.
const MAIN: u32 = 0;

struct TaskSlots {
    /// `None` while its task is being polled, and when it is free; [`MAIN`] is never used.
    tasks: Vec<Option<Task>>,
    free: Vec<u32>,
}

struct Task {
    future: TaskFuture,
    waker: Waker,
}

impl Executor {
    pub(crate) fn new(wake_flag: Arc<WakeFlag>) -> Self {
        let ring = RINGS.fetch_add(1, Ordering::Relaxed);
        Self {
            ready: Rc::new(ReadyQueue { ring, queue: RefCell::default(), lives: RefCell::default() }),
            wake_flag,
            slots: RefCell::new(TaskSlots { tasks: vec![None], free: Vec::new() }),
            polled: Cell::new(None),
            panicked: Cell::new(0),
        }
    }

    pub(crate) fn spawn(&self, future: TaskFuture) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.tasks.push(None);
            u32::try_from(slots.tasks.len() - 1).expect("four billion tasks do not fit in memory")
        });
        let name = self.ready.begin(slot);
        slots.tasks[slot as usize] = Some(Task { future, waker: self.waker(name) });
        self.ready.wake(name);
    }

    /// An id and a waker for the future of `block_on`, queued for its first poll.
    pub(crate) fn main(&self) -> (TaskId, Waker) {
        let name = self.ready.begin(MAIN);
        self.ready.wake(name);
        (name, self.waker(name))
    }

    fn waker(&self, task: TaskId) -> Waker {
        let wake_flag = Arc::clone(&self.wake_flag);
        Arc::new(TaskWaker { ring: self.ready.ring, task, detached: false.into(), wake_flag }).into()
    }

    pub(crate) fn wake(&self, task: TaskId) {
        self.ready.wake(task);
    }

    /// The task that is being polled, if `waker` is its own.
    pub(crate) fn polled_with(&self, waker: &Waker) -> Option<TaskId> {
        // The data of a task's waker lives as long as the task, and no other waker can point there.
        self.polled.get().filter(|(_, own)| ptr::eq(*own, waker.data())).map(|(task, _)| task)
    }

    /// Marks this executor as the one that runs on this thread, until the guard is dropped.
    pub(crate) fn enter(&self) -> ExecutorGuard {
        RUNNING.with_borrow_mut(|running| {
            assert!(running.is_none(), "block_on inside block_on would never return");
            *running = Some(Rc::clone(&self.ready));
        });
        ExecutorGuard
    }

    /// Whether this thread is inside this executor now.
    pub(crate) fn is_running(&self) -> bool {
        RUNNING.with_borrow(|running| running.as_ref().is_some_and(|ready| ready.ring == self.ready.ring))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ready.queue.borrow().is_empty()
    }

    /// Queues the tasks that other threads have woken.
    pub(crate) fn take_in(&self, tasks: Vec<Arc<TaskWaker>>) {
        for wakeup in tasks {
            // A swap and not a store: the poll sees everything written before the wakes that found the flag
            // set.
            wakeup.detached.swap(false, Ordering::AcqRel);
            self.ready.wake(wakeup.task);
        }
    }

    /// Polls up to `polls_max` tasks. Returns early, with `true`, when `main` is next.
    pub(crate) fn run(&self, main: TaskId, polls: &mut usize) -> bool {
        while *polls > 0 {
            let Some(next) = self.ready.next() else { return false };
            *polls -= 1;
            self.prefetch_next();
            if next == main {
                return true;
            }
            self.poll(next);
        }
        false
    }

    /// Number of tasks that panicked.
    pub(crate) fn panicked(&self) -> u64 {
        self.panicked.get()
    }

    /// Drops all tasks, including those spawned by destructors meanwhile.
    pub(crate) fn clear(&self) {
        loop {
            let tasks: Vec<_> = self.slots.borrow_mut().tasks.iter_mut().map(Option::take).collect();
            let any = tasks.iter().any(Option::is_some);
            for (slot, task) in (0..).zip(tasks) {
                let Some(task) = task else { continue };
                self.end(slot, task.future);
            }
            if !any {
                self.ready.queue.borrow_mut().clear();
                return;
            }
        }
    }

    /// Prefetches the state of the task after the one to be polled now.
    fn prefetch_next(&self) {
        let Some(next) = self.ready.queue.borrow().front().copied() else { return };
        if let Some(Some(task)) = self.slots.borrow().tasks.get(next.slot as usize) {
            task.future.prefetch();
        }
    }

    fn poll(&self, name: TaskId) {
        let slot = name.slot as usize;
        let taken = self.slots.borrow_mut().tasks.get_mut(slot).and_then(Option::take);
        let Some(mut task) = taken else { return };
        self.polled.set(Some((name, task.waker.data())));
        let mut cx = Context::from_waker(&task.waker);
        // A task that panicked is not polled again, so its inconsistent state is never observed.
        let result = catch_unwind(AssertUnwindSafe(|| task.future.poll(&mut cx)));
        self.polled.set(None);
        match result {
            Ok(Poll::Pending) => self.slots.borrow_mut().tasks[slot] = Some(task),
            Ok(Poll::Ready(())) => self.end(name.slot, task.future),
            Err(_) => {
                self.panicked.set(self.panicked.get() + 1);
                self.end(name.slot, task.future);
            }
        }
    }

    /// Ends the generation, so that no wake finds it, and drops the future, whose destructor may panic as
    /// well.
    fn end(&self, slot: u32, future: TaskFuture) {
        self.ready.begin(slot);
        if catch_unwind(AssertUnwindSafe(|| future.end())).is_err() {
            self.panicked.set(self.panicked.get() + 1);
        }
        self.slots.borrow_mut().free.push(slot);
    }
}

/// See [`Executor::enter`].
pub(crate) struct ExecutorGuard;

impl Drop for ExecutorGuard {
    fn drop(&mut self) {
        RUNNING.with(|running| running.take());
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::waiter::Waiter;

    type PollCounts = Rc<RefCell<(usize, Option<Waker>)>>;

    /// A task that counts its polls, shares its waker, and finishes at poll number `last`.
    fn shown(executor: &Executor, last: usize) -> PollCounts {
        let seen = PollCounts::default();
        let mine = Rc::clone(&seen);
        executor.spawn(TaskFuture::Boxed(Box::pin(poll_fn(move |cx| {
            let mut mine = mine.borrow_mut();
            *mine = (mine.0 + 1, Some(cx.waker().clone()));
            if mine.0 == last { Poll::Ready(()) } else { Poll::Pending }
        }))));
        seen
    }

    fn run(executor: &Executor, main: TaskId) {
        let mut polls = 100;
        while executor.run(main, &mut polls) {}
    }

    #[test]
    fn waker_of_ended_task_wakes_no_task() {
        let executor = Executor::new(WakeFlag::new(None));
        let _running = executor.enter();
        let (main, _) = executor.main();
        let first = shown(&executor, 1);
        run(&executor, main);
        let next = shown(&executor, 3);
        run(&executor, main);
        let wake = |seen: &PollCounts| seen.borrow().1.clone().unwrap().wake();
        wake(&first);
        run(&executor, main);
        assert_eq!((first.borrow().0, next.borrow().0), (1, 1));
        assert_eq!(executor.slots.borrow().tasks.len(), 2, "both had the same slot");
        (0..2).for_each(|_| wake(&next));
        run(&executor, main);
        assert_eq!(next.borrow().0, 2, "two wakes, one poll");
        executor.clear();
        wake(&next);
        assert!(executor.is_idle());
    }

    #[test]
    fn task_waits_by_id_and_others_by_waker() {
        let executor = Rc::new(Executor::new(WakeFlag::new(None)));
        let _running = executor.enter();
        let (main, main_waker) = executor.main();
        let (mine, polls) = (Rc::clone(&executor), Rc::new(Cell::new(0)));
        let counted = Rc::clone(&polls);
        executor.spawn(TaskFuture::Boxed(Box::pin(poll_fn(move |cx| {
            let mut place = None;
            Waiter::remember(&mut place, &mine, &cx.waker().clone());
            assert!(matches!(place, Some(Waiter::Task(_))));
            Waiter::remember(&mut place, &mine, Waker::noop());
            assert!(matches!(place, Some(Waiter::Other(_))));
            counted.set(counted.get() + 1);
            if counted.get() == 1 {
                Waiter::remember(&mut place, &mine, cx.waker());
                place.take().unwrap().wake(&mine); // while it is polled: one more poll
            }
            Poll::Pending
        }))));
        run(&executor, main);
        assert_eq!((polls.get(), executor.panicked()), (2, 0));
        let mut place = None;
        Waiter::remember(&mut place, &executor, &main_waker);
        assert!(matches!(place, Some(Waiter::Other(_))), "no task is polled");
    }
}
