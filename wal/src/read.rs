//! Reading one event: found by the index, taken out of the map, and never believed without its
//! checksum.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;

use crate::codec::{HEADER_BYTES, decode, record_bytes};
use crate::cursor::Cursor;
use crate::index::IndexEntry;
use crate::limits::DAMAGE_REPORTED_MAX;
use crate::log::WriteAheadLog;
use crate::position::{LogPosition, StreamId};
use crate::segment::Segment;

/// One event as it was appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Where it was appended: its name for ever, wherever it lies by now.
    pub position: LogPosition,
    /// Where the reader asked. No readable event of the stream lies between it and `position`, so
    /// `since..next` is what a bookmark may call done when this event is.
    pub since: LogPosition,
    /// Where to read on.
    pub next: LogPosition,
    /// Events between `since` and `position` that were damaged and are passed over.
    pub damaged: u64,
    pub at_ms: u64,
    /// Out of the map, not copied; keeps the segment's memory alive.
    pub payload: Bytes,
}

/// An acknowledged event whose bytes the disk changed. It is passed over, never delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordDamage {
    pub stream: StreamId,
    pub position: LogPosition,
    pub file: PathBuf,
    /// Where in the file the record begins.
    pub offset: u32,
}

/// What readers found out, until the owner asks.
#[derive(Default)]
pub(crate) struct DamageReport {
    /// Places known to be damaged, so that each is told once; bounded like `untold`.
    seen: RefCell<BTreeSet<u64>>,
    untold: RefCell<Vec<RecordDamage>>,
    count: Cell<u64>,
}

impl WriteAheadLog {
    /// The stream's first durable event at or after `from` whose checksum holds. One that was damaged
    /// is passed over, counted in [`crate::LogStat::damaged`] and told by [`WriteAheadLog::take_damage`].
    #[must_use]
    pub fn read(&self, stream: StreamId, from: LogPosition) -> Option<LogRecord> {
        let index = &self.ledger.streams.get(&stream.0)?.index;
        let (mut wanted, mut damaged) = (from, 0);
        loop {
            let spot = index.first_from(wanted)?;
            if spot.base + u64::from(spot.offset) >= self.durable.get() {
                return None;
            }
            let segment = self.segment(spot.base)?;
            if let Some((at_ms, payload)) = self.take(segment, stream.0, spot) {
                let next = LogPosition::new(spot.origin.get() + record_bytes(payload.len()) as u64);
                let position = spot.origin;
                return Some(LogRecord { position, since: from.min(position), next, damaged, at_ms, payload });
            }
            self.note_damage(segment, stream, spot);
            damaged += 1;
            wanted = LogPosition::new(spot.origin.get() + 1);
        }
    }

    /// Events of the stream that the bookmark does not call done, durable or not yet: a subscriber's
    /// backlog. Looks at the index only, once for each of the bookmark's ranges.
    #[must_use]
    pub fn open_events(&self, stream: StreamId, mark: &Cursor) -> u64 {
        self.open_events_before(stream, mark, LogPosition::new(u64::MAX))
    }

    /// The same, of those that lie before `end`.
    #[must_use]
    pub fn open_events_before(&self, stream: StreamId, mark: &Cursor, end: LogPosition) -> u64 {
        let Some(known) = self.ledger.streams.get(&stream.0) else { return 0 };
        let behind = known.index.count_from(end);
        let from = |position| known.index.count_from(position).max(behind);
        let done = mark.done().iter().map(|range| from(range.start) - from(range.end));
        from(mark.low()) - behind - done.sum::<u64>()
    }

    /// Damage that readers met since the last call; the first [`DAMAGE_REPORTED_MAX`] of it.
    pub fn take_damage(&self) -> Vec<RecordDamage> {
        self.damages.untold.take()
    }

    pub(crate) fn damaged(&self) -> u64 {
        self.damages.count.get()
    }

    /// The durable part of a segment's bytes.
    pub(crate) fn durable_bytes(&self, segment: &Segment) -> Option<Bytes> {
        let stable = self.durable.get().min(segment.limit()) - segment.base();
        segment.map.slice(0..usize::try_from(stable).ok()?)
    }

    /// The event at this place, if what lies there is still what was appended.
    fn take(&self, segment: &Segment, stream: u32, spot: IndexEntry) -> Option<(u64, Bytes)> {
        let stable = self.durable_bytes(segment)?;
        let (offset, place) = (spot.offset as usize, spot.base + u64::from(spot.offset));
        let found = decode(&stable, offset, segment.header.salt, LogPosition::new(place))?;
        let (origin, skip) = found.event()?;
        if origin != spot.origin || found.head.stream != stream {
            return None; // a whole record, and not the one that was put here
        }
        let start = offset + HEADER_BYTES;
        Some((found.head.at_ms, stable.slice(start + skip..start + found.payload.len())))
    }

    pub(crate) fn note_damage(&self, segment: &Segment, stream: StreamId, spot: IndexEntry) {
        let place = spot.base + u64::from(spot.offset);
        let (mut known, mut untold) = (self.damages.seen.borrow_mut(), self.damages.untold.borrow_mut());
        if known.contains(&place) {
            return;
        }
        self.damages.count.set(self.damages.count.get() + 1);
        if known.len() < DAMAGE_REPORTED_MAX {
            known.insert(place);
        }
        if untold.len() < DAMAGE_REPORTED_MAX {
            let (position, file, offset) = (spot.origin, segment.path.clone(), spot.offset);
            untold.push(RecordDamage { stream, position, file, offset });
        }
    }
}
