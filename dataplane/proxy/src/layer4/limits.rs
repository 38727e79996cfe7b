//! The limits of layer 4, each with its reason.

use std::time::Duration;

/// Time without a byte in either direction after which a connection is closed, unless its backend has a time of its own: as in
/// nginx's stream module. Databases and message brokers send keep-alives more often.
pub(super) const RELAY_IDLE_MAX: Duration = Duration::from_secs(600);

/// Time to find an endpoint that accepts a connection. A client of layer 4 has no answer while it waits, so it is not longer than three
/// attempts.
pub(super) const RELAY_CONNECT_MAX: Duration = Duration::from_secs(15);

/// Sessions of one UDP listener on one core. Each has a descriptor and a task; a flood of forged senders takes no more than
/// these.
pub(super) const UDP_SESSIONS_MAX: usize = 4096;

/// Time without a datagram in either direction after which a session ends: as in Envoy. A client of DNS or syslog that
/// continues later gets a new session.
pub(super) const UDP_SESSION_IDLE_MAX: Duration = Duration::from_secs(60);

/// Datagrams that are received before other tasks have their turn.
pub(super) const UDP_BURST_MAX: usize = 64;

/// The largest payload of UDP over IPv4.
pub(super) const DATAGRAM_BYTES_MAX: usize = 65_507;
