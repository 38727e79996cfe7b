//! The adapters in other languages in examples/adapters follow the contract.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use support::http::{get, request};
use support::server::find;
use support::sink::Sink;
use support::{free_port, wait};

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/adapters").join(name)
}

fn start(name: &str, receiver: &str, sink: &Sink, port: u16) -> Child {
    let mut command = Command::new(example(name));
    command.env("ADAPTER_RECEIVER", receiver).env("K_SINK", sink.url()).env("PORT", port.to_string());
    command.stderr(Stdio::null()).spawn().unwrap()
}

fn stop(mut child: Child) -> Option<i32> {
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
    wait("the end of the adapter", || child.try_wait().unwrap()).code()
}

/// TRN-08.
fn refuses_broken_json(name: &str) {
    let output = Command::new(example(name)).env("ADAPTER_RECEIVER", "{").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("ADAPTER_RECEIVER"), "{text}");
}

/// TRN-01: an adapter in shell.
#[test]
fn shell_adapter_sends_lines_and_retries() {
    if find("curl").is_none() {
        return;
    }
    refuses_broken_json("lines.sh");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    std::fs::write(&path, "0\n1\n2\n").unwrap();
    let mut requests = 0;
    let sink = Sink::answering(move |_, _| {
        requests += 1;
        if requests == 2 { 503 } else { 202 }
    });
    let mut child = start("lines.sh", &serde_json::json!({"path": path}).to_string(), &sink, 0);
    assert_eq!(sink.wait_for_numbers(3), 0);
    assert!(child.wait().unwrap().success());
}

/// TRN-01, TRN-57, TRN-58: an adapter in Python.
#[test]
fn python_adapter_sends_datagrams_and_says_ready() {
    if find("python3").is_none() {
        return;
    }
    refuses_broken_json("udp.py");
    let (sink, port, health) = (Sink::new(), free_port(), free_port());
    let child = start("udp.py", &format!("{{\"port\":{port}}}"), &sink, health);
    wait("readiness", || get(health, "/readyz").ok().filter(|response| response.text().contains("\"ready\":true")));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0..3 {
        socket.send_to(number.to_string().as_bytes(), ("127.0.0.1", port)).unwrap();
    }
    sink.wait_for_numbers(3);
    assert_eq!(stop(child), Some(0));
}

/// TRN-01, TRN-57, TRN-58: an adapter in JavaScript.
#[test]
fn node_adapter_relays_the_answer_of_the_sink() {
    if find("node").is_none() {
        return;
    }
    refuses_broken_json("webhook.mjs");
    let (sink, port, health) = (Sink::new(), free_port(), free_port());
    let child = start("webhook.mjs", &format!("{{\"port\":{port}}}"), &sink, health);
    wait("readiness", || get(health, "/readyz").ok());
    for number in 0..3 {
        let body = number.to_string();
        let response = wait("the listener", || request(port, "POST", "/", &[], body.as_bytes()).ok());
        assert_eq!(response.status(), 202);
    }
    assert_eq!(sink.wait_for_numbers(3), 0);
    sink.set(|_, _| 429);
    assert_eq!(request(port, "POST", "/", &[], b"x").unwrap().status(), 429);
    assert_eq!(stop(child), Some(0));
}
