//! Events of both groups: one object, two views.

use http::Method;
use serde_json::{Value, json};

use crate::support::TestApiServer;

const CORE: &str = "/api/v1/namespaces/default/events";
const NEWS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn core(name: &str, about: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Event", "metadata": { "name": name }, "type": "Normal", "reason": "Ready",
        "message": "is ready", "count": 3, "lastTimestamp": jiff::Timestamp::now().to_string(),
        "involvedObject": { "kind": "Service", "name": about }, "reportingComponent": "tests" })
}

fn news(name: &str, about: &str) -> Value {
    json!({ "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": name }, "type": "Warning",
        "reason": "Failed", "action": "Start", "note": "does not start", "regarding": { "kind": "Service", "name": about },
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.com/tests",
        "reportingInstance": "one" })
}

/// An event of either group is read, selected, watched and changed in both.
#[tokio::test]
async fn an_event_has_two_faces() {
    let server = TestApiServer::real().await;
    let mut watch = server.watch(&format!("{NEWS}?watch=1&fieldSelector=regarding.name%3Da")).await;
    assert_eq!(server.ask(Method::POST, CORE, &core("old", "a")).await.0, 201);
    let (code, made) = server.ask(Method::POST, NEWS, &news("new", "b")).await;
    assert_eq!((code, &made["note"], &made["apiVersion"]), (201, &json!("does not start"), &json!("events.k8s.io/v1")));

    let (_, new) = server.get(&format!("{NEWS}/old")).await;
    assert_eq!((&new["note"], &new["regarding"]["name"]), (&json!("is ready"), &json!("a")));
    assert_eq!((&new["deprecatedCount"], &new["reportingController"]), (&json!(3), &json!("tests")));
    let (_, old) = server.get(&format!("{CORE}/new")).await;
    assert_eq!((&old["message"], &old["involvedObject"]["name"]), (&json!("does not start"), &json!("b")));
    assert_eq!((&old["apiVersion"], &old["metadata"]["uid"]), (&json!("v1"), &made["metadata"]["uid"]));

    let reported = watch.until("ADDED", "old").await;
    assert_eq!((&reported["note"], &reported["apiVersion"]), (&json!("is ready"), &json!("events.k8s.io/v1")));
    for (path, selector) in [(NEWS, "regarding.name"), (CORE, "involvedObject.name")] {
        let (_, list) = server.get(&format!("{path}?fieldSelector={selector}%3Db")).await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
        assert_eq!(list["items"][0]["metadata"]["name"], "new");
    }

    let patch = json!({ "series": { "count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z" }, "note": "again" });
    let (code, patched) = server.ask(Method::PATCH, &format!("{NEWS}/new"), &patch).await;
    assert_eq!((code, &patched["note"]), (200, &json!("again")), "{patched}");
    let (_, old) = server.get(&format!("{CORE}/new")).await;
    assert_eq!((&old["message"], &old["series"]["count"]), (&json!("again"), &json!(2)));
    let (code, _) = server.ask(Method::PUT, &format!("{NEWS}/old"), &server.get(&format!("{NEWS}/old")).await.1).await;
    assert_eq!(code, 200);

    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (_, table) = server.get_as(NEWS, table).await;
    assert_eq!(table["rows"][0]["cells"][6], "again", "{table}");
    assert_eq!(server.delete(&format!("{NEWS}/old")).await.0, 200);
    assert_eq!(server.get(&format!("{CORE}/old")).await.0, 404);
}

/// A new event says all that its group asks for, or what is missing is named.
#[tokio::test]
async fn half_an_event_is_refused_with_what_is_missing() {
    let server = TestApiServer::real().await;
    let mut event = news("half", "a");
    event["action"] = Value::Null;
    event["eventTime"] = Value::Null;
    let (code, refusal) = server.ask(Method::POST, NEWS, &event).await;
    let fields: Vec<&Value> =
        refusal["details"]["causes"].as_array().unwrap().iter().map(|cause| &cause["field"]).collect();
    assert_eq!((code, fields), (422, vec![&json!("eventTime"), &json!("action")]), "{refusal}");
}

/// A user who may write events of one namespace can report only about objects of that namespace.
#[tokio::test]
async fn an_event_lives_where_its_object_does() {
    let server = TestApiServer::real().await;
    for name in ["default", "other"] {
        server.ask(Method::POST, "/api/v1/namespaces", &json!({ "metadata": { "name": name } })).await;
    }
    for (home, about, code) in
        [("other", "default", 422), ("other", "", 422), ("default", "", 201), ("other", "other", 201)]
    {
        let path = format!("/api/v1/namespaces/{home}/events");
        let event = json!({ "metadata": { "generateName": "e-" },
            "involvedObject": { "kind": "ConfigMap", "name": "m", "namespace": about } });
        let (found, answer) = server.ask(Method::POST, &path, &event).await;
        assert_eq!(found, code, "{home} {about}: {answer}");
        if code == 422 {
            assert_eq!(answer["details"]["causes"][0]["field"], "involvedObject.namespace");
        }
    }
}

/// Kubernetes takes any part of a path for the name of a core event, and a DNS name in the newer group.
#[tokio::test]
async fn a_core_event_may_have_capital_letters_in_its_name() {
    let server = TestApiServer::real().await;
    let (code, made) = server.ask(Method::POST, CORE, &core("sink.Received.1", "a")).await;
    assert_eq!((code, &made["metadata"]["name"]), (201, &json!("sink.Received.1")), "{made}");
    assert_eq!(server.get(&format!("{NEWS}/sink.Received.1")).await.0, 200);
    assert_eq!(server.ask(Method::POST, NEWS, &news("sink.Received.2", "a")).await.0, 422);
    for bad in ["a/b", "..", "a%b"] {
        assert_eq!(server.ask(Method::POST, CORE, &core(bad, "a")).await.0, 422, "{bad}");
    }
}
