//! Folds what was not written for a while: the changes of the history into chapters, and objects into blocks of neighbours.
//!
//! Driven by writes: when nothing changes there is nothing to do. What is to be folded is noted while the store is held for reading,
//! compressed while nobody waits, and put in its place some hundred objects at a time.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use contract::allocator;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::block::BlockCompressor;
use super::compaction_runs::{is_ready, runs};
use super::history_chunk::HistoryChunk;
use super::{MemoryIndex, ObjectStore, read};

/// When nothing was written for so long, all is folded.
const IDLE_COMPACTION_DELAY: Duration = Duration::from_secs(4);

/// Where something is written all the time, what was not written for this long is folded.
const COMPACTION_AGE_MIN: Duration = Duration::from_secs(60);

/// Objects that are worth the work: fewer take less than a block's room in the heap would save.
const OBJECTS_MIN: usize = 64;

impl ObjectStore {
    /// Folds what was last written by `settled` or before; returns how many objects and changes that were.
    pub fn compact(&self, settled: u64) -> usize {
        let _one_at_a_time = self.compaction_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut folder = BlockCompressor::new();
        let changes = compact_history(&self.memory, settled, &mut folder);
        changes + compact_objects(&self.memory, settled, OBJECTS_MIN, &mut folder)
    }
}

pub(super) fn compact_history(memory: &RwLock<MemoryIndex>, settled: u64, folder: &mut BlockCompressor) -> usize {
    let events = read(memory).history.uncompacted(settled);
    let mut rest = &events[..];
    while let Some(chapter) = HistoryChunk::from_oldest(rest, folder) {
        let count = chapter.len();
        let folded = with_memory(memory, |memory| memory.history.insert_chunk(chapter));
        if folded.is_empty() {
            break; // it was forgotten meanwhile
        }
        rest = &rest[count..];
    }
    events.len() - rest.len()
}

/// Does nothing for fewer than `objects_min`.
pub(super) fn compact_objects(
    memory: &RwLock<MemoryIndex>,
    settled: u64,
    objects_min: usize,
    folder: &mut BlockCompressor,
) -> usize {
    let runs = {
        let memory = read(memory);
        let ready = memory.warm.iter().filter(|one| is_ready(&one.0, settled));
        if ready.take(objects_min).count() < objects_min {
            return 0;
        }
        runs(&memory, settled)
    };
    let mut count = 0;
    for run in runs {
        let folded = run.compact(folder);
        count += folded.count();
        let gone = with_memory(memory, |memory| memory.install(folded));
        drop(gone); // outside of the lock, because it takes a while
    }
    count
}

fn with_memory<T>(memory: &RwLock<MemoryIndex>, change: impl FnOnce(&mut MemoryIndex) -> T) -> T {
    change(&mut memory.write().unwrap_or_else(PoisonError::into_inner))
}

/// Folds what is not written any more, until the store is shut. What a start has read is folded like what was written.
pub async fn run_compaction(store: Arc<ObjectStore>) {
    let mut newest = store.revision();
    let weak = Arc::downgrade(&store);
    drop(store);
    loop {
        let Some(settled) = wait_until_idle(&mut newest).await else { return };
        let Some(store) = weak.upgrade() else { return };
        let folding = Arc::clone(&store);
        let folded = tokio::task::spawn_blocking(move || folding.compact(settled)).await;
        if folded.is_ok_and(|count| count >= OBJECTS_MIN) {
            let cached = [store.cached().await, allocator::cached()];
            let _ = tokio::task::spawn_blocking(|| allocator::release_pages(cached)).await; // it does not panic
        }
        drop(store); // who waits for the next change keeps no store open
        if *newest.borrow() == settled && newest.changed().await.is_err() {
            return;
        }
    }
}

/// Waits until nothing is written; up to which revision nothing was for a while. `None`: the store is shut.
async fn wait_until_idle(newest: &mut watch::Receiver<u64>) -> Option<u64> {
    let (begun, busy_until) = (*newest.borrow_and_update(), Instant::now() + COMPACTION_AGE_MIN);
    loop {
        let quiet_at = Instant::now() + IDLE_COMPACTION_DELAY;
        match timeout_at(quiet_at.min(busy_until), newest.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return None,
            Err(_) if quiet_at <= busy_until => return Some(*newest.borrow()),
            Err(_) => return Some(begun),
        }
    }
}
