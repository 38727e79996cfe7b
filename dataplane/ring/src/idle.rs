//! Who waits until the loop has nothing to do.

use std::cell::Cell;

use crate::notify::Notify;

#[derive(Debug, Default)]
pub(crate) struct IdleWaiters {
    /// Rung by each.
    notify: Notify,
    /// The kernel was asked since somebody ran, and had nothing.
    looked: Cell<bool>,
}

impl IdleWaiters {
    pub(crate) async fn next(&self) {
        self.notify.after(self.notify.count()).await;
    }

    /// Somebody runs.
    pub(crate) fn interrupted(&self) {
        self.looked.set(false);
    }

    /// Nobody is runnable. Whether the loop may sleep: not before it has looked once more for those who wait, and told them.
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
