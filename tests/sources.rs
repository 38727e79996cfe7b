//! PingSources through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::api::is_ready;
use kit::manifest::{NAMESPACE, service, with};
use kit::{Api, Call, PATIENCE, Setup, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/sink";

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
fn said(api: Api, service: &str) -> String {
    let pods = Call::get(&format!(
        "/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=serving.knative.dev/service={service}"
    ));
    let pods = api.send(pods).json();
    let names = pods["items"].as_array().into_iter().flatten().map(|pod| &pod["metadata"]["name"]);
    let log = |name: &Value| {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}/log", name.as_str().unwrap());
        api.send(Call::get(&path)).text()
    };
    names.map(log).collect()
}

/// SRC-11, SRC-38: a Service that only callers inside reach gets the events of a PingSource that refers to it, though there
/// is no listener for callers inside.
#[test]
fn a_ping_source_reaches_a_service_by_its_reference() {
    let appliance = Setup::new(BIN).flag("image", &format!("{IMAGE}={BIN} example sink")).start();
    let api = appliance.api();
    let visibility = "/metadata/labels/networking.knative.dev~1visibility";
    api.create(&with(service("inner", IMAGE, "x"), visibility, json!("cluster-local")));
    api.wait_ready("Service", NAMESPACE, "inner", PATIENCE);
    let sink = json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "inner" });
    api.create(&ping("every-second", &sink));
    api.wait_for("PingSource", NAMESPACE, "every-second", PATIENCE, is_ready);
    wait::until(PATIENCE, "an event in the Service's log", || {
        said(api, "inner").contains("dev.knative.sources.ping").then_some(())
    });
}
