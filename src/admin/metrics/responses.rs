//! Rate, errors and duration of every backend.

use std::collections::BTreeMap;
use std::fmt;

use dataplane::request_histograms::{DURATIONS_US, OutcomeHistograms, RequestPhase};
use dataplane::table::Backend;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::counter;
use super::histogram::{HistogramSum, OTHERS};

/// Backends with a histogram of their own: 22 lines each. A scraper must store them all, so the rest, those
/// with the fewest responses, are combined as [`OTHERS`].
pub(super) const BACKEND_SERIES_MAX: usize = 1000;

const CLASSES: [&str; 6] = ["aborted", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// One backend's numbers, or the sum of several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ResponseMetrics {
    classes: [u64; 6],
    durations: HistogramSum,
}

impl ResponseMetrics {
    fn of(outcomes: &OutcomeHistograms) -> Self {
        let mut answers = Self::default();
        for outcome in outcomes.iter().filter(|outcome| outcome.key.phase != RequestPhase::Upstream) {
            answers.classes[usize::from(outcome.key.class()).min(5)] += outcome.durations.count();
            answers.durations.add(&outcome.durations);
        }
        answers
    }

    fn merge(&mut self, other: &Self) {
        self.classes.iter_mut().zip(other.classes).for_each(|(all, one)| *all += one);
        self.durations.merge(&other.durations);
    }
}

pub(super) fn encode(out: &mut DescriptorEncoder<'_>, backends: &BTreeMap<&str, &Backend>) -> fmt::Result {
    let all = backends.iter().map(|(key, backend)| (*key, &backend.load.answers));
    let answers = bounded(all, BACKEND_SERIES_MAX);
    let mut family = out.encode_descriptor(
        "backend_responses",
        "Responses of instances, by class of status",
        None,
        MetricType::Counter,
    )?;
    for (key, one) in &answers {
        for (class, count) in CLASSES.iter().zip(one.classes) {
            counter(&mut family, &[("backend", *key), ("class", class)], count)?;
        }
    }
    let mut family = out.encode_descriptor(
        "backend_duration_seconds",
        "Seconds from the request head to the end of the response",
        None,
        MetricType::Histogram,
    )?;
    for (key, one) in &answers {
        one.durations.write(&mut family, &vec![("backend", (*key).into())], &DURATIONS_US)?;
    }
    Ok(())
}

/// Those with requests: the busiest individually, the rest combined.
fn bounded<'a>(
    all: impl Iterator<Item = (&'a str, &'a OutcomeHistograms)>,
    most: usize,
) -> Vec<(&'a str, ResponseMetrics)> {
    let mut answers: Vec<(&str, ResponseMetrics)> = all
        .map(|(key, outcomes)| (key, ResponseMetrics::of(outcomes)))
        .filter(|(_, one)| one.durations.count() > 0)
        .collect();
    if answers.len() <= most {
        return answers;
    }
    answers.sort_by(|one, other| other.1.durations.count().cmp(&one.1.durations.count()).then(one.0.cmp(other.0)));
    let mut others = ResponseMetrics::default();
    answers.drain(most..).for_each(|(_, one)| others.merge(&one));
    answers.push((OTHERS, others));
    answers
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dataplane::request_histograms::OutcomeKey;

    use super::*;

    #[test]
    fn many_backends_are_reduced_to_busiest_and_others() {
        let answered = |count: u64| {
            let outcomes = OutcomeHistograms::default();
            outcomes.note_each(count, &OutcomeKey::of(204), Duration::from_micros(10));
            outcomes
        };
        let all = [("a", answered(1)), ("b", answered(5)), ("c", answered(0)), ("d", answered(2))];
        let named = || all.iter().map(|(key, answers)| (*key, answers));
        let keys = |all: &[(&str, ResponseMetrics)]| all.iter().map(|(key, _)| (*key).to_owned()).collect::<Vec<_>>();

        assert_eq!(keys(&bounded(named(), 3)), ["a", "b", "d"]);
        let two = bounded(named(), 1);
        assert_eq!(keys(&two), ["b", OTHERS]);
        assert_eq!((two[1].1.durations.count(), two[1].1.classes[2]), (3, 3));
    }

    #[test]
    fn waiting_request_counts_once_with_its_wait() {
        let outcomes = OutcomeHistograms::default();
        for (status, phase) in [(0, RequestPhase::Direct), (502, RequestPhase::Whole), (502, RequestPhase::Upstream)] {
            outcomes.note(&OutcomeKey { phase, ..OutcomeKey::of(status) }, Duration::ZERO);
        }
        assert_eq!(ResponseMetrics::of(&outcomes).classes, [1, 0, 0, 0, 0, 1]);
    }
}
