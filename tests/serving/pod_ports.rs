//! Ports of Pods: each container port is the Pod's own, and probes ask the port that they name.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use kit::manifest::NAMESPACE;
use kit::{ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const BUSYBOX: &str = "/bin/busybox";
const HELLO: &str = "test/hello";
const SHELL: &str = "test/shell";

/// Two Pods with the same two ports. Their second port is at another container, which a probe asks by its name.
fn deployment() -> Value {
    let script = format!("{BUSYBOX} hostname >/www/name && exec {BUSYBOX} httpd -f -p 9000 -h /www");
    let containers = json!([
        { "name": "web", "image": HELLO, "ports": [{ "containerPort": 8080 }],
            "livenessProbe": { "httpGet": { "path": "/name", "port": 9000 }, "initialDelaySeconds": 1, "periodSeconds": 1 } },
        { "name": "admin", "image": SHELL, "args": ["-c", script], "ports": [{ "name": "admin", "containerPort": 9000 }],
            "readinessProbe": { "httpGet": { "path": "/name", "port": "admin" } },
            "volumeMounts": [{ "name": "www", "mountPath": "/www" }] },
    ]);
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "two", "namespace": NAMESPACE },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "two" } },
            "template": { "metadata": { "labels": { "app": "two" } }, "spec": {
                "terminationGracePeriodSeconds": 2, "containers": containers,
                "volumes": [{ "name": "www", "emptyDir": {} }] } } } })
}

/// The addresses of a Service's endpoints.
fn endpoints(slices: &[Value]) -> BTreeSet<SocketAddr> {
    let of_one = |slice: &Value| {
        let port = slice["ports"][0]["port"].as_u64()?;
        let ready = slice["endpoints"].as_array()?.iter().filter(|one| one["conditions"]["ready"] == true);
        let addresses = ready.filter_map(|one| one["addresses"][0].as_str());
        Some(addresses.map(|address| format!("{address}:{port}").parse().unwrap()).collect::<Vec<_>>())
    };
    slices.iter().filter_map(of_one).flatten().collect()
}

#[test]
fn each_container_port_is_the_pods_own() {
    if !rustix::process::geteuid().is_root() || !Path::new(BUSYBOX).exists() {
        return eprintln!("skipped: volumes take root, and this test {BUSYBOX} (Debian's busybox-static)");
    }
    let setup = ApplianceSetup::new(BIN).hello_image(HELLO).flag("image", &format!("{SHELL}=/bin/sh"));
    let appliance = setup.start();
    let api = appliance.api();
    api.create(&deployment());
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "two" },
        "spec": { "selector": { "app": "two" }, "ports": [{ "port": 80, "targetPort": "admin" }] } });
    let made = api.send(HttpCall::post(&format!("/api/v1/namespaces/{NAMESPACE}/services")).json(&service));
    assert_eq!(made.status, 201, "{made}");
    // The second Pod could not listen if a port were the host's, and neither would be ready.
    let addresses = wait::until(TIMEOUT, "two ready endpoints, or no ports to give", || {
        let slices = api.list_selected("EndpointSlice", NAMESPACE, "kubernetes.io/service-name=two");
        let found = endpoints(&slices);
        (found.len() == 2 || appliance.stderr().contains("a free PORT")).then_some(found)
    });
    if appliance.stderr().contains("a free PORT") {
        return eprintln!("skipped: ports cannot be given here");
    }
    let name = |address: &SocketAddr| HttpCall::get("/name").send(*address).text().trim().to_owned();
    let names: BTreeSet<String> = addresses.iter().map(name).collect();
    let pods = api.list_selected("Pod", NAMESPACE, "app=two");
    let wanted: BTreeSet<String> = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, wanted, "each Pod answers at its own port");
    assert!(pods.iter().all(|pod| pod["status"]["containerStatuses"][0]["restartCount"] == 0), "{pods:#?}");
}
