//! Attempts that earlier processes made at unfinished events: they count, or each restart would begin again
//! at zero (EV-DLV-13). Their delivery log entries are in the same log.

use std::cell::RefCell;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use wal::{Cursor, LogPosition, WriteAheadLog};

use crate::delivery_log::{self, DeliveryLogEntry, DeliveryOutcome};
use crate::limits::NOTES_LOOKED_AT_BYTES;
use crate::log_writer::HISTORY;

/// The attempts at each event of one subscriber.
pub(super) type AttemptCounts = HashMap<LogPosition, u32, RandomState>;

/// All counts found in the log, until each subscriber takes its own.
#[derive(Debug, Default)]
pub(super) struct RecoveredAttempts(RefCell<HashMap<Box<str>, AttemptCounts, RandomState>>);

impl RecoveredAttempts {
    /// Reads the entries after the oldest unfinished event, at most the newest of them: there are none
    /// where every event is done. It keeps as many events as were started and not finished,
    /// [`crate::limits::UNFINISHED_MAX`] per subscriber.
    pub(super) fn read(log: &WriteAheadLog) -> Self {
        let made = Self::default();
        let behind: HashMap<&str, &Cursor, RandomState> = log
            .streams()
            .flat_map(|(id, _)| log.cursors(id).map(move |(name, mark)| (id, name, mark)))
            .filter(|(id, name, mark)| *name != HISTORY && log.open_events(*id, mark) > 0)
            .map(|(_, name, mark)| (name, mark))
            .collect();
        let Some(oldest) = behind.values().map(|mark| mark.low()).min() else { return made };
        let Some((notes, _)) = log.streams().find(|(_, name)| *name == delivery_log::STREAM) else {
            return made;
        };
        let newest = log.position_by_size(notes, NOTES_LOOKED_AT_BYTES).unwrap_or_default();
        for page in log.read_from(notes, oldest.max(newest)) {
            delivery_log::read(&page.payload, |note| {
                if behind.get(note.subscriber).is_some_and(|mark| !mark.is_done(note.position)) {
                    made.record(&note);
                }
            });
        }
        made
    }

    fn record(&self, note: &DeliveryLogEntry<'_>) {
        if note.what != DeliveryOutcome::Replied {
            return;
        }
        let mut all = self.0.borrow_mut();
        let of_it = all.entry(note.subscriber.into()).or_default().entry(note.position).or_default();
        *of_it = (*of_it).max(u32::from(note.attempt) + 1);
    }

    pub(super) fn take(&self, subscriber: &str) -> AttemptCounts {
        self.0.borrow_mut().remove(subscriber).unwrap_or_default()
    }
}
