//! `kubectl get nodes` and `kubectl top`, as their requests come.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::manifest::NAMESPACE;
use kit::{ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const NODES: &str = "/api/v1/nodes";
const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
const SHELL: &str = "test/shell";

fn get(api: KitApi, path: &str) -> Value {
    let answer = api.send(HttpCall::get(path));
    assert_eq!(answer.status, 200, "{path}: {answer}");
    answer.json()
}

fn node(api: KitApi) -> Value {
    wait::until(TIMEOUT, "the node has a status", || {
        let list = get(api, NODES);
        let [node] = &list["items"].as_array()?[..] else { return None };
        node["status"]["capacity"].is_object().then(|| node.clone())
    })
}

#[test]
fn node_tells_what_this_host_has() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let before = node(api);
    let status = &before["status"];
    let ready = status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Ready").unwrap();
    assert_eq!(ready["status"], "True");
    let processors: usize = status["capacity"]["cpu"].as_str().unwrap().parse().unwrap();
    assert_eq!(processors, std::thread::available_parallelism().unwrap().get());
    assert!(status["capacity"]["memory"].as_str().unwrap().ends_with("Ki"), "{status}");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(status["nodeInfo"]["kernelVersion"], kernel.trim());
    assert_eq!(status["nodeInfo"]["kubeletVersion"], get(api, "/version")["gitVersion"]);

    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = api.send(HttpCall::get(NODES).header("Accept", accept)).json();
    let cells = &table["rows"][0]["cells"];
    let shown: Vec<&Value> = (0..3).map(|index| &cells[index]).collect();
    assert_eq!(shown, ["localhost", "Ready", "control-plane"], "{table:#}");

    // Clients do not write it, and it comes back.
    let refused = api
        .send(HttpCall::post(NODES).json(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "b" } })));
    assert_eq!(refused.status, 405, "{refused}");
    assert_eq!(api.send(HttpCall::new("DELETE", &format!("{NODES}/localhost"))).status, 200);
    assert_ne!(node(api)["metadata"]["uid"], before["metadata"]["uid"]);
}

/// Billionths of a processor, as `kubectl top` gets them.
fn nanocores(usage: &Value) -> u64 {
    usage["cpu"].as_str().unwrap().strip_suffix('n').unwrap().parse().unwrap()
}

fn memory_kib(usage: &Value) -> u64 {
    usage["memory"].as_str().unwrap().strip_suffix("Ki").unwrap().parse().unwrap()
}

#[test]
fn top_measures_pods_and_the_node() {
    let appliance = ApplianceSetup::new(BIN).flag("image", &format!("{SHELL}=/bin/sh")).start();
    let api = appliance.api();
    for (name, script) in [("busy", "while :; do :; done"), ("idle", "sleep 1000")] {
        let container = json!({ "name": "main", "image": SHELL, "args": ["-c", script] });
        api.create(&json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app": name } },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [container] } }));
    }
    for name in ["busy", "idle"] {
        api.wait_for("Pod", NAMESPACE, name, TIMEOUT, |pod| pod["status"]["phase"] == "Running");
    }
    let pods = format!("{METRICS}/namespaces/{NAMESPACE}/pods");
    let list = wait::until(TIMEOUT, "both Pods are measured", || {
        Some(get(api, &pods)).filter(|list| list["items"].as_array().is_some_and(|items| items.len() == 2))
    });
    assert_eq!(list["kind"], "PodMetricsList");
    let usage = |name: &str| {
        let items = list["items"].as_array().unwrap();
        let pod = items.iter().find(|pod| pod["metadata"]["name"] == name).unwrap();
        assert_eq!(pod["containers"][0]["name"], "main");
        pod["containers"][0]["usage"].clone()
    };
    let (busy, idle) = (usage("busy"), usage("idle"));
    // However slow this host is, the one that computes uses more.
    assert!(nanocores(&busy) > 1_000_000 && nanocores(&busy) > nanocores(&idle), "{busy} {idle}");
    assert!(memory_kib(&busy) > 0 && memory_kib(&idle) > 0, "{busy} {idle}");

    let selected = get(api, &format!("{pods}?labelSelector=app%3Didle"));
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    assert_eq!(get(api, &format!("{METRICS}/pods"))["items"].as_array().unwrap().len(), 2);
    assert_eq!(get(api, &format!("{pods}/busy"))["kind"], "PodMetrics");
    assert_eq!(api.send(HttpCall::get(&format!("{pods}/none"))).status, 404);
    let node = get(api, &format!("{METRICS}/nodes/localhost"));
    assert!(nanocores(&node["usage"]) > 0 && memory_kib(&node["usage"]) > 0, "{node}");
    let known = get(api, METRICS)["resources"].as_array().unwrap().len();
    assert_eq!(known, 2);
}
