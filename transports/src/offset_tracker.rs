//! How far a sequence of messages is settled without a gap.

use std::collections::VecDeque;

/// Positions in the order of their messages. Only the settled ones before the first unsettled one count.
#[derive(Debug, Default)]
pub(crate) struct OffsetTracker {
    pending: VecDeque<(u64, bool)>,
}

impl OffsetTracker {
    /// A message is on its way; once it is settled, everything before `next` is done.
    pub(crate) fn begin(&mut self, next: u64) {
        debug_assert!(self.pending.back().is_none_or(|(last, _)| *last < next));
        self.pending.push_back((next, false));
    }

    /// The message of [`OffsetTracker::begin`] is settled. Returns how far all are, if that moved.
    pub(crate) fn settle(&mut self, next: u64) -> Option<u64> {
        let at = self.pending.binary_search_by_key(&next, |(next, _)| *next).ok()?;
        self.pending[at].1 = true;
        let mut moved = None;
        while let Some((next, true)) = self.pending.front() {
            moved = Some(*next);
            self.pending.pop_front();
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_holds_the_position_back() {
        let mut progress = OffsetTracker::default();
        for next in [10, 20, 30] {
            progress.begin(next);
        }
        assert_eq!(progress.settle(30), None);
        assert_eq!(progress.settle(10), Some(10));
        assert_eq!(progress.settle(20), Some(30));
        assert_eq!(progress.settle(20), None);
    }
}
