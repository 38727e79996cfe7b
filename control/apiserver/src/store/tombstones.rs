//! Tombstones: objects whose deletion is no longer in the history, for readers that have not seen it yet.
//!
//! A reader that follows the store by its history and falls behind lists again, and finds everything except deletions. So that no reader has to
//! store the names of all objects, the deletions that some [`Reader`] has not reached are retained until it has.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::change_event::{ChangeEvent, HISTORY_EVENTS_MAX};

/// The maximum number of retained deletions, in 0.5 KiB each: a reader that is behind by ten histories has stopped.
const TOMBSTONES_MAX: usize = 10 * HISTORY_EVENTS_MAX;

/// The position up to which a reader has seen all changes.
#[derive(Debug, Default)]
pub struct ChangeReader(Arc<AtomicU64>);

#[derive(Debug, Default)]
pub(super) struct Tombstones {
    readers: Vec<Weak<AtomicU64>>,
    /// Oldest first; as many as were deleted while a reader was behind by a whole history.
    events: VecDeque<ChangeEvent>,
}

impl ChangeReader {
    #[must_use]
    pub fn position(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub fn advance(&self, revision: u64) {
        self.0.store(revision, Relaxed);
    }
}

impl Tombstones {
    pub(super) fn add_reader(&mut self, reader: &ChangeReader) {
        self.readers.retain(|known| known.strong_count() > 0);
        self.readers.push(Arc::downgrade(&reader.0));
    }

    /// The position of the slowest reader.
    fn min_position(&self) -> Option<u64> {
        self.readers.iter().filter_map(|reader| Some(reader.upgrade()?.load(Relaxed))).min()
    }

    /// Whether a reader has not yet seen the change at `revision`. Drops what all readers have seen.
    pub(super) fn is_needed(&mut self, revision: u64) -> bool {
        let slowest = self.min_position().unwrap_or(u64::MAX);
        while self.events.front().is_some_and(|event| event.revision() <= slowest) {
            self.events.pop_front();
        }
        revision > slowest
    }

    /// The history drops this one; calls are in order.
    pub(super) fn push(&mut self, event: ChangeEvent) {
        if self.events.len() == TOMBSTONES_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(super) fn after(&self, revision: u64) -> impl Iterator<Item = &ChangeEvent> {
        let first = self.events.partition_point(|event| event.revision() <= revision);
        self.events.range(first..)
    }
}
