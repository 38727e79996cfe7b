//! Who is busy with how much: counters that outlive the table they hang on.
//!
//! A table is replaced whole, but a request that began under the old one still counts against its
//! instance. So control keeps these behind `Arc`s by identity and puts the same ones into every
//! table. They are plain atomics on their own cache lines: an uncontended add costs some 5 ns, a
//! contended one some 50 ns, against 10 µs and more for the cheapest request.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::fair_queue::FairQueue;
use crate::request_histograms::{DurationHistogram, OutcomeHistograms};

/// Requests inside one instance, over all cores.
#[derive(Debug, Default)]
pub struct EndpointLoad {
    active: CachePadded<ActiveRequests>,
}

#[derive(Debug, Default)]
struct ActiveRequests {
    in_flight: AtomicU32,
    /// Of them: those that have become WebSockets.
    tunnels: AtomicU32,
}

impl EndpointLoad {
    /// Requests inside the instance now.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.active.in_flight.load(Relaxed)
    }

    /// Of them, those that will have an answer's end: not the WebSockets.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.in_flight().saturating_sub(self.active.tunnels.load(Relaxed))
    }

    /// Takes one of `slots_max` places (0 = no limit) unless all are taken. The place is given back
    /// when the guard is dropped.
    #[must_use]
    pub fn try_enter(self: &Arc<Self>, slots_max: u32) -> Option<InFlightRequest> {
        let in_flight = &self.active.in_flight;
        let mut held = in_flight.load(Relaxed);
        loop {
            if slots_max != 0 && held >= slots_max {
                return None;
            }
            match in_flight.compare_exchange_weak(held, held + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(InFlightRequest { load: Arc::clone(self), is_tunnel: false }),
                Err(now) => held = now,
            }
        }
    }
}

/// One request's place inside one instance.
#[derive(Debug)]
pub struct InFlightRequest {
    load: Arc<EndpointLoad>,
    is_tunnel: bool,
}

impl InFlightRequest {
    /// The request has become a WebSocket, which keeps the place.
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
        assert!(before > 0, "a place is given back once");
    }
}

/// What one backend is asked for, over all cores. The scaler reads these. Each request touches all three, so
/// they share a line of their own: one miss and not three, and a third of the memory.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct BackendLoad {
    /// Requests that are inside an instance of this backend.
    pub in_flight: AtomicU32,
    /// Requests (and deliveries) that wait for an instance.
    pub waiting: AtomicU32,
    /// Instances that stand still; whoever runs them says so.
    pub frozen: AtomicU32,
    /// Requests ever taken in, answered or not.
    pub requests: AtomicU64,
    /// What became of them. Of 100,000 routes most are never asked, and have none.
    pub answers: OutcomeHistograms,
    /// Told once, of those that control runs.
    pub labels: OnceLock<Box<RevisionLabels>>,
    /// What copies of others' requests came to ([`Comparison`]); made with the first.
    compared: OnceLock<Box<[AtomicU64; 3]>>,
    /// Whose turn it is to get a place; made with the first guest.
    queue: OnceLock<Box<FairQueue>>,
}

/// Whose requests a backend takes, for those who read of them.
#[derive(Debug, PartialEq, Eq)]
pub struct RevisionLabels {
    /// Empty if there is none.
    pub service: Box<str>,
    pub configuration: Box<str>,
}

/// A copy's answer beside that of the request it was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorComparison {
    /// The statuses were equal.
    Same,
    Different,
    /// The copy got no answer.
    Unanswered,
}

impl MirrorComparison {
    /// For metrics, in the order of [`BackendLoad::comparisons`].
    pub const NAMES: [&str; 3] = ["match", "mismatch", "no_response"];
}

impl BackendLoad {
    pub(crate) fn queue(&self) -> &FairQueue {
        self.queue.get_or_init(Box::default)
    }

    pub(crate) fn compared(&self, outcome: MirrorComparison) {
        self.compared.get_or_init(Box::default)[outcome as usize].fetch_add(1, Relaxed);
    }

    /// What copies of others' requests came to; `None` while there was none.
    #[must_use]
    pub fn comparisons(&self) -> Option<[u64; 3]> {
        self.compared.get().map(|counts| counts.each_ref().map(|count| count.load(Relaxed)))
    }

    /// What wants an instance now: inside and waiting.
    #[must_use]
    pub fn demand(&self) -> u32 {
        self.in_flight.load(Relaxed).saturating_add(self.waiting.load(Relaxed))
    }
}

/// What became of a stream's events, over all cores.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Events answered with 202, and replies and dead letters taken in again.
    pub accepted: CachePadded<AtomicU64>,
    /// Events refused at the door, with a 4xx or 5xx answer.
    pub refused: AtomicU64,
    /// Events that a subscriber had still to get when it was deleted; each subscriber's are counted.
    pub abandoned: AtomicU64,
    /// Of the accepted: answered before they were durable, because the stream's owner wants it so.
    pub accepted_unflushed: AtomicU64,
    /// Of the refused: because a quota was used up.
    pub over_quota: AtomicU64,
    /// Of the refused: because nobody knew the sender, or because he may not send it.
    pub unauthorized: AtomicU64,
    /// Events, replies too, with bytes in their headers that are no UTF-8: they were read as Latin-1.
    pub latin1: AtomicU64,
    /// Bytes in the logs that some subscriber still needs. Not a count: it falls.
    pub kept_bytes: AtomicU64,
    /// What became of events that passed the door, from their request to its answer.
    pub stored: OutcomeHistograms,
}

/// Bytes that some streams may keep together, over all cores; each belongs to a wider one or to none.
#[derive(Debug, Default)]
pub struct ByteQuota {
    /// Whose it is, for the refusal: `namespace NAME`.
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

    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The narrowest quota that is used up. Nothing is reserved, so that each core may go beyond it by what it
    /// takes in at a time.
    #[must_use]
    pub fn exhausted(&self) -> Option<&Self> {
        if self.bytes_max != 0 && self.used() >= self.bytes_max {
            return Some(self);
        }
        self.within.as_deref().and_then(Self::exhausted)
    }

    /// One who kept `before` bytes keeps `now`.
    pub(crate) fn account(&self, before: u64, now: u64) {
        self.used.fetch_add(now.wrapping_sub(before), Relaxed); // wraps around to a subtraction
        if let Some(wider) = &self.within {
            wider.account(before, now);
        }
    }
}

/// What became of one subscriber's share:
/// `offered = delivered + filtered + dead_lettered + dropped + pending`.
#[derive(Debug, Default)]
pub struct SubscriberCounters {
    /// Durable events that this subscriber had to be asked about.
    pub offered: CachePadded<AtomicU64>,
    pub delivered: AtomicU64,
    pub filtered: AtomicU64,
    pub dead_lettered: AtomicU64,
    /// Given up for good; the next four say why.
    pub dropped: AtomicU64,
    /// Of the dropped: there was no dead letter sink.
    pub sinkless: AtomicU64,
    /// Of the dropped: the dead letter sink did not take them.
    pub sink_refused: AtomicU64,
    /// Of the dropped: by the stream's retention.
    pub expired: AtomicU64,
    /// Of the dropped: their records were damaged on the disk.
    pub damaged: AtomicU64,
    /// Of the dropped: a core stopped at them, and there was no dead letter sink.
    pub stalled_dropped: AtomicU64,
    /// Events that were set aside at a start because a core had stopped at them.
    pub stalled: AtomicU64,
    /// Events at which the filter used up its steps: they count as filtered.
    pub filter_over_budget: AtomicU64,
    /// Attempts after the first.
    pub retries: AtomicU64,
    /// Answers whose body went nowhere while the delivery counts as done: no event (AMB-33), a reply that
    /// nobody wants (EV-DLV-06), or one that made too many hops.
    pub replies_dropped: AtomicU64,
    /// Attempts that ended because the other end could not prove by TLS who it is.
    pub untrusted: AtomicU64,
    /// What requests to it, its reply target and its dead letter sink came to.
    pub dispatched: OutcomeHistograms,
    /// From a record to the request that is made of it; made with the first.
    processed: OnceLock<Box<DurationHistogram>>,
}

impl SubscriberCounters {
    /// Why events can be dropped, in the order of [`SubscriberCounters::dropped_by_reason`].
    pub const DROP_REASONS: [&str; 5] =
        ["no_dead_letter_sink", "dead_letter_sink_failed", "retention", "corrupt", "stalled"];

    pub(crate) fn processed(&self, took: Duration) {
        self.processed.get_or_init(Box::default).note(took);
    }

    /// How long requests took to be made; `None` while there was none.
    #[must_use]
    pub fn processing(&self) -> Option<&DurationHistogram> {
        self.processed.get().map(|durations| &**durations)
    }

    /// Counts that add up, though cores count meanwhile: what ended is looked at before what was offered, and what is pending is the
    /// rest.
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

    /// Events that have not come to their end.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.ends().pending
    }
}

/// What became of a subscriber's events, as of one look: `offered` is the sum of `delivered`, `filtered`, `dead_lettered`, `dropped`
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

    /// Whoever looks while events end sees counts that add up, and never an end without its beginning.
    #[test]
    fn ends_add_up_while_they_are_counted() {
        let tally = SubscriberCounters::default();
        std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                for _ in 0..20_000 {
                    tally.offered.fetch_add(3, Relaxed);
                    tally.delivered.fetch_add(1, Relaxed);
                    tally.filtered.fetch_add(1, Relaxed);
                    tally.dropped.fetch_add(1, Relaxed);
                    tally.expired.fetch_add(1, Relaxed);
                }
            });
            while !counting.is_finished() {
                let SubscriberTotals { offered, delivered, filtered, dead_lettered, dropped, dropped_by, pending } =
                    tally.ends();
                assert_eq!(offered, delivered + filtered + dead_lettered + dropped + pending);
                assert_eq!(dropped, dropped_by.iter().sum::<u64>());
                assert!(offered <= tally.offered.load(Acquire));
            }
        });
        assert_eq!((tally.ends().offered, tally.pending()), (60_000, 0));
    }

    #[test]
    fn a_full_instance_refuses_and_a_dropped_guard_makes_room() {
        let load = Arc::new(EndpointLoad::default());
        let first = load.try_enter(1).unwrap();
        assert!(load.try_enter(1).is_none());
        drop(first);
        assert!(load.try_enter(1).is_some());
    }

    #[test]
    fn a_tunnel_has_a_place_and_is_no_request() {
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
    fn a_quota_is_exhausted_by_its_own_streams_or_by_all_together_and_recovers() {
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
