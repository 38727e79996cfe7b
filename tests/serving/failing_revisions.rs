//! Programs that cannot start: the attempts, their duration, and their end.

use kit::api::condition;
use kit::manifest::{NAMESPACE, service, with};
use kit::{ApplianceSetup, HttpCall, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const CRASHES: &str = "exit 3";
const HANGS: &str = "exec sleep 1000";

/// A template whose program is these words of a shell.
fn template(script: &str, annotations: Value) -> Value {
    let mut template = json!({
        "metadata": { "annotations": annotations },
        "spec": { "containers": [{ "image": "example.com/none", "command": ["/bin/sh", "-c", script], "env": [] }] }
    });
    template["metadata"]["annotations"]["runtime.sluicegate.dev/class"] = json!("process");
    template
}

fn bad(name: &str, script: &str, annotations: Value) -> Value {
    with(service(name, "example.com/none", "x"), "/spec/template", template(script, annotations))
}

/// Nothing of the Revision runs, and nothing is to.
fn wait_scaled_to_zero(api: KitApi, revision: &str) -> Value {
    wait::until(TIMEOUT, &format!("{revision} to be scaled to zero"), || {
        let selector = format!("serving.knative.dev/revision={revision}");
        let pods = api.list_selected("Pod", NAMESPACE, &selector);
        let found = api.get("Revision", NAMESPACE, revision)?;
        (pods.is_empty() && found["status"]["desiredReplicas"] == 0).then_some(found)
    })
}

fn reason(revision: &Value, kind: &str) -> String {
    condition(revision, kind).and_then(|found| found["reason"].as_str()).unwrap_or_default().to_owned()
}

/// Bad updates, of each kind, and then a good one: only the good one's program is left.
#[test]
fn bad_updates_are_not_tried_once_a_good_one_serves() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&service("shop", IMAGE, "first"));
    api.wait_ready("Service", NAMESPACE, "shop", TIMEOUT);
    for (nth, script) in [CRASHES, HANGS, CRASHES, HANGS].into_iter().enumerate() {
        let min = json!({ "autoscaling.knative.dev/min-scale": "1" });
        let spec = json!([{ "op": "replace", "path": "/spec/template", "value": template(script, min) }]);
        let path = format!("{}/shop", "/apis/serving.knative.dev/v1/namespaces/default/services");
        let patched = HttpCall::new("PATCH", &path)
            .header("content-type", "application/json-patch+json")
            .body(spec.to_string())
            .send(api.address());
        assert_eq!(patched.status, 200, "{patched}");
        // It was tried: it failed, or its program runs.
        api.wait_for("Revision", NAMESPACE, &format!("shop-{:05}", nth + 2), TIMEOUT, |found| {
            let failed = condition(found, "Ready").is_some_and(|ready| ready["status"] == "False");
            failed || script == HANGS && found["status"]["desiredReplicas"] == 1
        });
    }
    let good = service("shop", IMAGE, "last")["spec"]["template"].clone();
    let spec = json!([{ "op": "replace", "path": "/spec/template", "value": good }]);
    let patched = HttpCall::new("PATCH", "/apis/serving.knative.dev/v1/namespaces/default/services/shop")
        .header("content-type", "application/json-patch+json")
        .body(spec.to_string())
        .send(api.address());
    assert_eq!(patched.status, 200, "{patched}");
    api.wait_for("Service", NAMESPACE, "shop", TIMEOUT, |service| {
        service["status"]["latestReadyRevisionName"] == "shop-00006" && kit::api::is_ready(service)
    });
    for nth in 2..6 {
        let name = format!("shop-{nth:05}");
        let found = wait_scaled_to_zero(api, &name);
        let kept = wait::until(TIMEOUT, "its label", || {
            let found = api.get("Revision", NAMESPACE, &name)?;
            (found["metadata"]["labels"]["serving.knative.dev/routingState"] == "reserve").then_some(found)
        });
        let said = [reason(&found, "Ready"), reason(&kept, "Ready")];
        assert!(said.iter().all(|word| ["ExitCode3", "Unreachable"].contains(&word.as_str())), "{kept:#}");
    }
    let text = HttpCall::get("/").host("shop.default.localhost").send(appliance.http()).text();
    assert_eq!(text, "Hello last from shop-00006\n");
}

/// RT-PROBE-08: a first start that fails is tried until its deadline, and then is over.
#[test]
fn revision_over_its_deadline_is_marked_and_scaled_to_zero() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    for (name, script) in [("crashes", CRASHES), ("hangs", HANGS)] {
        let deadline =
            json!({ "serving.knative.dev/progress-deadline": "2s", "autoscaling.knative.dev/min-scale": "1" });
        api.create(&bad(name, script, deadline));
    }
    for (name, healthy) in [("crashes-00001", "ExitCode3"), ("hangs-00001", "")] {
        let late = api.wait_for("Revision", NAMESPACE, name, TIMEOUT, |found| {
            reason(found, "ResourcesAvailable") == "ProgressDeadlineExceeded" && reason(found, "Active") == "TimedOut"
        });
        assert!(healthy.is_empty() || reason(&late, "ContainerHealthy") == healthy, "{late:#}");
        wait_scaled_to_zero(api, name);
    }
    // Before its Revision exists, the reason is another one.
    api.wait_for("Service", NAMESPACE, "hangs", TIMEOUT, |service| {
        condition(service, "Ready").is_some_and(|ready| ready["status"] == "False")
            && reason(service, "Ready") == "RevisionFailed"
    });
}

/// A Route that goes takes the restarts with it.
#[test]
fn revision_without_its_route_is_not_restarted() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let configuration = json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Configuration",
        "metadata": { "name": "own", "namespace": NAMESPACE },
        "spec": { "template": template(CRASHES, json!({})) }
    });
    let route = json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Route",
        "metadata": { "name": "own", "namespace": NAMESPACE },
        "spec": { "traffic": [{ "configurationName": "own", "percent": 100 }] }
    });
    api.create(&route);
    api.create(&configuration);
    api.wait_for("Revision", NAMESPACE, "own-00001", TIMEOUT, |found| {
        found["metadata"]["labels"]["serving.knative.dev/routingState"] == "active"
            && reason(found, "ContainerHealthy") == "ExitCode3"
    });
    api.delete("Route", NAMESPACE, "own");
    wait_scaled_to_zero(api, "own-00001");
}
