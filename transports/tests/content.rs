//! Events of every shape pass each transport unchanged: sender, real server, receiver.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use adapter::Event;
use support::adapter_process::Adapter;
use support::http::{Message, request};
use support::server::{Server, aws_credentials, create_jetstream};
use support::sink::Sink;
use support::wait;

const MIB: usize = 1 << 20;

struct Passage {
    kind: &'static str,
    receiver: String,
    sender: String,
    modes: &'static [&'static str],
    /// The server takes a message of 1 MiB and its attributes.
    takes_a_mebibyte: bool,
}

fn post(adapter: &Adapter, event: &Event) -> Message {
    let headers = [("content-type", "application/cloudevents+json")];
    request(adapter.port, "POST", "/", &headers, &adapter::to_json(event)).unwrap()
}

fn post_data(adapter: &Adapter, id: &str, bytes: usize) -> Message {
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-type", "t"),
        ("ce-source", "/s"),
        ("ce-id", id),
        ("content-type", "text/plain"),
    ];
    request(adapter.port, "POST", "/", &headers, &vec![b'x'; bytes]).unwrap()
}

fn arrived(sink: &Sink, id: &str) -> Event {
    wait(&format!("event {id}"), || sink.accepted().into_iter().find(|event| event.id() == id))
}

/// Attributes as text, because a protocol may have no integers. Data that is empty may be absent.
fn content(event: &Event) -> (Vec<(String, String)>, Vec<u8>) {
    let mut attributes: Vec<(String, String)> =
        event.attributes().map(|(name, value)| (name.to_owned(), value.to_string())).collect();
    attributes.sort();
    (attributes, event.data.clone().unwrap_or_default().to_vec())
}

/// TRN-29, TRN-30.
fn content_is_unchanged(passage: &Passage) {
    let sink = Sink::new();
    let variables = [("ADAPTER_RECEIVER", passage.receiver.as_str()), ("K_SINK", &sink.url())]
        .map(|(name, value)| (name, value.to_owned()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let _receiver = Adapter::start(passage.kind, &variables).wait_ready();
    for mode in passage.modes {
        let mut sender = passage.sender.clone();
        if !mode.is_empty() {
            sender = format!("{},\"contentMode\":\"{mode}\"}}", sender.trim_end_matches('}'));
        }
        let adapter = Adapter::start(passage.kind, &[("ADAPTER_SENDER", &sender)]).wait_ready();
        let event = |id: &str| Event::new("t", "/s/ü", format!("{mode}{id}"));
        let events = [
            event("text").with("subject", "Zoë ☃ \"x\" 100% a%20b").with("team", "ß").with_data("text/plain", "hällo"),
            event("none").with("time", "2026-01-01T00:00:00Z"),
            event("json").with_data("application/json", "{\"a\":[1,2.50]}"),
            event("bytes").with_data("application/octet-stream", vec![0u8, 255, 10, 13]),
            event("xml").with_data("application/xml; charset=utf-8", "<a/>"),
        ];
        for event in &events {
            let response = post(&adapter, event);
            assert_eq!(response.status(), 202, "{} {mode} {}: {}", passage.kind, event.id(), response.text());
            assert_eq!(content(&arrived(&sink, &event.id())), content(event), "{} {mode}", passage.kind);
        }
        let id = format!("{mode}large");
        let response = post_data(&adapter, &id, MIB);
        if passage.takes_a_mebibyte {
            assert_eq!(response.status(), 202, "{} {mode}: {}", passage.kind, response.text());
            assert_eq!(arrived(&sink, &id).data.map(|data| data.len()), Some(MIB));
        } else {
            // No retry can help, and the client is told so.
            assert!(matches!(response.status(), 400 | 413), "{} {mode}: {}", passage.kind, response.text());
        }
        assert_eq!(post_data(&adapter, "over", MIB + 1).status(), 413, "{} {mode}", passage.kind);
        // What follows a refused event is not affected.
        let last = event("last").with_data("text/plain", "x");
        assert_eq!(post(&adapter, &last).status(), 202, "{} {mode}", passage.kind);
        arrived(&sink, &last.id());
    }
}

const BOTH: &[&str] = &["binary", "structured"];

#[test]
fn redis_keeps_content() {
    let Some(server) = Server::redis() else { return };
    let port = server.port;
    content_is_unchanged(&Passage {
        kind: "redis",
        receiver: format!(r#"{{"address":"127.0.0.1:{port}","stream":"s","group":"g"}}"#),
        sender: format!(r#"{{"address":"127.0.0.1:{port}","stream":"s"}}"#),
        modes: &[""],
        takes_a_mebibyte: true,
    });
}

/// The server's limit of a message is 1 MiB with its headers.
#[test]
fn nats_keeps_content() {
    let Some(server) = Server::nats() else { return };
    let port = server.port;
    create_jetstream(port, "s", "a.>");
    content_is_unchanged(&Passage {
        kind: "nats",
        receiver: format!(r#"{{"servers":["127.0.0.1:{port}"],"stream":"s"}}"#),
        sender: format!(r#"{{"servers":["127.0.0.1:{port}"],"subject":"a.b"}}"#),
        modes: BOTH,
        takes_a_mebibyte: false,
    });
}

#[test]
fn mqtt_keeps_content() {
    let Some(server) = Server::mosquitto() else { return };
    let port = server.port;
    for (version, modes) in [("5", BOTH), ("3.1.1", &["structured"])] {
        let connection = format!(r#""host":"127.0.0.1","port":{port},"version":"{version}""#);
        content_is_unchanged(&Passage {
            kind: "mqtt",
            receiver: format!(r#"{{{connection},"topics":["{version}/+"],"clientId":"{version}"}}"#),
            sender: format!(r#"{{{connection},"topic":"{version}/b"}}"#),
            modes,
            takes_a_mebibyte: true,
        });
    }
}

#[test]
fn both_versions_of_amqp_keep_content() {
    let Some(server) = Server::rabbitmq() else { return };
    let port = server.port;
    content_is_unchanged(&Passage {
        kind: "amqp",
        receiver: format!(r#"{{"host":"127.0.0.1","port":{port},"queue":"q"}}"#),
        sender: format!(r#"{{"host":"127.0.0.1","port":{port},"routingKey":"q"}}"#),
        modes: &[""],
        takes_a_mebibyte: true,
    });
    content_is_unchanged(&Passage {
        kind: "amqp10",
        receiver: format!(r#"{{"host":"127.0.0.1","port":{port},"address":"/queue/r"}}"#),
        sender: format!(r#"{{"host":"127.0.0.1","port":{port},"address":"/queue/r"}}"#),
        modes: BOTH,
        takes_a_mebibyte: true,
    });
}

#[test]
fn kafka_keeps_content() {
    let Some(server) = Server::tansu(None) else { return };
    let port = server.port;
    support::server::create_topic(port, "t", 1);
    content_is_unchanged(&Passage {
        kind: "kafka",
        receiver: format!(
            r#"{{"bootstrapServers":["127.0.0.1:{port}"],"topics":["t"],"initialOffset":"earliest","sessionTimeoutMs":6000}}"#
        ),
        sender: format!(r#"{{"bootstrapServers":["127.0.0.1:{port}"],"topic":"t"}}"#),
        modes: BOTH,
        takes_a_mebibyte: true,
    });
}

/// A message of SQS is up to 1 MiB with the attributes in it.
#[test]
fn sqs_and_s3_keep_content() {
    let Some(server) = Server::moto() else { return };
    let (port, secret) = (server.port, aws_credentials());
    let connection = format!(
        r#""uriEndpointOverride":"http://127.0.0.1:{port}","region":"us-east-1","secret":"{}""#,
        secret.display()
    );
    let sqs = format!(r#"{{{connection},"arn":"q","autoCreateQueue":true}}"#);
    content_is_unchanged(&Passage {
        kind: "sqs",
        receiver: sqs.clone(),
        sender: sqs,
        modes: &[""],
        takes_a_mebibyte: false,
    });
    let s3 = format!(r#"{{{connection},"arn":"bucket","autoCreateBucket":true}}"#);
    let receiver = format!("{},\"delay\":50}}", s3.trim_end_matches('}'));
    content_is_unchanged(&Passage { kind: "s3", receiver, sender: s3, modes: BOTH, takes_a_mebibyte: true });
}
