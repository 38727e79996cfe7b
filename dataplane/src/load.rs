//! Who is busy with how much: counters that outlive the table they hang on.
//!
//! A table is replaced whole, but a request that began under the old one still counts against its
//! instance. So control keeps these behind `Arc`s by identity and puts the same ones into every
//! table. They are plain atomics on their own cache lines: an uncontended add costs some 5 ns, a
//! contended one some 50 ns, against 10 µs and more for the cheapest request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

/// Requests inside one instance, over all cores.
#[derive(Debug, Default)]
pub struct EndpointLoad {
    in_flight: CachePadded<AtomicU32>,
}

impl EndpointLoad {
    /// Requests inside the instance now.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Takes one of `slots_max` places (0 = no limit) unless all are taken. The place is given back
    /// when the guard is dropped.
    #[must_use]
    pub fn try_enter(self: &Arc<Self>, slots_max: u32) -> Option<InFlight> {
        let mut held = self.in_flight.load(Relaxed);
        loop {
            if slots_max != 0 && held >= slots_max {
                return None;
            }
            match self.in_flight.compare_exchange_weak(held, held + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(InFlight { load: Arc::clone(self) }),
                Err(now) => held = now,
            }
        }
    }
}

/// One request's place inside one instance.
#[derive(Debug)]
pub struct InFlight {
    load: Arc<EndpointLoad>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let before = self.load.in_flight.fetch_sub(1, Relaxed);
        assert!(before > 0, "a place is given back once");
    }
}

/// What one backend is asked for, over all cores. The scaler reads these.
#[derive(Debug, Default)]
pub struct BackendLoad {
    /// Requests that are inside an instance of this backend.
    pub in_flight: CachePadded<AtomicU32>,
    /// Requests (and deliveries) that wait for an instance.
    pub waiting: CachePadded<AtomicU32>,
    /// Requests ever taken in, answered or not.
    pub requests: CachePadded<AtomicU64>,
}

impl BackendLoad {
    /// What wants an instance now: inside and waiting.
    #[must_use]
    pub fn demand(&self) -> u32 {
        self.in_flight.load(Relaxed).saturating_add(self.waiting.load(Relaxed))
    }
}

/// What became of a stream's events, over all cores.
#[derive(Debug, Default)]
pub struct StreamTally {
    /// Events answered with 202, and replies and dead letters taken in again.
    pub accepted: CachePadded<AtomicU64>,
    /// Events refused at the door, with a 4xx or 5xx answer.
    pub refused: AtomicU64,
    /// Events that a subscriber had still to get when it was deleted; each subscriber's are counted.
    pub abandoned: AtomicU64,
}

/// What became of one subscriber's share:
/// `offered = delivered + filtered + dead_lettered + dropped + pending`.
#[derive(Debug, Default)]
pub struct SubscriberTally {
    /// Durable events that this subscriber had to be asked about.
    pub offered: CachePadded<AtomicU64>,
    pub delivered: AtomicU64,
    pub filtered: AtomicU64,
    pub dead_lettered: AtomicU64,
    /// Given up without a dead letter sink; each has a log line with the reason.
    pub dropped: AtomicU64,
    /// Attempts after the first.
    pub retries: AtomicU64,
    /// Answers whose body went nowhere while the delivery counts as done: no event (AMB-33), a reply that
    /// nobody wants (EV-DLV-06), or one that made too many hops.
    pub replies_dropped: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_instance_refuses_and_a_dropped_guard_makes_room() {
        let load = Arc::new(EndpointLoad::default());
        let first = load.try_enter(1).unwrap();
        assert!(load.try_enter(1).is_none());
        drop(first);
        assert!(load.try_enter(1).is_some());
    }

    #[test]
    fn zero_slots_means_no_limit() {
        let load = Arc::new(EndpointLoad::default());
        let guards: Vec<_> = (0..1000).map(|_| load.try_enter(0).unwrap()).collect();
        assert_eq!(load.in_flight(), 1000);
        drop(guards);
        assert_eq!(load.in_flight(), 0);
    }
}
