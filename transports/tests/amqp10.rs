//! AMQP 1.0 through the built program and RabbitMQ: the binding on the wire, outcomes, credit and refusals.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a test waits as a thread")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::adapter_process::Adapter;
use support::http::{post_number, request};
use support::server::Server;
use support::sink::Sink;
use support::wait;

fn section(port: u16, rest: &str) -> String {
    format!(r#"{{"host":"127.0.0.1","port":{port},{rest}}}"#)
}

/// TRN-29: RabbitMQ shows application properties of AMQP 1.0 as headers of AMQP 0-9-1, so the names are seen as they are sent.
#[test]
fn attributes_have_the_underscore_prefix_on_the_wire() {
    let Some(server) = Server::rabbitmq() else { return };
    let sink = Sink::new();
    let oracle = section(server.port, r#""queue":"q""#);
    let _oracle = Adapter::start("amqp", &[("ADAPTER_RECEIVER", &oracle), ("K_SINK", &sink.url())]).wait_ready();
    let sender = section(server.port, r#""address":"/queue/q""#);
    let sender = Adapter::start("amqp10", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    assert_eq!(post_number(sender.port, 7).unwrap().status(), 202);
    // For a client of AMQP 0-9-1 this is a plain message.
    let event = &sink.wait_for(1)[0];
    assert_eq!((event.text("type"), event.data.as_deref()), ("dev.knative.rabbitmq.event".to_owned(), Some(&b"7"[..])));

    let receiver = section(server.port, r#""address":"/queue/r""#);
    let _receiver = Adapter::start("amqp10", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    for mode in ["binary", "structured"] {
        let sender = section(server.port, &format!(r#""address":"/queue/r","contentMode":"{mode}""#));
        let sender = Adapter::start("amqp10", &[("ADAPTER_SENDER", &sender)]).wait_ready();
        let body = "{\"specversion\":\"1.0\",\"id\":\"ä\",\"source\":\"/s\",\"type\":\"t\",\"n\":7,\"b\":true,\"subject\":\"Zoë \\\"x\\\"\"}";
        let headers = [("content-type", "application/cloudevents+json")];
        assert_eq!(request(sender.port, "POST", "/", &headers, body.as_bytes()).unwrap().status(), 202);
    }
    for event in &sink.wait_for(3)[1..] {
        let seen = (event.id(), event.text("subject"), event.text("n"), event.text("b"), event.data.clone());
        assert_eq!(seen, ("ä".to_owned(), "Zoë \"x\"".to_owned(), "7".to_owned(), "true".to_owned(), None));
    }
}

/// A message of AMQP 0-9-1 becomes an event; RabbitMQ requeues what is released and drops or dead-letters what is rejected.
#[test]
fn rejected_message_is_left_to_the_queue() {
    let Some(server) = Server::rabbitmq() else { return };
    let sink = Sink::answering(|_, events| if events[0].data.as_deref() == Some(b"3") { 400 } else { 202 });
    let receiver = section(server.port, r#""address":"/queue/q","deadLetterQueue":true"#);
    let adapter = Adapter::start("amqp10", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    let sender = section(server.port, r#""routingKey":"q","predeclared":true"#);
    let sender = Adapter::start("amqp", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    for number in 0..6 {
        assert_eq!(post_number(sender.port, number).unwrap().status(), 202);
    }
    wait("the other events", || (sink.numbers() == [0, 1, 2, 4, 5]).then_some(()));
    wait("the metric", || (adapter.metric("adapter_events_rejected_total") == 1).then_some(()));
    let event = &sink.accepted()[0];
    assert_eq!(event.text("type"), "dev.sluicegate.amqp.message");
    assert_eq!(event.text("source"), format!("amqp://127.0.0.1:{}/queue/q", server.port));
}

/// Without a place for rejected messages they are held; what is unsettled at a stop comes again, in order.
#[test]
fn stop_releases_what_the_sink_did_not_accept() {
    let Some(server) = Server::rabbitmq() else { return };
    let is_open = Arc::new(AtomicBool::new(false));
    let decide = Arc::clone(&is_open);
    let sink = Sink::answering(move |_, _| if decide.load(Ordering::SeqCst) { 202 } else { 503 });
    let receiver = section(server.port, r#""address":"/queue/q","credit":16"#);
    let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", &sink.url())].map(|(n, v)| (n, v.to_owned()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let adapter = Adapter::start("amqp10", &variables).wait_ready();
    let sender = section(server.port, r#""address":"/queue/q""#);
    let sender = Adapter::start("amqp10", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    for number in 0..100 {
        assert_eq!(post_number(sender.port, number).unwrap().status(), 202);
    }
    wait("the window", || (adapter.metric("adapter_events_pending") == 16).then_some(()));
    assert_eq!(adapter.stop(), Some(0));
    is_open.store(true, Ordering::SeqCst);
    let _adapter = Adapter::start("amqp10", &variables).wait_ready();
    let repeated = sink.wait_for_numbers(100);
    assert!(repeated <= 16, "{repeated} messages came twice, at most the window may");
}

/// A wrong password and an address that does not exist are reasons, and the password is in no log.
#[test]
fn refusal_of_the_broker_is_a_reason() {
    let Some(server) = Server::rabbitmq() else { return };
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "wr0ng-passw0rd").unwrap();
    let user = format!(r#""user":"guest","password":"{}","address":"/queue/q""#, password.display());
    for (rest, wanted) in [(user.as_str(), "SASL"), (r#""address":"/amq/queue/none""#, "attach to /amq/queue/none")] {
        let receiver = section(server.port, rest);
        let variables =
            [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", "http://127.0.0.1:1/"), ("ADAPTER_LOG", "trace")];
        let adapter = Adapter::start("amqp10", &variables);
        let body = adapter.wait_reason("ConnectionFailed");
        assert!(body.contains(wanted), "{body}");
        assert!(!adapter.log().contains("wr0ng"), "{}", adapter.log());
    }
    // The right password, once it is there, is used without a restart.
    std::fs::write(&password, "wrong").unwrap();
    let receiver = section(server.port, &user);
    let adapter = Adapter::start("amqp10", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", "http://127.0.0.1:1/")]);
    adapter.wait_reason("ConnectionFailed");
    std::fs::write(&password, "guest\n").unwrap();
    drop(adapter.wait_ready());
}
