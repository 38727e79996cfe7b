//! Latencies as an HDR histogram, in nanoseconds.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::limits::{LATENCY_DIGITS, LATENCY_MAX_NS, LATENCY_MIN_NS};

/// Counts of latencies, exact to [`LATENCY_DIGITS`] digits at any length.
#[derive(Debug, Clone, PartialEq)]
pub struct LatencyHistogram(Histogram<u64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyHistogram {
    #[must_use]
    pub fn new() -> Self {
        let made = Histogram::new_with_bounds(LATENCY_MIN_NS, LATENCY_MAX_NS, LATENCY_DIGITS);
        Self(made.expect("the bounds are constants, and the crate accepts them"))
    }

    /// Longer latencies than the longest that it can tell count as that one.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the counts of `other`. All histograms have the same bounds, so nothing is lost.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latency that the share `quantile` of all requests stayed at or below; zero without requests.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        if self.is_empty() { Duration::ZERO } else { Duration::from_nanos(self.0.value_at_quantile(quantile)) }
    }

    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.0.mean().max(0.0) / 1e9)
    }

    #[must_use]
    pub fn max(&self) -> Duration {
        if self.is_empty() { Duration::ZERO } else { Duration::from_nanos(self.0.max()) }
    }

    #[must_use]
    pub fn min(&self) -> Duration {
        if self.is_empty() { Duration::ZERO } else { Duration::from_nanos(self.0.min()) }
    }

    /// The curve of latency by quantile. It has `steps` points for each halving of the distance to 1, and ends with the largest
    /// latency.
    #[must_use]
    pub fn curve(&self, steps: u32) -> Vec<(f64, Duration)> {
        self.0
            .iter_quantiles(steps.max(1))
            .map(|point| (point.quantile_iterated_to(), Duration::from_nanos(point.value_iterated_to())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn merged_histogram_equals_one_of_all_latencies() {
        let (mut left, mut right, mut all) =
            (LatencyHistogram::new(), LatencyHistogram::new(), LatencyHistogram::new());
        for ms in 1..=1_000 {
            if ms % 3 == 0 { &mut left } else { &mut right }.record(MS * ms);
            all.record(MS * ms);
        }
        left.merge(&right);
        assert_eq!(left, all);
        assert_eq!(left.count(), 1_000);
        left.merge(&LatencyHistogram::new());
        assert_eq!(left, all);
    }

    #[test]
    fn quantiles_are_exact_to_a_thousandth() {
        let mut histogram = LatencyHistogram::new();
        (1..=1_000).for_each(|ms| histogram.record(MS * ms));
        for (quantile, ms) in [(0.5, 500.0), (0.9, 900.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let found = histogram.quantile(quantile).as_secs_f64() * 1e3;
            assert!((found / ms - 1.0).abs() < 0.002, "{quantile}: {found}");
        }
        assert!((histogram.mean().as_secs_f64() * 1e3 / 500.5 - 1.0).abs() < 0.002);
        let curve = histogram.curve(5);
        assert!(curve.len() > 10 && curve.is_sorted_by_key(|point| point.1) && curve.last().unwrap().0 >= 1.0);
    }

    #[test]
    fn extreme_latencies_are_counted() {
        let mut histogram = LatencyHistogram::new();
        assert_eq!((histogram.quantile(0.5), histogram.max(), histogram.mean()), Default::default());
        histogram.record(Duration::ZERO);
        histogram.record(Duration::MAX);
        assert_eq!(histogram.count(), 2);
        assert!(histogram.max() >= Duration::from_nanos(LATENCY_MAX_NS));
    }
}
