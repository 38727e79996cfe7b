//! PingSources and SinkBindings through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, broker, greets, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/sink";
const HELLO: &str = "example.com/hello";

fn ping(name: &str, sink: &Value) -> Value {
    json!({
        "apiVersion": "sources.knative.dev/v1", "kind": "PingSource",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "schedule": "* * * * * *", "contentType": "text/plain", "data": "tick", "sink": { "ref": sink },
        },
    })
}

/// What all instances of the Service have said.
fn said(api: KitApi, service: &str) -> String {
    let pods = HttpCall::get(&format!(
        "/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=serving.knative.dev/service={service}"
    ));
    let pods = api.send(pods).json();
    let names = pods["items"].as_array().into_iter().flatten().map(|pod| &pod["metadata"]["name"]);
    let log = |name: &Value| {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}/log", name.as_str().unwrap());
        api.send(HttpCall::get(&path)).text()
    };
    names.map(log).collect()
}

/// SRC-03, SRC-11, SRC-31, SRC-37, SRC-38: a Service that only callers inside reach gets the events of a PingSource that refers to it,
/// though there is no listener for callers inside. All PingSources run in the appliance, and none has a program of its own.
#[test]
fn a_ping_source_reaches_a_service_by_its_reference() {
    let appliance = ApplianceSetup::new(BIN).flag("image", &format!("{IMAGE}={BIN} example sink")).start();
    let api = appliance.api();
    let visibility = "/metadata/labels/networking.knative.dev~1visibility";
    api.create(&with(service("inner", IMAGE, "x"), visibility, json!("cluster-local")));
    api.wait_ready("Service", NAMESPACE, "inner", TIMEOUT);
    let sink = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "inner" });
    api.create(&ping("every-second", &sink));
    let source = api.wait_for("PingSource", NAMESPACE, "every-second", TIMEOUT, is_ready);
    assert_eq!(source["status"]["observedGeneration"], source["metadata"]["generation"]);
    wait::until(TIMEOUT, "an event in the Service's log", || {
        said(api, "inner").contains("dev.knative.sources.ping").then_some(())
    });
    let services = api.list("Service", NAMESPACE);
    assert_eq!(services.len(), 1, "{services:#?}");
}

/// SRC-05, SRC-33: what a source sends to a Broker is found as an EventType, with a reader that knows no more than that it is a
/// source; it goes when the source sends elsewhere, or goes itself.
#[test]
fn what_a_source_sends_to_a_broker_is_found_as_an_event_type() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&broker("main"));
    let to_broker = json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" });
    for name in ["stays", "turns", "goes"] {
        api.create(&ping(name, &to_broker));
        let source = api.wait_ready("PingSource", NAMESPACE, name, TIMEOUT);
        assert!(source["status"]["sinkUri"].as_str().unwrap().ends_with("/main"), "{source:#}");
    }
    let sources = |wanted: &[&str]| {
        let mut wanted: Vec<String> =
            wanted.iter().map(|name| format!("/apis/v1/namespaces/{NAMESPACE}/pingsources/{name}")).collect();
        wanted.sort();
        wait::until(TIMEOUT, "the EventTypes", || {
            let found = api.list("EventType", NAMESPACE);
            let is_ours = |one: &&Value| {
                one["spec"]["type"] == "dev.knative.sources.ping" && one["spec"]["reference"]["name"] == "main"
            };
            let mut found: Vec<String> =
                found.iter().filter(is_ours).map(|one| one["spec"]["source"].as_str().unwrap().into()).collect();
            found.sort();
            (found == wanted).then_some(())
        });
    };
    sources(&["stays", "turns", "goes"]);
    api.delete("PingSource", NAMESPACE, "goes");
    let elsewhere = json!({ "spec": { "sink": { "ref": null, "uri": "http://127.0.0.1:9/" } } });
    api.patch("PingSource", NAMESPACE, "turns", &elsewhere);
    sources(&["stays"]);
}

fn binding(name: &str, subject: &Value, sink: &Value) -> Value {
    json!({
        "apiVersion": "sources.knative.dev/v1", "kind": "SinkBinding",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "subject": subject, "sink": sink, "ceOverrides": { "extensions": { "left": "here" } } },
    })
}

/// Waits until a new instance of the Service has this environment.
fn until_response(appliance: &Appliance, service: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let host = format!("{service}.{NAMESPACE}.localhost");
    wait::until(TIMEOUT, what, || {
        let answer = HttpCall::get("/env").host(&host).send(appliance.http());
        let reported = (answer.status == 200).then(|| answer.json());
        reported.filter(|reported| fits(reported))
    })
}

/// SRC-12, SRC-16, SRC-17, SRC-18, SRC-20, SRC-29: programs get the sink, and the new one when that changes; what
/// their author writes and what is injected do not conflict.
#[test]
fn a_binding_tells_programs_where_to_send() {
    let appliance = ApplianceSetup::new(BIN).hello_image(HELLO).start();
    let api = appliance.api();
    api.create(&broker("main"));
    api.wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    for name in ["sender", "other"] {
        api.create(&with(service(name, HELLO, "world"), "/metadata/labels/part", json!(name)));
        api.wait_ready("Service", NAMESPACE, name, TIMEOUT);
    }
    let subject = json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Service", "selector": { "matchLabels": { "part": "sender" } },
    });
    let to_broker = json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" } });
    api.create(&binding("to-main", &subject, &to_broker));
    let bound = api.wait_ready("SinkBinding", NAMESPACE, "to-main", TIMEOUT);
    let sink = bound["status"]["sinkUri"].as_str().unwrap().to_owned();
    let reported = until_response(&appliance, "sender", "the sink", |env| env["K_SINK"] == *sink);
    let overrides: Value = serde_json::from_str(reported["K_CE_OVERRIDES"].as_str().unwrap()).unwrap();
    assert_eq!(overrides["extensions"], json!({ "left": "here" }));
    assert_eq!(reported["TARGET"], "world");
    let path = sink.split_once("://").unwrap().1.split_once('/').unwrap().1;
    let event = TestEvent::new("1").of_type("t").binary(&format!("/{path}"));
    assert_eq!(event.send(appliance.events()).status, 202, "{sink}");
    assert_eq!(until_response(&appliance, "other", "an answer", |_| true)["K_SINK"], Value::Null);

    // A second one for the same program would have both write forever.
    let named = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "sender" });
    api.create(&binding("younger", &named, &json!({ "uri": "http://younger.example.com/" })));
    api.wait_for("SinkBinding", NAMESPACE, "younger", TIMEOUT, |one| {
        condition(one, "Ready").is_some_and(|ready| ready["reason"] == "SubjectUnavailable")
    });
    api.delete("SinkBinding", NAMESPACE, "younger");
    api.wait_gone("SinkBinding", NAMESPACE, "younger", TIMEOUT);
    assert_eq!(until_response(&appliance, "sender", "an answer", |_| true)["K_SINK"], *sink);

    // A client that replaces the template need not know of it.
    api.patch("Service", NAMESPACE, "sender", &greets(HELLO, "everybody"));
    let is_whole = |env: &Value| env["TARGET"] == "everybody" && env["K_SINK"] == *sink;
    until_response(&appliance, "sender", "both", is_whole);

    let elsewhere = json!({ "spec": { "sink": { "ref": null, "uri": "http://elsewhere.example.com/in" } } });
    api.patch("SinkBinding", NAMESPACE, "to-main", &elsewhere);
    until_response(&appliance, "sender", "the new sink", |env| env["K_SINK"] == "http://elsewhere.example.com/in");

    api.delete("SinkBinding", NAMESPACE, "to-main");
    api.wait_gone("SinkBinding", NAMESPACE, "to-main", TIMEOUT);
    let free = until_response(&appliance, "sender", "no sink", |env| env["K_SINK"].is_null());
    assert_eq!((&free["K_CE_OVERRIDES"], &free["TARGET"]), (&Value::Null, &json!("everybody")));
}

/// X-SRC-04: where a namespace is labelled so, nothing is injected, neither by admission nor later.
#[test]
fn a_namespace_can_be_kept_from_being_bound() {
    let appliance = ApplianceSetup::new(BIN).hello_image(HELLO).start();
    let api = appliance.api();
    let label = |value: Value| json!({ "metadata": { "labels": { "bindings.knative.dev/exclude": value } } });
    api.patch("Namespace", "", NAMESPACE, &label(json!("true")));
    let subject = json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Service", "selector": { "matchLabels": {} },
    });
    api.create(&binding("all", &subject, &json!({ "uri": "http://sink.example.com/" })));
    let unbound = |one: &Value| {
        condition(one, "Ready").is_some_and(|ready| {
            ready["reason"] == "SubjectUnavailable"
                && ready["message"].as_str().is_some_and(|why| why.contains("namespace"))
        })
    };
    api.wait_for("SinkBinding", NAMESPACE, "all", TIMEOUT, unbound);
    api.create(&service("left", HELLO, "world"));
    api.wait_ready("Service", NAMESPACE, "left", TIMEOUT);
    assert_eq!(until_response(&appliance, "left", "an answer", |_| true)["K_SINK"], Value::Null);

    api.patch("Namespace", "", NAMESPACE, &label(Value::Null));
    let bound = api.wait_ready("SinkBinding", NAMESPACE, "all", TIMEOUT);
    for kind in ["OIDCIdentityCreated", "OIDCTokenSecretCreated", "TrustBundlePropagated"] {
        assert!(condition(&bound, kind).is_some_and(|one| one["status"] == "True"), "{bound:#}");
    }
    until_response(&appliance, "left", "the sink", |env| env["K_SINK"] == "http://sink.example.com/");
}

/// SRC-16, SRC-32: a binding that cannot be applied, or not yet, is not Ready and says why; a subject is chosen once, and has the sink from its first
/// Revision on.
#[test]
fn inapplicable_binding_says_why() {
    let appliance = ApplianceSetup::new(BIN).hello_image(HELLO).start();
    let api = appliance.api();
    let sink = json!({ "uri": "http://sink.example.com/" });
    let subject = |version: &str, kind: &str, name: &str| json!({ "apiVersion": version, "kind": kind, "name": name });
    let reason = |binding: &Value| condition(binding, "Ready").map(|ready| ready["reason"].clone());
    for (name, subject, sink, why) in [
        ("nobody", subject("serving.knative.dev/v1", "Service", "late"), &sink, "SubjectMissing"),
        ("not-here", subject("apps/v1", "StatefulSet", "late"), &sink, "KindNotSupported"),
        (
            "no-sink",
            subject("serving.knative.dev/v1", "Configuration", "late"),
            &json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "none" } }),
            "NotFound",
        ),
    ] {
        api.create(&binding(name, &subject, sink));
        let found = api.wait_for("SinkBinding", NAMESPACE, name, TIMEOUT, |one| reason(one) == Some(json!(why)));
        assert!(!is_ready(&found));
        assert_eq!(found["status"]["sinkUri"].is_null(), why == "NotFound", "{found:#}");
    }
    let other = json!({ "spec": { "subject": { "name": "another" } } });
    let refused = api.try_patch("SinkBinding", NAMESPACE, "nobody", &other);
    assert!(refused.status == 422 && refused.text().contains("spec.subject"), "{refused}");

    api.create(&service("late", HELLO, "world"));
    api.wait_ready("SinkBinding", NAMESPACE, "nobody", TIMEOUT);
    until_response(&appliance, "late", "the sink", |env| env["K_SINK"] == "http://sink.example.com/");
    // As with upstream's webhook: the first Revision has the sink, and there is no second.
    let late = api.get("Service", NAMESPACE, "late").unwrap();
    assert_eq!(late["status"]["latestCreatedRevisionName"], "late-00001");
    let changed = greets(HELLO, "everybody");
    api.patch("Service", NAMESPACE, "late", &changed);
    until_response(&appliance, "late", "both", |env| env["TARGET"] == "everybody" && !env["K_SINK"].is_null());
    let late = api.get("Service", NAMESPACE, "late").unwrap();
    assert_eq!(late["status"]["latestCreatedRevisionName"], "late-00002", "nor a third");
    api.delete("SinkBinding", NAMESPACE, "no-sink");
    api.wait_gone("SinkBinding", NAMESPACE, "no-sink", TIMEOUT);
}
