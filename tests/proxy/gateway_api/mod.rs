//! Gateway API through the built binary: the core cases of upstream's conformance suite.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::net::SocketAddr;

use kit::manifest::NAMESPACE;
use kit::{Appliance, ApplianceSetup, HttpCall, HttpResponse, KitApi, TIMEOUT, TestUpstream};
use serde_json::{Value, json};

mod address_pool;
mod attachment;
mod backend_tls;
mod filters;
mod grpc;
mod infrastructure;
mod layer4;
mod listeners;
mod matching;
mod policies;
mod references;
mod run_time_listeners;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const GROUP: &str = "gateway.networking.k8s.io/v1";
const HOST: &str = "app.example.com";

/// An appliance with a Gateway `web` that takes routes of its namespace.
fn with_gateway() -> Appliance {
    let appliance = ApplianceSetup::new(BIN).start();
    let listener = json!({ "name": "http", "port": appliance.http().port(), "protocol": "HTTP" });
    gateway(&appliance, "web", json!([listener]));
    appliance
}

/// Creates a Gateway and waits until its listeners have a status.
fn gateway(appliance: &Appliance, name: &str, listeners: Value) -> Value {
    let api = appliance.api();
    api.create(&json!({
        "apiVersion": GROUP, "kind": "Gateway", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "gatewayClassName": "sluicegate", "listeners": listeners },
    }));
    api.wait_for("Gateway", NAMESPACE, name, TIMEOUT, |gateway| gateway["status"]["listeners"].is_array())
}

/// An HTTPRoute of the Gateway `web` for [`HOST`].
fn route(name: &str, rules: Value) -> Value {
    json!({
        "apiVersion": GROUP, "kind": "HTTPRoute", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "parentRefs": [{ "name": "web" }], "hostnames": [HOST], "rules": rules },
    })
}

/// Creates a route and waits for its status.
fn serve(api: KitApi, route: &Value) -> Value {
    api.create(route);
    let text = |pointer: &str| route.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let (kind, namespace, name) = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
    api.wait_for(&kind, &namespace, &name, TIMEOUT, |route| conditions(route).is_array())
}

/// The conditions of a route's first parent.
fn conditions(route: &Value) -> &Value {
    &route["status"]["parents"][0]["conditions"]
}

/// `True Accepted`: status and reason of a condition.
fn condition(conditions: &Value, kind: &str) -> String {
    let found = conditions.as_array().and_then(|all| all.iter().find(|one| one["type"] == kind));
    let found = found.unwrap_or_else(|| panic!("no {kind} in {conditions:#}"));
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    assert!(found["observedGeneration"].is_number(), "{found}");
    format!("{} {}", text("status"), text("reason"))
}

/// A core Service with this upstream behind it.
fn backend(api: KitApi, namespace: &str, name: &str, address: SocketAddr, protocol: Option<&str>) {
    let mut port = json!({ "name": "http", "port": 80 });
    if let Some(protocol) = protocol {
        port["appProtocol"] = protocol.into();
    }
    let metadata = json!({ "name": name, "namespace": namespace });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": [port] } });
    let path = format!("/api/v1/namespaces/{namespace}/services");
    let response = HttpCall::post(&path).json(&service).send(api.address());
    assert_eq!(response.status, 201, "{response}");
    let endpoint = json!({ "addresses": [address.ip()], "conditions": { "ready": true } });
    api.create(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [endpoint],
        "metadata": { "name": name, "namespace": namespace, "labels": { "kubernetes.io/service-name": name } },
        "ports": [{ "name": "http", "port": address.port() }],
    }));
}

/// Upstreams behind core Services of their names.
fn backends<const COUNT: usize>(appliance: &Appliance, names: [&str; COUNT]) -> [TestUpstream; COUNT] {
    names.map(|name| {
        let upstream = TestUpstream::start(name);
        backend(appliance.api(), NAMESPACE, name, upstream.address(), None);
        upstream
    })
}

/// A reference to such a Service.
fn to(name: &str) -> Value {
    json!({ "name": name, "port": 80 })
}

fn namespace(api: KitApi, name: &str, labels: Value) {
    let metadata = json!({ "name": name, "labels": labels });
    api.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
}

fn get(appliance: &Appliance, host: &str, target: &str) -> HttpResponse {
    HttpCall::get(target).host(host).send(appliance.http())
}

/// The name of the upstream that answers, or the status of another response.
fn answers(appliance: &Appliance, call: HttpCall) -> String {
    let response = call.send(appliance.http());
    match response.header("x-upstream") {
        Some(name) => name.to_owned(),
        None => response.status.to_string(),
    }
}
