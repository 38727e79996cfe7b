//! Futures that resolve at a deadline.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::ring_state::RingState;
use crate::tick::Tick;
use crate::timer::TimerId;
use crate::waiter::Waiter;

/// The timeout has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed;

/// Resolves when its deadline has come.
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep {
    core: Rc<RingState>,
    at: Tick,
    set: Option<TimerId>,
}

impl Sleep {
    pub(crate) fn new(core: Rc<RingState>, at: Tick) -> Self {
        Self { core, at, set: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.now() >= self.at {
            return Poll::Ready(());
        }
        let core = Rc::clone(&self.core);
        let mut timers = core.timers.borrow_mut();
        let (name, waiter) = timers.set(self.at, self.set);
        Waiter::remember(waiter, &core.executor, cx.waker());
        self.set = Some(name);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(name) = self.set {
            self.core.timers.borrow_mut().clear(name);
        }
    }
}

pin_project_lite::pin_project! {
    /// A future with a deadline, after which it resolves to [`Elapsed`].
    ///
    /// A type of its own and not an `async fn`: that would store its argument as well as the copy that it
    /// awaits, and each level of waiting would double the size of a connection.
    #[must_use = "futures do nothing until they are awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Option<Sleep>,
    }
}

impl<F> Timeout<F> {
    pub(crate) fn new(future: F, sleep: Option<Sleep>) -> Self {
        Self { future, sleep }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        match this.sleep {
            Some(sleep) => Pin::new(sleep).poll(cx).map(|()| Err(Elapsed)),
            None => Poll::Pending,
        }
    }
}
