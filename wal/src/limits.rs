//! The limits of the log: each with its unit and its reason.

/// Default capacity of one segment, in bytes: large enough that a roll-over is rare (one in 100,000 records
/// of 512 bytes), small enough that reclaiming one matters on a small disk.
pub const SEGMENT_BYTES: u32 = 64 << 20;

/// Size of the first segment of a new log, in bytes, where [`SEGMENT_BYTES`] is more: an appliance serves
/// only when it is zeroed (64 MiB took 70 to 140 ms, this some 8), and an idle log never needs another.
pub const FIRST_SEGMENT_BYTES: u32 = 8 << 20;

/// Inverse of the share of a segment (1/4) that is filled before the next one is prepared: at the 40 MB/s
/// of 64 busy senders the rest of the first segment lasts 150 ms and of others more than a second, and
/// zeroing takes 100.
pub(crate) const SPARE_FROM: u32 = 4;

/// Smallest segment, in bytes: header, snapshot, control reserve and one small batch must fit.
pub const SEGMENT_BYTES_MIN: u32 = 16 << 10;

/// Inverse of the share (1/8) of free disk space that a new segment takes at most: on a small disk segments
/// are small, so that space is reclaimed before the disk is full, and the logs of other cores get some too.
pub(crate) const FREE_SHARE: u64 = 8;

/// Smallest segment that is created for a small disk, in bytes, if its first records need no more: a
/// smaller one would cost more flushes for its roll-over than for its events.
pub(crate) const SMALL_SEGMENT_BYTES: u32 = 1 << 20;

/// Largest segment, in bytes: an offset inside one is a `u32`, and recovery reads a whole segment.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// Default maximum record size, in bytes: an event of 1 MiB with attributes must fit.
pub const RECORD_BYTES_MAX: u32 = 2 << 20;

/// Default maximum size of all files of one log, in bytes; there is one log per core.
pub const LOG_BYTES_MAX: u64 = 8 << 30;

/// Segments beyond `log_bytes_max` and [`ONWARD_SHARE`] that cursors and other control records may open,
/// but events may not: a full log must still record that an event was delivered, or it never gets space
/// again. One segment is filled while the one before waits for its drop to be durable.
pub const CONTROL_SEGMENTS_MAX: u64 = 2;

/// Inverse of the share of `log_bytes_max` (1/8) that derived events may take beyond it: the original event
/// is done only when its derived events are stored, so a full log that rejected them would never get space
/// again.
pub const ONWARD_SHARE: u64 = 8;

/// Minimum of this share, in bytes, if `log_bytes_max` is as much: a segment is reclaimed when all its
/// events are done, events finish in any order, and a subscriber has a thousand of them in flight.
pub const ONWARD_BYTES_MIN: u64 = 512 << 20;

/// Default maximum of bytes appended and not yet durable: when the disk stalls, senders are rejected and
/// the process does not grow.
pub const STAGED_BYTES_MAX: usize = 32 << 20;

/// Default maximum of declared streams. Each costs its name in the snapshot of every segment.
pub const STREAMS_MAX: usize = 4096;

/// Default maximum of cursors, over all streams.
pub const CURSORS_MAX: usize = 16_384;

/// Maximum length of a stream or subscriber name, in bytes: `broker/NAMESPACE/NAME/UID` with the longest
/// Kubernetes names is 300.
pub const NAME_BYTES_MAX: usize = 512;

/// Done ranges stored in one cursor beyond its low mark. More are cut off from the far end when it is
/// written, which costs duplicates after a crash and never an event.
pub const RANGES_MAX: usize = 1024;

/// Time before a disk without space for a segment is tried again, in milliseconds of the caller's clock:
/// otherwise every rejected event would cost a failing `fallocate`.
pub const SPACE_RETRY_MS: u64 = 1000;

/// Segments that a log may take beyond twice its live bytes before compaction starts: the tail, one that is
/// being compacted, and one that waits for its drop to be durable.
pub const MOVE_SLACK_SEGMENTS: u64 = 3;

/// Files kept for reuse: a new one costs zeros of its full size. With one reclaim per second, two segments
/// are freed at a time from some 150,000 events a second on.
pub const RECYCLED_MAX: usize = 2;

/// Bytes that one compaction step reads and writes: some 100 µs of a core when the pages are cached, and
/// more than a flush usually brings, so that compaction keeps up.
pub const MOVE_STEP_BYTES: usize = 1 << 20;

/// Threads that read the segments of one log when it is opened. The cores open their logs at the same time,
/// and four threads each saturate most memory.
pub const READERS_MAX: usize = 4;

/// Damaged records that are reported one by one; further ones are only counted.
pub const DAMAGE_REPORTED_MAX: usize = 1024;

/// Limit of a snapshot, a share of the segment (1/4): the names of streams and subscribers must fit.
pub(crate) const fn snapshot_bytes_max(segment_bytes: u32) -> usize {
    segment_bytes as usize / 4
}

/// Limit of one record or batch, a share of the segment (1/2): with the snapshot's quarter and the control
/// reserve it fits any new segment.
pub(crate) const fn batch_bytes_max(segment_bytes: u32) -> usize {
    segment_bytes as usize / 2
}

/// The end of a segment that is reserved for control records (1/16), so that a log that cannot get another
/// segment can still write cursors.
pub(crate) const fn control_reserve(segment_bytes: u32) -> usize {
    segment_bytes as usize / 16
}
