//! Figures of backends, and the last cold starts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use control::autoscaler::RevisionMetrics;
use dataplane::counters::CoreCounters;
use dataplane::request_histograms::{DURATIONS_US, RequestPhase};
use dataplane::table::{Backend, RoutingTable};
use serde_json::{Value, json};

use super::limits::{BACKENDS_MAX, REVISIONS_MAX};
use super::unix_ms;
use crate::admin::{AutoscalerMetrics, all_backends};

/// The busiest backends, and how many are left out.
pub(super) fn backends(table: &RoutingTable, scaler: &AutoscalerMetrics) -> (Vec<Value>, usize) {
    let mut all: Vec<(&str, &Backend)> = all_backends(table).into_iter().collect();
    // Those with requests now, then those with instances, then those that had requests.
    let rank = |backend: &Backend| {
        let demand = backend.load.demand();
        (demand > 0, !backend.endpoints.is_empty(), backend.load.requests.load(Relaxed))
    };
    let omitted = all.len().saturating_sub(BACKENDS_MAX);
    if omitted > 0 {
        all.sort_by_cached_key(|(_, backend)| std::cmp::Reverse(rank(backend)));
        all.truncate(BACKENDS_MAX);
    }
    let (revisions, _) = scaler.autoscaler.revision_metrics(REVISIONS_MAX);
    let scaling: BTreeMap<&str, &RevisionMetrics> = revisions.iter().map(|one| (&*one.key, one)).collect();
    let shown = all.iter().map(|(key, backend)| backend_figures(key, backend, scaling.get(key).copied()));
    (shown.collect(), omitted)
}

fn backend_figures(key: &str, backend: &Backend, scaling: Option<&RevisionMetrics>) -> Value {
    let load = &backend.load;
    let mut by_class = [0_u64; 6];
    let mut buckets = [0_u64; DURATIONS_US.len() + 1];
    let mut total_us = 0_u64;
    // As clients see them: with the wait for an instance.
    for outcome in load.answers.iter().filter(|outcome| outcome.key.phase != RequestPhase::Upstream) {
        by_class[usize::from(outcome.key.class()).min(5)] += outcome.durations.count();
        for (sum, count) in buckets.iter_mut().zip(&outcome.durations.buckets) {
            *sum += count.load(Relaxed);
        }
        total_us += outcome.durations.total_us.load(Relaxed);
    }
    let labels = load.labels.get();
    let pods = scaling.map(|one| one.pod_counts).unwrap_or_default();
    json!({
        "key": key,
        "service": labels.map(|labels| &*labels.service),
        "configuration": labels.map(|labels| &*labels.configuration),
        "requests": load.requests.load(Relaxed),
        "active": load.in_flight.load(Relaxed),
        "queued": load.waiting.load(Relaxed),
        "concurrency_max": backend.concurrency_max,
        "responses": by_class,
        "buckets": buckets,
        "total_us": total_us,
        "endpoints": backend.endpoints.len(),
        "frozen": load.frozen.load(Relaxed),
        "ready": scaling.map(|_| pods.ready),
        "starting": pods.pending,
        "draining": pods.terminating,
        "not_ready": pods.not_ready.saturating_sub(pods.pending + pods.terminating),
        "desired": scaling.map(|one| one.desired),
        "panicking": scaling.is_some_and(|one| one.figures.signals.is_panicking),
    })
}

/// The newest first, over all cores.
pub(super) fn cold_starts(cores: &[Arc<CoreCounters>]) -> Vec<Value> {
    let mut all: Vec<_> = cores.iter().flat_map(|core| core.recent_cold_starts.list()).collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.answered_at));
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let shown = all.iter().map(|one| {
        json!({
            "backend": one.backend,
            "answered_ms": unix_ms(one.answered_at),
            "queue_us": us(one.queue),
            "spawn_us": us(one.start.spawn),
            "listen_us": us(one.start.listen),
            "first_byte_us": us(one.first_byte),
        })
    });
    shown.collect()
}
