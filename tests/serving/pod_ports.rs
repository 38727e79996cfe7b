//! Ports of Pods: each container port is the Pod's own, probes ask the port that they name, and names of core Services lead to
//! each of their ports.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const BUSYBOX: &str = "/bin/busybox";
const HELLO: &str = "test/hello";
const SHELL: &str = "test/shell";
const CALLER: &str = "test/caller";

/// Two Pods with the same two ports. Their second port is at another container, which a probe asks by its name.
fn deployment() -> Value {
    let script = format!("{BUSYBOX} hostname >/mnt/name && exec {BUSYBOX} httpd -f -p 9000 -h /mnt");
    let containers = json!([
        { "name": "web", "image": HELLO, "ports": [{ "containerPort": 8080 }],
            "livenessProbe": { "httpGet": { "path": "/name", "port": 9000 }, "initialDelaySeconds": 1, "periodSeconds": 1 } },
        { "name": "admin", "image": SHELL, "args": ["-c", script], "ports": [{ "name": "admin", "containerPort": 9000 }],
            "readinessProbe": { "httpGet": { "path": "/name", "port": "admin" } },
            "volumeMounts": [{ "name": "www", "mountPath": "/mnt" }] },
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

/// `None`: volumes or ports cannot be given here, and the log says why.
fn start() -> Option<Appliance> {
    if !rustix::process::geteuid().is_root() || !Path::new(BUSYBOX).exists() {
        eprintln!("skipped: volumes take root, and this test {BUSYBOX} (Debian's busybox-static)");
        return None;
    }
    let setup = ApplianceSetup::new(BIN).hello_image(HELLO).flag("image", &format!("{SHELL}=/bin/sh"));
    let appliance = setup.flag("image", &format!("{CALLER}={BIN} example caller")).start();
    appliance.api().create(&deployment());
    Some(appliance)
}

/// A core Service of the Pods, with these ports.
fn core_service(appliance: &Appliance, ports: &Value) {
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "two" },
        "spec": { "selector": { "app": "two" }, "ports": ports } });
    let made = appliance.api().send(HttpCall::post(&format!("/api/v1/namespaces/{NAMESPACE}/services")).json(&service));
    assert_eq!(made.status, 201, "{made}");
}

/// Of both Pods. The second could not listen if a port were the host's. `None`: ports cannot be given here.
fn ready_addresses(appliance: &Appliance) -> Option<BTreeSet<SocketAddr>> {
    let lacks_ports = || appliance.stderr().contains("a free PORT");
    let addresses = wait::until(TIMEOUT, "two ready endpoints, or no ports to give", || {
        let slices = appliance.api().list_selected("EndpointSlice", NAMESPACE, "kubernetes.io/service-name=two");
        let found = endpoints(&slices);
        (found.len() == 2 || lacks_ports()).then_some(found)
    });
    if lacks_ports() {
        eprintln!("skipped: ports cannot be given here");
        return None;
    }
    Some(addresses)
}

#[test]
fn each_container_port_is_the_pods_own() {
    let Some(appliance) = start() else { return };
    core_service(&appliance, &json!([{ "port": 80, "targetPort": "admin" }]));
    let Some(addresses) = ready_addresses(&appliance) else { return };
    let name = |address: &SocketAddr| HttpCall::get("/name").send(*address).text().trim().to_owned();
    let names: BTreeSet<String> = addresses.iter().map(name).collect();
    let pods = appliance.api().list_selected("Pod", NAMESPACE, "app=two");
    let wanted: BTreeSet<String> =
        pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, wanted, "each Pod answers at its own port");
    assert!(pods.iter().all(|pod| pod["status"]["containerStatuses"][0]["restartCount"] == 0), "{pods:#?}");
}

/// Instances connect to a Service by its name at any of its ports, and not at others.
#[test]
fn name_of_a_service_leads_to_each_of_its_ports() {
    let Some(appliance) = start() else { return };
    core_service(&appliance, &json!([{ "port": 7777, "targetPort": "admin" }]));
    if ready_addresses(&appliance).is_none() {
        return;
    }
    let urls = ["two:7777", "two.default.svc.cluster.local:7777", "two:7778"].map(|host| format!("http://{host}/name"));
    let env = json!([{ "name": "CALLS", "value": urls.join(" ") }]);
    let containers = json!([{ "image": CALLER, "env": env }]);
    appliance.api().create(&with(service("caller", CALLER, ""), "/spec/template/spec/containers", containers));
    appliance.api().wait_ready("Service", NAMESPACE, "caller", TIMEOUT);
    if appliance.stderr().contains("do not reach Services by name") {
        return eprintln!("skipped: instances have no names here");
    }
    let call = HttpCall::get("/").host(&format!("caller.{NAMESPACE}.localhost"));
    let said = call.send(appliance.http()).text();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("two-") && lines[1].contains("two-"), "{said}");
    assert!(!lines[2].contains("two-"), "{said}");
    // The Service goes, and its ports with it.
    appliance.api().send(HttpCall::new("DELETE", &format!("/api/v1/namespaces/{NAMESPACE}/services/two")));
    wait::until(TIMEOUT, "the name to be gone", || {
        (!call.send(appliance.http()).text().contains("two-")).then_some(())
    });
}
