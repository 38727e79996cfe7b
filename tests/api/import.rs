//! `sluicegate import`: the objects of a cluster, here of another appliance, are copied with a report.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

use kit::manifest::with;
use kit::{Appliance, ApplianceSetup, TIMEOUT};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const SHOP: &str = "shop";

fn appliance() -> Appliance {
    ApplianceSetup::new(BIN).flag("workers", "1").start()
}

fn object(api_version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": SHOP });
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata });
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

/// A cluster with what a shop has.
fn cluster() -> Appliance {
    let cluster = appliance();
    let api = cluster.api();
    api.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": SHOP } }));
    api.create(&object("v1", "ConfigMap", "settings", json!({ "data": { "a": "b" } })));
    api.create(&object("v1", "Secret", "db", json!({ "stringData": { "password": "secret" } })));
    let broker = object("eventing.knative.dev/v1", "Broker", "orders", json!({ "spec": {} }));
    let class = json!({ "eventing.knative.dev/broker.class": "MTChannelBasedBroker" });
    api.create(&with(broker, "/metadata/annotations", class));
    let subscriber = json!({ "ref": { "apiVersion": "v1", "kind": "Service", "name": "mail" } });
    let spec = json!({ "broker": "orders", "subscriber": subscriber });
    api.create(&object("eventing.knative.dev/v1", "Trigger", "to-mail", json!({ "spec": spec })));
    let reference = json!({ "secretKeyRef": { "name": "db", "key": "password" } });
    let container = json!({ "image": "web", "env": [{ "name": "PASSWORD", "valueFrom": reference }] });
    let spec = json!({ "template": { "spec": { "containers": [container] } } });
    api.create(&object("serving.knative.dev/v1", "Service", "web", json!({ "spec": spec })));
    api.wait_for("Configuration", SHOP, "web", TIMEOUT, |_| true);
    cluster
}

/// Runs `sluicegate import` with these arguments.
fn import(cluster: &Appliance, target: &Appliance, arguments: &[&str]) -> Output {
    let address = cluster.api().address().to_string();
    let printed = Command::new(BIN).args(["kubeconfig", "--api", &address]).output().unwrap();
    let file = target.setup().write_file("cluster.kubeconfig", &String::from_utf8(printed.stdout).unwrap());
    let target = target.api().address().to_string();
    Command::new(BIN)
        .arg("import")
        .arg("--kubeconfig")
        .arg(file)
        .args(["--api", &target])
        .args(arguments)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn objects_of_a_cluster_are_copied_with_a_report() {
    let (cluster, target) = (cluster(), appliance());
    let dry = import(&cluster, &target, &["--dry-run"]);
    assert!(dry.status.success() && text(&dry).contains("would create Broker shop/orders"), "{}", text(&dry));
    assert!(target.api().get("Broker", SHOP, "orders").is_none());

    let first = import(&cluster, &target, &[]);
    let said = text(&first);
    assert!(first.status.success(), "{said}");
    for part in [
        "created      Namespace shop",
        "created      ConfigMap shop/settings",
        "created      Service shop/web",
        "class MTChannelBasedBroker becomes Sluicegate",
        "core Service shop/mail",
        "--secret shop/db copies it",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    assert!(!said.contains("Configuration"), "owned objects are not copied: {said}");
    let broker = target.api().wait_ready("Broker", SHOP, "orders", TIMEOUT);
    assert_eq!(broker["metadata"]["annotations"]["eventing.knative.dev/broker.class"], "Sluicegate");
    assert!(target.api().get("Secret", SHOP, "db").is_none());

    let second = import(&cluster, &target, &["--secret", "shop/db"]);
    let said = text(&second);
    assert!(second.status.success() && said.contains("updated      Service shop/web"), "{said}");
    assert!(said.contains("created      Secret shop/db") && !said.contains("--secret shop/db"), "{said}");
}

/// What was changed in the appliance since is not overwritten unless that is asked for.
#[test]
fn change_in_the_appliance_is_a_conflict() {
    let (cluster, target) = (cluster(), appliance());
    assert!(import(&cluster, &target, &[]).status.success());
    target.api().patch("ConfigMap", SHOP, "settings", &json!({ "data": { "a": "mine" } }));
    let refused = import(&cluster, &target, &[]);
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("refused      ConfigMap shop/settings") && said.contains("--force overwrites it"), "{said}");
    assert_eq!(target.api().get("ConfigMap", SHOP, "settings").unwrap()["data"]["a"], "mine");
    assert!(import(&cluster, &target, &["--force"]).status.success());
    assert_eq!(target.api().get("ConfigMap", SHOP, "settings").unwrap()["data"]["a"], "b");
}

#[test]
fn import_says_what_it_cannot_reach() {
    let (cluster, target) = (appliance(), appliance());
    let wrong = import(&cluster, &target, &["--secret", "db"]);
    assert!(text(&wrong).contains("NAMESPACE/NAME"), "{}", text(&wrong));
    let missing = Command::new(BIN).args(["import", "--kubeconfig", "/no/such/file"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing).contains("/no/such/file"), "{}", text(&missing));
}
