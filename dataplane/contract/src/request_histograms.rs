//! Durations by outcome, as counters that scrapers read as histograms.
//!
//! One [`OutcomeHistograms`] is an append-only list with one box per outcome: nearly every request has the first
//! outcome, so a record is one comparison and two adds, and a backend without requests allocates nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ring::prefetch;

/// Upper bounds of the buckets of [`DurationHistogram`], in microseconds: from a warm request to the longest that a
/// route usually allows. They include those of Knative's own histograms, 5 ms to 10 s.
pub const DURATIONS_US: [u64; 19] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000, 1_000_000, 2_500_000,
    5_000_000, 7_500_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Distinct outcomes of one backend, subscriber or stream: instances choose their status codes, but must not choose how
/// much memory is used. Further outcomes are merged by the first digit of the status.
pub const OUTCOMES_MAX: usize = 16;

/// A duration histogram. The sum is next to the buckets of short durations: a record writes to one cache line.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DurationHistogram {
    /// The sum of all durations.
    pub total_us: AtomicU64,
    /// One for each bound of [`DURATIONS_US`], not cumulative, and one for longer durations.
    pub buckets: [AtomicU64; DURATIONS_US.len() + 1],
}

impl DurationHistogram {
    #[inline]
    pub fn note(&self, took: Duration) {
        self.note_each(1, took);
    }

    /// Records `count` equal durations.
    #[inline]
    pub fn note_each(&self, count: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = DURATIONS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(count, Relaxed);
        self.total_us.fetch_add(us.wrapping_mul(count), Relaxed);
    }

    #[inline]
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|count| count.load(Relaxed)).sum()
    }
}

/// The tag of its route under which a request came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RouteTag {
    /// The route does not distinguish tags.
    #[default]
    Off,
    /// No tag: it came by the route's own traffic split.
    Default,
    /// It asked for a tag that its route does not have.
    Undefined,
    Named(Arc<str>),
}

/// The part of a request that a duration covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPhase {
    /// All of a request that got its permit at once.
    Direct,
    /// Of one that waited: from its head to the end of its response.
    Whole,
    /// Of one that waited: from its permit to the end of its response.
    Upstream,
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeKey {
    /// 0: cut, or never answered. 1 to 9: the first digit, for outcomes beyond [`OUTCOMES_MAX`].
    pub status: u16,
    pub phase: RequestPhase,
    pub tag: RouteTag,
}

impl OutcomeKey {
    /// The outcome of a request without tags that did not wait.
    #[inline]
    #[must_use]
    pub const fn of(status: u16) -> Self {
        Self { status, phase: RequestPhase::Direct, tag: RouteTag::Off }
    }

    /// The first digit of the status; 0 if it was cut.
    #[inline]
    #[must_use]
    pub const fn class(&self) -> u16 {
        if self.status < 10 { self.status } else { self.status / 100 }
    }
}

/// Durations by outcome.
#[derive(Debug, Default)]
pub struct OutcomeHistograms {
    first: OnceLock<Box<OutcomeHistogram>>,
}

/// One outcome, beginning with the fields that a record reads.
#[derive(Debug)]
#[repr(C)]
pub struct OutcomeHistogram {
    pub key: OutcomeKey,
    pub durations: DurationHistogram,
    next: OnceLock<Box<OutcomeHistogram>>,
}

impl OutcomeHistograms {
    #[inline]
    pub fn note(&self, key: &OutcomeKey, took: Duration) {
        self.note_each(1, key, took);
    }

    /// Records `count` equal outcomes and durations. Allocates for a new outcome, and waits for another core only if
    /// that does so at the same moment.
    #[inline]
    pub fn note_each(&self, count: u64, key: &OutcomeKey, took: Duration) {
        let others = OutcomeKey { status: key.class(), tag: RouteTag::Off, ..*key };
        let mut slot = &self.first;
        for index in 0.. {
            let key = if index < OUTCOMES_MAX { key } else { &others };
            let outcome = slot.get_or_init(|| Box::new(OutcomeHistogram::new(key.clone())));
            if outcome.key == *key {
                return outcome.durations.note_each(count, took);
            }
            slot = &outcome.next;
        }
    }

    /// Prefetches the usual outcome, which will be recorded soon.
    #[inline]
    pub fn look_ahead(&self) {
        self.first.get().into_iter().for_each(|outcome| prefetch(&**outcome));
    }

    pub fn iter(&self) -> impl Iterator<Item = &OutcomeHistogram> {
        let first = self.first.get().map(|outcome| &**outcome);
        std::iter::successors(first, |outcome| outcome.next.get().map(|next| &**next))
    }
}

impl OutcomeHistogram {
    fn new(key: OutcomeKey) -> Self {
        Self { key, durations: DurationHistogram::default(), next: OnceLock::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_counts_in_the_first_bucket_that_holds_it() {
        let durations = DurationHistogram::default();
        for us in [0, 500, 501, 60_000_000, 60_000_001] {
            durations.note(Duration::from_micros(us));
        }
        let buckets = durations.buckets.each_ref().map(|count| count.load(Relaxed));
        assert_eq!((buckets[0], buckets[1], buckets[18], buckets[19]), (2, 1, 1, 1));
        assert_eq!((durations.total_us.load(Relaxed), durations.count()), (120_001_002, 5));
        durations.note_each(3, Duration::from_micros(7));
        assert_eq!((durations.total_us.load(Relaxed), durations.count()), (120_001_023, 8));
    }

    fn counts(outcomes: &OutcomeHistograms) -> Vec<(u16, u64)> {
        outcomes.iter().map(|one| (one.key.status, one.durations.count())).collect()
    }

    #[test]
    fn outcomes_differ_by_status_phase_and_tag() {
        let outcomes = OutcomeHistograms::default();
        assert!(outcomes.iter().next().is_none());
        let tagged = OutcomeKey { tag: RouteTag::Named("next".into()), ..OutcomeKey::of(200) };
        let waited = OutcomeKey { phase: RequestPhase::Whole, ..OutcomeKey::of(200) };
        for key in [OutcomeKey::of(200), OutcomeKey::of(404), OutcomeKey::of(200), tagged.clone(), waited, tagged] {
            outcomes.note(&key, Duration::ZERO);
        }
        assert_eq!(counts(&outcomes), [(200, 2), (404, 1), (200, 2), (200, 1)]);
    }

    /// An instance that invents status codes uses bounded memory.
    #[test]
    fn outcomes_beyond_the_limit_are_counted_by_class() {
        let outcomes = OutcomeHistograms::default();
        for _ in 0..2 {
            (200..600).for_each(|status| outcomes.note(&OutcomeKey::of(status), Duration::ZERO));
        }
        let counts = counts(&outcomes);
        assert_eq!(counts[0], (200, 2));
        let rest = 2 * (100 - OUTCOMES_MAX as u64);
        assert_eq!(counts[OUTCOMES_MAX..], [(2, rest), (3, 200), (4, 200), (5, 200)]);
    }

    #[test]
    fn concurrent_new_outcomes_are_all_counted() {
        let outcomes = OutcomeHistograms::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..1000).for_each(|n| outcomes.note(&OutcomeKey::of(200 + n % 8), Duration::ZERO));
                });
            }
        });
        let mut counts = counts(&outcomes);
        counts.sort_unstable();
        assert_eq!(counts, (200..208).map(|status| (status, 500)).collect::<Vec<_>>());
    }
}
