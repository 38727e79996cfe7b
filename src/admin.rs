//! The admin listener: `/metrics`, `/healthz`, `/readyz`, and the flight recorder at `/debug/events/…`.
//!
//! Runs on the control thread; the cores only ever write counters, which are read here.

mod flight;
mod metrics;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use dataplane::counters::CoreCounters;
use dataplane::events::relay::Ways;
use dataplane::publish::Tables;

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
}

/// What else would make a load balancer stop sending.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The stop was said; requests in flight end.
    pub(crate) draining: AtomicBool,
    /// A core's log failed: events are refused until a restart.
    pub(crate) log_failed: AtomicBool,
    /// How the files of `--manifests` are.
    pub(crate) manifests: Arc<control::manifests::Tally>,
}

/// The listener's routes.
pub(crate) fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(show_readiness))
        .route("/debug/events/trace", get(flight::trace))
        .route("/debug/events/dead-letters", get(flight::dead_letters))
        .route("/debug/events/replay", post(flight::replay))
        .fallback(|| async {
            (StatusCode::NOT_FOUND, "there are /metrics, /healthz, /readyz and /debug/events/…\n")
        })
        .with_state(admin)
}

async fn show_metrics(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics::render(&admin) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, TEXT)], text),
        Err(why) => {
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], why.to_string())
        }
    }
}

async fn show_readiness(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    if admin.health.draining.load(Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    if admin.health.log_failed.load(Relaxed) {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "an event log failed: see the process's log, then restart it\n",
        );
    }
    (StatusCode::OK, "ok\n")
}
