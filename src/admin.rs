//! The admin listener: `/metrics`, `/healthz`, `/readyz`, `/debug/connections`, `/debug/routes`, and the flight
//! recorder at `/debug/events/…`.
//!
//! Runs on the control thread; the cores write counters, which are read here, and answer questions.

mod flight;
mod look;
mod metrics;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use dataplane::counters::CoreCounters;
use dataplane::events::relay::Ways;
use dataplane::inquiry;
use dataplane::publish::Tables;
use serde::Deserialize;
use dataplane::target_policy::TargetPolicy;

pub(crate) use flight::Turns;
use metrics::Detail;
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
    /// Cores that do not turn.
    pub(crate) stalls: Stalls,
    /// A takeover failed late: API, events and logs are gone, and requests go on.
    pub(crate) orphaned: AtomicBool,
    /// Which addresses objects may name, and how many connects were refused.
    pub(crate) targets: Arc<TargetPolicy>,
    /// What became of spans that were to be sent.
    pub(crate) spans: Arc<SpanTally>,
    /// How the files of `--manifests` are.
    pub(crate) manifests: Arc<control::manifests::Tally>,
    /// What the events of PingSources came to.
    pub(crate) pings: Arc<control::controllers::sources::Tally>,
}

/// What is known of cores that do not turn: a sentence for each.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Mutex<BTreeMap<usize, String>>);

impl Stalls {
    /// Says it of a core, or takes it back.
    pub(crate) fn set(&self, core: usize, what: Option<String>) {
        let mut stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match what {
            Some(what) => drop(stalls.insert(core, what)),
            None => drop(stalls.remove(&core)),
        }
    }

    /// All of them, a line each; `None`: every core turns.
    fn told(&self) -> Option<String> {
        let stalls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!stalls.is_empty()).then(|| stalls.values().map(|what| format!("{what}\n")).collect())
    }
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
        .route(
            "/metrics",
            get(async move |State(admin): State<Arc<Admin>>, Query(wanted): Query<Wanted>| {
                show_metrics(&admin, &scaler, wanted.detail())
            }),
        )
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

/// What a scrape asks for.
#[derive(Debug, Default, Deserialize)]
struct Wanted {
    /// `all`: each subscriber has lines of its own.
    subscribers: Option<String>,
}

impl Wanted {
    fn detail(&self) -> Detail {
        if self.subscribers.as_deref() == Some("all") { Detail::All } else { Detail::Bounded }
    }
}

fn show_metrics(admin: &Admin, scaler: &Scaler, detail: Detail) -> impl IntoResponse + use<> {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics::render(admin, scaler, detail) {
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
async fn show_health(State(admin): State<Arc<Admin>>) -> Response {
    if let Some(stalls) = admin.health.stalls.told() {
        return (StatusCode::SERVICE_UNAVAILABLE, stalls).into_response();
    }
    if admin.health.orphaned.load(Relaxed) { ORPHANED } else { (StatusCode::OK, "ok\n") }.into_response()
}

async fn show_readiness(State(admin): State<Arc<Admin>>) -> Response {
    match admin.health.stalls.told() {
        Some(stalls) => (StatusCode::SERVICE_UNAVAILABLE, stalls).into_response(),
        None => readiness(&admin.health).into_response(),
    }
}

fn readiness(health: &Health) -> (StatusCode, &'static str) {
    if health.draining.load(Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    if health.orphaned.load(Relaxed) {
        return ORPHANED;
    }
    if health.log_failed.load(Relaxed) {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "an event log failed: see the process's log, then restart it\n",
        );
    }
    (StatusCode::OK, "ok\n")
}
