//! The last changes, so that a watcher can go on where it stopped and a list can be continued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use contract::allocator;

use super::ObjectStore;
use super::change_event::{ChangeEvent, HISTORY_EVENTS_MAX};
use super::history_chunk::HistoryChunk;
use super::tombstones::Tombstones;

/// What those changes hold, in bytes (packed, mostly): a burst of huge objects must not cost the process its memory.
pub const HISTORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long those changes are kept at least, if they are few ([`HISTORY_OLD_EVENTS_MAX`]); what Kubernetes keeps by default, too. A system
/// where nothing happens holds no old versions, and a watch or a list that wants to go on from before that begins again.
pub const HISTORY_AGE_MIN: Duration = Duration::from_secs(300);

/// How long they are kept, however many: as long as Kubernetes' watch cache keeps all.
pub const HISTORY_BURST_AGE_MIN: Duration = Duration::from_secs(75);

/// Changes that may be older than that: the older versions of a burst of 10,000 hold 5 MB.
pub const HISTORY_OLD_EVENTS_MAX: usize = 1000;

/// While changes grow old enough to be forgotten, few as they may be, there are so many looks for many of them.
const TRIMS_PER_PERIOD: u64 = HISTORY_AGE_MIN.as_secs() / HISTORY_BURST_AGE_MIN.as_secs();

/// The changes asked for are no longer kept: list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionExpired {
    pub requested: u64,
    /// The oldest revision one can go on from.
    pub oldest: u64,
}

#[derive(Debug)]
pub(super) struct ChangeHistory {
    /// Every change after this one is in `chapters` or `events`.
    oldest: u64,
    /// What is longer ago than `events`, folded.
    chunks: VecDeque<Arc<HistoryChunk>>,
    /// Revisions rise strictly.
    events: VecDeque<ChangeEvent>,
    /// What both hold.
    bytes: usize,
    /// Changes in both.
    count: usize,
    pub(super) tombstones: Tombstones,
}

/// What is no longer part of a history, to be dropped when nobody waits.
#[derive(Debug, Default)]
pub(super) struct TrimmedHistory {
    pub(super) count: usize,
    _chapters: Vec<Arc<HistoryChunk>>,
    _events: Vec<ChangeEvent>,
}

impl ChangeHistory {
    pub(super) fn starting_at(revision: u64) -> Self {
        let (chapters, events) = (VecDeque::new(), VecDeque::new());
        Self { oldest: revision, chunks: chapters, events, bytes: 0, count: 0, tombstones: Tombstones::default() }
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
        let chapter = self.chunks.pop_front()?;
        self.bytes -= chapter.memory_bytes();
        self.count -= chapter.len();
        self.oldest = chapter.last_revision;
        if self.tombstones.is_needed(chapter.last_revision) {
            chapter.events(None, None).filter(|event| event.deleted).for_each(|event| self.tombstones.push(event));
        }
        Some(chapter)
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

    /// Takes out the changes up to `revision`, but for the last `kept` of all. A chapter stays or goes as one.
    pub(super) fn trim(&mut self, revision: u64, kept: usize) -> TrimmedHistory {
        let (before, mut forgotten) = (self.count, TrimmedHistory::default());
        while let Some(chapter) = self.chunks.front()
            && chapter.last_revision <= revision
            && self.count - chapter.len() >= kept
        {
            forgotten._chapters.extend(self.drop_chunk());
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

    /// All changes after `revision`, oldest first; of those that are folded only the ones of this kind and namespace.
    pub(super) fn after(
        &self,
        revision: u64,
        resource: Option<&Arc<str>>,
        namespace: Option<&str>,
    ) -> Result<impl Iterator<Item = ChangeEvent>, RevisionExpired> {
        if revision < self.oldest {
            return Err(RevisionExpired { requested: revision, oldest: self.oldest });
        }
        let begins = self.chunks.partition_point(|chapter| chapter.last_revision <= revision);
        let folded = self.chunks.range(begins..).flat_map(move |chapter| chapter.events(resource, namespace));
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

    /// What is not folded and happened up to `settled`.
    pub(super) fn uncompacted(&self, settled: u64) -> Vec<ChangeEvent> {
        let count = self.events.partition_point(|event| event.revision() <= settled);
        self.events.range(..count).cloned().collect()
    }

    /// Puts a chapter in the place of the events that it was made of, and answers those. Not if they are no longer there.
    pub(super) fn insert_chunk(&mut self, chapter: HistoryChunk) -> Vec<ChangeEvent> {
        let reaches = self.events.get(chapter.len() - 1).map(ChangeEvent::revision);
        if reaches != Some(chapter.last_revision) {
            return Vec::new();
        }
        let events: Vec<ChangeEvent> = self.events.drain(..chapter.len()).collect();
        self.bytes -= events.iter().map(|event| event.object.memory_bytes()).sum::<usize>();
        self.bytes += chapter.memory_bytes();
        self.chunks.push_back(Arc::new(chapter));
        self.events.shrink_to_fit();
        events
    }
}

/// Forgets changes when they are old, until the store is shut. As long as nothing changes there is nothing to do.
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
