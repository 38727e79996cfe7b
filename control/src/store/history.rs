//! The last changes, so that a watcher can go on where it stopped and a list can be continued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dataplane::heap;

use super::{Store, Stored};

/// Changes kept for watchers. At 100 changes a second a watcher may be away for more than a minute
/// before it has to list again.
pub const HISTORY_EVENTS_MAX: usize = 10_000;

/// What those changes hold, in bytes (packed, mostly): a burst of huge objects must not cost the process its memory.
pub const HISTORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long those changes are kept at least, if they are few ([`HISTORY_OLD_MAX`]); what Kubernetes keeps by default, too. A system
/// where nothing happens holds no old versions, and a watch or a list that wants to go on from before that begins again.
pub const HISTORY_TIME_MIN: Duration = Duration::from_secs(300);

/// How long they are kept, however many: as long as Kubernetes' watch cache keeps all.
pub const HISTORY_BURST_TIME_MIN: Duration = Duration::from_secs(75);

/// Changes that may be older than that: the older versions of a burst of 10,000 hold 5 MB.
pub const HISTORY_OLD_MAX: usize = 1000;

/// While changes grow old enough to be forgotten, few as they may be, there are so many looks for many of them.
const LOOKS: u64 = HISTORY_TIME_MIN.as_secs() / HISTORY_BURST_TIME_MIN.as_secs();

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

    /// Takes out the changes up to `revision`, but for the last `kept` of all.
    pub(super) fn forget(&mut self, revision: u64, kept: usize) -> Vec<Event> {
        let old = self.events.partition_point(|event| event.revision() <= revision);
        let count = old.min(self.events.len().saturating_sub(kept));
        let forgotten: Vec<_> = self.events.drain(..count).collect();
        if let Some(last) = forgotten.last() {
            self.oldest = last.revision();
        }
        self.bytes -= forgotten.iter().map(|event| event.object.held_bytes()).sum::<usize>();
        self.events.shrink_to_fit();
        forgotten
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

/// Forgets changes when they are old, until the store is shut. As long as nothing changes there is nothing to do.
pub async fn forget_old(store: Arc<Store>) {
    let mut newest = store.revision();
    let weak = Arc::downgrade(&store);
    drop(store);
    loop {
        let reached = *newest.borrow_and_update();
        for round in (0..LOOKS).rev() {
            let recent = *newest.borrow();
            tokio::time::sleep(HISTORY_BURST_TIME_MIN).await;
            let Some(store) = weak.upgrade() else { return };
            let mut forgotten = store.forget(recent, HISTORY_OLD_MAX);
            if round == 0 {
                forgotten += store.forget(reached, 0);
            }
            drop(store);
            if forgotten >= HISTORY_OLD_MAX {
                let _ = tokio::task::spawn_blocking(heap::let_go).await; // it does not panic
            }
        }
        if newest.changed().await.is_err() {
            return;
        }
    }
}
