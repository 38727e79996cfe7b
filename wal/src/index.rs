//! Where a stream's events are, by segment: four bytes of memory for each, and twelve for one that
//! was moved.
//!
//! An event is named by its origin, the position at which it was appended. Where it lies is another
//! matter once it was moved forward.

use std::collections::VecDeque;

use crate::position::Position;

#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Events where they were appended, in order of base.
    chunks: VecDeque<Chunk>,
    /// Events that were moved, by the segment they lie in now.
    moved: Vec<Moved>,
}

/// An event and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) origin: Position,
    pub(crate) base: u64,
    pub(crate) offset: u32,
}

#[derive(Debug)]
struct Chunk {
    base: u64,
    /// Rising; never empty.
    offsets: Vec<u32>,
    /// What these records take in the segment.
    bytes: u64,
}

#[derive(Debug)]
struct Moved {
    base: u64,
    /// Rising; never empty. `offsets` says where each lies.
    origins: Vec<Position>,
    offsets: Vec<u32>,
    bytes: u64,
}

impl Index {
    /// Positions come in rising order. `bytes`: what the record takes in the segment.
    pub(crate) fn push(&mut self, base: u64, offset: u32, bytes: usize) {
        match self.chunks.back_mut() {
            Some(chunk) if chunk.base == base => {
                chunk.offsets.push(offset);
                chunk.bytes += bytes as u64;
            }
            _ => self.chunks.push_back(Chunk { base, offsets: vec![offset], bytes: bytes as u64 }),
        }
    }

    /// Takes moved events in, in any order; the segment that they came from is to be forgotten.
    pub(crate) fn relocate(&mut self, spots: &[(Spot, usize)]) {
        for (spot, bytes) in spots {
            let at = self.moved.partition_point(|chunk| chunk.base < spot.base);
            if self.moved.get(at).is_none_or(|chunk| chunk.base != spot.base) {
                let base = spot.base;
                self.moved.insert(at, Moved { base, origins: Vec::new(), offsets: Vec::new(), bytes: 0 });
            }
            let chunk = &mut self.moved[at];
            // Moves of one segment come in order, so this is nearly always the end.
            let nth = chunk.origins.partition_point(|origin| *origin < spot.origin);
            chunk.origins.insert(nth, spot.origin);
            chunk.offsets.insert(nth, spot.offset);
            chunk.bytes += *bytes as u64;
        }
    }

    /// The first event at or after `from`.
    pub(crate) fn first_from(&self, from: Position) -> Option<Spot> {
        let moved = self.moved.iter().filter_map(|chunk| chunk.first_from(from));
        let moved = moved.min_by_key(|spot| spot.origin);
        let native = self.first_native(from);
        match (moved, native) {
            (Some(moved), Some(native)) if native.origin < moved.origin => Some(native),
            (moved, native) => moved.or(native),
        }
    }

    fn first_native(&self, from: Position) -> Option<Spot> {
        let after = self.chunks.partition_point(|chunk| chunk.base <= from.get());
        if let Some(chunk) = after.checked_sub(1).map(|last| &self.chunks[last]) {
            let first = chunk.first_from(from);
            if let Some(offset) = chunk.offsets.get(first) {
                return Some(chunk.spot(*offset));
            }
        }
        self.chunks.get(after).map(|chunk| chunk.spot(chunk.offsets[0]))
    }

    /// Whether the event that was appended at `spot.origin` is kept at this place.
    pub(crate) fn holds(&self, spot: Spot) -> bool {
        if spot.base.checked_add(spot.offset.into()) == Some(spot.origin.get()) {
            let found = self.chunks.binary_search_by_key(&spot.base, |chunk| chunk.base);
            return found.is_ok_and(|nth| self.chunks[nth].offsets.binary_search(&spot.offset).is_ok());
        }
        let Ok(nth) = self.moved.binary_search_by_key(&spot.base, |chunk| chunk.base) else { return false };
        let chunk = &self.moved[nth];
        chunk.origins.binary_search(&spot.origin).is_ok_and(|at| chunk.offsets[at] == spot.offset)
    }

    /// Whether the event that was appended here still lies here.
    pub(crate) fn has_native(&self, origin: Position) -> bool {
        self.first_native(origin).is_some_and(|spot| spot.origin == origin)
    }

    /// The event that lies first in this segment at or after `offset`.
    pub(crate) fn next_in(&self, base: u64, offset: u32) -> Option<Spot> {
        let native = self.chunks.binary_search_by_key(&base, |chunk| chunk.base).ok().and_then(|nth| {
            let chunk = &self.chunks[nth];
            let first = chunk.offsets.partition_point(|other| *other < offset);
            chunk.offsets.get(first).map(|offset| chunk.spot(*offset))
        });
        let moved = self.moved.iter().filter(|chunk| chunk.base == base).flat_map(|chunk| {
            let spots = chunk.origins.iter().zip(&chunk.offsets);
            spots.map(move |(origin, offset)| Spot { origin: *origin, base, offset: *offset })
        });
        native.into_iter().chain(moved.filter(|spot| spot.offset >= offset)).min_by_key(|spot| spot.offset)
    }

    /// Events at or after `floor` that lie in this segment.
    pub(crate) fn count_in(&self, base: u64, floor: Position) -> usize {
        let native = self.chunks.binary_search_by_key(&base, |chunk| chunk.base).ok();
        let native =
            native.map_or(0, |nth| self.chunks[nth].offsets.len() - self.chunks[nth].first_from(floor));
        let moved = self.moved.iter().filter(|chunk| chunk.base == base);
        native + moved.map(|chunk| chunk.origins.len() - chunk.rank(floor)).sum::<usize>()
    }

    /// The oldest event that was moved.
    pub(crate) fn first_moved(&self) -> Option<Position> {
        self.moved.iter().map(|chunk| chunk.origins[0]).min()
    }

    /// Events at or after `from`.
    pub(crate) fn count_from(&self, from: Position) -> u64 {
        let count = self.chunks.iter().rev().map_while(|chunk| {
            let left = chunk.offsets.len() - chunk.first_from(from);
            (left > 0).then_some(left as u64)
        });
        let moved = self.moved.iter().map(|chunk| (chunk.origins.len() - chunk.rank(from)) as u64);
        count.sum::<u64>() + moved.sum::<u64>()
    }

    /// For each segment with events at or after `floor`: its base and what they take, never 0.
    /// Of a chunk that is needed in part the share is taken by number, not by size.
    pub(crate) fn live_bytes(&self, floor: Position) -> impl Iterator<Item = (u64, u64)> {
        let share = |bytes: u64, live: usize, all: usize| (bytes * live as u64 / all as u64).max(1);
        let native = self.chunks.iter().rev().map_while(move |chunk| {
            let live = chunk.offsets.len() - chunk.first_from(floor);
            (live > 0).then(|| (chunk.base, share(chunk.bytes, live, chunk.offsets.len())))
        });
        let moved = self.moved.iter().filter_map(move |chunk| {
            let live = chunk.origins.len() - chunk.rank(floor);
            (live > 0).then(|| (chunk.base, share(chunk.bytes, live, chunk.origins.len())))
        });
        native.chain(moved)
    }

    pub(crate) fn forget_segment(&mut self, base: u64) {
        if let Ok(found) = self.chunks.binary_search_by_key(&base, |chunk| chunk.base) {
            self.chunks.remove(found);
        }
        self.moved.retain(|chunk| chunk.base != base);
    }
}

impl Chunk {
    fn first_from(&self, from: Position) -> usize {
        let wanted = from.get().saturating_sub(self.base);
        self.offsets.partition_point(|offset| u64::from(*offset) < wanted)
    }

    const fn spot(&self, offset: u32) -> Spot {
        Spot { origin: Position::new(self.base + offset as u64), base: self.base, offset }
    }
}

impl Moved {
    fn rank(&self, from: Position) -> usize {
        if self.origins[0] >= from { 0 } else { self.origins.partition_point(|origin| *origin < from) }
    }

    fn first_from(&self, from: Position) -> Option<Spot> {
        let nth = self.rank(from);
        let (origin, offset) = (*self.origins.get(nth)?, *self.offsets.get(nth)?);
        Some(Spot { origin, base: self.base, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (origin, base, offset)
    fn check(index: &Index, events: &[(u64, u64, u32)]) {
        let mut events = events.to_vec();
        events.sort_unstable();
        for from in 0..3600 {
            let from = Position::new(from);
            let wanted: Vec<_> = events.iter().filter(|(origin, ..)| *origin >= from.get()).collect();
            let found = index.first_from(from).map(|spot| (spot.origin.get(), spot.base, spot.offset));
            assert_eq!(found.as_ref(), wanted.first().copied(), "from {from}");
            assert_eq!(index.count_from(from), wanted.len() as u64, "from {from}");
            let live: u64 = index.live_bytes(from).map(|(_, bytes)| bytes).sum();
            assert_eq!(live, 10 * wanted.len() as u64, "from {from}");
        }
        for (origin, base, offset) in events {
            let origin = Position::new(origin);
            assert!(index.holds(Spot { origin, base, offset }));
            assert!(!index.holds(Spot { origin, base, offset: offset + 8 }));
        }
    }

    #[test]
    fn an_event_is_found_from_any_position_up_to_its_own_wherever_it_lies() {
        let mut index = Index::default();
        for (base, offset) in [(0, 64), (0, 200), (1000, 80), (3000, 64), (3000, 500)] {
            index.push(base, offset, 10);
        }
        check(&index, &[(64, 0, 64), (200, 0, 200), (1080, 1000, 80), (3064, 3000, 64), (3500, 3000, 500)]);

        let spot = |origin, base, offset| (Spot { origin: Position::new(origin), base, offset }, 10);
        index.forget_segment(1000);
        index.relocate(&[spot(1080, 3000, 600)]);
        index.forget_segment(0);
        index.relocate(&[spot(200, 3000, 640), spot(64, 3000, 680)]);
        check(
            &index,
            &[(64, 3000, 680), (200, 3000, 640), (1080, 3000, 600), (3064, 3000, 64), (3500, 3000, 500)],
        );
        index.forget_segment(3000);
        assert_eq!(index.first_from(Position::ORIGIN), None);
    }
}
