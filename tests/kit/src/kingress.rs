//! Ingress objects, and core Services that lead to given addresses.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::manifest::NAMESPACE;
use crate::{HttpCall, KitApi};

/// The class of Ingresses that the appliance serves.
pub const CLASS: &str = "sluicegate.ingress.networking.knative.dev";

/// Makes a core Service without a selector, and the Endpoints that it leads to. The port has this name.
pub fn backend(api: KitApi, name: &str, port: &str, addresses: &[SocketAddr]) {
    core_service(
        api,
        &json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": { "ports": [{ "name": port, "port": 80 }] },
        }),
    );
    let subsets: Vec<_> = addresses
        .iter()
        .map(|address| {
            json!({ "addresses": [{ "ip": address.ip() }], "ports": [{ "name": port, "port": address.port() }] })
        })
        .collect();
    api.create(&json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": { "name": name, "namespace": NAMESPACE }, "subsets": subsets,
    }));
}

/// POST of a core Service, which [`KitApi`] takes for a Knative one.
pub fn core_service(api: KitApi, object: &Value) {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/services");
    let response = HttpCall::post(&path).json(object).send(api.address());
    assert_eq!(response.status, 201, "{response}");
}

/// An Ingress of our class with these rules.
pub fn ingress(name: &str, rules: Value) -> Value {
    json!({
        "apiVersion": "networking.internal.knative.dev/v1alpha1", "kind": "Ingress",
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "annotations": { "networking.knative.dev/ingress-class": CLASS },
        },
        "spec": { "rules": rules },
    })
}

/// A public rule.
pub fn rule(host: &str, paths: &[Value]) -> Value {
    json!({ "hosts": [host], "visibility": "ExternalIP", "http": { "paths": paths } })
}

/// All of a path's requests to one backend.
pub fn path(path: &str, backend: &str) -> Value {
    json!({ "path": path, "splits": [split(backend, 100)] })
}

pub fn split(backend: &str, percent: u32) -> Value {
    json!({
        "serviceNamespace": NAMESPACE, "serviceName": backend, "servicePort": 80, "percent": percent,
    })
}
