//! The subscribers' cursors at the time the logs were read: what the delivery log does not contain.

use std::time::Duration;

use dataplane::broker::limits::{CURSOR_INTERVAL, DELIVERY_LOG_INTERVAL};
use dataplane::record::EventPosition;
use wal::{LogInspection, LogPosition};

/// Time between two snapshots of the cursors: what was done at the first is in the delivery log by the
/// second.
pub(super) const NOTED_AFTER: Duration = DELIVERY_LOG_INTERVAL.saturating_add(CURSOR_INTERVAL);

/// The cursors of all logs at one moment.
pub(super) struct CursorSnapshot(Vec<LogInspection>);

impl CursorSnapshot {
    pub(super) const fn of(logs: Vec<LogInspection>) -> Self {
        Self(logs)
    }

    /// Whether the subscriber has finished the event; `None` if nothing is known of it.
    fn is_done(&self, position: EventPosition, stream: &str, subscriber: &str) -> Option<bool> {
        let mark = self.0.get(position.0)?.streams.get(stream)?.mark(subscriber)?;
        Some(mark.is_done(LogPosition::new(position.1)))
    }
}

/// Both snapshots.
pub(super) struct CursorSnapshots {
    pub(super) before: CursorSnapshot,
    pub(super) after: CursorSnapshot,
}

impl CursorSnapshots {
    /// A 2xx alone is not final: its reply may be in flight, or may have been rejected.
    pub(super) fn is_open(&self, position: EventPosition, stream: &str, subscriber: &str) -> bool {
        self.after.is_done(position, stream, subscriber) == Some(false)
    }

    /// Done long enough that every attempt is in the delivery log.
    pub(super) fn is_delivered(&self, position: EventPosition, stream: &str, subscriber: &str) -> bool {
        self.before.is_done(position, stream, subscriber) == Some(true)
    }
}
