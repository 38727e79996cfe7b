//! The latest changes, so that a watcher can resume where it stopped and a list can be continued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use contract::allocator;

use super::ObjectStore;
use super::change_event::{ChangeEvent, HISTORY_EVENTS_MAX};
use super::history_chunk::HistoryChunk;
use super::tombstones::Tombstones;

/// The size of those changes, in bytes (mostly compressed): a burst of huge objects must not cost the process its memory.
pub const HISTORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The minimum retention of those changes, if they are few ([`HISTORY_OLD_EVENTS_MAX`]); also Kubernetes' default. An idle system
/// holds no old versions, and a watch or a list that wants to continue from before that starts again.
pub const HISTORY_AGE_MIN: Duration = Duration::from_secs(300);

/// The minimum retention, however many they are: as long as Kubernetes' watch cache keeps all.
pub const HISTORY_BURST_AGE_MIN: Duration = Duration::from_secs(75);

/// The maximum number of changes older than that: the older versions of a burst of 10,000 hold 5 MB.
pub const HISTORY_OLD_EVENTS_MAX: usize = 1000;

/// The number of trims during that time: each then drops many changes.
const TRIMS_PER_PERIOD: u64 = HISTORY_AGE_MIN.as_secs() / HISTORY_BURST_AGE_MIN.as_secs();

/// The requested changes are no longer retained: list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionExpired {
    pub requested: u64,
    /// The oldest revision to continue from.
    pub oldest: u64,
}

#[derive(Debug)]
pub(super) struct ChangeHistory {
    /// Every change after this one is in `retained` or `events`.
    oldest: u64,
    /// Changes older than `events`, compressed.
    chunks: VecDeque<Arc<HistoryChunk>>,
    /// Revisions increase strictly.
    events: VecDeque<ChangeEvent>,
    /// The size of both.
    bytes: usize,
    /// The number of changes in both.
    count: usize,
    pub(super) tombstones: Tombstones,
}

/// Entries that have left a history, to be dropped outside of the lock.
#[derive(Debug, Default)]
pub(super) struct TrimmedHistory {
    pub(super) count: usize,
    _chunks: Vec<Arc<HistoryChunk>>,
    _events: Vec<ChangeEvent>,
}

impl ChangeHistory {
    pub(super) fn starting_at(revision: u64) -> Self {
        let (retained, events) = (VecDeque::new(), VecDeque::new());
        Self { oldest: revision, chunks: retained, events, bytes: 0, count: 0, tombstones: Tombstones::default() }
    }

    pub(super) fn push(&mut self, event: ChangeEvent) {
        self.bytes += event.object.memory_bytes();
        self.count += 1;
        self.events.push_back(event);
        while self.count > HISTORY_EVENTS_MAX || self.bytes > HISTORY_BYTES_MAX {
            if self.drop_chunk().is_none() && self.drop_event().is_none() {
                break;
            }
        }
    }

    fn drop_chunk(&mut self) -> Option<Arc<HistoryChunk>> {
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.memory_bytes();
        self.count -= chunk.len();
        self.oldest = chunk.last_revision;
        if self.tombstones.is_needed(chunk.last_revision) {
            chunk.events(None, None).filter(|event| event.deleted).for_each(|event| self.tombstones.push(event));
        }
        Some(chunk)
    }

    fn drop_event(&mut self) -> Option<ChangeEvent> {
        let event = self.events.pop_front()?;
        self.bytes -= event.object.memory_bytes();
        self.count -= 1;
        self.oldest = event.revision();
        if self.tombstones.is_needed(self.oldest) && event.deleted {
            self.tombstones.push(event.clone());
        }
        Some(event)
    }

    /// Removes the changes up to `revision`, except the last `kept` of all. A chunk is removed as a whole.
    pub(super) fn trim(&mut self, revision: u64, kept: usize) -> TrimmedHistory {
        let (before, mut forgotten) = (self.count, TrimmedHistory::default());
        while let Some(chunk) = self.chunks.front()
            && chunk.last_revision <= revision
            && self.count - chunk.len() >= kept
        {
            forgotten._chunks.extend(self.drop_chunk());
        }
        while self.chunks.is_empty()
            && self.count > kept
            && self.events.front().is_some_and(|event| event.revision() <= revision)
        {
            forgotten._events.extend(self.drop_event());
        }
        self.events.shrink_to_fit();
        forgotten.count = before - self.count;
        forgotten
    }

    /// All changes after `revision`, oldest first; of those that are compacted only the ones of this kind and namespace.
    pub(super) fn after(
        &self,
        revision: u64,
        resource: Option<&Arc<str>>,
        namespace: Option<&str>,
    ) -> Result<impl Iterator<Item = ChangeEvent>, RevisionExpired> {
        if revision < self.oldest {
            return Err(RevisionExpired { requested: revision, oldest: self.oldest });
        }
        let begins = self.chunks.partition_point(|chunk| chunk.last_revision <= revision);
        let folded = self.chunks.range(begins..).flat_map(move |chunk| chunk.events(resource, namespace));
        let folded = folded.filter(move |event| event.revision() > revision);
        let first = self.events.partition_point(|event| event.revision() <= revision);
        Ok(folded.chain(self.events.range(first..).cloned()))
    }

    /// The deletions after `revision` of this kind and namespace, as far back as any [`super::Reader`] needs them.
    pub(super) fn tombstones(&self, resource: &Arc<str>, namespace: Option<&str>, revision: u64) -> Vec<ChangeEvent> {
        let rest = self.after(revision.max(self.oldest), Some(resource), namespace);
        let died = self.tombstones.after(revision).cloned().chain(rest.into_iter().flatten());
        died.filter(|event| event.deleted && event.matches(resource, namespace)).collect()
    }

    /// The changes up to `settled` that are not compressed.
    pub(super) fn uncompacted(&self, settled: u64) -> Vec<ChangeEvent> {
        let count = self.events.partition_point(|event| event.revision() <= settled);
        self.events.range(..count).cloned().collect()
    }

    /// Replaces the events of a chunk by the chunk, and returns them. Does nothing if they are no longer there.
    pub(super) fn insert_chunk(&mut self, chunk: HistoryChunk) -> Vec<ChangeEvent> {
        let reaches = self.events.get(chunk.len() - 1).map(ChangeEvent::revision);
        if reaches != Some(chunk.last_revision) {
            return Vec::new();
        }
        let events: Vec<ChangeEvent> = self.events.drain(..chunk.len()).collect();
        self.bytes -= events.iter().map(|event| event.object.memory_bytes()).sum::<usize>();
        self.bytes += chunk.memory_bytes();
        self.chunks.push_back(Arc::new(chunk));
        self.events.shrink_to_fit();
        events
    }
}

/// Trims old changes, until the store is closed. Without changes there is nothing to do.
pub async fn run_history_expiry(store: Arc<ObjectStore>) {
    let mut newest = store.revision();
    let weak = Arc::downgrade(&store);
    drop(store);
    loop {
        let reached = *newest.borrow_and_update();
        for round in (0..TRIMS_PER_PERIOD).rev() {
            let recent = *newest.borrow();
            tokio::time::sleep(HISTORY_BURST_AGE_MIN).await;
            let Some(store) = weak.upgrade() else { return };
            let mut forgotten = store.trim_history(recent, HISTORY_OLD_EVENTS_MAX);
            if round == 0 {
                forgotten += store.trim_history(reached, 0);
            }
            drop(store);
            if forgotten >= HISTORY_OLD_EVENTS_MAX {
                let cached = allocator::cached();
                let _ = tokio::task::spawn_blocking(|| allocator::release_pages([cached])).await; // it does not panic
            }
        }
        if newest.changed().await.is_err() {
            return;
        }
    }
}
