//! The conditions of every object, whatever its kind: watched from creation on.

use std::collections::BTreeSet;

use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, channel, service, subscription, trigger, with};
use kit::{ApplianceSetup, KitApi, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const IMAGE: &str = "example.com/hello";
/// The kinds whose objects have conditions.
const KINDS: [&str; 12] = [
    "Service",
    "Configuration",
    "Revision",
    "Route",
    "Broker",
    "Trigger",
    "EventType",
    "Channel",
    "InMemoryChannel",
    "Subscription",
    "Sequence",
    "Parallel",
];

fn of_kind(version: &str, kind: &str, name: &str, spec: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec })
}

/// Of each kind one that goes well, and of some one that fails.
fn objects() -> Vec<Value> {
    let sink = "http://127.0.0.1:9/";
    let class = "/spec/template/metadata/annotations/runtime.sluicegate.dev~1class";
    let mut crashing = with(service("crashing", "example.com/none", "x"), class, json!("process"));
    crashing["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", "exit 3"]);
    let step = json!({ "uri": sink });
    vec![
        service("well", IMAGE, "x"),
        service("unmapped", "example.com/none", "x"),
        crashing,
        of_kind(
            "serving.knative.dev/v1",
            "Route",
            "lost",
            json!({ "traffic": [{ "configurationName": "nobody", "percent": 100 }] }),
        ),
        broker("well"),
        trigger("well", "well", sink),
        trigger("lost", "nobody", sink),
        of_kind("eventing.knative.dev/v1beta2", "EventType", "well", json!({ "type": "a.b" })),
        channel("well"),
        subscription("well", "well", sink),
        subscription("lost", "nobody", sink),
        of_kind("flows.knative.dev/v1", "Sequence", "well", json!({ "steps": [step] })),
        of_kind("flows.knative.dev/v1", "Parallel", "well", json!({ "branches": [{ "subscriber": step }] })),
    ]
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn is_word(text: &str) -> bool {
    let rest_fits = |c: char| c.is_ascii_alphanumeric() || "_,:".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(rest_fits) && !text.ends_with([',', ':'])
}

/// What is wrong with the conditions of one object as it was seen.
fn violations(object: &Value) -> Vec<String> {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut wrong = Vec::new();
    let mut kinds = BTreeSet::new();
    let summary = condition(object, "Ready").map_or("", |ready| text(ready, "status")).to_owned();
    for each in &conditions {
        let (kind, status, severity) = (text(each, "type"), text(each, "status"), text(each, "severity"));
        let mut check = |fine: bool, rule: &str| {
            if !fine {
                wrong.push(format!("{rule}: {each}"));
            }
        };
        check(is_word(kind) && kind.starts_with(|c: char| c.is_ascii_uppercase()), "a CamelCase type");
        check(kinds.insert(kind.to_owned()), "each type once");
        check(!kind.starts_with("Not") && !kind.contains("Fail") && !kind.contains("Error"), "said positively");
        check(["True", "False", "Unknown"].contains(&status), "one of three statuses");
        check(["", "Warning", "Info"].contains(&severity), "one of three severities");
        check(each["lastHeartbeatTime"].is_null(), "no heartbeat");
        let time = &each["lastTransitionTime"];
        check(time.as_str().is_none_or(|time| time.ends_with('Z') && time.contains('T')), "a time in RFC 3339");
        let reason = text(each, "reason");
        check(reason.is_empty() || is_word(reason), "a reason of one word");
        check(status != "False" || !reason.is_empty(), "False has a reason");
        check(status != "False" || !text(each, "message").is_empty(), "False has a message");
        check(!text(each, "message").ends_with(".."), "one full stop");
        check(!severity.is_empty() || status != "False" || summary == "False", "a failed part fails the whole");
        check(!severity.is_empty() || status != "Unknown" || summary != "True", "an open part keeps the whole open");
    }
    let parts = conditions.iter().filter(|one| text(one, "severity").is_empty() && text(one, "type") != "Ready");
    let mut parts = parts.map(|one| text(one, "status")).peekable();
    if parts.peek().is_some() && parts.all(|status| status == "True") && summary != "True" {
        wrong.push(format!("no part is hidden: {conditions:?}"));
    }
    if kinds.contains("Ready") == kinds.contains("Succeeded") {
        wrong.push(format!("exactly one summary: {kinds:?}"));
    }
    if condition(object, "Ready").is_some_and(|ready| !text(ready, "severity").is_empty()) {
        wrong.push("a summary without severity".to_owned());
    }
    wrong
}

/// One look at everything: what is wrong, and whether everything has got its verdict.
fn look(api: KitApi, seen: &mut BTreeSet<String>) -> bool {
    let mut settled = true;
    for kind in KINDS {
        for object in api.list(kind, NAMESPACE) {
            let who = format!("{kind} {}", text(&object["metadata"], "name"));
            let Some(ready) = condition(&object, "Ready") else {
                settled = false;
                continue;
            };
            let wrong = violations(&object);
            assert!(wrong.is_empty(), "{who}: {wrong:#?}\n{:#}", object["status"]);
            settled &= text(ready, "status") != "Unknown";
            seen.insert(format!("{who} {}", text(ready, "status")));
        }
    }
    settled
}

/// COND-01, COND-03, COND-04, COND-05, COND-07, COND-09, COND-13, COND-14, COND-15, COND-17, COND-18, COND-19, COND-21,
/// SRV-SVC-14, SRV-CFG-13: in every look at every object from its creation until it is settled.
#[test]
fn conditions_keep_their_rules_in_every_kind_and_at_every_time() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let mut seen = BTreeSet::new();
    for object in objects() {
        api.create(&object);
        look(api, &mut seen);
    }
    let expected = [
        "Service well True",
        "Service unmapped False",
        "Service crashing False",
        "Configuration well True",
        "Revision crashing-00001 False",
        "Route lost False",
        "Broker well True",
        "Trigger well True",
        "Trigger lost False",
        "EventType well True",
        "Channel well True",
        "InMemoryChannel well True",
        "Subscription well True",
        "Sequence well True",
        "Parallel well True",
    ];
    let found = wait::try_until(TIMEOUT, || {
        look(api, &mut seen);
        expected.iter().all(|one| seen.contains(*one)).then_some(())
    });
    let missing: Vec<_> = expected.iter().filter(|one| !seen.contains(**one)).collect();
    assert!(found.is_some(), "never seen: {missing:?}; seen: {seen:#?}");
}

/// SRV-CFG-12, SRV-CFG-14, SRV-CFG-15, SRV-CFG-16, SRV-CON-01, SRV-CON-02: the fields of a settled Configuration,
/// and what its template became.
#[test]
fn a_configuration_shows_what_it_made() {
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let mut template = service("x", IMAGE, "one")["spec"]["template"].clone();
    template["metadata"] = json!({ "labels": { "l": "1" }, "annotations": { "a.dev/b": "2" } });
    api.create(&of_kind("serving.knative.dev/v1", "Configuration", "alone", json!({ "template": template })));
    let configuration = api.wait_ready("Configuration", NAMESPACE, "alone", TIMEOUT);
    let status = &configuration["status"];
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(status["latestCreatedRevisionName"], "alone-00001");
    assert_eq!(status["latestReadyRevisionName"], "alone-00001");
    let revision = api.get("Revision", NAMESPACE, "alone-00001").unwrap();
    assert_eq!(revision["metadata"]["labels"]["l"], "1");
    assert_eq!(revision["metadata"]["annotations"]["a.dev/b"], "2");
    assert_eq!(revision["spec"], configuration["spec"]["template"]["spec"]);
    let desired = revision["status"]["desiredReplicas"].as_i64();
    assert!(desired.is_some_and(|count| count >= 0), "{revision:#}");
}
