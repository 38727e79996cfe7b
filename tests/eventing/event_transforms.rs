//! EventTransforms and GitHubSources through the built binary, with `sluicegate-adapters` beside it. A test without that program
//! says so and is skipped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, broker, trigger, with};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, SinkResponse, TIMEOUT, TestEvent};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const TOTAL: &str = r#"{ "specversion": "1.0", "id": id & "-total", "source": source, "type": "kit.total",
    "data": { "total": $sum(data.items.price) } }"#;

fn start() -> Option<Appliance> {
    if !Path::new(BIN).with_file_name("sluicegate-adapters").is_file() {
        eprintln!("skipped: sluicegate-adapters is not built");
        return None;
    }
    let appliance = ApplianceSetup::new(BIN).flag("cluster-local", "127.0.0.1:0").start();
    appliance.api().create(&broker("main"));
    Some(appliance)
}

fn transform(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "eventing.knative.dev/v1alpha1", "kind": "EventTransform",
        "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec })
}

fn order(id: &str) -> TestEvent {
    TestEvent::new(id).data("application/json", r#"{"items":[{"price":1.5},{"price":2}]}"#)
}

/// The result of the expression is the reply, which a Trigger puts into its Broker; an event that has no result goes to the dead
/// letter sink at once.
#[test]
fn result_of_a_transform_reenters_the_broker() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let (sink, dead) = (EventSink::start(), EventSink::start());
    api.create(&transform("total", &json!({ "jsonata": { "expression": TOTAL } })));
    let ready = api.wait_for("EventTransform", NAMESPACE, "total", TIMEOUT, is_ready);
    for kind in ["TransformationReady", "JsonataDeploymentReady", "JsonataSinkBindingReady", "Addressable"] {
        assert_eq!(condition(&ready, kind).unwrap()["status"], "True", "{kind}: {ready:#}");
    }
    assert_eq!(ready["status"]["jsonata"]["deployment"]["readyReplicas"], 1);
    let to_transform =
        json!({ "ref": { "apiVersion": "eventing.knative.dev/v1alpha1", "kind": "EventTransform", "name": "total" } });
    let orders = with(trigger("orders", "main", ""), "/spec/subscriber", to_transform);
    let orders = with(orders, "/spec/filter", json!({ "attributes": { "type": "kit.order" } }));
    api.create(&with(orders, "/spec/delivery", json!({ "retry": 5, "deadLetterSink": { "uri": dead.url() } })));
    let totals = trigger("totals", "main", &sink.url());
    api.create(&with(totals, "/spec/filter", json!({ "attributes": { "type": "kit.total" } })));
    for name in ["orders", "totals"] {
        api.wait_ready("Trigger", NAMESPACE, name, TIMEOUT);
    }
    let path = format!("/brokers/{NAMESPACE}/main");
    let wrong = TestEvent::new("2").of_type("kit.order").data("application/json", r#"{"items":[{"price":"x"}]}"#);
    for event in [order("1").of_type("kit.order"), wrong] {
        assert_eq!(event.binary(&path).send(appliance.events()).status, 202);
    }
    let total = sink.wait_for(1, TIMEOUT).remove(0);
    assert_eq!((total.id().as_str(), total.attribute("type").as_deref()), ("1-total", Some("kit.total")));
    assert_eq!(total.data(), br#"{"total":3.5}"#);
    let letter = dead.wait_for(1, TIMEOUT).remove(0);
    assert_eq!((letter.id().as_str(), letter.attribute("knativeerrorcode").as_deref()), ("2", Some("422")));
}

/// With a sink, the sender gets its response: as it is, transformed, or without the event.
#[test]
fn response_of_the_sink_is_the_answer_of_a_transform() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let sink = EventSink::answering(|_| {
        let attributes = [("specversion", "1.0"), ("id", "r"), ("source", "/sink"), ("type", "kit.reply")];
        SinkResponse::event(200, &attributes, &json!({ "n": 1 }))
    });
    let reply =
        r#"{ "specversion": "1.0", "id": id, "source": source, "type": "kit.changed", "data": { "m": data.n + 1 } }"#;
    let to = json!({ "uri": sink.url() });
    let jsonata = json!({ "expression": TOTAL });
    api.create(&transform("same", &json!({ "jsonata": jsonata, "sink": to })));
    api.create(&transform("none", &json!({ "jsonata": jsonata, "sink": to, "reply": { "discard": true } })));
    api.create(&transform(
        "changed",
        &json!({ "jsonata": jsonata, "sink": to, "reply": { "jsonata": { "expression": reply } } }),
    ));
    let ask = |name: &str| {
        api.wait_for("EventTransform", NAMESPACE, name, TIMEOUT, is_ready);
        let host = format!("{name}-eventtransform.{NAMESPACE}.svc.cluster.local");
        order("1").binary("/").host(&host).send(appliance.private())
    };
    let same = ask("same");
    assert_eq!((same.status, same.header("ce-type")), (200, Some("kit.reply")), "{same}");
    let none = ask("none");
    assert_eq!((none.status, none.text().as_str(), none.header("ce-type")), (200, "", None), "{none}");
    let changed = ask("changed");
    assert_eq!((changed.status, &changed.json()["data"]), (200, &json!({ "m": 2 })), "{changed}");
    let received = &sink.wait_for(3, TIMEOUT)[0];
    assert!(received.is_structured());
    assert_eq!(received.data(), br#"{"total":3.5}"#);
}

/// An expression that is wrong is a condition, and so is a sink that does not exist.
#[test]
fn wrong_expression_is_named_in_a_condition() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    api.create(&transform("wrong", &json!({ "jsonata": { "expression": "{ \"id\": }" } })));
    let failed = api.wait_for("EventTransform", NAMESPACE, "wrong", TIMEOUT, |object| {
        condition(object, "JsonataDeploymentReady").is_some_and(|one| one["status"] == "False")
    });
    let message = condition(&failed, "Ready").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("spec.jsonata.expression"), "{failed:#}");
    let nowhere = json!({ "ref": { "apiVersion": "v1", "kind": "Service", "name": "none" } });
    api.create(&transform("lost", &json!({ "jsonata": { "expression": "$" }, "sink": nowhere })));
    api.wait_for("EventTransform", NAMESPACE, "lost", TIMEOUT, |object| {
        condition(object, "JsonataSinkBindingReady").is_some_and(|one| one["reason"] == "NotFound")
    });
}

/// A delivery of GitHub with a valid signature is an event, with upstream's attributes.
#[test]
fn github_source_verifies_the_signature() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let sink = EventSink::start();
    api.create(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "hook", "namespace": NAMESPACE },
        "stringData": { "secret": "s3cret" } }));
    let token = json!({ "secretKeyRef": { "name": "hook", "key": "secret" } });
    api.create(&json!({ "apiVersion": "sources.knative.dev/v1alpha1", "kind": "GitHubSource",
        "metadata": { "name": "repo", "namespace": NAMESPACE },
        "spec": { "ownerAndRepository": "o/r", "eventTypes": ["issues"], "secretToken": token, "accessToken": token,
            "sink": { "uri": sink.url() } } }));
    let ready = api.wait_for("GitHubSource", NAMESPACE, "repo", TIMEOUT, is_ready);
    let webhook = condition(&ready, "WebhookConfigured").unwrap();
    assert_eq!(webhook["reason"], "RegisterWebhook", "{ready:#}");
    let host = format!("repo-githubsource.{NAMESPACE}.localhost");
    assert!(webhook["message"].as_str().unwrap().contains(&format!("http://{host}")), "{webhook}");
    let body = r#"{"action":"opened","issue":{"number":7},"repository":{"name":"r","owner":{"login":"o"}}}"#;
    let signature = "sha256=c458ef228d8700f92b773f50dd698c793b6e11c5e5c95bbbd3a7ff668d473999";
    let deliver = |event: &str, signature: &str| {
        let call = HttpCall::post("/").host(&host).header("Content-Type", "application/json").body(body);
        let call = call.header("X-GitHub-Event", event).header("X-GitHub-Delivery", "d-1");
        call.header("X-Hub-Signature-256", signature).send(appliance.http())
    };
    for (event, signature, status) in
        [("issues", "sha256=00", 401), ("ping", signature, 200), ("push", signature, 202), ("issues", signature, 202)]
    {
        let answer = deliver(event, signature);
        assert_eq!(answer.status, status, "{event}: {answer}");
    }
    let received = sink.wait_for(1, TIMEOUT);
    assert_eq!(received.len(), 1);
    let attribute = |name: &str| received[0].attribute(name).unwrap_or_default();
    let found = ["type", "source", "id", "subject", "owner"].map(attribute);
    assert_eq!(found, ["dev.knative.source.github.issues", "https://github.com/o/r", "d-1", "7", "o"]);
}
