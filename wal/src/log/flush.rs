//! The path from staged to durable: what to write next, and what its result means.
//!
//! One write is in flight at a time, in order, so a record can only be durable when all records before it
//! are. Records appended meanwhile form the next write: a slow disk gets larger writes.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use super::WriteAheadLog;
use super::name_segment::SegmentStateWriter;
use super::roll::RollPurpose;
use super::staged::{Flush, InFlightCursor, InFlightFlush};
use crate::codec::{RecordKind, record_bytes};
use crate::limits::RANGES_MAX;
use crate::log_state::encode_cursor;
use crate::position::LogPosition;
use crate::segment::is_unlinked;

/// Page size of the page cache, in bytes.
const PAGE_BYTES: u64 = 4096;

/// How soon the owner should take [`WriteAheadLog::next_flush`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlushUrgency {
    Nothing,
    /// Only cursors and declarations: no caller waits, and a later flush carries more of them.
    Whenever,
    /// Events: a caller waits for the acknowledgement.
    Now,
}

/// Zeros from the end of a write to the end of its page. A partial write to an uncached page makes the
/// kernel read the page first: 115 µs instead of 80 for a flush of 8 or 64 records of 512 bytes.
fn padding(end: u64, capacity: u32) -> usize {
    let page_end = end.next_multiple_of(PAGE_BYTES).min(capacity.into());
    usize::try_from(page_end - end).expect("less than a page")
}

impl WriteAheadLog {
    /// Returns the next write; `None` while one is in flight, when nothing is pending, or when the log
    /// failed.
    pub fn next_flush(&mut self) -> Option<Flush> {
        if self.in_flight.is_some() || self.poison.is_some() {
            return None;
        }
        if let Some(flush) = self.next_state_flush() {
            return Some(flush);
        }
        if self.staged.len() == 1 {
            self.stage_changes();
        }
        let last = self.staged.len() == 1;
        let front = self.staged.front_mut()?;
        if front.bytes.is_empty() {
            return None;
        }
        let refill = if last { std::mem::take(&mut self.idle_buffer) } else { Vec::new() };
        let mut bytes = std::mem::replace(&mut front.bytes, refill);
        let (base, offset, file) = (front.base, front.offset, Arc::clone(&front.file));
        let length = bytes.len();
        front.offset += length as u64;
        bytes.resize(length + padding(front.offset, front.capacity), 0);
        if last {
            self.events_staged = false;
        } else {
            self.staged.pop_front();
        }
        let end = LogPosition::new(base + offset + length as u64);
        self.in_flight = Some(InFlightFlush { base, offset, length, end, is_state: false });
        Some(Flush { file, offset, bytes: Bytes::from(bytes), end, _lock: Arc::clone(&self.lock) })
    }

    /// Reports the result of a write. A failure poisons the log: the contents of the disk are unknown, so
    /// nothing from this flush on is ever acknowledged. Reopen the log to recover.
    pub fn flush_done(&mut self, flush: Flush, result: io::Result<()>) {
        let out = self.in_flight.take().expect("the owner reports each flush once");
        assert!(out.offset == flush.offset, "the flush in flight");
        if let Err(error) = result {
            let Flush { offset, bytes, .. } = flush;
            let bytes = bytes.len();
            let what = if out.is_state { "the segment state for segment" } else { "segment" };
            let reason = format!("flush of {bytes} bytes at {offset} of {what} {}: {error}", out.base);
            self.poison = Some(reason.into());
            return;
        }
        // Data in a file that can never be opened again must not be acknowledged.
        if is_unlinked(&flush.file) {
            if out.is_state {
                if let Err(why) = self.replace_state_file(out) {
                    self.poison.get_or_insert(why.to_string().into());
                }
                return;
            }
            let reason = format!("the segment {} was removed from outside while it was written to", out.base);
            self.poison.get_or_insert(reason.into());
            return;
        }
        if out.is_state {
            return self.confirm(out.length, out.end);
        }
        self.flushes += 1;
        self.flushed_bytes += out.length as u64;
        if self.idle_buffer.capacity() == 0 {
            let mut buffer = Vec::from(flush.bytes); // no copy when the owner kept no clone
            buffer.clear();
            self.idle_buffer = buffer;
        }
        if let Some(out) = self.name_first(out) {
            self.confirm(out.length, out.end);
        }
    }

    /// Whether segment data that is on the disk waits only for its segment to be named: take and write
    /// [`WriteAheadLog::next_flush`] at once.
    #[must_use]
    pub fn is_naming_due(&self) -> bool {
        self.poison.is_none() && self.segment_state.as_ref().is_some_and(SegmentStateWriter::is_awaited)
    }

    /// Whether data waits for a flush, and how urgent it is.
    #[must_use]
    pub fn urgency(&self) -> FlushUrgency {
        let is_naming = self.segment_state.as_ref().is_some_and(SegmentStateWriter::is_due);
        let tail_empty = self.staged.iter().all(|staged| staged.bytes.is_empty());
        if self.poison.is_some() {
            FlushUrgency::Nothing
        } else if self.events_staged || self.staged.len() > 1 || self.is_naming_due() {
            FlushUrgency::Now
        } else if !self.ledger.changed.is_empty() || !self.forgotten.is_empty() || !tail_empty || is_naming {
            FlushUrgency::Whenever
        } else {
            FlushUrgency::Nothing
        }
    }

    /// Flushes everything and waits for it: for tools and tests. A failure poisons the log and is returned.
    pub fn flush_blocking(&mut self) -> io::Result<()> {
        while let Some(flush) = self.next_flush() {
            let written = flush.file.write_all_at(&flush.bytes, flush.offset);
            let result = written.and_then(|()| flush.file.sync_data());
            self.flush_done(flush, result);
        }
        match &self.poison {
            Some(reason) => Err(io::Error::other(reason.to_string())),
            None => Ok(()),
        }
    }

    /// Bytes that are appended and not yet durable.
    #[must_use]
    pub const fn staged_bytes(&self) -> usize {
        self.staged_bytes
    }

    /// Why the log rejects appends, if it does.
    #[must_use]
    pub fn poison(&self) -> Option<&str> {
        self.poison.as_deref()
    }

    /// Encodes changed cursors and deleted names as records. Those that do not fit stay marked as changed
    /// and are retried with the next flush; a roll-over puts all of them into its snapshot.
    fn stage_changes(&mut self) {
        while let Some((kind, stream, name)) = self.forgotten.pop() {
            if self.reclaim_for(record_bytes(name.len()), RollPurpose::Control).is_err() {
                self.forgotten.push((kind, stream, name));
                return;
            }
            self.stage(kind, stream, 0, 0, &[name.as_bytes()]);
        }
        // A roll-over during this loop puts all remaining changes into its snapshot and empties the list.
        while let Some((stream, subscriber)) = self.ledger.changed.last().cloned() {
            let known = self.ledger.streams.get(&stream);
            let Some(kept) = known.and_then(|known| known.cursors.get(&subscriber)) else {
                self.ledger.changed.pop();
                continue;
            };
            let payload = encode_cursor(&subscriber, &kept.mark, RANGES_MAX);
            let mark = kept.mark.cut(RANGES_MAX);
            if self.reclaim_for(record_bytes(payload.len()), RollPurpose::Control).is_err() {
                return;
            }
            if self.ledger.changed.pop().is_none() {
                return;
            }
            self.stage(RecordKind::Cursor, stream, 0, 0, &[&payload]);
            let at = self.visible;
            self.ledger.staged(stream, &subscriber);
            self.marks_in_flight.push_back(InFlightCursor { at, stream, subscriber, mark });
        }
    }

    pub(super) fn settle_marks(&mut self) {
        while self.marks_in_flight.front().is_some_and(|mark| mark.at <= self.durable) {
            let Some(InFlightCursor { stream, subscriber, mark, .. }) = self.marks_in_flight.pop_front() else {
                return;
            };
            let known = self.ledger.streams.get_mut(&stream);
            if let Some(kept) = known.and_then(|known| known.cursors.get_mut(&subscriber)) {
                kept.durable = Some(mark);
            }
        }
    }
}
