//! ApiServerSources through the built binary: changes of objects become events.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::api::condition;
use kit::manifest::NAMESPACE;
use kit::{ApplianceSetup, EventSink, KitApi, ReceivedRequest, SinkResponse, TIMEOUT};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn source(name: &str, mode: &str, sink: &str) -> Value {
    json!({
        "apiVersion": "sources.knative.dev/v1", "kind": "ApiServerSource",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "serviceAccountName": "watcher", "mode": mode, "sink": { "uri": sink },
            "resources": [{ "apiVersion": "v1", "kind": "ConfigMap", "selector": { "matchLabels": { "app": "shop" } } }],
            "ceOverrides": { "extensions": { "team": "a" } },
        },
    })
}

fn grant(api: KitApi) {
    api.create(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "watcher-reads", "namespace": NAMESPACE },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
        "subjects": [{ "kind": "ServiceAccount", "name": "watcher", "namespace": NAMESPACE }],
    }));
}

fn config_map(api: KitApi, name: &str, app: &str) {
    api.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app": app } }, "data": { "a": "1" },
    }));
}

fn types(received: &[ReceivedRequest]) -> Vec<String> {
    received.iter().map(|event| event.attribute("type").unwrap()).collect()
}

/// SRC-11, SRC-19, SRC-31, SRC-34: without rights the source is not Ready; with them it tells of each change of the chosen
/// objects, in order, in both modes.
#[test]
fn api_server_source_sends_changes_once_it_may_read() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, whole, named) = (appliance.api(), EventSink::start(), EventSink::start());
    api.create(&source("whole", "Resource", &whole.url()));
    api.create(&source("named", "Reference", &named.url()));
    let lacks =
        |source: &Value| condition(source, "SufficientPermissions").is_some_and(|rights| rights["status"] == "False");
    let found = api.wait_for("ApiServerSource", NAMESPACE, "whole", TIMEOUT, lacks);
    let why = condition(&found, "SufficientPermissions").unwrap()["message"].as_str().unwrap().to_owned();
    assert!(why.contains("system:serviceaccount:default:watcher cannot get, list, watch resource"), "{why}");
    config_map(api, "before", "shop");
    grant(api);
    for name in ["whole", "named"] {
        let ready = api.wait_ready("ApiServerSource", NAMESPACE, name, TIMEOUT);
        assert_eq!(ready["status"]["namespaces"], json!([NAMESPACE]));
        assert_eq!(ready["status"]["ceAttributes"].as_array().unwrap().len(), 3);
    }
    // The watch may begin a moment after Ready.
    wait_for_first_event(api, &[&whole, &named]);
    config_map(api, "orders", "shop");
    config_map(api, "other", "bank");
    api.patch("ConfigMap", NAMESPACE, "orders", &json!({ "data": { "a": "2" } }));
    api.delete("ConfigMap", NAMESPACE, "orders");
    for (sink, what) in [(&whole, "resource"), (&named, "ref")] {
        let of_orders = |received: &[ReceivedRequest]| -> Vec<ReceivedRequest> {
            received.iter().filter(|event| event.attribute("name").as_deref() == Some("orders")).cloned().collect()
        };
        let received = sink.wait_until(TIMEOUT, |received| of_orders(received).len() >= 3);
        let orders = of_orders(&received.unwrap_or_else(|received| received));
        let wanted = ["add", "update", "delete"].map(|change| format!("dev.knative.apiserver.{what}.{change}"));
        assert_eq!(types(&orders), wanted);
        assert_eq!(orders[0].attribute("team").as_deref(), Some("a"));
        assert_eq!(orders[0].attribute("subject").as_deref(), Some("/apis/v1/namespaces/default/configmaps/orders"));
        let data: Value = serde_json::from_slice(&orders[1].data()).unwrap();
        match what {
            "ref" => assert_eq!(
                data,
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "orders", "namespace": NAMESPACE })
            ),
            _ => assert_eq!((&data["kind"], &data["data"]["a"]), (&json!("ConfigMap"), &json!("2"))),
        }
        let is_of = |name: &str| sink.received().iter().any(|event| event.attribute("name").as_deref() == Some(name));
        assert!(!is_of("before") && !is_of("other"));
    }
}

/// Changes an object until each sink has heard of it.
fn wait_for_first_event(api: KitApi, sinks: &[&EventSink]) {
    config_map(api, "probe", "shop");
    kit::wait::until(TIMEOUT, "the first events", || {
        api.patch(
            "ConfigMap",
            NAMESPACE,
            "probe",
            &json!({ "data": { "at": format!("{:?}", std::time::Instant::now()) } }),
        );
        sinks.iter().all(|sink| !sink.received().is_empty()).then_some(())
    });
}

/// SRC-38: a sink that is away for a while gets all events, in order.
#[test]
fn api_server_source_waits_for_its_sink() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let sink = EventSink::answering(|event| SinkResponse::status(if event.attempt < 4 { 503 } else { 202 }));
    grant(api);
    api.create(&source("patient", "Reference", &sink.url()));
    api.wait_ready("ApiServerSource", NAMESPACE, "patient", TIMEOUT);
    wait_for_first_event(api, &[&sink]);
    for number in 0..5 {
        config_map(api, &format!("cm-{number}"), "shop");
    }
    let accepted = |received: &[ReceivedRequest]| -> Vec<String> {
        let accepted = received.iter().filter(|event| event.attempt >= 4);
        let names = accepted.filter_map(|event| event.attribute("name"));
        names.filter(|name| name.starts_with("cm-")).collect()
    };
    let received = sink.wait_until(TIMEOUT, |received| accepted(received).len() >= 5);
    let received = received.unwrap_or_else(|received| received);
    assert_eq!(accepted(&received), ["cm-0", "cm-1", "cm-2", "cm-3", "cm-4"]);
}

/// SRC-28: an unknown kind has a reason, and starts by itself once it is defined.
#[test]
fn api_server_source_of_an_unknown_kind_says_so() {
    let appliance = ApplianceSetup::new(BIN).start();
    let (api, sink) = (appliance.api(), EventSink::start());
    grant(api);
    let mut unknown = source("unknown", "Reference", &sink.url());
    unknown["spec"]["resources"] = json!([{ "apiVersion": "example.com/v1", "kind": "Widget" }]);
    api.create(&unknown);
    let says =
        |source: &Value| condition(source, "Deployed").is_some_and(|deployed| deployed["reason"] == "KindNotServed");
    let found = api.wait_for("ApiServerSource", NAMESPACE, "unknown", TIMEOUT, says);
    assert!(condition(&found, "Deployed").unwrap()["message"].to_string().contains("Widget"), "{found:#}");
}
