//! Sequence and Parallel through the built binary: events pass step by step, and branch by branch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use kit::manifest::NAMESPACE;
use kit::scene::{SILENCE, accepted, ids};
use kit::{ApplianceSetup, EventSink, ReceivedRequest, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

/// Answers with an event whose id lists the steps that had it.
fn step(name: &'static str) -> EventSink {
    EventSink::answering(move |event| {
        let id = format!("{}-{name}", event.id());
        let attributes = [("specversion", "1.0"), ("id", &id), ("source", "/kit"), ("type", "kit.test")];
        SinkResponse::event(200, &attributes, &json!({}))
    })
}

fn flow(kind: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "flows.knative.dev/v1",
        "kind": kind,
        "metadata": { "name": "f", "namespace": NAMESPACE },
        "spec": spec,
    })
}

/// Where the flow takes events, as a path.
fn entry(ready: &Value) -> String {
    let url = ready["status"]["address"]["url"].as_str().unwrap_or_default();
    format!("/{}", url.splitn(4, '/').nth(3).unwrap_or_default())
}

#[test]
fn a_sequence_hands_each_answer_to_the_next_step() {
    let (first, second, last) = (step("a"), step("b"), EventSink::start());
    let appliance = ApplianceSetup::new(BIN).start();
    let steps = json!([{ "uri": first.url() }, { "uri": second.url() }]);
    appliance.api().create(&flow("Sequence", json!({ "steps": steps, "reply": { "uri": last.url() } })));
    let ready = appliance.api().wait_ready("Sequence", NAMESPACE, "f", TIMEOUT);
    accepted(&TestEvent::new("1").binary(&entry(&ready)), &appliance);
    assert_eq!(ids(&last.wait_for(1, TIMEOUT)), ["1-a-b"]);
    assert_eq!((ids(&first.received()), ids(&second.received())), (vec!["1".into()], vec!["1-a".into()]));
}

#[test]
fn a_parallel_asks_the_filter_first_and_sends_every_answer_on() {
    let filter = EventSink::answering(|event| match event.id().as_str() {
        "good" => {
            let attributes = [("specversion", "1.0"), ("id", "good"), ("source", "/kit"), ("type", "kit.test")];
            SinkResponse::event(200, &attributes, &json!({}))
        }
        _ => SinkResponse::status(202),
    });
    let (picky, open, own, common) = (step("a"), step("b"), EventSink::start(), EventSink::start());
    let appliance = ApplianceSetup::new(BIN).start();
    let branches = json!([
        { "filter": { "uri": filter.url() }, "subscriber": { "uri": picky.url() } },
        { "subscriber": { "uri": open.url() }, "reply": { "uri": own.url() } },
    ]);
    appliance.api().create(&flow("Parallel", json!({ "branches": branches, "reply": { "uri": common.url() } })));
    let ready = appliance.api().wait_ready("Parallel", NAMESPACE, "f", TIMEOUT);
    for id in ["good", "bad"] {
        accepted(&TestEvent::new(id).binary(&entry(&ready)), &appliance);
    }
    let names: BTreeSet<_> = own.wait_for(2, TIMEOUT).iter().map(ReceivedRequest::id).collect();
    assert_eq!(names, BTreeSet::from(["good-b".to_owned(), "bad-b".to_owned()]));
    assert_eq!(ids(&common.wait_for(1, TIMEOUT)), ["good-a"]);
    wait::nothing(SILENCE, "what the filter kept back came through", || (picky.received().len() > 1).then_some(()));
}

/// EV-RTE-20, EV-TRG-11: a step is taken out while events wait for it, and while the one before it is just answering. What waits is still
/// its own, what is answered continues without it, and its channel goes when that is done.
#[test]
fn a_step_that_is_taken_out_has_what_waits_for_it() {
    let is_up = Arc::new(AtomicBool::new(false));
    let (asked, let_go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (thinks, goes) = (Arc::clone(&asked), Arc::clone(&let_go));
    let answer = |event: &ReceivedRequest, name: &str| {
        let id = format!("{}-{name}", event.id());
        let attributes = [("specversion", "1.0"), ("id", &*id), ("source", "/kit"), ("type", "kit.test")];
        SinkResponse::event(200, &attributes, &json!({}))
    };
    let first = EventSink::answering(move |event| {
        if event.id() == "slow" {
            thinks.store(true, SeqCst);
            wait::until(TIMEOUT, "the step is taken out", || goes.load(SeqCst).then_some(()));
        }
        answer(event, "a")
    });
    let seen = Arc::clone(&is_up);
    let second = EventSink::answering(
        move |event| {
            if seen.load(SeqCst) { answer(event, "b") } else { SinkResponse::status(503) }
        },
    );
    let last = EventSink::start();
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let patient = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S" });
    let steps = json!([{ "uri": first.url() }, { "uri": second.url(), "delivery": patient }]);
    api.create(&flow("Sequence", json!({ "steps": steps, "reply": { "uri": last.url() } })));
    let ready = api.wait_ready("Sequence", NAMESPACE, "f", TIMEOUT);
    accepted(&TestEvent::new("waits").binary(&entry(&ready)), &appliance);
    second.wait_for(1, TIMEOUT);
    accepted(&TestEvent::new("slow").binary(&entry(&ready)), &appliance);
    wait::until(TIMEOUT, "the first step", || asked.load(SeqCst).then_some(()));

    api.patch("Sequence", NAMESPACE, "f", &json!({ "spec": { "steps": [{ "uri": first.url() }] } }));
    wait::until(TIMEOUT, "the step is out", || {
        let first = api.get("Subscription", NAMESPACE, "f-kn-sequence-0")?;
        let status = &first["status"];
        let is_current = status["observedGeneration"] == first["metadata"]["generation"];
        let leads_on = status["physicalSubscription"]["replyUri"] == json!(last.url());
        (is_current && leads_on && kit::api::is_ready(&first)).then_some(())
    });
    let_go.store(true, SeqCst);
    assert_eq!(ids(&last.wait_for(1, TIMEOUT)), ["slow-a"]);
    assert!(api.get("InMemoryChannel", NAMESPACE, "f-kn-sequence-1").is_some());
    is_up.store(true, SeqCst);
    assert_eq!(ids(&last.wait_for(2, TIMEOUT)), ["slow-a", "waits-a-b"]);
    for kind in ["InMemoryChannel", "Subscription"] {
        api.wait_gone(kind, NAMESPACE, "f-kn-sequence-1", TIMEOUT);
    }
}

/// EV-RTE-02, EV-RTE-10, APP-07: a Sequence whose first step was away has used its namespace's quota up. When the step is back, each
/// event needs room in the next channel before it leaves the one where it is: nothing is refused there, and nothing is lost.
#[test]
fn a_sequence_empties_though_its_namespace_has_used_its_quota_up() {
    let is_up = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_up);
    let last = EventSink::start();
    let data = json!({ "padding": "x".repeat(10_000) });
    let answered = data.clone();
    let first = EventSink::answering(move |event| {
        let attributes = [("specversion", "1.0"), ("id", &*event.id()), ("source", "/kit"), ("type", "kit.test")];
        if seen.load(SeqCst) { SinkResponse::event(200, &attributes, &answered) } else { SinkResponse::status(503) }
    });
    let appliance = ApplianceSetup::new(BIN)
        .flag("workers", "1")
        .flag("namespace-event-quota", &format!("{NAMESPACE}=200k"))
        .start();
    let patient = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S" });
    let steps = json!([{ "uri": first.url(), "delivery": patient }, { "uri": last.url() }]);
    appliance.api().create(&flow("Sequence", json!({ "steps": steps })));
    let ready = appliance.api().wait_ready("Sequence", NAMESPACE, "f", TIMEOUT);
    let mut taken = BTreeSet::new();
    let refused = loop {
        let id = taken.len().to_string();
        let event = TestEvent::new(&id).data("application/json", data.to_string());
        match event.binary(&entry(&ready)).send(appliance.events()).status {
            202 => taken.insert(id),
            other => break other,
        };
        assert!(taken.len() < 1000, "no quota");
    };
    assert_eq!(refused, 429);
    is_up.store(true, SeqCst);
    let through: BTreeSet<_> = last.wait_for(taken.len(), TIMEOUT).iter().map(ReceivedRequest::id).collect();
    assert_eq!(through, taken);
    assert_eq!(appliance.metric("sluicegate_subscriber_dropped_total", "sequence-0"), 0);
}
