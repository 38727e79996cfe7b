//! One core's log, as its owner uses it: declare, append, read, store cursors. Each further operation has a
//! file in this folder.

mod check_files;
mod compaction;
mod flush;
mod name_segment;
mod read;
mod readahead;
mod reclaim;
mod release;
mod roll;
mod seek;
mod staged;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{RecordHeader, RecordKind, record_bytes};
use crate::cursor::Cursor;
use crate::error::{AppendError, Error};
use crate::limits::{NAME_BYTES_MAX, batch_bytes_max, snapshot_bytes_max};
use crate::log_state::{CursorState, LogState, cursor_bytes};
use crate::options::LogOptions;
use crate::position::{LogPosition, StreamId};
use crate::recovery::{self, Recovery};
use crate::segment::{Segment, SpareSegment};

pub use flush::FlushUrgency;
pub use read::{LogRecord, RecordDamage};
pub use readahead::{ReadaheadRequest, ReadaheadWindow};
pub use reclaim::{LogStat, ReclaimedSpace, StreamStat};
pub use staged::Flush;

use compaction::Compaction;
use name_segment::SegmentStateWriter;
use read::DamageReport;
use roll::RollPurpose;
use staged::{InFlightCursor, InFlightFlush, StagedBytes};

/// An append-only sequence of records in segment files, owned by one thread.
///
/// Invariant: `durable <= visible`, and both only rise.
pub struct WriteAheadLog {
    pub(crate) folder: PathBuf,
    pub(crate) options: LogOptions,
    /// The folder stays locked while the log is open or one of its flushes is in flight.
    pub(crate) lock: Arc<File>,
    /// By rising base; the last one is the tail. Never empty once open.
    pub(crate) segments: VecDeque<Segment>,
    pub(crate) ledger: LogState,
    /// Appended, not yet handed out for writing. The last entry belongs to the tail and may be empty.
    pub(crate) staged: VecDeque<StagedBytes>,
    pub(crate) in_flight: Option<InFlightFlush>,
    /// `None` when the disk had no space for it.
    pub(crate) segment_state: Option<SegmentStateWriter>,
    /// Bytes in `staged` and in flight.
    pub(crate) staged_bytes: usize,
    pub(crate) events_staged: bool,
    /// A buffer returned by a flush, to be reused.
    pub(crate) idle_buffer: Vec<u8>,
    pub(crate) visible: LogPosition,
    pub(crate) durable: LogPosition,
    pub(crate) marks_in_flight: VecDeque<InFlightCursor>,
    pub(crate) forgotten: Vec<(RecordKind, u32, Box<str>)>,
    /// Prepared for the next roll-over.
    pub(crate) spares: Vec<SpareSegment>,
    /// Files without readers; their headers must be wiped before reuse.
    pub(crate) recyclable: Vec<SpareSegment>,
    pub(crate) spare_out: bool,
    pub(crate) file_number: u64,
    /// The caller's clock when the disk last had no space.
    pub(crate) no_space_at_ms: Option<u64>,
    /// The caller's clock when preparing a spare last failed.
    pub(crate) spare_failed_at_ms: Option<u64>,
    pub(crate) now_ms: u64,
    pub(crate) compaction: Option<Compaction>,
    /// During compaction: the copies are in segments from this base on, none of which may be dropped before
    /// the copies are current.
    pub(crate) copies_from: Option<u64>,
    pub(crate) compacted_bytes: u64,
    pub(crate) damages: DamageReport,
    pub(crate) poison: Option<Box<str>>,
    pub(crate) flushes: u64,
    pub(crate) flushed_bytes: u64,
}

impl WriteAheadLog {
    /// Opens the log of a folder: creates it, or recovers what is durable. Only one process can have it
    /// open.
    pub fn open(folder: &Path, options: LogOptions) -> Result<(Self, Recovery), Error> {
        options.check()?;
        let found = recovery::recover(folder)?;
        let mut log = Self {
            folder: folder.into(),
            options,
            lock: Arc::new(found.lock),
            segments: found.segments.into(),
            ledger: found.ledger,
            staged: VecDeque::new(),
            in_flight: None,
            segment_state: found.state.map(|(file, sequence)| SegmentStateWriter::new(file, sequence)),
            staged_bytes: 0,
            events_staged: false,
            idle_buffer: Vec::new(),
            visible: found.limit,
            durable: found.limit,
            marks_in_flight: VecDeque::new(),
            forgotten: Vec::new(),
            spares: Vec::new(),
            recyclable: Vec::new(),
            spare_out: false,
            file_number: found.number,
            no_space_at_ms: None,
            spare_failed_at_ms: None,
            now_ms: 0,
            compaction: None,
            copies_from: None,
            compacted_bytes: 0,
            damages: DamageReport::default(),
            poison: None,
            flushes: 0,
            flushed_bytes: 0,
        };
        log.adopt_spares(found.spares)?;
        match found.end {
            Some(end) => {
                log.name_tail();
                log.continue_tail(end);
            }
            None => log.begin_first(found.limit)?,
        }
        Ok((log, found.report))
    }

    /// Returns the stream of this name; declares it when it does not exist, durable with the next flush.
    pub fn stream(&mut self, name: &str) -> Result<StreamId, AppendError> {
        if let Some(stream) = self.ledger.find(name) {
            return Ok(StreamId(stream));
        }
        self.check_poison()?;
        check_name(name)?;
        self.check_space("streams_max", self.ledger.streams.len(), self.options.streams_max)?;
        self.check_snapshot(record_bytes(name.len()))?;
        let Some(stream) = self.ledger.next_stream() else {
            return Err(AppendError::full("stream numbers", u32::MAX.into(), u32::MAX.into()));
        };
        self.reclaim_for(record_bytes(name.len()), RollPurpose::Control)?;
        self.ledger.declare(stream, name);
        self.stage(RecordKind::Stream, stream, 0, 0, &[name.as_bytes()]);
        Ok(StreamId(stream))
    }

    /// Deletes a stream: its records are dead, its cursors removed, its number never reused.
    pub fn forget_stream(&mut self, name: &str) {
        if let Some(stream) = self.ledger.find(name) {
            self.ledger.forget_stream(stream);
            self.forgotten.push((RecordKind::ForgetStream, stream, "".into()));
        }
    }

    /// Appends one event, the concatenation of `parts`. It is visible now, and durable when
    /// [`WriteAheadLog::durable`] has passed the position.
    pub fn append(&mut self, stream: StreamId, at_ms: u64, parts: &[&[u8]]) -> Result<LogPosition, AppendError> {
        let bytes = self.record_size(parts)?;
        self.admit(stream, at_ms, bytes, RollPurpose::Event)?;
        Ok(self.stage(RecordKind::Event, stream.0, at_ms, 0, parts))
    }

    /// Appends several events that become durable together or not at all. Returns the range from the first
    /// event's position to the end of the last.
    pub fn append_batch(
        &mut self,
        stream: StreamId,
        at_ms: u64,
        records: &[&[&[u8]]],
    ) -> Result<Range<LogPosition>, AppendError> {
        self.append_all(stream, at_ms, records, RollPurpose::Event)
    }

    /// Same as [`WriteAheadLog::append_batch`], for events derived from others in the log, such as replies:
    /// they may use space beyond the limit ([`ONWARD_SHARE`](crate::limits::ONWARD_SHARE)).
    pub fn append_onward(
        &mut self,
        stream: StreamId,
        at_ms: u64,
        records: &[&[&[u8]]],
    ) -> Result<Range<LogPosition>, AppendError> {
        self.append_all(stream, at_ms, records, RollPurpose::Onward)
    }

    fn append_all(
        &mut self,
        stream: StreamId,
        at_ms: u64,
        records: &[&[&[u8]]],
        whose: RollPurpose,
    ) -> Result<Range<LogPosition>, AppendError> {
        let mut bytes = 0;
        for parts in records {
            bytes += self.record_size(parts)?;
        }
        let max = batch_bytes_max(self.options.segment_bytes);
        if bytes > max {
            let (bytes, max) = (bytes as u64, max as u64);
            return Err(AppendError::TooLarge { bytes, max, limit: "half of segment_bytes" });
        }
        self.admit(stream, at_ms, bytes, whose)?;
        let start = self.visible;
        for (nth, parts) in records.iter().enumerate() {
            let rest = u32::try_from(records.len() - 1 - nth).expect("each record has bytes in a u32's worth");
            self.stage(RecordKind::Event, stream.0, at_ms, rest, parts);
        }
        Ok(start..self.visible)
    }

    /// The folder that contains its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Everything below this position is appended.
    #[must_use]
    pub const fn visible(&self) -> LogPosition {
        self.visible
    }

    /// Everything below this position survives a crash.
    #[must_use]
    pub const fn durable(&self) -> LogPosition {
        self.durable
    }

    /// Where a new subscriber begins.
    #[must_use]
    pub const fn end(&self, _stream: StreamId) -> LogPosition {
        self.visible
    }

    /// Sets the cursor of a subscriber. Only the newest one is written with the next flush.
    pub fn cursor(&mut self, stream: StreamId, subscriber: &str, mark: Cursor) -> Result<(), AppendError> {
        self.check_poison()?;
        let known = self.ledger.streams.get_mut(&stream.0);
        let known = known.ok_or(AppendError::UnknownStream { stream: stream.0 })?;
        if let Some((name, kept)) = known.cursors.range_mut::<str, _>(only(subscriber)).next() {
            if kept.mark != mark && !std::mem::replace(&mut kept.changed, true) {
                self.ledger.changed.push((stream.0, Arc::clone(name)));
            }
            kept.mark = mark;
            return Ok(());
        }
        check_name(subscriber)?;
        self.check_space("bookmarks_max", self.ledger.cursors, self.options.cursors_max)?;
        self.check_snapshot(cursor_bytes(subscriber, 0))?;
        self.ledger.keep(stream.0, subscriber, CursorState { mark, durable: None, changed: true });
        Ok(())
    }

    /// The subscribers of the stream and their cursors.
    pub fn cursors(&self, stream: StreamId) -> impl Iterator<Item = (&str, &Cursor)> {
        let known = self.ledger.streams.get(&stream.0);
        known.into_iter().flat_map(|known| known.cursors.iter().map(|(name, kept)| (&**name, &kept.mark)))
    }

    /// The cursor of one subscriber.
    #[must_use]
    pub fn how_far(&self, stream: StreamId, subscriber: &str) -> Option<&Cursor> {
        self.ledger.streams.get(&stream.0)?.cursors.get(subscriber).map(|kept| &kept.mark)
    }

    /// Deletes a subscriber: nothing is retained for it any more.
    pub fn forget_cursor(&mut self, stream: StreamId, subscriber: &str) {
        if self.ledger.forget_cursor(stream.0, subscriber) {
            self.forgotten.push((RecordKind::ForgetCursor, stream.0, subscriber.into()));
        }
    }

    /// The state that an append to the stream reads first. Only useful as the target of a prefetch.
    #[must_use]
    pub fn memory_of(&self, stream: StreamId) -> Option<&impl Sized> {
        self.ledger.streams.get(&stream.0).map(|known| &**known)
    }

    /// Declared streams, in no particular order.
    pub fn streams(&self) -> impl Iterator<Item = (StreamId, &str)> {
        self.ledger.streams.iter().map(|(id, stream)| (StreamId(*id), &*stream.name))
    }

    pub(crate) fn tail(&self) -> &Segment {
        self.segments.back().expect("open() leaves at least one segment and the last is never dropped")
    }

    pub(crate) fn segment(&self, base: u64) -> Option<&Segment> {
        let found = self.segments.binary_search_by_key(&base, Segment::base).ok()?;
        self.segments.get(found)
    }

    fn record_size(&self, parts: &[&[u8]]) -> Result<usize, AppendError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let max = self.options.record_bytes_max as usize;
        if bytes > max {
            let (bytes, max) = (bytes as u64, max as u64);
            return Err(AppendError::TooLarge { bytes, max, limit: "record_bytes_max" });
        }
        let (size, max) = (record_bytes(bytes), batch_bytes_max(self.options.segment_bytes));
        if size > max {
            let (bytes, max) = (size as u64, max as u64);
            return Err(AppendError::TooLarge { bytes, max, limit: "half of segment_bytes" });
        }
        Ok(size)
    }

    /// Makes every check that can reject an event, before any byte of it is staged.
    fn admit(&mut self, stream: StreamId, at_ms: u64, bytes: usize, whose: RollPurpose) -> Result<(), AppendError> {
        self.check_poison()?;
        if !self.ledger.streams.contains_key(&stream.0) {
            return Err(AppendError::UnknownStream { stream: stream.0 });
        }
        let max = self.options.staged_bytes_max.max(bytes);
        if self.staged_bytes + bytes > max {
            return Err(AppendError::full("staged_bytes_max", self.staged_bytes as u64, max as u64));
        }
        self.now_ms = at_ms;
        self.reclaim_for(bytes, whose)
    }

    /// Adds one record at the end; the caller has made space for it.
    pub(crate) fn stage(
        &mut self,
        kind: RecordKind,
        stream: u32,
        at_ms: u64,
        batch_rest: u32,
        parts: &[&[u8]],
    ) -> LogPosition {
        let position = self.visible;
        let unsynced = position.get() - self.durable.get();
        let unsynced = u32::try_from(unsynced).unwrap_or(u32::MAX);
        let head = RecordHeader { kind, stream, position, at_ms, unsynced, batch_rest };
        let crate::header::SegmentHeader { base, salt, .. } = self.tail().header;
        let staged = self.staged.back_mut().expect("the tail always has a staging entry");
        let before = staged.bytes.len();
        crate::codec::encode(&mut staged.bytes, salt, &head, parts);
        let added = staged.bytes.len() - before;
        self.staged_bytes += added;
        self.visible = LogPosition::new(position.get() + added as u64);
        let used = u32::try_from(self.visible.get() - base).expect("a segment's capacity is a u32");
        self.segments.back_mut().into_iter().for_each(|tail| tail.used = used);
        if kind == RecordKind::Event {
            self.events_staged = true;
            let offset = u32::try_from(position.get() - base).expect("a segment's capacity is a u32");
            if let Some(known) = self.ledger.streams.get_mut(&stream) {
                known.index.push(base, offset, added, at_ms);
            }
        }
        position
    }

    pub(crate) fn check_poison(&self) -> Result<(), AppendError> {
        match &self.poison {
            Some(reason) => Err(AppendError::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn check_space(&self, limit: &'static str, used: usize, max: usize) -> Result<(), AppendError> {
        if used < max { Ok(()) } else { Err(AppendError::full(limit, used as u64, max as u64)) }
    }

    fn check_snapshot(&self, more: usize) -> Result<(), AppendError> {
        let (used, max) = (self.ledger.snapshot_bytes, snapshot_bytes_max(self.options.segment_bytes));
        if used + more <= max {
            return Ok(());
        }
        Err(AppendError::full("a quarter of segment_bytes for names", used as u64, max as u64))
    }
}

impl fmt::Debug for WriteAheadLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("folder", &self.folder)
            .field("visible", &self.visible)
            .field("durable", &self.durable)
            .field("segments", &self.segments.len())
            .field("poison", &self.poison)
            .finish_non_exhaustive()
    }
}

/// The range of one key: unlike a lookup it returns the stored key.
const fn only(name: &str) -> (Bound<&str>, Bound<&str>) {
    (Bound::Included(name), Bound::Included(name))
}

fn check_name(name: &str) -> Result<(), AppendError> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let (bytes, max) = (name.len() as u64, NAME_BYTES_MAX as u64);
    Err(AppendError::TooLarge { bytes, max, limit: "NAME_BYTES_MAX" })
}
