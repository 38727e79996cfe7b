//! Durations as histograms: summed, bounded in number, encoded.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use dataplane::request_histograms::{DURATIONS_US, DurationHistogram};
use prometheus_client::encoding::{MetricEncoder, NoLabelSet};

/// Replaces the name of objects without a histogram of their own.
pub(super) const OTHERS: &str = "(others)";

/// Upper bounds of Knative's own histograms (X-OBS-01), in microseconds. All of them are among
/// [`DURATIONS_US`].
pub(super) const KNATIVE_US: [u64; 14] = [
    5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000, 1_000_000, 2_500_000, 5_000_000,
    7_500_000, 10_000_000,
];

/// Label names with values.
pub(super) type MetricLabels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// One histogram, or the sum of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HistogramSum {
    buckets: [u64; DURATIONS_US.len() + 1],
    total_us: u64,
}

impl HistogramSum {
    pub(super) fn add(&mut self, durations: &DurationHistogram) {
        let buckets = durations.buckets.each_ref().map(|count| count.load(Relaxed));
        self.merge(&Self { buckets, total_us: durations.total_us.load(Relaxed) });
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(all, one)| *all += one);
        self.total_us += other.total_us;
    }

    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Writes it with these upper bounds, which are some of [`DURATIONS_US`].
    pub(super) fn write(
        &self,
        family: &mut MetricEncoder<'_>,
        labels: &MetricLabels<'_>,
        bounds: &[u64],
    ) -> fmt::Result {
        let buckets = self.by(bounds);
        let mut one = family.encode_family(labels)?;
        one.encode_histogram::<NoLabelSet>(self.total_us as f64 / 1e6, self.count(), &buckets, None)
    }

    fn by(&self, bounds: &[u64]) -> Vec<(f64, u64)> {
        let mut counts = DURATIONS_US.iter().chain([&u64::MAX]).zip(self.buckets).peekable();
        let mut up_to =
            |bound| std::iter::from_fn(|| counts.next_if(|(us, _)| **us <= bound)).map(|(_, count)| count).sum();
        let mut buckets: Vec<(f64, u64)> = bounds.iter().map(|bound| (*bound as f64 / 1e6, up_to(*bound))).collect();
        buckets.push((f64::INFINITY, up_to(u64::MAX)));
        buckets
    }
}

/// Histograms by their labels.
#[derive(Debug, Default)]
pub(super) struct HistogramFamily<'a>(BTreeMap<MetricLabels<'a>, HistogramSum>);

impl<'a> HistogramFamily<'a> {
    /// Equal labels share one histogram.
    pub(super) fn add(&mut self, labels: MetricLabels<'a>, durations: &DurationHistogram) {
        self.0.entry(labels).or_default().add(durations);
    }

    /// The `most` fullest, and the rest as one. Empty ones are omitted.
    pub(super) fn bounded(self, most: usize) -> Vec<(MetricLabels<'a>, HistogramSum)> {
        let mut sums: Vec<_> = self.0.into_iter().filter(|(_, sum)| sum.count() > 0).collect();
        if sums.len() <= most {
            return sums;
        }
        sums.sort_by(|one, other| other.1.count().cmp(&one.1.count()).then_with(|| one.0.cmp(&other.0)));
        let rest = sums.split_off(most);
        let mut together = HistogramSum::default();
        rest.iter().for_each(|(_, sum)| together.merge(sum));
        let named = rest.first().into_iter().flat_map(|(labels, _)| labels);
        let labels = named.map(|(name, _)| (*name, OTHERS.into())).collect();
        sums.push((labels, together));
        sums
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn durations(each_us: &[u64]) -> DurationHistogram {
        let durations = DurationHistogram::default();
        each_us.iter().for_each(|us| durations.note(Duration::from_micros(*us)));
        durations
    }

    /// X-OBS-01: upstream's buckets are computed from finer ones without a count in a wrong bucket.
    #[test]
    fn coarse_buckets_are_sums_of_finer_ones() {
        assert!(KNATIVE_US.iter().all(|bound| DURATIONS_US.contains(bound)));
        let mut sum = HistogramSum::default();
        sum.add(&durations(&[1, 5_000, 5_001, 75_000, 75_001, 10_000_000, 10_000_001, 70_000_000]));
        let by = sum.by(&KNATIVE_US);
        let found: Vec<_> = by.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(found, [(0.005, 2), (0.01, 1), (0.075, 1), (0.1, 1), (10.0, 1), (f64::INFINITY, 2)]);
        assert_eq!(by.len(), KNATIVE_US.len() + 1);
        assert_eq!(sum.by(&DURATIONS_US).iter().map(|(_, count)| count).sum::<u64>(), 8);
    }

    #[test]
    fn many_histograms_are_reduced_to_fullest_and_others() {
        let labels = |name: &'static str| vec![("name", name.into())];
        let fill = || {
            let mut sums = HistogramFamily::default();
            for (name, count) in [("a", 1), ("b", 3), ("c", 0), ("d", 2), ("b", 2)] {
                sums.add(labels(name), &durations(&vec![10; count]));
            }
            sums
        };
        let names = |sums: &[(MetricLabels<'_>, HistogramSum)]| {
            sums.iter().map(|(l, _)| l[0].1.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&fill().bounded(3)), ["a", "b", "d"]);
        let two = fill().bounded(1);
        assert_eq!(names(&two), ["b", OTHERS]);
        assert_eq!((two[0].1.count(), two[1].1.count(), two[1].1.total_us), (5, 3, 30));
    }
}
