//! Memory of adapters that wait for events.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use serde_json::{Value, json};
use support::adapter_process::Adapter;
use support::free_port;
use support::server::Server;
use support::sink::Sink;

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
