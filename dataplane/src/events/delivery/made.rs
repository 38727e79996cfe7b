//! Attempts that earlier lives of the process made at events which nobody has finished: they count, or each restart would
//! begin to count anew (EV-DLV-13). The flight recorder's notes of them are in the same log.

use std::cell::RefCell;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use wal::{Bookmark, Log, Position};

use crate::events::journal::{self, Note, What};
use crate::events::keeper::HISTORY;
use crate::events::limits::NOTES_LOOKED_AT_BYTES;

/// Of one subscriber: attempts at each event.
pub(super) type Attempts = HashMap<Position, u32, RandomState>;

/// What the log knows, until its subscribers ask for theirs.
#[derive(Debug, Default)]
pub(super) struct Made(RefCell<HashMap<Box<str>, Attempts, RandomState>>);

impl Made {
    /// Looks through the notes behind the oldest unfinished event, or the newest of those: there are none where everybody has
    /// had everything. As many events are kept as were begun and not ended, [`crate::events::limits::UNFINISHED_MAX`] a subscriber.
    pub(super) fn read(log: &Log) -> Self {
        let made = Self::default();
        let behind: HashMap<&str, &Bookmark, RandomState> = log
            .streams()
            .flat_map(|(id, _)| log.bookmarks(id).map(move |(name, mark)| (id, name, mark)))
            .filter(|(id, name, mark)| *name != HISTORY && log.open_events(*id, mark) > 0)
            .map(|(_, name, mark)| (name, mark))
            .collect();
        let Some(oldest) = behind.values().map(|mark| mark.low()).min() else { return made };
        let Some((notes, _)) = log.streams().find(|(_, name)| *name == journal::STREAM) else { return made };
        let newest = log.position_by_size(notes, NOTES_LOOKED_AT_BYTES).unwrap_or_default();
        for page in log.read_from(notes, oldest.max(newest)) {
            journal::read(&page.payload, |note| {
                if behind.get(note.subscriber).is_some_and(|mark| !mark.is_done(note.position)) {
                    made.hear(&note);
                }
            });
        }
        made
    }

    fn hear(&self, note: &Note<'_>) {
        if note.what != What::Asked {
            return;
        }
        let mut all = self.0.borrow_mut();
        let of_it = all.entry(note.subscriber.into()).or_default().entry(note.position).or_default();
        *of_it = (*of_it).max(u32::from(note.attempt) + 1);
    }

    pub(super) fn take(&self, subscriber: &str) -> Attempts {
        self.0.borrow_mut().remove(subscriber).unwrap_or_default()
    }
}
