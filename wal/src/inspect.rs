//! Looking at a folder without opening the log: nothing is locked, synced or written, so a log that
//! is in use is not disturbed.
//!
//! A log that is in use changes while it is read. What looks like damage is believed only when the
//! folder's segments were the same before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bookmark::Bookmark;
use crate::broken::Broken;
use crate::codec::Kind;
use crate::error::Error;
use crate::header::{Door, FORMAT, Header, SEGMENT_HEADER_BYTES};
use crate::headless::lost_header;
use crate::ledger::Ledger;
use crate::position::Position;
use crate::recovery::{Hole, apply, read_up_to, segment_files};
use crate::scan::{Scan, place, record, scan};

/// How often a folder that changes is read again before its findings are told as they are.
const ATTEMPTS_MAX: usize = 3;

/// One record, as [`inspect`] shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Of a moved event: where it was appended.
    pub position: Position,
    pub file: &'a Path,
    pub offset: u32,
    /// `None` for records that belong to no stream.
    pub stream: Option<&'a str>,
    pub at_ms: u64,
    /// `event`, `moved` (an event), or the name of a control record.
    pub kind: &'static str,
    /// An event's own bytes, or a control record's.
    pub payload: &'a [u8],
}

/// What a folder holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspection {
    pub segments: usize,
    /// Prepared or begun, with nothing in them.
    pub spares: usize,
    /// Of all segment files.
    pub bytes: u64,
    /// Event records in the files, dead ones too.
    pub records: u64,
    /// Remains of a flush that never returned, or that is on its way: no damage.
    pub torn_bytes: u64,
    /// Where the oldest segment begins, and where the last record ends.
    pub first: Position,
    pub end: Position,
    pub streams: BTreeMap<Box<str>, StreamInspection>,
    /// Acknowledged bytes that are gone.
    pub holes: Vec<Hole>,
    /// Segments whose file is shorter than it was made.
    pub cut: Vec<Broken>,
    /// Segments that an earlier recovery could not read and set aside.
    pub set_aside: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamInspection {
    /// Events that are there, needed or not.
    pub events: u64,
    /// By subscriber, in the order of their names.
    pub bookmarks: Vec<BookmarkInspection>,
}

/// How far a subscriber has come, as far as it is written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BookmarkInspection {
    pub subscriber: Arc<str>,
    pub mark: Bookmark,
    /// Events at or after its low mark.
    pub ahead: u64,
}

impl StreamInspection {
    /// That subscriber's, if it has one.
    #[must_use]
    pub fn mark(&self, subscriber: &str) -> Option<&Bookmark> {
        let at = self.bookmarks.binary_search_by(|one| (*one.subscriber).cmp(subscriber)).ok()?;
        Some(&self.bookmarks[at].mark)
    }
}

/// A segment file that was read.
struct Piece {
    header: Header,
    path: PathBuf,
}

/// Whether this folder holds a log's files.
#[must_use]
pub fn is_log(folder: &Path) -> bool {
    segment_files(folder).is_ok_and(|files| !files.is_empty())
}

/// Reads everything and checks every checksum. `progress` hears of bytes done and bytes in all.
pub fn inspect(folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Inspection, Error> {
    let mut attempt = 1;
    loop {
        let before = identity(folder)?;
        let found = walk(folder, progress, &mut |_| Ok(()))?;
        if found.holes.is_empty() || attempt == ATTEMPTS_MAX || identity(folder)? == before {
            return Ok(found);
        }
        attempt += 1; // it was in use and has changed: a segment may have gone while we read
    }
}

/// Shows every record in the order in which they lie. `show` may end it with an error.
pub fn dump(
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
    show: &mut dyn FnMut(&Entry<'_>) -> io::Result<()>,
) -> Result<Inspection, Error> {
    walk(folder, progress, show)
}

/// Which segments there are: names and headers.
fn identity(folder: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, Error> {
    let mut found = Vec::new();
    for path in segment_files(folder)? {
        let mut door = vec![0; SEGMENT_HEADER_BYTES];
        match File::open(&path).and_then(|file| read_up_to(&file, &mut door)) {
            Ok(_) => found.push((path, door)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(path, "read a segment's header")(error)),
        }
    }
    Ok(found)
}

fn walk(
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
    show: &mut dyn FnMut(&Entry<'_>) -> io::Result<()>,
) -> Result<Inspection, Error> {
    let mut found = Inspection { set_aside: set_aside(folder)?, ..Inspection::default() };
    let (pieces, headless) = pieces(folder, &mut found)?;
    let all: u64 = pieces.iter().map(|piece| u64::from(piece.header.capacity)).sum();
    let (mut ledger, mut expected) = (Ledger::default(), BTreeSet::new());
    let mut names: BTreeMap<u32, Box<str>> = BTreeMap::new();
    let (mut present, mut done, mut next, mut buffer) = (BTreeSet::new(), 0, 0, Vec::new());
    for (nth, piece) in pieces.iter().enumerate() {
        let Some((header, bytes)) = read_piece(piece, &mut buffer)? else { continue };
        if bytes < header.capacity as usize {
            found.cut.push(Broken::cut(&piece.path, &header, bytes as u64));
        }
        let is_last = nth + 1 == pieces.len();
        let read = scan(&buffer, &header, !is_last);
        done += u64::from(header.capacity);
        progress(done, all);
        if read.records.is_empty() && is_last {
            found.spares += 1;
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
    tell_lost_headers(&headless, &expected, &present, next, &mut found)?;
    for base in expected.difference(&present) {
        let next = present.range(base..).next().copied().unwrap_or(*base);
        found.holes.push(Hole { file: None, from: Position::new(*base), to: Position::new(next) });
    }
    for base in present.difference(&expected) {
        ledger.streams.values_mut().for_each(|stream| stream.forget_segment(*base)); // dropped, not yet gone
    }
    found.streams = streams(&mut ledger);
    Ok(found)
}

/// Files that look unused and hold what a segment lost with its header, which was missed or came next.
fn tell_lost_headers(
    headless: &[PathBuf],
    expected: &BTreeSet<u64>,
    present: &BTreeSet<u64>,
    next: u64,
    found: &mut Inspection,
) -> Result<(), Error> {
    let bases: Vec<u64> = expected.difference(present).copied().chain([next]).collect();
    for path in headless {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io(path, "read a spare")(error)),
        };
        if let Some(base) = lost_header(&bytes, &bases) {
            let (from, to) = (Position::new(base), Position::new(base.saturating_add(bytes.len() as u64)));
            found.spares -= 1;
            found.holes.push(Hole { file: Some(path.clone()), from, to });
        }
    }
    Ok(())
}

/// The folder's segments by base, and files without a header; others are refused, as recovery would.
fn pieces(folder: &Path, found: &mut Inspection) -> Result<(Vec<Piece>, Vec<PathBuf>), Error> {
    let (mut pieces, mut headless) = (Vec::new(), Vec::new());
    for (path, door) in identity(folder)? {
        match Header::decode(&door) {
            Door::Good(header) => {
                found.bytes += u64::from(header.capacity);
                pieces.push(Piece { header, path });
            }
            Door::Foreign(found) => return Err(Error::Foreign { file: path, found }),
            Door::OtherFormat(found) => {
                return Err(Error::Format { file: path, found, readable: FORMAT });
            }
            Door::Blank | Door::Torn => {
                found.spares += 1;
                headless.push(path);
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
    Ok((pieces, headless))
}

fn set_aside(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).map_err(Error::io(folder, "list the log's folder"))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|ext| ext == "damaged")).collect();
    found.sort();
    Ok(found)
}

/// A segment's bytes, and how many its file has; `None` when it has gone or become another one since it was listed.
fn read_piece(piece: &Piece, buffer: &mut Vec<u8>) -> Result<Option<(Header, usize)>, Error> {
    buffer.clear();
    buffer.resize(piece.header.capacity as usize, 0);
    let bytes = match File::open(&piece.path).and_then(|file| read_up_to(&file, buffer)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(&piece.path, "read a segment (see its disk's log)")(error)),
    };
    Ok((Header::decode(buffer) == Door::Good(piece.header)).then_some((piece.header, bytes)))
}

fn count(piece: &Piece, header: &Header, read: &Scan, found: &mut Inspection) {
    if found.segments == 0 {
        found.first = Position::new(header.base);
    }
    found.segments += 1;
    found.end = place(header, read.end);
    found.torn_bytes += read.torn.as_ref().map_or(0, |torn| torn.len() as u64);
    for hole in &read.holes {
        let (from, to) = (place(header, hole.start), place(header, hole.end));
        found.holes.push(Hole { file: Some(piece.path.clone()), from, to });
    }
}

fn show_all(
    piece: &Piece,
    bytes: &[u8],
    read: &Scan,
    names: &mut BTreeMap<u32, Box<str>>,
    events: &mut u64,
    show: &mut dyn FnMut(&Entry<'_>) -> io::Result<()>,
) -> io::Result<()> {
    for offset in &read.records {
        let Some(found) = record(bytes, *offset) else { continue };
        let (kind, stream) = (found.head.kind, found.head.stream);
        if kind == Kind::Stream {
            names.insert(stream, String::from_utf8_lossy(found.payload).into());
        }
        let event = found.event();
        *events += u64::from(event.is_some());
        let (position, skip) = event.unwrap_or((place(&piece.header, *offset as usize), 0));
        show(&Entry {
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

fn streams(ledger: &mut Ledger) -> BTreeMap<Box<str>, StreamInspection> {
    let streams = ledger.streams.values_mut().map(|stream| {
        stream.settle_copies();
        let bookmarks = stream.bookmarks.iter().map(|(subscriber, kept)| {
            let ahead = stream.index.count_from(kept.mark.low());
            BookmarkInspection { subscriber: subscriber.clone(), mark: kept.mark.clone(), ahead }
        });
        let bookmarks = bookmarks.collect();
        let events = stream.index.count_from(Position::ORIGIN);
        (stream.name.clone(), StreamInspection { events, bookmarks })
    });
    streams.collect()
}
