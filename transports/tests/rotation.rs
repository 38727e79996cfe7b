//! A rotated secret: the file is replaced, SIGHUP is sent, the old password ends, and nothing is lost.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a test waits as a thread")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use support::adapter_process::Adapter;
use support::http::post_number;
use support::server::Server;
use support::sink::Sink;
use support::wait;

fn redis(port: u16, commands: &[&str]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for command in commands {
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.starts_with('-'), "{command}: {line}");
    }
}

/// TRN-07, TRN-21, SRC-38.
#[test]
fn rotated_password_loses_nothing() {
    let Some(server) = Server::redis() else { return };
    redis(server.port, &["ACL SETUSER u on >first ~* &* +@all"]);
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "first").unwrap();
    let connection =
        format!(r#""address":"127.0.0.1:{}","user":"u","password":"{}","stream":"s""#, server.port, password.display());
    let sink = Sink::new();
    let receiver = format!(r#"{{{connection},"group":"g","startId":"0"}}"#);
    let adapter = Adapter::start("redis", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    let sender = Adapter::start("redis", &[("ADAPTER_SENDER", &format!("{{{connection}}}"))]).wait_ready();
    let mut next = 0;
    let mut publish = |events: u64| {
        for _ in 0..events {
            // The client of a sender sends again what got no 2xx.
            wait("the 202", || (post_number(sender.port, next).ok()?.status() == 202).then_some(()));
            next += 1;
        }
        next
    };
    publish(100);
    let id = adapter.child.id();
    for (old, new) in [("first", "second"), ("second", "third")] {
        redis(server.port, &[&format!("ACL SETUSER u >{new}")]);
        publish(50);
        let replaced = directory.path().join("new");
        std::fs::write(&replaced, new).unwrap();
        std::fs::rename(&replaced, &password).unwrap();
        adapter.signal("HUP");
        sender.signal("HUP");
        publish(50);
        // The old password ends, and so do connections that were made with it or with the new one.
        redis(server.port, &[&format!("ACL SETUSER u <{old}"), "CLIENT KILL USER u SKIPME yes"]);
        let sent = publish(50);
        sink.wait_for_numbers(sent);
    }
    let adapter = adapter.wait_ready();
    assert_eq!(adapter.child.id(), id, "the process stays");
    for log in [adapter.log(), sender.log()] {
        assert!(["first", "second", "third"].iter().all(|password| !log.contains(password)), "{log}");
    }
    let duplicates = sink.accepted().len() - sink.numbers().len();
    assert!(duplicates <= adapter::limits::WINDOW_EVENTS_MAX, "{duplicates}");
    assert_eq!(adapter.stop(), Some(0));
}
