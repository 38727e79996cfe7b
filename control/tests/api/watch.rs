//! Watches: no change is missed or repeated, and the end is announced.

use std::sync::Arc;

use futures_util::StreamExt as _;
use http::Method;
use serde_json::{Value, json};
use sluicegate_control::api;
use sluicegate_control::store::HISTORY_EVENTS_MAX;
use tower::ServiceExt as _;

use crate::support::{MAPS, TestApiServer, WIDGETS};

fn change(what: &str, name: &str) -> (String, String) {
    (what.into(), name.into())
}

/// SRV-API-07: from a version on.
#[tokio::test]
async fn a_watch_tells_what_came_after_its_version() {
    let server = TestApiServer::open().await;
    let first = server.widget("one", &json!({})).await;
    server.widget("two", &json!({})).await;
    server.ask(Method::PATCH, &format!("{WIDGETS}/one"), &json!({ "spec": { "size": 2 } })).await;
    server.delete(&format!("{WIDGETS}/two")).await;
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = server.watch(&format!("{WIDGETS}?watch=1&resourceVersion={version}")).await;
    assert_eq!(watch.next_change().await, change("ADDED", "two"));
    assert_eq!(watch.next_change().await, change("MODIFIED", "one"));
    let deleted = watch.next().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    let newest = server.store.read().revision().to_string();
    assert_eq!(deleted["object"]["metadata"]["resourceVersion"], newest, "a deletion has its own version");
    server.widget("three", &json!({})).await;
    assert_eq!(watch.next_change().await, change("ADDED", "three"));
}

#[tokio::test]
async fn a_watch_without_a_version_begins_with_what_is_there() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({})).await;
    let mut watch = server.watch(&format!("{WIDGETS}?watch=true")).await;
    assert_eq!(watch.next_change().await, change("ADDED", "one"));
    server.widget("two", &json!({})).await;
    assert_eq!(watch.next_change().await, change("ADDED", "two"));
}

/// APP-24
#[tokio::test]
async fn initial_events_end_with_a_marked_bookmark() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({})).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut watch = server.watch(&format!("{WIDGETS}?{query}&allowWatchBookmarks=true")).await;
    assert_eq!(watch.next_change().await, change("ADDED", "one"));
    let bookmark = watch.next().await.unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["kind"]), (&json!("BOOKMARK"), &json!("Widget")));
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    // Without bookmarks there is no end to mark.
    let mut watch = server.watch(&format!("{WIDGETS}?{query}")).await;
    assert_eq!(watch.next_change().await, change("ADDED", "one"));
    server.widget("two", &json!({})).await;
    assert_eq!(watch.next_change().await, change("ADDED", "two"));
}

/// APP-25: an object that begins to match appears, one that ceases to match disappears.
#[tokio::test]
async fn a_selected_watch_tells_comings_and_goings() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({ "in": "no" })).await;
    let mut watch = server.watch(&format!("{WIDGETS}?watch=1&labelSelector=in%3Dyes")).await;
    let label = |value: &str| json!({ "metadata": { "labels": { "in": value } } });
    for (value, size) in [("yes", 1), ("yes", 2), ("no", 3), ("no", 4)] {
        let mut patch = label(value);
        patch["spec"] = json!({ "size": size });
        server.ask(Method::PATCH, &format!("{WIDGETS}/one"), &patch).await;
    }
    server.widget("two", &json!({ "in": "yes" })).await;
    assert_eq!(watch.next_change().await, change("ADDED", "one"));
    assert_eq!(watch.next_change().await, change("MODIFIED", "one"));
    let gone = watch.next().await.unwrap();
    assert_eq!((&gone["type"], &gone["object"]["spec"]["size"]), (&json!("DELETED"), &json!(2)));
    assert_eq!(watch.next_change().await, change("ADDED", "two"));
}

/// APP-26
#[tokio::test]
async fn a_watch_of_one_name_tells_of_no_other() {
    let server = TestApiServer::open().await;
    let mut by_field = server.watch(&format!("{WIDGETS}?watch=1&fieldSelector=metadata.name%3Db")).await;
    let mut by_path = server.watch(&format!("{WIDGETS}/b?watch=1")).await;
    server.widget("a", &json!({})).await;
    server.widget("b", &json!({})).await;
    assert_eq!(by_field.next_change().await, change("ADDED", "b"));
    assert_eq!(by_path.next_change().await, change("ADDED", "b"));
}

#[tokio::test]
async fn a_watch_ends_after_its_timeout_with_a_bookmark() {
    let server = TestApiServer::open().await;
    let query = "watch=1&timeoutSeconds=1&allowWatchBookmarks=true";
    let mut watch = server.watch(&format!("{WIDGETS}?{query}")).await;
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], server.store.read().revision().to_string());
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_watch_can_be_a_table() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({})).await;
    let request = http::Request::get(format!("{WIDGETS}?watch=1&timeoutSeconds=1"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let response = server.send(request.body(axum::body::Body::empty()).unwrap()).await;
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let event: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&event["type"], &event["object"]["rows"][0]["cells"][0]), (&json!("ADDED"), &json!("one")));
}

/// APP-24: a watcher that was away too long must list again, by list and by watch alike.
#[tokio::test]
async fn a_version_that_history_has_left_behind_is_gone() {
    let server = TestApiServer::open().await;
    let first = server.widget("one", &json!({})).await;
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let router = api::router(Arc::clone(&server.store), Arc::clone(&server.registry));
    let writes = (0..=HISTORY_EVENTS_MAX).map(|count| {
        let patch = json!({ "metadata": { "labels": { "count": count.to_string() } } }).to_string();
        let request = http::Request::patch(format!("{WIDGETS}/one"))
            .header("content-type", "application/merge-patch+json")
            .body(axum::body::Body::from(patch));
        router.clone().oneshot(request.unwrap())
    });
    // As many at a time as one user may have.
    let mut answers = futures_util::stream::iter(writes).buffer_unordered(256);
    while let Some(answer) = answers.next().await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    let mut watch = server.watch(&format!("{WIDGETS}?watch=1&resourceVersion={version}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(watch.next().await.is_none());
    let exact = format!("{WIDGETS}?resourceVersion={version}&resourceVersionMatch=Exact");
    let (code, refusal) = server.get(&exact).await;
    assert_eq!((code, &refusal["reason"]), (410, &json!("Expired")));
}

/// APP-23: a list and a watch from it, while eight writers change everything, add up to the end state.
#[tokio::test]
async fn a_watch_from_a_list_misses_and_repeats_nothing_under_concurrent_writers() {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 40;
    let server = Arc::new(TestApiServer::open().await);
    let write = |writer: usize| {
        let server = Arc::clone(&server);
        async move {
            for round in 0..ROUNDS {
                let name = format!("w{writer}-{}", round % 5);
                let path = format!("{MAPS}/{name}");
                let body = json!({ "metadata": { "name": name }, "data": { "round": round.to_string() } });
                match round % 3 {
                    0 => server.ask(Method::POST, MAPS, &body).await,
                    1 => server.ask(Method::PATCH, &path, &body).await,
                    _ => server.delete(&path).await,
                };
            }
        }
    };
    let follow = || {
        let server = Arc::clone(&server);
        async move {
            let (_, list) = server.get(MAPS).await;
            let version: u64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            let mut seen: std::collections::BTreeMap<String, Value> = list["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|map| (map["metadata"]["name"].as_str().unwrap().to_owned(), map.clone()))
                .collect();
            let mut watch = server.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
            let mut last = version;
            while !seen.contains_key("end") {
                let event = watch.next().await.unwrap();
                let object = &event["object"];
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                let at: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                assert!(at > last, "events come in order, each once");
                last = at;
                match event["type"].as_str().unwrap() {
                    "ADDED" => assert!(seen.insert(name, object.clone()).is_none(), "added once"),
                    "MODIFIED" => assert!(seen.insert(name, object.clone()).is_some(), "known before"),
                    "DELETED" => assert!(seen.remove(&name).is_some(), "known before"),
                    other => panic!("{other}"),
                }
            }
            seen
        }
    };
    let writers = async {
        futures_util::future::join_all((0..WRITERS).map(write)).await;
        server.ask(Method::POST, MAPS, &json!({ "metadata": { "name": "end" } })).await;
    };
    let (followers, ()) = tokio::join!(futures_util::future::join_all((0..6).map(|_| follow())), writers);
    let (_, list) = server.get(MAPS).await;
    for seen in followers {
        assert_eq!(json!(seen.into_values().collect::<Vec<_>>()), list["items"]);
    }
}
