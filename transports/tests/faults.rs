//! Faults of each transport with its real server: a sink that is down, a killed adapter, a cut connection.
//! Nothing is lost, and events with the same key stay in order.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a test waits as a thread")]

mod support;

use std::time::Duration;

use support::adapter_process::Adapter;
use support::http::post_number;
use support::proxy::Proxy;
use support::server::Server;
use support::sink::Sink;
use support::wait;

/// A transport and how to reach its server at a port.
struct Transport {
    kind: &'static str,
    receiver: fn(u16) -> String,
    sender: fn(u16) -> String,
    /// The client uses the address that it was given, so that the proxy sees its connections.
    is_proxied: bool,
}

/// Events of one phase.
const EVENTS: u64 = 150;

/// Publishes through the transport's own sender: 2xx only after the server has the event.
struct Feed {
    adapter: Adapter,
    next: u64,
}

impl Feed {
    fn start(transport: &Transport, port: u16) -> Feed {
        Feed {
            adapter: Adapter::start(transport.kind, &[("ADAPTER_SENDER", &(transport.sender)(port))]).wait_ready(),
            next: 0,
        }
    }

    fn publish(&mut self, events: u64) {
        for _ in 0..events {
            let response = post_number(self.adapter.port, self.next).unwrap();
            assert_eq!(response.status(), 202, "{}", response.text());
            self.next += 1;
        }
    }
}

/// TRN-29, TRN-49, TRN-55, SRC-38: the same three faults for each transport.
fn nothing_is_lost(transport: &Transport, server: &Server) {
    let sink = Sink::new();
    let proxy = Proxy::to(server.port);
    let receiver = (transport.receiver)(proxy.port);
    let url = sink.url();
    let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", url.as_str()), ("NAME", "one")];
    let mut adapter = Adapter::start(transport.kind, &variables).wait_ready();
    let mut feed = Feed::start(transport, server.port);
    feed.publish(EVENTS);
    assert_eq!(sink.wait_for_numbers(feed.next), 0, "duplicates without a fault");

    // The sink is down while events come.
    sink.set(|_, _| 503);
    feed.publish(EVENTS);
    wait("retries", || (adapter.metric("adapter_send_retries_total") > 0).then_some(()));
    assert_eq!(sink.numbers().len() as u64, feed.next - EVENTS);
    // The adapter is killed while the sink is down, and once more while events flow.
    adapter.kill();
    adapter = Adapter::start(transport.kind, &variables);
    sink.set(|_, _| 202);
    let mut duplicates = sink.wait_for_numbers(feed.next);
    sink.set(|_, _| {
        std::thread::sleep(Duration::from_millis(2));
        202
    });
    feed.publish(EVENTS);
    adapter.kill();
    adapter = Adapter::start(transport.kind, &variables);
    duplicates += sink.wait_for_numbers(feed.next);
    assert!(duplicates <= adapter::limits::WINDOW_EVENTS_MAX, "{duplicates}");

    if transport.is_proxied {
        // The connection is cut, events come meanwhile, the connection is there again.
        proxy.cut();
        feed.publish(EVENTS);
        adapter.wait_reason("ConnectionFailed");
        proxy.restore();
        sink.wait_for_numbers(feed.next);
        adapter = adapter.wait_ready();
    }

    // A clean stop leaves nothing to deliver again.
    feed.publish(1);
    sink.wait_for_numbers(feed.next);
    wait("the acknowledgement", || (adapter.metric("adapter_events_pending") == 0).then_some(()));
    assert_eq!(adapter.stop(), Some(0));
    let before = sink.accepted().len();
    let _adapter = Adapter::start(transport.kind, &variables).wait_ready();
    feed.publish(1);
    sink.wait_for_numbers(feed.next);
    assert_eq!(sink.accepted().len(), before + 1, "a clean stop leaves no duplicates");
}

#[test]
fn redis_stream_loses_nothing() {
    let Some(server) = Server::redis() else { return };
    nothing_is_lost(
        &Transport {
            kind: "redis",
            receiver: |port| format!(r#"{{"address":"127.0.0.1:{port}","stream":"s","group":"g","startId":"0"}}"#),
            sender: |port| format!(r#"{{"address":"127.0.0.1:{port}","stream":"s"}}"#),
            is_proxied: true,
        },
        &server,
    );
}

#[test]
fn jetstream_loses_nothing() {
    let Some(server) = Server::nats() else { return };
    support::server::create_jetstream(server.port, "s", "orders.>");
    nothing_is_lost(
        &Transport {
            kind: "nats",
            receiver: |port| format!(r#"{{"servers":["nats://127.0.0.1:{port}"],"stream":"s"}}"#),
            sender: |port| format!(r#"{{"servers":["127.0.0.1:{port}"],"subject":"orders.new"}}"#),
            is_proxied: true,
        },
        &server,
    );
}

#[test]
fn mqtt_loses_nothing() {
    let Some(server) = Server::mosquitto() else { return };
    nothing_is_lost(
        &Transport {
            kind: "mqtt",
            receiver: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"topics":["a/+"]}}"#),
            sender: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"topic":"a/b"}}"#),
            is_proxied: true,
        },
        &server,
    );
}

#[test]
fn mqtt_of_version_3_1_1_loses_nothing() {
    let Some(server) = Server::mosquitto() else { return };
    nothing_is_lost(
        &Transport {
            kind: "mqtt",
            receiver: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"version":"3.1.1","topics":["a/+"]}}"#),
            sender: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"version":"3.1.1","topic":"a/b"}}"#),
            is_proxied: true,
        },
        &server,
    );
}

#[test]
fn rabbitmq_loses_nothing() {
    let Some(server) = Server::rabbitmq() else { return };
    nothing_is_lost(
        &Transport {
            kind: "amqp",
            receiver: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"queue":"q"}}"#),
            sender: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"routingKey":"q"}}"#),
            is_proxied: true,
        },
        &server,
    );
}

#[test]
fn amqp10_loses_nothing() {
    let Some(server) = Server::rabbitmq() else { return };
    nothing_is_lost(
        &Transport {
            kind: "amqp10",
            receiver: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"address":"/queue/q"}}"#),
            sender: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"address":"/queue/q"}}"#),
            is_proxied: true,
        },
        &server,
    );
}

/// Kafka's clients use the address that the broker names, so the cut has a test of its own.
#[test]
fn kafka_loses_nothing() {
    let Some(server) = Server::tansu(None) else { return };
    support::server::create_topic(server.port, "t", 1);
    nothing_is_lost(
        &Transport {
            kind: "kafka",
            receiver: |port| {
                format!(
                    r#"{{"bootstrapServers":["127.0.0.1:{port}"],"topics":["t"],"initialOffset":"earliest","sessionTimeoutMs":6000}}"#
                )
            },
            sender: |port| format!(r#"{{"bootstrapServers":["127.0.0.1:{port}"],"topic":"t"}}"#),
            is_proxied: false,
        },
        &server,
    );
}

#[test]
fn kafka_connection_cut_loses_nothing() {
    let target = support::free_port();
    let proxy = Proxy::to(target);
    let Some(_server) = Server::tansu(Some((target, proxy.port))) else { return };
    support::server::create_topic(proxy.port, "t", 1);
    let sink = Sink::new();
    let servers = format!(r#""bootstrapServers":["127.0.0.1:{}"]"#, proxy.port);
    let receiver = format!(r#"{{{servers},"topics":["t"],"initialOffset":"earliest","sessionTimeoutMs":6000}}"#);
    let sender = format!(r#"{{{servers},"topic":"t"}}"#);
    let _adapter = Adapter::start("kafka", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    let feed = Adapter::start("kafka", &[("ADAPTER_SENDER", &sender)]).wait_ready();
    for number in 0..200 {
        if number % 50 == 49 {
            proxy.cut();
            std::thread::sleep(Duration::from_millis(500));
            proxy.restore();
        }
        wait("the confirmation", || (post_number(feed.port, number).ok()?.status() == 202).then_some(()));
    }
    sink.wait_for_numbers(200);
}

/// The server is killed with events in it and is started again: what it confirmed is there, and nothing is out of order.
fn server_kill_loses_nothing(transport: &Transport, mut server: Server) {
    let sink = Sink::new();
    let receiver = (transport.receiver)(server.port);
    let adapter =
        Adapter::start(transport.kind, &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    let mut feed = Feed::start(transport, server.port);
    feed.publish(EVENTS);
    sink.wait_for_numbers(feed.next);
    sink.set(|_, _| 503);
    feed.publish(EVENTS);
    server.kill();
    adapter.wait_reason("ConnectionFailed");
    sink.set(|_, _| 202);
    server.start_again();
    let adapter = adapter.wait_ready();
    // The client of a sender sends again what got no 2xx.
    for _ in 0..EVENTS {
        wait("the 202", || (post_number(feed.adapter.port, feed.next).ok()?.status() == 202).then_some(()));
        feed.next += 1;
    }
    sink.wait_for_numbers(feed.next);
    assert_eq!(adapter.stop(), Some(0));
}

#[test]
fn redis_kill_loses_nothing() {
    let Some(server) = Server::redis() else { return };
    server_kill_loses_nothing(
        &Transport {
            kind: "redis",
            receiver: |port| format!(r#"{{"address":"127.0.0.1:{port}","stream":"s","group":"g","startId":"0"}}"#),
            sender: |port| format!(r#"{{"address":"127.0.0.1:{port}","stream":"s"}}"#),
            is_proxied: false,
        },
        server,
    );
}

#[test]
fn jetstream_kill_loses_nothing() {
    let Some(server) = Server::nats() else { return };
    support::server::create_jetstream(server.port, "s", "orders.>");
    server_kill_loses_nothing(
        &Transport {
            kind: "nats",
            receiver: |port| format!(r#"{{"servers":["nats://127.0.0.1:{port}"],"stream":"s"}}"#),
            sender: |port| format!(r#"{{"servers":["127.0.0.1:{port}"],"subject":"orders.new"}}"#),
            is_proxied: false,
        },
        server,
    );
}

#[test]
fn rabbitmq_kill_loses_nothing_over_amqp10() {
    let Some(server) = Server::rabbitmq() else { return };
    server_kill_loses_nothing(
        &Transport {
            kind: "amqp10",
            receiver: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"address":"/queue/q"}}"#),
            sender: |port| format!(r#"{{"host":"127.0.0.1","port":{port},"address":"/queue/q"}}"#),
            is_proxied: false,
        },
        server,
    );
}
