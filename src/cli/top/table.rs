//! The tables: arithmetic on two samples, and text.

use std::cmp::Reverse;
use std::fmt::Write as _;

use super::SortKey;
use super::sample::{BackendSample, Sample, SubscriberSample};

/// Lines of a frame beside the rows: title, an empty line, and header and remainder of each table.
const FRAME_LINES: usize = 7;
/// Characters of a name; longer ones keep their end, which differs most.
const NAME_WIDTH: usize = 40;

/// What a backend did between two samples.
#[derive(Debug, Clone, PartialEq)]
struct BackendRates {
    name: String,
    /// Responses a second.
    rate: f64,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    /// The part of all responses that were aborted or 5xx.
    errors: f64,
    now: BackendSample,
}

#[derive(Debug, Clone, PartialEq)]
struct SubscriberRates {
    name: String,
    delivered: f64,
    retries: f64,
    failed: f64,
    pending: u64,
}

/// Both tables. `lines`: as many as fit, the first rows; `None`: all.
pub(super) fn render(address: &str, before: &Sample, now: &Sample, sort: SortKey, lines: Option<usize>) -> String {
    let since = if before.pid == now.pid { before.clone() } else { Sample::default() };
    let elapsed = elapsed_s(before, now);
    let mut backends: Vec<_> = now
        .backends
        .iter()
        .map(|(name, one)| backend_row(name, since.backends.get(name), one, &now.bounds_us, elapsed))
        .collect();
    sort_backends(&mut backends, sort);
    let mut subscribers: Vec<_> = now
        .subscribers
        .iter()
        .map(|(name, one)| subscriber_row(name, since.subscribers.get(name), one, elapsed))
        .collect();
    subscribers.sort_by(|one, other| other.pending.cmp(&one.pending).then(other.delivered.total_cmp(&one.delivered)));
    let (for_backends, for_subscribers) = match lines {
        None => (usize::MAX, usize::MAX),
        Some(lines) => split_rows(lines.saturating_sub(FRAME_LINES), backends.len(), subscribers.len()),
    };
    let total: f64 = backends.iter().map(|row| row.rate).sum();
    let state = now.not_ready.as_deref().map_or(String::new(), |why| format!("  NOT READY: {}", first_line(why)));
    let mut out = format!(
        "sluicegate {} at {address}  {total:.1} requests/s  {} connections{state}\n\n",
        now.version, now.connections
    );
    write_backends(&mut out, &backends, for_backends, now.backends_omitted);
    if !subscribers.is_empty() {
        out.push('\n');
        write_subscribers(&mut out, &subscribers, for_subscribers, now.subscribers_omitted);
    }
    out
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The rows of each table when `room` is all there is: subscribers get what backends leave, and at least a third.
fn split_rows(room: usize, backends: usize, subscribers: usize) -> (usize, usize) {
    let for_subscribers = subscribers.min((room / 3).max(room.saturating_sub(backends)));
    (room.saturating_sub(for_subscribers), for_subscribers)
}

fn elapsed_s(before: &Sample, now: &Sample) -> f64 {
    let ms = now.time_ms.saturating_sub(before.time_ms).max(1);
    ms as f64 / 1000.0
}

/// What a counter rose by; all of it if it began again.
fn rise(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn rises(before: Option<&Vec<u64>>, now: &[u64]) -> Vec<u64> {
    let before = |nth: usize| before.and_then(|all| all.get(nth)).copied().unwrap_or_default();
    now.iter().enumerate().map(|(nth, count)| rise(before(nth), *count)).collect()
}

fn backend_row(
    name: &str,
    before: Option<&BackendSample>,
    now: &BackendSample,
    bounds_us: &[u64],
    elapsed: f64,
) -> BackendRates {
    let responses = rises(before.map(|before| &before.responses), &now.responses);
    let buckets = rises(before.map(|before| &before.buckets), &now.buckets);
    let all: u64 = responses.iter().sum();
    let failed = [0, 5].iter().filter_map(|class| responses.get(*class)).sum::<u64>();
    BackendRates {
        name: name.to_owned(),
        rate: all as f64 / elapsed,
        p50_us: percentile(&buckets, bounds_us, 0.50),
        p99_us: percentile(&buckets, bounds_us, 0.99),
        errors: if all == 0 { 0.0 } else { failed as f64 / all as f64 },
        now: now.clone(),
    }
}

fn subscriber_row(
    name: &str,
    before: Option<&SubscriberSample>,
    now: &SubscriberSample,
    elapsed: f64,
) -> SubscriberRates {
    let before = before.cloned().unwrap_or_default();
    let rate = |before, now| rise(before, now) as f64 / elapsed;
    SubscriberRates {
        name: name.to_owned(),
        delivered: rate(before.delivered, now.delivered),
        retries: rate(before.retries, now.retries),
        failed: rate(before.failed, now.failed),
        pending: now.pending,
    }
}

/// The duration that this part of all requests took at most, interpolated within its bucket. Of those that are longer than
/// all bounds, the last bound. `None` without requests.
fn percentile(buckets: &[u64], bounds_us: &[u64], part: f64) -> Option<u64> {
    let all: u64 = buckets.iter().sum();
    if all == 0 {
        return None;
    }
    let wanted = (all as f64 * part).max(1.0);
    let (mut below, mut lower) = (0.0, 0_u64);
    for (count, upper) in buckets.iter().zip(bounds_us) {
        let count = *count as f64;
        if below + count >= wanted {
            return Some(lower + ((upper - lower) as f64 * (wanted - below) / count) as u64);
        }
        below += count;
        lower = *upper;
    }
    bounds_us.last().copied()
}

fn sort_backends(rows: &mut [BackendRates], sort: SortKey) {
    let busiest = |one: &BackendRates, other: &BackendRates| {
        other.rate.total_cmp(&one.rate).then_with(|| other.now.instances.cmp(&one.now.instances))
    };
    rows.sort_by(|one, other| match sort {
        SortKey::Rate => busiest(one, other),
        SortKey::P99 => other.p99_us.cmp(&one.p99_us).then_with(|| busiest(one, other)),
        SortKey::Errors => other.errors.total_cmp(&one.errors).then_with(|| busiest(one, other)),
        SortKey::Queued => Reverse(one.now.queued).cmp(&Reverse(other.now.queued)).then_with(|| busiest(one, other)),
        SortKey::Name => one.name.cmp(&other.name),
    });
}

fn write_backends(out: &mut String, rows: &[BackendRates], shown: usize, omitted: u64) {
    let head = ["REQUESTS/S", "P50", "P99", "ERRORS", "ACTIVE", "QUEUED", "INSTANCES", "STARTING"];
    write_header(out, "BACKEND", &head);
    for row in rows.iter().take(shown) {
        let frozen = if row.now.frozen > 0 { format!(" ({} frozen)", row.now.frozen) } else { String::new() };
        let cells = [
            format!("{:.1}", row.rate),
            duration(row.p50_us),
            duration(row.p99_us),
            format!("{:.1}%", row.errors * 100.0),
            row.now.active.to_string(),
            row.now.queued.to_string(),
            row.now.instances.to_string(),
            row.now.starting.to_string(),
        ];
        write_row(out, &row.name, &cells, &head, &frozen);
    }
    write_remainder(out, "backends", rows.len(), shown, omitted);
}

fn write_subscribers(out: &mut String, rows: &[SubscriberRates], shown: usize, omitted: u64) {
    let head = ["DELIVERED/S", "RETRIES/S", "FAILED/S", "PENDING"];
    write_header(out, "SUBSCRIBER", &head);
    for row in rows.iter().take(shown) {
        let rates = [row.delivered, row.retries, row.failed].map(|rate| format!("{rate:.1}"));
        let [delivered, retries, failed] = rates;
        write_row(out, &row.name, &[delivered, retries, failed, row.pending.to_string()], &head, "");
    }
    write_remainder(out, "subscribers", rows.len(), shown, omitted);
}

fn write_header(out: &mut String, name: &str, head: &[&str]) {
    let columns: String = head.iter().map(|title| format!("  {title:>9}")).collect();
    writeln!(out, "{name:NAME_WIDTH$}{columns}").unwrap_or_default();
}

fn write_row(out: &mut String, name: &str, cells: &[String], head: &[&str], more: &str) {
    let width = |title: &&str| title.len().max(9);
    let columns: String =
        head.iter().zip(cells).map(|(title, cell)| format!("  {cell:>width$}", width = width(title))).collect();
    writeln!(out, "{:NAME_WIDTH$}{columns}{more}", short(name)).unwrap_or_default();
}

fn write_remainder(out: &mut String, what: &str, rows: usize, shown: usize, omitted: u64) {
    let more = rows.saturating_sub(shown) as u64 + omitted;
    if more > 0 {
        writeln!(out, "more {what}: {more}").unwrap_or_default();
    }
}

/// A name in its column.
fn short(name: &str) -> String {
    let excess = name.chars().count().saturating_sub(NAME_WIDTH);
    if excess == 0 { name.to_owned() } else { format!("…{}", name.chars().skip(excess + 1).collect::<String>()) }
}

fn duration(us: Option<u64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us < 10_000 => format!("{:.1}ms", us as f64 / 1e3),
        Some(us) if us < 1_000_000 => format!("{:.0}ms", us as f64 / 1e3),
        Some(us) => format!("{:.1}s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn figures(time_ms: u64, pid: u64, ok: u64, failed: u64) -> Value {
        json!({
            "time_ms": time_ms, "version": "1.0", "process": { "pid": pid }, "bounds_us": [1000, 2000],
            "cores": [{ "connections_open": 3 }, { "connections_open": 4 }],
            "backends": [
                { "key": "ns/busy", "responses": [0, 0, ok, 0, 0, failed], "buckets": [ok, failed, 0], "queued": 2,
                  "endpoints": 1, "starting": 1, "frozen": 1 },
                { "key": "ns/idle", "responses": [0, 0, 0, 0, 0, 0], "buckets": [0, 0, 0], "queued": 9 },
            ],
            "streams": [{ "path": "/brokers/ns/b", "subscribers_omitted": 5, "subscribers": [
                { "label": "ns/t", "delivered": ok, "dead_lettered": failed, "dropped": 1, "retries": 0, "pending": 8 },
            ] }],
        })
    }

    #[test]
    fn rates_and_percentiles_are_of_the_time_between_samples() {
        let (before, now) = (Sample::of(&figures(1000, 7, 100, 10)), Sample::of(&figures(3000, 7, 190, 20)));
        let text = render("a:1", &before, &now, SortKey::Rate, None);
        let busy = text.lines().find(|line| line.starts_with("ns/busy")).unwrap();
        let cells: Vec<_> = busy.split_whitespace().collect();
        assert_eq!(
            cells,
            ["ns/busy", "50.0", "0.6ms", "1.9ms", "10.0%", "0", "2", "1", "1", "(1", "frozen)"],
            "{text}"
        );
        assert!(text.starts_with("sluicegate 1.0 at a:1  50.0 requests/s  7 connections\n"), "{text}");
        let trigger = text.lines().find(|line| line.starts_with("trigger/ns/t")).unwrap();
        assert_eq!(trigger.split_whitespace().skip(1).collect::<Vec<_>>(), ["45.0", "0.0", "5.0", "8"]);
        assert!(text.contains("more subscribers: 5"));
        let idle = text.lines().find(|line| line.starts_with("ns/idle")).unwrap();
        assert!(idle.split_whitespace().nth(2) == Some("-"), "no request, no percentile: {idle}");
    }

    #[test]
    fn counters_of_a_new_process_begin_again() {
        let (before, now) = (Sample::of(&figures(1000, 7, 100, 10)), Sample::of(&figures(2000, 8, 30, 0)));
        assert!(render("a:1", &before, &now, SortKey::Rate, None).contains("30.0 requests/s"));
    }

    #[test]
    fn rows_are_sorted_and_fit_the_terminal() {
        let (before, now) = (Sample::of(&figures(1000, 7, 0, 0)), Sample::of(&figures(2000, 7, 10, 0)));
        let first = |sort| {
            let text = render("a:1", &before, &now, sort, None);
            text.lines().nth(3).unwrap().split_whitespace().next().unwrap().to_owned()
        };
        assert_eq!((first(SortKey::Rate), first(SortKey::Queued)), ("ns/busy".to_owned(), "ns/idle".to_owned()));
        let text = render("a:1", &before, &now, SortKey::Name, Some(FRAME_LINES + 1));
        assert!(text.contains("more backends: 1") && text.lines().count() <= FRAME_LINES + 1, "{text}");
        assert_eq!(split_rows(30, 100, 100), (20, 10));
        assert_eq!(split_rows(30, 5, 100), (5, 25));
        assert_eq!(split_rows(30, 100, 2), (28, 2));
        assert_eq!(short(&"n".repeat(50)).chars().count(), NAME_WIDTH);
    }

    #[test]
    fn percentile_is_interpolated_and_bounded() {
        let bounds = [1000, 2000, 4000];
        assert_eq!(percentile(&[0, 0, 0, 0], &bounds, 0.5), None);
        assert_eq!(percentile(&[10, 0, 0, 0], &bounds, 0.5), Some(500));
        assert_eq!(percentile(&[50, 0, 50, 0], &bounds, 0.99), Some(3960));
        assert_eq!(percentile(&[0, 0, 0, 5], &bounds, 0.5), Some(4000));
    }
}
