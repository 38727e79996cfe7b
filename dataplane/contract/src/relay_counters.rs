//! Counters of one core for layer 4: connections and datagrams that are relayed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How a relayed connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayOutcome {
    /// Both sides have finished.
    Completed,
    /// No byte passed for the idle timeout.
    IdleTimeout,
    /// One side broke its connection.
    Reset,
    /// No route has the server name, or the listener has no route.
    NoRoute,
    /// The route does not admit the client's address.
    ClientDenied,
    /// The backend is invalid or has no ready endpoint.
    NoHealthyUpstream,
    /// No endpoint accepted a connection.
    ConnectFailure,
    /// The TLS handshake with the backend failed.
    UpstreamTlsFailure,
}

impl RelayOutcome {
    /// Names in metrics and logs, in the order of the variants.
    pub const NAMES: [&'static str; 8] = [
        "completed",
        "idle_timeout",
        "reset",
        "no_route",
        "client_denied",
        "no_healthy_upstream",
        "upstream_connect_failure",
        "upstream_tls_failure",
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Why a datagram was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatagramDrop {
    /// The session table is full.
    SessionLimit,
    NoRoute,
    /// The route does not admit the client's address.
    ClientDenied,
    NoHealthyUpstream,
    /// The kernel did not take it.
    SendFailure,
}

impl DatagramDrop {
    /// Names in metrics, in the order of the variants.
    pub const NAMES: [&'static str; 5] =
        ["session_limit", "no_route", "client_denied", "no_healthy_upstream", "send_failure"];
}

/// All only rise, except the numbers of open connections and sessions.
#[derive(Debug, Default)]
pub struct RelayCounters {
    pub connections_open: AtomicU64,
    /// Connections by outcome ([`RelayOutcome::NAMES`]).
    pub connections: [AtomicU64; RelayOutcome::NAMES.len()],
    /// Bytes from clients, and to them; of connections and datagrams.
    pub bytes_received: AtomicU64,
    pub bytes_sent: AtomicU64,
    pub sessions_open: AtomicU64,
    pub sessions: AtomicU64,
    /// Datagrams from clients, and to them.
    pub datagrams_received: AtomicU64,
    pub datagrams_sent: AtomicU64,
    /// Datagrams that were dropped, by reason ([`DatagramDrop::NAMES`]).
    pub datagrams_dropped: [AtomicU64; DatagramDrop::NAMES.len()],
}

impl RelayCounters {
    pub fn ended(&self, outcome: RelayOutcome) {
        self.connections[outcome as usize].fetch_add(1, Relaxed);
    }

    pub fn dropped(&self, reason: DatagramDrop) {
        self.datagrams_dropped[reason as usize].fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_of_their_variants() {
        let counters = RelayCounters::default();
        counters.ended(RelayOutcome::UpstreamTlsFailure);
        counters.dropped(DatagramDrop::SendFailure);
        let last = |counts: &[AtomicU64]| counts.last().map(|count| count.load(Relaxed));
        assert_eq!((last(&counters.connections), last(&counters.datagrams_dropped)), (Some(1), Some(1)));
        assert_eq!(RelayOutcome::NoRoute.name(), "no_route");
        assert_eq!(RelayOutcome::UpstreamTlsFailure.name(), "upstream_tls_failure");
    }
}
