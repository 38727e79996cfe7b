//! Changes that were a while ago, folded: the versions that they led from and to, beside each other.
//!
//! A version is mostly the same as the one before it, so that it leaves a fortieth of its text; and what led to a version that
//! another change leads from is there once.

use std::collections::HashMap;
use std::sync::Arc;

use dataplane::heap;

use super::block::{Block, Folder, Row};
use super::{Event, Stored};

/// Changes in one chapter: who goes on from the middle of it opens all of it, 0.3 ms.
const CHAPTER_EVENTS_MAX: usize = 64;

/// Text of the versions of a chapter, in bytes, but for its last change's: versions may be large.
const CHAPTER_TEXT_BYTES: usize = 512 * 1024;

#[derive(Debug)]
pub(super) struct Chapter {
    /// The revision of its last change.
    pub(super) last: u64,
    versions: Block,
    marks: Box<[Mark]>,
}

/// One change, by places among the versions.
#[derive(Debug, Clone, Copy)]
struct Mark {
    before: Option<u8>,
    object: u8,
    deleted: bool,
}

const _: () = assert!(CHAPTER_EVENTS_MAX * 2 <= 256, "a place is a byte");

impl Chapter {
    /// Folds the first of these changes, as many as a chapter has; `None` if there are not so many.
    pub(super) fn of_first(events: &[Event], folder: &mut Folder) -> Option<Self> {
        let (mut versions, mut places, mut marks) = (Vec::new(), HashMap::new(), Vec::new());
        let mut text_bytes = 0;
        for event in events.iter().take(CHAPTER_EVENTS_MAX) {
            let mut place = |version: &Arc<Stored>| {
                *places.entry(Arc::as_ptr(version)).or_insert_with(|| {
                    text_bytes += version.json_bytes();
                    versions.push(Arc::clone(version));
                    (versions.len() - 1) as u8
                })
            };
            let before = event.before.as_ref().map(&mut place);
            marks.push(Mark { before, object: place(&event.object), deleted: event.deleted });
            if text_bytes > CHAPTER_TEXT_BYTES {
                break;
            }
        }
        if marks.len() < CHAPTER_EVENTS_MAX && text_bytes <= CHAPTER_TEXT_BYTES {
            return None;
        }
        let last = events[marks.len() - 1].revision();
        let versions = folder.fold(&versions);
        let _stays = heap::stays();
        Some(Self { last, versions, marks: marks.as_slice().into() })
    }

    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    pub(super) fn held(&self) -> usize {
        self.versions.held()
    }

    /// Those that concern this kind and namespace, oldest first.
    pub(super) fn events(
        &self,
        resource: Option<&Arc<str>>,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = Event> {
        let rows: Vec<Row> = self.versions.rows().collect();
        let concerns = |row: &Row| resource.is_none_or(|resource| row.is_of(resource, namespace));
        let mut made: HashMap<u8, Arc<Stored>> = HashMap::new();
        let mut version =
            |place: u8| Arc::clone(made.entry(place).or_insert_with(|| rows[place as usize].stored(None)));
        let marks = self.marks.iter().filter(|mark| concerns(&rows[mark.object as usize]));
        let events: Vec<Event> = marks
            .map(|mark| Event {
                before: mark.before.map(&mut version),
                object: version(mark.object),
                deleted: mark.deleted,
            })
            .collect();
        events.into_iter()
    }
}
