//! Whole requests to the API, and their costs: each is answered, in time and memory in proportion to its body. The input
//! says which request, and holds a body or a pattern that is repeated until a body is long enough to show a square.
#![no_main]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, header};
use libfuzzer_sys::fuzz_target;
use sluicegate_control::kind_registry::AllowedVerbs;
use sluicegate_control::store::ObjectStore;
use sluicegate_control::{api, kinds};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

/// Bytes of a body that is made of repeated pieces.
const BODY_BYTES: usize = 100 * 1024;
/// Processor time of one request. Optimized, 100 KB of YAML take some 40 ms; an instrumented program takes fifty times as long.
const TIME_MAX: Duration = Duration::from_secs(4);
/// Memory that one request may add to the process.
const MEMORY_KIB_MAX: u64 = 128 * 1024;

struct CostFixture {
    runtime: Runtime,
    router: Router,
    /// The path of each kind's collection, and the first fields of its objects.
    collections: Vec<(String, String)>,
    _folder: TempDir,
}

thread_local! {
    static FIXTURE: CostFixture = CostFixture::open();
}

impl CostFixture {
    fn open() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let store = Arc::new(ObjectStore::open(folder.path()).expect("an empty folder is a store"));
        let registry = Arc::new(kinds::registry());
        runtime.block_on(api::seed(&store, &registry)).expect("an empty store takes namespaces");
        let full = registry.entries.iter().filter(|entry| entry.access == AllowedVerbs::Full);
        let collections = full.map(|entry| {
            let meta = entry.meta;
            let group = if meta.group.is_empty() { "/api".into() } else { format!("/apis/{}", meta.group) };
            let home = if meta.namespaced { "/namespaces/default" } else { "" };
            let path = format!("{group}/{}{home}/{}", meta.version, meta.plural);
            (path, format!(r#""apiVersion":"{}","kind":"{}""#, meta.api_version(), meta.kind))
        });
        let collections = collections.collect();
        Self { runtime, router: api::router(store, registry), collections, _folder: folder }
    }

    fn ask(&self, request: Request<Body>) {
        let (before, started) = (peak_kib(), processor_time());
        self.runtime.block_on(async {
            let answer = self.router.clone().oneshot(request).await.expect("a router never fails");
            let code = answer.status().as_u16();
            let body = to_bytes(answer.into_body(), usize::MAX).await.expect("a body in memory");
            assert!(code < 500, "{code}: {}", String::from_utf8_lossy(&body));
        });
        let (took, peak) = (processor_time() - started, peak_kib().saturating_sub(before));
        assert!(took < TIME_MAX, "the request took {took:?}");
        assert!(peak < MEMORY_KIB_MAX, "the request took {peak} KiB");
    }
}

/// Processor time of all threads, in steps of 10 ms.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux says it");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields behind the name").split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Most memory that the process has had since it was asked last.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux says it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line of it");
    let kib = line.split_whitespace().next().and_then(|kib| kib.parse().ok()).expect("a number");
    fs::write("/proc/self/clear_refs", "5").expect("one's own peak may be reset");
    kib
}

fuzz_target!(|input: &[u8]| {
    let [verb, which, shape, bytes @ ..] = input else { return };
    FIXTURE.with(|fixture| {
        let (collection, identity) = &fixture.collections[usize::from(*which) % fixture.collections.len()];
        let (method, suffix, media) = match verb % 6 {
            0 => ("POST", "?dryRun=All", "application/json"),
            1 => ("POST", "?dryRun=All", "application/yaml"),
            2 => ("POST", "?dryRun=All", "application/vnd.kubernetes.protobuf"),
            3 => ("PATCH", "/costly?dryRun=All&fieldManager=fuzz", "application/apply-patch+yaml"),
            4 => ("PATCH", "/costly?dryRun=All", "application/json-patch+json"),
            _ => ("PUT", "/costly?dryRun=All", "application/json"),
        };
        let path = format!("{collection}{suffix}");
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, media);
        let Ok(request) = request.body(body(*shape, identity, bytes).into()) else { return };
        fixture.ask(request);
    });
});

/// The bytes themselves, the bytes again and again, or an object with so many of them in a list below `spec`.
fn body(shape: u8, identity: &str, bytes: &[u8]) -> Vec<u8> {
    let count = BODY_BYTES / (bytes.len() + 1);
    let list = || vec![bytes; count].join(&b','); // JSON, if the bytes are a value
    match shape % 4 {
        0 => bytes.to_vec(),
        1 => bytes.repeat(count),
        2 => [format!(r#"{{{identity},"metadata":{{"name":"costly"}},"spec":["#).as_bytes(), &list(), b"]}"].concat(),
        _ => {
            // The first byte says how long the name of the list is, which comes next.
            let Some((length, rest)) = bytes.split_first() else { return Vec::new() };
            let (name, item) = rest.split_at(rest.len().min(usize::from(*length % 32)));
            let items = vec![item; BODY_BYTES / (item.len() + 1)].join(&b',');
            let begin = format!(r#"{{{identity},"metadata":{{"name":"costly"}},"spec":{{""#);
            [begin.as_bytes(), name, b"\":[", &items, b"]}}"].concat()
        }
    }
}
