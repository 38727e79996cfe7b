//! Ordering keys: events with the same key are delivered in order, one at a time.
//!
//! A key is identified by its hash: two keys that collide only wait for each other.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;
use wal::LogPosition;

use codec::record::EventRecord;

/// The ordering key of an event's `partitionkey`.
pub(super) fn ordering_key(event: &EventRecord) -> u64 {
    FixedState::default().hash_one(event.attribute("partitionkey"))
}

/// Bounded by the events that a subscriber has unfinished.
#[derive(Debug, Default)]
pub(super) struct OrderingKeys {
    /// Keys with an event in flight, and the events that wait for it.
    behind: HashMap<u64, VecDeque<LogPosition>, RandomState>,
    /// The key of each event in flight.
    of: HashMap<LogPosition, u64, RandomState>,
}

impl OrderingKeys {
    /// `true`: the key was free and the event goes at once. Otherwise [`OrderingKeys::release`] returns it
    /// when its turn has come.
    pub(super) fn enter(&mut self, key: u64, position: LogPosition) -> bool {
        if let Some(behind) = self.behind.get_mut(&key) {
            behind.push_back(position);
            return false;
        }
        self.behind.insert(key, VecDeque::new());
        self.of.insert(position, key);
        true
    }

    /// The event is finished; returns the next one of its key.
    pub(super) fn release(&mut self, position: LogPosition) -> Option<LogPosition> {
        let key = self.of.remove(&position)?;
        let next = self.behind.get_mut(&key).and_then(VecDeque::pop_front);
        match next {
            Some(next) => {
                self.of.insert(next, key);
            }
            None => {
                self.behind.remove(&key);
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// One at a time for each key, in the order of entry; no event remains.
        #[test]
        fn events_of_key_keep_their_order(keys in proptest::collection::vec(0_u64..4, 0..60), seed: u64) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut ordering, mut going, mut done) = (OrderingKeys::default(), Vec::new(), Vec::new());
            let mut entering = (0_u64..).map(LogPosition::new).zip(&keys);
            loop {
                let next = if rng.bool() || going.is_empty() { entering.next() } else { None };
                if let Some((position, key)) = next {
                    if ordering.enter(*key, position) {
                        going.push(position);
                    }
                } else if let Some(at) = rng.choice(0..going.len()) {
                    let position = going.swap_remove(at);
                    done.push(position);
                    going.extend(ordering.release(position));
                } else {
                    break;
                }
            }
            prop_assert_eq!(done.len(), keys.len());
            for key in 0..4 {
                let of_it: Vec<_> =
                    done.iter().filter(|at| keys[usize::try_from(at.get()).unwrap_or(0)] == key).collect();
                prop_assert!(of_it.is_sorted());
            }
            prop_assert!(ordering.behind.is_empty() && ordering.of.is_empty());
        }
    }
}
