//! Values of the wrong type where an object belongs.

use http::Method;
use serde_json::{Value, json};
use sluicegate_control::kind_registry::AllowedVerbs;
use sluicegate_control::kinds;

use crate::support::TestApiServer;

fn path(group: &str, version: &str, plural: &str, namespaced: bool) -> String {
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    if namespaced { format!("{root}/namespaces/default/{plural}") } else { format!("{root}/{plural}") }
}

/// EV-API-09: fields have names; a list of their values in order is not a valid object.
#[tokio::test]
async fn a_list_is_taken_for_no_object_and_the_answer_says_where() {
    let server = TestApiServer::real().await;
    let (eventing, messaging, flows) = ("eventing.knative.dev", "messaging.knative.dev", "flows.knative.dev");
    let (serving, sources) = ("serving.knative.dev", "sources.knative.dev");
    let to = json!({ "uri": "http://x/" });
    let broker = json!(["Broker", null, "n", "eventing.knative.dev/v1"]);
    let trigger = |field: &str, value: Value| {
        let mut spec = json!({ "broker": "b", "subscriber": { "uri": "http://x/" } });
        spec[field] = value;
        spec
    };
    for (group, version, plural, spec, field) in [
        (eventing, "v1", "triggers", trigger("subscriber", json!([null, "http://x/"])), "spec.subscriber"),
        (eventing, "v1", "triggers", trigger("subscriber", json!({ "ref": broker })), "spec.subscriber.ref"),
        (eventing, "v1", "triggers", trigger("delivery", json!([])), "spec.delivery"),
        (eventing, "v1", "triggers", trigger("filter", json!([{ "type": "x" }])), "spec.filter"),
        (eventing, "v1", "brokers", json!({ "config": broker }), "spec.config"),
        (eventing, "v1beta2", "eventtypes", json!({ "type": "x", "reference": broker }), "spec.reference"),
        (eventing, "v1beta3", "eventtypes", json!({ "attributes": [["type"]] }), "spec.attributes[0]"),
        (
            messaging,
            "v1",
            "channels",
            json!({ "channelTemplate": ["messaging.knative.dev/v1", "InMemoryChannel"] }),
            "spec.channelTemplate",
        ),
        (messaging, "v1", "inmemorychannels", json!({ "delivery": [] }), "spec.delivery"),
        (messaging, "v1", "subscriptions", json!({ "channel": broker, "subscriber": to }), "spec.channel"),
        (flows, "v1", "sequences", json!({ "steps": [[null, "http://x/"]] }), "spec.steps[0]"),
        (flows, "v1", "parallels", json!({ "branches": [[null, to]] }), "spec.branches[0]"),
        (serving, "v1", "services", json!({ "template": [] }), "spec.template"),
        (serving, "v1", "routes", json!({ "traffic": [[null, "r"]] }), "spec.traffic[0]"),
        (sources, "v1", "pingsources", json!({ "sink": [null, "http://x/"] }), "spec.sink"),
    ] {
        let object = json!({ "metadata": { "name": "a" }, "spec": spec });
        let (code, response) = server.ask(Method::POST, &path(group, version, plural, true), &object).await;
        assert_eq!(code, 422, "{plural} {spec}: {response}");
        let causes = response["details"]["causes"].as_array().unwrap();
        assert!(causes.iter().any(|cause| cause["field"] == field), "{plural} {field}: {response}");
        let why = format!("{field} in body must be of type object: \"array\"");
        assert!(response["message"].as_str().unwrap().contains(&why), "{response}");
    }
}

/// EV-API-09: the same of every kind with a `spec`.
#[tokio::test]
async fn no_kind_takes_a_list_for_its_spec() {
    let server = TestApiServer::real().await;
    for entry in kinds::registry().entries {
        let (meta, schema) = (entry.meta, entry.openapi_schema());
        if schema["properties"]["spec"]["type"] != "object" || entry.access != AllowedVerbs::Full {
            continue;
        }
        let path = path(meta.group, meta.version, meta.plural, meta.namespaced);
        let object = json!({ "metadata": { "name": "a" }, "spec": [] });
        let (code, response) = server.ask(Method::POST, &path, &object).await;
        assert!((400..=422).contains(&code), "{path}: {code} {response}");
        let said = response["message"].as_str().unwrap();
        assert!(said.contains("spec") || !meta.user_creatable, "{path}: {response}");
    }
}

/// EV-API-09: every writer's status is validated against the schema.
#[tokio::test]
async fn a_condition_without_a_status_is_refused() {
    let server = TestApiServer::real().await;
    let brokers = path("eventing.knative.dev", "v1", "brokers", true);
    let made = server.ask(Method::POST, &brokers, &json!({ "metadata": { "name": "b" } })).await;
    assert_eq!(made.0, 201, "{}", made.1);
    let status = format!("{brokers}/b/status");
    for (conditions, field) in [
        (json!([{ "type": "Ready" }]), "status.conditions[0].status"),
        (json!([["Ready", "True"]]), "status.conditions[0]"),
    ] {
        let patch = json!({ "status": { "conditions": conditions } });
        let (code, response) = server.ask(Method::PATCH, &status, &patch).await;
        assert_eq!((code, &response["details"]["causes"][0]["field"]), (422, &json!(field)), "{response}");
    }
    let patch = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    assert_eq!(server.ask(Method::PATCH, &status, &patch).await.0, 200);
}

/// AMB-01: `attributes` is a field of v1beta3 alone.
#[tokio::test]
async fn an_event_types_attributes_are_shown_and_taken_by_one_version_alone() {
    let server = TestApiServer::real().await;
    let [old, stored, new] =
        ["v1beta1", "v1beta2", "v1beta3"].map(|version| path("eventing.knative.dev", version, "eventtypes", true));
    let attributes =
        ["type", "source", "specversion", "id"].map(|name| json!({ "name": name, "required": true, "value": "x" }));
    let named = |name: &str, spec: Value| json!({ "metadata": { "name": name }, "spec": spec });
    for versions in [&old, &stored] {
        let both = named("a", json!({ "type": "x", "attributes": attributes }));
        let (code, response) = server.ask(Method::POST, versions, &both).await;
        assert_eq!(code, 400, "{response}");
        assert!(response["message"].as_str().unwrap().contains("spec.attributes"), "{response}");
    }
    let (code, response) = server.ask(Method::POST, &new, &named("a", json!({ "attributes": attributes }))).await;
    assert_eq!(code, 201, "{response}");
    for version in [&old, &stored] {
        let (_, shown) = server.get(&format!("{version}/a")).await;
        assert_eq!(shown["spec"], json!({ "type": "x", "source": "x" }));
        // An object that is read can be written back unchanged.
        let (code, kept) = server.ask(Method::PUT, &format!("{version}/a"), &shown).await;
        assert_eq!((code, &kept["spec"]), (200, &shown["spec"]), "{kept}");
        let (_, list) = server.get(version).await;
        assert_eq!(list["items"][0]["spec"], shown["spec"]);
    }
    let (_, shown) = server.get(&format!("{new}/a")).await;
    assert_eq!(shown["spec"]["attributes"], json!(attributes));

    let (code, response) = server.ask(Method::POST, &new, &named("b", json!({ "attributes": null }))).await;
    assert_eq!(code, 422, "{response}");
    assert!(!response["message"].as_str().unwrap().contains("spec.type"), "{response}");
}
