//! Why a request that was sent for an event has no response.

use std::time::Duration;

/// There was no response. All of these may be temporary (DP-RETRY-16).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    #[error("{host} has no address: {why}")]
    Unresolved { host: Box<str>, why: Box<str> },
    #[error("TLS verification of {host} failed: {why}")]
    Untrusted { host: Box<str>, why: Box<str> },
    #[error("{0}")]
    Refused(Box<str>),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Unreachable(Box<str>),
    #[error("{0}")]
    Transport(Box<str>),
}

impl PostError {
    /// The code in the status field of a delivery log entry; a status is at least 100. Earlier versions
    /// wrote 0.
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

    /// The meaning of such a code; `None`: it is a status.
    #[must_use]
    pub const fn reason(code: u16) -> Option<&'static str> {
        match code {
            0 => Some("no response"),
            1 => Some("no response, the host has no address"),
            2 => Some("no response, TLS verification of the host failed"),
            3 => Some("no response within the timeout"),
            4 => Some("no response, the connection was refused"),
            6 => Some("not sent, the target policy rejects the address"),
            5..100 => Some("no response, the connection ended or did not use HTTP"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are in logs: they must never change.
    #[test]
    fn each_failure_has_code_and_reason() {
        let host = || Box::<str>::from("h");
        for (why, code, words) in [
            (PostError::Unresolved { host: host(), why: host() }, 1, "no address"),
            (PostError::Untrusted { host: host(), why: host() }, 2, "verification"),
            (PostError::Timeout(Duration::ZERO), 3, "time"),
            (PostError::Unreachable(host()), 4, "refused"),
            (PostError::Transport(host()), 5, "ended"),
            (PostError::Refused(host()), 6, "rejects"),
        ] {
            assert_eq!(why.code(), code, "{why:?}");
            assert!(PostError::reason(code).unwrap().contains(words), "{why:?}");
        }
        assert_eq!((PostError::reason(0), PostError::reason(100)), (Some("no response"), None));
    }
}
