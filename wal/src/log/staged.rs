//! What is appended and not yet durable: the bytes that wait for a flush, the write in flight, and the cursors in both.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;

use crate::cursor::Cursor;
use crate::position::LogPosition;

/// Bytes for one segment, starting at `offset`.
pub(crate) struct StagedBytes {
    pub(crate) base: u64,
    pub(crate) capacity: u32,
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct InFlightFlush {
    pub(crate) base: u64,
    pub(crate) offset: u64,
    /// Without the padding.
    pub(crate) length: usize,
    pub(crate) end: LogPosition,
    /// Names a segment in the segment state; `length` and `end` are those of the first flush that waits for it.
    pub(crate) is_state: bool,
}

/// A cursor in its stored form, durable when everything below `at` is.
pub(crate) struct InFlightCursor {
    pub(crate) at: LogPosition,
    pub(crate) stream: u32,
    pub(crate) subscriber: Arc<str>,
    pub(crate) mark: Cursor,
}

/// One write that must be durable before it is reported done: all `bytes` to `file` at `offset`,
/// with RWF_DSYNC or followed by `fdatasync`.
#[derive(Debug)]
#[must_use = "a flush that is never reported done stops the log"]
pub struct Flush {
    pub file: Arc<File>,
    pub offset: u64,
    pub bytes: Bytes,
    /// Everything below this position is on the disk when the write completes. It may be acknowledged when
    /// [`crate::WriteAheadLog::durable`] has reached it: for the first flush of a segment this needs one more
    /// flush, which names the segment.
    pub end: LogPosition,
    /// Keeps the folder locked while this write can still reach it, even after the log is dropped.
    pub(super) _lock: Arc<File>,
}
