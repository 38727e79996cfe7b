//! The waiter of an event of the ring.

use std::task::Waker;

use crate::executor::Executor;
use crate::ready_queue::TaskId;

/// A task of this ring by its id, or another waiter by its waker. Nearly always a task itself waits, and an
/// id is free: a waker has an atomic count, changed at the start and end of each wait.
pub(crate) enum Waiter {
    Task(TaskId),
    Other(Waker),
}

impl Waiter {
    /// Stores the owner of `waker` in `place`.
    pub(crate) fn remember(slot: &mut Option<Self>, executor: &Executor, waker: &Waker) {
        match (executor.polled_with(waker), slot) {
            (Some(task), slot) => *slot = Some(Self::Task(task)),
            (None, Some(Self::Other(known))) => known.clone_from(waker), // copies nothing if it is the same
            (None, slot) => *slot = Some(Self::Other(waker.clone())),
        }
    }

    pub(crate) fn wake(self, executor: &Executor) {
        match self {
            Self::Task(task) => executor.wake(task),
            Self::Other(waker) => waker.wake(),
        }
    }
}
