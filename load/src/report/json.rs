//! The report as JSON: numbers without units in their values, units in their names.

use serde_json::{Map, Value, json};

use super::{QUANTILES, Report};
use crate::comparison::{Comparison, ComparisonRow};
use crate::latency::LatencyHistogram;
use crate::result::LoadResult;
use crate::series::SeriesPoint;

/// Points of the latency curve for each halving of the distance to 100 %.
const CURVE_STEPS: u32 = 5;

/// An object with `tests`, one for each step, or with `comparison`.
#[must_use]
pub fn to_json(report: &Report) -> Value {
    match report {
        Report::Tests(results) => json!({ "tests": results.iter().map(test).collect::<Vec<_>>() }),
        Report::Comparison(both) => json!({ "comparison": comparison(both) }),
    }
}

fn test(result: &LoadResult) -> Value {
    let failures: Map<_, _> = result
        .failures
        .iter()
        .map(|(kind, failure)| (kind.name().to_owned(), json!({ "count": failure.count, "example": failure.example })))
        .collect();
    json!({
        "target": result.target,
        "load": result.description,
        "seconds": result.measured.as_secs_f64(),
        "requests": result.requests(),
        "responses": result.counts.responses,
        "error_responses": result.counts.error_responses,
        "requests_per_second": result.rate(),
        "bytes_received": result.counts.bytes,
        "statuses": counts(result.statuses.iter()),
        "grpc_statuses": counts(result.grpc_statuses.iter()),
        "failures": failures,
        "unsent": result.unsent,
        "latency_us": latency(&result.latency),
        "generator_cpu_us_per_request": result.generator_cpu_us(),
        "target_cpu_us_per_request": result.target_cpu_us(),
        "notes": result.notes,
        "series": result.series.iter().map(point).collect::<Vec<_>>(),
    })
}

fn counts<'a>(counts: impl Iterator<Item = (&'a u16, &'a u64)>) -> Value {
    counts.map(|(status, count)| (status.to_string(), json!(count))).collect::<Map<_, _>>().into()
}

fn latency(latency: &LatencyHistogram) -> Value {
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    let mut figures = Map::new();
    for (name, value) in [("min", latency.min()), ("mean", latency.mean()), ("max", latency.max())] {
        figures.insert(name.to_owned(), json!(us(value)));
    }
    for (quantile, name) in QUANTILES {
        figures.insert(name.to_owned(), json!(us(latency.quantile(quantile))));
    }
    let curve: Vec<_> =
        latency.curve(CURVE_STEPS).into_iter().map(|(quantile, latency)| json!([quantile, us(latency)])).collect();
    figures.insert("curve".to_owned(), json!(curve));
    figures.into()
}

fn point(point: &SeriesPoint) -> Value {
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    json!({
        "second": point.end.as_secs_f64(),
        "responses": point.counts.responses,
        "responses_per_second": point.rate(),
        "error_responses": point.counts.error_responses,
        "failures": point.counts.failures,
        "bytes": point.counts.bytes,
        "p50_us": us(point.p50),
        "p99_us": us(point.p99),
        "max_us": us(point.max),
    })
}

fn comparison(both: &Comparison) -> Value {
    let rows: Vec<_> = both.rows.iter().map(comparison_row).collect();
    json!({ "a": test(&both.first), "b": test(&both.second), "rounds": both.rounds, "figures": rows })
}

fn comparison_row(row: &ComparisonRow) -> Value {
    let interval = row.ratio.map(|interval| {
        json!({ "ratio": interval.ratio, "low": interval.low, "high": interval.high, "differs": interval.differs() })
    });
    json!({ "name": row.name, "unit": row.unit, "a": row.first, "b": row.second, "b_to_a": interval })
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn json_has_counts_latencies_and_series() {
        let report = to_json(&Report::Tests(vec![example::result()]));
        let test = &report["tests"][0];
        for (pointer, value) in [
            ("/requests", json!(4_004)),
            ("/requests_per_second", json!(1_000.0)),
            ("/statuses/503", json!(400)),
            ("/failures/closed/count", json!(4)),
            ("/target_cpu_us_per_request", json!(10.0)),
            ("/series/3/second", json!(4.0)),
            ("/series/0/responses", json!(1_000)),
        ] {
            assert_eq!(test.pointer(pointer), Some(&value), "{pointer}");
        }
        let p50 = test["latency_us"]["p50"].as_f64().unwrap();
        assert!((p50 / 500_000.0 - 1.0).abs() < 0.002, "{p50}");
        assert!(test["latency_us"]["curve"].as_array().unwrap().len() > 10);
    }

    #[test]
    fn json_of_comparison_has_both_tests_and_ratios() {
        let report = to_json(&Report::Comparison(Box::new(example::comparison())));
        let both = &report["comparison"];
        assert_eq!((both["rounds"].clone(), both["a"]["requests"].clone()), (json!(3), json!(4_004)));
        assert!(both["figures"][0]["b_to_a"]["differs"] == true && both["figures"][1]["b_to_a"].is_null(), "{both}");
    }
}
