//! The report as one page: tables and plots, without scripts and without files from elsewhere.

use std::fmt::Write as _;
use std::time::Duration;

use super::number::{duration, grouped, rate, significant};
use super::plot::{Axis, Plot, PlotLine, escaped, nines};
use super::{QUANTILES, Report, to_text};
use crate::comparison::Comparison;
use crate::result::LoadResult;

const STYLE: &str = include_str!("style.css");
/// Points of the latency curve for each halving of the distance to 100 %.
const CURVE_STEPS: u32 = 10;
/// Lines of one plot: more cannot be told apart.
const LINES_MAX: usize = 8;

/// The page.
#[must_use]
pub fn to_html(report: &Report) -> String {
    let results: Vec<_> = report.results().into_iter().take(LINES_MAX).collect();
    let title = results.first().map_or_else(String::new, |(_, result)| escaped(&result.target));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Load test of {title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Load test</h1>\n"
    );
    if let Some((_, first)) = results.first() {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "<p>{title}<br>{}</p>", escaped(&first.description));
    }
    if let Report::Comparison(both) = report {
        comparison(&mut out, both);
    }
    tests(&mut out, &report.results());
    section(&mut out, "Latency by quantile", &latency_plot(&results));
    section(&mut out, "Throughput over time", &throughput_plot(&results));
    section(&mut out, "Latency over time", &latency_series_plot(&results));
    let _ =
        writeln!(out, "<details><summary>As text</summary><pre>{}</pre></details>", escaped_lines(&to_text(report)));
    out.push_str("</body>\n</html>\n");
    out
}

fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

fn section(out: &mut String, heading: &str, plot: &Plot) {
    let _ = writeln!(out, "<h2>{heading}</h2>\n{}", plot.svg());
}

fn comparison(out: &mut String, both: &Comparison) {
    out.push_str("<table>\n<tr><th>Figure</th><th>A</th><th>B</th><th>B / A</th><th>95 % confidence</th></tr>\n");
    for row in &both.rows {
        let interval = row.ratio.map_or_else(
            || "<td>-</td><td>too few rounds</td>".to_owned(),
            |interval| {
                let verdict = if interval.differs() { "" } else { " (no difference shown)" };
                let (ratio, low, high) = (interval.ratio, interval.low, interval.high);
                format!("<td>{ratio:.3}</td><td>{low:.3} to {high:.3}{verdict}</td>")
            },
        );
        let (first, second) = (rate(row.first), rate(row.second));
        let name = escaped(row.name);
        let _ = writeln!(out, "<tr><th>{name}, {}</th><td>{first}</td><td>{second}</td>{interval}</tr>", row.unit);
    }
    out.push_str("</table>\n");
}

fn tests(out: &mut String, results: &[(String, &LoadResult)]) {
    out.push_str("<table>\n<tr><th>Test</th><th>Requests</th><th>Requests/s</th><th>Failed</th>");
    for (_, name) in QUANTILES {
        let _ = write!(out, "<th>{name}</th>");
    }
    out.push_str("<th>max</th><th>CPU us/request</th></tr>\n");
    for (name, result) in results {
        let failed = result.counts.failures + result.counts.error_responses;
        let (name, requests) = (escaped(name), grouped(result.requests()));
        let _ = write!(out, "<tr><th>{name}</th><td>{requests}</td><td>{}</td>", rate(result.rate()));
        let _ = write!(out, "<td>{}</td>", grouped(failed));
        for (quantile, _) in QUANTILES {
            let _ = write!(out, "<td>{}</td>", duration(result.latency.quantile(quantile)));
        }
        let cpu = result.target_cpu_us().map_or_else(|| "-".to_owned(), significant);
        let _ = writeln!(out, "<td>{}</td><td>{cpu}</td></tr>", duration(result.latency.max()));
    }
    out.push_str("</table>\n");
    for (name, result) in results {
        for note in &result.notes {
            let _ = writeln!(out, "<p class=\"note\">{}: {}</p>", escaped(name), escaped(note));
        }
    }
}

/// Milliseconds, for plots.
fn ms(latency: Duration) -> f64 {
    latency.as_secs_f64() * 1e3
}

fn latency_plot(results: &[(String, &LoadResult)]) -> Plot {
    let mut lines = Vec::new();
    let (mut latency_max, mut quantile_max) = (0.0_f64, 0.9_f64);
    for (name, result) in results {
        // The last point, 100 %, has no place on this axis; it is the largest latency.
        let curve = result.latency.curve(CURVE_STEPS).into_iter().filter(|(quantile, _)| *quantile < 1.0);
        let points: Vec<_> = curve
            .map(|(quantile, latency)| {
                quantile_max = quantile_max.max(quantile);
                latency_max = latency_max.max(ms(latency));
                (nines(quantile), ms(latency))
            })
            .collect();
        lines.push(PlotLine { name: name.clone(), points });
    }
    let x = Axis::quantiles("share of requests", quantile_max);
    let y = Axis::linear("latency, ms", latency_max, significant);
    Plot { title: "Latency by quantile".to_owned(), x, y, lines }
}

fn throughput_plot(results: &[(String, &LoadResult)]) -> Plot {
    let lines: Vec<_> = results
        .iter()
        .map(|(name, result)| {
            let points = result.series.iter().map(|point| (point.end.as_secs_f64(), point.rate())).collect();
            PlotLine { name: name.clone(), points }
        })
        .collect();
    over_time("Throughput over time", "responses/s", lines, rate)
}

fn latency_series_plot(results: &[(String, &LoadResult)]) -> Plot {
    let mut lines = Vec::new();
    for (name, result) in results {
        let series = |of: fn(&crate::series::SeriesPoint) -> Duration| {
            result.series.iter().map(move |point| (point.end.as_secs_f64(), ms(of(point)))).collect()
        };
        lines.push(PlotLine { name: format!("p50 of {name}"), points: series(|point| point.p50) });
        lines.push(PlotLine { name: format!("p99 of {name}"), points: series(|point| point.p99) });
    }
    over_time("Latency over time", "latency, ms", lines, significant)
}

fn over_time(title: &str, label: &str, lines: Vec<PlotLine>, text: impl Fn(f64) -> String) -> Plot {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (x_max, y_max) = points().fold((0.0_f64, 0.0_f64), |(x, y), point| (x.max(point.0), y.max(point.1)));
    let x = Axis::linear("seconds", x_max, |second| format!("{second}"));
    let y = Axis::linear(label, y_max, text);
    Plot { title: title.to_owned(), x, y, lines }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    fn pages() -> [String; 2] {
        [
            to_html(&Report::Tests(vec![example::result()])),
            to_html(&Report::Comparison(Box::new(example::comparison()))),
        ]
    }

    #[test]
    fn page_has_three_plots_and_needs_no_other_file() {
        for page in pages() {
            assert_eq!(page.matches("<svg ").count(), 3);
            for part in ["<script", "src=", "href=", "url(", "@import"] {
                assert!(!page.contains(part), "{part}");
            }
        }
    }

    #[test]
    fn text_of_servers_is_escaped() {
        for page in pages() {
            assert!(!page.contains("<c>") && page.contains("&lt;c&gt;"), "{page}");
            assert!(!page.contains("<this>") && !page.contains("<odd>"), "{page}");
        }
    }

    #[test]
    fn elements_of_the_page_are_balanced() {
        for page in pages() {
            for element in ["table", "tr", "th", "td", "svg", "text", "p", "h2", "details", "pre"] {
                let open =
                    page.matches(&format!("<{element}>")).count() + page.matches(&format!("<{element} ")).count();
                assert_eq!(open, page.matches(&format!("</{element}>")).count(), "{element}");
            }
        }
    }

    #[test]
    fn test_without_response_has_a_page() {
        let empty = LoadResult { latency: Default::default(), series: Vec::new(), ..example::result() };
        assert_eq!(to_html(&Report::Tests(vec![empty])).matches("<svg ").count(), 3);
        assert!(to_html(&Report::Tests(Vec::new())).ends_with("</html>\n"));
    }
}
