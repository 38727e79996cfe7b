//! The limits of the client of JetStream, each with its unit and its reason.

use std::time::Duration;

/// One attempt to connect to one server.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A request to the servers, and the storing of an event: an election of a leader takes some 2 to 4 s.
pub(crate) const REQUEST_MAX: Duration = Duration::from_secs(5);

/// Between two pings: a connection without an answer to two of them is given up.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Between two attempts to connect again. The client's own grows to 4 s, which is what senders would wait in addition.
pub(crate) const RECONNECT_INTERVAL: Duration = Duration::from_millis(250);

/// A connection without use for so long is closed: every stream is looked at each 5 s.
pub(crate) const UNUSED_CONNECTION_AGE: Duration = Duration::from_secs(60);

/// Commands that wait for the connection: all events that may wait, and the acknowledgements of some consumers.
pub(crate) const COMMANDS_MAX: usize = 16_384;

/// The server delivers an event again if it hears nothing of it for so long: what a killed process delays its events.
pub(crate) const ACK_WAIT: Duration = Duration::from_secs(15);

/// Between two signs of life for events that are not done: three in [`ACK_WAIT`].
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Between two looks whether a connection was opened again, after which the server has forgotten a pull.
pub(crate) const RECONNECT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The lifetime of a pull: one that a server has forgotten is repeated then at the latest.
pub(crate) const PULL_EXPIRES: Duration = Duration::from_secs(20);

/// Between two attempts to reach a consumer.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Failures in a row before one is logged as a warning: 2 s.
pub(crate) const FAILURES_LOGGED_MIN: u32 = 4;

/// Room for one message before another pull: the largest event with its headers is below 3 MiB.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Acknowledged sequences that are remembered for each consumer: if the acknowledgement was lost with a server, the
/// event comes again, and is acknowledged again instead of being delivered twice.
pub(crate) const ACKNOWLEDGED_MAX: usize = 4096;

/// A consumer of a Trigger that control does not know is deleted once it is so old: another replica may know a Trigger
/// first.
pub(crate) const UNKNOWN_CONSUMER_AGE: Duration = Duration::from_secs(10);

/// For the last acknowledgements when the process stops.
pub(crate) const FINISH_MAX: Duration = Duration::from_secs(2);
