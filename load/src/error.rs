//! What can go wrong: a test that cannot run ([`LoadTestError`]), and a request that fails in it ([`RequestFailure`]).

use std::fmt;
use std::io;

use codec::http::MalformedHttp;

use crate::limits::ERROR_TEXT_CHARS_MAX;

/// Why a load test did not run.
#[derive(Debug, thiserror::Error)]
pub enum LoadTestError {
    /// The options contradict each other, or one is out of range.
    #[error("{0}")]
    Invalid(String),
    /// The host has no address.
    #[error("resolve {host}: {why}; check the name, or write an address")]
    Resolve { host: String, why: String },
    /// The authorities for TLS cannot be used.
    #[error("TLS: {0}")]
    Trust(String),
    /// No connection could be opened.
    #[error("connect to {target}: {failure}; {}", failure.advice())]
    Unreachable { target: String, failure: RequestFailure },
    /// The loop could not be started.
    #[error("start the event loop: {0}")]
    Ring(String),
    /// The process whose processor time is measured.
    #[error("processor time of process {pid}: {why}; check the process id")]
    ProcessClock { pid: u32, why: String },
    /// A thread of the generator ended without its results.
    #[error("a thread of the load generator failed: {0}; please report this")]
    Thread(String),
}

/// What failed, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureKind {
    Connect,
    Tls,
    Send,
    /// The connection ended before the response was complete.
    Closed,
    Malformed,
    Timeout,
    /// HTTP/2 reset the stream, or closed the connection.
    Http2,
}

impl FailureKind {
    /// All kinds, in the order of a request's life.
    pub const ALL: [Self; 7] =
        [Self::Connect, Self::Tls, Self::Send, Self::Closed, Self::Malformed, Self::Timeout, Self::Http2];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Send => "send",
            Self::Closed => "closed",
            Self::Malformed => "malformed",
            Self::Timeout => "timeout",
            Self::Http2 => "http2",
        }
    }
}

/// Why a request got no response.
#[derive(Debug, Clone)]
pub struct RequestFailure {
    pub kind: FailureKind,
    /// Bounded: parts of it may come from the server.
    pub text: String,
}

impl RequestFailure {
    pub fn new(kind: FailureKind, text: impl fmt::Display) -> Self {
        Self { kind, text: text.to_string().chars().take(ERROR_TEXT_CHARS_MAX).collect() }
    }

    pub(crate) fn io(kind: FailureKind, why: &io::Error) -> Self {
        match why.kind() {
            io::ErrorKind::TimedOut => Self::new(FailureKind::Timeout, "the connect timed out"),
            io::ErrorKind::InvalidData => Self::new(FailureKind::Tls, why),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe if kind == FailureKind::Send => {
                Self::new(FailureKind::Closed, why)
            }
            _ => Self::new(kind, why),
        }
    }

    pub(crate) fn malformed(why: MalformedHttp) -> Self {
        Self::new(FailureKind::Malformed, why.sentence())
    }

    pub(crate) fn timeout() -> Self {
        Self::new(FailureKind::Timeout, "no complete response within the timeout")
    }

    /// What the user can do about it.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self.kind {
            FailureKind::Connect => "check that a server listens there",
            FailureKind::Tls => "check the certificate; trust its authority with --ca FILE, or use --insecure",
            FailureKind::Send | FailureKind::Closed => "check the server's log",
            FailureKind::Malformed => "check that the port speaks this protocol",
            FailureKind::Timeout => "lower the load, or raise --timeout",
            FailureKind::Http2 => "check that the server speaks HTTP/2, and its limit of streams",
        }
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_text_from_server_is_bounded() {
        let failure = RequestFailure::new(FailureKind::Http2, "é".repeat(10_000));
        assert_eq!(failure.text.chars().count(), ERROR_TEXT_CHARS_MAX);
    }

    #[test]
    fn kinds_have_distinct_names() {
        let names: std::collections::BTreeSet<_> = FailureKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), FailureKind::ALL.len());
    }
}
