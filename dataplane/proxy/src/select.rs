//! Runs the two directions of one exchange in one task.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Runs `main` to its end and `side` concurrently. `side` resolves only on a failure, and then it is the outcome. It is
/// polled first, because it is the one that sends.
pub(super) fn select_both<T, M, S>(main: M, side: S) -> SelectBoth<M, S>
where
    M: Future<Output = T>,
    S: Future<Output = T>,
{
    SelectBoth { main, side }
}

pin_project_lite::pin_project! {
    /// See [`select_both`]. A named type for the same reason as [`ring::Timeout`].
    pub(super) struct SelectBoth<M, S> {
        #[pin]
        main: M,
        #[pin]
        side: S,
    }
}

impl<T, M: Future<Output = T>, S: Future<Output = T>> Future for SelectBoth<M, S> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.project();
        match this.side.poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => this.main.poll(cx),
        }
    }
}
