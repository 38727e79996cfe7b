//! How a request leaves: the seam between deciding and sending.

use std::future::Future;
use std::time::Duration;

use crate::events::Answer;
use crate::events::encode::Outgoing;
use crate::table::Target;

/// Sends one request and waits for its final answer. Redirects are not followed, interim answers are
/// skipped.
pub trait Post: 'static {
    fn post(
        &self,
        target: &Target,
        request: Outgoing,
        timeout: Duration,
    ) -> impl Future<Output = Result<Answer, PostError>>;
}

/// There was no answer. All of these may pass (DP-RETRY-16).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    #[error("{host} has no address: {why}")]
    Unresolved { host: Box<str>, why: Box<str> },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Transport(Box<str>),
}
