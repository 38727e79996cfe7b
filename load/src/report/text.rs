//! The summary for a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use super::number::{bytes, duration, grouped, rate, significant};
use super::{QUANTILES, Report};
use crate::comparison::{Comparison, ComparisonRow};
use crate::result::LoadResult;
use crate::runner::LoadProgress;

/// The whole report.
#[must_use]
pub fn to_text(report: &Report) -> String {
    match report {
        Report::Comparison(both) => comparison(both),
        Report::Tests(results) if results.len() == 1 => results.iter().map(summary).collect(),
        Report::Tests(_) => {
            let parts = report.results().into_iter().map(|(name, result)| format!("{name}\n{}", summary(result)));
            parts.collect::<Vec<_>>().join("\n")
        }
    }
}

/// The line that is rewritten while a test runs.
#[must_use]
pub fn progress_line(progress: &LoadProgress<'_>) -> String {
    let point = progress.point;
    let whole = progress.duration.map_or_else(String::new, |all| format!(" of {}", duration(all)));
    let failed = progress.counts.failures + progress.counts.error_responses;
    let errors = if failed == 0 { "no errors".to_owned() } else { format!("{} errors", grouped(failed)) };
    format!(
        "{:.1} s{whole}  {}/s  p50 {}  p99 {}  {} responses, {errors}",
        point.end.as_secs_f64(),
        rate(point.rate()),
        duration(point.p50),
        duration(point.p99),
        grouped(progress.counts.responses),
    )
}

fn row(out: &mut String, name: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "  {name:<11}{value}");
}

fn summary(result: &LoadResult) -> String {
    let mut out = format!("{}\n{}, {}\n\n", result.target, result.description, duration(result.measured));
    let counts = &result.counts;
    row(&mut out, "requests", &format!("{}, {}/s", grouped(result.requests()), rate(result.rate())));
    row(&mut out, "received", &format!("{}, {}/s", bytes(counts.bytes as f64), bytes(result.bytes_rate())));
    let statuses: Vec<_> =
        result.statuses.iter().map(|(status, count)| format!("{status}: {}", grouped(*count))).collect();
    let statuses = if statuses.is_empty() { "none".to_owned() } else { statuses.join("  ") };
    row(&mut out, "statuses", &statuses);
    if !result.grpc_statuses.is_empty() {
        let each = result.grpc_statuses.iter().map(|(status, count)| format!("{status}: {}", grouped(*count)));
        row(&mut out, "gRPC", &each.collect::<Vec<_>>().join("  "));
    }
    if result.failures.is_empty() {
        row(&mut out, "failures", "none");
    }
    for (kind, failure) in &result.failures {
        row(&mut out, "failures", &format!("{}: {} ({})", kind.name(), grouped(failure.count), failure.example));
    }
    if !result.latency.is_empty() {
        let _ = writeln!(out);
        let latency = &result.latency;
        let mut figures = vec![("min", latency.min()), ("mean", latency.mean())];
        figures.extend(QUANTILES.iter().map(|(quantile, name)| (*name, latency.quantile(*quantile))));
        figures.push(("max", latency.max()));
        latencies(&mut out, &figures);
    }
    let _ = writeln!(out);
    let target = result.target_cpu_us().map(|cpu| format!("target {} us a request, ", significant(cpu)));
    let generator = format!("generator {} us a request", significant(result.generator_cpu_us()));
    row(&mut out, "CPU", &format!("{}{generator}", target.unwrap_or_default()));
    for note in &result.notes {
        row(&mut out, "note", note);
    }
    out
}

fn latencies(out: &mut String, figures: &[(&str, Duration)]) {
    for (at, (name, latency)) in figures.iter().enumerate() {
        row(out, if at == 0 { "latency" } else { "" }, &format!("{name:<7}{:>9}", duration(*latency)));
    }
}

fn comparison(both: &Comparison) -> String {
    let mut out = format!("A: {}\nB: {}\n", both.first.target, both.second.target);
    let rounds = both.rounds;
    let _ = writeln!(out, "{}, {rounds} rounds each, {}\n", both.first.description, duration(both.first.measured));
    let _ = writeln!(out, "  {:<30}{:>12}{:>12}{:>9}  95 % confidence", "", "A", "B", "B / A");
    for ComparisonRow { name, unit, first, second, ratio } in &both.rows {
        let name = format!("{name}, {unit}");
        let _ = write!(out, "  {name:<30}{:>12}{:>12}", rate(*first), rate(*second));
        let _ = match ratio {
            None => writeln!(out, "{:>9}  too few rounds", "-"),
            Some(interval) => {
                let verdict = if interval.differs() { "" } else { " (no difference shown)" };
                let (ratio, low, high) = (interval.ratio, interval.low, interval.high);
                writeln!(out, "{ratio:>9.3}  {low:.3} to {high:.3}{verdict}")
            }
        };
    }
    for (side, result) in [("A", &both.first), ("B", &both.second)] {
        let failed = result.counts.failures + result.counts.error_responses;
        if failed > 0 {
            let _ = writeln!(out, "  {side}: {} of {} requests failed", grouped(failed), grouped(result.requests()));
        }
        for note in &result.notes {
            let _ = writeln!(out, "  {side}: {note}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn summary_names_every_figure() {
        let text = to_text(&Report::Tests(vec![example::result()]));
        for part in [
            "http://127.0.0.1:81/a?b=<c>&d",
            "requests   4,004, 1,000/s",
            "received   391 KiB, 97.7 KiB/s",
            "statuses   200: 3,600  503: 400",
            "failures   closed: 4 (a \"quoted\", <odd> text)",
            "p50       500 ms",
            "max       1.00 s",
            "CPU        target 10.0 us a request, generator 5.00 us a request",
            "note       read <this>",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    #[test]
    fn test_without_response_has_no_latency() {
        let empty = LoadResult {
            latency: Default::default(),
            statuses: Default::default(),
            counts: Default::default(),
            in_time: 0,
            target_cpu: None,
            ..example::result()
        };
        let text = to_text(&Report::Tests(vec![empty]));
        assert!(text.contains("statuses   none") && !text.contains("latency"), "{text}");
    }

    #[test]
    fn steps_are_named_by_number() {
        let text = to_text(&Report::Tests(vec![example::result(), example::result()]));
        assert!(text.starts_with("step 1\n") && text.contains("\nstep 2\n"), "{text}");
    }

    #[test]
    fn comparison_has_a_ratio_with_its_interval() {
        let text = to_text(&Report::Comparison(Box::new(example::comparison())));
        assert!(text.contains("requests, /s") && text.contains("  1.9"), "{text}");
        assert!(text.contains("too few rounds") && text.contains("A: 404 of 4,004 requests failed"), "{text}");
    }
}
