//! The tasks of one thread that are to be polled next.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

thread_local! {
    /// The ready queue of the ring that runs on this thread now.
    pub(crate) static RUNNING: RefCell<Option<Rc<ReadyQueue>>> = const { RefCell::new(None) };
}

/// A task, or a future that `block_on` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) slot: u32,
    /// Generation of the slot: the slot may belong to another task by now. Wraps, so an id kept for four
    /// billion generations would cost one poll too many.
    pub(crate) life: u32,
}

/// The tasks to poll.
pub(crate) struct ReadyQueue {
    pub(crate) ring: u64,
    /// Oldest first.
    pub(crate) queue: RefCell<VecDeque<TaskId>>,
    /// By slot.
    pub(crate) lives: RefCell<Vec<TaskState>>,
}

#[derive(Default)]
pub(crate) struct TaskState {
    pub(crate) count: u32,
    /// Already in the queue; a second wake changes nothing.
    pub(crate) queued: bool,
}

impl ReadyQueue {
    pub(crate) fn wake(&self, task: TaskId) {
        if let Some(life) = self.lives.borrow_mut().get_mut(task.slot as usize)
            && life.count == task.life
            && !life.queued
        {
            life.queued = true;
            self.queue.borrow_mut().push_back(task);
        }
    }

    /// The next queued task that still exists.
    pub(crate) fn next(&self) -> Option<TaskId> {
        loop {
            let next = self.queue.borrow_mut().pop_front()?;
            let life = &mut self.lives.borrow_mut()[next.slot as usize];
            if life.count == next.life {
                life.queued = false;
                return Some(next);
            }
        }
    }

    /// Starts a new generation of the slot and returns its id, which no earlier task had.
    pub(crate) fn begin(&self, slot: u32) -> TaskId {
        let lives = &mut *self.lives.borrow_mut();
        let at = slot as usize;
        if at >= lives.len() {
            lives.resize_with(at + 1, TaskState::default);
        }
        lives[at] = TaskState { count: lives[at].count.wrapping_add(1), queued: false };
        TaskId { slot, life: lives[at].count }
    }
}
