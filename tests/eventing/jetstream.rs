//! Brokers of class SluicegateJetStream, with a server of NATS: through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::time::Duration;

use kit::api::condition;
use kit::manifest::{NAMESPACE, broker, with};
use kit::scene::{BROKER, SILENCE, delivery, ids, only, post, subscribe};
use kit::{Appliance, ApplianceSetup, EventSink, KitApi, NatsServer, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const CLASS: &str = "eventing.knative.dev/broker.class";

pub(crate) fn setup() -> ApplianceSetup {
    ApplianceSetup::new(BIN).flag("workers", "2")
}

fn config_map(name: &str, data: &Value) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data })
}

pub(crate) fn jetstream_broker(name: &str) -> Value {
    let config = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name });
    let object = with(broker(name), "/metadata/annotations", json!({ CLASS: "SluicegateJetStream" }));
    with(object, "/spec/config", config)
}

/// An appliance with the Broker `main`, whose stream has `replicas` copies on these servers.
pub(crate) fn with_jetstream(setup: &ApplianceSetup, servers: &[&NatsServer], replicas: u8) -> Appliance {
    let appliance = setup.start();
    let urls: Vec<_> = servers.iter().map(|server| server.url()).collect();
    let data = json!({ "nats-url": urls.join(","), "replicas": replicas.to_string() });
    appliance.api().create(&config_map("main", &data));
    appliance.api().create(&jetstream_broker("main"));
    appliance.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    appliance
}

/// The Broker once its Ready condition has this reason, and the message.
fn wait_reason(api: &KitApi, name: &str, reason: &str) -> String {
    let object = api.wait_for("Broker", NAMESPACE, name, TIMEOUT, |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == reason)
    });
    condition(&object, "Ready").unwrap()["message"].as_str().unwrap().to_owned()
}

fn subject(appliance: &Appliance, name: &str) -> String {
    let object = appliance.api().get("Broker", NAMESPACE, name).unwrap();
    format!("sluicegate-{}", object["metadata"]["uid"].as_str().unwrap())
}

/// EV-RTE-02, EV-RTE-09, EV-RTE-10, EV-DLV-08: with its events in JetStream a Broker does what one with our log does.
#[test]
fn events_in_jetstream_are_filtered_delivered_replied_to_and_dead_lettered() {
    let Some(server) = NatsServer::start() else { return };
    let appliance = with_jetstream(&setup(), &[&server], 1);
    let (all, dead) = (EventSink::start(), EventSink::start());
    let replies = EventSink::answering(|request| {
        let attributes = [("specversion", "1.0"), ("id", &*request.id()), ("source", "/kit"), ("type", "answer")];
        SinkResponse::event(200, &attributes, &json!({ "to": request.id() }))
    });
    let refuses = EventSink::answering(|_| SinkResponse::status(503));
    subscribe(appliance.api(), "all", &all.url(), &[]);
    subscribe(appliance.api(), "replies", &replies.url(), &[only(json!({ "type": "question" }))]);
    subscribe(appliance.api(), "refuses", &refuses.url(), &[only(json!({ "type": "poison" })), delivery(2, &dead)]);

    post(&appliance, &TestEvent::new("1").of_type("question"));
    post(&appliance, &TestEvent::new("2").of_type("poison").with("comment", "5 €"));
    let structured = TestEvent::new("3").of_type("plain").structured(BROKER);
    assert_eq!(structured.send(appliance.events()).status, 202);
    let dead = dead.wait_for(1, TIMEOUT);
    assert_eq!((dead[0].id(), dead[0].header("ce-comment")), ("2".to_owned(), Some("5%20%E2%82%AC")));
    assert_eq!(dead[0].attribute("knativeerrorcode").as_deref(), Some("503"));
    assert_eq!(refuses.wait_for(3, TIMEOUT).len(), 3, "the first attempt and two more");

    let received = all.wait_for(4, TIMEOUT);
    let by_type = |kind: &str| received.iter().find(|one| one.attribute("type").as_deref() == Some(kind)).unwrap();
    assert_eq!(ids(&received).into_iter().collect::<BTreeSet<_>>().len(), 3);
    assert_eq!(by_type("answer").id(), "1", "a reply with the id and source of its event is another event");
    assert!(by_type("plain").is_structured() && !by_type("question").is_structured(), "as they were sent");
    assert!(by_type("poison").attribute("knativearrivaltime").is_some(), "X-BRK-05");
    assert!(by_type("question").header("traceparent").is_some());
    assert_eq!(ids(&replies.received()), ["1"], "filtered");

    let of_trigger = |name: &str, trigger: &str| appliance.metric(name, &format!("\"default/{trigger}\""));
    wait::until(TIMEOUT, "the counts to add up", || {
        let settled = ["delivered", "filtered", "dead_lettered", "dropped"]
            .map(|what| of_trigger(&format!("sluicegate_subscriber_{what}_total"), "refuses"));
        (settled == [0, 3, 1, 0]).then_some(())
    });
}

/// DP-ACK-02: the store is asked for each event, two sources may use one id, and an event that is sent again is
/// acknowledged and delivered once.
#[test]
fn event_is_identified_by_source_and_id() {
    let Some(server) = NatsServer::start() else { return };
    let appliance = with_jetstream(&setup(), &[&server], 1);
    let sink = EventSink::start();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    let of = |source: &str| TestEvent::new("same").with("source", source);
    for event in [of("/a"), of("/b"), of("/a"), of("/a")] {
        post(&appliance, &event);
    }
    let sources = |sink: &EventSink| -> Vec<_> {
        let mut sources: Vec<_> = sink.received().iter().filter_map(|one| one.attribute("source")).collect();
        sources.sort();
        sources
    };
    sink.wait_for(2, TIMEOUT);
    wait::rest(SILENCE);
    assert_eq!(sources(&sink), ["/a", "/b"]);
}

/// Another program reads the stream by the NATS binding of CloudEvents.
#[test]
fn stored_events_are_cloudevents_of_the_nats_binding() {
    let Some(server) = NatsServer::start() else { return };
    let appliance = with_jetstream(&setup(), &[&server], 1);
    let mut messages = server.subscribe(&subject(&appliance, "main"));
    post(&appliance, &TestEvent::new("1").with("comment", "5 €").data("text/plain", "hello"));
    let (headers, body) = messages.next_message();
    let has = |line: &str| headers.lines().any(|one| one.eq_ignore_ascii_case(line));
    assert!(has("ce-id: 1") && has("ce-comment: 5%20%E2%82%AC") && has("ce-datacontenttype: text/plain"), "{headers}");
    assert!(headers.contains("Nats-Msg-Id: "), "{headers}");
    assert_eq!(body, b"hello");
}

/// An ordered Trigger gets one event at a time, in the order of the stream.
#[test]
fn ordered_trigger_gets_events_one_at_a_time() {
    let Some(server) = NatsServer::start() else { return };
    let appliance = with_jetstream(&setup(), &[&server], 1);
    let sink = EventSink::answering(|_| SinkResponse::status(202).after(Duration::from_millis(10)));
    let ordered = ("/metadata/annotations", json!({ "kafka.eventing.knative.dev/delivery.order": "ordered" }));
    subscribe(appliance.api(), "ordered", &sink.url(), &[ordered]);
    let sent: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    sent.iter().for_each(|id| post(&appliance, &TestEvent::new(id)));
    assert_eq!(ids(&sink.wait_for(20, TIMEOUT)), sent);
}

/// A Broker says what is wrong with its servers or its options, and takes no event into another store meanwhile.
#[test]
fn broker_names_what_is_wrong_with_its_store() {
    let Some(server) = NatsServer::start() else { return };
    let appliance = setup().start();
    let api = appliance.api();
    api.create(&config_map("main", &json!({ "durability": "none" })));
    api.create(&jetstream_broker("main"));
    let says = |reason: &str, data: Value, text: &str| {
        api.patch("ConfigMap", NAMESPACE, "main", &json!({ "data": data }));
        wait::until(TIMEOUT, text, || wait_reason(&api, "main", reason).contains(text).then_some(()));
    };
    says("ChannelTemplateFailed", json!({ "durability": "none" }), "durability");
    assert_eq!(TestEvent::new("1").binary(BROKER).send(appliance.events()).status, 404);
    says("ChannelTemplateFailed", json!({ "durability": null }), "nats-url is missing");
    says("ChannelTemplateFailed", json!({ "nats-url": "http://a" }), "neither nats nor tls");
    says("StoreUnreachable", json!({ "nats-url": "nats://127.0.0.1:9" }), "127.0.0.1:9");
    let refused = TestEvent::new("1").binary(BROKER).send(appliance.events());
    assert!(refused.status == 503 && refused.header("retry-after").is_some(), "{refused}");
    says("ChannelTemplateFailed", json!({ "nats-url": server.url(), "auth-secret": "none" }), "auth-secret");
    says("ReplicasMissing", json!({ "auth-secret": null }), "set replicas");
    api.patch("ConfigMap", NAMESPACE, "main", &json!({ "data": { "replicas": "1" } }));
    let object = api.wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    let durable = condition(&object, "StreamDurable").unwrap();
    assert_eq!((&durable["reason"], &durable["severity"]), (&json!("FewReplicas"), &json!("Warning")));
    post(&appliance, &TestEvent::new("1"));
}

/// A Broker without a config uses the servers of the command line; credentials come from a Secret.
#[test]
fn servers_and_credentials_come_from_flag_and_secret() {
    let Some(server) = NatsServer::start_with(&["--user", "u", "--pass", "p"]) else { return };
    let appliance = setup().flag("nats-url", &server.url()).start();
    let api = appliance.api();
    api.create(&config_map("main", &json!({ "replicas": "1" })));
    api.create(&jetstream_broker("main"));
    let said = wait_reason(&api, "main", "CredentialsRejected");
    assert!(said.contains(&server.url()[7..]), "{said}");
    let secret = |password: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "nats", "namespace": NAMESPACE },
                "stringData": { "username": "u", "password": password } })
    };
    api.create(&secret("wrong"));
    api.patch("ConfigMap", NAMESPACE, "main", &json!({ "data": { "auth-secret": "nats" } }));
    wait::rest(SILENCE);
    wait_reason(&api, "main", "CredentialsRejected");
    api.patch("Secret", NAMESPACE, "nats", &json!({ "stringData": { "password": "p" } }));
    api.wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    post(&appliance, &TestEvent::new("1"));
}

/// EV-BRK-13, EV-TRG-14: a deleted Trigger's consumer and a deleted Broker's stream are deleted in the store.
#[test]
fn deleted_objects_leave_nothing_in_the_store() {
    let Some(server) = NatsServer::start() else { return };
    let appliance = with_jetstream(&setup(), &[&server], 1);
    let sink = EventSink::start();
    subscribe(appliance.api(), "kept", &sink.url(), &[]);
    subscribe(appliance.api(), "gone", &sink.url(), &[]);
    let consumers = || {
        let streams = server.streams();
        let of = |stream: &Value| stream["consumer_detail"].as_array().map_or(0, Vec::len);
        (streams.len(), streams.iter().map(of).sum::<usize>())
    };
    wait::until(TIMEOUT, "two consumers", || (consumers() == (1, 2)).then_some(()));
    let stream = &server.streams()[0];
    assert_eq!(stream["name"], subject(&appliance, "main"));
    assert_eq!((&stream["config"]["retention"], &stream["config"]["storage"]), (&json!("interest"), &json!("file")));
    appliance.api().delete("Trigger", NAMESPACE, "gone");
    wait::until(TIMEOUT, "one consumer", || (consumers() == (1, 1)).then_some(()));
    post(&appliance, &TestEvent::new("1"));
    sink.wait_for(1, TIMEOUT);
    appliance.api().delete("Broker", NAMESPACE, "main");
    appliance.api().wait_gone("Broker", NAMESPACE, "main", TIMEOUT);
    assert_eq!(consumers(), (0, 0));
    assert_eq!(TestEvent::new("2").binary(BROKER).send(appliance.events()).status, 404);
}
