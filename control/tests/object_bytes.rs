//! The memory of an object. In its own process, because the heap belongs to the process.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{Request, header};
use serde_json::{Value, json};
use sluicegate_control::store::ObjectStore;
use sluicegate_control::{api, kinds};
use tower::ServiceExt as _;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Of each kind.
const OBJECTS: usize = 300;

/// Heap bytes an object may hold in the store, its share of the history and of the database's own pages
/// included. The promise is 15 KiB of the whole process; memory besides the heap's live bytes has its room
/// in the rest.
const OBJECT_BYTES_MAX: usize = 4 * 1024;

async fn post(api: &Router, path: &str, object: &Value) {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, "kubectl/v1.34")
        .body(Body::from(object.to_string()))
        .unwrap();
    assert_eq!(api.clone().oneshot(request).await.unwrap().status(), 201, "{object}");
}

async fn post_both(api: &Router, nth: usize) {
    let name = format!("object-{nth}");
    let service = json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "template": { "spec": { "containers": [{
            "image": "example/hello", "env": [{ "name": "TARGET", "value": name }],
        }] } } },
    });
    post(api, "/apis/serving.knative.dev/v1/namespaces/default/services", &service).await;
    let subscriber = json!({ "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": name } });
    let trigger = json!({
        "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "metadata": { "name": name },
        "spec": { "broker": "default", "filter": { "attributes": { "type": name } }, "subscriber": subscriber },
    });
    post(api, "/apis/eventing.knative.dev/v1/namespaces/default/triggers", &trigger).await;
}

/// A stored Service or Trigger takes a fraction of the 15 KiB that 20,000 of them may take each.
#[test]
fn an_object_in_memory_is_little_more_than_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let _profile = dhat::Profiler::builder().testing().trim_backtraces(Some(4)).build();
    let store = Arc::new(ObjectStore::open(folder.path()).unwrap());
    let registry = Arc::new(kinds::registry());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bytes = runtime.block_on(async {
        api::seed(&store, &registry).await.unwrap();
        let api = api::router(Arc::clone(&store), registry);
        post_both(&api, OBJECTS).await;
        let before = dhat::HeapStats::get().curr_bytes;
        for nth in 0..OBJECTS {
            post_both(&api, nth).await;
        }
        (dhat::HeapStats::get().curr_bytes - before) / (2 * OBJECTS)
    });
    let text: usize = store
        .read()
        .all()
        .into_iter()
        .filter(|one| one.key.name.starts_with("object-"))
        .map(|one| one.json_bytes())
        .sum();
    println!("{bytes} bytes of heap an object; {} of text", text / (2 * OBJECTS + 2));
    assert!(bytes <= OBJECT_BYTES_MAX, "{bytes} bytes an object");
}
