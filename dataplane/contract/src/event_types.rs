//! Registers the types of events that come into a stream or that its subscribers reply with. Each is
//! reported once; control makes `EventType`s of them.
//!
//! A table of hashes that all cores read without a lock: an event of a known type costs a hash and a read.
//! It does not grow: a type that does not fit is not reported, and its events are accepted anyway.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use codec::cloudevent::CloudEvent;
use crossbeam_queue::ArrayQueue;
use foldhash::fast::RandomState;

use crate::limits::{EVENT_TYPES_REPORTED_MAX, TYPES_PROBED_MAX, TYPES_WAITING_MAX};

/// What distinguishes one type of event from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTypeKey {
    pub kind: Box<str>,
    pub source: Box<str>,
    /// Empty if the event has none.
    pub schema: Box<str>,
    /// The subscriber that replied with it, by its durable name; empty if it was received.
    pub by: Box<str>,
}

/// The types of one stream.
pub struct EventTypeRegistry {
    hasher: RandomState,
    /// Hashes; 0 is an empty slot.
    slots: Box<[AtomicU64]>,
    news: ArrayQueue<EventTypeKey>,
}

impl Default for EventTypeRegistry {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            slots: (0..EVENT_TYPES_REPORTED_MAX).map(|_| AtomicU64::new(0)).collect(),
            news: ArrayQueue::new(TYPES_WAITING_MAX),
        }
    }
}

impl EventTypeRegistry {
    /// Registers an event by its attributes `type`, `source` and `dataschema`, and by the subscriber that
    /// replied with it, if it is a reply.
    pub fn note(&self, kind: &str, source: &str, schema: &str, by: &str) {
        let hash = self.hasher.hash_one((kind, source, schema, by)).max(1);
        let first = usize::try_from(hash % EVENT_TYPES_REPORTED_MAX as u64).unwrap_or_default();
        for step in 0..TYPES_PROBED_MAX {
            let slot = &self.slots[(first + step) % EVENT_TYPES_REPORTED_MAX];
            let found = slot.load(Relaxed);
            if found == hash {
                return;
            }
            if found == 0 && slot.compare_exchange(0, hash, Relaxed, Relaxed).is_ok() {
                // Allocates: once for each type.
                let seen =
                    EventTypeKey { kind: kind.into(), source: source.into(), schema: schema.into(), by: by.into() };
                if self.news.push(seen).is_err() {
                    slot.store(0, Relaxed); // reported when the next one comes
                }
                return;
            }
        }
    }

    /// The same for an event; `by` is the subscriber that replied with it.
    pub fn note_event(&self, event: &CloudEvent<'_>, by: &str) {
        let attribute = |name| event.attribute(name).unwrap_or_default();
        let schema = if event.attribute("specversion") == Some("0.3") { "schemaurl" } else { "dataschema" };
        self.note(attribute("type"), attribute("source"), attribute(schema), by);
    }

    /// Those registered since the last call.
    pub fn take(&self) -> impl Iterator<Item = EventTypeKey> + '_ {
        std::iter::from_fn(|| self.news.pop())
    }

    /// Forgets all types: each is reported again when it comes again.
    pub fn forget(&self) {
        self.slots.iter().for_each(|slot| slot.store(0, Relaxed));
    }
}

impl fmt::Debug for EventTypeRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Types").field("news", &self.news.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(types: &EventTypeRegistry) -> Vec<String> {
        types.take().map(|seen| format!("{} {} {} {}", seen.kind, seen.source, seen.schema, seen.by)).collect()
    }

    #[test]
    fn each_type_is_reported_once_until_forgotten() {
        let types = EventTypeRegistry::default();
        for _ in 0..3 {
            types.note("a", "/s", "", "");
            types.note("a", "/t", "", "");
            types.note("a", "/s", "http://schema", "");
            types.note("a", "/s", "", "uid");
        }
        assert_eq!(taken(&types), ["a /s  ", "a /t  ", "a /s http://schema ", "a /s  uid"]);
        types.note("a", "/s", "", "");
        assert_eq!(taken(&types), [] as [&str; 0]);
        types.forget();
        types.note("a", "/s", "", "");
        assert_eq!(taken(&types), ["a /s  "]);
    }

    #[test]
    fn type_is_reported_later_when_queue_is_full() {
        let types = EventTypeRegistry::default();
        let note = |from: usize, to: usize| (from..to).for_each(|n| types.note(&n.to_string(), "/s", "", ""));
        note(0, TYPES_WAITING_MAX + 5);
        assert_eq!(taken(&types).len(), TYPES_WAITING_MAX);
        note(0, TYPES_WAITING_MAX + 5);
        assert_eq!(taken(&types).len(), 5);
        let mut all = 0;
        for turn in 0..100 {
            note(turn * 100, turn * 100 + 100);
            all += taken(&types).len();
        }
        assert!(all < EVENT_TYPES_REPORTED_MAX, "{all}");
    }
}
