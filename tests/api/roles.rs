//! `--roles`: several appliances share the objects of one API, each with parts of its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::time::Duration;

use kit::api::is_ready;
use kit::kingress::{backend, ingress, path, rule};
use kit::manifest::{NAMESPACE, broker};
use kit::proxy::TcpProxy;
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestEvent, TestUpstream, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
const HOST: &str = "app.example.com";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/knative-serving/leases";

/// An appliance with these roles that follows the API at `address`.
fn follower(address: SocketAddr, roles: &str) -> Appliance {
    let address = address.to_string();
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
    let follower = follower(home.api().address(), "gateway-api,ingress");
    wait::until(TIMEOUT, "the Leases of both roles", || {
        let held = ["gateway-api", "ingress"].map(|role| holder(&home, &format!("sluicegate-{role}")));
        (!held[0].is_empty() && held[0] == held[1]).then_some(())
    });
    assert_eq!(holder(&home, "sluicegate-broker"), "embedded");

    let upstream = TestUpstream::start("web");
    backend(home.api(), "web", "http", &[upstream.address()]);
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

/// An API whose own appliance leaves Ingresses to two followers, the second of which reaches it through a network.
fn two_replicas() -> (Appliance, TestUpstream, [Appliance; 2], TcpProxy) {
    let home = ApplianceSetup::new(BIN).flag("workers", "1").flag("roles", "serving").start();
    let upstream = TestUpstream::start("web");
    backend(home.api(), "web", "http", &[upstream.address()]);
    let first = follower(home.api().address(), "ingress");
    wait::until(TIMEOUT, "the Lease", || (!holder(&home, "sluicegate-ingress").is_empty()).then_some(()));
    let network = TcpProxy::start(home.api().address());
    let second = follower(network.address(), "ingress");
    wait::until(TIMEOUT, "the reports of both", || (reports(&home) == 2).then_some(()));
    (home, upstream, [first, second], network)
}

/// Replicas that report what they serve.
fn reports(home: &Appliance) -> usize {
    let leases = HttpCall::get(&format!("{LEASES}?labelSelector=sluicegate.dev/replica")).send(home.api().address());
    let leases: Value = serde_json::from_slice(&leases.body).unwrap();
    leases["items"].as_array().unwrap().len()
}

fn ingress_of(host: &str) -> Value {
    ingress(&host.replace('.', "-"), json!([rule(host, &[path("/", "web")])]))
}

/// Clients may be sent to any replica as soon as an object is Ready.
#[test]
fn ready_object_is_served_by_every_replica() {
    let (home, _upstream, replicas, _network) = two_replicas();
    for number in 0..30 {
        let host = format!("host{number}.example.com");
        home.api().create(&ingress_of(&host));
        home.api().wait_ready("Ingress", NAMESPACE, &host.replace('.', "-"), TIMEOUT);
        for replica in &replicas {
            assert_eq!(HttpCall::get("/").host(&host).send(replica.http()).status, 200, "{host}");
        }
    }
}

#[test]
fn object_is_ready_when_each_replica_serves_it_or_is_gone() {
    let (home, _upstream, [_first, mut second], network) = two_replicas();
    network.stall();
    home.api().create(&ingress_of("late.example.com"));
    wait::nothing(Duration::from_secs(3), "Ready before the second replica has the Ingress", || {
        home.api().get("Ingress", NAMESPACE, "late-example-com").filter(is_ready)
    });
    // Its watches begin again.
    home.api().wait_ready("Ingress", NAMESPACE, "late-example-com", TIMEOUT);
    // It renews its Lease no more, and counts as gone.
    second.kill();
    home.api().create(&ingress_of("next.example.com"));
    home.api().wait_ready("Ingress", NAMESPACE, "next-example-com", TIMEOUT);
}

/// A replica that ends takes its report along, so that nothing waits for it.
#[test]
fn replica_that_is_stopped_removes_its_report() {
    let (home, _upstream, [_first, mut second], _network) = two_replicas();
    second.terminate();
    assert_eq!(reports(&home), 1);
}
