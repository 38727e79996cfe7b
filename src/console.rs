//! The console: a web page that shows requests, events, objects and health, at a listener of its own (`--console`).
//!
//! The page is static files of this binary. Everything else passes through to what is there already, in process:
//!
//! - `/api…`, `/apis…`: the API, which authenticates and authorizes the caller as at its own listener. Reads, changes of
//!   Triggers and Subscriptions, and reviews of the caller's own access pass; everything else is refused.
//! - `/metrics`, `/debug/…`: the admin listener's answers, for callers to which the API's roles grant these paths.
//! - `/console/stream`: a line of figures each second.
//!
//! Runs on the control thread, never on a core.

mod access;
mod assets;
pub(crate) mod limits;
mod stream;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use control::cross_origin::CrossOriginProtection;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use crate::admin::{self, AdminServer, AutoscalerMetrics};

/// Scripts and styles of the page's own, and nothing from elsewhere; no page may frame it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The response before the cores run.
const STARTING: (StatusCode, &str) =
    (StatusCode::SERVICE_UNAVAILABLE, "the cores do not run yet: try again in a second\n");

/// What the console shows.
#[derive(Debug, Clone)]
pub(crate) struct Console {
    /// The API, as external clients use it.
    api: Router,
    pub(crate) scaler: AutoscalerMetrics,
    /// Known once the cores run.
    admin: Arc<OnceLock<AdminAccess>>,
    streams: Arc<Semaphore>,
}

/// The admin listener's state, and its routes.
#[derive(Debug)]
struct AdminAccess {
    server: Arc<AdminServer>,
    routes: Router,
}

impl Console {
    pub(crate) fn new(api: Router, scaler: AutoscalerMetrics) -> Self {
        let streams = Arc::new(Semaphore::new(limits::STREAMS_MAX));
        Self { api, scaler, admin: Arc::default(), streams }
    }

    /// The cores run: from here on there are figures.
    pub(crate) fn connect(&self, server: &Arc<AdminServer>) {
        let routes = admin::routes(Arc::clone(server), self.scaler.clone());
        let _ = self.admin.set(AdminAccess { server: Arc::clone(server), routes }); // it is set once
    }

    /// Its routes. The listener puts its protection and the peer's identity into each request.
    pub(crate) fn router(&self) -> Router {
        let api = || axum::routing::any(pass_to_api);
        let admin = || axum::routing::any(pass_to_admin);
        Router::new()
            .route("/", get(assets::index))
            .route("/assets/{name}", get(assets::asset))
            .route("/console/stream", get(stream::figures))
            .route("/version", api())
            .route("/api", api())
            .route("/api/{*path}", api())
            .route("/apis", api())
            .route("/apis/{*path}", api())
            .route("/metrics", admin())
            .route("/debug/{*path}", admin())
            .fallback(|| async {
                (StatusCode::NOT_FOUND, "there are /, /assets/…, /console/stream, /api…, /metrics and /debug/…\n")
            })
            .with_state(self.clone())
            .layer(middleware::from_fn(protect))
            .layer(middleware::from_fn(add_headers))
    }
}

/// Rejects requests that a web page of another origin may have sent, with the reason.
async fn protect(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let protection = head.extensions.get::<Arc<CrossOriginProtection>>().cloned();
    let checked = protection.map(|protection| protection.check(&head));
    match checked {
        Some(Ok(())) => next.run(Request::from_parts(head, body)).await,
        Some(Err(rejection)) => (rejection.status(), format!("{rejection}\n")).into_response(),
        None => (StatusCode::INTERNAL_SERVER_ERROR, "this listener has no protection\n").into_response(),
    }
}

/// What a browser must not do with an answer.
async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn pass_to_api(State(console): State<Console>, request: Request) -> Response {
    if !access::passes(request.method(), request.uri().path()) || request.headers().contains_key(header::UPGRADE) {
        let why = "the console passes reads, patches of a Trigger or Subscription, and reviews of one's own access; use \
                   the API's listener for other requests\n";
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")], why).into_response();
    }
    answer(console.api, request).await
}

async fn pass_to_admin(State(console): State<Console>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let Some(routes) = console.admin.get().map(|admin| admin.routes.clone()) else { return STARTING.into_response() };
    if let Err(refusal) = access::check_admin(&console.api, &head).await {
        return refusal;
    }
    answer(routes, Request::from_parts(head, body)).await
}

async fn answer(router: Router, request: Request) -> Response {
    router.oneshot(request).await.unwrap_or_else(|never| match never {})
}

/// A request with the caller's credentials and nothing else of `head`.
fn in_name_of(head: &Parts, method: Method, path: &str, body: Body) -> Request {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
    access::copy_identity(head, &mut request);
    request
}
