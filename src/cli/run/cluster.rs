//! The client of a cluster's API (`--kubeconfig`): limits how long it waits for a silent server, and how
//! often it reconnects to one that cuts its responses.
//!
//! A watch ends after [`control::controllers::informer_cache::WATCH_SECONDS`] and restarts where it ended,
//! so a healthy connection is never silent for [`READ_SILENCE_MAX`]. A silent one, because its peer is gone
//! or a proxy between stopped forwarding, is closed, and the watch continues on a new one. A watch that
//! ended too soon, and a list that was cut, delay the next attempt, whatever they brought: a proxy that
//! cuts every response in half brings a little each time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::{StreamExt as _, stream};
use kube::client::Body;
use tokio::time::{Instant, sleep};
use ureq::http::{Method, Request};

use crate::cli::api_access;

/// A connection on which nothing arrives for this long, after a request was written, is closed.
const READ_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Consecutive failures without delay: history expires, and a server restarts.
const FAILURES_FREE: u32 = 1;
/// The first wait; each further one is twice as long, plus up to half as much of jitter.
const ATTEMPT_WAIT_MIN: Duration = Duration::from_millis(500);
const ATTEMPT_WAIT_MAX: Duration = Duration::from_secs(30);
/// A watch that lasted this long was a good one: half of the requested duration.
const STABLE_MIN: Duration = Duration::from_secs(10);

/// A client for the cluster that `file` names.
pub(super) async fn client(file: &Path) -> Result<kube::Client> {
    let mut config = api_access::config(file).await?;
    config.read_timeout = Some(READ_SILENCE_MAX);
    config.reset_reader_on_write = true;
    let namespace = config.default_namespace.clone();
    let inner = kube::Client::try_from(config).with_context(|| format!("--kubeconfig {}", file.display()))?;
    let backoff = ReconnectBackoff::default();
    let paced = tower::service_fn(move |request: Request<Body>| {
        let attempt = Attempt::new(&backoff, &request);
        let inner = inner.clone();
        async move {
            let Some(attempt) = attempt else {
                return Ok(inner.send(request).await?.map(axum::body::Body::new));
            };
            sleep(backoff_wait(&attempt)).await;
            let sent = inner.send(request).await;
            if sent.is_err() {
                attempt.end(false);
            }
            Ok::<_, kube::Error>(sent?.map(|body| attempt.follow(body)))
        }
    });
    Ok(kube::Client::new(paced, namespace))
}

fn backoff_wait(attempt: &Attempt) -> Duration {
    wait(attempt.backoff.failures(&attempt.key), fastrand::f64())
}

/// The wait after this many failures; `chance` is between 0 and 1.
fn wait(failures: u32, chance: f64) -> Duration {
    let Some(doublings) = failures.checked_sub(FAILURES_FREE + 1) else { return Duration::ZERO };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    ATTEMPT_WAIT_MIN.saturating_mul(factor).min(ATTEMPT_WAIT_MAX).mul_f64(1.0 + chance / 2.0)
}

/// Consecutive failures, by resource. There are as many entries as followed kinds.
#[derive(Debug, Clone, Default)]
struct ReconnectBackoff(Arc<Mutex<HashMap<String, u32>>>);

impl ReconnectBackoff {
    fn failures(&self, key: &str) -> u32 {
        self.lock().get(key).copied().unwrap_or(0)
    }

    fn note(&self, key: &str, is_good: bool) {
        let mut failures = self.lock();
        if is_good {
            failures.remove(key);
        } else {
            let count = failures.entry(key.to_owned()).or_default();
            *count = count.saturating_add(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A list or a watch in flight.
struct Attempt {
    backoff: ReconnectBackoff,
    key: String,
    is_watch: bool,
}

impl Attempt {
    /// `None`: the request is neither, and its caller has retries of its own.
    fn new(backoff: &ReconnectBackoff, request: &Request<Body>) -> Option<Self> {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let has = |name: &str| query.split('&').any(|one| one.split('=').next() == Some(name));
        let is_watch = has("watch");
        if *request.method() != Method::GET || !(is_watch || has("limit")) {
            return None;
        }
        let verb = if is_watch { "watch" } else { "list" };
        Some(Self { backoff: backoff.clone(), key: format!("{verb} {path}"), is_watch })
    }

    fn end(&self, is_good: bool) {
        self.backoff.note(&self.key, is_good);
    }

    /// The body of the response, whose end determines the result of the attempt.
    fn follow(self, body: Body) -> axum::body::Body {
        let began = Instant::now();
        let pieces = axum::body::Body::new(body).into_data_stream();
        let followed = stream::unfold((pieces, self), move |(mut pieces, attempt)| async move {
            let piece = pieces.next().await;
            match &piece {
                Some(Ok(_)) => {}
                Some(Err(_)) => attempt.end(is_good(attempt.is_watch, began.elapsed(), false)),
                None => attempt.end(is_good(attempt.is_watch, began.elapsed(), true)),
            }
            Some((piece?, (pieces, attempt)))
        });
        axum::body::Body::from_stream(followed)
    }
}

/// A list is good if it is complete, a watch if it lasted, however it ended.
fn is_good(is_watch: bool, lasted: Duration, is_whole: bool) -> bool {
    if is_watch { lasted >= STABLE_MIN } else { is_whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_slow_down_after_failures() {
        let (mut at, mut begun) = (Duration::ZERO, Vec::new());
        for failures in 0..14 {
            at += wait(failures, 0.0) + Duration::from_millis(1);
            begun.push(at);
        }
        let within = |seconds| begun.iter().filter(|at| **at < Duration::from_secs(seconds)).count();
        assert_eq!((within(1), within(10), within(60)), (3, 6, 8));
        assert_eq!(wait(u32::MAX, 1.0), ATTEMPT_WAIT_MAX.mul_f64(1.5));
    }

    #[test]
    fn only_lists_and_watches_are_paced() {
        let of = |method: &str, query: &str| {
            let uri = format!("/api/v1/pods?{query}");
            let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            Attempt::new(&ReconnectBackoff::default(), &request).map(|attempt| attempt.key)
        };
        assert_eq!(of("GET", "limit=500&labelSelector=a").as_deref(), Some("list /api/v1/pods"));
        assert_eq!(of("GET", "watch=true&timeoutSeconds=20").as_deref(), Some("watch /api/v1/pods"));
        for (method, query) in [("GET", ""), ("POST", "limit=500"), ("PATCH", "")] {
            assert_eq!(of(method, query), None, "{query}");
        }
    }

    #[test]
    fn lasting_watch_and_complete_list_are_good() {
        let (short, long) = (Duration::from_secs(1), STABLE_MIN);
        assert!(is_good(false, short, true) && is_good(true, long, true) && is_good(true, long, false));
        assert!(!is_good(false, long, false) && !is_good(true, short, true) && !is_good(true, short, false));
    }

    #[tokio::test]
    async fn end_of_response_decides_attempt_result() {
        let backoff = ReconnectBackoff::default();
        let run = async |is_watch: bool, is_cut: bool| {
            let attempt = Attempt { backoff: backoff.clone(), key: "k".to_owned(), is_watch };
            let pieces = stream::iter([Ok("a"), if is_cut { Err("cut") } else { Ok("b") }]);
            let body = axum::body::Body::from_stream(pieces.map(|piece| piece.map_err(std::io::Error::other)));
            let body = crate::cli::api_access::streamed(body).await.unwrap();
            let mut followed = attempt.follow(body).into_data_stream();
            followed.next().await.unwrap().unwrap();
            while let Some(Ok(_)) = followed.next().await {}
            backoff.failures("k")
        };
        assert_eq!(run(false, true).await, 1);
        assert_eq!(run(false, false).await, 0);
        assert_eq!(run(true, false).await, 1);
        assert_eq!(run(true, true).await, 2);
    }
}
