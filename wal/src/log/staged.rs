//! What is appended and not yet durable: the bytes that wait for a flush, the write in flight, and the cursors in both.

use std::fs::File;
use std::sync::Arc;

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
