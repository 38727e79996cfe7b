//! Traffic annotations of Services beyond Knative's: session affinity, header routes,
//! mirroring; and spare instances against cold starts.
#![allow(clippy::disallowed_methods, reason = "a test's own thread may wait")]
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::collections::BTreeSet;
use std::time::Duration;

use kit::api::is_ready;
use kit::manifest::{NAMESPACE, greets, service, with};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpResponse, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
const HOST: &str = "hello.default.localhost";
/// The shortest stable window, and time for a busy machine.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Revisions `hello-00001` and `hello-00002` with this traffic and these annotations of the Service.
fn two(annotations: Value, traffic: Value) -> Appliance {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    api.create(&service("hello", IMAGE, "one"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    api.patch("Service", NAMESPACE, "hello", &greets(IMAGE, "two"));
    api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        is_ready(service) && service["status"]["latestReadyRevisionName"] == "hello-00002"
    });
    let patch = json!({ "metadata": { "annotations": annotations }, "spec": { "traffic": traffic } });
    api.patch("Service", NAMESPACE, "hello", &patch);
    api.wait_for("Route", NAMESPACE, "hello", TIMEOUT, |route| {
        let there = |(key, value): (&String, &Value)| route["metadata"]["annotations"][key] == *value;
        is_ready(route) && annotations.as_object().unwrap().iter().all(there)
    });
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    appliance
}

fn halves() -> Value {
    json!([{ "revisionName": "hello-00001", "percent": 50 }, { "revisionName": "hello-00002", "percent": 50 }])
}

fn with_next() -> Value {
    json!([
        { "revisionName": "hello-00001", "percent": 100 },
        { "revisionName": "hello-00002", "tag": "next", "percent": 0 },
    ])
}

fn ask(appliance: &Appliance, header: (&str, &str)) -> HttpResponse {
    let response = HttpCall::get("/").host(HOST).header(header.0, header.1).send(appliance.http());
    assert_eq!(response.status, 200, "{response}");
    response
}

fn revision(response: &HttpResponse) -> String {
    response.text().trim().rsplit(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn a_sticky_client_stays_with_its_revision() {
    let appliance = two(json!({ "sluicegate.dev/sticky": "cookie" }), halves());
    let mut seen = BTreeSet::new();
    wait::until(TIMEOUT, "the cookie", || ask(&appliance, ("X", "y")).header("set-cookie").map(drop));
    for _ in 0..24 {
        let first = ask(&appliance, ("X", "y"));
        let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        assert!(cookie.starts_with("sluicegate-sticky="), "{cookie}");
        for _ in 0..4 {
            let again = ask(&appliance, ("Cookie", &cookie));
            assert_eq!((revision(&again), again.header("set-cookie")), (revision(&first), None));
        }
        seen.insert(revision(&first));
    }
    assert_eq!(seen.len(), 2, "a split all the same");

    // Weights move clients one way only: with all of it at one revision all clients are there.
    let all = json!({ "spec": { "traffic": [{ "revisionName": "hello-00002", "percent": 100 }] } });
    appliance.api().patch("Service", NAMESPACE, "hello", &all);
    appliance.api().wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    assert_eq!(revision(&ask(&appliance, ("Cookie", "sluicegate-sticky=1"))), "hello-00002");
}

#[test]
fn a_header_chooses_a_revision() {
    let rules = json!({ "sluicegate.dev/header-routes": "X-Beta: yes => next" });
    let appliance = two(rules, with_next());
    for (header, wanted) in
        [(("X-Beta", "yes"), "hello-00002"), (("x-beta", "no"), "hello-00001"), (("X", "y"), "hello-00001")]
    {
        assert_eq!(revision(&ask(&appliance, header)), wanted, "{header:?}");
    }
    // Off again, and what cannot be meant is refused with what is expected.
    let api = appliance.api();
    let set = |value: Value| json!({ "metadata": { "annotations": { "sluicegate.dev/header-routes": value } } });
    let refused = api.try_patch("Service", NAMESPACE, "hello", &set(json!("X-Beta: yes => gone")));
    assert_eq!(refused.status, 422, "{refused}");
    assert!(refused.text().contains("is not in spec.traffic"), "{refused}");
    api.patch("Service", NAMESPACE, "hello", &set(Value::Null));
    wait::until(TIMEOUT, "the division alone", || {
        (revision(&ask(&appliance, ("X-Beta", "yes"))) == "hello-00001").then_some(())
    });
}

#[test]
fn a_mirror_wakes_its_revision_and_compares_its_answers() {
    let appliance = two(json!({ "sluicegate.dev/mirror": "next" }), with_next());
    for n in 0..10 {
        let call = HttpCall::new("POST", &format!("/echo?{n}")).host(HOST).body("x".repeat(2000));
        let response = call.send(appliance.http());
        assert_eq!((response.status, response.body.len()), (200, 2000), "{response}");
    }
    wait::until(TIMEOUT, "the comparisons", || {
        (appliance.metric("sluicegate_backend_mirrored_requests_total", "outcome=\"match\"") == 10).then_some(())
    });
    assert_eq!(appliance.metric("sluicegate_backend_mirrored_requests_total", "default/hello-00001"), 0);
    assert_eq!(appliance.metric("sluicegate_mirrors_skipped_total", ""), 0);
}

/// A frozen instance is there again for the next request: the same process, and no start.
#[test]
fn a_frozen_instance_thaws_for_the_next_request() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let annotation = |name: &str| format!("/spec/template/metadata/annotations/{}", name.replace('/', "~1"));
    let mut manifest = service("hello", IMAGE, "world");
    for (name, value) in [
        ("autoscaling.knative.dev/window", "6s"),
        ("sluicegate.dev/spare-instances", "1"),
        ("sluicegate.dev/spare-mode", "frozen"),
    ] {
        manifest = with(manifest, &annotation(name), json!(value));
    }
    manifest["spec"]["template"]["spec"]["containers"][0]["livenessProbe"] =
        json!({ "httpGet": { "path": "/" }, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 3 });
    api.create(&manifest);
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let mark = || {
        let env = HttpCall::get("/env").host(HOST).send(appliance.http());
        assert_eq!(env.status, 200, "{env}");
        env.json()["SLUICEGATE_INSTANCE"].as_str().unwrap().to_owned()
    };
    let pods = || api.list_selected("Pod", NAMESPACE, "serving.knative.dev/service=hello");
    let first = mark();
    for _ in 0..2 {
        wait::until(IDLE_TIMEOUT, "the frozen instance", || {
            (appliance.metric("sluicegate_backend_frozen_instances", "hello-00001") == 1).then_some(())
        });
        wait::until(TIMEOUT, "the Pod that says so", || {
            let pods = pods();
            (pods.len() == 1 && pods[0]["status"]["reason"] == "Frozen").then_some(())
        });
        api.wait_for("Revision", NAMESPACE, "hello-00001", TIMEOUT, |revision| {
            revision["status"]["actualReplicas"] == 0
        });
        std::thread::sleep(Duration::from_secs(8)); // its liveness probe would have failed it by now
        assert_eq!(mark(), first, "another process answered");
    }
    wait::until(IDLE_TIMEOUT, "the frozen instance", || {
        (appliance.metric("sluicegate_backend_frozen_instances", "hello-00001") == 1).then_some(())
    });
    api.delete("Service", NAMESPACE, "hello");
    wait::until(TIMEOUT, "its end", || pods().is_empty().then_some(()));
}

/// SRV-EXT-01: with everything that annotations of ours can ask for at once, a Service is what it is without.
#[test]
fn with_all_of_it_a_service_is_what_it_is_without() {
    let asked = json!({
        "sluicegate.dev/sticky": "cookie", "sluicegate.dev/mirror": "next=50",
        "sluicegate.dev/header-routes": "X-Next: yes => next",
    });
    let appliance = two(asked, with_next());
    let api = appliance.api();
    let template = json!({ "metadata": { "annotations": {
        "sluicegate.dev/spare-instances": "1", "sluicegate.dev/spare-mode": "warm", "runtime.sluicegate.dev/volumes": "env",
    } } });
    api.patch("Service", NAMESPACE, "hello", &json!({ "spec": { "template": template } }));
    api.wait_for("Service", NAMESPACE, "hello", TIMEOUT, |service| {
        is_ready(service) && service["status"]["latestReadyRevisionName"] == "hello-00003"
    });
    let answers: BTreeSet<_> = (0..20).map(|_| revision(&ask(&appliance, ("X-None", "1")))).collect();
    assert_eq!(answers, ["hello-00001".to_owned()].into());
    let tagged = HttpCall::get("/").host("next-hello.default.localhost").send(appliance.http());
    assert_eq!((tagged.status, revision(&tagged).as_str()), (200, "hello-00002"));
    api.delete("Service", NAMESPACE, "hello");
    wait::until(TIMEOUT, "the host to have no owner", || {
        (HttpCall::get("/").host(HOST).send(appliance.http()).status == 404).then_some(())
    });
}
