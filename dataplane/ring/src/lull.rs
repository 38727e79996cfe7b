//! Who waits until the loop has nothing to do.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

/// Tasks that wait for a lull.
#[derive(Debug, Default)]
pub(crate) struct Lulls {
    /// How many there were.
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
    /// The kernel was asked since somebody ran, and had nothing.
    looked: Cell<bool>,
}

impl Lulls {
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(crate) fn poll(&self, seen: u64, cx: &Context<'_>) -> Poll<()> {
        if self.count.get() > seen {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.last().is_some_and(|last| last.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Somebody runs.
    pub(crate) fn interrupted(&self) {
        self.looked.set(false);
    }

    /// Nobody is runnable. Whether the loop may sleep: not before it has looked once more for those who wait, and told them.
    pub(crate) fn may_sleep(&self) -> bool {
        if self.waiting.borrow().is_empty() {
            return true;
        }
        if self.looked.replace(true) {
            self.looked.set(false);
            self.count.set(self.count.get() + 1);
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
        false
    }
}
