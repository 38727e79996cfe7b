//! How long things took, by what they came to: counters that scrapers read as histograms.
//!
//! One [`OutcomeHistograms`] is a list that only grows, by a box for each new outcome: nearly every request ends like the
//! first one did, so a note is one comparison and two adds, and whoever is never asked has nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ring::prefetch;

/// Upper bounds of the buckets of [`DurationHistogram`], in microseconds: from a warm request to the longest that a route
/// usually allows. Those of Knative's own histograms, 5 ms to 10 s, are among them.
pub const DURATIONS_US: [u64; 19] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000, 1_000_000, 2_500_000,
    5_000_000, 7_500_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Outcomes that are told apart of one backend, subscriber or stream: instances choose their status codes, and must
/// not choose how much we keep. What comes to something else is told apart by the status' first digit.
pub const OUTCOMES_MAX: usize = 16;

/// How long things took. The sum lies beside the buckets of what is quick: a note writes to one line of the cache.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DurationHistogram {
    /// All together.
    pub total_us: AtomicU64,
    /// One for each bound of [`DURATIONS_US`], not cumulated, and one for what took longer.
    pub buckets: [AtomicU64; DURATIONS_US.len() + 1],
}

impl DurationHistogram {
    pub fn note(&self, took: Duration) {
        self.note_each(1, took);
    }

    /// So many took so long, each.
    pub fn note_each(&self, count: u64, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = DURATIONS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(count, Relaxed);
        self.total_us.fetch_add(us.wrapping_mul(count), Relaxed);
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|count| count.load(Relaxed)).sum()
    }
}

/// Under which of its route's tags a request came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RouteTag {
    /// Its route does not tell tags apart.
    #[default]
    Off,
    /// None: it came by its route's own division.
    Default,
    /// It asked for one that its route does not have.
    Undefined,
    Named(Arc<str>),
}

/// Which part of a request a duration is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPhase {
    /// All of one that had its place at once: it was nowhere but inside.
    Straight,
    /// Of one that waited: from its head to its answer's end.
    Whole,
    /// Of one that waited: from its place to its answer's end.
    Upstream,
}

/// What something came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeKey {
    /// 0: cut, or never answered. 1 to 9: any that begins so, of those that found no room of their own.
    pub status: u16,
    pub stretch: RequestPhase,
    pub tag: RouteTag,
}

impl OutcomeKey {
    /// Of what knows no tags and waits nowhere.
    #[must_use]
    pub const fn of(status: u16) -> Self {
        Self { status, stretch: RequestPhase::Straight, tag: RouteTag::Off }
    }

    /// The status' first digit; 0 of what was cut.
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

/// One of them, beginning with what a note looks at.
#[derive(Debug)]
#[repr(C)]
pub struct OutcomeHistogram {
    pub key: OutcomeKey,
    pub durations: DurationHistogram,
    next: OnceLock<Box<OutcomeHistogram>>,
}

impl OutcomeHistograms {
    pub fn note(&self, key: &OutcomeKey, took: Duration) {
        self.note_each(1, key, took);
    }

    /// So many came to this, and took so long each. Allocates for an outcome that is new, and waits for another core
    /// only if that does so too at this moment.
    pub fn note_each(&self, count: u64, key: &OutcomeKey, took: Duration) {
        let others = OutcomeKey { status: key.class(), tag: RouteTag::Off, ..*key };
        let mut slot = &self.first;
        for place in 0.. {
            let key = if place < OUTCOMES_MAX { key } else { &others };
            let outcome = slot.get_or_init(|| Box::new(OutcomeHistogram::new(key.clone())));
            if outcome.key == *key {
                return outcome.durations.note_each(count, took);
            }
            slot = &outcome.next;
        }
    }

    /// Asks for the memory of the usual outcome, which is to be noted soon.
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
    fn a_duration_counts_in_the_first_bucket_that_holds_it() {
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
    fn what_differs_in_status_stretch_or_tag_is_counted_by_itself() {
        let outcomes = OutcomeHistograms::default();
        assert!(outcomes.iter().next().is_none());
        let tagged = OutcomeKey { tag: RouteTag::Named("next".into()), ..OutcomeKey::of(200) };
        let waited = OutcomeKey { stretch: RequestPhase::Whole, ..OutcomeKey::of(200) };
        for key in [OutcomeKey::of(200), OutcomeKey::of(404), OutcomeKey::of(200), tagged.clone(), waited, tagged] {
            outcomes.note(&key, Duration::ZERO);
        }
        assert_eq!(counts(&outcomes), [(200, 2), (404, 1), (200, 2), (200, 1)]);
    }

    /// An instance that invents status codes costs so much and no more.
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
    fn cores_that_meet_new_outcomes_at_once_lose_none() {
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
