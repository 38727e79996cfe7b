//! The last changes, so that a watcher can go on where it stopped and a list can be continued.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Stored;

/// Changes kept for watchers. At 100 changes a second a watcher may be away for more than a minute
/// before it has to list again.
pub const HISTORY_EVENTS_MAX: usize = 10_000;

/// What those changes hold, in bytes (packed, mostly): a burst of huge objects must not cost the process its memory.
pub const HISTORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// One change of one object.
#[derive(Debug, Clone)]
pub struct Event {
    /// `None`: created.
    pub before: Option<Arc<Stored>>,
    /// The new version; of a deleted object, its last words.
    pub object: Arc<Stored>,
    pub deleted: bool,
}

/// The changes asked for are no longer kept: list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    pub asked: u64,
    /// The oldest revision one can go on from.
    pub oldest: u64,
}

impl Event {
    /// The version that the store had by it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.object.resource_version
    }

    pub(super) fn concerns(&self, resource: &Arc<str>, namespace: Option<&str>) -> bool {
        let key = &self.object.key;
        key.resource == *resource && namespace.is_none_or(|name| &*key.namespace == name)
    }
}

#[derive(Debug)]
pub(super) struct History {
    /// Every change after this one is in `events`.
    oldest: u64,
    /// Revisions rise strictly.
    events: VecDeque<Event>,
    bytes: usize,
}

impl History {
    pub(super) fn starting_at(revision: u64) -> Self {
        Self { oldest: revision, events: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.bytes += event.object.held_bytes();
        self.events.push_back(event);
        while self.events.len() > HISTORY_EVENTS_MAX || self.bytes > HISTORY_BYTES_MAX {
            let Some(event) = self.events.pop_front() else { break };
            self.bytes -= event.object.held_bytes();
            self.oldest = event.revision();
        }
    }

    /// All changes after `revision`, oldest first.
    pub(super) fn after(&self, revision: u64) -> Result<impl DoubleEndedIterator<Item = &Event>, Expired> {
        if revision < self.oldest {
            return Err(Expired { asked: revision, oldest: self.oldest });
        }
        let first = self.events.partition_point(|event| event.revision() <= revision);
        Ok(self.events.range(first..))
    }
}
