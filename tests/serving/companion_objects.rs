//! Companion objects of a Service for clients of Kubernetes: a core Service, and a Deployment.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
/// The Deployment of the first Revision.
const NAME: &str = "hello-00001-deployment";

fn appliance() -> Appliance {
    ApplianceSetup::new(BIN).hello_image(IMAGE).start()
}

fn core_path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/services/{name}")
}

/// The core Service, which has its kind's name from another group.
fn core(api: KitApi, name: &str) -> Option<Value> {
    let response = api.send(HttpCall::get(&core_path(name)));
    (response.status == 200).then(|| response.json())
}

fn wait_core(api: KitApi, name: &str, wanted: impl Fn(Option<&Value>) -> bool) -> Option<Value> {
    let mut last = None;
    wait::until(TIMEOUT, name, || {
        last = core(api, name);
        wanted(last.as_ref()).then_some(())
    });
    last
}

/// SRV-OWN-01, SRV-OWN-04: a Route's names are in the core group, with its labels, and come and go with it.
#[test]
fn a_route_has_a_core_service_by_each_of_its_names() {
    let appliance = appliance();
    let api = appliance.api();
    let mut manifest = with(service("hello", IMAGE, "world"), "/metadata/labels", json!({ "team": "a" }));
    manifest["metadata"]["annotations"] = json!({ "example.com/note": "kept" });
    manifest["spec"]["traffic"] = json!([{ "latestRevision": true, "percent": 100, "tag": "blue" }]);
    api.create(&manifest);
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    // No wait: they are there when the Service is Ready.
    let (own, tagged) = (core(api, "hello").unwrap(), core(api, "blue-hello").unwrap());
    for (one, name) in [(&own, "hello"), (&tagged, "blue-hello")] {
        assert_eq!(one["spec"]["type"], "ExternalName");
        assert_eq!(one["spec"]["externalName"], format!("{name}.{NAMESPACE}.svc.cluster.local"));
        let (labels, annotations) = (&one["metadata"]["labels"], &one["metadata"]["annotations"]);
        assert_eq!((&labels["serving.knative.dev/route"], &labels["team"]), (&json!("hello"), &json!("a")));
        assert_eq!(labels["serving.knative.dev/service"], "hello");
        assert!(annotations["example.com/note"] == "kept" && annotations["serving.knative.dev/creator"].is_string());
        let owner = &one["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["controller"]), (&json!("Route"), &json!(true)));
    }

    let deleted = api.send(HttpCall::new("DELETE", &core_path("hello")));
    assert_eq!(deleted.status, 200, "{deleted}");
    wait_core(api, "hello", |found| found.is_some_and(|new| new["metadata"]["uid"] != own["metadata"]["uid"]));
    let untagged = json!({ "spec": { "traffic": [{ "latestRevision": true, "percent": 100 }] } });
    api.patch("Service", NAMESPACE, "hello", &untagged);
    wait_core(api, "blue-hello", |found| found.is_none());
    let answer = HttpCall::get("/").host(&format!("hello.{NAMESPACE}.localhost")).send(appliance.http());
    assert_eq!(answer.status, 200, "{answer}");
    api.delete("Service", NAMESPACE, "hello");
    wait_core(api, "hello", |found| found.is_none());
}

/// SRV-OWN-02, SRV-OWN-03: another owner's Service by that name is unchanged, and the Route reports it until it is deleted.
#[test]
fn conflicting_core_service_is_unchanged_and_reported() {
    let appliance = appliance();
    let api = appliance.api();
    let foreign = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "hello" },
        "spec": { "ports": [{ "port": 5432 }] } });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/services");
    let made = api.send(HttpCall::post(&path).json(&foreign));
    assert_eq!(made.status, 201, "{made}");
    api.create(&service("hello", IMAGE, "world"));
    let route = api.wait_for("Route", NAMESPACE, "hello", TIMEOUT, |route| {
        condition(route, "IngressReady").is_some_and(|why| why["reason"] == "NotOwned")
    });
    let why = condition(&route, "IngressReady").unwrap();
    assert!(why["message"].as_str().unwrap().contains("\"hello\""), "{why}");
    assert!(!is_ready(&route));
    assert_eq!(core(api, "hello").unwrap()["spec"]["ports"][0]["port"], 5432);

    assert_eq!(api.send(HttpCall::new("DELETE", &core_path("hello"))).status, 200);
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    assert_eq!(core(api, "hello").unwrap()["spec"]["type"], "ExternalName");
}

/// A Revision's Deployment counts its instances, also when it has none, and only our controller writes it.
#[test]
fn a_revision_has_a_deployment_that_counts_its_instances() {
    let appliance = appliance();
    let api = appliance.api();
    let window = "/spec/template/metadata/annotations/autoscaling.knative.dev~1window";
    api.create(&with(service("hello", IMAGE, "world"), window, json!("6s")));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let counts = |deployment: &Value, count: i64| {
        let status = &deployment["status"];
        deployment["spec"]["replicas"] == count
            && ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"]
                .iter()
                .all(|key| status[key] == count)
            && status["observedGeneration"] == deployment["metadata"]["generation"]
    };
    let busy = api.wait_for("Deployment", NAMESPACE, NAME, TIMEOUT, |one| counts(one, 1));
    assert_eq!(busy["metadata"]["ownerReferences"][0]["kind"], "Revision");
    assert_eq!(busy["spec"]["template"]["spec"]["containers"][0]["image"], IMAGE);
    let mut changed = busy.clone();
    changed["spec"]["replicas"] = json!(7);
    let path = KitApi::path("Deployment", NAMESPACE, NAME);
    let put = api.send(HttpCall::new("PUT", &path).json(&changed));
    assert!((400..500).contains(&put.status), "{put}");

    api.wait_for("Deployment", NAMESPACE, NAME, std::time::Duration::from_secs(90), |one| counts(one, 0));
    api.delete("Deployment", NAMESPACE, NAME);
    let uid = busy["metadata"]["uid"].clone();
    api.wait_for("Deployment", NAMESPACE, NAME, TIMEOUT, |one| one["metadata"]["uid"] != uid && counts(one, 0));
    api.delete("Service", NAMESPACE, "hello");
    api.wait_gone("Deployment", NAMESPACE, NAME, TIMEOUT);
}
