//! How long a stream keeps its events, and what its 202 guarantees.

use std::time::Duration;

use crate::limits::RELAXED_FLUSH;

/// How long a stream's events are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    pub durability: Durability,
    /// The oldest events beyond this size, over all cores, are dropped even if subscribers need them; 0 = never.
    pub retention_bytes: u64,
    /// Events older than this are dropped even if subscribers need them; `Duration::ZERO` = never.
    pub retention_time: Duration,
    /// Events are kept for this time, for replay, even if all subscribers have had them.
    pub history_time: Duration,
    /// An event from outside whose `source` and `id` the stream had within this time is acknowledged and not stored again;
    /// `Duration::ZERO` = events are not compared. The log keeps events for this time as well.
    pub deduplication_window: Duration,
}

impl RetentionPolicy {
    /// How long events are kept although all subscribers have had them.
    #[must_use]
    pub fn kept_time(&self) -> Duration {
        self.history_time.max(self.deduplication_window)
    }
}

/// The guarantee of a 202.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// The event survives a power cut.
    #[default]
    Flush,
    /// The event is flushed within this time, and lost if the process ends before.
    Interval(Duration),
    /// The event is flushed eventually, and lost if the process ends before.
    None,
}

impl Durability {
    /// How long an acknowledged event may stay unflushed; `None` = not at all.
    #[inline]
    #[must_use]
    pub const fn flush_interval(self) -> Option<Duration> {
        match self {
            Self::Flush => None,
            Self::Interval(interval) => Some(interval),
            Self::None => Some(RELAXED_FLUSH),
        }
    }
}
