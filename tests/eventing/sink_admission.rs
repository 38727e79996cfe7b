//! Senders of sinks authenticate and are authorized as those of Brokers are, through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, with};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpResponse, KitApi, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

use crate::oidc::{account, asking, features, policy, token};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const SHELL: &str = "test/shell";
const JOB_SINK_HOST: &str = "job-sink.knative-eventing.svc.cluster.local";

fn job_sink(name: &str) -> Value {
    let container = json!({ "name": "main", "image": SHELL, "args": ["-c", "exit 0"] });
    json!({ "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "JobSink",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "job": { "spec": { "backoffLimit": 0,
            "template": { "spec": { "restartPolicy": "Never", "containers": [container] } } } } } })
}

/// An appliance whose senders authenticate, with a Broker and an account.
fn start(mode: &str) -> Appliance {
    let setup = ApplianceSetup::new(BIN).flag("image", &format!("{SHELL}=/bin/sh"));
    let appliance = setup.flag("cluster-local", "127.0.0.1:0").start();
    features(&appliance, &json!({ "authentication-oidc": "enabled", "default-authorization-mode": mode }));
    account(appliance.api(), NAMESPACE, "robot");
    account(appliance.api(), "kube-system", "friend");
    appliance
}

/// The path of the address on the events listener.
fn path_of(object: &Value) -> String {
    let url = object["status"]["address"]["url"].as_str().unwrap();
    let (_, rest) = url.split_once("://").unwrap();
    format!("/{}", rest.split_once('/').unwrap().1)
}

fn send(appliance: &Appliance, event: &TestEvent, path: &str, token: &str) -> HttpResponse {
    let call = event.binary(path).header("Authorization", &format!("Bearer {token}"));
    call.send(appliance.events())
}

fn ready_reason(object: &Value) -> String {
    condition(object, "EventPoliciesReady").unwrap()["reason"].as_str().unwrap_or_default().to_owned()
}

fn has_policies(api: KitApi, kind: &str, name: &str) -> Value {
    api.wait_for(kind, NAMESPACE, name, TIMEOUT, |object| {
        object["status"]["policies"].as_array().is_some_and(|all| !all.is_empty())
    })
}

/// X-FEA-07, X-FEA-08, X-FEA-09: the events of a JobSink need a token for its audience, and policies say which sender may send
/// which of them. Its own host is closed then.
#[test]
fn job_sink_admits_senders_as_a_broker_does() {
    let mut appliance = start("allow-same-namespace");
    let api = appliance.api();
    api.create(&job_sink("jobs"));
    let sink = asking(api, "JobSink", "jobs");
    let audience = sink["status"]["address"]["audience"].as_str().unwrap().to_owned();
    assert_eq!(audience, "sinks.knative.dev/jobsink/default/jobs");
    assert_eq!(ready_reason(&sink), "DefaultAuthorizationMode");
    let path = path_of(&sink);
    let (robot, friend) = (token(api, NAMESPACE, "robot", &audience), token(api, "kube-system", "friend", &audience));
    let other = token(api, NAMESPACE, "robot", "other");
    let event = TestEvent::new("1");
    wait::until(TIMEOUT, "a token to be accepted", || {
        (send(&appliance, &event, &path, &robot).status == 202).then_some(())
    });
    for (shown, status) in [("nonsense", 401), (other.as_str(), 401), (friend.as_str(), 403), (robot.as_str(), 202)] {
        let answer = send(&appliance, &event, &path, shown);
        assert_eq!(answer.status, status, "{answer}");
    }
    let silent = event.binary(&path).send(appliance.events());
    assert_eq!(silent.status, 401, "{silent}");
    assert!(silent.header("www-authenticate").is_some_and(|text| text.starts_with("Bearer ")), "{silent}");

    // The state of a Job is for the same senders.
    let taken = send(&appliance, &event, &path, &robot);
    let location = taken.header("location").unwrap().to_owned();
    assert_eq!(HttpCall::get(&location).send(appliance.events()).status, 401);
    let state = || {
        let call = HttpCall::get(&location).header("Authorization", &format!("Bearer {robot}"));
        call.send(appliance.events())
    };
    let done = wait::until(TIMEOUT, "the end of the Job", || Some(state()).filter(|state| state.status != 202));
    assert_eq!((done.status, done.header("reason")), (200, Some("Complete")), "{done}");

    // Neither clients nor Triggers get past the events listener.
    let direct = |appliance: &Appliance| {
        let call =
            event.binary("/default/jobs").host(JOB_SINK_HOST).header("Authorization", &format!("Bearer {robot}"));
        call.send(appliance.private()).status
    };
    assert_eq!(direct(&appliance), 404);
    appliance.restart();
    assert_eq!(direct(&appliance), 404, "after a restart too");
    let api = appliance.api();

    let to = json!([{ "ref": { "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "JobSink", "name": "jobs" } }]);
    let from = json!([{ "sub": "system:serviceaccount:kube-system:friend" }]);
    api.create(&policy("friends", json!({ "to": to, "from": from, "filters": [{ "prefix": { "id": "fine" } }] })));
    let listed = has_policies(api, "JobSink", "jobs");
    assert_eq!(listed["status"]["policies"][0]["name"], "friends");
    let fine = TestEvent::new("fine-1");
    for (event, shown, status) in [(&fine, &robot, 403), (&fine, &friend, 202), (&event, &friend, 403)] {
        let sent = wait::until(TIMEOUT, "the policy", || {
            Some(send(&appliance, event, &path, shown)).filter(|answer| answer.status == status)
        });
        assert_eq!(sent.status, status);
    }
    // The attributes of an event in structured mode are in its body.
    let structured = fine.structured(&path).header("Authorization", &format!("Bearer {friend}"));
    assert_eq!(structured.send(appliance.events()).status, 202);

    features(&appliance, &json!({ "authentication-oidc": "disabled" }));
    let open = api.wait_for("JobSink", NAMESPACE, "jobs", TIMEOUT, |object| {
        object["status"]["address"]["audience"].is_null() && object["status"]["address"]["url"].is_string()
    });
    assert_eq!(open["status"]["address"]["url"], format!("http://{JOB_SINK_HOST}/default/jobs"));
    assert_eq!(ready_reason(&open), "OIDCDisabled");
    assert_eq!(direct(&appliance), 202);
}

/// X-FEA-05: by TLS, a JobSink has the address and the certificates of the events listener.
#[test]
fn job_sink_by_tls_has_the_certificates_of_brokers() {
    let setup = ApplianceSetup::new(BIN).flag("image", &format!("{SHELL}=/bin/sh"));
    let appliance = setup.flag("events-https", "127.0.0.1:0").start();
    let api = appliance.api();
    api.create(&broker("main"));
    api.create(&job_sink("jobs"));
    features(&appliance, &json!({ "transport-encryption": "permissive" }));
    let both = api.wait_for("JobSink", NAMESPACE, "jobs", TIMEOUT, |object| {
        object["status"]["addresses"].as_array().is_some_and(|all| all.len() == 2)
    });
    let names: Vec<_> = both["status"]["addresses"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect();
    assert_eq!(names, ["https", "http"]);
    assert_eq!(TestEvent::new("1").binary(&path_of(&both)).send(appliance.events()).status, 202);
    features(&appliance, &json!({ "transport-encryption": "strict" }));
    let is_tls =
        |object: &Value| object["status"]["address"]["url"].as_str().is_some_and(|url| url.starts_with("https:"));
    let strict = api.wait_for("JobSink", NAMESPACE, "jobs", TIMEOUT, is_tls);
    let of_broker = api.wait_for("Broker", NAMESPACE, "main", TIMEOUT, is_tls);
    let ca = |object: &Value| object["status"]["address"]["CACerts"].as_str().map(str::to_owned);
    assert!(ca(&strict).is_some_and(|pem| pem.contains("BEGIN CERTIFICATE")), "{strict:#}");
    assert_eq!(ca(&strict), ca(&of_broker));
    assert_eq!(TestEvent::new("2").binary(&path_of(&strict)).send(appliance.events()).status, 404, "in the clear");
    // A Trigger reaches it by TLS.
    let subscriber =
        json!({ "ref": { "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "JobSink", "name": "jobs" } });
    api.create(&with(kit::manifest::trigger("t", "main", ""), "/spec/subscriber", subscriber));
    let trigger = api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    assert_eq!(trigger["status"]["subscriberCACerts"].as_str().map(str::to_owned), ca(&strict));
}

/// X-FEA-07, X-FEA-09, TRN-29: the events of a sink that an adapter runs need a token, also those of a Trigger, and the Service
/// of the adapter has no host of its own then.
#[test]
fn adapter_sink_admits_senders_as_a_broker_does() {
    if !Path::new(BIN).with_file_name("sluicegate-adapters").is_file() {
        return eprintln!("skipped: sluicegate-adapters is not built");
    }
    let appliance = start("deny-all");
    let api = appliance.api();
    let log = |name: &str| {
        json!({ "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "IntegrationSink",
            "metadata": { "name": name, "namespace": NAMESPACE }, "spec": { "log": {} } })
    };
    api.create(&broker("main"));
    api.create(&log("log"));
    let sink = asking(api, "IntegrationSink", "log");
    let audience = "sinks.knative.dev/integrationsink/default/log";
    assert_eq!(sink["status"]["address"]["audience"], audience);
    let path = path_of(&sink);
    let robot = token(api, NAMESPACE, "robot", audience);
    let event = TestEvent::new("1");
    wait::until(TIMEOUT, "the sender to be refused", || {
        (send(&appliance, &event, &path, &robot).status == 403).then_some(())
    });
    assert_eq!(event.binary(&path).send(appliance.events()).status, 401);
    let host = "log-integrationsink.default.svc.cluster.local";
    assert_eq!(event.binary("/").host(host).send(appliance.private()).status, 404);

    let to = json!([{ "selector": { "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "IntegrationSink",
        "matchLabels": { "protected": "yes" } } }]);
    api.patch("IntegrationSink", NAMESPACE, "log", &json!({ "metadata": { "labels": { "protected": "yes" } } }));
    let trigger = json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "name": "t" });
    let from = json!([{ "sub": "system:serviceaccount:default:robot" }, { "ref": trigger }]);
    let subscriber =
        json!({ "ref": { "apiVersion": "sinks.knative.dev/v1alpha1", "kind": "IntegrationSink", "name": "log" } });
    api.create(&with(kit::manifest::trigger("t", "main", ""), "/spec/subscriber", subscriber));
    api.create(&policy("senders", json!({ "to": to, "from": from })));
    assert_eq!(has_policies(api, "IntegrationSink", "log")["status"]["policies"][0]["name"], "senders");
    wait::until(TIMEOUT, "the sender to be admitted", || {
        (send(&appliance, &event, &path, &robot).status == 202).then_some(())
    });
    // A Trigger delivers with its own token.
    let trigger = api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    assert_eq!(trigger["status"]["subscriberAudience"], audience);
}
