//! Kubernetes' own kinds that are only stored: events with their limits, leases, roles; and reviews.

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use sluicegate_control::event_recorder::{EventMessage, EventRecorder, EventSeverity};
use sluicegate_control::kinds::serving::service::Service;
use sluicegate_control::store::event_retention;

use crate::support::TestApiServer;

const EVENTS: &str = "/api/v1/namespaces/default/events";

fn event(name: &str, about: &str, seen: Timestamp) -> Value {
    json!({ "metadata": { "name": name }, "type": "Normal", "reason": "Test", "message": "m",
        "involvedObject": { "kind": "Service", "name": about, "namespace": "default", "uid": about },
        "lastTimestamp": seen.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() })
}

#[tokio::test]
async fn events_are_found_by_the_object_they_are_about() {
    let server = TestApiServer::real().await;
    for (name, about) in [("one", "a"), ("two", "b")] {
        let (code, made) = server.ask(Method::POST, EVENTS, &event(name, about, Timestamp::now())).await;
        assert_eq!(code, 201, "{made}");
    }
    let query = "fieldSelector=involvedObject.kind%3DService,involvedObject.name%3Db,involvedObject.uid%3Db";
    let (_, list) = server.get(&format!("{EVENTS}?{query}")).await;
    let found: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|one| &one["metadata"]["name"]).collect();
    assert_eq!(found, ["two"]);
    let (code, _) = server.get(&format!("{EVENTS}?fieldSelector=spec.none%3Da")).await;
    assert_eq!(code, 400);
}

#[tokio::test]
async fn old_events_go_and_young_ones_stay() {
    let server = TestApiServer::real().await;
    let now = Timestamp::now();
    server.ask(Method::POST, EVENTS, &event("young", "a", now)).await;
    let later = Timestamp::from_second(now.as_second() + event_retention::EVENT_SECONDS_MAX - 60).unwrap();
    event_retention::trim(&server.store, later).await.unwrap();
    assert_eq!(server.get(&format!("{EVENTS}/young")).await.0, 200);
    let later = Timestamp::from_second(now.as_second() + event_retention::EVENT_SECONDS_MAX + 60).unwrap();
    event_retention::trim(&server.store, later).await.unwrap();
    assert_eq!(server.get(&format!("{EVENTS}/young")).await.0, 404);
}

#[tokio::test]
async fn repeated_event_is_counted() {
    let server = TestApiServer::real().await;
    let recorder = EventRecorder::new(server.client());
    let mut service = Service::new("default", "hello", Default::default());
    service.metadata.uid = Some("u".into());
    let news = EventMessage { level: EventSeverity::Warning, reason: "Broken".into(), message: "it broke".into() };
    let at = |second: i64| Timestamp::from_second(Timestamp::now().as_second() + second).unwrap();
    recorder.record(&service, &news, at(0)).await;
    recorder.record(&service, &news, at(5)).await;
    let (_, list) = server.get(EVENTS).await;
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{list}");
    assert_eq!((&items[0]["count"], &items[0]["type"]), (&json!(2), &json!("Warning")));
    assert_ne!(items[0]["firstTimestamp"], items[0]["lastTimestamp"]);
    assert_eq!(items[0]["involvedObject"]["apiVersion"], "serving.knative.dev/v1");
}

#[tokio::test]
async fn leases_and_roles_are_kept_and_may_be_applied() {
    let server = TestApiServer::real().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({ "metadata": { "name": "l" },
        "spec": { "holderIdentity": "me", "renewTime": "2026-01-01T00:00:00.000000Z" } });
    let (code, made) = server.ask(Method::POST, leases, &lease).await;
    assert_eq!((code, &made["spec"]["holderIdentity"]), (201, &json!("me")), "{made}");
    assert!(made["metadata"].get("generation").is_none(), "{made}");
    let mut stale = made.clone();
    stale["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(server.ask(Method::PUT, &format!("{leases}/l"), &stale).await.0, 409);

    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let role = json!({ "metadata": { "name": "r" }, "rules": [{ "verbs": ["get"], "apiGroups": [""], "resources": ["pods"] }] });
    assert_eq!(server.ask(Method::POST, roles, &role).await.0, 201);
    let media = "application/strategic-merge-patch+json";
    let patch = json!({ "rules": [] }).to_string();
    let (code, patched) = server.ask_as(Method::PATCH, &format!("{roles}/r"), media, patch).await;
    assert_eq!(code, 200, "{patched}");
}

#[tokio::test]
async fn a_review_is_answered_and_not_stored() {
    let server = TestApiServer::real().await;
    let revision = server.store.read().revision();
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let ask = json!({ "spec": { "resourceAttributes": { "verb": "create", "resource": "services" } } });
    let (code, review) = server.ask(Method::POST, path, &ask).await;
    assert_eq!((code, &review["status"]["allowed"]), (201, &json!(true)), "{review}");
    assert_eq!(review["spec"], ask["spec"]);
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let (_, rules) = server.ask(Method::POST, path, &json!({ "spec": { "namespace": "default" } })).await;
    assert_eq!(rules["status"]["resourceRules"][0]["verbs"], json!(["*"]));
    assert_eq!(server.get(path).await.0, 405);
    assert_eq!(server.store.read().revision(), revision);
    let (_, group) = server.get("/apis/authorization.k8s.io/v1").await;
    assert_eq!(group["resources"][0]["verbs"], json!(["create"]));
}
