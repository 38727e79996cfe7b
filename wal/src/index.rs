//! Where a stream's events are, by segment: four bytes of memory for each, and twelve for one that
//! was moved. When they came is kept for blocks of [`BLOCK_EVENTS`] only; who looks for a time reads the
//! records of one block.
//!
//! An event is named by its origin, the position at which it was appended. Where it lies is another
//! matter once it was moved forward.

use std::collections::VecDeque;

use crate::cursor::Cursor;
use crate::position::LogPosition;

/// Events that share one time in memory, 8 bytes: a search for a time reads so many records at most, some
/// 100 µs when their pages are cached.
const BLOCK_EVENTS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct StreamIndex {
    /// Events where they were appended, in order of base.
    chunks: VecDeque<IndexBlock>,
    /// Events that were moved, by the segment they lie in now.
    compacted: Vec<CompactedEntry>,
}

/// An event and its place.
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
    /// What these records take in the segment.
    bytes: u64,
    /// The latest time in each whole block of [`BLOCK_EVENTS`]. Clocks step back, so it need not rise.
    latest_ms: Vec<u64>,
    /// ... and in the one behind them. Beside what an append touches anyway: of a thousand streams each list is a miss.
    newest_ms: u64,
}

/// An event that was copied forward: where to, its record's bytes there, and when it came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompactedRecord {
    pub(crate) entry: IndexEntry,
    pub(crate) bytes: usize,
    pub(crate) at_ms: u64,
}

#[derive(Debug)]
struct CompactedEntry {
    base: u64,
    /// Rising; never empty. `offsets` says where each lies.
    origins: Vec<LogPosition>,
    offsets: Vec<u32>,
    bytes: u64,
    latest_ms: u64,
}

impl StreamIndex {
    /// Positions come in rising order. `bytes`: what the record takes in the segment.
    pub(crate) fn push(&mut self, base: u64, offset: u32, bytes: usize, at_ms: u64) {
        if self.chunks.back().is_none_or(|chunk| chunk.base != base) {
            if let Some(full) = self.chunks.back_mut() {
                full.shrink(); // nothing more comes: of a million events' room a quarter would stay empty
            }
            self.chunks.push_back(IndexBlock::at(base));
        }
        let Some(chunk) = self.chunks.back_mut() else { return };
        chunk.push(offset, bytes, at_ms);
    }

    /// Takes moved events in, in any order; the segment that they came from is to be forgotten.
    pub(crate) fn relocate(&mut self, copies: &[CompactedRecord]) {
        for CompactedRecord { entry: spot, bytes, at_ms } in copies {
            let at = self.compacted.partition_point(|chunk| chunk.base < spot.base);
            if self.compacted.get(at).is_none_or(|chunk| chunk.base != spot.base) {
                let base = spot.base;
                let empty = CompactedEntry { base, origins: Vec::new(), offsets: Vec::new(), bytes: 0, latest_ms: 0 };
                self.compacted.insert(at, empty);
            }
            let chunk = &mut self.compacted[at];
            // Moves of one segment come in order, so this is nearly always the end.
            let nth = chunk.origins.partition_point(|origin| *origin < spot.origin);
            chunk.origins.insert(nth, spot.origin);
            chunk.offsets.insert(nth, spot.offset);
            chunk.bytes += *bytes as u64;
            chunk.latest_ms = chunk.latest_ms.max(*at_ms);
        }
    }

    /// The first event at or after `from`.
    pub(crate) fn first_from(&self, from: LogPosition) -> Option<IndexEntry> {
        let moved = self.compacted.iter().filter_map(|chunk| chunk.first_from(from));
        let moved = moved.min_by_key(|spot| spot.origin);
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

    /// Events that may have come at `at_ms` or later, and among them the first that did: where they were
    /// appended in order of origin, and then by chunk those that were moved. Blocks that are older as a
    /// whole are left out.
    pub(crate) fn since(&self, at_ms: u64) -> (impl Iterator<Item = IndexEntry>, impl Iterator<Item = IndexEntry>) {
        let native = self.chunks.iter().flat_map(move |chunk| {
            let latest = chunk.latest_ms.iter().chain(std::iter::once(&chunk.newest_ms));
            let blocks = chunk.offsets.chunks(BLOCK_EVENTS).zip(latest);
            let young = blocks.filter(move |(_, latest)| **latest >= at_ms).flat_map(|(block, _)| block);
            young.map(|offset| chunk.entry(*offset))
        });
        let moved = self.compacted.iter().filter(move |chunk| chunk.latest_ms >= at_ms).flat_map(|chunk| {
            let spots = chunk.origins.iter().zip(&chunk.offsets);
            spots.map(|(origin, offset)| IndexEntry { origin: *origin, base: chunk.base, offset: *offset })
        });
        (native, moved)
    }

    /// The first event of the newest ones that take `bytes_max` together; `None` when all do not take
    /// that much. Inside a segment by number, not by size.
    pub(crate) fn newest(&self, bytes_max: u64) -> Option<LogPosition> {
        let mut all: Vec<(LogPosition, u64, usize, IndexPart<'_>)> = Vec::new(); // one entry a segment
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

    /// Whether the event that was appended at `spot.origin` is kept at this place.
    pub(crate) fn holds(&self, spot: IndexEntry) -> bool {
        if spot.base.checked_add(spot.offset.into()) == Some(spot.origin.get()) {
            let found = self.chunks.binary_search_by_key(&spot.base, |chunk| chunk.base);
            return found.is_ok_and(|nth| self.chunks[nth].offsets.binary_search(&spot.offset).is_ok());
        }
        let Ok(nth) = self.compacted.binary_search_by_key(&spot.base, |chunk| chunk.base) else {
            return false;
        };
        let chunk = &self.compacted[nth];
        chunk.origins.binary_search(&spot.origin).is_ok_and(|at| chunk.offsets[at] == spot.offset)
    }

    /// Whether the event that was appended here still lies here.
    pub(crate) fn has_native(&self, origin: LogPosition) -> bool {
        self.first_native(origin).is_some_and(|spot| spot.origin == origin)
    }

    /// The event that lies first in this segment at or after `offset`.
    pub(crate) fn next_in(&self, base: u64, offset: u32) -> Option<IndexEntry> {
        let native = self.chunks.binary_search_by_key(&base, |chunk| chunk.base).ok().and_then(|nth| {
            let chunk = &self.chunks[nth];
            let first = chunk.offsets.partition_point(|other| *other < offset);
            chunk.offsets.get(first).map(|offset| chunk.entry(*offset))
        });
        let moved = self.compacted.iter().filter(|chunk| chunk.base == base).flat_map(|chunk| {
            let spots = chunk.origins.iter().zip(&chunk.offsets);
            spots.map(move |(origin, offset)| IndexEntry { origin: *origin, base, offset: *offset })
        });
        native.into_iter().chain(moved.filter(|spot| spot.offset >= offset)).min_by_key(|spot| spot.offset)
    }

    /// Events in this segment that are not done.
    pub(crate) fn count_in(&self, base: u64, done: &Cursor) -> usize {
        let native = self.chunks.binary_search_by_key(&base, |chunk| chunk.base).ok();
        let native = native.map_or(0, |nth| self.chunks[nth].open(done));
        let moved = self.compacted.iter().filter(|chunk| chunk.base == base);
        native + moved.map(|chunk| chunk.open(done)).sum::<usize>()
    }

    /// The oldest event that was moved.
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

    /// For each segment with events that are not done: its base and what they take, never 0.
    /// Of a chunk that is needed in part the share is taken by number, not by size.
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
    /// Where the event after the first `nth` begins; after all of them, where the last one began and a byte.
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
        // Whoever keeps up asks for one of the last: back from the end in steps that double, and not through the middle of
        // a million, where each look is a miss.
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

/// Of `events` between two positions: how many are not done. `before` counts those before a position.
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
            let found = index.first_from(from).map(|spot| (spot.origin.get(), spot.base, spot.offset));
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
    fn an_event_is_found_from_any_position_up_to_its_own_wherever_it_lies() {
        let mut index = StreamIndex::default();
        for (base, offset) in [(0, 64), (0, 200), (1000, 80), (3000, 64), (3000, 500)] {
            index.push(base, offset, 10, 0);
        }
        check(&index, &[(64, 0, 64), (200, 0, 200), (1080, 1000, 80), (3064, 3000, 64), (3500, 3000, 500)]);

        let spot = |origin, base, offset| {
            let spot = IndexEntry { origin: LogPosition::new(origin), base, offset };
            CompactedRecord { entry: spot, bytes: 10, at_ms: 0 }
        };
        index.forget_segment(1000);
        index.relocate(&[spot(1080, 3000, 600)]);
        index.forget_segment(0);
        index.relocate(&[spot(200, 3000, 640), spot(64, 3000, 680)]);
        check(&index, &[(64, 3000, 680), (200, 3000, 640), (1080, 3000, 600), (3064, 3000, 64), (3500, 3000, 500)]);
        index.forget_segment(3000);
        assert_eq!(index.first_from(LogPosition::ORIGIN), None);
    }

    #[test]
    fn blocks_that_are_older_as_a_whole_are_not_looked_at() {
        let mut index = StreamIndex::default();
        for nth in 0..1000_u32 {
            index.push(u64::from(nth / 600) * 8000, 64 + nth % 600 * 8, 8, u64::from(nth));
        }
        for at_ms in [0, 1, 255, 256, 599, 600, 999, 1000] {
            let (native, moved) = index.since(at_ms);
            let native: Vec<_> = native.collect();
            let looked_past = native.iter().take_while(|spot| spot.origin.get() < at_ms).count();
            let all = 1000_usize.saturating_sub(at_ms as usize);
            assert!(looked_past < BLOCK_EVENTS && native.len() < all + BLOCK_EVENTS, "{at_ms}");
            assert!(native.len() >= all && moved.count() == 0, "{at_ms}");
        }
    }

    #[test]
    fn the_newest_events_of_so_many_bytes_are_found_from_the_end() {
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
