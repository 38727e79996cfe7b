//! Tasks that wait until the loop is idle.

use std::cell::Cell;

use crate::notify::Notify;

#[derive(Debug, Default)]
pub(crate) struct IdleWaiters {
    /// Notified for each waiting task.
    notify: Notify,
    /// The kernel was polled since a task last ran, and had no completion.
    looked: Cell<bool>,
}

impl IdleWaiters {
    pub(crate) async fn next(&self) {
        self.notify.after(self.notify.count()).await;
    }

    /// Records that a task runs.
    pub(crate) fn interrupted(&self) {
        self.looked.set(false);
    }

    /// No task is runnable. Returns whether the loop may sleep: not before it has polled once more for the
    /// waiting tasks, and woken them.
    pub(crate) fn may_sleep(&self) -> bool {
        if self.notify.waiting() == 0 {
            return true;
        }
        if self.looked.replace(true) {
            self.looked.set(false);
            self.notify.ring();
        }
        false
    }
}
