//! JobSinks through the built binary: each event becomes a Job that reads it from a file.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::api::is_ready;
use kit::manifest::{NAMESPACE, broker};
use kit::{Appliance, ApplianceSetup, HttpCall, KitApi, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "job-sink.knative-eventing.svc.cluster.local";
const SHELL: &str = "test/shell";

fn start() -> Appliance {
    let setup = ApplianceSetup::new(BIN).flag("image", &format!("{SHELL}=/bin/sh"));
    setup.flag("cluster-local", "127.0.0.1:0").start()
}

/// A JobSink whose Job runs a script of the shell.
fn job_sink(name: &str, script: &str) -> Value {
    let container = json!({ "name": "main", "image": SHELL, "args": ["-c", script] });
    let pod = json!({ "restartPolicy": "Never", "containers": [container] });
    json!({ "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "JobSink",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "job": { "metadata": { "labels": { "team": "a" } },
            "spec": { "backoffLimit": 0, "template": { "spec": pod } } } } })
}

fn jobs(api: KitApi, sink: &str) -> Vec<Value> {
    api.list_selected("Job", NAMESPACE, &format!("sinks.knative.dev/job-sink-name={sink}"))
}

fn log_of(api: KitApi, job: &str) -> String {
    let pods = api.list_selected("Pod", NAMESPACE, &format!("job-name={job}"));
    let path = format!("{}/log", KitApi::path("Pod", NAMESPACE, pods[0]["metadata"]["name"].as_str().unwrap()));
    api.send(HttpCall::get(&path)).text()
}

#[test]
fn event_becomes_a_job_that_reads_it() {
    let appliance = start();
    let api = appliance.api();
    api.create(&job_sink("logger", "cat $K_EVENT_PATH/event; echo; echo mode=$K_EXECUTION_MODE"));
    let sink = api.wait_for("JobSink", NAMESPACE, "logger", TIMEOUT, is_ready);
    assert_eq!(sink["status"]["address"]["url"], format!("http://{HOST}/{NAMESPACE}/logger"));
    assert_eq!(sink["status"]["job"]["selector"], "sinks.knative.dev/job-sink-name=logger");

    let event = TestEvent::new("é/7").with("source", "/a/b?c").data("application/json", r#"{"n":1}"#);
    let path = format!("/{NAMESPACE}/logger");
    let answer = event.structured(&path).host(HOST).send(appliance.private());
    assert_eq!(answer.status, 202, "{answer}");
    // It is stored already when its sender knows.
    let made = jobs(api, "logger");
    let [job] = &made[..] else { panic!("{made:?}") };
    let (labels, name) = (&job["metadata"]["labels"], job["metadata"]["name"].as_str().unwrap());
    assert_eq!((&labels["team"], &labels["sinks.knative.dev/job-sink-id"]), (&json!("a"), &json!(name)));
    let location = answer.header("location").unwrap().to_owned();
    assert_eq!(location, format!("/namespaces/{NAMESPACE}/name/logger/sources/%2Fa%2Fb%3Fc/ids/%C3%A9%2F7"));

    // The same event again is the same Job.
    let again = event.binary(&path).host(HOST).send(appliance.private());
    assert_eq!((again.status, again.header("location")), (202, Some(location.as_str())));
    assert_eq!(jobs(api, "logger").len(), 1);
    let state = || HttpCall::get(&location).host(HOST).send(appliance.private());
    let done = wait::until(TIMEOUT, "the end of the Job", || Some(state()).filter(|state| state.status != 202));
    assert_eq!((done.status, done.header("reason")), (200, Some("Complete")), "{done}");
    let printed = log_of(api, name);
    let mut lines = printed.lines();
    let read: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!((&read["id"], &read["source"], &read["data"]["n"]), (&json!("é/7"), &json!("/a/b?c"), &json!(1)));
    assert_eq!(lines.next(), Some("mode=batch"));

    // The Secret with the event ends with its Job, and the Jobs with their JobSink.
    assert!(api.get("Secret", NAMESPACE, name).is_some());
    api.delete("Job", NAMESPACE, name);
    api.wait_gone("Secret", NAMESPACE, name, TIMEOUT);
    assert_eq!(state().status, 404);
    // The Secret of that name is not its own, as while the Secret of a deleted Job is removed.
    api.create(&json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": NAMESPACE } }));
    let early = event.binary(&path).host(HOST).send(appliance.private());
    assert_eq!(early.status, 503, "{early}");
    api.delete("Secret", NAMESPACE, name);
    let sent = event.binary(&path).host(HOST).send(appliance.private());
    assert_eq!((sent.status, jobs(api, "logger").len()), (202, 1));
    api.delete("JobSink", NAMESPACE, "logger");
    wait::until(TIMEOUT, "the end of the Jobs", || jobs(api, "logger").is_empty().then_some(()));
    assert_eq!(event.binary(&path).host(HOST).send(appliance.private()).status, 404);
}

#[test]
fn trigger_sends_events_of_a_broker_to_a_job_sink() {
    let appliance = start();
    let api = appliance.api();
    api.create(&broker("main"));
    api.create(&job_sink("failing", "exit 3"));
    api.create(&json!({
        "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger",
        "metadata": { "name": "to-jobs", "namespace": NAMESPACE },
        "spec": { "broker": "main", "subscriber": {
            "ref": { "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "JobSink", "name": "failing" } } },
    }));
    api.wait_ready("Trigger", NAMESPACE, "to-jobs", TIMEOUT);
    for id in ["1", "2", "2"] {
        let sent = TestEvent::new(id).binary(&format!("/brokers/{NAMESPACE}/main")).send(appliance.events());
        assert_eq!(sent.status, 202, "{sent}");
    }
    wait::until(TIMEOUT, "both Jobs have failed", || {
        let failed = |job: &Value| {
            let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "Failed" && one["status"] == "True")
        };
        let all = jobs(api, "failing");
        (all.len() == 2 && all.iter().all(failed)).then_some(())
    });
    let location = format!("/namespaces/{NAMESPACE}/name/failing/sources/%2Fkit/ids/2");
    let state = HttpCall::get(&location).host(HOST).send(appliance.private());
    assert_eq!((state.status, state.header("reason")), (400, Some("Failed")));
}

#[test]
fn job_sink_refuses_what_is_no_event() {
    let mut appliance = start();
    let api = appliance.api();
    api.create(&job_sink("picky", "exit 0"));
    api.wait_for("JobSink", NAMESPACE, "picky", TIMEOUT, is_ready);
    let path = format!("/{NAMESPACE}/picky");
    let event = TestEvent::new("1");
    let large = event.clone().data("text/plain", vec![b'x'; 1024 * 1024]);
    for (call, status) in [
        (event.clone().without("id").binary(&path), 400),
        (HttpCall::post(&path).header("Content-Type", "application/cloudevents+avro").body("x"), 415),
        (HttpCall::post(&path).header("Content-Type", "application/cloudevents-batch+json").body("[]"), 415),
        (large.binary(&path), 413),
        (event.binary(&format!("/{NAMESPACE}/other")), 404),
        (event.binary(&format!("/{NAMESPACE}/..")), 404),
        (event.binary(&format!("{path}/more")), 404),
        (HttpCall::new("DELETE", &path), 405),
        (HttpCall::get("/namespaces/a/name/b/sources/c/ids/d"), 404),
        (HttpCall::get("/namespaces/a%2Fb/name/%2E%2E/sources/c/ids/d"), 404),
    ] {
        let answer = call.clone().host(HOST).send(appliance.private());
        assert_eq!(answer.status, status, "{call:?}: {answer}");
    }
    assert_eq!(jobs(api, "picky").len(), 0);
    // The host is for callers inside alone.
    assert_eq!(event.binary(&path).host(HOST).send(appliance.http()).status, 404);
    // A restart keeps the address.
    appliance.restart();
    let sent = event.binary(&path).host(HOST).send(appliance.private());
    assert_eq!(sent.status, 202, "{sent}");
}

#[test]
fn template_that_makes_no_job_is_refused() {
    let appliance = ApplianceSetup::new(BIN).start();
    let mut sink = job_sink("bad", "exit 0");
    sink["spec"]["job"]["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    let answer = appliance.api().try_create(&sink);
    assert_eq!(answer.status, 422, "{answer}");
    assert!(answer.text().contains("spec.job.spec.template.spec.restartPolicy"), "{answer}");
    sink["spec"]["job"]["spec"]["surprise"] = json!(1);
    let answer = appliance.api().try_create(&sink);
    assert!(answer.status >= 400 && answer.text().contains("surprise"), "{answer}");
}

/// Without Jobs there is no address to send to.
#[test]
fn services_only_gives_a_job_sink_no_address() {
    let appliance = ApplianceSetup::new(BIN).flag("workloads", "services-only").start();
    let api = appliance.api();
    api.create(&job_sink("idle", "exit 0"));
    let shown = api.wait_for("JobSink", NAMESPACE, "idle", TIMEOUT, |sink| {
        sink["status"]["conditions"].as_array().is_some_and(|all| {
            all.iter().any(|one| one["type"] == "Addressable" && one["reason"] == "WorkloadsDisabled")
        })
    });
    assert!(shown["status"]["address"].is_null(), "{shown}");
}
