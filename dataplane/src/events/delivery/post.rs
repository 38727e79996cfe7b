//! How a request leaves: the seam between deciding and sending.

use std::future::Future;
use std::time::Duration;

use crate::events::Answer;
use crate::events::encode::Outgoing;
use crate::table::Target;

/// Sends one request and waits for its final answer. Redirects are not followed, interim answers are
/// skipped.
pub trait Post: 'static {
    /// Ends within `timeout`; time spent waiting for a place in a running instance of ours does not count.
    fn post(
        &self,
        target: &Target,
        request: Outgoing,
        timeout: Duration,
    ) -> impl Future<Output = Result<Answer, PostError>>;

    /// Requests that the target's running instances take at a time, if they are ours; 0 of all others.
    fn places(&self, target: &Target) -> usize;
}

/// There was no answer. All of these may pass (DP-RETRY-16).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    #[error("{host} has no address: {why}")]
    Unresolved { host: Box<str>, why: Box<str> },
    #[error("{host} could not prove by TLS who it is: {why}")]
    Untrusted { host: Box<str>, why: Box<str> },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Transport(Box<str>),
}
