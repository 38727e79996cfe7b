//! The roll-over from a full segment to the next one.

use std::fs;
use std::sync::Arc;

use super::WriteAheadLog;
use super::staged::{InFlightCursor, StagedBytes};
use crate::codec::{HEADER_BYTES, RecordKind, record_bytes};
use crate::error::{AppendError, Error};
use crate::header::{FORMAT, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::limits::{
    CONTROL_SEGMENTS_MAX, FIRST_SEGMENT_BYTES, ONWARD_BYTES_MIN, ONWARD_SHARE, RANGES_MAX, RECYCLED_MAX,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SMALL_SEGMENT_BYTES, SPACE_RETRY_MS, SPARE_FROM, control_reserve,
    snapshot_bytes_max,
};
use crate::log_state::{cursor_bytes, encode_cursor};
use crate::map::SegmentMap;
use crate::position::LogPosition;
use crate::segment::{Segment, SegmentPreparation, SpareSegment, sync_folder};

/// Size of the seal: every segment reserves space for it.
const SEAL_BYTES: usize = record_bytes(0);
const _: () = assert!(SEAL_BYTES == HEADER_BYTES);

/// Limit named in the error when the disk provides no file: full, over quota, or out of order.
const NO_SEGMENT: &str = "disk space for one more segment";

/// What the space is for. Events leave the end of a segment, and the last segments, to control records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RollPurpose {
    Event,
    /// Derived events: the originals are done only when these are stored.
    Onward,
    /// Compacted records, which free space: beyond the limit, and never in the last segment.
    Move,
    Control,
}

impl WriteAheadLog {
    /// Returns the slow part of the next roll-over, when it is worth preparing: run it on a thread that may
    /// block and pass the result to [`WriteAheadLog::spare_ready`]. Otherwise the roll-over does it inline.
    pub fn prepare_spare(&mut self) -> Option<SegmentPreparation> {
        let next = self.used_bytes() + u64::from(self.options.segment_bytes);
        let tail = self.tail();
        let is_near = tail.used >= tail.header.capacity / SPARE_FROM;
        let wanted = is_near && !self.spare_out && self.spares.is_empty() && self.poison.is_none();
        let failed = self.spare_failed_at_ms;
        let has_just_failed = failed.is_some_and(|at| self.now_ms.abs_diff(at) < SPACE_RETRY_MS);
        if !wanted || has_just_failed || next > self.options.log_bytes_max {
            return None;
        }
        self.spare_out = true;
        let (wanted, needed) = (self.options.segment_bytes, self.capacity_for(0));
        Some(self.prepare(wanted, needed.max(SMALL_SEGMENT_BYTES).min(wanted)))
    }

    /// Takes the result of [`SegmentPreparation::run`]. A failure is harmless: the roll-over tries again.
    /// No further preparation is attempted for [`SPACE_RETRY_MS`], or a full disk would cost a thread for
    /// each flush.
    pub fn spare_ready(&mut self, outcome: std::io::Result<SpareSegment>) {
        self.spare_out = false;
        self.spare_failed_at_ms = outcome.is_err().then_some(self.now_ms);
        if let Ok(spare) = outcome {
            self.no_space_at_ms = None;
            self.spares.push(spare);
        }
    }

    /// Keeps the empty files that recovery found: a few of the right size; deletes the others.
    pub(crate) fn adopt_spares(&mut self, found: Vec<SpareSegment>) -> Result<(), Error> {
        for spare in found {
            let length = spare.file.metadata().map_err(Error::io(&spare.path, "look at a spare"))?.len();
            if self.recyclable.len() < RECYCLED_MAX && length == u64::from(self.options.segment_bytes) {
                self.recyclable.push(spare);
            } else {
                fs::remove_file(&spare.path).map_err(Error::io(&spare.path, "remove a spare"))?;
            }
        }
        sync_folder(&self.folder).map_err(Error::io(&self.folder, "sync the log's folder"))
    }

    /// Continues appending where recovery ended.
    pub(crate) fn continue_tail(&mut self, end: LogPosition) {
        let tail = self.tail();
        let (SegmentHeader { format, base, capacity, .. }, file) = (tail.header, Arc::clone(&tail.file));
        let offset = end.get() - base;
        self.staged.push_back(StagedBytes { base, capacity, file, offset, bytes: Vec::new() });
        if format < FORMAT {
            // Records that an older format does not have must not be written into this segment. A disk
            // without space for another one does not prevent opening: events fit here as before.
            drop(self.roll(0, RollPurpose::Control));
        }
    }

    /// Creates the first segment of a log, or the one after a sealed one.
    pub(crate) fn begin_first(&mut self, base: LogPosition) -> Result<(), Error> {
        let folder = self.folder.clone();
        let is_new = self.segments.is_empty() && self.recyclable.is_empty();
        let most = if is_new { FIRST_SEGMENT_BYTES } else { u32::MAX };
        let capacity = self.options.segment_bytes.min(most);
        let needed = self.capacity_for(0).min(capacity);
        let begun = self.take_spare(capacity, needed).and_then(|spare| self.map(spare));
        let begun = begun.map(|segment| self.begin(segment, base.get()));
        begun.map_err(Error::io(folder, "prepare a segment (free some space, or make the log smaller)"))
    }

    /// Ensures that a record or batch of this size fits into the tail.
    pub(crate) fn reclaim_for(&mut self, bytes: usize, whose: RollPurpose) -> Result<(), AppendError> {
        let tail = self.tail();
        let reserve = match whose {
            RollPurpose::Event | RollPurpose::Onward => control_reserve(tail.header.capacity),
            RollPurpose::Move | RollPurpose::Control => 0,
        };
        let used = self.visible.get() - tail.base();
        if used + (bytes + SEAL_BYTES + reserve) as u64 <= u64::from(tail.header.capacity) {
            return Ok(());
        }
        self.roll(bytes, whose)
    }

    /// Rolls over to a next segment with space for this many bytes of records.
    fn roll(&mut self, bytes: usize, whose: RollPurpose) -> Result<(), AppendError> {
        let (used, segment) = (self.used_bytes(), u64::from(self.options.segment_bytes));
        let log_bytes_max = self.options.log_bytes_max;
        let onward = (log_bytes_max / ONWARD_SHARE).max(ONWARD_BYTES_MIN.min(log_bytes_max));
        let onward_max = log_bytes_max + onward;
        let max = match whose {
            RollPurpose::Event => log_bytes_max,
            RollPurpose::Onward => onward_max,
            RollPurpose::Move => onward_max + (CONTROL_SEGMENTS_MAX - 1) * segment,
            RollPurpose::Control => onward_max + CONTROL_SEGMENTS_MAX * segment,
        };
        if used + segment > max {
            return Err(AppendError::full("log_bytes_max", used, max));
        }
        if let Some(since) = self.no_space_at_ms
            && self.now_ms.abs_diff(since) < SPACE_RETRY_MS
        {
            return Err(AppendError::full(NO_SEGMENT, used, used));
        }
        let base = self.tail().limit();
        let (wanted, needed) = (self.options.segment_bytes, self.capacity_for(bytes));
        // Everything that can fail comes before the seal, after which no record may follow. A process
        // without descriptors or memory is retried later, like a disk without space.
        let segment = self.take_spare(wanted, needed.min(wanted)).and_then(|spare| self.map(spare));
        let segment = segment.map_err(|_| {
            self.no_space_at_ms = Some(self.now_ms);
            AppendError::full(NO_SEGMENT, used, used)
        })?;
        self.stage(RecordKind::Seal, 0, 0, 0, &[]);
        self.begin(segment, base);
        Ok(())
    }

    /// Minimum size of a segment, in bytes: its snapshot, this many bytes of records, and its end.
    fn capacity_for(&self, bytes: usize) -> u32 {
        let listed = (self.segments.len() + 1) * size_of::<u64>();
        let names = self.ledger.snapshot_bytes + listed + record_bytes(0);
        let filled = SEGMENT_HEADER_BYTES + names + bytes + SEAL_BYTES;
        let with_reserve = filled + filled / 8; // more than the `control_reserve` of it
        let least = with_reserve.max(4 * names).max(SEGMENT_BYTES_MIN as usize);
        u32::try_from(least.next_power_of_two()).unwrap_or(SEGMENT_BYTES_MAX)
    }

    /// Takes a prepared spare that is large enough, or creates one now.
    fn take_spare(&mut self, wanted: u32, needed: u32) -> std::io::Result<SpareSegment> {
        let fits = |spare: &SpareSegment| spare.capacity().is_ok_and(|capacity| capacity >= needed);
        match self.spares.iter().position(fits) {
            Some(nth) => Ok(self.spares.swap_remove(nth)),
            None => self.prepare(wanted, needed).run(),
        }
    }

    /// A used file needs only a wipe; a new one must be zeroed completely.
    fn prepare(&mut self, capacity: u32, capacity_min: u32) -> SegmentPreparation {
        let recycled = self.recyclable.pop();
        let number = self.file_number;
        self.file_number += 1;
        SegmentPreparation { folder: self.folder.clone(), number, capacity, capacity_min, recycled }
    }

    /// Maps a prepared file. One that cannot be mapped now is kept for the next attempt.
    fn map(&mut self, spare: SpareSegment) -> std::io::Result<(SpareSegment, SegmentMap)> {
        match spare.capacity().and_then(|capacity| SegmentMap::new(&spare.file, capacity)) {
            Ok(map) => Ok((spare, map)),
            Err(why) => {
                self.spares.push(spare);
                Err(why)
            }
        }
    }

    /// Opens a segment for appending: writes its header, and a snapshot, so that older segments may be
    /// deleted.
    fn begin(&mut self, (spare, map): (SpareSegment, SegmentMap), base: u64) {
        let salt = crc32c::crc32c_append(crc32c::crc32c(&self.options.seed.to_le_bytes()), &base.to_le_bytes());
        let salt = crc32c::crc32c_append(salt, &self.file_number.to_le_bytes());
        let header = SegmentHeader { format: FORMAT, base, capacity: map.capacity(), salt };
        let segment = Segment::of(spare, header, map);
        let bytes = header.encode().to_vec();
        self.staged_bytes += bytes.len();
        let (capacity, file) = (header.capacity, Arc::clone(&segment.file));
        self.staged.push_back(StagedBytes { base, capacity, file, offset: 0, bytes });
        self.segments.push_back(segment);
        // A log over its limit must not need space for a drop record to get space.
        let over = self.used_bytes() > self.options.log_bytes_max;
        let dead = if over { self.find_dead() } else { Vec::new() };
        self.visible = LogPosition::new(base + SEGMENT_HEADER_BYTES as u64);
        self.stage_snapshot(&dead);
        let begun = u32::try_from(self.visible.get() - base).expect("a snapshot fits its segment");
        self.segments.back_mut().into_iter().for_each(|tail| tail.begun = begun);
        self.mark_dropped(&dead);
    }

    /// Writes all streams, cursors and live segments as one batch.
    fn stage_snapshot(&mut self, dead: &[u64]) {
        let lives = |segment: &&Segment| segment.dropped_at.is_none() && !dead.contains(&segment.base());
        let bases = self.segments.iter().filter(lives).map(Segment::base);
        let first = self.ledger.encode_snapshot(bases);
        let ranges_max = self.snapshot_ranges();

        let mut records: Vec<(RecordKind, u32, Vec<u8>)> = vec![(RecordKind::Snapshot, 0, first)];
        let mut marks = Vec::new();
        for (id, stream) in &mut self.ledger.streams {
            records.push((RecordKind::Stream, *id, stream.name.as_bytes().to_vec()));
            for (subscriber, kept) in &mut stream.cursors {
                records.push((RecordKind::Cursor, *id, encode_cursor(subscriber, &kept.mark, ranges_max)));
                marks.push((*id, subscriber.clone(), kept.mark.cut(ranges_max)));
                kept.changed = false;
            }
        }
        for (nth, (kind, stream, payload)) in records.iter().enumerate() {
            let rest = u32::try_from(records.len() - 1 - nth).expect("streams_max and cursors_max are small");
            self.stage(*kind, *stream, 0, rest, &[payload]);
        }
        let at = self.visible;
        let marks = marks.into_iter();
        self.marks_in_flight.extend(marks.map(|(stream, subscriber, mark)| InFlightCursor {
            at,
            stream,
            subscriber,
            mark,
        }));
        self.ledger.changed.clear();
        self.forgotten.clear(); // streams missing in the snapshot are deleted
    }

    /// Number of done ranges that each cursor may have so that a snapshot keeps to its share.
    fn snapshot_ranges(&self) -> usize {
        let max = snapshot_bytes_max(self.tail().header.capacity);
        let left = max.saturating_sub(self.ledger.snapshot_bytes);
        let one = cursor_bytes("", 1) - cursor_bytes("", 0);
        (left / one / self.ledger.cursors.max(1)).min(RANGES_MAX)
    }
}
