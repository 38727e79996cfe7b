//! The admin listener: `/metrics`, `/healthz`, `/readyz`, `/debug/connections`, `/debug/routes`, and the flight
//! recorder at `/debug/events/…`.
//!
//! Runs on the control thread; the cores write counters, which are read here, and answer questions.

mod flight;
mod look;
mod metrics;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use dataplane::counters::CoreCounters;
use dataplane::events::relay::Ways;
use dataplane::inquiry;
use dataplane::publish::Tables;

pub(crate) use flight::Turns;
pub(crate) use metrics::Scaler;

/// What the listener reports on.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) tables: Arc<Tables>,
    pub(crate) cores: Vec<Arc<CoreCounters>>,
    pub(crate) health: Arc<Health>,
    /// The cores' log folders, by number.
    pub(crate) logs: Vec<PathBuf>,
    /// The way to the cores, for replays.
    pub(crate) ways: Ways,
    /// ... and for questions.
    pub(crate) questions: inquiry::Cores,
    /// Redrives that are under way.
    pub(crate) redrives: Arc<Turns>,
}

/// What else would make a load balancer stop sending.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The stop was said; requests in flight end.
    pub(crate) draining: AtomicBool,
    /// A core's log failed: events are refused until a restart.
    pub(crate) log_failed: AtomicBool,
    /// A takeover failed late: API, events and logs are gone, and requests go on.
    pub(crate) orphaned: AtomicBool,
    /// What became of spans that were to be sent.
    pub(crate) spans: Arc<SpanTally>,
    /// How the files of `--manifests` are.
    pub(crate) manifests: Arc<control::manifests::Tally>,
    /// What the events of PingSources came to.
    pub(crate) pings: Arc<control::controllers::sources::Tally>,
    /// What instances print.
    pub(crate) output: Arc<control::runtime::OutputTally>,
}

/// Spans that left the cores' queue.
#[derive(Debug, Default)]
pub(crate) struct SpanTally {
    pub(crate) sent: AtomicU64,
    /// The collector did not take them.
    pub(crate) failed: AtomicU64,
}

/// The listener's routes.
pub(crate) fn router(admin: Arc<Admin>, scaler: Scaler) -> Router {
    Router::new()
        .route("/metrics", get(async move |State(admin): State<Arc<Admin>>| show_metrics(&admin, &scaler)))
        .route("/healthz", get(show_health))
        .route("/readyz", get(show_readiness))
        .route("/debug/connections", get(look::connections))
        .route("/debug/routes", get(look::routes))
        .route("/debug/events/trace", get(flight::trace))
        .route("/debug/events/dead-letters", get(flight::dead_letters))
        .route("/debug/events/replay", post(flight::replay))
        .fallback(|| async {
            let there = "there are /metrics, /healthz, /readyz, /debug/connections, /debug/routes and /debug/events/…\n";
            (StatusCode::NOT_FOUND, there)
        })
        .with_state(admin)
}

fn show_metrics(admin: &Admin, scaler: &Scaler) -> impl IntoResponse + use<> {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics::render(admin, scaler) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, TEXT)], text),
        Err(why) => {
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], why.to_string())
        }
    }
}

/// Why nobody should count on a process that a takeover left behind.
const ORPHANED: (StatusCode, &str) = (
    StatusCode::SERVICE_UNAVAILABLE,
    "a takeover failed: requests go on, API and events do not; run --takeover again, or restart\n",
);

/// Whoever restarts what is not well has to restart a process that cannot get well by itself.
async fn show_health(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    if admin.health.orphaned.load(Relaxed) { ORPHANED } else { (StatusCode::OK, "ok\n") }
}

async fn show_readiness(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    if admin.health.draining.load(Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    if admin.health.orphaned.load(Relaxed) {
        return ORPHANED;
    }
    if admin.health.log_failed.load(Relaxed) {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "an event log failed: see the process's log, then restart it\n",
        );
    }
    (StatusCode::OK, "ok\n")
}
