//! Options that the owner of a log can set.

use std::hash::{BuildHasher, RandomState};

use crate::error::Error;
use crate::limits;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Capacity of a new segment, in bytes. Existing ones keep theirs.
    pub segment_bytes: u32,
    /// Maximum record size, in bytes; at most half a segment.
    pub record_bytes_max: u32,
    /// Maximum size of all segments, in bytes.
    pub log_bytes_max: u64,
    /// Maximum of bytes appended and not yet durable.
    pub staged_bytes_max: usize,
    pub streams_max: usize,
    pub cursors_max: usize,
    /// Random seed of the checksum salts. Fixed only in tests.
    pub seed: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: limits::SEGMENT_BYTES,
            record_bytes_max: limits::RECORD_BYTES_MAX,
            log_bytes_max: limits::LOG_BYTES_MAX,
            staged_bytes_max: limits::STAGED_BYTES_MAX,
            streams_max: limits::STREAMS_MAX,
            cursors_max: limits::CURSORS_MAX,
            seed: RandomState::new().hash_one(0),
        }
    }
}

impl LogOptions {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let segment = u64::from(self.segment_bytes);
        in_range("segment_bytes", segment, limits::SEGMENT_BYTES_MIN.into(), limits::SEGMENT_BYTES_MAX.into())?;
        // At least two segments, so that one can be reclaimed while the other is written; and a snapshot
        // lists them all, eight bytes each, in an eighth of a segment.
        in_range("log_bytes_max", self.log_bytes_max, 2 * segment, segment / 64 * segment)?;
        in_range("record_bytes_max", self.record_bytes_max.into(), 1, u32::MAX.into())?;
        let record = u64::from(self.record_bytes_max).min(limits::batch_bytes_max(self.segment_bytes) as u64);
        in_range("staged_bytes_max", self.staged_bytes_max as u64, record, u64::MAX)
    }
}

fn in_range(option: &'static str, value: u64, min: u64, max: u64) -> Result<(), Error> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(Error::Option { option, value, min, max }) }
}
