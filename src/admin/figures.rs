//! What the console and `sluicegate top` show: the counters that `/metrics` reads, as one line of JSON (`/debug/figures`).
//!
//! All viewers share one line, and nothing is read while there are none. Counters are totals: a viewer computes rates and
//! percentiles from the differences.

mod events;
mod limits;
mod process;
mod requests;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use dataplane::counters::{CoreCounters, LogCounters};
use dataplane::proxy::LocalReply;
use dataplane::request_histograms::DURATIONS_US;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{AdminServer, AutoscalerMetrics};
pub(crate) use limits::FIGURES_INTERVAL;

/// The last line, and when it was made.
#[derive(Debug, Default)]
pub(crate) struct FiguresCache {
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl FiguresCache {
    /// The current line; `None` if it cannot be made. Tables may have 100,000 routes, so a thread that may block reads them.
    pub(crate) async fn line(admin: &Arc<AdminServer>, scaler: &AutoscalerMetrics) -> Option<Bytes> {
        let mut last = admin.figures.last.lock().await;
        let now = Instant::now();
        if let Some((made_at, line)) = &*last
            && now.duration_since(*made_at) < FIGURES_INTERVAL / 2
        {
            return Some(line.clone());
        }
        let (reading, scaler) = (Arc::clone(admin), scaler.clone());
        let made = tokio::task::spawn_blocking(move || format!("{}\n", figures(&reading, &scaler)));
        let line = Bytes::from(made.await.ok()?);
        *last = Some((now, line.clone()));
        Some(line)
    }
}

fn figures(admin: &AdminServer, scaler: &AutoscalerMetrics) -> Value {
    let table = admin.tables.load();
    let (backends, backends_omitted) = requests::backends(&table, scaler);
    let (streams, streams_omitted) = events::streams(&table);
    json!({
        "time_ms": unix_ms(SystemTime::now()),
        "version": env!("CARGO_PKG_VERSION"),
        "table_version": table.version,
        "hosts": table.hosts.len() + usize::from(table.any_host.is_some()),
        "not_ready": admin.health.verdict().err(),
        "warnings": admin.health.warnings(),
        "bounds_us": DURATIONS_US,
        "connections_max": admin.connections_max,
        "process": process::figures(),
        "cores": admin.cores.iter().map(|core| core_figures(core)).collect::<Vec<_>>(),
        "local_replies": local_replies(&admin.cores),
        "backends": backends,
        "backends_omitted": backends_omitted,
        "cold_starts": requests::cold_starts(&admin.cores),
        "streams": streams,
        "streams_omitted": streams_omitted,
        "quotas": events::quotas(&table),
        "abandoned": table.abandoned.events(),
    })
}

fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn core_figures(core: &CoreCounters) -> Value {
    json!({
        "connections_open": core.connections_open.load(Relaxed),
        "connections": core.connections_taken.load(Relaxed),
        "connections_refused": core.connections_refused.load(Relaxed),
        // By class of status: aborted, 1xx … 5xx.
        "requests": core.requests.each_ref().map(|count| count.load(Relaxed)),
        "received_bytes": core.bytes_received.load(Relaxed),
        "sent_bytes": core.bytes_sent.load(Relaxed),
        "http2_connections": core.http2_connections.load(Relaxed),
        "upstream_connections": core.upstream_opened.load(Relaxed),
        "upstream_reused": core.upstream_reused.load(Relaxed),
        "upstream_connect_failures": core.outliers.load(Relaxed),
        "turns": core.heartbeat.turns(),
        "stalls": core.stalls.load(Relaxed),
        "tasks_panicked": core.tasks_panicked.load(Relaxed),
        "log": log_figures(&core.log),
    })
}

fn log_figures(log: &LogCounters) -> Value {
    json!({
        "flushes": log.flushes.load(Relaxed),
        "flush_us": log.flush_us.load(Relaxed),
        "flushed_bytes": log.flushed_bytes.load(Relaxed),
        "unflushed_bytes": log.unflushed_bytes.load(Relaxed),
        "compacted_bytes": log.compacted_bytes.load(Relaxed),
        "bytes": log.bytes.load(Relaxed),
        "bytes_max": log.bytes_max.load(Relaxed),
        "live_bytes": log.live_bytes.load(Relaxed),
        "corrupt_records": log.damaged.load(Relaxed),
        "corrupt_segments": log.broken.load(Relaxed),
        "gaps": log.gaps.load(Relaxed),
        "failed": log.failed.load(Relaxed),
    })
}

/// Responses that the gateway made itself, by reason, over all cores; reasons without any are left out.
fn local_replies(cores: &[Arc<CoreCounters>]) -> Map<String, Value> {
    let count = |nth: usize| -> u64 { cores.iter().map(|core| core.refused[nth].load(Relaxed)).sum() };
    let counts = LocalReply::REASONS.iter().enumerate().map(|(nth, reason)| ((*reason).to_owned(), count(nth)));
    counts.filter(|(_, count)| *count > 0).map(|(reason, count)| (reason, count.into())).collect()
}
