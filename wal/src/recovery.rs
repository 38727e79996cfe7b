//! Opens a folder: recovers what the files contain and reports what is missing.
//!
//! Every case has its number in FORMAT.md's table of crash cases, and its own branch here or in
//! [`crate::scan`].

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::broken_segment::BrokenSegment;
use crate::codec::RecordKind;
use crate::error::Error;
use crate::header::{HeaderState, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::limits::SEGMENT_BYTES_MAX;
use crate::log_gap::{GapCause, LogGap};
use crate::log_state::{LogState, decode_bases, decode_snapshot};
use crate::parallel_scan::{SegmentCandidate, SegmentScan, map_whole, read_in_order};
use crate::position::LogPosition;
use crate::scan::{ScanResult, position_of, record};
use crate::segment::{
    Segment, SpareSegment, file_number, fill, forget_pages, path_of, read_up_to, sync_folder, wipe, zero,
};
use crate::segment_state::{self, SegmentState};
use crate::unformatted::lost_header;

const LOCK_FILE: &str = "LOCK";

/// The findings of opening a folder. Everything but `gaps` is normal after a crash.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Recovery {
    pub segments: usize,
    /// Number of recovered events.
    pub events: u64,
    /// Bytes of an unfinished flush that were wiped; they were never acknowledged.
    pub torn_bytes: u64,
    /// Complete records that were dropped with the rest of their batch.
    pub torn_batch_records: usize,
    /// Files whose deletion a crash interrupted.
    pub leftovers: usize,
    /// Acknowledged bytes that are lost: the disk reported a flush that it did not write, or lost data. The
    /// log continues without them; the operator must be informed.
    pub gaps: Vec<LogGap>,
    /// Segments whose file was shorter than it was created: the bytes behind its end are lost, and for the
    /// newest segment it is unknown whether there were any records.
    pub cut: Vec<BrokenSegment>,
}

/// The contents of a folder, ready to become a log.
pub(crate) struct RecoveredLog {
    pub(crate) lock: File,
    /// The open segment state and its sequence number; `None` when the disk has no space for it.
    pub(crate) state: Option<(File, u64)>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) ledger: LogState,
    /// Empty files that can be used.
    pub(crate) spares: Vec<SpareSegment>,
    /// The number of the next file.
    pub(crate) number: u64,
    /// Where the last segment continues; `None` when a new one must be created.
    pub(crate) end: Option<LogPosition>,
    /// Everything recovered is below this position.
    pub(crate) limit: LogPosition,
    pub(crate) report: Recovery,
}

pub(crate) fn recover(folder: &Path) -> Result<RecoveredLog, Error> {
    let lock = lock(folder)?;
    let named = segment_state::read(folder)?;
    let mut found = RecoveredLog {
        lock,
        state: segment_state::open(folder)?.map(|file| (file, named.map_or(0, |state| state.sequence))),
        segments: Vec::new(),
        ledger: LogState::default(),
        spares: Vec::new(),
        number: 0,
        end: None,
        limit: LogPosition::ORIGIN,
        report: Recovery::default(),
    };
    let (mut candidates, mut torn) = (Vec::new(), Vec::new());
    for path in segment_files(folder)? {
        found.number = found.number.max(file_number(&path).unwrap_or(0));
        if let Some(candidate) = look(&path, &mut found.spares, &mut torn)? {
            candidates.push(candidate);
        }
    }
    found.number += 1;
    candidates.sort_by_key(|candidate| candidate.header.base);
    for pair in candidates.windows(2) {
        if pair[0].header.base == pair[1].header.base {
            let (first, second) = (pair[0].path.clone(), pair[1].path.clone());
            return Err(Error::Twice { first, second, base: pair[0].header.base });
        }
    }
    reject_last(&mut candidates, &mut found.spares, &mut torn)?;
    replay(candidates, named, &mut found, &mut torn)?;
    if let Some(named) = named {
        report_lost_segment(folder, named, &mut found, &mut torn)?;
    }
    classify_unformatted(torn, &mut found)?;
    sync_folder(folder).map_err(Error::io(folder, "sync the log's folder"))?;
    Ok(found)
}

/// After a failed sync the page cache looks clean but the disk does not have the data. Only the last
/// segment was being written: drop its pages from the cache and read what the disk has.
fn reject_last(
    candidates: &mut Vec<SegmentCandidate>,
    spares: &mut Vec<SpareSegment>,
    torn: &mut Vec<SpareSegment>,
) -> Result<(), Error> {
    while let Some(SegmentCandidate { header, file, path }) = candidates.pop() {
        forget_pages(&file).map_err(Error::io(&path, "forget a segment's cached pages"))?;
        drop(file);
        if let Some(again) = look(&path, spares, torn)?
            && again.header == header
        {
            candidates.push(again);
            break;
        }
    }
    Ok(())
}

/// Case 18: the segment state names a segment, so its first flush was durable, and no file has it. The log
/// continues after it, because its positions were acknowledged and must not repeat.
fn report_lost_segment(
    folder: &Path,
    named: SegmentState,
    found: &mut RecoveredLog,
    torn: &mut Vec<SpareSegment>,
) -> Result<(), Error> {
    let tail = found.segments.last();
    if tail.is_some_and(|tail| tail.base() >= named.base) {
        return Ok(());
    }
    let from = LogPosition::new(tail.map_or(named.lowest, Segment::limit));
    let to = LogPosition::new(named.limit());
    let is_named = |spare: &SpareSegment| file_number(&spare.path) == Some(named.number);
    let mut remains =
        found.spares.extract_if(.., |spare| is_named(spare)).chain(torn.extract_if(.., |spare| is_named(spare)));
    let (file, cause) = match remains.next() {
        Some(spare) => (set_aside(&spare)?, GapCause::NoHeader),
        None => (path_of(folder, named.number), GapCause::Missing),
    };
    drop(remains);
    found.report.gaps.push(LogGap { file: Some(file), from, to, cause });
    (found.limit, found.end) = (to, None);
    Ok(())
}

/// Handles files without a valid header: torn ones and those that look unused.
fn classify_unformatted(torn: Vec<SpareSegment>, found: &mut RecoveredLog) -> Result<(), Error> {
    // The bases of missing segments, and of the next one.
    let missed = found.report.gaps.iter().filter(|gap| gap.cause == GapCause::Missing).map(|gap| gap.from.get());
    let next = found.segments.last().map_or(0, Segment::limit);
    let bases: Vec<u64> = missed.chain([next]).collect();

    let blank = std::mem::take(&mut found.spares);
    let torn = torn.into_iter().map(|spare| (spare, true));
    for (spare, is_torn) in blank.into_iter().map(|spare| (spare, false)).chain(torn) {
        let length = length_of(&spare)?;
        let lost = find_lost(&spare, length, &bases)?;
        match lost {
            Some(base) => log_lost_header(spare, base, length, found)?,
            None if is_torn => judge_torn_header(spare, found)?,
            None => found.spares.push(spare),
        }
    }
    Ok(())
}

fn length_of(spare: &SpareSegment) -> Result<u32, Error> {
    let length = spare.file.metadata().map_err(Error::io(&spare.path, "look at a spare"))?.len();
    Ok(u32::try_from(length).map_or(SEGMENT_BYTES_MAX, |length| length.min(SEGMENT_BYTES_MAX)))
}

/// Reads through the map, so that zeros cost no copy; where a page cannot be loaded, reading tells why.
fn find_lost(spare: &SpareSegment, length: u32, bases: &[u64]) -> Result<Option<u64>, Error> {
    if let Some((map, bytes)) = map_whole(&spare.file, length) {
        let lost = lost_header(&bytes, bases);
        if !map.is_broken() {
            return Ok(lost);
        }
    }
    let mut bytes = vec![0; length as usize];
    let length = read_up_to(&spare.file, &mut bytes).map_err(Error::io(&spare.path, "read a spare"))?;
    Ok(lost_header(&bytes[..length], bases))
}

/// Case 17: the disk reported the first flush of this segment durable, and it was not.
fn log_lost_header(spare: SpareSegment, base: u64, length: u32, found: &mut RecoveredLog) -> Result<(), Error> {
    let aside = set_aside(&spare)?;
    let (from, to) = (LogPosition::new(base), LogPosition::new(base.saturating_add(length.into())));
    found.report.gaps.retain_mut(|gap| {
        let is_this = gap.cause == GapCause::Missing && gap.from == from;
        // case 18: the gap of the newest segment begins with the lost segments before it
        let has_newest = gap.file.is_some() && gap.to > to;
        if is_this && has_newest {
            gap.from = to;
        }
        !is_this || has_newest
    });
    found.report.gaps.push(LogGap { file: Some(aside), from, to, cause: GapCause::NoHeader });
    Ok(())
}

/// A segment's header is written with its first flush, so a torn one means that this flush never returned;
/// unless a segment is missing, which this may have been.
fn judge_torn_header(spare: SpareSegment, found: &mut RecoveredLog) -> Result<(), Error> {
    let missed = found.report.gaps.iter().any(|gap| gap.cause == GapCause::Missing);
    if !missed {
        // case 2: begun, never durable
        wipe(&spare.file).map_err(Error::io(&spare.path, "wipe a torn header"))?;
        found.spares.push(spare);
        return Ok(());
    }
    // case 9
    set_aside(&spare).map(drop)
}

/// Moves a file out of the way of the log, for inspection.
fn set_aside(spare: &SpareSegment) -> Result<PathBuf, Error> {
    let aside = spare.path.with_extension("damaged");
    fs::rename(&spare.path, &aside).map_err(Error::io(&spare.path, "set a damaged segment aside"))?;
    Ok(aside)
}

fn lock(folder: &Path) -> Result<File, Error> {
    create_folder(folder)?;
    let path = folder.join(LOCK_FILE);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(Error::io(&path, "open the lock file"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse { folder: folder.into() }),
        Err(errno) => Err(Error::Io { path, doing: "lock the log's folder", source: errno.into() }),
    }
}

/// The name of a new folder is durable when its parent folder is synced, and so on up.
fn create_folder(folder: &Path) -> Result<(), Error> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().unwrap_or(Path::new(""));
    create_folder(above)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::io(folder, "create the log's folder")(error));
        }
        _ => {}
    }
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    sync_folder(above).map_err(Error::io(above, "sync the folder above the log's"))
}

pub(crate) fn segment_files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(folder).map_err(Error::io(folder, "list the log's folder"))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io(folder, "list the log's folder"))?.path();
        if file_number(&path).is_some() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads the first bytes of a file: a segment, or a spare.
fn look(
    path: &Path,
    spares: &mut Vec<SpareSegment>,
    torn: &mut Vec<SpareSegment>,
) -> Result<Option<SegmentCandidate>, Error> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(Error::io(path, "open a segment"))?;
    // What an earlier process wrote and never synced is in the page cache, not on the disk.
    file.sync_data().map_err(Error::io(path, "sync a segment before reading it"))?;

    let mut header_bytes = [0; SEGMENT_HEADER_BYTES];
    let length = read_up_to(&file, &mut header_bytes).map_err(Error::io(path, "read a segment's header"))?;
    match SegmentHeader::decode(&header_bytes[..length]) {
        HeaderState::Good(header) => return Ok(Some(SegmentCandidate { header, file, path: path.into() })),
        HeaderState::Foreign(found) => return Err(Error::Foreign { file: path.into(), found }),
        HeaderState::OtherFormat(found) => {
            let readable = crate::header::FORMAT;
            return Err(Error::Format { file: path.into(), found, readable });
        }
        HeaderState::Blank => {} // case 1: prepared and never used, or preparation was interrupted
        HeaderState::Torn => {
            torn.push(SpareSegment { file, path: path.into() });
            return Ok(None);
        }
    }
    spares.push(SpareSegment { file, path: path.into() });
    Ok(None)
}

fn replay(
    candidates: Vec<SegmentCandidate>,
    named: Option<SegmentState>,
    found: &mut RecoveredLog,
    torn: &mut Vec<SpareSegment>,
) -> Result<(), Error> {
    // A segment is named only after all earlier ones are durable up to their seals.
    let durable_before = named.map_or(0, |named| named.base);
    let mut expected: BTreeSet<u64> = BTreeSet::new();
    let mut end = 0;
    let mut sealed = false;
    let mut left = candidates.len();
    read_in_order(candidates, durable_before, |reading| {
        left -= 1;
        let SegmentScan { header, scan, .. } = &reading;
        if scan.records.is_empty() && left == 0 && header.base >= durable_before {
            if named.is_some_and(|named| named.base == header.base) {
                // the first batch was durable, and it is gone: case 18
                torn.push(SpareSegment { file: reading.file, path: reading.path });
                return Ok(());
            }
            return set_unused(reading, found);
        }
        (end, sealed) = (reading.scan.end, reading.scan.sealed);
        take(reading, found, &mut expected)
    })?;
    settle(found, end, sealed, &expected)
}

/// Case 3: its header is present, its first batch is not: nothing in it was acknowledged.
fn set_unused(
    SegmentScan { file, path, scan, map, bytes, .. }: SegmentScan,
    found: &mut RecoveredLog,
) -> Result<(), Error> {
    drop((map, bytes)); // no reader may see the bytes that are about to change
    wipe(&file).map_err(Error::io(&path, "wipe a segment that was never begun"))?;
    found.report.torn_bytes += torn_bytes(&scan);
    found.spares.push(SpareSegment { file, path });
    Ok(())
}

/// Repairs what a crash left of a segment, and applies it.
fn take(reading: SegmentScan, found: &mut RecoveredLog, expected: &mut BTreeSet<u64>) -> Result<(), Error> {
    let SegmentScan { header, file, path, map, mut bytes, length, scan } = reading;
    bytes.truncate(scan.end); // the bytes after it may be about to change
    if length < header.capacity as usize {
        // case 4: a truncated file; reading its missing end through the map would be a SIGBUS
        let end = u32::try_from(length).unwrap_or(header.capacity);
        found.report.cut.push(BrokenSegment::cut(&path, &header, end.into()));
        fill(&file, end, header.capacity).map_err(Error::io(&path, "restore a segment's length"))?;
    }
    if let Some(torn) = &scan.torn {
        // case 5: a torn flush at the end
        let to = torn.end.min(header.capacity as usize);
        zero(&file, torn.start, to).map_err(Error::io(&path, "wipe a torn flush"))?;
    }
    for gap in &scan.gaps {
        // case 6: damage inside acknowledged data
        let (from, to) = (position_of(&header, gap.start), position_of(&header, gap.end));
        found.report.gaps.push(LogGap { file: Some(path.clone()), from, to, cause: GapCause::Damage });
    }
    found.report.torn_bytes += torn_bytes(&scan);
    found.report.torn_batch_records += scan.batch_pieces;
    expected.insert(header.base);
    apply(&bytes, &header, &scan, &mut found.ledger, expected);

    let spare = SpareSegment { file, path };
    let mut segment = match map {
        Some(map) => Segment::of(spare, header, map),
        None => {
            let name = spare.path.clone();
            Segment::new(spare, header).map_err(Error::io(name, "map a segment"))?
        }
    };
    (segment.begun, segment.used) = extent(&bytes, &scan);
    segment.map.release_pages(); // a log of any size takes no memory until it is read
    found.segments.push(segment);
    Ok(())
}

/// End of the snapshot of a segment, and end of its last record.
fn extent(bytes: &[u8], read: &ScanResult) -> (u32, u32) {
    let used = u32::try_from(read.end).unwrap_or(u32::MAX);
    let last = read.records.iter().position(|at| record(bytes, *at).is_some_and(|r| r.head.batch_rest == 0));
    let after = last.and_then(|last| read.records.get(last + 1).copied());
    (after.unwrap_or(used), used)
}

/// Applies the records of one segment; `expected` tracks the segments that should exist.
pub(crate) fn apply(
    bytes: &[u8],
    header: &SegmentHeader,
    read: &ScanResult,
    ledger: &mut LogState,
    expected: &mut BTreeSet<u64>,
) {
    let mut in_snapshot = false;
    for offset in &read.records {
        let Some(found) = record(bytes, *offset) else { continue };
        match found.head.kind {
            RecordKind::Snapshot => {
                if let Some((last_stream, bases)) = decode_snapshot(found.payload) {
                    ledger.begin_snapshot(last_stream);
                    in_snapshot = true;
                    expected.clear();
                    expected.extend(bases);
                    expected.insert(header.base);
                }
            }
            RecordKind::Drop => decode_bases(found.payload).iter().for_each(|base| {
                expected.remove(base);
            }),
            _ => ledger.replay(header.base, *offset, &found),
        }
        if in_snapshot && found.head.batch_rest == 0 {
            ledger.end_snapshot();
            in_snapshot = false;
        }
    }
}

/// Compares the existing segments with the expected ones, and finds where to continue.
fn settle(found: &mut RecoveredLog, end: usize, sealed: bool, expected: &BTreeSet<u64>) -> Result<(), Error> {
    let present: BTreeSet<u64> = found.segments.iter().map(Segment::base).collect();
    if let Some(tail) = found.segments.last() {
        found.limit = position_of(&tail.header, end);
        found.end = (!sealed).then_some(found.limit);
        if sealed {
            found.limit = LogPosition::new(tail.limit());
        }
    }
    for base in expected.difference(&present) {
        // case 8: a segment that was never dropped is missing
        let next = present.range(base..).next().copied().unwrap_or(*base);
        found.report.gaps.push(LogGap::missing(*base, next));
    }
    let (kept, left): (Vec<_>, Vec<_>) =
        found.segments.drain(..).partition(|segment| expected.contains(&segment.base()));
    found.segments = kept;
    for segment in left {
        // case 7: dropped, and a crash came before its file was gone
        for stream in found.ledger.streams.values_mut() {
            stream.forget_segment(segment.base());
        }
        fs::remove_file(&segment.path).map_err(Error::io(&segment.path, "remove a dropped segment"))?;
        found.report.leftovers += 1;
    }
    for stream in found.ledger.streams.values_mut() {
        for kept in stream.cursors.values_mut() {
            kept.mark.clamp(found.limit); // only a gap can leave a cursor beyond the end
        }
        stream.settle_copies();
        found.report.events += stream.index.count_from(LogPosition::ORIGIN);
    }
    found.report.segments = found.segments.len();
    Ok(())
}

fn torn_bytes(read: &ScanResult) -> u64 {
    read.torn.as_ref().map_or(0, |torn| torn.len() as u64)
}
