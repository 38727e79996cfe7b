//! Inspects a folder without opening the log: it locks, syncs and writes nothing, so a log in use is not
//! disturbed.
//!
//! A log in use changes while it is read. Apparent damage is reported only when the segments of the folder
//! were the same before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::broken_segment::BrokenSegment;
use crate::codec::RecordKind;
use crate::cursor::Cursor;
use crate::error::Error;
use crate::header::{FORMAT, HeaderState, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::log_gap::{GapCause, LogGap};
use crate::log_state::LogState;
use crate::position::LogPosition;
use crate::recovery::{apply, segment_files};
use crate::scan::{ScanResult, position_of, record, scan};
use crate::segment::{file_number, path_of, read_up_to};
use crate::segment_state::{self, SegmentState};
use crate::unformatted::lost_header;

/// Attempts to read a folder that keeps changing, before the findings are reported as they are.
const ATTEMPTS_MAX: usize = 3;

/// One record, as [`dump`] shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InspectedRecord<'a> {
    /// For a compacted event: its original position.
    pub position: LogPosition,
    pub file: &'a Path,
    pub offset: u32,
    /// `None` for records without a stream.
    pub stream: Option<&'a str>,
    pub at_ms: u64,
    /// `event`, `moved` (an event), or the name of a control record.
    pub kind: &'static str,
    /// The payload of an event or of a control record.
    pub payload: &'a [u8],
}

/// Contents of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogInspection {
    pub segments: usize,
    /// Files that are preallocated or begun and contain no records.
    pub spares: usize,
    /// Size of all segment files.
    pub bytes: u64,
    /// Event records in the files, including dead ones.
    pub records: u64,
    /// Remains of a flush that never returned or is in flight: no damage.
    pub torn_bytes: u64,
    /// Start of the oldest segment, and end of the last record.
    pub first: LogPosition,
    pub end: LogPosition,
    pub streams: BTreeMap<Box<str>, StreamInspection>,
    /// Acknowledged bytes that are lost.
    pub gaps: Vec<LogGap>,
    /// Segments whose file is shorter than it was created.
    pub cut: Vec<BrokenSegment>,
    /// Segments that an earlier recovery could not read and set aside.
    pub set_aside: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamInspection {
    /// Events that are readable, needed or not.
    pub events: u64,
    /// By subscriber, in the order of their names.
    pub cursors: Vec<CursorInspection>,
}

/// The stored progress of a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorInspection {
    pub subscriber: Arc<str>,
    pub mark: Cursor,
    /// Events at or after its low mark.
    pub ahead: u64,
}

impl StreamInspection {
    /// The cursor of the subscriber, if it has one.
    #[must_use]
    pub fn mark(&self, subscriber: &str) -> Option<&Cursor> {
        let at = self.cursors.binary_search_by(|one| (*one.subscriber).cmp(subscriber)).ok()?;
        Some(&self.cursors[at].mark)
    }
}

/// A segment file that was read.
struct InspectedSegment {
    header: SegmentHeader,
    path: PathBuf,
}

/// Whether this folder contains the files of a log.
#[must_use]
pub fn is_log(folder: &Path) -> bool {
    let has_files = segment_files(folder).is_ok_and(|files| !files.is_empty());
    has_files || segment_state::read(folder).is_ok_and(|state| state.is_some())
}

/// Reads everything and verifies every checksum. Calls `progress` with bytes done and bytes total.
pub fn inspect(folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<LogInspection, Error> {
    let mut attempt = 1;
    loop {
        let before = identity(folder)?;
        let found = walk(folder, progress, &mut |_| Ok(()))?;
        if found.gaps.is_empty() || attempt == ATTEMPTS_MAX || identity(folder)? == before {
            return Ok(found);
        }
        attempt += 1; // the log is in use and has changed: a segment may have been deleted during the read
    }
}

/// Shows every record in the order of the file. `show` can stop it with an error.
pub fn dump(
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
    show: &mut dyn FnMut(&InspectedRecord<'_>) -> io::Result<()>,
) -> Result<LogInspection, Error> {
    walk(folder, progress, show)
}

/// Identifies the current segments: names and headers.
fn identity(folder: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, Error> {
    let mut found = Vec::new();
    for path in segment_files(folder)? {
        let mut header_bytes = vec![0; SEGMENT_HEADER_BYTES];
        match File::open(&path).and_then(|file| read_up_to(&file, &mut header_bytes)) {
            Ok(_) => found.push((path, header_bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(path, "read a segment's header")(error)),
        }
    }
    Ok(found)
}

fn walk(
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
    show: &mut dyn FnMut(&InspectedRecord<'_>) -> io::Result<()>,
) -> Result<LogInspection, Error> {
    let mut found = LogInspection { set_aside: set_aside(folder)?, ..LogInspection::default() };
    // Before the segments: a segment that is named now has its header already.
    let named = segment_state::read(folder)?;
    let durable_before = named.map_or(0, |named| named.base);
    let (pieces, mut unformatted) = pieces(folder, &mut found)?;
    let all: u64 = pieces.iter().map(|piece| u64::from(piece.header.capacity)).sum();
    let (mut ledger, mut expected) = (LogState::default(), BTreeSet::new());
    let mut names: BTreeMap<u32, Box<str>> = BTreeMap::new();
    let (mut present, mut done, mut next, mut buffer) = (BTreeSet::new(), 0, 0, Vec::new());
    for (nth, piece) in pieces.iter().enumerate() {
        let Some((header, bytes)) = read_piece(piece, &mut buffer)? else { continue };
        if bytes < header.capacity as usize {
            found.cut.push(BrokenSegment::cut(&piece.path, &header, bytes as u64));
        }
        let is_last = nth + 1 == pieces.len();
        let read = scan(&buffer, &header, !is_last || header.base < durable_before);
        done += u64::from(header.capacity);
        progress(done, all);
        if read.records.is_empty() && is_last && header.base >= durable_before {
            found.spares += 1;
            unformatted.push(piece.path.clone());
            continue;
        }
        count(piece, &header, &read, &mut found);
        present.insert(header.base);
        next = header.base + u64::from(header.capacity);
        expected.insert(header.base);
        apply(&buffer, &header, &read, &mut ledger, &mut expected);
        show_all(piece, &buffer, &read, &mut names, &mut found.records, show)
            .map_err(Error::io(&piece.path, "show a record"))?;
    }
    if let Some(named) = named.filter(|named| present.last().is_none_or(|last| *last < named.base)) {
        let from = if present.is_empty() { named.lowest } else { next };
        report_lost_segment(folder, named, from, &mut unformatted, &mut found);
    }
    tell_lost_headers(&unformatted, &expected, &present, next, &mut found)?;
    for base in expected.difference(&present) {
        let next = present.range(base..).next().copied().unwrap_or(*base);
        found.gaps.push(LogGap::missing(*base, next));
    }
    for base in present.difference(&expected) {
        // dropped, but its file is not deleted yet
        ledger.streams.values_mut().for_each(|stream| stream.forget_segment(*base));
    }
    found.streams = streams(&mut ledger);
    Ok(found)
}

/// Reports the segment that the segment state names and no file has, as recovery does.
fn report_lost_segment(
    folder: &Path,
    named: SegmentState,
    from: u64,
    unformatted: &mut Vec<PathBuf>,
    found: &mut LogInspection,
) {
    let remains = unformatted.extract_if(.., |path| file_number(path) == Some(named.number)).next();
    let cause = if remains.is_some() { GapCause::NoHeader } else { GapCause::Missing };
    found.spares -= usize::from(remains.is_some());
    let file = remains.unwrap_or_else(|| path_of(folder, named.number));
    let (from, to) = (LogPosition::new(from), LogPosition::new(named.limit()));
    found.gaps.push(LogGap { file: Some(file), from, to, cause });
}

/// Finds files that look unused and contain the records of a segment that lost its header: a missing one,
/// or the next one.
fn tell_lost_headers(
    unformatted: &[PathBuf],
    expected: &BTreeSet<u64>,
    present: &BTreeSet<u64>,
    next: u64,
    found: &mut LogInspection,
) -> Result<(), Error> {
    let bases: Vec<u64> = expected.difference(present).copied().chain([next]).collect();
    for path in unformatted {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io(path, "read a spare")(error)),
        };
        if let Some(base) = lost_header(&bytes, &bases) {
            let (from, to) = (LogPosition::new(base), LogPosition::new(base.saturating_add(bytes.len() as u64)));
            found.spares -= 1;
            found.gaps.push(LogGap { file: Some(path.clone()), from, to, cause: GapCause::NoHeader });
        }
    }
    Ok(())
}

/// Segments of the folder by base, and files without a header; rejects other files, as recovery does.
fn pieces(folder: &Path, found: &mut LogInspection) -> Result<(Vec<InspectedSegment>, Vec<PathBuf>), Error> {
    let (mut pieces, mut unformatted) = (Vec::new(), Vec::new());
    for (path, header_bytes) in identity(folder)? {
        match SegmentHeader::decode(&header_bytes) {
            HeaderState::Good(header) => {
                found.bytes += u64::from(header.capacity);
                pieces.push(InspectedSegment { header, path });
            }
            HeaderState::Foreign(found) => return Err(Error::Foreign { file: path, found }),
            HeaderState::OtherFormat(found) => {
                return Err(Error::Format { file: path, found, readable: FORMAT });
            }
            HeaderState::Blank | HeaderState::Torn => {
                found.spares += 1;
                unformatted.push(path);
            }
        }
    }
    pieces.sort_by_key(|piece| piece.header.base);
    for pair in pieces.windows(2) {
        if pair[0].header.base == pair[1].header.base {
            let (first, second) = (pair[0].path.clone(), pair[1].path.clone());
            return Err(Error::Twice { first, second, base: pair[0].header.base });
        }
    }
    Ok((pieces, unformatted))
}

fn set_aside(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).map_err(Error::io(folder, "list the log's folder"))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<_> = paths.filter(|path| path.extension().is_some_and(|ext| ext == "damaged")).collect();
    found.sort();
    Ok(found)
}

/// The bytes of a segment, and the length of its file; `None` when it was deleted or replaced since it was
/// listed.
fn read_piece(piece: &InspectedSegment, buffer: &mut Vec<u8>) -> Result<Option<(SegmentHeader, usize)>, Error> {
    buffer.clear();
    buffer.resize(piece.header.capacity as usize, 0);
    let bytes = match File::open(&piece.path).and_then(|file| read_up_to(&file, buffer)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(&piece.path, "read a segment (see its disk's log)")(error)),
    };
    Ok((SegmentHeader::decode(buffer) == HeaderState::Good(piece.header)).then_some((piece.header, bytes)))
}

fn count(piece: &InspectedSegment, header: &SegmentHeader, read: &ScanResult, found: &mut LogInspection) {
    if found.segments == 0 {
        found.first = LogPosition::new(header.base);
    }
    found.segments += 1;
    found.end = position_of(header, read.end);
    found.torn_bytes += read.torn.as_ref().map_or(0, |torn| torn.len() as u64);
    for gap in &read.gaps {
        let (from, to) = (position_of(header, gap.start), position_of(header, gap.end));
        found.gaps.push(LogGap { file: Some(piece.path.clone()), from, to, cause: GapCause::Damage });
    }
}

fn show_all(
    piece: &InspectedSegment,
    bytes: &[u8],
    read: &ScanResult,
    names: &mut BTreeMap<u32, Box<str>>,
    events: &mut u64,
    show: &mut dyn FnMut(&InspectedRecord<'_>) -> io::Result<()>,
) -> io::Result<()> {
    for offset in &read.records {
        let Some(found) = record(bytes, *offset) else { continue };
        let (kind, stream) = (found.head.kind, found.head.stream);
        if kind == RecordKind::Stream {
            names.insert(stream, String::from_utf8_lossy(found.payload).into());
        }
        let event = found.event();
        *events += u64::from(event.is_some());
        let (position, skip) = event.unwrap_or((position_of(&piece.header, *offset as usize), 0));
        show(&InspectedRecord {
            position,
            file: &piece.path,
            offset: *offset,
            stream: names.get(&stream).map(|name| &**name),
            at_ms: found.head.at_ms,
            kind: kind.name(),
            payload: &found.payload[skip..],
        })?;
    }
    Ok(())
}

fn streams(ledger: &mut LogState) -> BTreeMap<Box<str>, StreamInspection> {
    let streams = ledger.streams.values_mut().map(|stream| {
        stream.settle_copies();
        let cursors = stream.cursors.iter().map(|(subscriber, kept)| {
            let ahead = stream.index.count_from(kept.mark.low());
            CursorInspection { subscriber: subscriber.clone(), mark: kept.mark.clone(), ahead }
        });
        let cursors = cursors.collect();
        let events = stream.index.count_from(LogPosition::ORIGIN);
        (stream.name.clone(), StreamInspection { events, cursors })
    });
    streams.collect()
}
