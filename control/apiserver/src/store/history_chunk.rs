//! Older changes, compressed: the versions before and after each, stored together.
//!
//! A version is mostly the same as the one before it, so it compresses to a fortieth of its text; and a version that is both
//! the result of one change and the start of another is stored once.

use std::collections::HashMap;
use std::sync::Arc;

use contract::allocator;

use super::StoredObject;
use super::block::{BlockCompressor, BlockRow, ObjectBlock};
use super::change_event::ChangeEvent;

/// Changes in one chunk: a reader that resumes in the middle of it decompresses all of it, 0.3 ms.
const CHUNK_EVENTS_MAX: usize = 64;

/// Text of the versions of a chunk, in bytes, but for its last change's: versions may be large.
const CHUNK_TEXT_BYTES: usize = 512 * 1024;

#[derive(Debug)]
pub(super) struct HistoryChunk {
    /// The revision of its last change.
    pub(super) last_revision: u64,
    versions: ObjectBlock,
    entries: Box<[ChunkEntry]>,
}

/// One change, by places among the versions.
#[derive(Debug, Clone, Copy)]
struct ChunkEntry {
    before: Option<u8>,
    object: u8,
    deleted: bool,
}

const _: () = assert!(CHUNK_EVENTS_MAX * 2 <= 256, "a place is a byte");

impl HistoryChunk {
    /// Folds the first of these changes, as many as a chunk has; `None` if there are not so many.
    pub(super) fn from_oldest(events: &[ChangeEvent], folder: &mut BlockCompressor) -> Option<Self> {
        let (mut versions, mut places, mut marks) = (Vec::new(), HashMap::new(), Vec::new());
        let mut text_bytes = 0;
        for event in events.iter().take(CHUNK_EVENTS_MAX) {
            let mut place = |version: &Arc<StoredObject>| {
                *places.entry(Arc::as_ptr(version)).or_insert_with(|| {
                    text_bytes += version.json_bytes();
                    versions.push(Arc::clone(version));
                    (versions.len() - 1) as u8
                })
            };
            let before = event.before.as_ref().map(&mut place);
            marks.push(ChunkEntry { before, object: place(&event.object), deleted: event.deleted });
            if text_bytes > CHUNK_TEXT_BYTES {
                break;
            }
        }
        if marks.len() < CHUNK_EVENTS_MAX && text_bytes <= CHUNK_TEXT_BYTES {
            return None;
        }
        let last = events[marks.len() - 1].revision();
        let versions = folder.compress(&versions);
        let _stays = allocator::long_lived();
        Some(Self { last_revision: last, versions, entries: marks.as_slice().into() })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.versions.memory_bytes()
    }

    /// The changes of this kind and namespace, oldest first.
    pub(super) fn events(
        &self,
        resource: Option<&Arc<str>>,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = ChangeEvent> {
        let rows: Vec<BlockRow> = self.versions.rows().collect();
        let concerns = |row: &BlockRow| resource.is_none_or(|resource| row.is_of(resource, namespace));
        let mut made: HashMap<u8, Arc<StoredObject>> = HashMap::new();
        let mut version =
            |place: u8| Arc::clone(made.entry(place).or_insert_with(|| rows[place as usize].to_object(None)));
        let marks = self.entries.iter().filter(|mark| concerns(&rows[mark.object as usize]));
        let events: Vec<ChangeEvent> = marks
            .map(|mark| ChangeEvent {
                before: mark.before.map(&mut version),
                object: version(mark.object),
                deleted: mark.deleted,
            })
            .collect();
        events.into_iter()
    }
}
