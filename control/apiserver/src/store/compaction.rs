//! Compacts what was not written for a while: changes of the history into chunks, and objects into blocks of neighbors.
//!
//! Driven by writes: when nothing changes there is nothing to do. The input of a run is chosen while the store is locked for reading,
//! compressed without a lock, and swapped in some hundred objects at a time.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use contract::allocator;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::block::BlockCompressor;
use super::compaction_runs::{is_ready, runs};
use super::history_chunk::HistoryChunk;
use super::{MemoryIndex, ObjectStore, read};

/// After so long without any write, everything is compacted.
const IDLE_COMPACTION_DELAY: Duration = Duration::from_secs(4);

/// Under continuous writes, objects that were not written for this long are compacted.
const COMPACTION_AGE_MIN: Duration = Duration::from_secs(60);

/// The minimum number of objects: fewer take less than the block would save.
const OBJECTS_MIN: usize = 64;

impl ObjectStore {
    /// Compacts what was last written by `settled` or before; returns the number of objects and changes.
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
    while let Some(chunk) = HistoryChunk::from_oldest(rest, folder) {
        let count = chunk.len();
        let folded = with_memory(memory, |memory| memory.history.insert_chunk(chunk));
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

/// Compacts objects without recent writes, until the store is closed. Objects read at the start count as written then.
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
        drop(store); // the wait for the next change must not keep the store open
        if *newest.borrow() == settled && newest.changed().await.is_err() {
            return;
        }
    }
}

/// Waits for a pause in the writes; returns the last revision before it. `None`: the store is closed.
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
