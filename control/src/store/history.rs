//! The last changes, so that a watcher can go on where it stopped and a list can be continued.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dataplane::heap;

use super::chapter::Chapter;
use super::deaths::Deaths;
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
    /// Every change after this one is in `chapters` or `events`.
    oldest: u64,
    /// What is longer ago than `events`, folded.
    chapters: VecDeque<Arc<Chapter>>,
    /// Revisions rise strictly.
    events: VecDeque<Event>,
    /// What both hold.
    bytes: usize,
    /// Changes in both.
    count: usize,
    pub(super) deaths: Deaths,
}

/// What is no longer part of a history, to be dropped when nobody waits.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    pub(super) count: usize,
    _chapters: Vec<Arc<Chapter>>,
    _events: Vec<Event>,
}

impl History {
    pub(super) fn starting_at(revision: u64) -> Self {
        let (chapters, events) = (VecDeque::new(), VecDeque::new());
        Self { oldest: revision, chapters, events, bytes: 0, count: 0, deaths: Deaths::default() }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.bytes += event.object.held_bytes();
        self.count += 1;
        self.events.push_back(event);
        while self.count > HISTORY_EVENTS_MAX || self.bytes > HISTORY_BYTES_MAX {
            if self.drop_chapter().is_none() && self.drop_event().is_none() {
                break;
            }
        }
    }

    fn drop_chapter(&mut self) -> Option<Arc<Chapter>> {
        let chapter = self.chapters.pop_front()?;
        self.bytes -= chapter.held();
        self.count -= chapter.len();
        self.oldest = chapter.last;
        if self.deaths.are_awaited(chapter.last) {
            chapter
                .events(None, None)
                .filter(|event| event.deleted)
                .for_each(|event| self.deaths.keep(event));
        }
        Some(chapter)
    }

    fn drop_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.bytes -= event.object.held_bytes();
        self.count -= 1;
        self.oldest = event.revision();
        if self.deaths.are_awaited(self.oldest) && event.deleted {
            self.deaths.keep(event.clone());
        }
        Some(event)
    }

    /// Takes out the changes up to `revision`, but for the last `kept` of all. A chapter stays or goes as one.
    pub(super) fn forget(&mut self, revision: u64, kept: usize) -> Forgotten {
        let (before, mut forgotten) = (self.count, Forgotten::default());
        while let Some(chapter) = self.chapters.front()
            && chapter.last <= revision
            && self.count - chapter.len() >= kept
        {
            forgotten._chapters.extend(self.drop_chapter());
        }
        while self.chapters.is_empty()
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
    ) -> Result<impl Iterator<Item = Event>, Expired> {
        if revision < self.oldest {
            return Err(Expired { asked: revision, oldest: self.oldest });
        }
        let begins = self.chapters.partition_point(|chapter| chapter.last <= revision);
        let folded =
            self.chapters.range(begins..).flat_map(move |chapter| chapter.events(resource, namespace));
        let folded = folded.filter(move |event| event.revision() > revision);
        let first = self.events.partition_point(|event| event.revision() <= revision);
        Ok(folded.chain(self.events.range(first..).cloned()))
    }

    /// The deletions after `revision` of this kind and namespace, as far back as any [`super::Reader`] needs them.
    pub(super) fn deaths(&self, resource: &Arc<str>, namespace: Option<&str>, revision: u64) -> Vec<Event> {
        let rest = self.after(revision.max(self.oldest), Some(resource), namespace);
        let died = self.deaths.after(revision).cloned().chain(rest.into_iter().flatten());
        died.filter(|event| event.deleted && event.concerns(resource, namespace)).collect()
    }

    /// What is not folded and happened up to `settled`.
    pub(super) fn settled(&self, settled: u64) -> Vec<Event> {
        let count = self.events.partition_point(|event| event.revision() <= settled);
        self.events.range(..count).cloned().collect()
    }

    /// Puts a chapter in the place of the events that it was made of, and answers those. Not if they are no longer there.
    pub(super) fn fold(&mut self, chapter: Chapter) -> Vec<Event> {
        let reaches = self.events.get(chapter.len() - 1).map(Event::revision);
        if reaches != Some(chapter.last) {
            return Vec::new();
        }
        let events: Vec<Event> = self.events.drain(..chapter.len()).collect();
        self.bytes -= events.iter().map(|event| event.object.held_bytes()).sum::<usize>();
        self.bytes += chapter.held();
        self.chapters.push_back(Arc::new(chapter));
        self.events.shrink_to_fit();
        events
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
                let cached = heap::cached();
                let _ = tokio::task::spawn_blocking(|| heap::let_go([cached])).await; // it does not panic
            }
        }
        if newest.changed().await.is_err() {
            return;
        }
    }
}
