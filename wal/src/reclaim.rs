//! Giving space back: which segments nobody needs, and how their files go.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;

use crate::codec::{RecordKind, record_bytes};
use crate::limits::RECYCLED_MAX;
use crate::log::WriteAheadLog;
use crate::position::LogPosition;
use crate::roll::RollPurpose;
use crate::segment::{Segment, SpareSegment};

/// What one [`WriteAheadLog::reclaim`] set in motion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReclaimedSpace {
    /// Segments that nobody needs any more; their files go when the next flush is durable.
    pub segments: usize,
    pub bytes: u64,
}

/// The log in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogStat {
    pub segments: usize,
    /// The position at which the oldest segment begins. Events of older origin were moved.
    pub first_byte: LogPosition,
    /// In segment files, spares not counted.
    pub bytes: u64,
    pub bytes_max: u64,
    /// Appended and not yet durable.
    pub staged_bytes: usize,
    pub flushes: u64,
    pub flushed_bytes: u64,
    /// What subscribers still need, in bytes of records.
    pub live_bytes: u64,
    /// Live records that were moved forward since the log was opened, in bytes.
    pub compacted_bytes: u64,
    /// Records that could not be read because the disk had changed them.
    pub damaged: u64,
    /// Segments whose file was cut short, or cannot be read ([`WriteAheadLog::check_files`]).
    pub broken: usize,
    pub streams: BTreeMap<Box<str>, StreamStat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStat {
    /// Events at or after the slowest bookmark.
    pub pending: u64,
    pub cursors: usize,
}

impl WriteAheadLog {
    /// Drops segments in which no stream's (durable) bookmarks need anything; streams without
    /// a bookmark keep nothing. Their files go when the drop itself is durable. When too much of
    /// what is left is dead, begins to move live records ([`WriteAheadLog::is_compacting`]).
    pub fn reclaim(&mut self) -> ReclaimedSpace {
        let mut live = self.live_bytes();
        let mut dead = self.dead_of(&live);
        let before = self.segments.len();
        let is_ready = dead.is_empty() || self.reclaim_for(record_bytes(dead.len() * 8), RollPurpose::Control).is_ok();
        if !is_ready || self.poison.is_some() {
            return ReclaimedSpace::default();
        }
        if self.segments.len() > before {
            live = self.live_bytes();
            dead = self.dead_of(&live); // a roll-over may have dropped them by itself
        }
        if !dead.is_empty() {
            let payload: Vec<u8> = dead.iter().flat_map(|base| base.to_le_bytes()).collect();
            self.stage(RecordKind::Drop, 0, 0, 0, &[&payload]);
            self.mark_dropped(&dead);
        }
        self.begin_compaction(&live);
        let dropped = self.segments.iter().filter(|one| one.dropped_at.is_some());
        let capacities = dropped.map(|one| u64::from(one.header.capacity));
        capacities.fold(ReclaimedSpace::default(), |sum, bytes| ReclaimedSpace {
            segments: sum.segments + 1,
            bytes: sum.bytes + bytes,
        })
    }

    /// How full the log is, and with whose events.
    #[must_use]
    pub fn stat(&self) -> LogStat {
        let streams = self.ledger.streams.values().map(|stream| {
            let pending = stream.slowest().map_or(0, |low| stream.index.count_from(low));
            (stream.name.clone(), StreamStat { pending, cursors: stream.cursors.len() })
        });
        LogStat {
            segments: self.segments.len(),
            first_byte: self.first_byte(),
            bytes: self.used_bytes(),
            bytes_max: self.options.log_bytes_max,
            staged_bytes: self.staged_bytes,
            flushes: self.flushes,
            flushed_bytes: self.flushed_bytes,
            live_bytes: self.live_bytes().values().sum(),
            compacted_bytes: self.compacted_bytes,
            damaged: self.damaged(),
            broken: self.segments.iter().filter(|one| one.broken).count(),
            streams: streams.collect(),
        }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.header.capacity)).sum()
    }

    /// What is still needed, in bytes of records by segment; segments without are not listed.
    pub(crate) fn live_bytes(&self) -> HashMap<u64, u64> {
        let mut live = HashMap::new();
        for stream in self.ledger.streams.values() {
            let Some(done) = stream.done() else { continue };
            for (base, bytes) in stream.index.live_bytes(&done) {
                *live.entry(base).or_insert(0) += bytes;
            }
        }
        live
    }

    /// Segments before the tail that hold nothing alive.
    pub(crate) fn find_dead(&self) -> Vec<u64> {
        self.dead_of(&self.live_bytes())
    }

    fn dead_of(&self, live: &HashMap<u64, u64>) -> Vec<u64> {
        let before_tail = self.segments.len().saturating_sub(1);
        let candidates = self.segments.iter().take(before_tail);
        candidates
            .filter(|segment| segment.dropped_at.is_none())
            .map(Segment::base)
            .filter(|base| !live.contains_key(base) && self.copies_from.is_none_or(|from| *base < from))
            .collect()
    }

    /// From here on the dead are gone for readers; their files go when this is durable.
    pub(crate) fn mark_dropped(&mut self, dead: &[u64]) {
        let at = self.visible;
        for segment in self.segments.iter_mut().filter(|segment| dead.contains(&segment.base())) {
            segment.dropped_at = Some(at);
        }
        for stream in self.ledger.streams.values_mut() {
            dead.iter().for_each(|base| stream.index.forget_segment(*base));
        }
    }

    /// Removes files whose drop is durable; keeps a few that nobody reads for the next roll-overs.
    pub(crate) fn delete_dropped(&mut self) {
        while let Some(nth) = self.segments.iter().position(|one| one.dropped_at.is_some_and(|at| at <= self.durable)) {
            let Some(Segment { header, file, path, map, .. }) = self.segments.remove(nth) else { return };
            self.no_space_at_ms = None;
            let unread = map.release();
            if let Some(file) = Arc::into_inner(file)
                && unread
                && self.recyclable.len() < RECYCLED_MAX
                && header.capacity == self.options.segment_bytes
            {
                self.recyclable.push(SpareSegment { file, path });
                continue;
            }
            // A file that cannot be removed now is found as a leftover by the next recovery.
            let _: Result<(), _> = fs::remove_file(&path);
        }
    }
}

/// Positions from which a reader may start: nothing of the stream is before it.
impl WriteAheadLog {
    /// The first position that may still name an event of any stream.
    #[must_use]
    pub fn origin(&self) -> LogPosition {
        let first = self.first_byte();
        let moved = self.ledger.streams.values().filter_map(|stream| stream.index.first_compacted());
        moved.fold(first, LogPosition::min)
    }

    fn first_byte(&self) -> LogPosition {
        self.segments.front().map_or(self.visible, |segment| LogPosition::new(segment.base()))
    }
}
