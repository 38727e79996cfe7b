//! `/console/stream`: a line of JSON each second, to each viewer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio::time::{Interval, MissedTickBehavior};

use super::limits::STREAMS_MAX;
use super::{Console, STARTING, access};
use crate::admin::{FIGURES_INTERVAL, FiguresCache};

/// Until the client disconnects, or this process drains.
pub(super) async fn figures(State(console): State<Console>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    // The same figures are at `/metrics`, and take the same right.
    if let Err(refusal) = access::check_path(&console.api, &head, "/metrics").await {
        return refusal;
    }
    if console.admin.get().is_none() {
        return STARTING.into_response();
    }
    let Ok(permit) = Arc::clone(&console.streams).try_acquire_owned() else {
        let why = format!("{STREAMS_MAX} streams of figures are open: close another page of the console\n");
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "5")], why).into_response();
    };
    let mut interval = tokio::time::interval(FIGURES_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let lines = stream::unfold((console, interval, permit), |(console, mut interval, permit)| async move {
        let line = next_line(&console, &mut interval).await?;
        Some((Ok::<_, Infallible>(line), (console, interval, permit)))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

async fn next_line(console: &Console, interval: &mut Interval) -> Option<Bytes> {
    interval.tick().await;
    let admin = console.admin.get()?;
    if admin.server.health.draining.load(Relaxed) {
        return None; // a successor has the next ones
    }
    FiguresCache::line(&admin.server, &console.scaler).await
}
