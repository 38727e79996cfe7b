//! The admin listener: `/metrics`, `/healthz`, `/readyz`, `/debug/connections`, `/debug/routes`, `/debug/figures`, and the
//! delivery log at `/debug/events/…`.
//!
//! Runs on the control thread; the cores write counters, which are read here, and answer debug queries.

mod acme_counters;
mod connections;
mod delivery_log;
mod figures;
mod health;
mod metrics;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use control::cross_origin::CrossOriginProtection;
use control::publish::Publisher;
use dataplane::connection_query;
use dataplane::core_relay::CoreSenders;
use dataplane::counters::CoreCounters;
use dataplane::table_publisher::TablePublisher;
use serde::Deserialize;

pub(crate) use acme_counters::AcmeCounters;
pub(crate) use delivery_log::ActiveRedrives;
pub(crate) use figures::{FIGURES_INTERVAL, FiguresCache};
pub(crate) use health::Health;
use metrics::Detail;
pub(crate) use metrics::{AutoscalerMetrics, all_backends};

/// State that the listener reports.
#[derive(Debug)]
pub(crate) struct AdminServer {
    pub(crate) tables: Arc<TablePublisher>,
    /// Publishes routes to the destinations of replays.
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) cores: Vec<Arc<CoreCounters>>,
    pub(crate) health: Arc<Health>,
    /// The cores' log folders, by number.
    pub(crate) logs: Vec<PathBuf>,
    /// Channels to the cores, for replays.
    pub(crate) senders: CoreSenders,
    /// Channels to the cores, for debug queries.
    pub(crate) questions: connection_query::CoreQueries,
    /// Redrives in progress.
    pub(crate) redrives: Arc<ActiveRedrives>,
    pub(crate) figures: FiguresCache,
    /// Connections that a core accepts.
    pub(crate) connections_max: usize,
}

/// Counters of spans that left the cores' queue.
#[derive(Debug, Default)]
pub(crate) struct SpanCounters {
    pub(crate) sent: AtomicU64,
    /// The collector rejected them.
    pub(crate) failed: AtomicU64,
}

/// The listener's routes, behind `protection`.
pub(crate) fn router(admin: Arc<AdminServer>, scaler: AutoscalerMetrics, protection: CrossOriginProtection) -> Router {
    routes(admin, scaler).layer(middleware::from_fn_with_state(Arc::new(protection), protect))
}

/// The same without protection, for a listener that has its own.
pub(crate) fn routes(admin: Arc<AdminServer>, scaler: AutoscalerMetrics) -> Router {
    let of_figures = scaler.clone();
    Router::new()
        .route(
            "/metrics",
            get(async move |State(admin): State<Arc<AdminServer>>, Query(wanted): Query<MetricsQuery>| {
                show_metrics(&admin, &scaler, wanted.detail())
            }),
        )
        .route("/healthz", get(show_health))
        .route("/readyz", get(show_readiness))
        .route("/debug/connections", get(connections::connections))
        .route("/debug/routes", get(connections::routes))
        .route(
            "/debug/figures",
            get(async move |State(admin): State<Arc<AdminServer>>| show_figures(&admin, &of_figures).await),
        )
        .route("/debug/events/trace", get(delivery_log::trace))
        .route("/debug/events/dead-letters", get(delivery_log::dead_letters))
        .route("/debug/events/replay", post(delivery_log::replay))
        .fallback(|| async {
            let there =
                "there are /metrics, /healthz, /readyz, /debug/connections, /debug/routes, /debug/figures and /debug/events/…\n";
            (StatusCode::NOT_FOUND, there)
        })
        .with_state(admin)
}

/// Rejects requests that a web page may have sent, with the reason.
async fn protect(State(protection): State<Arc<CrossOriginProtection>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match protection.check(&head) {
        Ok(()) => next.run(Request::from_parts(head, body)).await,
        Err(rejection) => (rejection.status(), format!("{rejection}\n")).into_response(),
    }
}

/// Query parameters of a scrape.
#[derive(Debug, Default, Deserialize)]
struct MetricsQuery {
    /// `all`: each subscriber has series of its own.
    subscribers: Option<String>,
}

impl MetricsQuery {
    fn detail(&self) -> Detail {
        if self.subscribers.as_deref() == Some("all") { Detail::All } else { Detail::Bounded }
    }
}

fn show_metrics(admin: &AdminServer, scaler: &AutoscalerMetrics, detail: Detail) -> impl IntoResponse + use<> {
    const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics::render(admin, scaler, detail) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, TEXT)], text),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], why.to_string()),
    }
}

async fn show_figures(admin: &Arc<AdminServer>, scaler: &AutoscalerMetrics) -> Response {
    match FiguresCache::line(admin, scaler).await {
        Some(line) => ([(header::CONTENT_TYPE, "application/json")], line).into_response(),
        None => (StatusCode::INTERNAL_SERVER_ERROR, "the reading thread panicked\n").into_response(),
    }
}

/// The response of a process that was orphaned by a hot restart.
const ORPHANED: (StatusCode, &str) = (StatusCode::SERVICE_UNAVAILABLE, health::ORPHANED);

/// A liveness probe must restart a process that cannot recover by itself.
async fn show_health(State(admin): State<Arc<AdminServer>>) -> Response {
    if let Some(stalls) = admin.health.stalls.report() {
        return (StatusCode::SERVICE_UNAVAILABLE, stalls).into_response();
    }
    if admin.health.orphaned.load(Relaxed) { ORPHANED } else { (StatusCode::OK, "ok\n") }.into_response()
}

async fn show_readiness(State(admin): State<Arc<AdminServer>>) -> impl IntoResponse {
    match admin.health.verdict() {
        Ok(()) => (StatusCode::OK, format!("ok\n{}", admin.health.warnings())),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    }
}
