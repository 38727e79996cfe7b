//! Rate, errors and duration of every backend.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dataplane::load::{Answers, DURATIONS_US};
use dataplane::table::Backend;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::counter;

/// Backends with a histogram of their own: 18 lines each. A scraper has to keep them all, so the rest, those with
/// the fewest answers, come together as [`OTHERS`].
pub(super) const BACKENDS_SHOWN_MAX: usize = 1000;

const OTHERS: &str = "(others)";
const CLASSES: [&str; 6] = ["cut", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// One backend's numbers, or those of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sum {
    classes: [u64; 6],
    buckets: [u64; DURATIONS_US.len() + 1],
    total_us: u64,
}

impl Sum {
    fn add(&mut self, answers: &Answers) {
        let add = |sums: &mut [u64], counts: &[AtomicU64]| {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count.load(Relaxed);
            }
        };
        add(&mut self.classes, &answers.classes);
        add(&mut self.buckets, &answers.durations.buckets);
        self.total_us += answers.durations.total_us.load(Relaxed);
    }

    fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

pub(super) fn encode(out: &mut DescriptorEncoder<'_>, backends: &BTreeMap<&str, &Backend>) -> fmt::Result {
    let asked = backends.iter().filter_map(|(key, backend)| Some((*key, backend.load.answers()?)));
    let sums = bounded(asked, BACKENDS_SHOWN_MAX);
    let mut family = out.encode_descriptor(
        "backend_answers",
        "Requests to instances, by class of status",
        None,
        MetricType::Counter,
    )?;
    for (key, sum) in &sums {
        for (class, count) in CLASSES.iter().zip(sum.classes) {
            counter(&mut family, &[("backend", *key), ("class", class)], count)?;
        }
    }
    let mut family = out.encode_descriptor(
        "backend_duration_seconds",
        "From a request's head to its answer's end",
        None,
        MetricType::Histogram,
    )?;
    let bounds = DURATIONS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
    for (key, sum) in &sums {
        let buckets: Vec<(f64, u64)> = bounds.clone().zip(sum.buckets).collect();
        let labels = [("backend", *key)];
        let mut one = family.encode_family(&labels)?;
        one.encode_histogram::<NoLabelSet>(sum.total_us as f64 / 1e6, sum.count(), &buckets, None)?;
    }
    Ok(())
}

/// Those that were asked at all: the busiest by themselves, the rest together.
fn bounded<'a>(all: impl Iterator<Item = (&'a str, &'a Answers)>, max: usize) -> Vec<(&'a str, Sum)> {
    let mut sums: Vec<(&str, Sum)> = all
        .map(|(key, answers)| {
            let mut sum = Sum::default();
            sum.add(answers);
            (key, sum)
        })
        .filter(|(_, sum)| sum.count() > 0)
        .collect();
    if sums.len() <= max {
        return sums;
    }
    sums.sort_by(|one, other| other.1.count().cmp(&one.1.count()).then(one.0.cmp(other.0)));
    let mut others = Sum::default();
    for (_, sum) in sums.drain(max..) {
        others.classes.iter_mut().zip(sum.classes).for_each(|(all, one)| *all += one);
        others.buckets.iter_mut().zip(sum.buckets).for_each(|(all, one)| *all += one);
        others.total_us += sum.total_us;
    }
    sums.push((OTHERS, others));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_backends_come_as_the_busiest_and_the_others() {
        let answered = |count: u64| {
            let answers = Answers::default();
            answers.classes[2].store(count, Relaxed);
            answers.durations.buckets[0].store(count, Relaxed);
            answers.durations.total_us.store(10 * count, Relaxed);
            answers
        };
        let all = [("a", answered(1)), ("b", answered(5)), ("c", answered(0)), ("d", answered(2))];
        let named = || all.iter().map(|(key, answers)| (*key, answers));
        let keys = |sums: &[(&str, Sum)]| sums.iter().map(|(key, _)| (*key).to_owned()).collect::<Vec<_>>();

        assert_eq!(keys(&bounded(named(), 3)), ["a", "b", "d"]);
        let two = bounded(named(), 1);
        assert_eq!(keys(&two), ["b", OTHERS]);
        assert_eq!((two[1].1.count(), two[1].1.classes[2], two[1].1.total_us), (3, 3, 30));
    }
}
