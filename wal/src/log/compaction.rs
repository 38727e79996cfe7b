//! Compaction: copies live records forward, so that a lagging subscriber retains its own events and not
//! whole segments.
//!
//! When the files take more than twice the live bytes (plus [`MOVE_SLACK_SEGMENTS`]), the segment with the
//! fewest live bytes is read, and its live records are appended again together with their original
//! position. One step copies at most [`MOVE_STEP_BYTES`]. Readers switch to the copies only when all of
//! them are durable, and only then is the old segment dropped. At any moment, and after any crash, each
//! event exists at least once, and recovery uses the first copy.
//!
//! Live records of a segment whose file was removed are copied at any cost: the next start would not find
//! them.
//!
//! Otherwise a segment is compacted only when less than half of it is live: each copied byte is paid for by
//! a dead one, so compaction at most doubles the bytes written, and it terminates.

use std::collections::HashMap;
use std::ops::Range;

use super::WriteAheadLog;
use super::roll::RollPurpose;
use crate::codec::{HEADER_BYTES, ORIGIN_BYTES, RecordKind, decode, record_bytes};
use crate::cursor::Cursor;
use crate::index::{CompactedRecord, IndexEntry};
use crate::limits::{MOVE_SLACK_SEGMENTS, MOVE_STEP_BYTES};
use crate::position::{LogPosition, StreamId};
use crate::segment::{Segment, read_ahead};

/// The compaction of one segment.
pub(crate) struct Compaction {
    /// Base of the segment being compacted.
    base: u64,
    /// Offset up to which it was read.
    offset: u32,
    copies: HashMap<u32, Vec<CompactedRecord>>,
    /// End of the last copy.
    end: LogPosition,
    /// Positions that no subscriber needs, by stream, cached for the current step.
    done: HashMap<u32, Option<Cursor>>,
}

/// Result of one step.
enum CompactionStep {
    /// A dead record of this size.
    Pass(u32),
    Copy {
        stream: u32,
        at_ms: u64,
        entry: IndexEntry,
        payload: Range<usize>,
        next: u32,
    },
    End,
    Damaged,
}

impl WriteAheadLog {
    /// Whether a segment is being compacted: call [`WriteAheadLog::move_on`] after each flush.
    #[must_use]
    pub const fn is_compacting(&self) -> bool {
        self.compaction.is_some()
    }

    /// Copies up to one step of live records; does nothing when no compaction is active.
    pub fn move_on(&mut self) {
        let Some(mut moving) = self.compaction.take() else { return };
        moving.done.clear(); // cursors have advanced since the last step
        let mut left = MOVE_STEP_BYTES;
        while left > 0 && self.is_there(moving.base) {
            let (next, bytes) = match self.next_to_move(&mut moving) {
                CompactionStep::Pass(next) => (next, (next - moving.offset) as usize),
                CompactionStep::Copy { stream, at_ms, entry, payload, next } => {
                    let bytes = record_bytes(ORIGIN_BYTES + payload.len());
                    if !self.copy(&mut moving, stream, at_ms, entry, payload) {
                        break; // no space now; the next call tries again
                    }
                    (next, bytes)
                }
                CompactionStep::End if moving.end <= self.durable => return self.finish(moving),
                CompactionStep::End => break,
                CompactionStep::Damaged => {
                    // A record that cannot be read cannot be copied. The segment is kept for inspection.
                    let damaged = self.segments.iter_mut().find(|one| one.base() == moving.base);
                    damaged.into_iter().for_each(|one| one.keep = true);
                    self.copies_from = None;
                    return;
                }
            };
            left = left.saturating_sub(bytes);
            moving.offset = next;
        }
        if self.is_there(moving.base) && self.poison.is_none() {
            self.compaction = Some(moving);
        } else {
            self.copies_from = None; // all records died meanwhile: the copies are not needed
        }
    }

    fn is_there(&self, base: u64) -> bool {
        self.segment(base).is_some_and(|segment| segment.dropped_at.is_none())
    }

    /// Starts compacting the segment with the fewest live bytes, when the log takes too much space. `live`:
    /// bytes per segment.
    pub(crate) fn begin_compaction(&mut self, live: &HashMap<u64, u64>) {
        if self.compaction.is_some() || self.poison.is_some() {
            return;
        }
        // The largest segment counts: on a small disk all segments are small.
        let segment_bytes = u64::from(self.segments.iter().map(|one| one.header.capacity).max().unwrap_or(0));
        let kept = self.segments.iter().filter(|one| one.dropped_at.is_none());
        let used: u64 = kept.map(|one| u64::from(one.header.capacity)).sum();
        let alive: u64 = live.values().sum();
        let is_full = used + segment_bytes > self.options.log_bytes_max || self.no_space_at_ms.is_some();
        let before_tail = self.segments.iter().take(self.segments.len().saturating_sub(1));
        let in_place = before_tail.filter(|one| one.dropped_at.is_none() && !one.keep);
        let removed = in_place.clone().find(|one| one.removed);
        if removed.is_none() && !is_full && used <= 2 * alive + MOVE_SLACK_SEGMENTS * segment_bytes {
            return;
        }
        let emptiest = in_place
            .map(|one| (live.get(&one.base()).copied().unwrap_or(0), one))
            .filter(|(alive, one)| 2 * alive <= u64::from(one.body_bytes()))
            .min_by_key(|(alive, _)| *alive)
            .map(|(_, one)| one);
        let Some(victim) = removed.or(emptiest) else { return };
        read_ahead(&victim.file);
        self.copies_from = Some(self.tail().base());
        self.compaction = Some(Compaction {
            base: victim.base(),
            offset: victim.begun,
            copies: HashMap::new(),
            done: HashMap::new(),
            end: LogPosition::ORIGIN,
        });
    }

    fn next_to_move(&self, moving: &mut Compaction) -> CompactionStep {
        let Some(segment) = self.segment(moving.base) else { return CompactionStep::End };
        let Some(bytes) = self.durable_bytes(segment) else { return CompactionStep::End };
        if moving.offset >= segment.used {
            return CompactionStep::End;
        }
        let (offset, salt) = (moving.offset as usize, segment.header.salt);
        let position = LogPosition::new(moving.base + u64::from(moving.offset));
        let Some(found) = decode(&bytes, offset, salt, position) else {
            return self.skip_gap(moving, segment);
        };
        let whole = offset + record_bytes(found.payload.len());
        let next = u32::try_from(whole).unwrap_or(segment.used);
        let Some((origin, skip)) = found.event() else { return CompactionStep::Pass(next) };
        let entry = IndexEntry { origin, base: moving.base, offset: moving.offset };
        let stream = found.head.stream;
        let known = self.ledger.streams.get(&stream);
        let needed = known.is_some_and(|known| {
            let done = moving.done.entry(stream).or_insert_with(|| known.done());
            done.as_ref().is_some_and(|done| !done.is_done(origin)) && known.index.holds(entry)
        });
        if !needed {
            return CompactionStep::Pass(next);
        }
        let start = offset + HEADER_BYTES;
        let payload = start + skip..start + found.payload.len();
        CompactionStep::Copy { stream, at_ms: found.head.at_ms, entry, payload, next }
    }

    /// Skips bytes that are no record: a gap that recovery reported, or later damage.
    fn skip_gap(&self, moving: &Compaction, segment: &Segment) -> CompactionStep {
        let streams = self.ledger.streams.iter();
        let next = streams
            .filter_map(|(id, stream)| Some((*id, stream.index.next_in(moving.base, moving.offset)?)))
            .min_by_key(|(_, entry)| entry.offset);
        match next {
            Some((id, entry)) if entry.offset == moving.offset => {
                self.note_damage(segment, StreamId(id), entry);
                CompactionStep::Damaged
            }
            Some((_, entry)) => CompactionStep::Pass(entry.offset),
            None => CompactionStep::End,
        }
    }

    fn copy(
        &mut self,
        moving: &mut Compaction,
        stream: u32,
        at_ms: u64,
        entry: IndexEntry,
        payload: Range<usize>,
    ) -> bool {
        let bytes = record_bytes(ORIGIN_BYTES + payload.len());
        let busy = self.staged_bytes + bytes > self.options.staged_bytes_max;
        if (busy && self.staged_bytes > 0) || self.reclaim_for(bytes, RollPurpose::Move).is_err() {
            return false;
        }
        let Some(payload) = self.segment(moving.base).and_then(|segment| segment.map.slice(payload)) else {
            return false;
        };
        let origin = entry.origin.get().to_le_bytes();
        let position = self.stage(RecordKind::Compacted, stream, at_ms, 0, &[&origin, &payload]);
        let base = self.tail().base();
        let offset = u32::try_from(position.get() - base).expect("a segment's capacity is a u32");
        let entry = IndexEntry { base, offset, ..entry };
        moving.copies.entry(stream).or_default().push(CompactedRecord { entry, bytes, at_ms });
        moving.end = self.visible;
        self.compacted_bytes += bytes as u64;
        true
    }

    /// Makes the copies current: all of them are durable.
    fn finish(&mut self, moving: Compaction) {
        self.copies_from = None;
        let is_complete = self.ledger.streams.iter().all(|(id, stream)| {
            let Some(done) = stream.done() else { return true };
            let copies = moving.copies.get(id).map_or(&[][..], Vec::as_slice);
            let copied = copies.iter().filter(|copy| !done.is_done(copy.entry.origin)).count();
            copied == stream.index.count_in(moving.base, &done)
        });
        if !is_complete {
            return; // a new cursor needs records that seemed dead: try again later
        }
        for stream in self.ledger.streams.values_mut() {
            stream.index.forget_segment(moving.base);
        }
        for (stream, mut copies) in moving.copies {
            copies.sort_unstable_by_key(|copy| copy.entry.origin);
            if let Some(known) = self.ledger.streams.get_mut(&stream) {
                known.index.relocate(&copies);
            }
        }
        self.reclaim();
    }
}
