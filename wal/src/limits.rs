//! The log's limits: each with its unit and its reason.

/// Default capacity of one segment, in bytes: large enough that a roll-over is rare (one in 100,000
/// records of 512 bytes), small enough that a reclaimed one is noticed on a small disk.
pub const SEGMENT_BYTES: u32 = 64 << 20;

/// The first segment of a new log, in bytes, where [`SEGMENT_BYTES`] is more: an appliance begins to serve only when it
/// is zeroed (64 MiB took 70 to 140 ms, this some 8), and an idle one never needs another.
pub const FIRST_SEGMENT_BYTES: u32 = 8 << 20;

/// The share of a segment (1/4) that is filled before the next one is prepared: at the 40 MB/s of 64 busy senders
/// what is left of the first one takes 150 ms and of others more than a second, and zeroing takes 100.
pub(crate) const SPARE_FROM: u32 = 4;

/// Smallest segment, in bytes: header, snapshot, control reserve and one small batch must fit.
pub const SEGMENT_BYTES_MIN: u32 = 16 << 10;

/// The share (1/8) of what is free on its disk that a new segment takes at most: on a small disk segments are small, so
/// that room comes back before the disk is full, and the logs of other cores find some too.
pub(crate) const FREE_SHARE: u64 = 8;

/// Smallest segment that is made for a small disk, in bytes, if what has to go into it needs no more: a smaller one
/// would cost more flushes for its roll-over than for its events.
pub(crate) const SMALL_SEGMENT_BYTES: u32 = 1 << 20;

/// Largest segment, in bytes: an offset inside one is a `u32`, and recovery reads one whole.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// Default for the largest record, in bytes: an event of 1 MiB with attributes has to fit.
pub const RECORD_BYTES_MAX: u32 = 2 << 20;

/// Default for the files of one log together, in bytes; there is one log per core.
pub const LOG_BYTES_MAX: u64 = 8 << 30;

/// Segments beyond `log_bytes_max` and [`ONWARD_SHARE`] that bookmarks and other control records may open, events not:
/// a full log must still be able to write down that something was delivered, or it never gets
/// room again. One is being filled while the one before waits for its drop to be durable.
pub const CONTROL_SEGMENTS_MAX: u64 = 2;

/// The share of `log_bytes_max` (1/8) that events to which others led may take beyond it: what led to one ends only
/// when that is kept, so a full log that took none would never get room again.
pub const ONWARD_SHARE: u64 = 8;

/// What this share is at least, in bytes, if `log_bytes_max` is as much: a segment comes free when all in it has ended,
/// events end in any order, and a subscriber has a thousand of them under way at a time.
pub const ONWARD_BYTES_MIN: u64 = 512 << 20;

/// Default for bytes appended but not yet durable: with a disk that stalls, senders are refused
/// instead of the process growing.
pub const STAGED_BYTES_MAX: usize = 32 << 20;

/// Default for streams declared at a time. Each costs its name in every segment's snapshot.
pub const STREAMS_MAX: usize = 4096;

/// Default for bookmarks kept at a time, over all streams.
pub const BOOKMARKS_MAX: usize = 16_384;

/// Longest stream or subscriber name, in bytes: `broker/NAMESPACE/NAME/UID` with the longest
/// Kubernetes names is 300.
pub const NAME_BYTES_MAX: usize = 512;

/// Done ranges kept in one bookmark beyond its low mark. More are cut off from the far end when it
/// is written, which costs duplicates after a crash and never an event.
pub const RANGES_MAX: usize = 1024;

/// A disk that had no room for a segment is asked again after this long, in milliseconds of the
/// appenders' clock: every refused event would otherwise cost a failing `fallocate`.
pub const SPACE_RETRY_MS: u64 = 1000;

/// Segments that a log may take beyond twice its live bytes before live records are moved: the tail,
/// one that is being emptied, and one that waits for its drop to be durable.
pub const MOVE_SLACK_SEGMENTS: u64 = 3;

/// Files kept to be used again: a new one costs zeros as large as itself. At a look for space a second, two
/// segments come free at a time from some 150,000 events a second on.
pub const RECYCLED_MAX: usize = 2;

/// What one step of moving live records reads and writes, in bytes: some 100 µs of a core when the
/// pages are cached, and more than one flush usually brings, so that moving keeps up.
pub const MOVE_STEP_BYTES: usize = 1 << 20;

/// Threads that read one log's segments when it is opened. The cores open their logs at the same time, and
/// four threads ask more than most memories give.
pub const READERS_MAX: usize = 4;

/// Damaged records that are told one by one; beyond that they are only counted.
pub const DAMAGE_TOLD_MAX: usize = 1024;

/// The share of a segment that a snapshot may fill (1/4): streams' and subscribers' names must fit.
pub(crate) const fn snapshot_bytes_max(segment_bytes: u32) -> usize {
    segment_bytes as usize / 4
}

/// The share of a segment that one record or batch may fill (1/2): with the snapshot's quarter
/// and the control reserve it fits any fresh segment.
pub(crate) const fn batch_bytes_max(segment_bytes: u32) -> usize {
    segment_bytes as usize / 2
}

/// The end of a segment that events leave to control records (1/16), so that a log that cannot get
/// another segment can still write bookmarks.
pub(crate) const fn control_reserve(segment_bytes: u32) -> usize {
    segment_bytes as usize / 16
}
