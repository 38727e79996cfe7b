//! The program of most examples: prints its own identity.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::server::{ExampleRequest, ExampleResponse};

/// `/slow` waits at most this long, so that a typo does not occupy a thread for a week.
const SLOW_MS_MAX: u64 = 600_000;

/// Requests to `/alone` in progress.
static INSIDE: AtomicU32 = AtomicU32::new(0);

pub(super) fn answer(request: &ExampleRequest) -> ExampleResponse {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    match path {
        "/env" => json(std::env::vars().collect::<std::collections::BTreeMap<_, _>>()),
        "/headers" => json(&request.headers),
        "/slow" => {
            rest(query);
            hello()
        }
        "/alone" => {
            let others = INSIDE.fetch_add(1, SeqCst);
            rest(query);
            INSIDE.fetch_sub(1, SeqCst);
            ExampleResponse { status: if others == 0 { 200 } else { 500 }, ..hello() }
        }
        "/echo" => ExampleResponse {
            status: 200,
            content_type: "application/octet-stream",
            body: String::from_utf8_lossy(&request.body).into_owned(),
        },
        _ => hello(),
    }
}

/// For `ms=N`.
fn rest(query: &str) {
    let ms = query.strip_prefix("ms=").and_then(|n| n.parse().ok()).unwrap_or(1000);
    #[allow(clippy::disallowed_methods, reason = "an instance's own thread, not one of the appliance's")]
    std::thread::sleep(Duration::from_millis(ms.min(SLOW_MS_MAX)));
}

fn hello() -> ExampleResponse {
    let var = |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    let body = format!("Hello {} from {}\n", var("TARGET", "World"), var("K_REVISION", "nowhere"));
    ExampleResponse { status: 200, content_type: "text/plain", body }
}

fn json(value: impl serde::Serialize) -> ExampleResponse {
    let body = serde_json::to_string(&value).unwrap_or_else(|why| why.to_string());
    ExampleResponse { status: 200, content_type: "application/json", body }
}
