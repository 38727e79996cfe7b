//! Load counters that outlive the table they belong to.
//!
//! A table is replaced as a whole, but a request that began under the old one still counts against its instance. So
//! control keeps these behind `Arc`s by identity and puts the same ones into every table. They are plain atomics on
//! their own cache lines: an uncontended add costs some 5 ns, a contended one some 50 ns, against 10 µs and more for
//! the cheapest request.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::fair_queue::FairQueue;
use crate::request_histograms::{DurationHistogram, OutcomeHistograms};

/// In-flight requests of one instance, over all cores.
#[derive(Debug, Default)]
pub struct EndpointLoad {
    active: CachePadded<ActiveRequests>,
}

#[derive(Debug, Default)]
struct ActiveRequests {
    in_flight: AtomicU32,
    /// Those that have become WebSockets.
    tunnels: AtomicU32,
}

impl EndpointLoad {
    /// Requests in flight in the instance.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.active.in_flight.load(Relaxed)
    }

    /// The same without WebSockets, which have no response to wait for.
    #[inline]
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.in_flight().saturating_sub(self.active.tunnels.load(Relaxed))
    }

    /// Takes one of `slots_max` slots (0 = no limit) unless all are taken. Dropping the guard releases it.
    #[inline]
    #[must_use]
    pub fn try_enter(self: &Arc<Self>, slots_max: u32) -> Option<InFlightRequest> {
        let in_flight = &self.active.in_flight;
        let mut current = in_flight.load(Relaxed);
        loop {
            if slots_max != 0 && current >= slots_max {
                return None;
            }
            match in_flight.compare_exchange_weak(current, current + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(InFlightRequest { load: Arc::clone(self), is_tunnel: false }),
                Err(now) => current = now,
            }
        }
    }
}

/// One request's slot in one instance.
#[derive(Debug)]
pub struct InFlightRequest {
    load: Arc<EndpointLoad>,
    is_tunnel: bool,
}

impl InFlightRequest {
    /// The request has become a WebSocket, which keeps the slot.
    #[inline]
    pub fn becomes_tunnel(&mut self) {
        if !self.is_tunnel {
            self.is_tunnel = true;
            self.load.active.tunnels.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if self.is_tunnel {
            self.load.active.tunnels.fetch_sub(1, Relaxed);
        }
        let before = self.load.active.in_flight.fetch_sub(1, Relaxed);
        assert!(before > 0, "a slot is released once");
    }
}

/// The load of one backend, over all cores. The autoscaler reads it. Each request updates three of these, so they share
/// one cache line: one miss instead of three, and a third of the memory.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct BackendLoad {
    /// Requests in flight in instances of this backend.
    pub in_flight: AtomicU32,
    /// Requests (and deliveries) that wait for an instance.
    pub waiting: AtomicU32,
    /// Frozen instances, as reported by the instance manager.
    pub frozen: AtomicU32,
    /// Requests received, answered or not.
    pub requests: AtomicU64,
    /// Their outcomes. Of 100,000 routes most get no requests, and allocate none.
    pub answers: OutcomeHistograms,
    /// Set once, for backends that control runs.
    pub labels: OnceLock<Box<RevisionLabels>>,
    /// Outcomes of mirrored requests ([`MirrorComparison`]); allocated with the first.
    compared: OnceLock<Box<[AtomicU64; 3]>>,
    /// The fair queue for permits; allocated with the first waiting request.
    queue: OnceLock<Box<FairQueue>>,
}

/// The labels of a backend's metrics.
#[derive(Debug, PartialEq, Eq)]
pub struct RevisionLabels {
    /// Empty if there is none.
    pub service: Box<str>,
    pub configuration: Box<str>,
}

/// The response of a mirrored request, compared with that of the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorComparison {
    /// The statuses were equal.
    Same,
    Different,
    /// The mirrored request got no response.
    Unanswered,
}

impl MirrorComparison {
    /// For metrics, in the order of [`BackendLoad::comparisons`].
    pub const NAMES: [&str; 3] = ["match", "mismatch", "no_response"];
}

impl BackendLoad {
    #[inline]
    pub fn queue(&self) -> &FairQueue {
        self.queue.get_or_init(Box::default)
    }

    #[inline]
    pub fn compared(&self, outcome: MirrorComparison) {
        self.compared.get_or_init(Box::default)[outcome as usize].fetch_add(1, Relaxed);
    }

    /// The outcomes of mirrored requests; `None` if there were none.
    #[must_use]
    pub fn comparisons(&self) -> Option<[u64; 3]> {
        self.compared.get().map(|counts| counts.each_ref().map(|count| count.load(Relaxed)))
    }

    /// Requests that need an instance now: in flight and waiting.
    #[inline]
    #[must_use]
    pub fn demand(&self) -> u32 {
        self.in_flight.load(Relaxed).saturating_add(self.waiting.load(Relaxed))
    }
}

/// Counters of a stream's events, over all cores.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Events answered with 202, and replies and dead letters that re-entered.
    pub accepted: CachePadded<AtomicU64>,
    /// Events rejected at ingress, with a 4xx or 5xx response.
    pub refused: AtomicU64,
    /// Events that a subscriber had pending when it was deleted; counted per subscriber.
    pub abandoned: AtomicU64,
    /// Of the accepted: answered before they were durable, as the stream's durability setting allows.
    pub accepted_unflushed: AtomicU64,
    /// Of the rejected: because a quota was exhausted.
    pub over_quota: AtomicU64,
    /// Of the rejected: because the sender was not authenticated or not authorized.
    pub unauthorized: AtomicU64,
    /// Events, including replies, with header bytes that are not UTF-8: they were read as Latin-1.
    pub latin1: AtomicU64,
    /// Events that were acknowledged and not stored, because the stream had them within its deduplication window.
    pub deduplicated: AtomicU64,
    /// Bytes in the logs that some subscriber still needs. A gauge: it may fall.
    pub kept_bytes: AtomicU64,
    /// Outcomes of events that were admitted, from their request to its response.
    pub stored: OutcomeHistograms,
}

/// A quota of bytes that some streams share, over all cores; it may be nested in a wider one.
#[derive(Debug, Default)]
pub struct ByteQuota {
    /// Its owner, for the rejection: `namespace NAME`.
    pub name: Box<str>,
    /// 0 = no limit.
    pub bytes_max: u64,
    used: CachePadded<AtomicU64>,
    within: Option<Arc<ByteQuota>>,
}

impl PartialEq for ByteQuota {
    /// The same rule, whatever is used of it.
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.bytes_max, &self.within) == (&other.name, other.bytes_max, &other.within)
    }
}

impl Eq for ByteQuota {}

impl ByteQuota {
    #[must_use]
    pub fn new(name: &str, bytes_max: u64, within: Option<Arc<Self>>) -> Self {
        Self { name: name.into(), bytes_max, used: CachePadded::default(), within }
    }

    #[inline]
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The narrowest exhausted quota. Nothing is reserved, so each core may exceed it by the events that it is
    /// accepting.
    #[inline]
    #[must_use]
    pub fn exhausted(&self) -> Option<&Self> {
        if self.bytes_max != 0 && self.used() >= self.bytes_max {
            return Some(self);
        }
        self.within.as_deref().and_then(Self::exhausted)
    }

    /// Updates the usage of one stream from `before` to `now`.
    #[inline]
    pub fn account(&self, before: u64, now: u64) {
        self.used.fetch_add(now.wrapping_sub(before), Relaxed); // wraps around to a subtraction
        if let Some(wider) = &self.within {
            wider.account(before, now);
        }
    }
}

/// Counters of one subscriber: `offered = delivered + filtered + dead_lettered + dropped + pending`.
#[derive(Debug, Default)]
pub struct SubscriberCounters {
    /// Durable events that were matched against this subscriber.
    pub offered: CachePadded<AtomicU64>,
    pub delivered: AtomicU64,
    pub filtered: AtomicU64,
    pub dead_lettered: AtomicU64,
    /// Dropped for good; the next counters say why.
    pub dropped: AtomicU64,
    /// Of the dropped: there was no dead letter sink.
    pub sinkless: AtomicU64,
    /// Of the dropped: the dead letter sink rejected them.
    pub sink_refused: AtomicU64,
    /// Of the dropped: by the stream's retention.
    pub expired: AtomicU64,
    /// Of the dropped: their records were corrupt on disk.
    pub damaged: AtomicU64,
    /// Of the dropped: a core stalled on them, and there was no dead letter sink.
    pub stalled_dropped: AtomicU64,
    /// Events that were skipped at startup because a core had stalled on them.
    pub stalled: AtomicU64,
    /// The position of the last of them in its log.
    pub stalled_position: AtomicU64,
    /// Events for which the filter exceeded its step budget: they count as filtered.
    pub filter_over_budget: AtomicU64,
    /// Attempts after the first.
    pub retries: AtomicU64,
    /// Responses whose body was discarded while the delivery counts as done: not an event (AMB-33), a reply without a
    /// reply target (EV-DLV-06), or one with too many hops.
    pub replies_dropped: AtomicU64,
    /// Attempts that ended because TLS verification of the target failed.
    pub untrusted: AtomicU64,
    /// Outcomes of requests to it, its reply target and its dead letter sink.
    pub dispatched: OutcomeHistograms,
    /// From a record to its request; allocated with the first.
    processed: OnceLock<Box<DurationHistogram>>,
}

impl SubscriberCounters {
    /// Why events can be dropped, in the order of [`SubscriberCounters::dropped_by_reason`].
    pub const DROP_REASONS: [&str; 5] =
        ["no_dead_letter_sink", "dead_letter_sink_failed", "retention", "corrupt", "stalled"];

    #[inline]
    pub fn processed(&self, took: Duration) {
        self.processed.get_or_init(Box::default).note(took);
    }

    /// How long requests took to be made; `None` if there were none.
    #[must_use]
    pub fn processing(&self) -> Option<&DurationHistogram> {
        self.processed.get().map(|durations| &**durations)
    }

    /// Totals that add up even while cores count: ends are read before `offered`, and `pending` is the difference.
    #[must_use]
    pub fn ends(&self) -> SubscriberTotals {
        let [delivered, filtered, dead_lettered] =
            [&self.delivered, &self.filtered, &self.dead_lettered].map(|count| count.load(Acquire));
        let dropped_by = self.dropped_by_reason();
        let dropped: u64 = dropped_by.iter().sum();
        let ended = delivered + filtered + dead_lettered + dropped;
        let offered = self.offered.load(Acquire).max(ended);
        SubscriberTotals { offered, delivered, filtered, dead_lettered, dropped, dropped_by, pending: offered - ended }
    }

    /// The dropped, by reason.
    #[must_use]
    pub fn dropped_by_reason(&self) -> [u64; 5] {
        [&self.sinkless, &self.sink_refused, &self.expired, &self.damaged, &self.stalled_dropped]
            .map(|count| count.load(Relaxed))
    }

    /// Events that are still pending.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.ends().pending
    }
}

/// A snapshot of a subscriber's counters: `offered` is the sum of `delivered`, `filtered`, `dead_lettered`, `dropped`
/// and `pending`, and `dropped` that of `dropped_by`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriberTotals {
    pub offered: u64,
    pub delivered: u64,
    pub filtered: u64,
    pub dead_lettered: u64,
    pub dropped: u64,
    /// In the order of [`SubscriberCounters::DROP_REASONS`].
    pub dropped_by: [u64; 5],
    pub pending: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader sees totals that add up while events end, and never an end without its beginning.
    #[test]
    fn totals_add_up_while_cores_count() {
        let counters = SubscriberCounters::default();
        std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                for _ in 0..20_000 {
                    counters.offered.fetch_add(3, Relaxed);
                    counters.delivered.fetch_add(1, Relaxed);
                    counters.filtered.fetch_add(1, Relaxed);
                    counters.dropped.fetch_add(1, Relaxed);
                    counters.expired.fetch_add(1, Relaxed);
                }
            });
            while !counting.is_finished() {
                let SubscriberTotals { offered, delivered, filtered, dead_lettered, dropped, dropped_by, pending } =
                    counters.ends();
                assert_eq!(offered, delivered + filtered + dead_lettered + dropped + pending);
                assert_eq!(dropped, dropped_by.iter().sum::<u64>());
                assert!(offered <= counters.offered.load(Acquire));
            }
        });
        assert_eq!((counters.ends().offered, counters.pending()), (60_000, 0));
    }

    #[test]
    fn full_instance_refuses_until_a_guard_is_dropped() {
        let load = Arc::new(EndpointLoad::default());
        let first = load.try_enter(1).unwrap();
        assert!(load.try_enter(1).is_none());
        drop(first);
        assert!(load.try_enter(1).is_some());
    }

    #[test]
    fn tunnel_keeps_its_slot_but_is_not_a_request() {
        let load = Arc::new(EndpointLoad::default());
        let (mut tunnel, request) = (load.try_enter(2).unwrap(), load.try_enter(2).unwrap());
        tunnel.becomes_tunnel();
        tunnel.becomes_tunnel();
        assert_eq!((load.in_flight(), load.requests()), (2, 1));
        assert!(load.try_enter(2).is_none());
        drop(request);
        assert_eq!((load.in_flight(), load.requests()), (1, 0));
        drop(tunnel);
        let _other = load.try_enter(2).unwrap();
        assert_eq!((load.in_flight(), load.requests()), (1, 1));
    }

    #[test]
    fn quota_is_exhausted_by_its_own_or_the_wider_limit() {
        let all = Arc::new(ByteQuota::new("all", 100, None));
        let [a, b] = [60, 0].map(|max| ByteQuota::new("namespace", max, Some(Arc::clone(&all))));
        let named = |quota: &ByteQuota| quota.exhausted().map(|full| full.name.to_string());
        a.account(0, 59);
        assert_eq!((named(&a), named(&b)), (None, None));
        a.account(59, 60);
        assert_eq!((named(&a).as_deref(), named(&b)), (Some("namespace"), None));
        b.account(0, 40);
        assert_eq!(named(&b).as_deref(), Some("all"));
        a.account(60, 3);
        assert_eq!((named(&a), named(&b), all.used()), (None, None, 43));
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
