//! Reads one event: located by the index, sliced out of the map, and returned only if its checksum is
//! valid.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;

use super::WriteAheadLog;
use crate::codec::{HEADER_BYTES, decode, record_bytes};
use crate::cursor::Cursor;
use crate::index::IndexEntry;
use crate::limits::DAMAGE_REPORTED_MAX;
use crate::position::{LogPosition, StreamId};
use crate::segment::Segment;

/// One event as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Position where it was appended: its permanent identifier, wherever it is stored now.
    pub position: LogPosition,
    /// Position where the read started. No readable event of the stream is between it and `position`, so a
    /// cursor may mark `since..next` done when this event is done.
    pub since: LogPosition,
    /// Position where the next read starts.
    pub next: LogPosition,
    /// Events between `since` and `position` that were damaged and skipped.
    pub damaged: u64,
    pub at_ms: u64,
    /// A slice of the map, not copied; it keeps the memory of the segment alive.
    pub payload: Bytes,
}

/// An acknowledged event whose bytes the disk changed. It is skipped, never delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordDamage {
    pub stream: StreamId,
    pub position: LogPosition,
    pub file: PathBuf,
    /// Offset of the record in the file.
    pub offset: u32,
}

/// Damage found by readers, until the owner takes it.
#[derive(Default)]
pub(crate) struct DamageReport {
    /// Positions known to be damaged, so that each is reported once; bounded like `unreported`.
    seen: RefCell<BTreeSet<u64>>,
    unreported: RefCell<Vec<RecordDamage>>,
    count: Cell<u64>,
}

impl WriteAheadLog {
    /// Returns the stream's first durable event at or after `from` with a valid checksum. A damaged one is
    /// skipped, counted in [`crate::LogStat::damaged`] and reported by [`WriteAheadLog::take_damage`].
    #[must_use]
    pub fn read(&self, stream: StreamId, from: LogPosition) -> Option<LogRecord> {
        let index = &self.ledger.streams.get(&stream.0)?.index;
        let (mut wanted, mut damaged) = (from, 0);
        loop {
            let entry = index.first_from(wanted)?;
            if entry.base + u64::from(entry.offset) >= self.durable.get() {
                return None;
            }
            let segment = self.segment(entry.base)?;
            if let Some((at_ms, payload)) = self.take(segment, stream.0, entry) {
                let next = LogPosition::new(entry.origin.get() + record_bytes(payload.len()) as u64);
                let position = entry.origin;
                return Some(LogRecord { position, since: from.min(position), next, damaged, at_ms, payload });
            }
            self.note_damage(segment, stream, entry);
            damaged += 1;
            wanted = LogPosition::new(entry.origin.get() + 1);
        }
    }

    /// Number of events of the stream that the cursor does not mark done, durable or not: the backlog of a
    /// subscriber. Uses only the index, with one lookup for each range of the cursor.
    #[must_use]
    pub fn open_events(&self, stream: StreamId, mark: &Cursor) -> u64 {
        self.open_events_before(stream, mark, LogPosition::new(u64::MAX))
    }

    /// Same as [`WriteAheadLog::open_events`], for events before `end`.
    #[must_use]
    pub fn open_events_before(&self, stream: StreamId, mark: &Cursor, end: LogPosition) -> u64 {
        let Some(known) = self.ledger.streams.get(&stream.0) else { return 0 };
        let behind = known.index.count_from(end);
        let from = |position| known.index.count_from(position).max(behind);
        let done = mark.done().iter().map(|range| from(range.start) - from(range.end));
        from(mark.low()) - behind - done.sum::<u64>()
    }

    /// Damage found by readers since the last call, at most [`DAMAGE_REPORTED_MAX`].
    pub fn take_damage(&self) -> Vec<RecordDamage> {
        self.damages.unreported.take()
    }

    pub(crate) fn damaged(&self) -> u64 {
        self.damages.count.get()
    }

    /// The durable part of the bytes of a segment.
    pub(crate) fn durable_bytes(&self, segment: &Segment) -> Option<Bytes> {
        let stable = self.durable.get().min(segment.limit()) - segment.base();
        segment.map.slice(0..usize::try_from(stable).ok()?)
    }

    /// The event at this location, if its record is intact.
    fn take(&self, segment: &Segment, stream: u32, entry: IndexEntry) -> Option<(u64, Bytes)> {
        let stable = self.durable_bytes(segment)?;
        let (offset, record_position) = (entry.offset as usize, entry.base + u64::from(entry.offset));
        let found = decode(&stable, offset, segment.header.salt, LogPosition::new(record_position))?;
        let (origin, skip) = found.event()?;
        if origin != entry.origin || found.head.stream != stream {
            return None; // a valid record, but a different one
        }
        let start = offset + HEADER_BYTES;
        Some((found.head.at_ms, stable.slice(start + skip..start + found.payload.len())))
    }

    pub(crate) fn note_damage(&self, segment: &Segment, stream: StreamId, entry: IndexEntry) {
        let record_position = entry.base + u64::from(entry.offset);
        let (mut known, mut unreported) = (self.damages.seen.borrow_mut(), self.damages.unreported.borrow_mut());
        if known.contains(&record_position) {
            return;
        }
        self.damages.count.set(self.damages.count.get() + 1);
        if known.len() < DAMAGE_REPORTED_MAX {
            known.insert(record_position);
        }
        if unreported.len() < DAMAGE_REPORTED_MAX {
            let (position, file, offset) = (entry.origin, segment.path.clone(), entry.offset);
            unreported.push(RecordDamage { stream, position, file, offset });
        }
    }
}
