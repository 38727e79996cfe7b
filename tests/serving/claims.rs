//! PersistentVolumeClaims: folders that outlive the Pods that mount them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use kit::manifest::NAMESPACE;
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const SHELL: &str = "test/shell";

fn start() -> Appliance {
    ApplianceSetup::new(BIN).hello_image("test/hello").flag("image", &format!("{SHELL}=/bin/sh")).start()
}

/// Mounts need root.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root mounts volumes");
    }
    is_root
}

fn claim(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } })
}

/// A Pod that runs a script with the claim `data` at `/data`.
fn pod(name: &str, script: &str, mount: &Value, source: &Value) -> Value {
    let mut mount = mount.clone();
    (mount["name"], mount["mountPath"]) = (json!("v"), json!("/data"));
    let container = json!({ "name": "main", "image": SHELL, "args": ["-c", script], "volumeMounts": [mount] });
    let mut source = source.clone();
    source["claimName"] = json!("data");
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container],
            "volumes": [{ "name": "v", "persistentVolumeClaim": source }] } })
}

fn run(api: KitApi, pod: &Value) -> String {
    api.create(pod);
    let name = pod["metadata"]["name"].as_str().unwrap();
    let done = api.wait_for("Pod", NAMESPACE, name, TIMEOUT, |pod| {
        ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase)
    });
    let log = api.send(HttpCall::get(&format!("{}/log", KitApi::path("Pod", NAMESPACE, name)))).text();
    format!("{} {log}", done["status"]["phase"].as_str().unwrap())
}

fn bound(api: KitApi, name: &str) -> Value {
    api.wait_for("PersistentVolumeClaim", NAMESPACE, name, TIMEOUT, |claim| claim["status"]["phase"] == "Bound")
}

fn folder(appliance: &Appliance, claim: &Value) -> PathBuf {
    appliance.setup().data().join("volumes").join(claim["spec"]["volumeName"].as_str().unwrap())
}

#[test]
fn claim_is_bound_and_ends_after_its_pods() {
    let appliance = start();
    let api = appliance.api();
    api.create(&claim("data"));
    let shown = bound(api, "data");
    assert_eq!(shown["spec"]["volumeName"], format!("pvc-{}", shown["metadata"]["uid"].as_str().unwrap()));
    assert_eq!(shown["status"]["capacity"]["storage"], "1Gi");
    let folder = folder(&appliance, &shown);
    assert!(folder.is_dir(), "{}", folder.display());
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let path = KitApi::path("PersistentVolumeClaim", NAMESPACE, "data");
    let table = api.send(HttpCall::get(&path).header("Accept", accept)).json();
    assert_eq!(table["rows"][0]["cells"][4], "RWO", "{table:#}");

    api.create(&pod("holder", "sleep 1000", &json!({}), &json!({})));
    api.send(HttpCall::new("DELETE", &path));
    let marked = api.get("PersistentVolumeClaim", NAMESPACE, "data").unwrap();
    assert!(marked["metadata"]["deletionTimestamp"].is_string() && folder.is_dir(), "{marked}");
    api.delete("Pod", NAMESPACE, "holder");
    api.wait_gone("PersistentVolumeClaim", NAMESPACE, "data", TIMEOUT);
    assert!(!folder.exists());
}

#[test]
fn files_of_a_claim_outlive_pods_and_restarts() {
    if !is_root() {
        return;
    }
    let mut appliance = start();
    let (plain, none) = (json!({}), json!({}));
    // It waits for its claim.
    appliance.api().create(&pod("writer", "echo kept > /data/file", &plain, &none));
    appliance.api().create(&claim("data"));
    appliance.api().wait_for("Pod", NAMESPACE, "writer", TIMEOUT, |pod| pod["status"]["phase"] == "Succeeded");
    assert_eq!(run(appliance.api(), &pod("reader", "cat /data/file", &plain, &none)), "Succeeded kept\n");
    let sub = pod("sub", "echo below > /data/own", &json!({ "subPath": "a/b" }), &none);
    assert_eq!(run(appliance.api(), &sub), "Succeeded ");
    appliance.restart();
    let api = appliance.api();
    let shown = bound(api, "data");
    let file = folder(&appliance, &shown).join("a/b/own");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "below\n", "{}", file.display());
    let denied = pod("denied", "echo x > /data/file || exit 7", &plain, &json!({ "readOnly": true }));
    assert!(run(api, &denied).starts_with("Failed"), "a claim that is mounted read-only stays as it is");
    assert_eq!(run(api, &pod("again", "cat /data/file", &plain, &none)), "Succeeded kept\n");
}

/// A link that a program left in its claim leads no later Pod out of it.
#[test]
fn link_in_a_claim_leads_no_mount_out() {
    if !is_root() {
        return;
    }
    let appliance = start();
    let api = appliance.api();
    let outside = tempfile::tempdir().unwrap();
    api.create(&claim("data"));
    let script = format!("ln -s {} /data/out", outside.path().display());
    assert_eq!(run(api, &pod("link", &script, &json!({}), &json!({}))), "Succeeded ");
    api.create(&pod("victim", "echo x > /data/file", &json!({ "subPath": "out/deep" }), &json!({})));
    let ended = |pod: &Value| ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
    api.wait_for("Pod", NAMESPACE, "victim", TIMEOUT, ended);
    assert!(is_empty(outside.path()), "{}", outside.path().display());
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

/// Upstream's features decide whether Services may mount claims.
#[test]
fn service_mounts_a_claim_where_the_feature_is_on() {
    if !is_root() {
        return;
    }
    let appliance = start();
    let api = appliance.api();
    api.create(&claim("data"));
    let volume = |read_only: bool| json!({ "name": "v", "persistentVolumeClaim": { "claimName": "data", "readOnly": read_only } });
    let service = |read_only: bool| {
        json!({ "apiVersion": "serving.knative.dev/v1", "kind": "Service",
            "metadata": { "name": "keeper", "namespace": NAMESPACE },
            "spec": { "template": { "spec": {
                "containers": [{ "image": "test/hello", "volumeMounts": [{ "name": "v", "mountPath": "/data" }] }],
                "volumes": [volume(read_only)] } } } })
    };
    let set = |name: &str| {
        let patch = json!({ "data": { name: "enabled" } });
        api.patch("ConfigMap", "knative-serving", "config-features", &patch);
    };
    let refused = |read_only: bool, field: &str| {
        wait::until(TIMEOUT, "the refusal", || {
            let answer = api.try_create(&service(read_only));
            (answer.status >= 400 && answer.text().contains(field)).then_some(())
        });
    };
    refused(true, "podspec-persistent-volume-claim is off");
    set("kubernetes.podspec-persistent-volume-claim");
    refused(false, "podspec-persistent-volume-write is off");
    set("kubernetes.podspec-persistent-volume-write");
    wait::until(TIMEOUT, "the creation", || (api.try_create(&service(false)).status == 201).then_some(()));
    api.wait_ready("Service", NAMESPACE, "keeper", TIMEOUT);
}
