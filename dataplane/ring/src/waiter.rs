//! Who waits for something of the ring.

use std::task::Waker;

use crate::executor::{Executor, TaskId};

/// A task of this ring by its name, or somebody else by their waker. Nearly always a task itself waits, and a name costs
/// nothing: a waker is counted in memory that all threads may use, at each wait and each end of one.
pub(crate) enum Waiter {
    Task(TaskId),
    Other(Waker),
}

impl Waiter {
    /// Puts the owner of `waker` into `place`.
    pub(crate) fn remember(place: &mut Option<Self>, executor: &Executor, waker: &Waker) {
        match (executor.polled_with(waker), place) {
            (Some(task), place) => *place = Some(Self::Task(task)),
            (None, Some(Self::Other(known))) => known.clone_from(waker), // copies nothing if it is the same
            (None, place) => *place = Some(Self::Other(waker.clone())),
        }
    }

    pub(crate) fn wake(self, executor: &Executor) {
        match self {
            Self::Task(task) => executor.wake(task),
            Self::Other(waker) => waker.wake(),
        }
    }
}
