//! ContainerSources through the built binary: a program of the user sends where it is told to.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, broker, trigger};
use kit::{Appliance, ApplianceSetup, EventSink, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

use crate::oidc::{asking, features, policy};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HEARTBEATS: &str = "example.com/heartbeats";
const AUTHENTICATED: &str = "example.com/authenticated";
const BROKEN: &str = "example.com/broken";
/// Sends an event five times a second; it is told the rest.
const SCRIPT: &str = r#"while true; do curl -s -o /dev/null "$K_SINK" -H "ce-specversion: 1.0" -H "ce-id: $NAME-$POD_NAME" -H "ce-source: /$NAMESPACE/$LABEL" -H "ce-type: dev.example.beat" -H "content-type: application/json" -d "$K_CE_OVERRIDES"; sleep 0.2; done"#;

fn start() -> Option<Appliance> {
    if std::process::Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: curl is not installed");
        return None;
    }
    let authenticated = SCRIPT.replace("curl", r#"curl -H "Authorization: Bearer $(cat /oidc/token)""#);
    let setup = ApplianceSetup::new(BIN)
        .flag("image", &format!("{AUTHENTICATED}=sh -c '{authenticated}'"))
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

/// SRC-03, SRC-17, SRC-18, SRC-19, SRC-20, SRC-32: each source has a program of its own. The container gets the sink and the overrides; a changed sink reaches it; it ends
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

/// X-FEA-07: the containers find a token of the source's account for their sink, and an EventPolicy names the source.
#[test]
fn container_source_has_a_token_for_its_sink() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root mounts the token");
    }
    let Some(appliance) = start() else { return };
    let (api, sink) = (appliance.api(), EventSink::start());
    features(&appliance, &json!({ "authentication-oidc": "enabled", "default-authorization-mode": "deny-all" }));
    api.create(&broker("main"));
    asking(api, "Broker", "main");
    api.create(&trigger("t", "main", &sink.url()));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    let mut beats = source("beats", &json!({ "image": AUTHENTICATED }), "");
    let main = json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" });
    beats["spec"]["sink"] = json!({ "ref": main });
    api.create(&beats);
    let ready = api.wait_for("ContainerSource", NAMESPACE, "beats", TIMEOUT, is_ready);
    assert_eq!(ready["status"]["auth"]["serviceAccountName"], "beats-oidc-sources.knative.dev-containersource");
    assert_eq!(ready["status"]["sinkAudience"], "eventing.knative.dev/broker/default/main");
    assert!(sink.received().is_empty(), "no policy allows the sender yet");

    let from = json!({ "apiVersion": "sources.knative.dev/v1", "kind": "ContainerSource", "name": "beats" });
    api.create(&policy("senders", json!({ "from": [{ "ref": from }] })));
    assert_eq!(sink.wait_for(1, TIMEOUT)[0].attribute("type").as_deref(), Some("dev.example.beat"));
    features(&appliance, &json!({ "authentication-oidc": "disabled" }));
    api.wait_for("ContainerSource", NAMESPACE, "beats", TIMEOUT, |source| source["status"]["auth"].is_null());
}

/// SRC-16, X-FEA-07: the subject of a SinkBinding finds a token of the binding's account in a file, and an EventPolicy names the
/// binding. The token is in no variable, and goes with the binding.
#[test]
fn subject_of_a_binding_has_a_token_for_its_sink() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root mounts the token");
    }
    let Some(appliance) = start() else { return };
    let (api, sink) = (appliance.api(), EventSink::start());
    features(&appliance, &json!({ "authentication-oidc": "enabled", "default-authorization-mode": "deny-all" }));
    api.create(&broker("main"));
    asking(api, "Broker", "main");
    api.create(&trigger("t", "main", &sink.url()));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    let variable = |name: &str| json!({ "name": name, "value": "beats" });
    let env: Vec<Value> = ["NAME", "NAMESPACE", "POD_NAME", "LABEL"].map(variable).into();
    api.create(&json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Service",
        "metadata": { "name": "beats", "namespace": NAMESPACE },
        "spec": { "template": {
            "metadata": { "annotations": {
                "runtime.sluicegate.dev/readiness-probe": "none", "autoscaling.knative.dev/min-scale": "1",
            } },
            "spec": { "containers": [{ "image": AUTHENTICATED, "env": env }] },
        } },
    }));
    let main = json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" });
    let subject = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "beats" });
    api.create(&json!({
        "apiVersion": "sources.knative.dev/v1", "kind": "SinkBinding",
        "metadata": { "name": "bound", "namespace": NAMESPACE },
        "spec": { "subject": subject, "sink": { "ref": main } },
    }));
    let ready = api.wait_for("SinkBinding", NAMESPACE, "bound", TIMEOUT, is_ready);
    assert_eq!(ready["status"]["auth"]["serviceAccountName"], "bound-oidc-sources.knative.dev-sinkbinding");
    assert_eq!(condition(&ready, "OIDCTokenSecretCreated").unwrap()["status"], "True", "{ready:#}");
    let from = json!({ "apiVersion": "sources.knative.dev/v1", "kind": "SinkBinding", "name": "bound" });
    api.create(&policy("senders", json!({ "from": [{ "ref": from }] })));
    assert_eq!(sink.wait_for(1, TIMEOUT)[0].attribute("type").as_deref(), Some("dev.example.beat"));
    let bound = api.get("Service", NAMESPACE, "beats").unwrap();
    assert!(!bound["spec"]["template"].to_string().contains("eyJ"), "no token in the template: {bound:#}");
    api.delete("SinkBinding", NAMESPACE, "bound");
    api.wait_for("Service", NAMESPACE, "beats", TIMEOUT, |service| {
        let template = service["spec"]["template"].to_string();
        !template.contains("oidc") && !template.contains("K_SINK")
    });
    api.wait_gone("Secret", NAMESPACE, "bound-oidc-token", TIMEOUT);
}
