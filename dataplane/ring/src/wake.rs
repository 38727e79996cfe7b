//! Wakes the loop from other threads.
//!
//! The flag is set once per burst: a thread that finds it set knows that the loop has yet to check, and the
//! loop then checks everything.

use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use crate::ready_queue::{RUNNING, TaskId};

/// Wakes a ring from any thread.
#[derive(Clone)]
pub struct WakeHandle(pub(crate) Arc<WakeFlag>);

impl WakeHandle {
    /// Makes [`Ring::woken`](crate::Ring::woken) resolve on the ring's thread. Calls before it does count
    /// as one.
    pub fn wake(&self) {
        self.0.woken.store(true, Ordering::SeqCst);
        self.0.ring();
    }
}

pub(crate) struct WakeFlag {
    /// An eventfd that the kernel driver reads; the simulation has no threads to wait for.
    eventfd: Option<fs::File>,
    set: AtomicBool,
    /// Set by [`WakeHandle::wake`].
    woken: AtomicBool,
    /// Tasks woken by other threads.
    tasks: Mutex<Vec<Arc<TaskWaker>>>,
}

impl WakeFlag {
    pub(crate) fn new(eventfd: Option<fs::File>) -> Arc<Self> {
        Arc::new(Self { eventfd, set: false.into(), woken: false.into(), tasks: Mutex::default() })
    }

    /// Leaves a task for the loop to poll.
    pub(crate) fn detach(&self, task: Arc<TaskWaker>) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.ring();
    }

    /// Whether the flag was set since the last [`answer`](Self::answer).
    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    /// Takes the woken tasks. The flag is cleared first, so a later wake sets it again.
    pub(crate) fn answer(&self) -> Vec<Arc<TaskWaker>> {
        if !self.set.swap(false, Ordering::SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a wake is pending.
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }

    /// Takes the pending wake.
    pub(crate) fn take_call(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }

    fn ring(&self) {
        if !self.set.swap(true, Ordering::SeqCst)
            && let Some(mut eventfd) = self.eventfd.as_ref()
        {
            // The counter cannot overflow: it is raised once per handled wake. So the write fails only if
            // the descriptor is closed, and the WakeFlag owns it.
            let written = eventfd.write(&1_u64.to_ne_bytes());
            debug_assert!(written.is_ok(), "{written:?}");
        }
    }
}

/// The shared state of a task's wakers.
pub(crate) struct TaskWaker {
    pub(crate) ring: u64,
    pub(crate) task: TaskId,
    /// Already passed to the wake flag.
    pub(crate) detached: AtomicBool,
    pub(crate) wake_flag: Arc<WakeFlag>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let here = RUNNING.try_with(|running| {
            let running = running.borrow();
            let ready = running.as_ref().filter(|ready| ready.ring == self.ring);
            ready.map(|ready| ready.wake(self.task)).is_some()
        });
        if here != Ok(true) && !self.detached.swap(true, Ordering::AcqRel) {
            self.wake_flag.detach(Arc::clone(self));
        }
    }
}
