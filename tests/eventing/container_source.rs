//! ContainerSources through the built binary: a program of the user sends where it is told to.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::api::{condition, is_ready};
use kit::manifest::NAMESPACE;
use kit::{Appliance, ApplianceSetup, EventSink, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HEARTBEATS: &str = "example.com/heartbeats";
const BROKEN: &str = "example.com/broken";
/// Sends an event five times a second; it is told the rest.
const SCRIPT: &str = r#"while true; do curl -s -o /dev/null "$K_SINK" -H "ce-specversion: 1.0" -H "ce-id: $NAME-$POD_NAME" -H "ce-source: /$NAMESPACE/$LABEL" -H "ce-type: dev.example.beat" -H "content-type: application/json" -d "$K_CE_OVERRIDES"; sleep 0.2; done"#;

fn start() -> Option<Appliance> {
    if std::process::Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: curl is not installed");
        return None;
    }
    let setup = ApplianceSetup::new(BIN)
        .flag("image", &format!("{HEARTBEATS}=sh -c '{SCRIPT}'"))
        .flag("image", &format!("{BROKEN}=sh -c 'echo no heart; exit 7'"));
    Some(setup.start())
}

fn source(name: &str, container: &Value, sink: &str) -> Value {
    json!({
        "apiVersion": "sources.knative.dev/v1", "kind": "ContainerSource",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "template": { "metadata": { "labels": { "app": "heart" } }, "spec": { "containers": [container] } },
            "ceOverrides": { "extensions": { "team": "a" } },
            "sink": { "uri": sink },
        },
    })
}

fn pods(api: KitApi, name: &str) -> usize {
    api.list_selected("Pod", NAMESPACE, &format!("serving.knative.dev/service={name}-containersource")).len()
}

/// SRC-17, SRC-18, SRC-19, SRC-20, SRC-32: the container gets the sink and the overrides; a changed sink reaches it; it ends
/// with its source.
#[test]
fn container_source_sends_where_it_is_told() {
    let Some(appliance) = start() else { return };
    let (api, first, second) = (appliance.api(), EventSink::start(), EventSink::start());
    let label = json!({ "fieldRef": { "fieldPath": "metadata.labels['app']" } });
    let container =
        json!({ "image": HEARTBEATS, "name": "heartbeats", "env": [{ "name": "LABEL", "valueFrom": label }] });
    api.create(&source("beats", &container, &first.url()));
    let ready = api.wait_for("ContainerSource", NAMESPACE, "beats", TIMEOUT, is_ready);
    for kind in ["SinkBindingReady", "ReceiveAdapterReady"] {
        assert_eq!(condition(&ready, kind).unwrap()["status"], "True", "{ready:#}");
    }
    assert_eq!(ready["status"]["sinkUri"], first.url());
    let event = first.wait_for(1, TIMEOUT).remove(0);
    assert_eq!(event.id(), "beats-beats-containersource");
    assert_eq!(event.attribute("source").as_deref(), Some("/default/heart"));
    let told: Value = serde_json::from_slice(&event.data()).unwrap();
    assert_eq!(told, json!({ "extensions": { "team": "a" } }));

    api.patch("ContainerSource", NAMESPACE, "beats", &json!({ "spec": { "sink": { "uri": second.url() } } }));
    second.wait_for(1, TIMEOUT);
    api.delete("ContainerSource", NAMESPACE, "beats");
    wait::until(TIMEOUT, "the end of the container", || (pods(api, "beats") == 0).then_some(()));
}

/// SRC-11: a program that ends, and a template that cannot run here, are not Ready and say why.
#[test]
fn container_source_that_cannot_run_says_why() {
    let Some(appliance) = start() else { return };
    let (api, sink) = (appliance.api(), EventSink::start());
    api.create(&source("broken", &json!({ "image": BROKEN }), &sink.url()));
    let fails =
        |source: &Value| condition(source, "ReceiveAdapterReady").is_some_and(|adapter| adapter["status"] == "False");
    let found = api.wait_for("ContainerSource", NAMESPACE, "broken", TIMEOUT, fails);
    let message = condition(&found, "ReceiveAdapterReady").unwrap()["message"].to_string();
    assert!(message.contains("no heart"), "{found:#}");
    api.create(&source("shaped", &json!({ "image": HEARTBEATS, "stdin": true }), &sink.url()));
    let found = api.wait_for("ContainerSource", NAMESPACE, "shaped", TIMEOUT, fails);
    let adapter = condition(&found, "ReceiveAdapterReady").unwrap();
    assert_eq!(adapter["reason"], "TemplateRefused", "{found:#}");
    assert!(adapter["message"].to_string().contains("stdin"), "{found:#}");
    let nowhere = json!({ "spec": { "sink": { "uri": null, "ref": { "apiVersion": "v1", "kind": "Service", "name": "gone" } } } });
    api.patch("ContainerSource", NAMESPACE, "shaped", &nowhere);
    let lost = |source: &Value| condition(source, "SinkBindingReady").is_some_and(|sink| sink["status"] == "False");
    let found = api.wait_for("ContainerSource", NAMESPACE, "shaped", TIMEOUT, lost);
    assert!(found["status"].get("sinkUri").is_none(), "{found:#}");
}
