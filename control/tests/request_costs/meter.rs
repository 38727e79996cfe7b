//! Measures single requests.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Method, Request, header};
use rustix::time::{ClockId, clock_gettime};
use sluicegate_control::kind_registry::KindRegistry;
use sluicegate_control::store::ObjectStore;
use sluicegate_control::{api, kinds};
use tokio::sync::{Mutex, MutexGuard};
use tower::ServiceExt as _;

/// Of each body.
pub(crate) const BODY_BYTES: usize = 100 * 1024;
/// Processor time of one request: 20 ms optimized and alone.
const TIME_MAX: Duration = Duration::from_secs(3);
/// Memory of one request. The largest trees that are allowed take four times the body as values and twice that as types; the rest
/// is room for what the allocator keeps.
const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Bytes of an answer: the object comes back with its defaults, and problems are counted beyond the first ones.
const ANSWER_BYTES_MAX: usize = 20 * BODY_BYTES;

static TURN: Mutex<()> = Mutex::const_new(());

/// An API server whose requests are measured.
pub(crate) struct MeteredApi {
    api: Router,
    pub(crate) registry: Arc<KindRegistry>,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl MeteredApi {
    pub(crate) async fn start() -> Self {
        let turn = TURN.lock().await;
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(ObjectStore::open(folder.path()).unwrap());
        let registry = Arc::new(kinds::registry());
        api::seed(&store, &registry).await.unwrap();
        let api = api::router(store, Arc::clone(&registry));
        Self { api, registry, _folder: folder, _turn: turn }
    }

    /// Asks within the bounds.
    pub(crate) async fn ask(
        &self,
        (method, path): (Method, &str),
        media: &str,
        body: String,
        about: &str,
    ) -> (u16, String) {
        let about = format!("{method} {media} {about}");
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, media);
        measure(&self.api, request.body(body.into()).unwrap(), &about).await
    }

    pub(crate) async fn table(&self, path: &str) -> (u16, String) {
        let request = Request::get(path).header(header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io");
        measure(&self.api, request.body(Body::empty()).unwrap(), path).await
    }
}

/// Most memory that the process has had since it was asked last.
fn peak_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    fs::write("/proc/self/clear_refs", "5").unwrap();
    kib * 1024
}

/// Processor time of all threads.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

async fn measure(api: &Router, request: Request<Body>, about: &str) -> (u16, String) {
    let _ = peak_bytes();
    let (before, started) = (peak_bytes(), processor_time());
    let answer = api.clone().oneshot(request).await.unwrap();
    let code = answer.status().as_u16();
    let answer = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let (peak, took) = (peak_bytes().saturating_sub(before), processor_time() - started);
    let words = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
    if std::env::var_os("SLUICEGATE_PRINT_COSTS").is_some() {
        println!("cost\t{} µs\t{} KiB\t{code}\t{about}", took.as_micros(), peak >> 10);
    }
    assert!(code < 500, "{about}: {code} {words}");
    assert!(took < TIME_MAX, "{about} took {took:?}: {code} {words}");
    assert!(peak < MEMORY_BYTES_MAX, "{about} took {peak} bytes: {code} {words}");
    assert!(answer.len() < ANSWER_BYTES_MAX, "{about} was answered with {} bytes: {code} {words}", answer.len());
    (code, String::from_utf8_lossy(&answer).into_owned())
}
