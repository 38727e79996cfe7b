//! Memory of adapters that wait for events.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use support::adapter_process::Adapter;
use support::free_port;
use support::server::Server;
use support::sink::Sink;
use support::wait;

/// The target for an idle adapter. Its code is not counted: all adapters of a host share it.
const IDLE_KIB_MAX: u64 = 10 << 10;

fn private_kib(adapter: &Adapter) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", adapter.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Each adapter without events needs little memory of its own, whatever buffers its client allocates.
#[test]
fn idle_adapters_are_small() {
    let sink = Sink::new();
    let directory = tempfile::tempdir().unwrap();
    let lines = directory.path().join("events.jsonl");
    std::fs::write(&lines, "").unwrap();
    let port = free_port();
    let (redis, nats, mosquitto) = (Server::redis(), Server::nats(), Server::mosquitto());
    let mut receivers: Vec<(&str, Value)> = vec![
        ("timer", json!({ "message": "m", "period": 3_600_000 })),
        ("file", json!({ "path": lines, "follow": true })),
        (
            "http",
            json!({ "servicePorts": [{ "name": "http", "port": port }], "plain": { "type": "t", "source": "/s" } }),
        ),
    ];
    if let Some(server) = &redis {
        let address = format!("127.0.0.1:{}", server.port);
        receivers.push(("redis", json!({ "address": address, "stream": "s", "group": "g" })));
    }
    if let Some(server) = &nats {
        receivers.push(("nats", json!({ "servers": [format!("127.0.0.1:{}", server.port)], "subject": "a" })));
    }
    if let Some(server) = &mosquitto {
        for version in ["5", "3.1.1"] {
            let broker = json!({ "host": "127.0.0.1", "port": server.port, "topics": ["a"], "version": version });
            receivers.push(("mqtt", broker));
        }
    }
    for (kind, receiver) in receivers {
        let receiver = receiver.to_string();
        let adapter = Adapter::start(kind, &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
        let private = private_kib(&adapter);
        assert!(private <= IDLE_KIB_MAX, "{kind} {receiver}: {private} KiB");
        assert_eq!(adapter.stop(), Some(0));
    }
}

/// Entries of the backlog: several windows.
const BACKLOG: usize = 10_000;
const ENTRY_BYTES: usize = 2_048;
/// What a paused adapter may grow by while it retries.
const GROWTH_KIB_MAX: u64 = 2 << 10;

/// TRN-55: while the sink answers 429, as a Broker with a full log does, the source pauses: the adapter takes no more than its window
/// from the server, and its memory stays. Afterwards each event arrives.
#[test]
fn full_log_pauses_the_source() {
    let Some(server) = Server::redis() else { return };
    let address = format!("127.0.0.1:{}", server.port);
    let mut stream = TcpStream::connect(&address).unwrap();
    let replies = BufReader::new(stream.try_clone().unwrap());
    let reads = std::thread::spawn(move || replies.lines().map_while(Result::ok).nth(2 * BACKLOG - 1));
    let command = format!("XADD s * data {}\r\n", "x".repeat(ENTRY_BYTES));
    (0..BACKLOG).for_each(|_| stream.write_all(command.as_bytes()).unwrap());
    assert!(reads.join().unwrap().is_some(), "all entries are in the stream");

    let sink = Sink::answering(|_, _| 429);
    let receiver = json!({ "address": address, "stream": "s", "group": "g", "startId": "0" }).to_string();
    let adapter = Adapter::start("redis", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]);
    let retries = |count: u64| {
        wait("retries", || (adapter.metric("adapter_send_retries_total") >= count).then_some(()));
    };
    retries(3);
    let (received, before) = (adapter.metric("adapter_events_received_total"), private_kib(&adapter));
    retries(6);
    let window = adapter::limits::WINDOW_EVENTS_MAX as u64;
    assert!(received <= window && adapter.metric("adapter_events_received_total") <= window, "{received}");
    let after = private_kib(&adapter);
    assert!(after <= before + GROWTH_KIB_MAX, "{before} KiB, then {after} KiB");

    sink.set(|_, _| 202);
    let accepted = || adapter.metric("adapter_events_accepted_total");
    wait("all events", || (accepted() == BACKLOG as u64).then_some(()));
    let events = sink.accepted();
    let ids: std::collections::BTreeSet<String> = events.iter().map(adapter::Event::id).collect();
    assert_eq!((events.len(), ids.len()), (BACKLOG, BACKLOG), "each once");
}
