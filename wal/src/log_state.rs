//! The state of the streams: names, cursors, and where their events are.
//!
//! The same changes are applied when they are made and when recovery reads them back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::codec::{DecodedRecord, RecordKind, record_bytes, u32_at, u64_at};
use crate::cursor::Cursor;
use crate::index::{CompactedRecord, IndexEntry, StreamIndex};
use crate::limits::RANGES_MAX;
use crate::position::LogPosition;

/// Looked up for every event; the log assigns the keys, so a fast hash suffices. Boxed, so that the map of
/// a thousand streams stays in the processor's cache and the values can be prefetched.
type StreamTable = HashMap<u32, Box<StreamState>, foldhash::fast::RandomState>;

#[derive(Default)]
pub(crate) struct LogState {
    pub(crate) streams: StreamTable,
    names: HashMap<Box<str>, u32>,
    /// The highest number assigned so far; 0 means no stream.
    last_stream: u32,
    /// Size of a snapshot of this state in a segment, without done ranges.
    pub(crate) snapshot_bytes: usize,
    pub(crate) cursors: usize,
    /// Cursors that changed since they were last staged, once each: a flush must not scan all cursors.
    pub(crate) changed: Vec<(u32, Arc<str>)>,
}

pub(crate) struct StreamState {
    pub(crate) name: Box<str>,
    pub(crate) index: StreamIndex,
    pub(crate) cursors: BTreeMap<Arc<str>, CursorState>,
    /// During recovery: compacted events, in the order of their copies.
    copies: Vec<CompactedRecord>,
    /// Listed in the snapshot that is being read.
    listed: bool,
}

/// A cursor and how much of it is stored.
pub(crate) struct CursorState {
    pub(crate) mark: Cursor,
    /// The value that survives a crash. Space is reclaimed by this one.
    pub(crate) durable: Option<Cursor>,
    /// Is listed in [`Ledger::changed`].
    pub(crate) changed: bool,
}

impl CursorState {
    /// Positions that are not needed any more, even after a crash.
    fn done(&self) -> Cursor {
        self.durable.as_ref().map_or_else(|| self.mark.clone(), |durable| durable.common(&self.mark))
    }
}

impl StreamState {
    /// The lowest low mark of all subscribers.
    pub(crate) fn slowest(&self) -> Option<LogPosition> {
        self.cursors.values().map(|kept| kept.mark.low()).min()
    }

    /// Positions that no subscriber needs, even after a crash; `None` when the stream has no subscriber and
    /// retains nothing.
    pub(crate) fn done(&self) -> Option<Cursor> {
        self.cursors.values().map(CursorState::done).reduce(|all, one| all.common(&one))
    }

    /// Removes a deleted segment.
    pub(crate) fn forget_segment(&mut self, base: u64) {
        self.index.forget_segment(base);
        self.copies.retain(|copy| copy.entry.base != base);
    }

    /// Adopts the compacted events whose original is gone. A crash before the original was dropped leaves
    /// several copies of one event: the oldest one is used. Events that no subscriber needs are skipped.
    pub(crate) fn settle_copies(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        let Some(done) = self.done() else { return };
        let mut seen = HashSet::new();
        let lost = copies.into_iter().filter(|CompactedRecord { entry, .. }| {
            !done.is_done(entry.origin) && !self.index.has_native(entry.origin) && seen.insert(entry.origin)
        });
        let mut lost: Vec<_> = lost.collect();
        lost.sort_unstable_by_key(|copy| (copy.entry.base, copy.entry.origin));
        self.index.relocate(&lost);
    }
}

impl LogState {
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    pub(crate) const fn next_stream(&self) -> Option<u32> {
        self.last_stream.checked_add(1)
    }

    pub(crate) fn declare(&mut self, stream: u32, name: &str) {
        self.last_stream = self.last_stream.max(stream);
        // The stream was deleted and declared again, and a crash came between the two flushes: the older
        // one is dead.
        if let Some(older) = self.find(name).filter(|older| *older != stream) {
            self.forget_stream(older);
        }
        let known = self.streams.entry(stream).or_insert_with(|| {
            self.snapshot_bytes += record_bytes(name.len());
            self.names.insert(name.into(), stream);
            Box::new(StreamState {
                name: name.into(),
                index: StreamIndex::default(),
                cursors: BTreeMap::new(),
                copies: Vec::new(),
                listed: true,
            })
        });
        known.listed = true;
    }

    pub(crate) fn forget_stream(&mut self, stream: u32) -> Option<Box<StreamState>> {
        let gone = self.streams.remove(&stream)?;
        self.snapshot_bytes -= record_bytes(gone.name.len());
        if self.names.get(&gone.name) == Some(&stream) {
            self.names.remove(&gone.name);
        }
        for subscriber in gone.cursors.keys() {
            self.snapshot_bytes -= cursor_bytes(subscriber, 0);
        }
        self.cursors -= gone.cursors.len();
        self.changed.retain(|(other, _)| *other != stream);
        Some(gone)
    }

    /// Sets a cursor; false when the stream is not declared.
    pub(crate) fn keep(&mut self, stream: u32, subscriber: &str, kept: CursorState) -> bool {
        let Some(known) = self.streams.get_mut(&stream) else { return false };
        let name: Arc<str> = subscriber.into();
        if kept.changed {
            self.changed.push((stream, Arc::clone(&name)));
        }
        if known.cursors.insert(name, kept).is_none() {
            self.snapshot_bytes += cursor_bytes(subscriber, 0);
            self.cursors += 1;
        }
        true
    }

    /// Records that the last entry of `changed` is staged.
    pub(crate) fn staged(&mut self, stream: u32, subscriber: &str) {
        let known = self.streams.get_mut(&stream);
        if let Some(kept) = known.and_then(|known| known.cursors.get_mut(subscriber)) {
            kept.changed = false;
        }
    }

    pub(crate) fn forget_cursor(&mut self, stream: u32, subscriber: &str) -> bool {
        let Some(known) = self.streams.get_mut(&stream) else { return false };
        let known = known.cursors.remove(subscriber).is_some();
        if known {
            self.snapshot_bytes -= cursor_bytes(subscriber, 0);
            self.cursors -= 1;
            self.changed.retain(|(other, name)| (*other, &**name) != (stream, subscriber));
        }
        known
    }

    /// Applies one recovered record, as far as it does not concern segments.
    pub(crate) fn replay(&mut self, base: u64, offset: u32, found: &DecodedRecord<'_>) {
        let stream = found.head.stream;
        match found.head.kind {
            RecordKind::Event => {
                if let Some(known) = self.streams.get_mut(&stream) {
                    known.index.push(base, offset, record_bytes(found.payload.len()), found.head.at_ms);
                }
            }
            RecordKind::Compacted => {
                if let (Some(known), Some((origin, _))) = (self.streams.get_mut(&stream), found.event()) {
                    let bytes = record_bytes(found.payload.len());
                    let (entry, at_ms) = (IndexEntry { origin, base, offset }, found.head.at_ms);
                    known.copies.push(CompactedRecord { entry, bytes, at_ms });
                }
            }
            RecordKind::Stream => {
                if let Ok(name) = std::str::from_utf8(found.payload) {
                    self.declare(stream, name);
                }
            }
            RecordKind::ForgetStream => {
                self.forget_stream(stream);
            }
            RecordKind::Cursor => {
                if let Some((subscriber, mark)) = decode_cursor(found.payload) {
                    let durable = Some(mark.clone());
                    self.keep(stream, subscriber, CursorState { mark, durable, changed: false });
                }
            }
            RecordKind::ForgetCursor => {
                if let Ok(subscriber) = std::str::from_utf8(found.payload) {
                    self.forget_cursor(stream, subscriber);
                }
            }
            RecordKind::Snapshot | RecordKind::Drop | RecordKind::Seal => {}
        }
    }

    /// A snapshot replaces the known state; the indexes of streams that it lists are kept.
    pub(crate) fn begin_snapshot(&mut self, last_stream: u32) {
        self.last_stream = self.last_stream.max(last_stream);
        for stream in self.streams.values_mut() {
            stream.listed = false;
            for subscriber in stream.cursors.keys() {
                self.snapshot_bytes -= cursor_bytes(subscriber, 0);
            }
            self.cursors -= stream.cursors.len();
            stream.cursors.clear();
        }
    }

    pub(crate) fn end_snapshot(&mut self) {
        let gone: Vec<u32> = self.streams.iter().filter(|(_, stream)| !stream.listed).map(|(id, _)| *id).collect();
        for stream in gone {
            self.forget_stream(stream);
        }
    }

    pub(crate) fn encode_snapshot(&self, segments: impl Iterator<Item = u64>) -> Vec<u8> {
        let mut out = u64::from(self.last_stream).to_le_bytes().to_vec();
        segments.for_each(|base| out.extend_from_slice(&base.to_le_bytes()));
        out
    }
}

/// First record of a snapshot: the highest stream number assigned, and the list of valid segments.
pub(crate) fn decode_snapshot(payload: &[u8]) -> Option<(u32, Vec<u64>)> {
    let last_stream = u32_at(payload, 0)?;
    Some((last_stream, decode_bases(payload.get(8..)?)))
}

pub(crate) fn decode_bases(payload: &[u8]) -> Vec<u64> {
    payload.chunks_exact(8).filter_map(|base| u64_at(base, 0)).collect()
}

/// Size of a cursor's record in a segment.
pub(crate) const fn cursor_bytes(subscriber: &str, ranges: usize) -> usize {
    record_bytes(16 + subscriber.len().next_multiple_of(8) + ranges * 16)
}

/// Low mark, name, and as many done ranges as allowed: those nearest to the low mark.
pub(crate) fn encode_cursor(subscriber: &str, mark: &Cursor, ranges_max: usize) -> Vec<u8> {
    let ranges = &mark.done()[..mark.done().len().min(ranges_max).min(RANGES_MAX)];
    let mut out = mark.low().get().to_le_bytes().to_vec();
    out.extend_from_slice(&(subscriber.len() as u64).to_le_bytes());
    out.extend_from_slice(subscriber.as_bytes());
    out.resize(out.len().next_multiple_of(8), 0);
    for Range { start, end } in ranges {
        out.extend_from_slice(&start.get().to_le_bytes());
        out.extend_from_slice(&end.get().to_le_bytes());
    }
    out
}

fn decode_cursor(payload: &[u8]) -> Option<(&str, Cursor)> {
    let mut mark = Cursor::at(LogPosition::new(u64_at(payload, 0)?));
    let length = usize::try_from(u64_at(payload, 8)?).ok()?;
    let name_end = length.checked_add(16)?;
    let subscriber = std::str::from_utf8(payload.get(16..name_end)?).ok()?;
    for range in payload.get(name_end.checked_next_multiple_of(8)?..)?.chunks_exact(16) {
        mark.complete(LogPosition::new(u64_at(range, 0)?)..LogPosition::new(u64_at(range, 8)?));
    }
    Some((subscriber, mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(low: u64, ranges: &[(u64, u64)]) -> Cursor {
        let mut mark = Cursor::at(LogPosition::new(low));
        for (start, end) in ranges {
            mark.complete(LogPosition::new(*start)..LogPosition::new(*end));
        }
        mark
    }

    #[test]
    fn cursor_round_trip_drops_only_far_ranges() {
        let written = mark(8, &[(16, 24), (40, 64), (80, 88)]);
        let bytes = encode_cursor("söme", &written, RANGES_MAX);
        assert_eq!(record_bytes(bytes.len()), cursor_bytes("söme", 3));
        assert_eq!(decode_cursor(&bytes), Some(("söme", written.clone())));

        let cut = encode_cursor("söme", &written, 1);
        assert_eq!(decode_cursor(&cut), Some(("söme", mark(8, &[(16, 24)]))));
        for length in 0..bytes.len() {
            let _ = decode_cursor(&bytes[..length]); // must not panic, whatever is missing
        }
    }

    #[test]
    fn emptied_ledger_has_zero_snapshot_bytes() {
        let mut ledger = LogState::default();
        ledger.declare(1, "a");
        ledger.declare(2, "b");
        for subscriber in ["x", "y", "x"] {
            let kept = CursorState { mark: mark(8, &[]), durable: None, changed: true };
            assert!(ledger.keep(1, subscriber, kept));
        }
        assert_eq!(ledger.cursors, 2);
        assert!(ledger.forget_cursor(1, "x") && !ledger.forget_cursor(1, "x"));
        ledger.begin_snapshot(2);
        ledger.declare(2, "b");
        ledger.end_snapshot();
        assert_eq!((ledger.find("a"), ledger.find("b")), (None, Some(2)));
        ledger.forget_stream(2);
        assert_eq!((ledger.snapshot_bytes, ledger.cursors, ledger.next_stream()), (0, 0, Some(3)));
    }

    #[test]
    fn redeclared_name_removes_older_stream() {
        let mut ledger = LogState::default();
        ledger.declare(1, "a");
        ledger.keep(1, "x", CursorState { mark: mark(8, &[]), durable: None, changed: false });
        ledger.declare(2, "a");
        assert_eq!((ledger.find("a"), ledger.streams.len(), ledger.cursors), (Some(2), 1, 0));
    }
}
