//! Kafka: a group of two adapters, order per key through failures, and SASL.
#![cfg(feature = "kafka")]
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a test waits as a thread")]

mod support;

use std::collections::{HashMap, HashSet};

use adapter::Event;
use support::adapter_process::Adapter;
use support::http::request;
use support::server::{Server, create_topic};
use support::sink::Sink;
use support::wait;

const KEYS: u64 = 16;

/// Posts an event with a key of its number and the number as data.
fn post_keyed(port: u16, number: u64) {
    let (id, key) = (number.to_string(), (number % KEYS).to_string());
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-type", "t"),
        ("ce-source", "/s"),
        ("ce-id", id.as_str()),
        ("ce-partitionkey", key.as_str()),
        ("content-type", "text/plain"),
    ];
    let response = request(port, "POST", "/", &headers, id.as_bytes()).unwrap();
    assert_eq!(response.status(), 202, "{}", response.text());
}

fn number(event: &Event) -> u64 {
    event.id().parse().unwrap()
}

/// Each number arrived, and the first arrivals of each key are in order.
fn assert_order_per_key(events: &[Event], wanted: u64) {
    let mut seen = HashSet::new();
    let mut last: HashMap<String, u64> = HashMap::new();
    for event in events {
        if seen.insert(number(event)) {
            let before = last.insert(event.text("partitionkey"), number(event));
            assert!(before.is_none_or(|before| before < number(event)), "key {}", event.text("partitionkey"));
        }
    }
    assert_eq!(seen.len() as u64, wanted);
}

fn distinct(sink: &Sink) -> u64 {
    sink.accepted().iter().map(number).collect::<HashSet<_>>().len() as u64
}

/// TRN-49, SRC-38: a second consumer joins, takes a part of the partitions, and is killed; nothing is lost and each key is in order.
#[test]
fn two_consumers_share_partitions_and_lose_nothing() {
    let Some(server) = Server::tansu(None) else { return };
    create_topic(server.port, "t", 4);
    let sinks = [Sink::new(), Sink::new()];
    let receiver = format!(
        r#"{{"bootstrapServers":["127.0.0.1:{}"],"topics":["t"],"initialOffset":"earliest","sessionTimeoutMs":6000,"consumerGroup":"g"}}"#,
        server.port
    );
    let start =
        |sink: &Sink| Adapter::start("kafka", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    let sender = format!(r#"{{"bootstrapServers":["127.0.0.1:{}"],"topic":"t"}}"#, server.port);
    let sender = Adapter::start("kafka", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    let first = start(&sinks[0]);
    let mut next = 0;
    let mut publish = |events: u64| {
        for _ in 0..events {
            post_keyed(sender.port, next);
            next += 1;
        }
        next
    };
    publish(200);
    wait("the first consumer", || (distinct(&sinks[0]) == 200).then_some(()));
    let second = start(&sinks[1]);
    // Each of the two receives some of the events while the group has both.
    wait("both consumers", || {
        publish(32);
        (distinct(&sinks[1]) > 0).then_some(())
    });
    let all = |sinks: &[Sink; 2]| {
        let mut events = sinks[0].accepted();
        events.extend(sinks[1].accepted());
        events.iter().map(number).collect::<HashSet<_>>().len() as u64
    };
    second.kill();
    let wanted = publish(300);
    wait("the events of both", || (all(&sinks) == wanted).then_some(()));
    for sink in &sinks {
        let events = sink.accepted();
        assert_order_per_key(&events, distinct(sink));
    }
    assert_eq!(first.stop(), Some(0));
}

/// TRN-49: a backlog larger than the window is delivered to its end, and the lag is told until then. While the window is full, the
/// client's buffer fills too.
#[test]
fn backlog_larger_than_the_window_is_delivered() {
    let Some(server) = Server::tansu(None) else { return };
    create_topic(server.port, "t", 6);
    let sender = format!(r#"{{"bootstrapServers":["127.0.0.1:{}"],"topic":"t"}}"#, server.port);
    let sender = Adapter::start("kafka", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    let events = 2 * adapter::limits::WINDOW_EVENTS_MAX as u64;
    std::thread::scope(|scope| {
        for first in 0..KEYS {
            let port = sender.port;
            scope.spawn(move || (first..events).step_by(KEYS as usize).for_each(|number| post_keyed(port, number)));
        }
    });
    let sink = Sink::new();
    let receiver = format!(
        r#"{{"bootstrapServers":["127.0.0.1:{}"],"topics":["t"],"initialOffset":"earliest","sessionTimeoutMs":6000}}"#,
        server.port
    );
    let adapter = Adapter::start("kafka", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    wait("all events", || (distinct(&sink) == events).then_some(()));
    assert_order_per_key(&sink.accepted(), events);
    wait("the end of the lag", || (adapter.metric("adapter_lag_events") == 0).then_some(()));
    let ready = request(adapter.port, "GET", "/readyz", &[], b"").unwrap();
    assert!(ready.text().contains(r#""lag":{"events":0,"partitions":6}"#), "{}", ready.text());
    assert_eq!(adapter.stop(), Some(0));
}

/// TRN-49: with `unordered`, keys are sent at the same time and each of them stays in order while the sink fails often.
#[test]
fn order_per_key_holds_while_the_sink_fails() {
    let Some(server) = Server::tansu(None) else { return };
    create_topic(server.port, "t", 1);
    let mut requests = 0u64;
    let sink = Sink::answering(move |_, _| {
        requests += 1;
        if requests.is_multiple_of(3) { 503 } else { 202 }
    });
    let sender = format!(r#"{{"bootstrapServers":["127.0.0.1:{}"],"topic":"t"}}"#, server.port);
    let sender = Adapter::start("kafka", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    for number in 0..320 {
        post_keyed(sender.port, number);
    }
    let receiver = format!(
        r#"{{"bootstrapServers":["127.0.0.1:{}"],"topics":["t"],"initialOffset":"earliest","sessionTimeoutMs":6000,"ordering":"unordered"}}"#,
        server.port
    );
    let delivery =
        serde_json::json!({"sinkUri": sink.url(), "delivery": {"backoffDelay": "PT0.01S", "backoffPolicy": "linear"}});
    let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("ADAPTER_SENDER", &delivery.to_string())]
        .map(|(name, value)| (name, value.to_owned()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let adapter = Adapter::start("kafka", &variables).wait_ready();
    wait("all events", || (distinct(&sink) == 320).then_some(()));
    assert_order_per_key(&sink.accepted(), 320);
    wait("the settlement", || (adapter.metric("adapter_events_pending") == 0).then_some(()));
    assert_eq!(adapter.stop(), Some(0));
}

/// TRN-07, TRN-21: SASL by files. A wrong password is a reason, the right one is used once its file has it, and no log shows either.
#[test]
fn sasl_password_comes_from_its_file() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let broker = runtime.block_on(krafka::testing::FakeBroker::start()).unwrap();
    broker.create_topic("t", 1);
    broker.require_sasl_plain("user", "r1ght-passw0rd");
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let password = file("password", "wr0ng-passw0rd");
    let net = serde_json::json!({"sasl": {"enable": true, "user": file("user", "user\n"), "password": password, "type": file("type", "PLAIN")}});
    let servers = serde_json::json!([broker.bootstrap_servers()]);
    let receiver =
        serde_json::json!({"bootstrapServers": servers, "topics": ["t"], "initialOffset": "earliest", "net": net});
    let sender = serde_json::json!({"bootstrapServers": servers, "topic": "t", "net": net}).to_string();
    let sink = Sink::new();
    let (receiver, url) = (receiver.to_string(), sink.url());
    let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", &url), ("ADAPTER_LOG", "trace")];
    let adapter = Adapter::start("kafka", &variables);
    let body = adapter.wait_reason("ConnectionFailed");
    assert!(body.to_lowercase().contains("auth"), "{body}");
    std::fs::write(&password, "r1ght-passw0rd\n").unwrap();
    let adapter = adapter.wait_ready();
    let sender = Adapter::start("kafka", &[("ADAPTER_SENDER", &sender), ("ADAPTER_LOG", "trace")]).wait_ready();
    for number in 0..20 {
        post_keyed(sender.port, number);
    }
    wait("all events", || (distinct(&sink) == 20).then_some(()));
    for adapter in [&adapter, &sender] {
        assert!(!adapter.log().contains("passw0rd"), "{}", adapter.log());
    }
}
