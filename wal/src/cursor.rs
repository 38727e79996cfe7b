//! The progress of a subscriber: a low mark below which everything is done, and done ranges above it.
//!
//! It stores ranges rather than single positions, because a read proves more than one record done: the
//! reader asked from one position and got the first record after it, so everything up to
//! [`crate::Record::next`] is settled. Adjacent ranges merge, and a million acknowledgements are one
//! number.

use std::ops::Range;

use crate::position::LogPosition;

/// The positions that one subscriber has finished.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cursor {
    low: LogPosition,
    /// Sorted, non-empty, not touching each other, all above `low`.
    done: Vec<Range<LogPosition>>,
}

impl Cursor {
    /// Everything below `low` is done, and nothing at or after it.
    #[must_use]
    pub const fn at(low: LogPosition) -> Self {
        Self { low, done: Vec::new() }
    }

    /// The low mark: everything below it is done.
    #[must_use]
    pub const fn low(&self) -> LogPosition {
        self.low
    }

    /// The done ranges above the low mark, in order.
    #[must_use]
    pub fn done(&self) -> &[Range<LogPosition>] {
        &self.done
    }

    #[must_use]
    pub fn is_done(&self, position: LogPosition) -> bool {
        if position < self.low {
            return true;
        }
        let after = self.done.partition_point(|range| range.start <= position);
        after > 0 && self.done[after - 1].end > position
    }

    /// The first position at or after `from` that is not done: where a reader continues.
    #[must_use]
    pub fn next_open(&self, from: LogPosition) -> LogPosition {
        let from = from.max(self.low);
        let after = self.done.partition_point(|range| range.start <= from);
        match after.checked_sub(1).map(|last| &self.done[last]) {
            Some(range) if range.end > from => range.end,
            _ => from,
        }
    }

    /// Marks a range done; an empty one changes nothing.
    pub fn complete(&mut self, range: Range<LogPosition>) {
        if range.start >= range.end || range.end <= self.low {
            return;
        }
        if range.start <= self.low {
            self.low = range.end;
        } else {
            self.insert(range);
        }
        self.absorb();
    }

    fn insert(&mut self, mut range: Range<LogPosition>) {
        let first = self.done.partition_point(|other| other.end < range.start);
        let last = self.done.partition_point(|other| other.start <= range.end);
        if first < last {
            range.start = range.start.min(self.done[first].start);
            range.end = range.end.max(self.done[last - 1].end);
        }
        self.done.splice(first..last, [range]);
    }

    /// Merges the ranges that the low mark has reached.
    fn absorb(&mut self) {
        let reached = self.done.partition_point(|range| range.start <= self.low);
        for range in self.done.drain(..reached) {
            self.low = self.low.max(range.end);
        }
        debug_assert!(self.done.first().is_none_or(|range| range.start > self.low));
    }

    /// The positions that are done in both.
    pub(crate) fn common(&self, other: &Self) -> Self {
        let (mut mine, mut others) = (self.ranges().peekable(), other.ranges().peekable());
        let mut both = Self::default();
        while let (Some(one), Some(two)) = (mine.peek(), others.peek()) {
            both.complete(one.start.max(two.start)..one.end.min(two.end));
            if one.end <= two.end {
                mine.next();
            } else {
                others.next();
            }
        }
        both
    }

    /// All done ranges, first the one below the low mark.
    fn ranges(&self) -> impl Iterator<Item = Range<LogPosition>> {
        std::iter::once(LogPosition::ORIGIN..self.low).chain(self.done.iter().cloned())
    }

    /// The cursor as it is stored: only the first `ranges_max` ranges above the low mark.
    pub(crate) fn cut(&self, ranges_max: usize) -> Self {
        Self { low: self.low, done: self.done.iter().take(ranges_max).cloned().collect() }
    }

    /// Ranges beyond the low mark that end after `from`.
    pub(crate) fn done_from(&self, from: LogPosition) -> &[Range<LogPosition>] {
        &self.done[self.done.partition_point(|range| range.end <= from)..]
    }

    /// Removes positions at or after `end`: no record exists there yet.
    pub(crate) fn clamp(&mut self, end: LogPosition) {
        self.low = self.low.min(end);
        self.done.retain(|range| range.start < end);
        if let Some(last) = self.done.last_mut() {
            last.end = last.end.min(end);
        }
        self.absorb();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, end: u64) -> Range<LogPosition> {
        LogPosition::new(start)..LogPosition::new(end)
    }

    #[test]
    fn acknowledgements_in_any_order_merge_into_low_mark() {
        let mut mark = Cursor::at(LogPosition::new(10));
        for (start, end) in [(30, 40), (20, 30), (50, 60), (10, 20), (40, 50)] {
            mark.complete(range(start, end));
        }
        assert_eq!(mark, Cursor::at(LogPosition::new(60)));
    }

    fn ranges_of(ranges: &[(u64, u64)]) -> Cursor {
        let mut mark = Cursor::default();
        ranges.iter().for_each(|(start, length)| mark.complete(range(*start, start + length)));
        mark
    }

    proptest! {
        #[test]
        fn cursor_contains_exactly_completed_ranges(
            low in 0_u64..20,
            ranges in proptest::collection::vec((0_u64..100, 0_u64..12), 0..40),
            others in proptest::collection::vec((0_u64..100, 0_u64..12), 0..40),
        ) {
            let mut mark = Cursor::at(LogPosition::new(low));
            let mut done = [false; 128];
            done[..low as usize].fill(true);
            for (start, length) in ranges {
                mark.complete(range(start, start + length));
                done[start as usize..(start + length) as usize].fill(true);
            }
            for (at, done) in done.iter().enumerate() {
                prop_assert_eq!(mark.is_done(LogPosition::new(at as u64)), *done, "at {}", at);
            }
            for pair in mark.done().windows(2) {
                prop_assert!(pair[0].end < pair[1].start);
            }
            let other = ranges_of(&others);
            let both = mark.common(&other);
            for at in 0..128 {
                let at = LogPosition::new(at);
                prop_assert_eq!(both.is_done(at), mark.is_done(at) && other.is_done(at), "at {}", at);
            }
            let open = mark.next_open(LogPosition::ORIGIN).get() as usize;
            prop_assert!(done[..open].iter().all(|done| *done) && !done[open]);
        }
    }
}
