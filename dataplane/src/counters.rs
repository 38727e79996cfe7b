//! What one core has done, for `/metrics`. Written by the core alone, read by anybody.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of one core; all only rise, except `connections_open`.
#[derive(Debug, Default)]
pub struct CoreCounters {
    pub connections_open: AtomicU64,
    /// Tasks that ended by a panic: each is a defect of ours, and what it served is not served any more.
    pub tasks_panicked: AtomicU64,
    pub connections_taken: AtomicU64,
    /// Connections closed at once because `connections_max` were open.
    pub connections_refused: AtomicU64,
    /// Requests answered, by the status' first digit (index 0: cut before an answer).
    pub requests: [AtomicU64; 6],
    /// TLS handshakes by how they ended ([`crate::tls::Outcome::NAMES`]).
    pub handshakes: [AtomicU64; crate::tls::Outcome::NAMES.len()],
    pub bytes_received: AtomicU64,
    pub bytes_sent: AtomicU64,
    /// Answers that were ours and not an instance's, by reason ([`crate::proxy::Refusal::REASONS`]).
    pub refused: [AtomicU64; crate::proxy::Refusal::REASONS.len()],
    /// Connections of clients that speak HTTP/2.
    pub http2_connections: AtomicU64,
    /// ... cut because of too many frames of one kind ([`crate::h2::meter::Flood::NAMES`]).
    pub http2_floods: [AtomicU64; crate::h2::meter::Flood::NAMES.len()],
    /// ... cut because they broke the protocol or one of the limits that h2 keeps.
    pub http2_violations: AtomicU64,
    /// Connections that instances refused; each makes its instance an outlier.
    pub outliers: AtomicU64,
    /// Lines of the access log that were handed over, and those that the hand had no room for.
    pub access_lines: AtomicU64,
    pub access_dropped: AtomicU64,
    /// Connections opened to instances, and requests that found one open.
    pub upstream_opened: AtomicU64,
    pub upstream_reused: AtomicU64,
}

impl CoreCounters {
    pub(crate) fn answered(&self, status: u16) {
        self.requests[usize::from(status / 100).min(5)].fetch_add(1, Relaxed);
    }

    /// Requests of all kinds.
    #[must_use]
    pub fn requests_total(&self) -> u64 {
        self.requests.iter().map(|count| count.load(Relaxed)).sum()
    }
}
