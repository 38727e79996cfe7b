//! The timeout of one request at a time, without a timer: a task of the thread checks all of them a few times a second.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};

use ring::Tick;

/// The timeout of the requests of one task.
#[derive(Debug, Default)]
pub(crate) struct RequestDeadline {
    at: Cell<Option<Tick>>,
    expired: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// The deadline has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeadlineExpired;

impl RequestDeadline {
    /// Runs `future` until it is done, or until the deadline `at` has passed and was [checked](Self::check).
    pub(crate) async fn within<F: Future>(&self, at: Tick, future: F) -> Result<F::Output, DeadlineExpired> {
        let mut future = pin!(future);
        self.expired.set(false);
        self.at.set(Some(at));
        let outcome = poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            if self.expired.get() {
                return Poll::Ready(Err(DeadlineExpired));
            }
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone()); // once a task
            }
            Poll::Pending
        })
        .await;
        self.at.set(None);
        outcome
    }

    /// Wakes the task if its deadline has passed.
    pub(crate) fn check(&self, now: Tick) {
        if self.at.get().is_some_and(|at| at <= now)
            && !self.expired.replace(true)
            && let Some(waker) = &*self.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;
    use std::time::Duration;

    use super::*;

    #[test]
    fn future_ends_when_its_deadline_was_checked() {
        let deadline = RequestDeadline::default();
        let at = Tick::ZERO + Duration::from_secs(1);
        let cx = &mut Context::from_waker(Waker::noop());
        let mut waiting = pin!(deadline.within(at, std::future::pending::<()>()));
        assert!(waiting.as_mut().poll(cx).is_pending());
        deadline.check(Tick::ZERO);
        assert!(waiting.as_mut().poll(cx).is_pending());
        deadline.check(at);
        assert_eq!(waiting.as_mut().poll(cx), Poll::Ready(Err(DeadlineExpired)));
    }

    #[test]
    fn finished_future_leaves_no_deadline() {
        let deadline = RequestDeadline::default();
        let cx = &mut Context::from_waker(Waker::noop());
        let done = pin!(deadline.within(Tick::ZERO, std::future::ready(7))).poll(cx);
        assert_eq!(done, Poll::Ready(Ok(7)));
        deadline.check(Tick::ZERO + Duration::MAX);
        assert!(!deadline.expired.get());
    }
}
