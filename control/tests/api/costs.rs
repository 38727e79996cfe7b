//! Bodies that cost more than their length suggests, and concurrent writers of one object.

use std::time::{Duration, Instant};

use futures_util::future;
use http::Method;
use serde_json::{Value, json};

use crate::custom::{CRONS, DEFINITIONS};
use crate::support::{MAPS, TestApiServer};

const SERVICES: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";
const CORE_SERVICES: &str = "/api/v1/namespaces/default/services";
/// A thing that costs the square of its length takes minutes in a test; others take part of a second.
const TIME_MAX: Duration = Duration::from_secs(30);

async fn ask(server: &TestApiServer, method: Method, path: &str, media: &'static str, body: String) -> (u16, Value) {
    let started = Instant::now();
    let (code, answer) = server.ask_as(method, path, media, body).await;
    assert!(started.elapsed() < TIME_MAX, "{path}: {:?}: {code}", started.elapsed());
    (code, answer)
}

fn list(before: &str, item: &str, count: usize, after: &str) -> String {
    format!("{before}[{}]{after}", vec![item; count].join(","))
}

/// Too many containers and ports are refused before they are read as such.
#[tokio::test]
async fn list_that_is_too_long_is_refused() {
    let server = TestApiServer::real().await;
    let before = r#"{"metadata":{"name":"a"},"spec":{"template":{"spec":{"containers":"#;
    let containers = list(before, "{}", 40_000, "}}}}");
    let (code, status) = ask(&server, Method::POST, SERVICES, "application/json", containers).await;
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (422, &json!("FieldValueTooMany")), "{status}");
    let ports = |count| list(r#"{"metadata":{"name":"a"},"spec":{"ports":"#, "{}", count, "}}");
    let (code, status) = ask(&server, Method::POST, CORE_SERVICES, "application/json", ports(200_000)).await;
    assert_eq!(code, 422, "{status}");
    let (code, status) = ask(&server, Method::POST, CORE_SERVICES, "application/json", ports(900_000)).await;
    assert_eq!((code, &status["reason"]), (413, &json!("RequestEntityTooLarge")), "{status}");
    let (code, status) = ask(&server, Method::POST, CORE_SERVICES, "application/json", ports(5_000)).await;
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!((code, causes.len()), (422, 65));
    assert!(causes[64]["message"].as_str().unwrap().ends_with("problems were found; the first 64 are reported"));
}

/// Defaults of a list's items, a key as long as the body, an enum held against a list of its length.
#[tokio::test]
async fn definition_cannot_make_a_short_object_costly() {
    let server = TestApiServer::real().await;
    let mut definition = crate::custom::definition();
    let defaults: serde_json::Map<String, Value> =
        (0..50).map(|n| (format!("p{n}"), json!({ "type": "string", "default": "d".repeat(100) }))).collect();
    let words: Vec<String> = (0..30_000).map(|n| format!("w{n}")).collect();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({ "type": "object", "properties": {
        "filled": { "type": "array", "items": { "type": "object", "properties": defaults } },
        "keys": { "type": "object", "additionalProperties": { "type": "array",
            "items": { "type": "object", "properties": { "a": { "type": "string" } } } } },
        "words": { "type": "array", "items": { "type": "string", "enum": words } },
    } });
    assert_eq!(server.ask(Method::POST, DEFINITIONS, &definition).await.0, 201);
    let object = |field: &str, value: String| format!(r#"{{"metadata":{{"name":"a"}},"spec":{{"{field}":{value}}}}}"#);
    for (field, value, expected) in [
        ("filled", list("", "{}", 30_000, ""), "Too long: the defaults of the schema add more than"),
        ("words", list("", "\"w29999\"", 30_000, ""), "Too long: validation against the schema takes more than"),
    ] {
        let (code, status) = ask(&server, Method::POST, CRONS, "application/json", object(field, value)).await;
        let message = status["details"]["causes"][0]["message"].as_str().unwrap_or("");
        assert!(code == 422 && message.starts_with(expected), "{code} {status}");
    }
    let keys = list(&format!("{{\"{}\":", "k".repeat(100_000)), "{\"b\":1}", 20_000, "}");
    let (code, status) = ask(&server, Method::POST, CRONS, "application/json", object("keys", keys)).await;
    assert_eq!(code, 201, "{}", status["message"]);
}

/// Strings of a merged set are as long as the body, and there are many others.
#[tokio::test]
async fn strategic_patch_of_a_long_element_is_linear() {
    let server = TestApiServer::real().await;
    server.ask(Method::POST, MAPS, &json!({ "metadata": { "name": "a" } })).await;
    let long = format!("{}/x", "x".repeat(200));
    let mut finalizers: Vec<String> = (0..20_000).map(|n| format!("a.io/{n}")).collect();
    let order = json!([long]);
    finalizers.push(long);
    let patch = json!({ "metadata": { "$setElementOrder/finalizers": order, "finalizers": finalizers } });
    let media = "application/strategic-merge-patch+json";
    let (code, _) = ask(&server, Method::PATCH, &format!("{MAPS}/a"), media, patch.to_string()).await;
    assert!([200, 422].contains(&code), "{code}");
}

/// Writes are judged before the store's thread has them: when many meet at one object, none is lost and none refused.
#[tokio::test]
async fn concurrent_patches_of_one_object_all_come_through() {
    let server = TestApiServer::real().await;
    server.ask(Method::POST, MAPS, &json!({ "metadata": { "name": "a" } })).await;
    let path = format!("{MAPS}/a");
    let patches = (0..100).map(|n| {
        let patch = json!({ "data": { format!("k{n}"): "v" } }).to_string();
        server.ask_as(Method::PATCH, &path, "application/merge-patch+json", patch)
    });
    for (code, answer) in future::join_all(patches).await {
        assert_eq!(code, 200, "{answer}");
    }
    let (_, map) = server.get(&path).await;
    assert_eq!(map["data"].as_object().unwrap().len(), 100);
}

/// Names that the server makes are free when the object is stored, however many are made at a time.
#[tokio::test]
async fn concurrent_generated_names_differ() {
    let server = TestApiServer::real().await;
    let object = json!({ "metadata": { "generateName": "a-" } });
    for (code, made) in future::join_all((0..100).map(|_| server.ask(Method::POST, MAPS, &object))).await {
        assert_eq!(code, 201, "{made}");
    }
}
