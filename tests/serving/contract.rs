//! Smaller promises of serving: through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use kit::api::{condition, is_ready};
use kit::manifest::{NAMESPACE, greets, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const POD: &str = "/spec/template/spec";
const ANNOTATIONS: &str = "/spec/template/metadata/annotations";
/// An idle window of 6 s is the shortest that may be asked for; the rest is for a busy machine.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

fn host(object: &Value) -> String {
    object["status"]["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned()
}

fn greeter(appliance: &Appliance, host: &str) -> String {
    let response = HttpCall::get("/").host(host).send(appliance.http());
    assert_eq!(response.status, 200, "{response}");
    response.text().trim().rsplit(' ').next().unwrap().to_owned()
}

/// SRV-CON-12: nothing reaches an instance before its readiness probe passes, and then it does.
#[test]
fn an_instance_is_asked_nothing_before_its_readiness_probe_passes() {
    let setup = ApplianceSetup::new(BIN).hello_image(IMAGE);
    let gate = setup.write_file("gate", "").with_file_name("open");
    let appliance = setup.start();
    let api = appliance.api();
    let probe = json!({ "exec": { "command": ["test", "-e", gate] }, "periodSeconds": 1, "failureThreshold": 1000 });
    let containers = json!([{ "image": IMAGE, "readinessProbe": probe }]);
    api.create(&with(service("hello", IMAGE, "world"), &format!("{POD}/containers"), containers));
    let waiting = api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        condition(service, "ConfigurationsReady").is_some_and(|c| c["status"] == "Unknown")
            && service["status"]["url"].is_string()
    });
    assert!(!is_ready(&waiting));
    let early = HttpCall::get("/").host(&host(&waiting)).send(appliance.http());
    assert_ne!(early.status, 200, "{early}");

    std::fs::write(&gate, "").unwrap();
    let ready = api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    assert_eq!(greeter(&appliance, &host(&ready)), "hello-00001");
}

/// SRV-REV-13: the account is stored as given, an invalid one is rejected, and no instance runs as a missing one,
/// until it is.
#[test]
fn a_revision_names_its_service_account() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let of =
        |account: &str| with(service("hello", IMAGE, "world"), &format!("{POD}/serviceAccountName"), json!(account));
    let refused = api.try_create(&of("Not A Name"));
    assert_eq!(refused.status, 422, "{refused}");
    assert!(refused.text().contains("a lowercase RFC 1123 subdomain must consist of"), "{refused}");
    api.create(&of("builder"));
    let waits = |revision: &Value| {
        condition(revision, "ResourcesAvailable").is_some_and(|found| found["reason"] == "FailedCreate")
    };
    let revision = api.wait_for("Revision", NAMESPACE, "hello-00001", TIMEOUT, waits);
    assert_eq!(revision["spec"]["serviceAccountName"], "builder");
    let reported = condition(&revision, "Ready").unwrap();
    let why = "error looking up service account default/builder: serviceaccount \"builder\" not found";
    assert!(reported["status"] == "False" && reported["message"].as_str().unwrap().ends_with(why), "{reported}");

    let account = json!({ "name": "builder", "namespace": NAMESPACE });
    api.create(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": account }));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
}

/// SRV-REQ-10, SRV-REQ-12: requests of one client land on both revisions, and those that wake one up stay with it
/// while the other is warm.
#[test]
fn a_cold_start_does_not_move_requests_to_the_warm_revision() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let sleepy = with(service("hello", IMAGE, "cold"), ANNOTATIONS, json!({ "autoscaling.knative.dev/window": "6s" }));
    api.create(&sleepy);
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let warm = with(greets(IMAGE, "warm"), ANNOTATIONS, json!({ "autoscaling.knative.dev/min-scale": "1" }));
    api.patch("Service", NAMESPACE, "hello", &warm);
    let both =
        json!([{ "revisionName": "hello-00001", "percent": 50 }, { "revisionName": "hello-00002", "percent": 50 }]);
    api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        is_ready(service) && service["status"]["latestReadyRevisionName"] == "hello-00002"
    });
    api.patch("Service", NAMESPACE, "hello", &json!({ "spec": { "traffic": both } }));
    let ready = api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let asleep = |revision: &Value| revision["status"]["actualReplicas"].as_i64().unwrap_or(0) == 0;
    api.wait_for("Revision", NAMESPACE, "hello-00001", IDLE_TIMEOUT, asleep);

    let callers: Vec<_> = (0..200)
        .map(|_| {
            let (http, host) = (appliance.http(), host(&ready));
            thread::spawn(move || HttpCall::get("/").host(&host).send(http))
        })
        .collect();
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for caller in callers {
        let response = caller.join().unwrap();
        assert_eq!(response.status, 200, "{response}");
        *counts.entry(response.text().trim().rsplit(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    // 200 tosses of a fair coin lie outside of this once in a hundred million times.
    let cold = counts.get("hello-00001").copied().unwrap_or(0);
    assert!((60..=140).contains(&cold), "{counts:?}");
}

/// SRV-ROUTE-04: a Revision that is sent to may be deleted. The Route says so, and no request is sent elsewhere instead.
#[test]
fn a_revision_that_is_sent_to_may_be_deleted() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "one"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let pinned = json!([{ "revisionName": "hello-00001", "percent": 100 }]);
    let patch = with(greets(IMAGE, "two"), "/spec/traffic", pinned);
    api.patch("Service", NAMESPACE, "hello", &patch);
    api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        is_ready(service) && service["status"]["latestReadyRevisionName"] == "hello-00002"
    });
    api.delete("Revision", NAMESPACE, "hello-00001");
    let route = api.wait_for("Route", NAMESPACE, "hello", TIMEOUT, |route| {
        condition(route, "Ready").is_some_and(|ready| ready["status"] == "False")
    });
    assert_eq!(condition(&route, "Ready").unwrap()["reason"], "RevisionMissing");
    assert_eq!(HttpCall::get("/").host("hello.default.localhost").send(appliance.http()).status, 503);
    let latest = json!({ "spec": { "traffic": [{ "latestRevision": true, "percent": 100 }] } });
    api.patch("Service", NAMESPACE, "hello", &latest);
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    assert_eq!(greeter(&appliance, "hello.default.localhost"), "hello-00002");
}
