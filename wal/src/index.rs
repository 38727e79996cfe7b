//! The index of a stream's events by segment: four bytes of memory per event, and twelve for a compacted
//! one. Times are kept only per block of [`BLOCK_EVENTS`]; a search by time reads the records of one block.
//!
//! An event is identified by its origin, the position at which it was appended. Its current location
//! changes when it is compacted.

use std::collections::VecDeque;

use crate::cursor::Cursor;
use crate::position::LogPosition;

/// Events that share one time in memory (8 bytes): a search by time reads at most this many records, some
/// 100 µs when their pages are cached.
const BLOCK_EVENTS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct StreamIndex {
    /// Events at their original location, in order of base.
    chunks: VecDeque<IndexBlock>,
    /// Compacted events, by the segment that contains them now.
    compacted: Vec<CompactedEntry>,
}

/// An event and its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) origin: LogPosition,
    pub(crate) base: u64,
    pub(crate) offset: u32,
}

#[derive(Debug)]
struct IndexBlock {
    base: u64,
    /// Rising; never empty.
    offsets: Vec<u32>,
    /// Total size of these records in the segment.
    bytes: u64,
    /// The latest time in each full block of [`BLOCK_EVENTS`]. It need not rise, because clocks step back.
    latest_ms: Vec<u64>,
    /// The latest time in the last, partial block. Stored next to what an append touches anyway: with a
    /// thousand streams each list is a cache miss.
    newest_ms: u64,
}

/// A compacted event: its new location, the size of its record there, and its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompactedRecord {
    pub(crate) entry: IndexEntry,
    pub(crate) bytes: usize,
    pub(crate) at_ms: u64,
}

#[derive(Debug)]
struct CompactedEntry {
    base: u64,
    /// Rising; never empty. `offsets` has the location of each.
    origins: Vec<LogPosition>,
    offsets: Vec<u32>,
    bytes: u64,
    latest_ms: u64,
}

impl StreamIndex {
    /// Adds an event; positions are added in rising order. `bytes`: size of the record in the segment.
    pub(crate) fn push(&mut self, base: u64, offset: u32, bytes: usize, at_ms: u64) {
        if self.chunks.back().is_none_or(|chunk| chunk.base != base) {
            if let Some(full) = self.chunks.back_mut() {
                // the block is complete: with a million events a quarter of the capacity would stay unused
                full.shrink();
            }
            self.chunks.push_back(IndexBlock::at(base));
        }
        let Some(chunk) = self.chunks.back_mut() else { return };
        chunk.push(offset, bytes, at_ms);
    }

    /// Adds compacted events, in any order; the caller then removes the segment that they came from.
    pub(crate) fn relocate(&mut self, copies: &[CompactedRecord]) {
        for CompactedRecord { entry, bytes, at_ms } in copies {
            let at = self.compacted.partition_point(|chunk| chunk.base < entry.base);
            if self.compacted.get(at).is_none_or(|chunk| chunk.base != entry.base) {
                let base = entry.base;
                let empty = CompactedEntry { base, origins: Vec::new(), offsets: Vec::new(), bytes: 0, latest_ms: 0 };
                self.compacted.insert(at, empty);
            }
            let chunk = &mut self.compacted[at];
            // Copies of one segment come in order, so this is nearly always the end.
            let nth = chunk.origins.partition_point(|origin| *origin < entry.origin);
            chunk.origins.insert(nth, entry.origin);
            chunk.offsets.insert(nth, entry.offset);
            chunk.bytes += *bytes as u64;
            chunk.latest_ms = chunk.latest_ms.max(*at_ms);
        }
    }

    /// The first event at or after `from`.
    pub(crate) fn first_from(&self, from: LogPosition) -> Option<IndexEntry> {
        let moved = self.compacted.iter().filter_map(|chunk| chunk.first_from(from));
        let moved = moved.min_by_key(|entry| entry.origin);
        let native = self.first_native(from);
        match (moved, native) {
            (Some(moved), Some(native)) if native.origin < moved.origin => Some(native),
            (moved, native) => moved.or(native),
        }
    }

    fn first_native(&self, from: LogPosition) -> Option<IndexEntry> {
        let after = self.chunks.partition_point(|chunk| chunk.base <= from.get());
        if let Some(chunk) = after.checked_sub(1).map(|last| &self.chunks[last]) {
            let first = chunk.first_from(from);
            if let Some(offset) = chunk.offsets.get(first) {
                return Some(chunk.entry(*offset));
            }
        }
        self.chunks.get(after).map(|chunk| chunk.entry(chunk.offsets[0]))
    }

    /// Events that may have arrived at `at_ms` or later, including the first one that did: native events in
    /// order of origin, then compacted ones by segment. Skips blocks that are older as a whole.
    pub(crate) fn since(&self, at_ms: u64) -> (impl Iterator<Item = IndexEntry>, impl Iterator<Item = IndexEntry>) {
        let native = self.chunks.iter().flat_map(move |chunk| {
            let latest = chunk.latest_ms.iter().chain(std::iter::once(&chunk.newest_ms));
            let blocks = chunk.offsets.chunks(BLOCK_EVENTS).zip(latest);
            let young = blocks.filter(move |(_, latest)| **latest >= at_ms).flat_map(|(block, _)| block);
            young.map(|offset| chunk.entry(*offset))
        });
        let moved = self.compacted.iter().filter(move |chunk| chunk.latest_ms >= at_ms).flat_map(|chunk| {
            let entries = chunk.origins.iter().zip(&chunk.offsets);
            entries.map(|(origin, offset)| IndexEntry { origin: *origin, base: chunk.base, offset: *offset })
        });
        (native, moved)
    }

    /// The first of the newest events that together take `bytes_max`; `None` when all events take less.
    /// Inside a segment it divides by count, not by size.
    pub(crate) fn newest(&self, bytes_max: u64) -> Option<LogPosition> {
        let mut all: Vec<(LogPosition, u64, usize, IndexPart<'_>)> = Vec::new(); // one entry per segment
        all.extend(self.chunks.iter().map(|chunk| {
            (chunk.entry(chunk.offsets[0]).origin, chunk.bytes, chunk.offsets.len(), IndexPart::Native(chunk))
        }));
        let moved = self.compacted.iter();
        all.extend(moved.map(|one| (one.origins[0], one.bytes, one.origins.len(), IndexPart::Compacted(one))));
        all.sort_unstable_by_key(|(first, ..)| *first);
        let mut left = bytes_max;
        for (_, bytes, events, part) in all.iter().rev() {
            if *bytes <= left {
                left -= bytes;
                continue;
            }
            let kept = usize::try_from(*events as u64 * left / bytes).unwrap_or(*events).min(*events);
            return Some(part.origin(events - kept));
        }
        None
    }

    /// Whether this location still holds the event that was appended at `spot.origin`.
    pub(crate) fn holds(&self, entry: IndexEntry) -> bool {
        if entry.base.checked_add(entry.offset.into()) == Some(entry.origin.get()) {
            let found = self.chunks.binary_search_by_key(&entry.base, |chunk| chunk.base);
            return found.is_ok_and(|nth| self.chunks[nth].offsets.binary_search(&entry.offset).is_ok());
        }
        let Ok(nth) = self.compacted.binary_search_by_key(&entry.base, |chunk| chunk.base) else {
            return false;
        };
        let chunk = &self.compacted[nth];
        chunk.origins.binary_search(&entry.origin).is_ok_and(|at| chunk.offsets[at] == entry.offset)
    }

    /// Whether the event that was appended here is still stored here.
    pub(crate) fn has_native(&self, origin: LogPosition) -> bool {
        self.first_native(origin).is_some_and(|entry| entry.origin == origin)
    }

    /// The first event in this segment at or after `offset`.
    pub(crate) fn next_in(&self, base: u64, offset: u32) -> Option<IndexEntry> {
        let native = self.chunks.binary_search_by_key(&base, |chunk| chunk.base).ok().and_then(|nth| {
            let chunk = &self.chunks[nth];
            let first = chunk.offsets.partition_point(|other| *other < offset);
            chunk.offsets.get(first).map(|offset| chunk.entry(*offset))
        });
        let moved = self.compacted.iter().filter(|chunk| chunk.base == base).flat_map(|chunk| {
            let entries = chunk.origins.iter().zip(&chunk.offsets);
            entries.map(move |(origin, offset)| IndexEntry { origin: *origin, base, offset: *offset })
        });
        native.into_iter().chain(moved.filter(|entry| entry.offset >= offset)).min_by_key(|entry| entry.offset)
    }

    /// Events in this segment that are not done.
    pub(crate) fn count_in(&self, base: u64, done: &Cursor) -> usize {
        let native = self.chunks.binary_search_by_key(&base, |chunk| chunk.base).ok();
        let native = native.map_or(0, |nth| self.chunks[nth].open(done));
        let moved = self.compacted.iter().filter(|chunk| chunk.base == base);
        native + moved.map(|chunk| chunk.open(done)).sum::<usize>()
    }

    /// The origin of the oldest compacted event.
    pub(crate) fn first_compacted(&self) -> Option<LogPosition> {
        self.compacted.iter().map(|chunk| chunk.origins[0]).min()
    }

    /// Events at or after `from`.
    pub(crate) fn count_from(&self, from: LogPosition) -> u64 {
        let count = self.chunks.iter().rev().map_while(|chunk| {
            let left = chunk.offsets.len() - chunk.first_from(from);
            (left > 0).then_some(left as u64)
        });
        let moved = self.compacted.iter().map(|chunk| (chunk.origins.len() - chunk.rank(from)) as u64);
        count.sum::<u64>() + moved.sum::<u64>()
    }

    /// For each segment with events that are not done: its base and their size, never 0. Of a partly needed
    /// block the share is taken by count, not by size.
    pub(crate) fn live_bytes<'a>(&'a self, done: &'a Cursor) -> impl Iterator<Item = (u64, u64)> + 'a {
        let share = |bytes: u64, live: usize, all: usize| (bytes * live as u64 / all as u64).max(1);
        let above = |chunk: &&IndexBlock| chunk.first_from(done.low()) < chunk.offsets.len();
        let native = self.chunks.iter().rev().take_while(above).filter_map(move |chunk| {
            let live = chunk.open(done);
            (live > 0).then(|| (chunk.base, share(chunk.bytes, live, chunk.offsets.len())))
        });
        let moved = self.compacted.iter().filter_map(move |chunk| {
            let live = chunk.open(done);
            (live > 0).then(|| (chunk.base, share(chunk.bytes, live, chunk.origins.len())))
        });
        native.chain(moved)
    }

    pub(crate) fn forget_segment(&mut self, base: u64) {
        if let Ok(found) = self.chunks.binary_search_by_key(&base, |chunk| chunk.base) {
            self.chunks.remove(found);
        }
        self.compacted.retain(|chunk| chunk.base != base);
    }
}

enum IndexPart<'a> {
    Native(&'a IndexBlock),
    Compacted(&'a CompactedEntry),
}

impl IndexPart<'_> {
    /// The position of event number `nth`; past the last event, one byte after where it begins.
    fn origin(&self, nth: usize) -> LogPosition {
        let at = |nth: usize| match self {
            Self::Native(chunk) => chunk.offsets.get(nth).map(|offset| chunk.entry(*offset).origin),
            Self::Compacted(moved) => moved.origins.get(nth).copied(),
        };
        let after = || at(nth.saturating_sub(1)).map_or(LogPosition::ORIGIN, |last| LogPosition::new(last.get() + 1));
        at(nth).unwrap_or_else(after)
    }
}

impl IndexBlock {
    fn at(base: u64) -> Self {
        Self { base, offsets: Vec::new(), bytes: 0, latest_ms: Vec::new(), newest_ms: 0 }
    }

    fn push(&mut self, offset: u32, bytes: usize, at_ms: u64) {
        if self.offsets.len().is_multiple_of(BLOCK_EVENTS) && !self.offsets.is_empty() {
            self.latest_ms.push(std::mem::take(&mut self.newest_ms));
        }
        self.newest_ms = self.newest_ms.max(at_ms);
        self.offsets.push(offset);
        self.bytes += bytes as u64;
    }

    fn shrink(&mut self) {
        self.offsets.shrink_to_fit();
        self.latest_ms.shrink_to_fit();
    }

    fn first_from(&self, from: LogPosition) -> usize {
        let wanted = from.get().saturating_sub(self.base);
        let is_before = |offset: &u32| u64::from(*offset) < wanted;
        // A subscriber that keeps up asks for one of the last events: search back from the end in doubling
        // steps, not through the middle of a million, where each probe is a cache miss.
        let (mut end, mut step) = (self.offsets.len(), 1);
        while end > 0 {
            let start = end.saturating_sub(step);
            if is_before(&self.offsets[start]) {
                return start + 1 + self.offsets[start + 1..end].partition_point(is_before);
            }
            (end, step) = (start, step * 2);
        }
        0
    }

    /// Events that are not done.
    fn open(&self, done: &Cursor) -> usize {
        let limit = self.offsets.last().map_or(self.base, |last| self.base + u64::from(*last));
        open(done, LogPosition::new(self.base), LogPosition::new(limit), self.offsets.len(), |at| self.first_from(at))
    }

    const fn entry(&self, offset: u32) -> IndexEntry {
        IndexEntry { origin: LogPosition::new(self.base + offset as u64), base: self.base, offset }
    }
}

/// Number of events in a list of `events` that are not done. `before` counts those before a position.
fn open(
    done: &Cursor,
    first: LogPosition,
    last: LogPosition,
    events: usize,
    before: impl Fn(LogPosition) -> usize,
) -> usize {
    let ranges = done.done_from(first).iter().take_while(|range| range.start <= last);
    let settled: usize = ranges.map(|range| before(range.end) - before(range.start)).sum();
    events - before(done.low()) - settled
}

impl CompactedEntry {
    /// Events that are not done.
    fn open(&self, done: &Cursor) -> usize {
        let last = self.origins[self.origins.len() - 1];
        open(done, self.origins[0], last, self.origins.len(), |at| self.rank(at))
    }

    fn rank(&self, from: LogPosition) -> usize {
        if self.origins[0] >= from { 0 } else { self.origins.partition_point(|origin| *origin < from) }
    }

    fn first_from(&self, from: LogPosition) -> Option<IndexEntry> {
        let nth = self.rank(from);
        let (origin, offset) = (*self.origins.get(nth)?, *self.offsets.get(nth)?);
        Some(IndexEntry { origin, base: self.base, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (origin, base, offset)
    fn check(index: &StreamIndex, events: &[(u64, u64, u32)]) {
        let mut events = events.to_vec();
        events.sort_unstable();
        for from in 0..3600 {
            let from = LogPosition::new(from);
            let wanted: Vec<_> = events.iter().filter(|(origin, ..)| *origin >= from.get()).collect();
            let found = index.first_from(from).map(|entry| (entry.origin.get(), entry.base, entry.offset));
            assert_eq!(found.as_ref(), wanted.first().copied(), "from {from}");
            assert_eq!(index.count_from(from), wanted.len() as u64, "from {from}");
            let live = |done: &Cursor| index.live_bytes(done).map(|(_, bytes)| bytes).sum::<u64>();
            assert_eq!(live(&Cursor::at(from)), 10 * wanted.len() as u64, "from {from}");
            let mut done = Cursor::at(from);
            done.complete(LogPosition::new(1000)..LogPosition::new(3100));
            let open = wanted.iter().filter(|(origin, ..)| !done.is_done(LogPosition::new(*origin))).count();
            assert_eq!(live(&done), 10 * open as u64, "from {from}");
            let counted: usize = [0, 1000, 3000].map(|base| index.count_in(base, &done)).iter().sum();
            assert_eq!(counted, open, "from {from}");
        }
        for (origin, base, offset) in events {
            let origin = LogPosition::new(origin);
            assert!(index.holds(IndexEntry { origin, base, offset }));
            assert!(!index.holds(IndexEntry { origin, base, offset: offset + 8 }));
        }
    }

    #[test]
    fn first_from_finds_native_and_compacted_events() {
        let mut index = StreamIndex::default();
        for (base, offset) in [(0, 64), (0, 200), (1000, 80), (3000, 64), (3000, 500)] {
            index.push(base, offset, 10, 0);
        }
        check(&index, &[(64, 0, 64), (200, 0, 200), (1080, 1000, 80), (3064, 3000, 64), (3500, 3000, 500)]);

        let entry = |origin, base, offset| {
            let entry = IndexEntry { origin: LogPosition::new(origin), base, offset };
            CompactedRecord { entry, bytes: 10, at_ms: 0 }
        };
        index.forget_segment(1000);
        index.relocate(&[entry(1080, 3000, 600)]);
        index.forget_segment(0);
        index.relocate(&[entry(200, 3000, 640), entry(64, 3000, 680)]);
        check(&index, &[(64, 3000, 680), (200, 3000, 640), (1080, 3000, 600), (3064, 3000, 64), (3500, 3000, 500)]);
        index.forget_segment(3000);
        assert_eq!(index.first_from(LogPosition::ORIGIN), None);
    }

    #[test]
    fn time_search_skips_older_blocks() {
        let mut index = StreamIndex::default();
        for nth in 0..1000_u32 {
            index.push(u64::from(nth / 600) * 8000, 64 + nth % 600 * 8, 8, u64::from(nth));
        }
        for at_ms in [0, 1, 255, 256, 599, 600, 999, 1000] {
            let (native, moved) = index.since(at_ms);
            let native: Vec<_> = native.collect();
            let looked_past = native.iter().take_while(|entry| entry.origin.get() < at_ms).count();
            let all = 1000_usize.saturating_sub(at_ms as usize);
            assert!(looked_past < BLOCK_EVENTS && native.len() < all + BLOCK_EVENTS, "{at_ms}");
            assert!(native.len() >= all && moved.count() == 0, "{at_ms}");
        }
    }

    #[test]
    fn newest_events_by_size_are_found_from_end() {
        let mut index = StreamIndex::default();
        for base in [0, 1000] {
            (0..10).for_each(|nth| index.push(base, 64 + nth * 8, 10, 0));
        }
        let at = LogPosition::new;
        for (bytes, wanted) in [
            (1000, None),
            (200, None),
            (199, Some(at(72))),
            (105, Some(at(137))),
            (100, Some(at(137))),
            (50, Some(at(1104))),
            (0, Some(at(1137))),
        ] {
            assert_eq!(index.newest(bytes), wanted, "{bytes}");
        }
    }
}
