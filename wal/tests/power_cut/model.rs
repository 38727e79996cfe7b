//! Records what was appended and what was reported durable, and compares it with what is found after a
//! crash.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_wal::{Cursor, LogPosition, StreamId, WriteAheadLog};

use crate::SUBSCRIBERS;

/// Cases that occurred in the runs: a run without them proves nothing.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) events: u64,
    pub(crate) torn: u64,
    pub(crate) torn_batches: u64,
    pub(crate) leftovers: u64,
    pub(crate) unacknowledged_kept: u64,
    pub(crate) reclaimed: u64,
    pub(crate) full: u64,
    /// Bytes of compacted records.
    pub(crate) moved: u64,
    /// Crashes during the compaction of a segment.
    pub(crate) cut_while_moving: u64,
    /// Events found after a crash at another location than their original one.
    pub(crate) moved_found: u64,
    /// Recoveries that had something to write and were interrupted.
    pub(crate) cut_recoveries: u64,
    /// Power cuts while a segment was being named.
    pub(crate) cut_states: u64,
    /// Newest segments that were destroyed after a crash.
    pub(crate) destroyed: u64,
    /// Flushes that the disk reported and did not write.
    pub(crate) lost_flushes: u64,
}

impl Coverage {
    pub(crate) fn add(&mut self, more: &Self) {
        self.events += more.events;
        self.torn += more.torn;
        self.torn_batches += more.torn_batches;
        self.leftovers += more.leftovers;
        self.unacknowledged_kept += more.unacknowledged_kept;
        self.reclaimed += more.reclaimed;
        self.full += more.full;
        self.moved += more.moved;
        self.cut_while_moving += more.cut_while_moving;
        self.moved_found += more.moved_found;
        self.cut_recoveries += more.cut_recoveries;
        self.cut_states += more.cut_states;
        self.destroyed += more.destroyed;
        self.lost_flushes += more.lost_flushes;
    }
}

#[derive(Debug, Clone)]
pub(crate) struct ModelEvent {
    pub(crate) stream: StreamId,
    pub(crate) payload: Vec<u8>,
    pub(crate) batch: u64,
}

/// What was appended, and what was reported durable.
#[derive(Default)]
pub(crate) struct LogModel {
    pub(crate) events: BTreeMap<LogPosition, ModelEvent>,
    pub(crate) durable: LogPosition,
    /// Everything below was reported durable by a flush, not only found by a recovery.
    pub(crate) acknowledged_end: LogPosition,
    pub(crate) batches: u64,
    /// Every cursor since the last one known durable, oldest first.
    pub(crate) marks: BTreeMap<(StreamId, &'static str), Vec<Cursor>>,
    pub(crate) never_durable: BTreeSet<(StreamId, &'static str)>,
    /// All positions that were ever acknowledged: an event acknowledged by every subscriber may be gone.
    pub(crate) acknowledged: BTreeMap<(StreamId, &'static str), Cursor>,
}

impl LogModel {
    pub(crate) fn acknowledge(&mut self, stream: StreamId, subscriber: &'static str, mark: &Cursor) {
        let all = self.acknowledged.entry((stream, subscriber)).or_default();
        all.complete(LogPosition::ORIGIN..mark.low());
        mark.done().iter().for_each(|range| all.complete(range.clone()));
    }

    fn was_read_by_all(&self, position: LogPosition, stream: StreamId) -> bool {
        let had = |subscriber| self.acknowledged.get(&(stream, subscriber)).is_some_and(|m| m.is_done(position));
        SUBSCRIBERS.into_iter().all(had)
    }

    /// Compares the recovered log with the promises, then adopts its state.
    pub(crate) fn compare(&mut self, log: &WriteAheadLog, seen: &mut Coverage) {
        let mut found: BTreeMap<LogPosition, ModelEvent> = BTreeMap::new();
        let log_begin = log.stat().first_byte;
        for (stream, _) in log.streams() {
            let mut from = LogPosition::ORIGIN;
            while let Some(record) = log.read(stream, from) {
                let appended = self.events.get(&record.position).expect("nothing is there that was never appended");
                assert_eq!((appended.stream, &appended.payload[..]), (stream, &record.payload[..]));
                assert!(record.position >= from, "in order, and once");
                seen.moved_found += u64::from(record.position < log_begin);
                found.insert(record.position, appended.clone());
                from = record.next;
            }
        }
        let floors = self.compare_cursors(log);
        let needed = |position: LogPosition, event: &ModelEvent| {
            let is_open = floors.get(&event.stream).is_some_and(|floor| position >= *floor);
            is_open && !self.was_read_by_all(position, event.stream)
        };
        let last = found.keys().next_back().copied().unwrap_or_default();
        let batches: BTreeSet<u64> =
            found.iter().filter(|(at, event)| needed(**at, event)).map(|(_, event)| event.batch).collect();
        for (position, event) in self.events.iter().filter(|(at, event)| needed(**at, event)) {
            let there = found.contains_key(position);
            assert!(there || *position >= self.durable, "acknowledged {position} is lost");
            assert!(there || *position > last, "{position} is missing before {last}");
            assert!(there || !batches.contains(&event.batch), "{position}: half a batch is shown");
            seen.unacknowledged_kept += u64::from(there && *position >= self.durable);
        }
        self.events = found;
        self.durable = log.durable();
    }

    /// Returns from where on each stream must be complete.
    fn compare_cursors(&mut self, log: &WriteAheadLog) -> BTreeMap<StreamId, LogPosition> {
        let mut floors: BTreeMap<StreamId, LogPosition> = BTreeMap::new();
        let mut marks = BTreeMap::new();
        for (stream, _) in log.streams() {
            for (name, mark) in log.cursors(stream) {
                let subscriber = *SUBSCRIBERS.iter().find(|known| **known == name).unwrap();
                let put = &self.marks[&(stream, subscriber)];
                assert!(put.contains(mark), "{stream} {subscriber}: {mark:?} was never put, or is too old: {put:?}");
                let floor = floors.entry(stream).or_insert(mark.low());
                *floor = mark.low().min(*floor);
                self.never_durable.remove(&(stream, subscriber));
                marks.insert((stream, subscriber), vec![mark.clone()]);
            }
        }
        for ((stream, subscriber), put) in &self.marks {
            let lost = !marks.contains_key(&(*stream, *subscriber));
            assert!(!lost || self.never_durable.contains(&(*stream, *subscriber)), "{stream} {subscriber} {put:?}");
        }
        self.marks = marks;
        floors
    }
}
