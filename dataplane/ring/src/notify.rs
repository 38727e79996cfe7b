//! Wakes waiting tasks of one thread when a state has changed, without saying which one.
//!
//! A task reads the count, checks the state, and waits for a later count: a change between the check and
//! the wait is never missed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A task reads the [`count`](Self::count), checks what may have changed, and waits for a later count.
#[derive(Debug, Default)]
pub struct Notify {
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
    /// Empty, with the capacity of the last round: a log notifies once per flush, with a waiter for each
    /// event in it.
    spare: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Wakes all waiting tasks.
    pub fn ring(&self) {
        self.count.set(self.count.get() + 1);
        let mut waiting = self.waiting.replace(self.spare.take());
        waiting.drain(..).for_each(Waker::wake);
        self.spare.replace(waiting);
    }

    /// Number of notifications so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Number of waiting tasks.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Resolves when there were more than `seen` notifications.
    pub async fn after(&self, seen: u64) {
        poll_fn(|cx| {
            if self.count.get() > seen {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            // A single waiter that gave up (a timer was faster) and came back is still in the list.
            if !waiting.last().is_some_and(|last| last.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Wake};

    use super::*;

    struct NoWaiter;

    impl Wake for NoWaiter {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn notification_between_check_and_wait_is_not_missed() {
        let notify = Notify::default();
        let waker = Waker::from(Arc::new(NoWaiter));
        let cx = &mut Context::from_waker(&waker);
        let seen = notify.count();
        notify.ring();
        assert!(pin!(notify.after(seen)).poll(cx).is_ready());
        assert!(pin!(notify.after(notify.count())).poll(cx).is_pending());
        assert!(pin!(notify.after(notify.count())).poll(cx).is_pending());
        assert_eq!(notify.waiting.borrow().len(), 1);
    }
}
