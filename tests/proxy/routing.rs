//! Routing through the built binary: wildcards, visibility, tags by header.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use kit::api::is_ready;
use kit::event::TestEvent;
use kit::manifest::{NAMESPACE, broker, greets, service, trigger, with};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const LOCAL: &str = "hello.default.svc.cluster.local";

fn hidden(appliance: &Appliance) {
    let labels = json!({ "networking.knative.dev/visibility": "cluster-local" });
    appliance.api().create(&with(service("hello", IMAGE, "me"), "/metadata/labels", labels));
}

/// A wildcard takes every name right below it, a name of its own comes first, `*` takes the rest.
#[test]
fn a_wildcard_host_takes_one_label() {
    let [own, wild, any] = ["own", "wild", "any"].map(TestUpstream::start);
    let appliance = ApplianceSetup::new(BIN)
        .route("own.example.com", own.address())
        .route("*.example.com", wild.address())
        .route("*", any.address())
        .start();
    for (host, name) in [
        ("own.example.com", "own"),
        ("Other.Example.com:80", "wild"),
        ("a.other.example.com", "any"),
        ("example.com", "any"),
    ] {
        assert_eq!(HttpCall::get("/").host(host).send(appliance.http()).json()["name"], name, "{host}");
    }
}

/// X-RTE-05: a cluster-local Service is a 404 for the public, and there for callers inside; a public one's names inside are theirs
/// alone too.
#[test]
fn a_cluster_local_service_is_reached_by_the_private_listener_only() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).flag("cluster-local", "127.0.0.1:0").start();
    hidden(&appliance);
    let ready = appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    assert_eq!(ready["status"]["url"], format!("http://{LOCAL}"));
    assert_eq!(ready["status"]["address"]["url"], format!("http://{LOCAL}"));

    for host in [LOCAL, "hello.default.svc", "hello.default"] {
        let status = |to| HttpCall::get("/").host(host).send(to).status;
        assert_eq!((status(appliance.http()), status(appliance.private())), (404, 200), "{host}");
    }
    assert_eq!(HttpCall::get("/").host("hello.default.localhost").send(appliance.private()).status, 404);

    // It comes out when the label goes.
    let label = json!({ "metadata": { "labels": { "networking.knative.dev/visibility": null } } });
    appliance.api().patch("Service", NAMESPACE, "hello", &label);
    wait::until(TIMEOUT, "the public host", || {
        (HttpCall::get("/").host("hello.default.localhost").send(appliance.http()).status == 200).then_some(())
    });
    for host in [LOCAL, "hello.default.svc", "hello.default"] {
        let status = |to| HttpCall::get("/").host(host).send(to).status;
        assert_eq!((status(appliance.http()), status(appliance.private())), (404, 200), "{host}");
    }
    assert_eq!(HttpCall::get("/").host("hello.default.localhost").send(appliance.private()).status, 200);
}

/// With a single listener, all names are served on it.
#[test]
fn a_public_service_is_reached_by_its_name_inside_where_there_is_no_private_listener() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    appliance.api().create(&service("hello", IMAGE, "x"));
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    assert_eq!(HttpCall::get("/").host(LOCAL).send(appliance.http()).status, 200);
}

/// X-RTE-05, EV-DLV-01: what the public may not reach, events of our own do.
#[test]
fn events_reach_a_cluster_local_service() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    hidden(&appliance);
    let api = appliance.api();
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    api.create(&broker("b"));
    let to_it = json!({ "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello" } });
    api.create(&with(trigger("t", "b", ""), "/spec/subscriber", to_it));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    let accepted = TestEvent::new("1").binary("/brokers/default/b").send(appliance.events());
    assert_eq!(accepted.status, 202, "{accepted}");
    wait::until(TIMEOUT, "the delivery", || {
        let metrics = HttpCall::get("/metrics").send(appliance.admin()).text();
        let mut lines = metrics.lines();
        lines.find(|line| line.contains("subscriber_delivered") && line.ends_with(" 1")).map(drop)
    });
}

/// X-RTE-08: off by default; then the header asks for a tag, and an unknown one for
/// nothing.
#[test]
fn a_tag_header_asks_for_a_tag_once_it_is_turned_on() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "one"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, "two"));
    api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        is_ready(service) && service["status"]["latestReadyRevisionName"] == "hello-00002"
    });
    let traffic = json!([
        { "revisionName": "hello-00001", "percent": 100 },
        { "revisionName": "hello-00002", "tag": "next", "percent": 0 },
    ]);
    api.patch("Service", NAMESPACE, "hello", &json!({ "spec": { "traffic": traffic } }));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let revision = |tag: &str| {
        let call = HttpCall::get("/").host("hello.default.localhost").header("Knative-Serving-Tag", tag);
        let response = call.send(appliance.http());
        assert_eq!(response.status, 200, "{response}");
        response.text().trim().rsplit(' ').next().unwrap_or_default().to_owned()
    };
    assert_eq!(revision("next"), "hello-00001");

    let data = json!({ "tag-header-based-routing": "Enabled" });
    let map = "/api/v1/namespaces/knative-serving/configmaps";
    let object =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "config-features" }, "data": data });
    if HttpCall::post(map).json(&object).send(api.address()).status == 409 {
        api.patch("ConfigMap", "knative-serving", "config-features", &json!({ "data": data }));
    }
    wait::until(TIMEOUT, "the feature", || (revision("next") == "hello-00002").then_some(()));
    assert_eq!(revision("unknown"), "hello-00001");
}
