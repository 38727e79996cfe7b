//! PostgreSQL: notifications come, events go, through the built program and a real server.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use std::process::Command;

use support::adapter_process::Adapter;
use support::http::post_number;
use support::server::{Server, find};
use support::sink::Sink;
use support::wait;

fn query(server: &Server, statement: &str) -> String {
    let psql = find("psql").unwrap();
    let output = Command::new(psql)
        .args(["-h", "127.0.0.1", "-U", "postgres", "-At", "-p", &server.port.to_string(), "-c", statement])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn section(server: &Server, rest: &str) -> String {
    format!(r#"{{"host":"127.0.0.1","port":{},"database":"postgres","user":"postgres",{rest}}}"#, server.port)
}

/// TRN-29, TRN-49, TRN-55: LISTEN is of quality 0 and NOTIFY feeds it; an INSERT is there before the 202.
#[test]
fn notifications_come_and_events_are_inserted() {
    let Some(server) = Server::postgresql() else { return };
    let sink = Sink::new();
    let receiver = section(&server, r#""channels":["a \"b\""]"#);
    let adapter =
        Adapter::start("postgresql", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    assert!(adapter.readiness().contains("\"qos\":0"));
    let sender =
        Adapter::start("postgresql", &[("ADAPTER_SENDER", &section(&server, r#""channel":"a \"b\"""#))]).wait_ready();
    for number in 0..20 {
        assert_eq!(post_number(sender.port, number).unwrap().status(), 202);
    }
    query(&server, r#"NOTIFY "a ""b""", '{"n":20}'"#);
    sink.wait_for_numbers(21);
    let events = sink.accepted();
    assert_eq!(
        (events[0].text("type"), events[20].text("type")),
        ("test".to_owned(), "dev.sluicegate.postgresql.notification".to_owned())
    );

    query(&server, "CREATE TABLE events (id serial, event jsonb)");
    let sender =
        Adapter::start("postgresql", &[("ADAPTER_SENDER", &section(&server, r#""table":"events""#))]).wait_ready();
    for number in 0..20 {
        assert_eq!(post_number(sender.port, number).unwrap().status(), 202);
        assert_eq!(query(&server, "SELECT count(*) FROM events"), (number + 1).to_string());
    }
    // The type jsonb has no U+0000, so no retry can store this event.
    let body = br#"{"specversion":"1.0","id":"z","source":"/s","type":"t","data":"\u0000"}"#;
    let structured = [("content-type", "application/cloudevents+json")];
    assert_eq!(support::http::request(sender.port, "POST", "/", &structured, body).unwrap().status(), 400);
    assert_eq!(query(&server, "SELECT event->>'id' FROM events ORDER BY id LIMIT 1"), "0");
    // The server restarts its connections; both adapters connect again.
    query(
        &server,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sluicegate-adapter'",
    );
    wait("the connection", || (post_number(sender.port, 20).unwrap().status() == 202).then_some(()));
    wait("the reconnection", || (adapter.metric("adapter_reconnects_total") > 0).then_some(()));
    let adapter = adapter.wait_ready();
    query(&server, r#"NOTIFY "a ""b""", '21'"#);
    sink.wait_for_numbers(22);
    assert_eq!(adapter.stop(), Some(0));
}
