//! Nullable fields and embedded objects of custom kinds.

use http::Method;
use serde_json::{Value, json};

use crate::custom::{CRONS, DEFINITIONS};
use crate::support::TestApiServer;

const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

async fn server(spec: Value) -> TestApiServer {
    let server = TestApiServer::real().await;
    let mut definition = crate::custom::definition();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec;
    let (code, made) = server.ask(Method::POST, DEFINITIONS, &definition).await;
    assert_eq!(code, 201, "{made}");
    server
}

async fn apply(server: &TestApiServer, spec: Value) -> (u16, Value) {
    let object = json!({ "apiVersion": "example.com/v1", "kind": "Cron", "metadata": { "name": "a" }, "spec": spec });
    let path = format!("{CRONS}/a?fieldManager=one&force=true");
    server.ask_as(Method::PATCH, &path, "application/apply-patch+yaml", object.to_string()).await
}

/// APP-30: null is the value of a field that may be null, and its applier owns it; of any other it is no opinion.
#[tokio::test]
async fn applied_null_of_a_nullable_field_is_kept_and_owned() {
    let server = server(json!({ "type": "object", "properties": {
        "until": { "type": "string", "nullable": true },
        "since": { "type": "string", "nullable": true, "default": "now" },
        "size": { "type": "integer", "default": 3 },
        "free": { "type": "object", PRESERVE: true },
        "list": { "type": "array", "items": { "type": "object", "properties": { "x": { "type": "string", "nullable": true } } } },
    } }))
    .await;
    assert_eq!(apply(&server, json!({ "until": "noon" })).await.0, 201);
    let spec = json!({ "until": null, "since": null, "size": null, "free": { "a": null }, "list": [{ "x": null }] });
    let (code, object) = apply(&server, spec).await;
    assert_eq!(code, 200, "{object}");
    let expected = json!({ "until": null, "since": null, "size": 3, "free": { "a": null }, "list": [{ "x": null }] });
    assert_eq!(object["spec"], expected);
    let owned = &object["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    for field in ["f:until", "f:since", "f:free", "f:list"] {
        assert!(owned.get(field).is_some(), "{field} of {owned}");
    }
    assert!(owned.get("f:size").is_none(), "{owned}");
    // Nothing but nulls is something anyway.
    let (code, object) = apply(&server, json!({ "until": null })).await;
    assert_eq!((code, &object["spec"]["until"]), (200, &Value::Null), "{object}");
    assert!(object["spec"].as_object().unwrap().contains_key("until"), "{object}");
}

/// APP-36: an object inside another says what it is, and its metadata is that of any object.
#[tokio::test]
async fn embedded_object_is_validated_and_its_metadata_pruned() {
    let embedded = json!({ "type": "object", EMBEDDED: true, PRESERVE: true });
    let bare = json!({ "type": "object", EMBEDDED: true, "properties": { "spec": { "type": "object" } } });
    let list = json!({ "type": "array", "items": bare });
    let server = server(json!({ "type": "object", "properties": { "one": embedded, "list": list } })).await;
    let create = async |spec: Value| {
        let object = json!({ "metadata": { "generateName": "a-" }, "spec": spec });
        server.ask(Method::POST, CRONS, &object).await
    };
    let pod = |field: &str, value: Value| {
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" } });
        pod[field] = value;
        pod
    };
    let (code, made) = create(json!({
        "one": { "apiVersion": "a/v1", "kind": "Pod", "any": 1, "metadata": { "name": "p", "nme": "q", "labels": { "a": "b" } } },
        "list": [{ "apiVersion": "v1", "kind": "Pod", "metadata": { "nme": 1 }, "other": 1, "spec": {} }],
    }))
    .await;
    assert_eq!(code, 201, "{made}");
    let expected =
        json!({ "apiVersion": "a/v1", "kind": "Pod", "any": 1, "metadata": { "name": "p", "labels": { "a": "b" } } });
    assert_eq!(made["spec"]["one"], expected);
    assert_eq!(made["spec"]["list"][0], json!({ "apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {} }));
    for (one, field, why) in [
        (json!({ "kind": "Pod" }), "spec.one.apiVersion", "Required value: must not be empty"),
        (json!({ "apiVersion": "v1" }), "spec.one.kind", "Required value: must not be empty"),
        (pod("apiVersion", json!("")), "spec.one.apiVersion", "Invalid value: \"\": must not be empty"),
        (pod("apiVersion", json!(1)), "spec.one.apiVersion", "Invalid value: 1: must be a string"),
        (pod("apiVersion", json!("a/b/c")), "spec.one.apiVersion", "unexpected GroupVersion string: a/b/c"),
        (pod("kind", json!("-")), "spec.one.kind", "may have mixed case, but should otherwise match"),
        (pod("metadata", json!("x")), "spec.one.metadata", "Invalid value: \"x\": must be an object"),
        (pod("metadata", json!({ "labels": [] })), "spec.one.metadata", "invalid type"),
        (pod("metadata", json!({ "labels": { "-": "b" } })), "spec.one.metadata.labels", "name part must consist of"),
        (pod("metadata", json!({ "name": "a/b" })), "spec.one.metadata.name", "nor contain '/'"),
    ] {
        let (code, refused) = create(json!({ "one": one })).await;
        let cause = &refused["details"]["causes"][0];
        assert_eq!((code, cause["field"].as_str()), (422, Some(field)), "{refused}");
        assert!(cause["message"].as_str().unwrap().contains(why), "{refused}");
    }
}
