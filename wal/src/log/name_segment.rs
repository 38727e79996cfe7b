//! Names the newest segment in the segment state, after the segment's first flush and before anything in
//! that flush counts as durable. This is one small flush for each segment.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;

use super::WriteAheadLog;
use super::staged::{Flush, InFlightFlush};
use crate::error::Error;
use crate::position::LogPosition;
use crate::segment::{Segment, file_number};
use crate::segment_state::{self, SegmentState};

/// The open segment state, and what will be written to it.
pub(crate) struct SegmentStateWriter {
    file: Arc<File>,
    /// Sequence number of the last state that was written.
    sequence: u64,
    /// Base of the segment that is to be named.
    due: Option<u64>,
    /// The first flush of this segment: written, and not yet durable for the owner.
    first: Option<InFlightFlush>,
}

impl SegmentStateWriter {
    pub(crate) fn new(file: File, sequence: u64) -> Self {
        Self { file: Arc::new(file), sequence, due: None, first: None }
    }

    pub(crate) const fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Whether appended events wait for the segment to be named.
    pub(crate) const fn is_awaited(&self) -> bool {
        self.due.is_some() && self.first.is_some()
    }

    /// Names the segment with the next flush. At a start this repeats what the file says, because the
    /// process before may have failed to make it durable.
    pub(crate) fn name(&mut self, base: u64) {
        self.due = Some(base);
    }
}

impl WriteAheadLog {
    /// The first flush of a segment waits here until the segment is named. Returns it when there is no
    /// segment state to wait for, or when this is another flush.
    pub(super) fn name_first(&mut self, out: InFlightFlush) -> Option<InFlightFlush> {
        match &mut self.segment_state {
            Some(state) if out.offset == 0 => {
                state.name(out.base);
                state.first = Some(out);
                None
            }
            _ => Some(out),
        }
    }

    /// The write that names the newest segment, if it is due.
    pub(super) fn next_state_flush(&mut self) -> Option<Flush> {
        let state = self.segment_state.as_mut()?;
        let base = state.due.take()?;
        let newest = self.segments.iter().rfind(|segment| segment.base() == base);
        let newest = newest.expect("a segment is not dropped before it is named");
        let lowest = self.segments.iter().find(|segment| segment.dropped_at.is_none());
        state.sequence += 1;
        let written = SegmentState {
            sequence: state.sequence,
            lowest: lowest.map_or(base, Segment::base).min(base),
            base,
            capacity: newest.header.capacity,
            number: file_number(&newest.path).unwrap_or(0),
        };
        let offset = written.offset();
        let (length, end) = state.first.take().map_or((0, self.durable), |first| (first.length, first.end));
        self.in_flight = Some(InFlightFlush { base, offset, length, end, is_state: true });
        let (file, bytes) = (Arc::clone(&state.file), Bytes::from(written.encode()));
        Some(Flush { file, offset, bytes, end, _lock: Arc::clone(&self.lock) })
    }

    /// The file was removed from outside while it was written to: creates another one, and writes again.
    pub(super) fn replace_state_file(&mut self, out: InFlightFlush) -> Result<(), Error> {
        let Some(state) = &mut self.segment_state else { return Ok(()) };
        let file = segment_state::open(&self.folder)?;
        let path = segment_state::path(&self.folder);
        let no_space = || Error::io(path, "create the segment state")(std::io::ErrorKind::StorageFull.into());
        state.file = Arc::new(file.ok_or_else(no_space)?);
        state.due = Some(out.base);
        state.first = (out.end > self.durable).then_some(out);
        Ok(())
    }

    /// Names the tail that recovery found.
    pub(super) fn name_tail(&mut self) {
        let base = self.tail().base();
        if let Some(state) = &mut self.segment_state {
            state.name(base);
        }
    }

    /// Everything below `end` counts as durable.
    pub(super) fn confirm(&mut self, length: usize, end: LogPosition) {
        self.staged_bytes -= length;
        self.durable = end;
        assert!(self.durable <= self.visible);
        self.settle_marks();
        self.delete_dropped();
    }
}
