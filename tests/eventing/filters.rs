//! `spec.filters` through the built binary: each dialect, invalid filters, and precedence.

use std::collections::BTreeSet;

use kit::manifest::{NAMESPACE, trigger, with};
use kit::scene::{SILENCE, delivery, ids, only, post, subscribe};
use kit::{Appliance, ApplianceSetup, EventSink, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn appliance() -> Appliance {
    kit::scene::with_broker(&ApplianceSetup::new(BIN))
}

fn filters(filters: Value) -> (&'static str, Value) {
    ("/spec/filters", filters)
}

/// X-FLT-02, X-FLT-04 to X-FLT-10: each dialect passes its own events and no others.
#[test]
fn each_dialect_passes_its_own_events() {
    let appliance = appliance();
    let cases: Vec<(&str, Value, &[&str])> = vec![
        ("exact", json!([{"exact": {"type": "order.paid", "region": "eu"}}]), &["paid-eu"]),
        ("prefix", json!([{"prefix": {"type": "order."}}]), &["paid-eu", "paid-us", "sent"]),
        ("suffix", json!([{"suffix": {"type": ".paid"}}]), &["paid-eu", "paid-us", "invoice"]),
        ("all", json!([{"all": [{"prefix": {"type": "order"}}, {"suffix": {"type": "sent"}}]}]), &["sent"]),
        ("any", json!([{"any": [{"exact": {"region": "eu"}}, {"exact": {"id": "sent"}}]}]), &["paid-eu", "sent"]),
        ("not", json!([{"not": {"prefix": {"type": "order."}}}]), &["invoice"]),
        ("list", json!([{"suffix": {"type": ".paid"}}, {"not": {"exact": {"region": "eu"}}}]), &["paid-us", "invoice"]),
        ("cesql", json!([{"cesql": "type LIKE 'order.%' AND EXISTS region AND INT(amount) >= 10"}]), &["paid-us"]),
        ("cesql-missing", json!([{"cesql": "region != 'eu'"}]), &["paid-us"]),
        ("cesql-no-boolean", json!([{"cesql": "region"}]), &[]),
        ("all-of-them", json!([{"suffix": {"type": "paid"}}, {"prefix": {"type": "inv"}}]), &["invoice"]),
    ];
    let sinks: Vec<EventSink> = cases.iter().map(|_| EventSink::start()).collect();
    for ((name, spec, _), sink) in cases.iter().zip(&sinks) {
        subscribe(appliance.api(), name, &sink.url(), &[filters(spec.clone())]);
    }

    let events = [
        TestEvent::new("paid-eu").of_type("order.paid").with("region", "eu").with("amount", "9"),
        TestEvent::new("paid-us").of_type("order.paid").with("region", "us").with("amount", "10"),
        TestEvent::new("sent").of_type("order.sent"),
        TestEvent::new("invoice").of_type("invoice.paid"),
    ];
    for event in &events {
        post(&appliance, event);
    }
    for ((name, _, expected), sink) in cases.iter().zip(&sinks) {
        let received: BTreeSet<_> = ids(&sink.wait_for(expected.len(), TIMEOUT)).into_iter().collect();
        assert_eq!(received, expected.iter().map(|id| (*id).to_owned()).collect(), "{name}");
    }
    wait::nothing(SILENCE, "an event that a filter should have withheld", || {
        let over = cases.iter().zip(&sinks).find(|((.., wanted), sink)| sink.received().len() > wanted.len());
        over.map(|((name, ..), _)| *name)
    });
}

/// X-FLT-11: refused where it is written, with the place and, for an expression, the character.
#[test]
fn a_filter_that_cannot_work_is_refused_with_its_place() {
    let appliance = appliance();
    for (filter, said) in [
        (json!({"cesql": "type = 'x' AN id = '1'"}), &["spec.filters[0].cesql", "at character 12"][..]),
        (json!({"any": [{"not": {"cesql": "type LIKE 5"}}]}), &["spec.filters[0].any[0].not.cesql", "11"]),
        (json!({"exact": {"type": "x"}, "cesql": "TRUE"}), &["spec.filters[0]", "dialect"]),
        (json!({"prefix": {"Not-a-name": "x"}}), &["spec.filters[0].prefix", "Not-a-name"]),
        (json!({"regex": {"type": "x"}}), &["regex"]),
    ] {
        let object = with(trigger("t", "main", "http://127.0.0.1:9/"), "/spec/filters", json!([filter]));
        let refused = appliance.api().try_create(&object);
        assert!(matches!(refused.status, 400 | 422), "{filter}: {refused}");
        let text = refused.to_string();
        assert!(said.iter().all(|part| text.contains(part)), "{filter}: {refused}");
        assert!(appliance.api().get("Trigger", NAMESPACE, "t").is_none());
    }
}

/// X-FLT-01: `filters` counts alone while there are any, also when it comes later and goes again.
#[test]
fn filters_take_the_place_of_filter() {
    let (sink, dead) = (EventSink::start(), EventSink::start());
    let appliance = appliance();
    let api = appliance.api();
    let both = [only(json!({ "type": "old" })), filters(json!([{ "exact": { "type": "new" } }])), delivery(0, &dead)];
    subscribe(api, "t", &sink.url(), &both);
    let send = |round: &str| {
        for ty in ["old", "new"] {
            post(&appliance, &TestEvent::new(&format!("{ty}-{round}")).of_type(ty));
        }
    };
    send("1");
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["new-1"]);

    api.patch("Trigger", NAMESPACE, "t", &json!({ "spec": { "filters": [] } }));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    send("2");
    assert_eq!(ids(&sink.wait_for(2, TIMEOUT)), ["new-1", "old-2"]);

    api.patch("Trigger", NAMESPACE, "t", &json!({ "spec": { "filters": [{ "cesql": "type = 'new'" }] } }));
    api.wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    send("3");
    assert_eq!(ids(&sink.wait_for(3, TIMEOUT)), ["new-1", "old-2", "new-3"]);
    wait::nothing(SILENCE, "an event of the other filter", || (sink.received().len() > 3).then_some(()));
}

/// AMB-45: a filter sees an attribute's string form, whichever mode and JSON type it came in.
#[test]
fn both_content_modes_are_filtered_alike() {
    let sink = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "exact", &sink.url(), &[filters(json!([{"exact": {"count": "5"}}]))]);
    subscribe(appliance.api(), "sql", &sink.url(), &[filters(json!([{"cesql": "count = 5 AND count < 6"}]))]);
    let mut envelope = TestEvent::new("structured").envelope();
    envelope["count"] = json!(5);
    let structured = kit::HttpCall::post(kit::scene::BROKER)
        .header("Content-Type", "application/cloudevents+json")
        .body(envelope.to_string());
    kit::scene::accepted(&structured, &appliance);
    post(&appliance, &TestEvent::new("binary").with("count", "5"));
    let mut received = ids(&sink.wait_for(4, TIMEOUT));
    received.sort();
    assert_eq!(received, ["binary", "binary", "structured", "structured"]);
}
