//! Live records move forward, so that a lagging subscriber holds its own events and nobody's segments.
//!
//! When the files take more than twice what is alive (and [`MOVE_SLACK_SEGMENTS`]), the segment with the
//! least alive is read through, and what somebody still needs is appended again with its old
//! position as its name. A step moves [`MOVE_STEP_BYTES`] at most. Only when all copies are durable
//! do readers turn to them, and only then is the old segment dropped; so at any moment, and after any
//! crash, each event is there once at least, and recovery takes the first.
//!
//! What is alive in a segment whose file was removed is moved whatever it costs: the next start would not find it.
//!
//! Otherwise a segment is moved only when more of it is dead than alive: each byte moved is paid for by one
//! that died, so moving at most doubles what is written, and it comes to an end.

use std::collections::HashMap;
use std::ops::Range;

use crate::codec::{HEADER_BYTES, ORIGIN_BYTES, RecordKind, decode, record_bytes};
use crate::cursor::Cursor;
use crate::index::{CompactedRecord, IndexEntry};
use crate::limits::{MOVE_SLACK_SEGMENTS, MOVE_STEP_BYTES};
use crate::log::WriteAheadLog;
use crate::position::{LogPosition, StreamId};
use crate::roll::RollPurpose;
use crate::segment::{Segment, read_ahead};

/// One segment's live records on their way.
pub(crate) struct Compaction {
    /// The segment that is emptied.
    base: u64,
    /// How far it was read.
    offset: u32,
    copies: HashMap<u32, Vec<CompactedRecord>>,
    /// The last copy's end.
    end: LogPosition,
    /// What no subscriber needs, by stream, as of the step under way.
    done: HashMap<u32, Option<Cursor>>,
}

/// What a step came upon.
enum CompactionStep {
    /// Nobody needs this record.
    Pass(u32),
    Copy {
        stream: u32,
        at_ms: u64,
        spot: IndexEntry,
        payload: Range<usize>,
        next: u32,
    },
    End,
    Damaged,
}

impl WriteAheadLog {
    /// A segment is being emptied: call [`WriteAheadLog::move_on`] after each flush.
    #[must_use]
    pub const fn is_compacting(&self) -> bool {
        self.compaction.is_some()
    }

    /// One bounded step of moving live records forward; nothing when none is under way.
    pub fn move_on(&mut self) {
        let Some(mut moving) = self.compaction.take() else { return };
        moving.done.clear(); // bookmarks have moved since the last step
        let mut left = MOVE_STEP_BYTES;
        while left > 0 && self.is_there(moving.base) {
            let (next, bytes) = match self.next_to_move(&mut moving) {
                CompactionStep::Pass(next) => (next, (next - moving.offset) as usize),
                CompactionStep::Copy { stream, at_ms, spot, payload, next } => {
                    let bytes = record_bytes(ORIGIN_BYTES + payload.len());
                    if !self.copy(&mut moving, stream, at_ms, spot, payload) {
                        break; // no room now; the next call tries again
                    }
                    (next, bytes)
                }
                CompactionStep::End if moving.end <= self.durable => return self.finish(moving),
                CompactionStep::End => break,
                CompactionStep::Damaged => {
                    // What cannot be read cannot be moved. It stays where it is, for whoever looks.
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
            self.copies_from = None; // everything in it died meanwhile: the copies count for nothing
        }
    }

    fn is_there(&self, base: u64) -> bool {
        self.segment(base).is_some_and(|segment| segment.dropped_at.is_none())
    }

    /// Begins with the segment that has the least alive, when the log takes more than it should.
    /// `live`: bytes per segment.
    pub(crate) fn begin_compaction(&mut self, live: &HashMap<u64, u64>) {
        if self.compaction.is_some() || self.poison.is_some() {
            return;
        }
        // Of the largest there is: on a small disk all are small.
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
        let place = LogPosition::new(moving.base + u64::from(moving.offset));
        let Some(found) = decode(&bytes, offset, salt, place) else {
            return self.skip_gap(moving, segment);
        };
        let whole = offset + record_bytes(found.payload.len());
        let next = u32::try_from(whole).unwrap_or(segment.used);
        let Some((origin, skip)) = found.event() else { return CompactionStep::Pass(next) };
        let spot = IndexEntry { origin, base: moving.base, offset: moving.offset };
        let stream = found.head.stream;
        let known = self.ledger.streams.get(&stream);
        let needed = known.is_some_and(|known| {
            let done = moving.done.entry(stream).or_insert_with(|| known.done());
            done.as_ref().is_some_and(|done| !done.is_done(origin)) && known.index.holds(spot)
        });
        if !needed {
            return CompactionStep::Pass(next);
        }
        let start = offset + HEADER_BYTES;
        let payload = start + skip..start + found.payload.len();
        CompactionStep::Copy { stream, at_ms: found.head.at_ms, spot, payload, next }
    }

    /// Bytes that are no record: a hole that recovery told, or damage since then.
    fn skip_gap(&self, moving: &Compaction, segment: &Segment) -> CompactionStep {
        let streams = self.ledger.streams.iter();
        let next = streams
            .filter_map(|(id, stream)| Some((*id, stream.index.next_in(moving.base, moving.offset)?)))
            .min_by_key(|(_, spot)| spot.offset);
        match next {
            Some((id, spot)) if spot.offset == moving.offset => {
                self.note_damage(segment, StreamId(id), spot);
                CompactionStep::Damaged
            }
            Some((_, spot)) => CompactionStep::Pass(spot.offset),
            None => CompactionStep::End,
        }
    }

    fn copy(
        &mut self,
        moving: &mut Compaction,
        stream: u32,
        at_ms: u64,
        spot: IndexEntry,
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
        let origin = spot.origin.get().to_le_bytes();
        let place = self.stage(RecordKind::Compacted, stream, at_ms, 0, &[&origin, &payload]);
        let base = self.tail().base();
        let offset = u32::try_from(place.get() - base).expect("a segment's capacity is a u32");
        let spot = IndexEntry { base, offset, ..spot };
        moving.copies.entry(stream).or_default().push(CompactedRecord { entry: spot, bytes, at_ms });
        moving.end = self.visible;
        self.compacted_bytes += bytes as u64;
        true
    }

    /// All copies are durable: they are the events from now on.
    fn finish(&mut self, moving: Compaction) {
        self.copies_from = None;
        let is_complete = self.ledger.streams.iter().all(|(id, stream)| {
            let Some(done) = stream.done() else { return true };
            let copies = moving.copies.get(id).map_or(&[][..], Vec::as_slice);
            let copied = copies.iter().filter(|copy| !done.is_done(copy.entry.origin)).count();
            copied == stream.index.count_in(moving.base, &done)
        });
        if !is_complete {
            return; // a bookmark came that begins before what was thought to be dead: once more, later
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
