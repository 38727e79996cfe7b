//! Demand over time, as averages of sliding windows.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::limits::{SAMPLE_INTERVAL, SAMPLES_MAX};

/// `weighted-exponential`: how much the samples of a whole window may miss of one, upstream's precision.
const WEIGHT_TRUNCATION_MAX: f64 = 0.000_1;
/// `weighted-exponential`: upstream's minimum weight of the newest sample, so that long windows follow too.
const WEIGHT_MIN: f64 = 0.2;

/// Demand over time.
#[derive(Debug, Default)]
pub struct DemandWindow {
    samples: VecDeque<(Instant, u32)>,
    /// Samples that were nothing, of one that sleeps: a minute of them takes 1.5 KiB.
    idle_samples: Option<IdleSamples>,
}

/// So many samples, from one moment to another.
#[derive(Debug, Clone, Copy)]
struct IdleSamples {
    first: Instant,
    last: Instant,
    count: u32,
}

impl DemandWindow {
    /// Notes the demand at `now`, and forgets what is older than `span`.
    pub fn add(&mut self, now: Instant, demand: u32, span: Duration) {
        self.expand();
        while self.samples.len() == SAMPLES_MAX
            || self.samples.front().is_some_and(|(at, _)| now.duration_since(*at) >= span)
        {
            self.samples.pop_front();
        }
        self.samples.push_back((now, demand));
    }

    /// Nothing will be asked for a while: if nothing was, it is kept as that.
    pub fn compact(&mut self) {
        if let (Some((first, 0)), Some((last, 0))) = (self.samples.front(), self.samples.back())
            && self.samples.iter().all(|(_, demand)| *demand == 0)
        {
            let count = u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
            self.idle_samples = Some(IdleSamples { first: *first, last: *last, count });
            self.samples = VecDeque::new();
        }
    }

    fn expand(&mut self) {
        let Some(IdleSamples { first, last, count }) = self.idle_samples.take() else { return };
        let apart = last.duration_since(first) / count.saturating_sub(1).max(1);
        self.samples.extend((0..count).map(|nth| (first + apart * nth, 0)));
    }

    /// The demand of the last `span`.
    #[must_use]
    pub fn level(&self, now: Instant, span: Duration, weighted: bool) -> f64 {
        if weighted { self.weighted(now, span) } else { self.average(now, span) }
    }

    /// The sum in which each sample counts by its age in ticks, as upstream's `weighted-exponential` has it: the
    /// newest by the coefficient, each older one by the rest of it.
    #[must_use]
    pub fn weighted(&self, now: Instant, span: Duration) -> f64 {
        let coefficient = smoothing_factor(span);
        let Some((newest, _)) = self.samples.back() else { return 0.0 };
        let ticks = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() / SAMPLE_INTERVAL.as_secs_f64();
        let since = ticks(*newest, now).floor();
        let recent = self.samples.iter().rev().take_while(|(at, _)| now.duration_since(*at) < span);
        // Ticks come a little late, and not equally so: two samples never have the same age.
        let ages = recent.scan(-1.0_f64, |age, (at, demand)| {
            *age = ticks(*at, *newest).round().max(*age + 1.0);
            Some((*age, *demand))
        });
        ages.map(|(age, demand)| f64::from(demand) * coefficient * (1.0 - coefficient).powf(since + age)).sum()
    }

    /// The average over what is known of the last `span`; 0 if nothing is.
    #[must_use]
    pub fn average(&self, now: Instant, span: Duration) -> f64 {
        let recent = self.samples.iter().rev().take_while(|(at, _)| now.duration_since(*at) < span);
        let (sum, count) = recent.fold((0_u64, 0_u32), |(s, c), (_, demand)| (s + u64::from(*demand), c + 1));
        #[expect(clippy::cast_precision_loss, reason = "3600 samples of u32 stay below 2^52")]
        if count == 0 { 0.0 } else { sum as f64 / f64::from(count) }
    }
}

/// The weight of the newest sample: large enough that those of a whole window miss one by no more than
/// `WEIGHT_LOST`, and never below `WEIGHT_MIN`.
fn smoothing_factor(span: Duration) -> f64 {
    (1.0 - WEIGHT_TRUNCATION_MAX.powf(SAMPLE_INTERVAL.as_secs_f64() / span.max(SAMPLE_INTERVAL).as_secs_f64()))
        .max(WEIGHT_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_slept_has_the_samples_that_it_had_before() {
        let start = Instant::now();
        let span = Duration::from_secs(60);
        let (mut sleeper, mut other) = (DemandWindow::default(), DemandWindow::default());
        for second in 0..200 {
            let now = start + Duration::from_secs(second);
            // Asked for until it is not, then at zero, and woken within the window.
            let demand = if (60..=150).contains(&second) { 0 } else { 3 };
            sleeper.add(now, demand, span);
            other.add(now, demand, span);
            if (118..=150).contains(&second) {
                sleeper.compact();
                assert_eq!(sleeper.samples.capacity() == 0, second > 118, "{second}");
            }
            for weighted in [false, true] {
                assert_eq!(sleeper.level(now, span, weighted), other.level(now, span, weighted), "{second}");
            }
        }
        DemandWindow::default().compact();
    }

    #[test]
    fn only_samples_inside_the_window_count() {
        let start = Instant::now();
        let span = Duration::from_secs(10);
        let mut window = DemandWindow::default();
        assert_eq!(window.average(start, span), 0.0);
        for second in 0..20 {
            window.add(start + Duration::from_secs(second), if second < 15 { 0 } else { 4 }, span);
        }
        let now = start + Duration::from_secs(19);
        assert_eq!(window.average(now, span), 2.0);
        assert_eq!(window.average(now, Duration::from_secs(5)), 4.0);
        assert_eq!(window.samples.len(), 10);
    }

    /// Upstream's algorithm: a constant demand is what it is, and a change shows sooner than in an average.
    #[test]
    fn the_newest_samples_weigh_most() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        for seconds in [6, 10, 60, 3_600] {
            let span = Duration::from_secs(seconds);
            let mut window = DemandWindow::default();
            (0..seconds).for_each(|second| window.add(at(second), 50, span));
            let found = window.level(at(seconds - 1), span, true);
            assert!((found - 50.0).abs() < 0.01, "{seconds} s: {found}");
        }
        let span = Duration::from_secs(60);
        let mut window = DemandWindow::default();
        (0..60).for_each(|second| window.add(at(second), if second < 55 { 0 } else { 10 }, span));
        let (plain, weighted) = (window.level(at(59), span, false), window.level(at(59), span, true));
        assert!(weighted > 5.0 && plain < 1.0, "{weighted} {plain}");
        assert_eq!(DemandWindow::default().level(start, span, true), 0.0);
    }

    #[test]
    fn ticks_that_come_late_make_no_demand() {
        let start = Instant::now();
        let span = Duration::from_secs(30);
        let mut window = DemandWindow::default();
        // Each up to 2 ms late, and less so than the one before.
        let at = |tick: u64| start + Duration::from_secs(tick) + Duration::from_micros(2_000 - 500 * (tick % 4));
        for tick in 0..60 {
            window.add(at(tick), 50, span);
            let found = window.level(at(tick) + Duration::from_millis(1), span, true);
            assert!(found <= 50.0, "tick {tick}: {found}");
        }
        assert!(window.level(at(59), span, true) > 49.9);
        // A tick that was missed counts as one without demand, and so does one that is due.
        let missed = window.level(at(60) + Duration::from_millis(5), span, true);
        assert!((49.9 * (1.0 - smoothing_factor(span))..49.9).contains(&missed), "{missed}");
    }
}
