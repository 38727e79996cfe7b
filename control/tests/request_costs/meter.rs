//! Measures single requests.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Method, Request, header};
use peak_alloc::PeakAlloc;
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
/// Memory of one request that is worked on. A value takes 32 bytes and an entry of a map some 100, where the shortest text of one has 3
/// and 12; a schema of a definition takes 2,000 as a type (`"a":{}`).
const MEMORY_BYTES_MAX: usize = 160 * BODY_BYTES;
/// Memory of one request that is refused because its lists are too long.
const REFUSED_BYTES_MAX: usize = 4 * BODY_BYTES;
/// Memory of a table with columns of a definition, which paths are cut out of objects for.
const TABLE_BYTES_MAX: usize = 320 * BODY_BYTES;
/// Bytes of an answer: the object comes back with its defaults, and problems are counted beyond the first ones.
const ANSWER_BYTES_MAX: usize = 20 * BODY_BYTES;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

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

/// Processor time of all threads.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

async fn measure(api: &Router, request: Request<Body>, about: &str) -> (u16, String) {
    HEAP.reset_peak_usage();
    let (before, started) = (HEAP.current_usage(), processor_time());
    let answer = api.clone().oneshot(request).await.unwrap();
    let code = answer.status().as_u16();
    let answer = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let (peak, took) = (HEAP.peak_usage().saturating_sub(before), processor_time() - started);
    let words = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
    if std::env::var_os("SLUICEGATE_PRINT_COSTS").is_some() {
        println!("cost\t{} µs\t{} KiB\t{code}\t{about}", took.as_micros(), peak >> 10);
    }
    assert!(code < 500, "{about}: {code} {words}");
    assert!(took < TIME_MAX, "{about} took {took:?}: {code} {words}");
    let is_too_long = words.contains("all lists together must have");
    let most = match (is_too_long, about.starts_with('/')) {
        (true, _) => REFUSED_BYTES_MAX,
        (_, true) => TABLE_BYTES_MAX,
        _ => MEMORY_BYTES_MAX,
    };
    assert!(peak < most, "{about} took {peak} bytes: {code} {words}");
    assert!(answer.len() < ANSWER_BYTES_MAX, "{about} was answered with {} bytes: {code} {words}", answer.len());
    (code, String::from_utf8_lossy(&answer).into_owned())
}
