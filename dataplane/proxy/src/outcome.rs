//! How a request ended: for its exchange, after each attempt, and for the client's connection.

use super::LocalReply;

/// How an exchange ended, for the client's connection.
pub(super) enum ExchangeOutcome {
    Answered {
        status: u16,
        /// The response announced that the connection closes.
        close: bool,
        /// The request body was read to its end.
        request_read: bool,
    },
    /// Nothing was sent to the client yet, so this reply can be.
    Refused(LocalReply),
    /// It became a tunnel, which has ended.
    Tunnelled,
    /// The response broke off, or the client is gone: the connection can only be closed.
    Cut,
}

/// How one attempt ended, for the exchange.
pub(super) enum AttemptOutcome {
    Done {
        status: u16,
        close: bool,
    },
    Refused(LocalReply),
    /// The instance has switched to the protocol that the client asked for.
    Switched,
    Cut,
    /// A pooled connection was closed before any byte of a response: the instance was about to close it.
    Stale,
    /// The instance ended before it read the request: its kernel reset the connection, as it does when received bytes
    /// are unread.
    Unread,
    /// The instance did not process the request: it says so, or the request was not sent.
    Unprocessed,
}
