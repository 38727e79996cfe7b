//! Timers: an ordered map in the executor. No kernel operation per timer, and a timer that is not
//! needed any more (nearly all of them guard something that goes well) leaves at once.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::ring::Core;
use crate::tick::Tick;

/// The time given to something is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed;

/// Resolves when its moment has come.
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep {
    core: Rc<Core>,
    at: Tick,
    id: Option<u64>,
}

impl Sleep {
    pub(crate) fn new(core: Rc<Core>, at: Tick) -> Self {
        Self { core, at, id: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.now() >= self.at {
            return Poll::Ready(());
        }
        let id = self.core.timers.borrow_mut().set(self.at, self.id, cx.waker());
        self.id = Some(id);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.core.timers.borrow_mut().clear(self.at, id);
        }
    }
}

pin_project_lite::pin_project! {
    /// A future with an end to its time, after which it resolves to [`Elapsed`].
    ///
    /// A type of its own and not an `async fn`: that would keep its argument beside the copy that it awaits, and each
    /// level of waiting would double what a connection takes.
    #[must_use = "futures do nothing until they are awaited"]
    pub struct Within<F> {
        #[pin]
        future: F,
        sleep: Option<Sleep>,
    }
}

impl<F> Within<F> {
    pub(crate) fn new(future: F, sleep: Option<Sleep>) -> Self {
        Self { future, sleep }
    }
}

impl<F: Future> Future for Within<F> {
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

/// Who is to be woken when; equal moments in the order in which they were set.
#[derive(Default)]
pub(crate) struct Timers {
    due: BTreeMap<(Tick, u64), Waker>,
    next_id: u64,
}

impl Timers {
    /// Sets a timer, or gives the one named `id` its current waker.
    pub(crate) fn set(&mut self, at: Tick, id: Option<u64>, waker: &Waker) -> u64 {
        let id = id.unwrap_or_else(|| {
            self.next_id += 1;
            self.next_id
        });
        self.due.entry((at, id)).and_modify(|w| w.clone_from(waker)).or_insert_with(|| waker.clone());
        id
    }

    pub(crate) fn clear(&mut self, at: Tick, id: u64) {
        self.due.remove(&(at, id));
    }

    /// The earliest moment set.
    pub(crate) fn next(&self) -> Option<Tick> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes one whose moment has come.
    pub(crate) fn pop_due(&mut self, now: Tick) -> Option<Waker> {
        let entry = self.due.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
