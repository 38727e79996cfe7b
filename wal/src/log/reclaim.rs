//! Reclaims space: which segments have no live records, and how their files are deleted.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;

use super::WriteAheadLog;
use super::roll::RollPurpose;
use crate::codec::{RecordKind, record_bytes};
use crate::limits::RECYCLED_MAX;
use crate::position::LogPosition;
use crate::segment::{Segment, SpareSegment};

/// Result of one [`WriteAheadLog::reclaim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReclaimedSpace {
    /// Segments without live records; their files are deleted when the next flush is durable.
    pub segments: usize,
    pub bytes: u64,
}

/// Statistics of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogStat {
    pub segments: usize,
    /// The position at which the oldest segment begins. Events of older origin were compacted.
    pub first_byte: LogPosition,
    /// Size of the segment files, without spares.
    pub bytes: u64,
    pub bytes_max: u64,
    /// Bytes appended and not yet durable.
    pub staged_bytes: usize,
    pub flushes: u64,
    pub flushed_bytes: u64,
    /// Bytes of records that subscribers still need.
    pub live_bytes: u64,
    /// Bytes of live records that were compacted since the log was opened.
    pub compacted_bytes: u64,
    /// Records that could not be read because the disk had changed them.
    pub damaged: u64,
    /// Segments whose file was truncated or cannot be read ([`WriteAheadLog::check_files`]).
    pub broken: usize,
    pub streams: BTreeMap<Box<str>, StreamStat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStat {
    /// Events at or after the slowest cursor.
    pub pending: u64,
    pub cursors: usize,
}

impl WriteAheadLog {
    /// Drops segments that no stream's (durable) cursors need; streams without a cursor retain nothing.
    /// Their files are deleted when the drop itself is durable. When too much of the remaining space is
    /// dead, starts a compaction ([`WriteAheadLog::is_compacting`]).
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
            dead = self.dead_of(&live); // a roll-over may have dropped them already
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

    /// How full the log is, and with events of which streams.
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

    /// Live bytes of records by segment; segments without any are omitted.
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

    /// Segments before the tail without live records.
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

    /// Removes the dead segments for readers; their files are deleted when this is durable.
    pub(crate) fn mark_dropped(&mut self, dead: &[u64]) {
        let at = self.visible;
        for segment in self.segments.iter_mut().filter(|segment| dead.contains(&segment.base())) {
            segment.dropped_at = Some(at);
        }
        for stream in self.ledger.streams.values_mut() {
            dead.iter().for_each(|base| stream.index.forget_segment(*base));
        }
    }

    /// Deletes files whose drop is durable; keeps a few without readers for the next roll-overs.
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
            // A file that cannot be deleted now is found as a leftover by the next recovery.
            let _: Result<(), _> = fs::remove_file(&path);
        }
    }
}

/// The positions from which a reader may start.
impl WriteAheadLog {
    /// The first position that may still identify an event of any stream.
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
