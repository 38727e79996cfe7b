//! The API in the same process, without a socket: paths, selectors, patches, JSON and protobuf bodies. Every request
//! gets a response, and never an internal error (5xx).
#![no_main]

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, header};
use libfuzzer_sys::fuzz_target;
use sluicegate_control::store::ObjectStore;
use sluicegate_control::{api, kinds};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";
/// Every collection that bodies are sent to, by number.
const COLLECTIONS: [(&str, &str); 8] = [
    ("v1/ConfigMap", MAPS),
    ("v1/Secret", "/api/v1/namespaces/default/secrets"),
    ("v1/Service", "/api/v1/namespaces/default/services"),
    ("serving.knative.dev/v1/Service", SERVICES),
    (
        "serving.knative.dev/v1/Configuration",
        "/apis/serving.knative.dev/v1/namespaces/default/configurations",
    ),
    ("serving.knative.dev/v1/Route", "/apis/serving.knative.dev/v1/namespaces/default/routes"),
    ("eventing.knative.dev/v1/Broker", "/apis/eventing.knative.dev/v1/namespaces/default/brokers"),
    ("eventing.knative.dev/v1/Trigger", "/apis/eventing.knative.dev/v1/namespaces/default/triggers"),
];
const MAP: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","labels":{"a":"b"},
    "annotations":{"n":"1"},"finalizers":["x.dev/f"]},"data":{"k":"v","l":"w"}}"#;
const SERVICE: &str = r#"{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":"s"},
    "spec":{"template":{"spec":{"containers":[{"image":"hello","env":[{"name":"A","value":"1"}]}]}},
    "traffic":[{"latestRevision":true,"percent":100}]}}"#;

struct ApiFixture {
    runtime: Runtime,
    router: Router,
    _folder: TempDir,
}

thread_local! {
    static FIXTURE: ApiFixture = ApiFixture::open();
}

impl ApiFixture {
    fn open() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let store = Arc::new(ObjectStore::open(folder.path()).expect("an empty folder is a store"));
        let registry = Arc::new(kinds::registry());
        runtime.block_on(api::seed(&store, &registry)).expect("an empty store takes namespaces");
        let router = api::router(store, registry);
        let fixture = Self { runtime, router, _folder: folder };
        for (path, body) in [(MAPS, MAP), (SERVICES, SERVICE)] {
            let made = Request::post(path).header(header::CONTENT_TYPE, "application/json");
            assert_eq!(fixture.ask(made.body(body.into()).expect("a request")), 201);
        }
        fixture
    }

    fn ask(&self, request: Request<Body>) -> u16 {
        self.runtime.block_on(async {
            let answer = self.router.clone().oneshot(request).await.expect("a router never fails");
            let code = answer.status().as_u16();
            let body = to_bytes(answer.into_body(), usize::MAX).await.expect("a body in memory");
            assert!(code < 500, "{code}: {}", String::from_utf8_lossy(&body));
            if code >= 400 {
                let status: serde_json::Value = serde_json::from_slice(&body).expect("a Status");
                assert_eq!(status["code"], code);
            }
            code
        })
    }
}

fuzz_target!(|input: &[u8]| {
    let [choice, which, bytes @ ..] = input else { return };
    let Some(request) = request(*choice, *which, bytes) else { return };
    FIXTURE.with(|fixture| fixture.ask(request));
});

fn request(choice: u8, which: u8, bytes: &[u8]) -> Option<Request<Body>> {
    let target = [format!("{MAPS}/m?dryRun=All"), format!("{SERVICES}/s?dryRun=All")];
    let target = &target[usize::from(which) % 2];
    let (_, collection) = COLLECTIONS[usize::from(which) % COLLECTIONS.len()];
    let sent = |method: &str, path: &str, media: &str| {
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, media);
        request.body(bytes.to_vec().into()).ok()
    };
    match choice % 10 {
        0 => Request::get(format!("{MAPS}?labelSelector={}", escaped(bytes))).body(Body::empty()).ok(),
        1 => Request::get(format!("{MAPS}?fieldSelector={}", escaped(bytes))).body(Body::empty()).ok(),
        2 => sent("PATCH", target, "application/json-patch+json"),
        3 => sent("PATCH", target, "application/merge-patch+json"),
        4 => sent("PATCH", target, "application/strategic-merge-patch+json"),
        5 => sent("POST", &format!("{collection}?dryRun=All"), "application/vnd.kubernetes.protobuf"),
        6 => sent("POST", &format!("{collection}?dryRun=All"), "application/json"),
        7 => sent("PUT", target, "application/json"),
        9 => sent("PATCH", &format!("{target}&fieldManager=fuzz&force=true"), "application/apply-patch+yaml"),
        _ => {
            let path = std::str::from_utf8(bytes).ok().filter(|path| path.starts_with('/'))?;
            let accepts = ["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "*/*", ""];
            let accept = accepts[usize::from(which) % accepts.len()];
            // A watch ends by its own clock, which a fuzzer does not wait for.
            let watches = path.contains("atch") || path.contains('%');
            let request = Request::get(path).header(header::ACCEPT, accept);
            (!watches).then(|| request.body(Body::empty()).ok()).flatten()
        }
    }
}

/// Every byte escaped, so that the query's own grammar does not get in the way.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02X}")).collect()
}
