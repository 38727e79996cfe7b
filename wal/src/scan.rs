//! Scans the bytes of one segment: a pure function, the same for recovery and for `verify`.

use std::ops::Range;

use crate::codec::{ALIGN, DecodedRecord, HEADER_BYTES, RecordKind, decode, peek, record_bytes, u64_at};
use crate::header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::position::LogPosition;

/// A page of zeros: the search for records skips such pages whole.
const ZEROS: [u8; 4096] = [0; 4096];

/// The result. Offsets are inside the segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanResult {
    /// Offsets of the valid records, in order.
    pub(crate) records: Vec<u32>,
    /// End of the last record: the position of the next one.
    pub(crate) end: usize,
    /// No more records may be appended here.
    pub(crate) sealed: bool,
    /// Acknowledged bytes that are lost: damage, not a crash.
    pub(crate) gaps: Vec<Range<usize>>,
    /// Remains of a torn flush; they must be wiped before the segment is written again, or a piece of them
    /// could later follow a new record as if it belonged there.
    pub(crate) torn: Option<Range<usize>>,
    /// Complete records that were dropped because their batch was incomplete.
    pub(crate) batch_pieces: usize,
}

/// Scans a segment. `continued`: a later segment exists, which is created only after this one is durable up
/// to its seal, so anything missing here is a gap.
pub(crate) fn scan(segment: &[u8], header: &SegmentHeader, continued: bool) -> ScanResult {
    let mut scan = ScanResult { end: SEGMENT_HEADER_BYTES, ..ScanResult::default() };
    loop {
        let bad = scan.follow(segment, header);
        if scan.sealed {
            return scan;
        }
        match search(segment, header, scan.end, bad, continued) {
            ScanSearch::Resume(at) => {
                scan.gaps.push(scan.end..at);
                scan.end = at;
            }
            ScanSearch::End { last_trace } => {
                if continued {
                    scan.gaps.push(scan.end..header.capacity as usize);
                    scan.sealed = true;
                } else if let Some(last) = last_trace {
                    scan.torn = Some(scan.end..last);
                }
                return scan;
            }
        }
    }
}

impl ScanResult {
    /// Follows the records from `end` on; returns where it stopped. A batch is valid when its last record
    /// is present.
    fn follow(&mut self, segment: &[u8], header: &SegmentHeader) -> usize {
        let mut at = self.end;
        let mut batch: Vec<u32> = Vec::new();
        let mut rest: Option<u32> = None;
        while let Some(found) = decode(segment, at, header.salt, position_of(header, at)) {
            let torn_batch = rest.is_some_and(|rest| found.head.batch_rest != rest);
            let Ok(offset) = u32::try_from(at) else { break };
            if torn_batch {
                break;
            }
            batch.push(offset);
            at += record_bytes(found.payload.len());
            rest = found.head.batch_rest.checked_sub(1);
            if rest.is_none() {
                self.records.append(&mut batch);
                self.end = at;
            }
            if found.head.kind == RecordKind::Seal {
                self.sealed = true;
                break;
            }
        }
        self.batch_pieces += batch.len();
        at
    }
}

enum ScanSearch {
    /// The lost bytes had been durable: continue with the record here.
    Resume(usize),
    /// Nothing durable follows. The last possible record ends here.
    End { last_trace: Option<usize> },
}

/// Searches behind a bad position. A torn flush leaves nothing durable behind it; a record that was
/// appended when a sync had confirmed bytes beyond `end` proves that those are lost.
fn search(segment: &[u8], header: &SegmentHeader, end: usize, bad: usize, continued: bool) -> ScanSearch {
    let mut first = None;
    let mut last_trace = (bad > end).then_some(bad);
    let mut at = bad;
    while at + HEADER_BYTES <= segment.len() {
        // A record's position is its second word, and never zero: only a record that begins in the last
        // word of the page can have it elsewhere.
        if at.is_multiple_of(ZEROS.len()) && segment[at..].starts_with(&ZEROS) {
            at += ZEROS.len() - ALIGN;
            continue;
        }
        if u64_at(segment, at + 8) == Some(position_of(header, at).get()) {
            last_trace = Some(at + HEADER_BYTES);
            if let Some(found) = decode(segment, at, header.salt, position_of(header, at)) {
                let resume = *first.get_or_insert(at);
                let durable = found.head.position.get().saturating_sub(found.head.unsynced.into());
                if continued || durable > position_of(header, end).get() {
                    return ScanSearch::Resume(resume);
                }
            }
        }
        at += ALIGN;
    }
    ScanSearch::End { last_trace }
}

/// A record accepted by the scan.
pub(crate) fn record<'a>(segment: &'a [u8], offset: u32) -> Option<DecodedRecord<'a>> {
    peek(segment, offset as usize)
}

pub(crate) fn position_of(header: &SegmentHeader, offset: usize) -> LogPosition {
    LogPosition::new(header.base.saturating_add(offset as u64))
}
