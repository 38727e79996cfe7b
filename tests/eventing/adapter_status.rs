//! What the status of an AdapterSource says when its adapter, its account, its Secret or its sink is not as it should be.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, channel, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const SINK: &str = "example.com/sink";
const BROKEN: &str = "example.com/broken";
const SILENT: &str = "example.com/silent";

fn start() -> Option<Appliance> {
    let program = Path::new(BIN).with_file_name("sluicegate-adapters");
    if !program.is_file() {
        eprintln!("skipped: {} is not built", program.display());
        return None;
    }
    let setup = ApplianceSetup::new(BIN)
        .flag("image", &format!("{SINK}={BIN} example sink"))
        .flag("image", &format!("{BROKEN}=sh -c 'echo servers[0]: no such host; exit 7'"))
        .flag("image", &format!("{SILENT}=sleep 1000"));
    let appliance = setup.start();
    appliance.api().create(&channel("c"));
    Some(appliance)
}

/// To the Channel.
fn source(name: &str, adapter: &Value, section: &Value) -> Value {
    json!({
        "apiVersion": "adapters.sluicegate.dev/v1alpha1", "kind": "AdapterSource",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "adapter": adapter, "source": section,
            "sink": { "ref": { "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c" } },
        },
    })
}

fn timer(name: &str) -> Value {
    source(name, &json!({ "transport": "timer" }), &json!({ "message": "tick", "period": 200 }))
}

fn deployed(source: &Value, status: &str) -> bool {
    condition(source, "Deployed").is_some_and(|deployed| deployed["status"] == status)
}

/// TRN-18, TRN-46, TRN-51: the sink may be a Channel or a Service; the source has the four conditions and no other.
#[test]
fn adapter_source_resolves_channels_and_services() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    api.create(&service("inner", SINK, "x"));
    api.create(&timer("to-channel"));
    let reference = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "inner" });
    api.create(&with(timer("to-service"), "/spec/sink", json!({ "ref": reference })));
    let missing = json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "gone" });
    api.create(&with(timer("to-nothing"), "/spec/sink", json!({ "ref": missing })));
    let found = api.wait_for("AdapterSource", NAMESPACE, "to-channel", TIMEOUT, is_ready);
    assert!(found["status"]["sinkUri"].as_str().unwrap().ends_with("/channels/default/c"), "{found:#}");
    let kinds: Vec<&str> =
        found["status"]["conditions"].as_array().unwrap().iter().map(|one| one["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Deployed", "EventTypes", "Ready", "Sink"]);
    let found = api.wait_for("AdapterSource", NAMESPACE, "to-service", TIMEOUT, is_ready);
    assert!(found["status"]["sinkUri"].as_str().unwrap().contains("inner"), "{found:#}");
    let lost = |source: &Value| condition(source, "Sink").is_some_and(|sink| sink["reason"] == "NotFound");
    let found = api.wait_for("AdapterSource", NAMESPACE, "to-nothing", TIMEOUT, lost);
    assert!(found["status"].get("sinkUri").is_none(), "{found:#}");
}

/// TRN-37, TRN-38, TRN-39: an adapter that ends, or does not start in time, is reported with its reason; its output is the log of
/// its Pod.
#[test]
fn adapter_that_fails_says_why() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let deadline = json!({ "data": { "progress-deadline": "3s" } });
    let path = "/api/v1/namespaces/knative-serving/configmaps/config-deployment";
    let patch = HttpCall::new("PATCH", path).header("Content-Type", "application/merge-patch+json");
    let patched = api.send(patch.body(deadline.to_string()));
    assert_eq!(patched.status, 200, "{patched}");
    api.create(&source("broken", &json!({ "image": BROKEN }), &json!({})));
    let found = api.wait_for("AdapterSource", NAMESPACE, "broken", TIMEOUT, |source| deployed(source, "False"));
    let why = condition(&found, "Deployed").unwrap();
    let message = why["message"].as_str().unwrap();
    assert!(message.contains("exit status: 7") && message.contains("no such host"), "{found:#}");
    api.create(&source("silent", &json!({ "image": SILENT }), &json!({})));
    api.wait_for("AdapterSource", NAMESPACE, "silent", TIMEOUT, |source| deployed(source, "False"));
}

/// TRN-49, TRN-50, TRN-58: an address where nothing answers is the reason of `Deployed`, and so is a sink that refuses events later.
#[test]
fn adapter_that_is_not_ready_says_why() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let section = json!({ "address": format!("127.0.0.1:{closed}"), "stream": "s", "group": "g" });
    api.create(&source("far", &json!({ "transport": "redis" }), &section));
    let because = |reason: &'static str| {
        move |source: &Value| condition(source, "Deployed").is_some_and(|one| one["reason"] == reason)
    };
    let found = api.wait_for("AdapterSource", NAMESPACE, "far", TIMEOUT, because("ConnectionFailed"));
    let why = condition(&found, "Deployed").unwrap();
    assert!(why["status"] == "False" && why["message"].to_string().contains("refused"), "{found:#}");

    let sink = kit::EventSink::answering(|_| kit::SinkResponse::status(401));
    api.create(&with(timer("refused"), "/spec/sink", json!({ "uri": sink.url() })));
    let found = api.wait_for("AdapterSource", NAMESPACE, "refused", TIMEOUT, because("SinkRefusesEvents"));
    assert_eq!(condition(&found, "Ready").unwrap()["status"], "False", "{found:#}");
}

/// TRN-52: the adapter runs as the account of its source, and waits for it.
#[test]
fn adapter_waits_for_its_service_account() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    api.create(&with(timer("ticks"), "/spec/serviceAccountName", json!("ticker")));
    let found = api.wait_for("AdapterSource", NAMESPACE, "ticks", TIMEOUT, |source| deployed(source, "False"));
    let why = condition(&found, "Deployed").unwrap()["message"].to_string();
    assert!(why.contains("ticker"), "{why}");
    api.create(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "ticker", "namespace": NAMESPACE } }));
    api.wait_ready("AdapterSource", NAMESPACE, "ticks", TIMEOUT);
}

/// A dead letter sink may be a reference; the adapter gets its URL.
#[test]
fn dead_letter_sink_of_an_adapter_is_resolved() {
    let Some(appliance) = start() else { return };
    let api = appliance.api();
    let channel_ref =
        json!({ "ref": { "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "letters" } });
    let delivery = json!({ "retry": 2, "deadLetterSink": channel_ref, "retryAfterMax": "PT1S" });
    api.create(&with(timer("ticks"), "/spec/delivery", delivery));
    let lost =
        |source: &Value| condition(source, "Deployed").is_some_and(|one| one["reason"] == "DeadLetterSinkNotFound");
    api.wait_for("AdapterSource", NAMESPACE, "ticks", TIMEOUT, lost);
    api.create(&channel("letters"));
    api.wait_ready("AdapterSource", NAMESPACE, "ticks", TIMEOUT);
    let sender: Value = match api.get("ConfigMap", NAMESPACE, "ticks-adapter") {
        Some(document) => {
            let text = document["data"]["adapter.json"].as_str().unwrap();
            serde_json::from_str::<Value>(text).unwrap()["sink"].clone()
        }
        // An appliance that cannot mount files.
        None => {
            let service = api.get("Service", NAMESPACE, "ticks-adapter").unwrap();
            let environment = service["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
            let sender = environment.iter().find(|one| one["name"] == "ADAPTER_SENDER").unwrap();
            serde_json::from_str(sender["value"].as_str().unwrap()).unwrap()
        }
    };
    assert!(
        sender["delivery"]["deadLetterSink"]["uri"].as_str().unwrap().ends_with("/channels/default/letters"),
        "{sender}"
    );
    wait::until(TIMEOUT, "its log", || {
        let pods = api.list_selected("Pod", NAMESPACE, "serving.knative.dev/service=ticks-adapter");
        let name = pods.first()?["metadata"]["name"].as_str()?.to_owned();
        let log = api.send(HttpCall::get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}/log"))).text();
        (!log.is_empty()).then_some(())
    });
}
