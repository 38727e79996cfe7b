//! The time series of a test: the ends of its intervals, and a point for each.

use std::time::Duration;

use crate::limits::{SERIES_BLOCK, SERIES_INTERVAL, SERIES_INTERVAL_MIN, SERIES_POINTS};
use crate::recorder::{IntervalResult, OutcomeCounts};

/// One interval of a test.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesPoint {
    /// Its end, from the start of the measured part.
    pub end: Duration,
    pub length: Duration,
    pub counts: OutcomeCounts,
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

impl SeriesPoint {
    pub(crate) fn new(start: Duration, end: Duration, result: &IntervalResult) -> Self {
        let latency = &result.latency;
        Self {
            end,
            length: end.saturating_sub(start),
            counts: result.counts,
            p50: latency.quantile(0.5),
            p99: latency.quantile(0.99),
            max: latency.max(),
        }
    }

    /// Responses a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)]
        let responses = self.counts.responses as f64;
        if self.length.is_zero() { 0.0 } else { responses / self.length.as_secs_f64() }
    }
}

/// The first interval of a test of this length.
pub(crate) fn first_interval(duration: Option<Duration>) -> Duration {
    duration.map_or(SERIES_INTERVAL, |duration| (duration / SERIES_POINTS).max(SERIES_INTERVAL_MIN))
}

/// The end of interval number `index`. Each block of intervals has twice the length of the one before.
pub(crate) fn interval_end(first: Duration, index: u64) -> Duration {
    let (block, rest) = ((index + 1) / SERIES_BLOCK, (index + 1) % SERIES_BLOCK);
    let length = 1_u64 << block.min(40);
    let intervals = (SERIES_BLOCK * (length - 1)).saturating_add(rest * length);
    let nanos = u128::from(intervals) * first.as_nanos();
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_after_each_block() {
        let second = Duration::from_secs(1);
        let seconds = |index| interval_end(second, index).as_secs();
        assert_eq!((seconds(0), seconds(1), seconds(SERIES_BLOCK - 1)), (1, 2, SERIES_BLOCK));
        assert_eq!((seconds(SERIES_BLOCK), seconds(SERIES_BLOCK + 1)), (SERIES_BLOCK + 2, SERIES_BLOCK + 4));
        assert_eq!(
            (seconds(2 * SERIES_BLOCK - 1), seconds(2 * SERIES_BLOCK)),
            (3 * SERIES_BLOCK, 3 * SERIES_BLOCK + 4)
        );
        let ends: Vec<_> = (0..5 * SERIES_BLOCK).map(seconds).collect();
        assert!(ends.is_sorted_by(|left, right| left < right));
        assert!(interval_end(second, u64::MAX / 2) > Duration::from_secs(1 << 33));
    }

    #[test]
    fn known_duration_has_a_fixed_number_of_points() {
        let duration = Duration::from_secs(30);
        assert_eq!(interval_end(first_interval(Some(duration)), u64::from(SERIES_POINTS) - 1), duration);
        assert_eq!(first_interval(Some(Duration::from_millis(1))), SERIES_INTERVAL_MIN);
        assert_eq!(first_interval(None), SERIES_INTERVAL);
    }

    #[test]
    fn rate_of_a_point_is_per_second() {
        let counts = OutcomeCounts { responses: 50, ..OutcomeCounts::default() };
        let result = IntervalResult { counts, ..IntervalResult::default() };
        let ms = Duration::from_millis;
        assert!((SeriesPoint::new(ms(500), ms(750), &result).rate() - 200.0).abs() < 1e-9);
        assert!(SeriesPoint::new(ms(500), ms(500), &result).rate() == 0.0);
    }
}
