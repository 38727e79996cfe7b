//! PodAutoscaler and Metric: a Revision's scaling in `kubectl get kpa`.

use kit::api::condition;
use kit::manifest::{NAMESPACE, service, with};
use kit::{ApplianceSetup, HttpCall, TIMEOUT, wait};
use serde_json::{Value, json};
use std::time::Duration;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
/// An idle window of 6 s is the shortest that may be asked for; the rest is for a busy machine.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

fn reason<'a>(object: &'a Value, kind: &str) -> &'a str {
    condition(object, kind).and_then(|c| c["reason"].as_str()).unwrap_or_default()
}

/// SRV-REV-16: the Revision's Active and the scaler's say the same, awake and at zero, and what a user changed or
/// deleted comes back.
#[test]
fn a_revisions_scaler_is_shown_and_kept() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let window = "/spec/template/metadata/annotations/autoscaling.knative.dev~1window";
    api.create(&with(service("hello", IMAGE, "x"), window, json!("6s")));
    let scaler = api.wait_ready("PodAutoscaler", NAMESPACE, "hello-00001", TIMEOUT);
    let annotations = &scaler["metadata"]["annotations"];
    assert_eq!(annotations["autoscaling.knative.dev/class"], "kpa.autoscaling.knative.dev");
    assert_eq!(annotations["autoscaling.knative.dev/window"], "6s");
    assert_eq!(scaler["metadata"]["ownerReferences"][0]["kind"], "Revision");
    assert_eq!((&scaler["status"]["desiredScale"], &scaler["status"]["actualScale"]), (&json!(1), &json!(1)));
    let metric = api.wait_ready("Metric", NAMESPACE, "hello-00001", TIMEOUT);
    assert_eq!(metric["spec"]["stableWindow"], json!(6_000_000_000_i64));

    // As kubectl asks for the columns of `kubectl get kpa`.
    let table = HttpCall::get(&kit::KitApi::path("PodAutoscaler", NAMESPACE, ""))
        .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .send(api.address())
        .json();
    let columns: Vec<_> = table["columnDefinitions"].as_array().into_iter().flatten().map(|c| &c["name"]).collect();
    assert_eq!(columns, ["Name", "DesiredScale", "ActualScale", "Ready", "Reason"]);

    api.patch("PodAutoscaler", NAMESPACE, "hello-00001", &json!({ "spec": { "containerConcurrency": 7 } }));
    api.wait_for("PodAutoscaler", NAMESPACE, "hello-00001", TIMEOUT, |scaler| {
        scaler["spec"]["containerConcurrency"] == 0
    });
    api.delete("Metric", NAMESPACE, "hello-00001");
    api.wait_ready("Metric", NAMESPACE, "hello-00001", TIMEOUT);

    let asleep = api.wait_for("PodAutoscaler", NAMESPACE, "hello-00001", IDLE_TIMEOUT, |scaler| {
        scaler["status"]["actualScale"] == 0 && reason(scaler, "Active") == "NoTraffic"
    });
    assert_eq!((reason(&asleep, "Ready"), &asleep["status"]["desiredScale"]), ("NoTraffic", &json!(0)));
    let revision = api.get("Revision", NAMESPACE, "hello-00001").unwrap();
    assert_eq!(reason(&revision, "Active"), "NoTraffic");
    assert_eq!(condition(&revision, "Ready").unwrap()["status"], "True");

    api.delete("Service", NAMESPACE, "hello");
    api.wait_gone("PodAutoscaler", NAMESPACE, "hello-00001", TIMEOUT);
    api.wait_gone("Metric", NAMESPACE, "hello-00001", TIMEOUT);
}

/// X-AS-09: while instances have capacity for the requested burst, `kubectl get sks` says `Serve` and a Revision's
/// endpoints are one for each of them; at zero, or with a burst that never fits, `Proxy`.
#[test]
fn the_mode_says_whether_instances_have_room_for_a_burst() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let annotated = |object, key: &str, value: &str| {
        with(object, &format!("/spec/template/metadata/annotations/autoscaling.knative.dev~1{key}"), json!(value))
    };
    let roomy = annotated(service("roomy", IMAGE, "x"), "target-burst-capacity", "0");
    api.create(&annotated(roomy, "window", "6s"));
    let never = annotated(service("never", IMAGE, "x"), "target-burst-capacity", "-1");
    api.create(&annotated(never, "min-scale", "2"));
    let turns = |name: &str, limit, mode: &str| {
        api.wait_for("ServerlessService", NAMESPACE, name, limit, |one| {
            let status = &one["status"];
            one["spec"]["mode"] == mode && status["observedGeneration"] == one["metadata"]["generation"]
        });
    };
    let endpoints = |name: &str| {
        let slice = api.get("EndpointSlice", NAMESPACE, &format!("{name}-public")).unwrap_or_default();
        slice["endpoints"].as_array().map_or(0, Vec::len)
    };

    turns("roomy-00001", TIMEOUT, "Serve");
    api.wait_ready("Service", NAMESPACE, "never", TIMEOUT);
    turns("never-00001", TIMEOUT, "Proxy");
    wait::until(TIMEOUT, "the listener alone", || (endpoints("never-00001") == 1).then_some(()));
    turns("roomy-00001", IDLE_TIMEOUT, "Proxy");
    assert_eq!(HttpCall::get("/").host("roomy.default.localhost").send(appliance.http()).status, 200);
    turns("roomy-00001", TIMEOUT, "Serve");
    wait::until(TIMEOUT, "its endpoint", || (endpoints("roomy-00001") == 1).then_some(()));
}

/// SRV-REV-20: the wanted count rises at once, the real one when the new instances are ready.
#[test]
fn the_wanted_replicas_rise_before_the_actual_ones() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let mut manifest = service("slow", "example.com/none", "x");
    let class = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1class";
    manifest = with(manifest, class, json!("process"));
    manifest = with(manifest, "/spec/template/spec/containerConcurrency", json!(1));
    let container = &mut manifest["spec"]["template"]["spec"]["containers"][0];
    container["command"] = json!(["/bin/sh", "-c", format!("sleep 2; exec {BIN} example hello")]);
    api.create(&manifest);
    api.wait_ready("Service", NAMESPACE, "slow", TIMEOUT);
    let replicas = |revision: &Value| {
        let count = |name: &str| revision["status"][name].as_i64().unwrap_or(-1);
        (count("actualReplicas"), count("desiredReplicas"))
    };
    let http = appliance.http();
    let callers: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(move || HttpCall::get("/slow?ms=4000").host("slow.default.localhost").send(http).status)
        })
        .collect();
    let revision = |wanted: &dyn Fn((i64, i64)) -> bool| {
        api.wait_for("Revision", NAMESPACE, "slow-00001", TIMEOUT, |revision| wanted(replicas(revision)));
    };
    revision(&|(actual, desired)| desired > actual && actual >= 1);
    revision(&|(actual, desired)| desired == actual && actual > 1);
    for caller in callers {
        assert_eq!(caller.join().unwrap(), 200);
    }
}
