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
    #[error("{0}")]
    Refused(Box<str>),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Unreachable(Box<str>),
    #[error("{0}")]
    Transport(Box<str>),
}

impl PostError {
    /// What a note of the flight recorder has in the place of a status, which is 100 at least. Programs of before wrote 0.
    #[must_use]
    pub const fn code(&self) -> u16 {
        match self {
            Self::Unresolved { .. } => 1,
            Self::Untrusted { .. } => 2,
            Self::Timeout(_) => 3,
            Self::Unreachable(_) => 4,
            Self::Transport(_) => 5,
            Self::Refused(_) => 6,
        }
    }

    /// What such a code means; `None`: it is a status.
    #[must_use]
    pub const fn told(code: u16) -> Option<&'static str> {
        match code {
            0 => Some("no answer"),
            1 => Some("no answer, the host has no address"),
            2 => Some("no answer, the host could not prove who it is"),
            3 => Some("no answer within the time given"),
            4 => Some("no answer, nobody takes connections there"),
            6 => Some("not sent, the target policy refuses the address"),
            5..100 => Some("no answer, the connection ended or spoke no HTTP"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers are in logs: they mean the same for ever.
    #[test]
    fn each_failure_has_its_words_in_the_place_of_a_status() {
        let host = || Box::<str>::from("h");
        for (why, code, words) in [
            (PostError::Unresolved { host: host(), why: host() }, 1, "no address"),
            (PostError::Untrusted { host: host(), why: host() }, 2, "prove"),
            (PostError::Timeout(Duration::ZERO), 3, "time"),
            (PostError::Unreachable(host()), 4, "nobody"),
            (PostError::Transport(host()), 5, "ended"),
            (PostError::Refused(host()), 6, "refuses"),
        ] {
            assert_eq!(why.code(), code, "{why:?}");
            assert!(PostError::told(code).unwrap().contains(words), "{why:?}");
        }
        assert_eq!((PostError::told(0), PostError::told(100)), (Some("no answer"), None));
    }
}
