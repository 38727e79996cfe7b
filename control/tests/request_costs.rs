//! What a request of 100 KB may cost, whatever it fills: every list and every map that the schemas name, of every kind.
//!
//! In a process of its own, because memory and processor time are the process's. Bounds are generous: tests run unoptimized
//! and beside others. A cost that grows with the square of the body passes them by far (40,000 containers took 12 s).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, header};
use serde_json::{Map, Value, json};
use sluicegate_control::kind_registry::{AllowedVerbs, KindEntry};
use sluicegate_control::store::ObjectStore;
use sluicegate_control::{api, kinds};
use tower::ServiceExt as _;

/// Of each body.
const BODY_BYTES: usize = 100 * 1024;
/// Processor time of one request: 20 ms optimized and alone.
const TIME_MAX: Duration = Duration::from_secs(3);
/// Memory of one request. The largest trees that are allowed take four times the body as values and twice that as types; the rest
/// is room for what the allocator keeps.
const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Bytes of an answer: the object comes back with its defaults, and problems are counted beyond the first ones.
const ANSWER_BYTES_MAX: usize = 20 * BODY_BYTES;

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
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = [11, 12].iter().map(|at| fields[*at].parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Fields on the way from an object to a list or map, each with the shortest value that may stand in it.
type Place = (Vec<String>, Value);

/// Every list and map below `schema`, once for each shape of its items.
fn places(schema: &Value, at: &[String], seen: &mut BTreeSet<String>, found: &mut Vec<Place>) {
    let shape = || format!("{:?} {}", at.last(), schema.to_string().len());
    let is_list = schema["type"] == "array";
    let inner = &schema[if is_list { "items" } else { "additionalProperties" }];
    if (is_list || inner.is_object()) && seen.insert(shape()) {
        let item = match inner["type"].as_str() {
            Some("string") => json!(""),
            Some("integer" | "number") => json!(1),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            _ => json!({}),
        };
        found.push((at.to_vec(), if is_list { json!([item]) } else { json!({ "k": item }) }));
    }
    let below = |name: &str| [at, &[name.to_owned()]].concat();
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        if at.len() < 12 {
            places(inner, &below(name), seen, found);
        }
    }
    if is_list && inner.is_object() && at.len() < 12 {
        places(inner, &below("[]"), seen, found);
    }
}

/// An object whose list or map at `place` fills the body.
fn filled(entry: &KindEntry, (path, shape): &Place) -> Value {
    let mut value = match shape {
        Value::Array(items) => {
            let item_bytes = items[0].to_string().len() + 1;
            Value::Array(vec![items[0].clone(); BODY_BYTES / item_bytes])
        }
        map => {
            let item = &map["k"];
            let count = BODY_BYTES / (item.to_string().len() + 12);
            Value::Object((0..count).map(|n| (format!("k{n:06}"), item.clone())).collect::<Map<_, _>>())
        }
    };
    for name in path.iter().rev() {
        value = if name == "[]" { json!([value]) } else { json!({ name: value }) };
    }
    value["apiVersion"] = entry.meta.api_version().into();
    value["kind"] = entry.meta.kind.into();
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    value["metadata"]["name"] = "costly".into();
    value
}

async fn ask(api: &Router, request: Request<Body>, about: &str) {
    let _ = peak_bytes();
    let (before, started) = (peak_bytes(), processor_time());
    let answer = api.clone().oneshot(request).await.unwrap();
    let code = answer.status().as_u16();
    let answer = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    let (peak, took) = (peak_bytes().saturating_sub(before), processor_time() - started);
    let words = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
    assert!(code < 500, "{about}: {code} {words}");
    assert!(took < TIME_MAX, "{about} took {took:?}: {code} {words}");
    assert!(peak < MEMORY_BYTES_MAX, "{about} took {peak} bytes: {code} {words}");
    assert!(answer.len() < ANSWER_BYTES_MAX, "{about} was answered with {} bytes: {code} {words}", answer.len());
}

/// Every kind, by POST and by server-side apply, with 100 KB in each of its lists and maps.
#[tokio::test]
async fn request_of_any_kind_costs_in_proportion_to_its_body() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(ObjectStore::open(folder.path()).unwrap());
    let registry = Arc::new(kinds::registry());
    api::seed(&store, &registry).await.unwrap();
    let api = api::router(store, Arc::clone(&registry));
    let (mut seen, mut count) = (BTreeSet::new(), 0);
    for entry in registry.entries.iter().filter(|entry| entry.access == AllowedVerbs::Full) {
        let meta = entry.meta;
        let group = if meta.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", meta.group) };
        let home = if meta.namespaced { "/namespaces/default" } else { "" };
        let collection = format!("{group}/{}{home}/{}", meta.version, meta.plural);
        let mut found = Vec::new();
        places(&(entry.schema)(), &[], &mut seen, &mut found);
        for place in &found {
            let body = filled(entry, place).to_string();
            let about = format!("{} {}", meta.kind, place.0.join("."));
            let post = Request::post(format!("{collection}?dryRun=All"));
            let post = post.header(header::CONTENT_TYPE, "application/json").body(body.clone().into()).unwrap();
            ask(&api, post, &format!("POST {about}")).await;
            let apply = Request::patch(format!("{collection}/costly?dryRun=All&fieldManager=test"));
            let apply = apply.header(header::CONTENT_TYPE, "application/apply-patch+yaml");
            ask(&api, apply.body(body.into()).unwrap(), &format!("PATCH {about}")).await;
            count += 1;
        }
    }
    assert!(count > 100, "only {count} lists and maps were found");
}
