//! How far subscribers had come when the logs were read: what the notes of the flight recorder do not say.

use std::time::Duration;

use dataplane::events::limits::{CURSOR_INTERVAL, DELIVERY_LOG_INTERVAL};
use dataplane::events::record::EventPosition;
use wal::{LogInspection, LogPosition};

/// Between two looks at the logs: what was done at the first has its note by the second.
pub(super) const NOTED_AFTER: Duration = DELIVERY_LOG_INTERVAL.saturating_add(CURSOR_INTERVAL);

/// The bookmarks of all logs at one moment.
pub(super) struct CursorSnapshot(Vec<LogInspection>);

impl CursorSnapshot {
    pub(super) const fn of(logs: Vec<LogInspection>) -> Self {
        Self(logs)
    }

    /// Whether the subscriber needs the event no more; `None` if nothing is known of it.
    fn is_done(&self, place: EventPosition, stream: &str, subscriber: &str) -> Option<bool> {
        let mark = self.0.get(place.0)?.streams.get(stream)?.mark(subscriber)?;
        Some(mark.is_done(LogPosition::new(place.1)))
    }
}

/// Both looks.
pub(super) struct CursorSnapshots {
    pub(super) before: CursorSnapshot,
    pub(super) after: CursorSnapshot,
}

impl CursorSnapshots {
    /// A 2xx alone is no end: what it brought may be under way, or may not have been taken.
    pub(super) fn is_open(&self, place: EventPosition, stream: &str, subscriber: &str) -> bool {
        self.after.is_done(place, stream, subscriber) == Some(false)
    }

    /// Done long enough that whatever was tried is noted.
    pub(super) fn is_delivered(&self, place: EventPosition, stream: &str, subscriber: &str) -> bool {
        self.before.is_done(place, stream, subscriber) == Some(true)
    }
}
