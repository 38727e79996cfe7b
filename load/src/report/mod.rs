//! Reports: text, JSON, CSV and HTML of one test, of its steps, or of a comparison.

mod csv;
mod html;
mod json;
mod number;
mod plot;
mod text;

pub use csv::to_csv;
pub use html::to_html;
pub use json::to_json;
pub use text::{progress_line, to_text};

use crate::comparison::Comparison;
use crate::result::LoadResult;

/// What a report is about.
#[derive(Debug, Clone)]
pub enum Report {
    /// One test, or one for each step of the rate.
    Tests(Vec<LoadResult>),
    Comparison(Box<Comparison>),
}

impl Report {
    /// The results, each with the name that plots and tables use.
    fn results(&self) -> Vec<(String, &LoadResult)> {
        match self {
            Self::Tests(results) if results.len() == 1 => {
                results.iter().map(|result| (result.target.clone(), result)).collect()
            }
            Self::Tests(results) => (1..).zip(results).map(|(step, result)| (format!("step {step}"), result)).collect(),
            Self::Comparison(both) => {
                let name = |side: &str, result: &LoadResult| format!("{side}: {}", result.target);
                vec![(name("A", &both.first), &both.first), (name("B", &both.second), &both.second)]
            }
        }
    }

    /// Responses of all tests.
    #[must_use]
    pub fn responses(&self) -> u64 {
        self.results().iter().map(|(_, result)| result.counts.responses).sum()
    }

    /// The first error, for a test without any response: what failed, and what to do.
    #[must_use]
    pub fn first_failure(&self) -> Option<String> {
        let results = self.results();
        results.iter().find_map(|(_, result)| {
            let (kind, failure) = result.failures.iter().max_by_key(|(_, failure)| failure.count)?;
            let advice = crate::error::RequestFailure::new(*kind, "").advice();
            Some(format!("{}: {}; {advice}", result.target, failure.example))
        })
    }
}

/// The quantiles of tables, with their names.
const QUANTILES: [(f64, &str); 6] =
    [(0.5, "p50"), (0.75, "p75"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (0.9999, "p99.99")];

#[cfg(test)]
pub(crate) mod example {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::error::FailureKind;
    use crate::latency::LatencyHistogram;
    use crate::recorder::{FailureCount, IntervalResult, OutcomeCounts};
    use crate::series::SeriesPoint;

    const SECOND: Duration = Duration::from_secs(1);

    /// Four seconds with 4,000 responses of 1 to 1,000 ms.
    pub(crate) fn result() -> LoadResult {
        let mut latency = LatencyHistogram::new();
        let mut series = Vec::new();
        for second in 1..=4 {
            let mut interval = IntervalResult::default();
            for ms in 1..=1_000 {
                interval.latency.record(Duration::from_millis(ms));
            }
            interval.counts = OutcomeCounts { responses: 1_000, error_responses: 100, failures: 1, bytes: 100_000 };
            latency.merge(&interval.latency);
            series.push(SeriesPoint::new(SECOND * (second - 1), SECOND * second, &interval));
        }
        LoadResult {
            target: "http://127.0.0.1:81/a?b=<c>&d".to_owned(),
            description: "HTTP/1.1, closed loop, 2 connections, 1 thread".to_owned(),
            measured: SECOND * 4,
            counts: OutcomeCounts { responses: 4_000, error_responses: 400, failures: 4, bytes: 400_000 },
            in_time: 4_000,
            statuses: BTreeMap::from([(200, 3_600), (503, 400)]),
            grpc_statuses: BTreeMap::new(),
            failures: BTreeMap::from([(
                FailureKind::Closed,
                FailureCount { count: 4, example: "a \"quoted\", <odd> text".to_owned() },
            )]),
            latency,
            series,
            unsent: 0,
            generator_cpu: Duration::from_millis(20),
            target_cpu: Some(Duration::from_millis(40)),
            notes: vec!["read <this>".to_owned()],
        }
    }

    pub(crate) fn comparison() -> Comparison {
        let ratio = crate::confidence::RatioInterval::of(&[(1.0, 2.0), (1.0, 2.1), (1.0, 1.9)]);
        let row = crate::comparison::ComparisonRow { name: "requests", unit: "/s", first: 1.0, second: 2.0, ratio };
        let unsure = crate::comparison::ComparisonRow { name: "latency p50", unit: "ms", ratio: None, ..row.clone() };
        Comparison { first: result(), second: result(), rows: vec![row, unsure], rounds: 3 }
    }
}
