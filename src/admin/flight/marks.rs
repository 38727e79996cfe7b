//! How far subscribers had come when the logs were read: what the notes of the flight recorder do not say.

use std::time::Duration;

use dataplane::events::limits::{BOOKMARK_EVERY, JOURNAL_EVERY};
use dataplane::events::record::Place;
use wal::{Inspection, Position};

/// Between two looks at the logs: what was done at the first has its note by the second.
pub(super) const NOTED_AFTER: Duration = JOURNAL_EVERY.saturating_add(BOOKMARK_EVERY);

/// The bookmarks of all logs at one moment.
pub(super) struct Marks(Vec<Inspection>);

impl Marks {
    pub(super) const fn of(logs: Vec<Inspection>) -> Self {
        Self(logs)
    }

    /// Whether the subscriber needs the event no more; `None` if nothing is known of it.
    fn is_done(&self, place: Place, stream: &str, subscriber: &str) -> Option<bool> {
        let mark = self.0.get(place.0)?.streams.get(stream)?.mark(subscriber)?;
        Some(mark.is_done(Position::new(place.1)))
    }
}

/// Both looks.
pub(super) struct Looks {
    pub(super) before: Marks,
    pub(super) after: Marks,
}

impl Looks {
    /// A 2xx alone is no end: what it brought may be under way, or may not have been taken.
    pub(super) fn is_open(&self, place: Place, stream: &str, subscriber: &str) -> bool {
        self.after.is_done(place, stream, subscriber) == Some(false)
    }

    /// Done long enough that whatever was tried is noted.
    pub(super) fn is_passed(&self, place: Place, stream: &str, subscriber: &str) -> bool {
        self.before.is_done(place, stream, subscriber) == Some(true)
    }
}
