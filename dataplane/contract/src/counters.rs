//! Counters of one core, for `/metrics`. Written by the core alone, read by other threads.

use std::array;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ring::Heartbeat;

use crate::cold_starts::RecentColdStarts;
use crate::compression_counters::CompressionCounters;
use crate::relay_counters::RelayCounters;
use crate::request_histograms::DurationHistogram;

/// Reasons of local replies, of floods and of requests that are not mirrored: the proxy names as many.
pub const LOCAL_REPLY_REASONS: usize = 36;
pub const FLOOD_KINDS: usize = 8;
pub const MIRROR_SKIP_REASONS: usize = 3;

/// One core's event logs, the one it writes and those it empties, as of the last second.
#[derive(Debug, Default)]
pub struct LogCounters {
    pub flushes: AtomicU64,
    pub flushed_bytes: AtomicU64,
    /// How long the flushes took together, in microseconds.
    pub flush_us: AtomicU64,
    /// Bytes that were appended and are not durable yet. A gauge.
    pub unflushed_bytes: AtomicU64,
    /// Live records that were moved forward by compaction.
    pub compacted_bytes: AtomicU64,
    /// Bytes of the segment files, and their limit. Gauges: they may fall.
    pub bytes: AtomicU64,
    pub bytes_max: AtomicU64,
    /// Bytes that some subscriber still needs; may fall as well.
    pub live_bytes: AtomicU64,
    /// Records that were skipped because they were corrupt on disk, or unreadable.
    pub damaged: AtomicU64,
    /// Segments whose file was truncated or is unreadable; falls when no subscriber needs them any more.
    pub broken: AtomicU64,
    /// Gaps in acknowledged records, found at startup.
    pub gaps: AtomicU64,
    /// Logs that accept nothing more until a restart.
    pub failed: AtomicU64,
}

/// A counter for each reason of local replies.
#[derive(Debug)]
pub struct LocalReplyCounters([AtomicU64; LOCAL_REPLY_REASONS]);

/// The standard library has no default for as many.
impl Default for LocalReplyCounters {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Deref for LocalReplyCounters {
    type Target = [AtomicU64; LOCAL_REPLY_REASONS];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Counters of one core; all only rise, except `connections_open` and some of `log`.
#[derive(Debug, Default)]
pub struct CoreCounters {
    /// Whether its loop turns, and what it works on.
    pub heartbeat: Arc<Heartbeat>,
    /// How often it was found stalled; a watchdog counts them.
    pub stalls: AtomicU64,
    pub connections_open: AtomicU64,
    /// Tasks that ended in a panic: each is a bug, and its connection or subscriber is not served any more.
    pub tasks_panicked: AtomicU64,
    pub connections_taken: AtomicU64,
    /// Connections closed at once because `connections_max` were open.
    pub connections_refused: AtomicU64,
    /// Answered requests, by the first digit of the status (index 0: cut before a response).
    pub requests: [AtomicU64; 6],
    /// TLS handshakes by outcome ([`crate::tls::HandshakeOutcome::NAMES`]).
    pub handshakes: [AtomicU64; crate::tls::HandshakeOutcome::NAMES.len()],
    pub bytes_received: AtomicU64,
    pub bytes_sent: AtomicU64,
    /// Local replies, by reason (`LocalReply::REASONS`).
    pub refused: LocalReplyCounters,
    /// Connections of clients that speak HTTP/2.
    pub http2_connections: AtomicU64,
    /// Connections closed because of too many frames of one kind (`FloodKind::NAMES`).
    pub http2_floods: [AtomicU64; FLOOD_KINDS],
    /// Connections closed because they violated the protocol or a limit of h2.
    pub http2_violations: AtomicU64,
    pub log: LogCounters,
    /// Connections that instances refused; each ejects its instance.
    pub outliers: AtomicU64,
    /// Ejections of given addresses because of timeouts or errors.
    pub ejections: AtomicU64,
    /// Access log lines that were passed to the writer, and those that were dropped.
    pub access_lines: AtomicU64,
    pub access_dropped: AtomicU64,
    /// Connections opened to instances, and requests that reused one.
    pub upstream_opened: AtomicU64,
    pub upstream_reused: AtomicU64,
    /// Requests that were not mirrored although they should be, by reason (`mirror::SKIPPED`).
    pub mirrors_skipped: [AtomicU64; MIRROR_SKIP_REASONS],
    pub compression: CompressionCounters,
    /// Connections and datagrams of layer 4.
    pub relays: RelayCounters,
    /// Spans dropped because the queue was full.
    pub spans_dropped: AtomicU64,
    /// Of requests that waited for an instance.
    pub cold: ColdStartDurations,
    pub recent_cold_starts: RecentColdStarts,
}

/// Adds to a counter that only this core writes. Not `fetch_add`: its locked instruction waits until all earlier writes
/// have left the processor.
fn raise(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

/// A phase of the wait for an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColdStartPhase {
    /// The whole time in the pending queue.
    Queue,
    /// Until the process of its instance ran.
    Spawn,
    /// From there until the instance accepted connections.
    Listen,
    /// From there until the first byte of the response.
    FirstByte,
}

impl ColdStartPhase {
    pub const ALL: [Self; 4] = [Self::Queue, Self::Spawn, Self::Listen, Self::FirstByte];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Spawn => "spawn",
            Self::Listen => "listen",
            Self::FirstByte => "first-byte",
        }
    }
}

/// How long requests waited, by phase.
#[derive(Debug, Default)]
pub struct ColdStartDurations {
    phases: [DurationHistogram; ColdStartPhase::ALL.len()],
}

impl ColdStartDurations {
    #[must_use]
    pub fn of(&self, phase: ColdStartPhase) -> &DurationHistogram {
        &self.phases[phase as usize]
    }
}

impl CoreCounters {
    #[inline]
    pub fn answered(&self, status: u16) {
        raise(&self.requests[usize::from(status / 100).min(5)], 1);
    }

    /// A request reused an open connection to its instance.
    #[inline]
    pub fn reused(&self) {
        raise(&self.upstream_reused, 1);
    }

    /// `received` bytes came from a client, and `sent` bytes went to it.
    #[inline]
    pub fn carried(&self, received: u64, sent: u64) {
        raise(&self.bytes_received, received);
        raise(&self.bytes_sent, sent);
    }

    /// Requests of all kinds.
    #[must_use]
    pub fn requests_total(&self) -> u64 {
        self.requests.iter().map(|count| count.load(Relaxed)).sum()
    }
}
