//! Tells waiting tasks of one thread that something has changed, without saying what.
//!
//! A task notes the count, looks at the state, and waits for a later count: a change between the
//! look and the wait is never missed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A task notes the [`count`](Self::count), looks at what may have changed, and waits for a later count.
#[derive(Debug, Default)]
pub struct Notify {
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
    /// Empty, with the room that the last round took: a log rings once a flush, with a waiter for each event in it.
    spare: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Wakes everybody who waits.
    pub fn ring(&self) {
        self.count.set(self.count.get() + 1);
        let mut waiting = self.waiting.replace(self.spare.take());
        waiting.drain(..).for_each(Waker::wake);
        self.spare.replace(waiting);
    }

    /// How often it has rung.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// How many wait for it.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Resolves when it has rung more than `seen` times.
    pub async fn after(&self, seen: u64) {
        poll_fn(|cx| {
            if self.count.get() > seen {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            // A lone waiter that gave up (a timer was faster) and came back is still in the list.
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
    fn a_ring_between_the_look_and_the_wait_is_not_missed() {
        let bell = Notify::default();
        let waker = Waker::from(Arc::new(NoWaiter));
        let cx = &mut Context::from_waker(&waker);
        let seen = bell.count();
        bell.ring();
        assert!(pin!(bell.after(seen)).poll(cx).is_ready());
        assert!(pin!(bell.after(bell.count())).poll(cx).is_pending());
        assert!(pin!(bell.after(bell.count())).poll(cx).is_pending());
        assert_eq!(bell.waiting.borrow().len(), 1);
    }
}
