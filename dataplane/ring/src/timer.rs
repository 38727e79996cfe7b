//! Timers: a heap of deadlines in the executor, and no kernel operation per timer.
//!
//! Nearly all timers guard something that succeeds, and are cleared long before their deadline. So the
//! common cases are cheap: a deadline later than all others goes to the end of the heap, a timer that is
//! polled again finds its waiter by number, and one that is cleared only frees its slot; its deadline stays
//! in the heap until it expires, or until the cleared ones outnumber the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::tick::Tick;
use crate::waiter::Waiter;

/// Timers by deadline; equal deadlines fire in the order in which they were set.
#[derive(Default)]
pub(crate) struct TimerHeap {
    /// The earliest on top. Some are cleared: their slot is free, or belongs to another timer.
    moments: BinaryHeap<Reverse<(Tick, TimerId)>>,
    positions: Vec<HeapEntry>,
    free: Vec<usize>,
    named: u64,
}

/// The id of a timer that was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId {
    /// Counts up, so that ids are in the order in which timers were set.
    id: u64,
    slot: usize,
}

struct HeapEntry {
    /// The timer that uses the slot, or used it last.
    id: u64,
    waiter: Option<Waiter>,
}

/// Number of cleared deadlines that are not worth a sweep.
const CLEARED_FEW: usize = 64;

impl TimerHeap {
    /// Sets a timer, unless the one with this id is set; returns the slot for its waiter, to be filled at
    /// once.
    pub(crate) fn set(&mut self, at: Tick, name: Option<TimerId>) -> (TimerId, &mut Option<Waiter>) {
        let name = name.filter(|name| is_set(&self.positions, *name)).unwrap_or_else(|| self.add(at));
        (name, &mut self.positions[name.slot].waiter)
    }

    fn add(&mut self, at: Tick) -> TimerId {
        self.named += 1;
        let mine = HeapEntry { id: self.named, waiter: None };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.positions[slot] = mine;
                slot
            }
            None => {
                self.positions.push(mine);
                self.positions.len() - 1
            }
        };
        let name = TimerId { id: self.named, slot };
        self.moments.push(Reverse((at, name)));
        name
    }

    pub(crate) fn clear(&mut self, name: TimerId) {
        self.take(name);
        let (all, set) = (self.moments.len(), self.positions.len() - self.free.len());
        if all > 2 * set + CLEARED_FEW {
            // At most one step for each timer cleared since the last sweep.
            let slots = &self.positions;
            self.moments.retain(|Reverse((_, name))| is_set(slots, *name));
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&mut self) -> Option<Tick> {
        while let Some(Reverse((at, name))) = self.moments.peek() {
            if is_set(&self.positions, *name) {
                return Some(*at);
            }
            self.moments.pop();
        }
        None
    }

    /// Takes one timer whose deadline has come.
    pub(crate) fn pop_due(&mut self, now: Tick) -> Option<Waiter> {
        while self.moments.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Reverse((_, name)) = self.moments.pop()?;
            let due = self.take(name);
            if due.is_some() {
                return due;
            }
        }
        None
    }

    /// Frees the timer's slot, if it is still set.
    fn take(&mut self, name: TimerId) -> Option<Waiter> {
        let slot = self.positions.get_mut(name.slot).filter(|slot| slot.id == name.id)?;
        let waiter = slot.waiter.take()?;
        self.free.push(name.slot);
        Some(waiter)
    }
}

fn is_set(slots: &[HeapEntry], name: TimerId) -> bool {
    slots.get(name.slot).is_some_and(|slot| slot.id == name.id && slot.waiter.is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn begin(timers: &mut TimerHeap, at: Tick, name: Option<TimerId>, waker: &Waker) -> TimerId {
        let (name, waiter) = timers.set(at, name);
        *waiter = Some(Waiter::Other(waker.clone()));
        name
    }

    fn due(timers: &mut TimerHeap, now: Tick) -> Option<Waker> {
        timers.pop_due(now).map(|waiter| match waiter {
            Waiter::Other(waker) => waker,
            Waiter::Task(_) => unreachable!("no waiter here is a task"),
        })
    }

    fn after(millis: u64) -> Tick {
        Tick::default() + Duration::from_millis(millis)
    }

    /// Compares with an ordered list: random timers are set, set again and cleared in any order.
    #[test]
    fn each_active_timer_fires_once_at_its_deadline() {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut timers = TimerHeap::default();
        let counts: Vec<_> = (0..2000).map(|_| Arc::new(WakeCount::default())).collect();
        let mut set: Vec<(Tick, TimerId, usize)> = Vec::new();
        let mut expected = vec![0; counts.len()];
        let mut now = 0;
        for (nth, count) in counts.iter().enumerate() {
            let at = after(now + rng.u64(1..500));
            let name = begin(&mut timers, at, None, &Waker::from(Arc::clone(count)));
            assert_eq!(begin(&mut timers, at, Some(name), &Waker::from(Arc::clone(count))), name);
            set.push((at, name, nth));
            if rng.bool() {
                let (_, name, _) = set.swap_remove(rng.usize(..set.len()));
                timers.clear(name);
                timers.clear(name); // frees no other timer's slot
            }
            assert_eq!(timers.next(), set.iter().map(|(at, ..)| *at).min());
            assert!(timers.moments.len() <= 2 * set.len() + CLEARED_FEW + 1);
            now += rng.u64(..3);
            while let Some(waker) = due(&mut timers, after(now)) {
                waker.wake();
            }
            set.retain(|(at, _, nth)| {
                expected[*nth] += usize::from(*at <= after(now));
                *at > after(now)
            });
        }
        let came: Vec<_> = counts.iter().map(|count| count.0.load(Relaxed)).collect();
        assert_eq!(came, expected);
        assert!(expected.contains(&1) && timers.positions.len() < counts.len());
    }

    #[test]
    fn equal_deadlines_fire_in_order_of_setting() {
        let mut timers = TimerHeap::default();
        let wakers: Vec<_> = (0..20).map(|_| Waker::from(Arc::new(WakeCount::default()))).collect();
        let names: Vec<_> = wakers.iter().map(|waker| begin(&mut timers, after(1), None, waker)).collect();
        timers.clear(names[3]);
        begin(&mut timers, after(1), None, &wakers[3]); // in the slot of the one before, and last in order
        let order = (0..20).filter(|nth| *nth != 3).chain([3]);
        for nth in order {
            assert!(due(&mut timers, after(1)).unwrap().will_wake(&wakers[nth]), "{nth}");
        }
        assert!(timers.pop_due(after(9)).is_none() && timers.next().is_none());
    }
}
