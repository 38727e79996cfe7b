//! `/healthz`, `/livez` and `/readyz`, each as a whole and by its checks, as Kubernetes has them.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{StatusCode, header};

use super::ApiServer;

/// A check's name, and why it fails.
pub type Check = (&'static str, Result<(), String>);

/// The health of the appliance that contains the API.
#[derive(Clone)]
pub struct Readiness(Arc<dyn Fn() -> Vec<Check> + Send + Sync>);

impl Readiness {
    pub fn new(checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Self {
        Self(Arc::new(checks))
    }
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries((self.0)()).finish()
    }
}

/// `None`: there is no such check.
pub(super) fn answer(server: &ApiServer, head: &Parts, endpoint: &str, only: Option<&str>) -> Option<Response> {
    let mut checks: Vec<Check> = vec![("ping", Ok(()))];
    if endpoint == "readyz" {
        checks.extend(match &server.readiness {
            Some(Readiness(around)) => around(),
            None => vec![("store", server.store.health().map_err(|why| why.to_string()))],
        });
    }
    if let Some(only) = only {
        checks.retain(|(name, _)| *name == only);
        if checks.is_empty() {
            return None;
        }
    }
    Some(written(head, endpoint, &checks))
}

/// `ok`; with details if a check fails, or with `verbose`.
fn written(head: &Parts, endpoint: &str, checks: &[Check]) -> Response {
    let is_ready = checks.iter().all(|(_, outcome)| outcome.is_ok());
    let query = head.uri.query().unwrap_or("");
    let is_verbose = query.split('&').any(|part| part.split('=').next() == Some("verbose"));
    let mut text = String::new();
    if is_ready && !is_verbose {
        text.push_str("ok");
    } else {
        for (name, outcome) in checks {
            let _ = match outcome {
                Ok(()) => writeln!(text, "[+]{name} ok"),
                Err(why) => writeln!(text, "[-]{name} failed: {why}"),
            }; // a String takes everything
        }
        let verdict = if is_ready { "passed" } else { "failed" };
        let _ = writeln!(text, "{endpoint} check {verdict}");
    }
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}
