//! Two targets in alternating rounds.

use crate::confidence::RatioInterval;
use crate::error::LoadTestError;
use crate::limits::ROUNDS_MAX;
use crate::result::LoadResult;
use crate::runner::{LoadProgress, StopHandle, run_observed};
use crate::spec::LoadSpec;

/// The results of both targets, and how they differ.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// All rounds of a target together.
    pub first: LoadResult,
    pub second: LoadResult,
    pub rows: Vec<ComparisonRow>,
    /// Rounds of each target.
    pub rounds: usize,
}

/// One figure of both targets.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparisonRow {
    pub name: &'static str,
    pub unit: &'static str,
    pub first: f64,
    pub second: f64,
    /// The second relative to the first; `None` if there are too few rounds.
    pub ratio: Option<RatioInterval>,
}

/// A figure of a result.
struct Figure {
    name: &'static str,
    unit: &'static str,
    of: fn(&LoadResult) -> Option<f64>,
}

const FIGURES: [Figure; 7] = [
    Figure { name: "requests", unit: "/s", of: |result| Some(result.rate()) },
    Figure { name: "latency mean", unit: "ms", of: |result| Some(result.latency.mean().as_secs_f64() * 1e3) },
    Figure { name: "latency p50", unit: "ms", of: |result| quantile_ms(result, 0.5) },
    Figure { name: "latency p90", unit: "ms", of: |result| quantile_ms(result, 0.9) },
    Figure { name: "latency p99", unit: "ms", of: |result| quantile_ms(result, 0.99) },
    Figure { name: "CPU of target", unit: "us/request", of: LoadResult::target_cpu_us },
    Figure { name: "CPU of generator", unit: "us/request", of: |result| Some(result.generator_cpu_us()) },
];

fn quantile_ms(result: &LoadResult, quantile: f64) -> Option<f64> {
    (!result.latency.is_empty()).then(|| result.latency.quantile(quantile).as_secs_f64() * 1e3)
}

/// Runs both in `rounds` alternating rounds. Each second pair has the reverse order, so that a drift of the machine affects both.
///
/// # Errors
/// One of the tests could not begin, or `rounds` is out of range.
pub fn compare(
    first: &LoadSpec,
    second: &LoadSpec,
    rounds: usize,
    stop: &StopHandle,
    observe: &mut dyn FnMut(usize, &LoadProgress<'_>),
) -> Result<Comparison, LoadTestError> {
    if !(2..=ROUNDS_MAX).contains(&rounds) {
        return Err(LoadTestError::Invalid(format!(
            "{rounds} rounds: use 2 to {ROUNDS_MAX}; the width of an interval needs at least two"
        )));
    }
    let mut pairs = Vec::new();
    for round in 0..rounds {
        let mut both = [None, None];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let spec = if side == 0 { first } else { second };
            both[side] = Some(run_observed(spec, stop, &mut |progress| observe(round, progress))?);
        }
        let [Some(first), Some(second)] = both else { continue };
        let is_cut = stop.is_stopped();
        if !is_cut || pairs.is_empty() {
            pairs.push((first, second)); // a round that was cut short says little
        }
        if is_cut {
            break;
        }
    }
    summarize(&pairs)
        .ok_or_else(|| LoadTestError::Invalid("the test was stopped before its first round ended".to_owned()))
}

fn summarize(pairs: &[(LoadResult, LoadResult)]) -> Option<Comparison> {
    let ((first, second), rest) = pairs.split_first()?;
    let (mut first, mut second) = (first.clone(), second.clone());
    for (left, right) in rest {
        first.merge(left);
        second.merge(right);
    }
    let rows = FIGURES
        .iter()
        .filter_map(|Figure { name, unit, of }| {
            let rounds: Vec<_> = pairs.iter().filter_map(|(left, right)| Some((of(left)?, of(right)?))).collect();
            let ratio = RatioInterval::of(&rounds);
            Some(ComparisonRow { name, unit, first: of(&first)?, second: of(&second)?, ratio })
        })
        .collect();
    Some(Comparison { first, second, rows, rounds: pairs.len() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::report::example;

    fn scaled(factor: u32, at: u64) -> LoadResult {
        let mut result = example::result();
        result.in_time = 4 * (1_000 * u64::from(factor) + at);
        result.target_cpu = None;
        result
    }

    #[test]
    fn rows_have_the_ratio_of_the_second_to_the_first() {
        let pairs: Vec<_> = (0..4).map(|at| (scaled(1, at), scaled(2, at))).collect();
        let comparison = summarize(&pairs).unwrap();
        assert_eq!(comparison.rounds, 4);
        let rate = &comparison.rows[0];
        let ratio = rate.ratio.unwrap();
        assert!((ratio.ratio - 2.0).abs() < 0.01 && ratio.differs(), "{rate:?}");
        assert!((rate.first - 1_001.5).abs() < 1.0 && (rate.second - 2_001.5).abs() < 1.0, "{rate:?}");
        let equal = comparison.rows.iter().find(|row| row.name == "latency p50").unwrap();
        assert!(!equal.ratio.unwrap().differs(), "{equal:?}");
        assert!(comparison.rows.iter().all(|row| row.name != "CPU of target"), "it was not measured");
    }

    #[test]
    fn merged_rounds_add_up() {
        let pairs: Vec<_> = (0..3).map(|at| (scaled(1, at), scaled(1, at))).collect();
        let comparison = summarize(&pairs).unwrap();
        assert_eq!(comparison.first.counts.responses, 3 * example::result().counts.responses);
        assert_eq!(comparison.first.measured, Duration::from_secs(3 * 4));
        assert_eq!(comparison.first.series.len(), 3 * example::result().series.len());
        assert!(comparison.first.series.is_sorted_by_key(|point| point.end));
    }

    #[test]
    fn single_round_is_rejected() {
        let spec = LoadSpec::new("http://127.0.0.1:1/");
        let why = compare(&spec, &spec, 1, &StopHandle::default(), &mut |_, _| ()).unwrap_err();
        assert!(why.to_string().contains("at least two"), "{why}");
    }
}
