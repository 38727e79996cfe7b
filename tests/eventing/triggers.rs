//! Brokers and Triggers through the built binary: each published event is delivered, once for each Trigger
//! whose filter matches it.

use std::collections::BTreeSet;

use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, service, trigger, with};
use kit::scene::{BROKER, SILENCE, accepted, delivery, ids, only, post, subscribe};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, ReceivedRequest, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn appliance() -> Appliance {
    kit::scene::with_broker(&ApplianceSetup::new(BIN))
}

/// EV-RTE-01, EV-BRK-01, DP-PROTO-02, DP-PROTO-03, DP-PROTO-08: one event, sent both ways.
#[test]
fn an_event_arrives_the_same_from_both_content_modes() {
    let sink = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    let object = appliance.api().get("Broker", NAMESPACE, "main").unwrap();
    let address = object["status"]["address"]["url"].as_str().unwrap_or_default();
    assert!(address.ends_with(BROKER), "{address}");

    let event = TestEvent::new("1")
        .of_type("com.example.made")
        .with("source", "/orders/7")
        .with("subject", "seven")
        .with("time", "2026-01-02T03:04:05Z")
        .with("someextension", "value")
        .data("application/json", r#"{"a":[1,2,{"b":null}]}"#);
    accepted(&event.binary(BROKER), &appliance);
    sink.wait_for(1, TIMEOUT);
    accepted(&event.structured(BROKER), &appliance);

    for (received, mode) in sink.wait_for(2, TIMEOUT).iter().zip(["binary", "structured"]) {
        assert_eq!((received.request.method.as_str(), received.request.path()), ("POST", "/"), "{mode}");
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", "1"),
            ("type", "com.example.made"),
            ("source", "/orders/7"),
            ("subject", "seven"),
            ("time", "2026-01-02T03:04:05Z"),
            ("someextension", "value"),
            ("datacontenttype", "application/json"),
        ] {
            assert_eq!(received.attribute(name).as_deref(), Some(value), "{name}, {mode}");
        }
        let data: Value = serde_json::from_slice(&received.data()).unwrap();
        assert_eq!(data, json!({ "a": [1, 2, { "b": null }] }), "{mode}");
    }
}

/// EV-BRK-02: whatever is a CloudEvent is taken.
#[test]
fn every_valid_event_is_accepted() {
    let sink = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    let extended = (0..20).fold(TestEvent::new("extended"), |event, n| event.with(&format!("ext{n}"), "value"));
    let events = [
        TestEvent::new("minimal"),
        extended,
        TestEvent::new("binary").data("application/octet-stream", [0, 0xff, 0x80]),
        TestEvent::new("large").data("text/plain", "x".repeat(64 * 1024)),
        TestEvent::new("old").with("specversion", "0.3"),
        TestEvent::new("percent%20encoded%C3%BC"),
    ];
    for event in &events {
        accepted(&event.binary(BROKER), &appliance);
        accepted(&event.structured(BROKER), &appliance);
    }
    sink.wait_for(2 * events.len(), TIMEOUT);
}

/// EV-RTE-09, EV-RTE-16, DP-PROTO-01: data is bytes, and stays the bytes that it was.
#[test]
fn data_is_never_altered() {
    let sink = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    let noise: Vec<u8> = (0..100_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("application/json", b" { \"a\" :  1.0, \"a\": 2 }\n".to_vec()),
        ("application/json", b"this is no JSON".to_vec()),
        ("text/plain; charset=utf-8", "Gr\u{fc}\u{df}e\r\n\0".as_bytes().to_vec()),
        ("text/plain", vec![0xff, 0xfe, 0xc3]),
        ("application/octet-stream", noise),
        ("application/xml", Vec::new()),
    ];
    for (number, (content_type, data)) in cases.iter().enumerate() {
        post(&appliance, &TestEvent::new(&number.to_string()).data(content_type, data.clone()));
    }
    for received in sink.wait_for(cases.len(), TIMEOUT) {
        let (content_type, data) = &cases[received.id().parse::<usize>().unwrap()];
        assert_eq!(received.header("content-type"), Some(*content_type));
        assert!(received.request.body == *data, "{} bytes of {content_type}", data.len());
    }
}

/// EV-RTE-03, EV-RTE-04, EV-RTE-06, EV-RTE-07, EV-BRK-03: one copy for each Trigger that matches.
#[test]
fn each_matching_trigger_gets_its_own_copy() {
    let (orders, all) = (EventSink::start(), EventSink::start());
    let appliance = appliance();
    let api = appliance.api();
    subscribe(api, "orders", &orders.url(), &[only(json!({ "type": "order" }))]);
    subscribe(api, "red", &orders.url(), &[only(json!({ "type": "order", "color": "red" }))]);
    subscribe(api, "none", &orders.url(), &[only(json!({ "type": "order", "source": "/elsewhere" }))]);
    subscribe(api, "all", &all.url(), &[]);
    subscribe(api, "again", &all.url(), &[only(json!({}))]);

    post(&appliance, &TestEvent::new("blue").of_type("order").with("color", "blue"));
    post(&appliance, &TestEvent::new("red").of_type("order").with("color", "red"));
    post(&appliance, &TestEvent::new("other").of_type("invoice").with("color", "red"));
    post(&appliance, &TestEvent::new("case").of_type("Order"));

    let mut received = ids(&all.wait_for(8, TIMEOUT));
    received.sort();
    assert_eq!(received, ["blue", "blue", "case", "case", "other", "other", "red", "red"]);
    let mut received = ids(&orders.wait_for(3, TIMEOUT));
    received.sort();
    assert_eq!(received, ["blue", "red", "red"]);
    wait::nothing(SILENCE, "one copy too many", || (orders.received().len() > 3).then_some(()));
}

/// EV-RTE-03: without faults, exactly once for each Trigger.
#[test]
fn a_thousand_events_are_a_thousand_deliveries_for_each_trigger() {
    let (one, two) = (EventSink::start(), EventSink::start());
    let appliance = appliance();
    subscribe(appliance.api(), "one", &one.url(), &[]);
    subscribe(appliance.api(), "two", &two.url(), &[]);
    let mut connection = HttpConnection::open(appliance.events());
    for n in 0..1000 {
        assert_eq!(connection.call(&TestEvent::new(&n.to_string()).binary(BROKER)).status, 202);
    }
    for sink in [&one, &two] {
        let received = sink.wait_for(1000, TIMEOUT);
        let different: BTreeSet<_> = ids(&received).into_iter().collect();
        assert_eq!((received.len(), different.len()), (1000, 1000));
    }
    wait::nothing(SILENCE, "a delivery too many", || {
        (one.received().len() + two.received().len() > 2000).then_some(())
    });
}

/// EV-BRK-05: a Trigger hears its own Broker only.
#[test]
fn brokers_are_apart() {
    let (main, other) = (EventSink::start(), EventSink::start());
    let appliance = appliance();
    let api = appliance.api();
    api.create(&broker("other"));
    api.wait_ready("Broker", NAMESPACE, "other", TIMEOUT);
    subscribe(api, "main", &main.url(), &[]);
    api.create(&trigger("other", "other", &other.url()));
    api.wait_ready("Trigger", NAMESPACE, "other", TIMEOUT);

    accepted(&TestEvent::new("m").binary(BROKER), &appliance);
    accepted(&TestEvent::new("o").binary("/brokers/default/other"), &appliance);
    assert_eq!(ids(&main.wait_for(1, TIMEOUT)), ["m"]);
    assert_eq!(ids(&other.wait_for(1, TIMEOUT)), ["o"]);
    wait::nothing(SILENCE, "an event of the other broker", || {
        (main.received().len() + other.received().len() > 2).then_some(())
    });
}

/// EV-TRG-12: Ready means that nothing from now on is missed.
#[test]
fn an_event_right_after_ready_is_not_missed() {
    let appliance = appliance();
    let sink = EventSink::start();
    for round in 0..30 {
        let name = format!("round-{round}");
        subscribe(appliance.api(), &name, &sink.url(), &[only(json!({ "round": round.to_string() }))]);
        post(&appliance, &TestEvent::new(&name).with("round", &round.to_string()));
    }
    let received: BTreeSet<_> = ids(&sink.wait_for(30, TIMEOUT)).into_iter().collect();
    assert_eq!(received.len(), 30, "{received:?}");
}

/// DP-PROTO-06, DP-PROTO-07, DP-PROTO-11, DP-PROTO-13, DP-ACK-01, DP-ACK-03, DP-ACK-07, DP-ACK-11: the
/// answers of a broker.
#[test]
fn a_broker_answers_by_the_book() {
    let sink = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    let send = |call: HttpCall| call.send(appliance.events());

    let options = send(HttpCall::new("OPTIONS", BROKER));
    assert_eq!(options.status, 200, "{options}");
    assert!(options.header("allow").is_some_and(|allow| allow.contains("POST")), "{options}");
    for method in ["GET", "PUT", "DELETE", "PATCH"] {
        let refused = send(HttpCall::new(method, BROKER));
        assert_eq!(refused.status, 405, "{method}");
        assert!(refused.header("allow").is_some_and(|allow| allow.contains("POST")), "{method}: {refused}");
    }
    for path in ["/", "/brokers/default/none", "/brokers/other/main", "/channels/default/main", "/main"] {
        assert_eq!(send(TestEvent::new("lost").binary(path)).status, 404, "{path}");
    }

    accepted(&TestEvent::new("twice").binary(BROKER), &appliance);
    accepted(&TestEvent::new("twice").binary(BROKER), &appliance);
    accepted(
        &TestEvent::new("upgrade").binary(BROKER).header("Upgrade", "foo").header("Connection", "Upgrade"),
        &appliance,
    );
    let batch = json!([TestEvent::new("batch-1").envelope(), TestEvent::new("batch-2").envelope()]);
    let content_type = "application/cloudevents-batch+json";
    accepted(&HttpCall::post(BROKER).header("Content-Type", content_type).body(batch.to_string()), &appliance);

    let mut received = ids(&sink.wait_for(5, TIMEOUT));
    received.sort();
    assert_eq!(received, ["batch-1", "batch-2", "twice", "twice", "upgrade"]);
}

/// DP-OBS-01: the trace goes through.
#[test]
fn a_trace_goes_through_the_broker() {
    let sink = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    accepted(&TestEvent::new("1").binary(BROKER).header("traceparent", &parent), &appliance);
    let received = sink.wait_for(1, TIMEOUT);
    assert_eq!(received[0].header("traceparent").and_then(|value| value.split('-').nth(1)), Some(trace));
}

/// EV-TRG-01, EV-TRG-02, EV-BRK-13: a Trigger lives without its Broker, but is not Ready.
#[test]
fn a_trigger_is_ready_only_while_its_broker_is() {
    let sink = EventSink::start();
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let ready_is = |wanted: &'static str| {
        move |object: &Value| condition(object, "Ready").is_some_and(|ready| ready["status"] == wanted)
    };
    api.create(&trigger("early", "main", &sink.url()));
    let early = api.wait_for("Trigger", NAMESPACE, "early", TIMEOUT, ready_is("False"));
    assert_eq!(condition(&early, "Ready").unwrap()["reason"], "BrokerDoesNotExist");

    api.create(&broker("main"));
    api.wait_ready("Trigger", NAMESPACE, "early", TIMEOUT);
    post(&appliance, &TestEvent::new("1"));
    sink.wait_for(1, TIMEOUT);

    api.delete("Broker", NAMESPACE, "main");
    api.wait_for("Trigger", NAMESPACE, "early", TIMEOUT, ready_is("False"));
    wait::until(TIMEOUT, "the broker's address to be gone", || {
        (TestEvent::new("2").binary(BROKER).send(appliance.events()).status == 404).then_some(())
    });
}

/// EV-TRG-09, EV-BRK-12, EV-ADR-05, EV-ADR-06: nothing is Ready before all it needs has an address.
#[test]
fn a_reference_to_nothing_keeps_a_trigger_from_ready() {
    let sink = EventSink::start();
    let appliance = appliance();
    let missing = json!({ "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "missing" } });
    for (name, pointer, failed) in [
        ("no-subscriber", "/spec/subscriber", "SubscriberResolved"),
        ("no-dead-letter-sink", "/spec/delivery/deadLetterSink", "DeadLetterSinkResolved"),
    ] {
        let object = trigger(name, "main", &sink.url());
        appliance.api().create(&with(object, pointer, missing.clone()));
        let object = appliance.api().wait_for("Trigger", NAMESPACE, name, TIMEOUT, |object| {
            condition(object, "Ready").is_some_and(|ready| ready["status"] == "False")
        });
        let why = condition(&object, failed).unwrap_or_else(|| panic!("no {failed} in {object:#}"));
        assert_eq!(why["status"], "False", "{why}");
        assert!(why["message"].as_str().is_some_and(|text| text.contains("missing")), "{why}");
    }
}

/// EV-ADR-01, EV-ADR-12, EV-TRG-05, SRV-SVC-17: a Service is a subscriber by its name, and is woken.
#[test]
fn a_service_is_subscribed_by_reference() {
    let dead = EventSink::start();
    let appliance = ApplianceSetup::new(BIN).hello_image("example.com/hello").start();
    let api = appliance.api();
    api.create(&broker("main"));
    api.create(&service("hello", "example.com/hello", "events"));
    let target = api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let reference = json!({ "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello" } });
    let ready = subscribe(api, "to-hello", "http://unused/", &[("/spec/subscriber", reference), delivery(0, &dead)]);
    assert_eq!(ready["status"]["subscriberUri"], target["status"]["address"]["url"]);

    for n in 0..10 {
        post(&appliance, &TestEvent::new(&n.to_string()));
    }
    wait::nothing(SILENCE, "the service did not take it", || dead.received().first().map(ReceivedRequest::id));
}

/// EV-TRG-11: a changed filter counts for what comes after Ready.
#[test]
fn a_filter_can_be_changed_in_place() {
    let sink = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "t", &sink.url(), &[only(json!({ "type": "one" }))]);
    appliance.api().patch(
        "Trigger",
        NAMESPACE,
        "t",
        &json!({ "spec": { "filter": { "attributes": { "type": "two" } } } }),
    );
    appliance.api().wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    for kind in ["one", "two"] {
        post(&appliance, &TestEvent::new(kind).of_type(kind));
    }
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["two"]);
    wait::nothing(SILENCE, "the old filter still counts", || (sink.received().len() > 1).then_some(()));
}
