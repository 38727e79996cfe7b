//! Readahead: a thread that may block reads a backlog written long ago from the disk, before a core
//! accesses it through the map.

use std::ops::Range;

use bytes::Bytes;

use super::WriteAheadLog;
use crate::map;
use crate::position::{LogPosition, StreamId};

/// Bytes of a segment that will be read soon.
#[derive(Debug)]
pub struct ReadaheadRequest {
    ranges: Range<LogPosition>,
    bytes: Bytes,
}

impl ReadaheadRequest {
    /// The positions that can be read without the disk once [`ReadaheadRequest::run`] has returned.
    #[must_use]
    pub fn ranges(&self) -> Range<LogPosition> {
        self.ranges.clone()
    }

    /// Reads the pages; waits for the disk. The reader handles pages that cannot be read.
    pub fn run(&self) {
        map::populate(&self.bytes);
    }
}

/// What a reader assumes to be in memory, and how much it reads ahead.
#[derive(Debug, Clone, Copy)]
pub struct ReadaheadWindow {
    /// The newest bytes of the log, which are in memory because they were written recently.
    pub recent_bytes: u64,
    /// Bytes to read at a time.
    pub window_bytes: u32,
    /// Bytes beyond the window, for a record that begins in it.
    pub record_bytes: u32,
}

impl WriteAheadLog {
    /// Returns what to read ahead before the stream is read from `from`; `None` if that is recent, is
    /// inside `warm`, or does not exist.
    #[must_use]
    pub fn page_in(
        &self,
        stream: StreamId,
        from: LogPosition,
        warm: &Range<LogPosition>,
        ahead: ReadaheadWindow,
    ) -> Option<ReadaheadRequest> {
        let entry = self.ledger.streams.get(&stream.get())?.index.first_from(from)?;
        let position = LogPosition::new(entry.base + u64::from(entry.offset));
        if warm.contains(&position) || position.get().saturating_add(ahead.recent_bytes) >= self.durable.get() {
            return None;
        }
        let segment = self.segment(entry.base)?;
        let window = segment.used.min(entry.offset.saturating_add(ahead.window_bytes));
        let end = segment.used.min(window.saturating_add(ahead.record_bytes));
        let bytes = segment.map.slice(entry.offset as usize..end as usize)?;
        Some(ReadaheadRequest { ranges: position..LogPosition::new(entry.base + u64::from(window)), bytes })
    }
}
