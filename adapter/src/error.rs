//! Failures, sorted by what the adapter does about them.

use std::fmt::{self, Display};
use std::time::Duration;

/// A failure of a transport. Unless it is fatal, `/readyz` shows the reason and the adapter connects again.
#[derive(Debug, Clone)]
pub struct Error {
    /// One CamelCase word, fit for the reason of a condition.
    pub reason: &'static str,
    pub message: String,
    /// The configuration is wrong: a retry cannot help.
    pub fatal: bool,
}

impl Error {
    /// The foreign system cannot be reached or answers with a failure.
    pub fn connection(message: impl Display) -> Error {
        Error { reason: "ConnectionFailed", message: message.to_string(), fatal: false }
    }

    /// A file of a secret is not there (yet).
    pub fn secret(message: impl Display) -> Error {
        Error { reason: "SecretMissing", message: message.to_string(), fatal: false }
    }

    /// The configuration is wrong; the adapter exits.
    pub fn config(message: impl Display) -> Error {
        Error { reason: "InvalidConfiguration", message: message.to_string(), fatal: true }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

impl std::error::Error for Error {}

/// Why an event did not arrive, sorted by the response table.
#[derive(Debug, Clone)]
pub enum SendError {
    /// 429, 5xx, a timeout or a lost connection: the same request may succeed later.
    Unavailable { status: Option<u16>, message: String, retry_after: Option<Duration> },
    /// 401, 403, 404 and the like: the sink refuses the sender. A person has to act; the event is kept.
    Refused { status: Option<u16>, message: String },
    /// 400, 413, 415, 422: the sink will never take this event.
    Rejected { status: Option<u16>, message: String },
}

impl SendError {
    pub fn unavailable(message: impl Display) -> SendError {
        SendError::Unavailable { status: None, message: message.to_string(), retry_after: None }
    }

    pub fn rejected(message: impl Display) -> SendError {
        SendError::Rejected { status: None, message: message.to_string() }
    }

    pub fn status(&self) -> Option<u16> {
        match self {
            SendError::Unavailable { status, .. }
            | SendError::Refused { status, .. }
            | SendError::Rejected { status, .. } => *status,
        }
    }
}

impl Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (SendError::Unavailable { message, .. }
        | SendError::Refused { message, .. }
        | SendError::Rejected { message, .. }) = self;
        f.write_str(message)
    }
}
