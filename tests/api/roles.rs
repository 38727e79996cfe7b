//! `--roles`: several appliances share the objects of one API, each with parts of its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::manifest::{NAMESPACE, broker};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestEvent, TestUpstream, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
const HOST: &str = "app.example.com";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/knative-serving/leases";

/// An appliance with these roles that follows the API of `home`.
fn follower(home: &Appliance, roles: &str) -> Appliance {
    let address = home.api().address().to_string();
    let printed = std::process::Command::new(BIN).args(["kubeconfig", "--api", &address]).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let setup = ApplianceSetup::new(BIN).flag("workers", "1");
    let kubeconfig = setup.write_file("kubeconfig", &String::from_utf8(printed.stdout).unwrap());
    setup.flag("kubeconfig", &kubeconfig.display().to_string()).flag("roles", roles).start()
}

fn holder(home: &Appliance, lease: &str) -> String {
    let response = HttpCall::get(&format!("{LEASES}/{lease}")).send(home.api().address());
    let lease: Value = serde_json::from_slice(&response.body).unwrap();
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// A core Service with this upstream behind it.
fn backend(home: &Appliance, upstream: &TestUpstream) {
    let metadata = json!({ "name": "web", "namespace": NAMESPACE });
    let ports = json!([{ "name": "http", "port": 80 }]);
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": { "ports": ports } });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/services");
    assert_eq!(HttpCall::post(&path).json(&service).send(home.api().address()).status, 201);
    home.api().create(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "web", "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": "web" } },
        "endpoints": [{ "addresses": [upstream.address().ip()], "conditions": { "ready": true } }],
        "ports": [{ "name": "http", "port": upstream.address().port() }],
    }));
}

fn gateway_and_route(home: &Appliance, port: u16) {
    let spec = json!({
        "gatewayClassName": "sluicegate",
        "listeners": [{ "name": "http", "port": port, "protocol": "HTTP" }],
    });
    let metadata = json!({ "name": "web", "namespace": NAMESPACE });
    home.api().create(&json!({ "apiVersion": GATEWAY_API, "kind": "Gateway", "metadata": metadata, "spec": spec }));
    let rules = json!([{ "backendRefs": [{ "name": "web", "port": 80 }] }]);
    let spec = json!({ "parentRefs": [{ "name": "web" }], "hostnames": [HOST], "rules": rules });
    home.api().create(&json!({ "apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": metadata, "spec": spec }));
}

/// A cluster adopts the appliance one part at a time: here the API's own appliance has no Gateway API, and a follower nothing
/// else. Each serves, and writes the statuses of, its own kinds alone.
#[test]
fn follower_takes_over_its_roles_alone() {
    let home = ApplianceSetup::new(BIN).flag("workers", "1").flag("roles", "serving,broker").start();
    assert_eq!(holder(&home, "sluicegate-broker"), "embedded");
    let follower = follower(&home, "gateway-api,ingress");
    wait::until(TIMEOUT, "the Leases of both roles", || {
        let held = ["gateway-api", "ingress"].map(|role| holder(&home, &format!("sluicegate-{role}")));
        (!held[0].is_empty() && held[0] == held[1]).then_some(())
    });
    assert_eq!(holder(&home, "sluicegate-broker"), "embedded");

    let upstream = TestUpstream::start("web");
    backend(&home, &upstream);
    gateway_and_route(&home, follower.http().port());
    home.api().wait_for("HTTPRoute", NAMESPACE, "web", TIMEOUT, |route| {
        let conditions = route["status"]["parents"][0]["conditions"].as_array();
        let accepted = |one: &Value| one["type"] == "Accepted" && one["status"] == "True";
        conditions.is_some_and(|all| all.iter().any(accepted))
    });
    let call = HttpCall::get("/").host(HOST);
    wait::until(TIMEOUT, "the follower to serve the route", || {
        (call.send(follower.http()).header("x-upstream") == Some("web")).then_some(())
    });
    assert_eq!(call.send(home.http()).status, 404);

    home.api().create(&broker("orders"));
    home.api().wait_ready("Broker", NAMESPACE, "orders", TIMEOUT);
    let event = |to: &Appliance| TestEvent::new("1").binary(&format!("/brokers/{NAMESPACE}/orders")).send(to.events());
    assert_eq!(event(&home).status, 202);
    assert_eq!(event(&follower).status, 404);
}

/// Roles that a restart leaves are free for others.
#[test]
fn role_that_is_given_up_frees_its_lease() {
    let mut home = ApplianceSetup::new(BIN).flag("workers", "1").start();
    assert_eq!(holder(&home, "sluicegate-channel"), "embedded");
    home.terminate();
    let home = home.setup().clone().flag("roles", "serving").start();
    assert_eq!(holder(&home, "sluicegate-channel"), "");
    assert_eq!(holder(&home, "sluicegate-serving"), "embedded");
}

#[test]
fn role_that_does_not_exist_is_refused() {
    let refused = |setup: ApplianceSetup| setup.refused().stderr;
    let why = refused(ApplianceSetup::new(BIN).flag("roles", "ingres"));
    assert!(why.contains("\"ingres\"") && why.contains("serving, ingress"), "{why}");
    let setup = ApplianceSetup::new(BIN);
    let kubeconfig = setup.write_file("kubeconfig", "").display().to_string();
    let why = refused(setup.flag("kubeconfig", &kubeconfig).flag("roles", "ingress,sources"));
    assert!(why.contains("sources") && why.contains("--kubeconfig"), "{why}");
}
