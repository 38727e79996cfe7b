//! Addresses that users must not direct this appliance to: its own listeners, link-local and metadata addresses.
//! Through the built binary, on each path by which it connects to them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;

use kit::api::condition;
use kit::kingress::{backend, core_service, ingress, path, rule};
use kit::manifest::{NAMESPACE, broker, trigger, with};
use kit::scene::{BROKER, delivery, post, subscribe, with_broker};
use kit::server::closed_address;
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, SinkResponse, TIMEOUT, TestEvent, TestUpstream, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

fn setup() -> ApplianceSetup {
    ApplianceSetup::new(BIN).flag("workers", "1")
}

/// Connects that the policy refused for this reason.
fn refused(appliance: &Appliance, reason: &str) -> u64 {
    appliance.metric("sluicegate_targets_refused_total", &format!("reason=\"{reason}\""))
}

fn ingress_to(appliance: &Appliance, name: &str) -> Value {
    let object = ingress(name, json!([rule(HOST, &[path("", name)])]));
    appliance.api().create(&object);
    appliance.api().wait_for("Ingress", NAMESPACE, name, TIMEOUT, |object| {
        condition(object, "NetworkConfigured").is_some_and(|found| found["status"] != "Unknown")
    })
}

fn get(appliance: &Appliance, path: &str) -> kit::HttpResponse {
    HttpCall::get(path).host(HOST).send(appliance.http())
}

/// A status tells at once what is written in the URL; nothing is sent.
#[test]
fn subscriber_with_a_refused_address_is_not_ready() {
    let appliance = with_broker(&setup());
    let api = appliance.api();
    let ports = appliance.ports();
    let (admin, events) = (ports.admin.port(), ports.events.port());
    let uris = [
        (format!("http://{}/debug/events/replay", ports.admin), "the admin listener"),
        (format!("http://localhost:{admin}/debug/events/replay"), "the admin listener"),
        (format!("http://127.9.8.7:{admin}/"), "the admin listener"),
        (format!("http://[::ffff:127.0.0.1]:{admin}/"), "the admin listener"),
        (format!("http://{}/api/v1/namespaces", ports.api), "the API listener"),
        (format!("http://127.0.0.1:{events}/"), "the events listener"),
        (format!("http://{}/", ports.http), "an ingress listener"),
        (format!("http://0.0.0.0:{admin}/"), "an unspecified address"),
        ("http://169.254.169.254/latest/meta-data".to_owned(), "a link-local address"),
        ("http://[fe80::1]:8080/".to_owned(), "a link-local address"),
        ("http://[::ffff:169.254.169.254]/".to_owned(), "a link-local address"),
        ("http://[fd00:ec2::254]/".to_owned(), "metadata service"),
        ("http://224.0.0.1/".to_owned(), "a multicast address"),
        ("http://255.255.255.255/".to_owned(), "the broadcast address"),
    ];
    for (n, (uri, expected)) in uris.iter().enumerate() {
        let name = format!("t{n}");
        api.create(&trigger(&name, "main", uri));
        let object = api.wait_for("Trigger", NAMESPACE, &name, TIMEOUT, |object| {
            condition(object, "SubscriberResolved").is_some_and(|found| found["status"] == "False")
        });
        let message = condition(&object, "SubscriberResolved").unwrap()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(expected) && message.contains("--allow-target"), "{uri}: {message}");
    }
    assert_eq!(post_all(&appliance), 0, "nothing was connected to");
}

/// Posts an event, waits for it to be done with, and says how many connects were refused.
fn post_all(appliance: &Appliance) -> u64 {
    let sink = EventSink::start();
    subscribe(appliance.api(), "witness", &sink.url(), &[]);
    post(appliance, &TestEvent::new("1"));
    sink.wait_for(1, TIMEOUT);
    refused(appliance, "own_listener") + refused(appliance, "link_local")
}

/// A name says nothing until it is resolved: the address is checked where the connection is opened.
#[test]
fn name_that_resolves_to_an_own_listener_is_not_connected_to() {
    let appliance = with_broker(&setup());
    let dead = EventSink::answering(|_| SinkResponse::status(202));
    let (admin, api) = (appliance.admin(), appliance.api());
    // For the system's resolver these are names of 127.0.0.1; for us they are no addresses.
    for (n, host) in ["127.1", "2130706433", "0x7f000001"].iter().enumerate() {
        let uri = format!("http://{host}:{}/debug/events/replay", admin.port());
        subscribe(api, &format!("t{n}"), &uri, &[delivery(1, &dead)]);
    }
    post(&appliance, &TestEvent::new("1"));
    dead.wait_for(3, TIMEOUT);
    assert!(refused(&appliance, "own_listener") >= 6, "three Triggers, two attempts each");
    appliance.wait_says("the admin listener of this appliance");
}

#[test]
fn core_service_in_front_of_an_own_listener_gets_no_event() {
    let appliance = with_broker(&setup());
    let (api, dead) = (appliance.api(), EventSink::answering(|_| SinkResponse::status(202)));
    backend(api, "endpoints", "http", &[appliance.admin()]);
    core_service(
        api,
        &json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "alias", "namespace": NAMESPACE },
            "spec": { "type": "ExternalName", "externalName": "localhost",
                "ports": [{ "name": "http", "port": appliance.admin().port() }] } }),
    );
    let port = appliance.admin().port();
    subscribe(api, "a", "http://endpoints.default.svc.cluster.local/", &[delivery(0, &dead)]);
    subscribe(api, "b", &format!("http://alias.default.svc.cluster.local:{port}/"), &[delivery(0, &dead)]);
    post(&appliance, &TestEvent::new("1"));
    dead.wait_for(2, TIMEOUT);
    assert_eq!(refused(&appliance, "own_listener"), 2);
}

/// Own Brokers stay sinks, by whatever address of theirs.
#[test]
fn own_broker_by_its_url_stays_a_sink() {
    let appliance = with_broker(&setup());
    let (api, sink) = (appliance.api(), EventSink::start());
    api.create(&broker("other"));
    api.wait_ready("Broker", NAMESPACE, "other", TIMEOUT);
    api.create(&trigger("end", "other", &sink.url()));
    api.wait_ready("Trigger", NAMESPACE, "end", TIMEOUT);
    let port = appliance.events().port();
    subscribe(api, "literal", &format!("http://127.0.0.1:{port}/brokers/default/other"), &[]);
    subscribe(api, "name", &format!("http://localhost:{port}/brokers/default/other"), &[]);
    assert_eq!(TestEvent::new("1").binary(BROKER).send(appliance.events()).status, 202);
    sink.wait_for(2, TIMEOUT);
    assert_eq!(refused(&appliance, "own_listener"), 0);
}

#[test]
fn ingress_in_front_of_an_own_listener_is_not_configured() {
    let appliance = setup().start();
    let api = appliance.api();
    let ports = appliance.ports();
    for (name, address) in [("admin", ports.admin), ("api", ports.api), ("events", ports.events), ("http", ports.http)]
    {
        backend(api, name, "http", &[address]);
        let object = ingress_to(&appliance, name);
        let found = condition(&object, "NetworkConfigured").unwrap();
        assert_eq!((&found["status"], &found["reason"]), (&json!("False"), &json!("TargetRefused")), "{name}");
        assert!(found["message"].as_str().unwrap().contains("--allow-target"), "{found}");
        assert_ne!(get(&appliance, "/metrics").status, 200, "{name}");
        api.delete("Ingress", NAMESPACE, name);
        api.wait_gone("Ingress", NAMESPACE, name, TIMEOUT);
    }
    for (name, external, port) in [("meta", "169.254.169.254", 80), ("named", "127.1", ports.admin.port())] {
        core_service(
            api,
            &json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": NAMESPACE },
                "spec": { "type": "ExternalName", "externalName": external,
                    "ports": [{ "port": 80, "targetPort": port }] } }),
        );
        let object = ingress_to(&appliance, name);
        assert_eq!(condition(&object, "NetworkConfigured").unwrap()["reason"], "TargetRefused", "{external}");
        api.delete("Ingress", NAMESPACE, name);
        api.wait_gone("Ingress", NAMESPACE, name, TIMEOUT);
    }
}

/// What was admitted once is asked again when its endpoints change.
#[test]
fn endpoints_that_move_to_an_own_listener_are_left() {
    let appliance = setup().start();
    let (api, upstream) = (appliance.api(), TestUpstream::start("good"));
    backend(api, "app", "http", &[upstream.address()]);
    api.create(&ingress("app", json!([rule(HOST, &[path("", "app")])])));
    api.wait_ready("Ingress", NAMESPACE, "app", TIMEOUT);
    assert_eq!(get(&appliance, "/").status, 200);
    let to = |all: &[SocketAddr]| {
        let subset = |one: &SocketAddr| json!({ "addresses": [{ "ip": one.ip() }], "ports": [{ "name": "http", "port": one.port() }] });
        json!({ "subsets": all.iter().map(subset).collect::<Vec<_>>() })
    };
    // Next to a good one it is left out.
    api.patch("Endpoints", NAMESPACE, "app", &to(&[upstream.address(), appliance.admin()]));
    appliance.wait_says("address is not routed to");
    for _ in 0..8 {
        assert_eq!(get(&appliance, "/").json()["name"], "good");
    }
    api.patch("Endpoints", NAMESPACE, "app", &to(&[appliance.admin()]));
    wait::until(TIMEOUT, "the Ingress to lead nowhere", || {
        let answer = get(&appliance, "/metrics");
        assert!(answer.status != 200 || answer.text().contains("good"), "{answer}");
        (answer.status >= 500).then_some(())
    });
}

#[test]
fn allowed_target_opens_one_listener_by_its_port() {
    let admin = closed_address();
    let setup = setup().flag("admin", &admin.to_string()).flag("allow-target", &admin.to_string());
    let appliance = setup.flag("allowed-host", HOST).start();
    backend(appliance.api(), "admin", "http", &[admin]);
    backend(appliance.api(), "api", "http", &[appliance.api().address()]);
    let object = ingress_to(&appliance, "admin");
    assert_eq!(condition(&object, "NetworkConfigured").unwrap()["status"], "True");
    wait::until(TIMEOUT, "the admin listener by the ingress", || {
        (get(&appliance, "/healthz").status == 200).then_some(())
    });
    appliance.api().delete("Ingress", NAMESPACE, "admin");
    appliance.api().wait_gone("Ingress", NAMESPACE, "admin", TIMEOUT);
    let object = ingress_to(&appliance, "api");
    assert_eq!(condition(&object, "NetworkConfigured").unwrap()["reason"], "TargetRefused");
}

#[test]
fn route_flag_to_an_own_listener_stops_the_start() {
    let admin = closed_address();
    let setup = setup().flag("admin", &admin.to_string());
    let refusal = setup.clone().route("metrics.example", admin).refused();
    assert!(refusal.stderr.contains("--route metrics.example: target"), "{refusal}");
    assert!(refusal.stderr.contains(&format!("--allow-target {admin}")), "{refusal}");
    let setup = setup.route("metrics.example", admin).flag("allow-target", &admin.to_string());
    let allowed = setup.flag("allowed-host", "metrics.example").start();
    let answer = HttpCall::get("/healthz").host("metrics.example").send(allowed.http());
    assert_eq!(answer.status, 200, "{answer}");
}

#[test]
fn malformed_allowed_target_stops_the_start() {
    for bad in ["localhost:80", "10.0.0.0/33", "10.0.0.1:0"] {
        let refusal = setup().flag("allow-target", bad).refused();
        assert_eq!(refusal.code, Some(2), "{refusal}");
        assert!(refusal.stderr.contains("is not CIDR[:PORT]"), "{refusal}");
    }
}

/// A sidecar's port is whatever its manifest says: a probe must not ask the appliance itself.
#[test]
fn sidecar_probe_of_an_own_listener_fails() {
    let admin = closed_address();
    let hello = |port: u16| json!({ "image": "hello", "ports": [{ "containerPort": port }] });
    let appliance = setup().hello_image("hello").flag("admin", &admin.to_string()).start();
    let probe = json!({ "httpGet": { "path": "/readyz", "port": admin.port() }, "periodSeconds": 1 });
    let aside = json!({ "name": "aside", "image": "hello", "readinessProbe": probe,
        "env": [{ "name": "PORT", "value": "0" }] });
    let features = json!({ "data": { "multi-container-probing": "enabled" } });
    appliance.api().patch("ConfigMap", "knative-serving", "config-features", &features);
    let manifest = with(
        kit::manifest::service("app", "hello", "world"),
        "/spec/template/spec/containers",
        json!([hello(8080), aside]),
    );
    appliance.api().create(&manifest);
    wait::until(TIMEOUT, "the probe to be refused", || (refused(&appliance, "own_listener") > 0).then_some(()));
    let object = appliance.api().get("Service", NAMESPACE, "app").unwrap();
    assert!(!kit::api::is_ready(&object), "{object:#}");
}
