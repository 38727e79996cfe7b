//! PostgreSQL: notifications come, events go, through the built program and a real server.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]
#![allow(clippy::disallowed_methods, reason = "a test waits as a thread")]

mod support;

use std::process::Command;

use support::adapter_process::Adapter;
use support::http::post_number;
use support::proxy::Proxy;
use support::server::{Server, find};
use support::sink::Sink;
use support::wait;

fn query(server: &Server, statement: &str) -> String {
    let psql = find("psql").unwrap();
    let port = server.port.to_string();
    let arguments = ["-h", "127.0.0.1", "-U", "postgres", "-At", "-v", "ON_ERROR_STOP=1", "-p", &port, "-c", statement];
    wait("the end of the start-up", || {
        let output = Command::new(&psql).args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if error.contains("starting up") || error.contains("not yet accepting connections") {
            return None;
        }
        assert!(output.status.success(), "{error}");
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    })
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

fn replication(server: &Server, port: u16, rest: &str) -> String {
    let text = section(server, &format!(r#""replication":{{"slot":"s","publication":"p"{rest}}}"#));
    text.replace(&format!("\"port\":{}", server.port), &format!("\"port\":{port}"))
}

fn insert(server: &Server, numbers: std::ops::Range<u64>) {
    let values: Vec<String> = numbers.map(|number| format!("({number})")).collect();
    query(server, &format!("INSERT INTO orders (n) VALUES {}", values.join(",")));
}

/// The position that the server may forget.
fn is_confirmed(server: &Server) -> bool {
    let statement =
        "SELECT confirmed_flush_lsn >= pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = 's'";
    query(server, statement) == "t"
}

/// TRN-29, TRN-49, TRN-55, SRC-38: what is committed reaches the sink in order, through kills of the adapter and of the server and
/// a cut connection; the position is confirmed after the 2xx and not before.
#[test]
fn replication_loses_nothing() {
    let Some(mut server) = Server::postgresql() else { return };
    query(&server, "CREATE TABLE orders (n integer PRIMARY KEY)");
    let sink = Sink::new();
    let proxy = Proxy::to(server.port);
    let receiver = replication(&server, proxy.port, r#","tables":["public.orders"]"#);
    let url = sink.url();
    let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", url.as_str())];
    let mut adapter = Adapter::start("postgresql", &variables).wait_ready();
    assert!(adapter.readiness().contains("\"qos\":1"));
    insert(&server, 0..100);
    assert_eq!(sink.wait_for_numbers(100), 0);
    wait("the confirmation", || is_confirmed(&server).then_some(()));

    // The sink is down, the adapter is killed, and then the server.
    sink.set(|_, _| 503);
    insert(&server, 100..150);
    wait("retries", || (adapter.metric("adapter_send_retries_total") > 0).then_some(()));
    assert!(!is_confirmed(&server), "nothing is confirmed before the 2xx");
    adapter.kill();
    adapter = Adapter::start("postgresql", &variables).wait_ready();
    wait("retries", || (adapter.metric("adapter_send_retries_total") > 0).then_some(()));
    server.kill();
    adapter.wait_reason("ConnectionFailed");
    server.start_again();
    sink.set(|_, _| 202);
    insert(&server, 150..200);
    sink.wait_for_numbers(200);

    // The adapter is killed while events flow, in one large transaction.
    sink.set(|_, _| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        202
    });
    insert(&server, 200..1200);
    wait("some events", || (sink.numbers().len() > 400).then_some(()));
    adapter.kill();
    adapter = Adapter::start("postgresql", &variables).wait_ready();
    sink.wait_for_numbers(1200);

    proxy.cut();
    insert(&server, 1200..1300);
    adapter.wait_reason("ConnectionFailed");
    proxy.restore();
    sink.wait_for_numbers(1300);

    // A clean stop in the middle of the flow sends no event again.
    wait("the confirmation", || is_confirmed(&server).then_some(()));
    let before = sink.accepted().len();
    insert(&server, 1300..2000);
    wait("some events", || (sink.numbers().len() > 1400).then_some(()));
    assert_eq!(adapter.stop(), Some(0));
    let _adapter = Adapter::start("postgresql", &variables).wait_ready();
    sink.wait_for_numbers(2000);
    assert_eq!(sink.accepted().len() - before, 700, "a clean stop leaves no duplicates");
}

/// TRN-29, TRN-55: each kind of change and of value, with ids that are the same at each delivery.
#[test]
fn replicated_changes_are_typed_events() {
    let Some(server) = Server::postgresql() else { return };
    query(
        &server,
        "CREATE TABLE t (id int PRIMARY KEY, f float8, n numeric, b bool, j jsonb, s text, raw bytea, big text)",
    );
    query(&server, "CREATE PUBLICATION p FOR TABLE t");
    let sink = Sink::new();
    let receiver = replication(&server, server.port, "").replacen('{', "{\"qos\":2,", 1);
    let adapter =
        Adapter::start("postgresql", &[("ADAPTER_RECEIVER", &receiver), ("K_SINK", &sink.url())]).wait_ready();
    let large = "repeat(md5('a'), 3000)";
    query(&server, "ALTER TABLE t ALTER big SET STORAGE EXTERNAL");
    query(
        &server,
        &format!("INSERT INTO t VALUES (1, 'NaN', 1.50, true, '{{\"a\":[1]}}', 'ä \"x\"', '\\x00ff', {large})"),
    );
    query(&server, "UPDATE t SET n = 2 WHERE id = 1");
    query(&server, "UPDATE t SET id = 2, s = NULL WHERE id = 1");
    query(&server, "DELETE FROM t WHERE id = 2");
    query(&server, "TRUNCATE t");
    // A table outside the publication, and a transaction that is rolled back.
    query(&server, "CREATE TABLE other (id int); INSERT INTO other VALUES (1)");
    query(&server, "BEGIN; INSERT INTO t (id) VALUES (7); ROLLBACK");
    query(&server, "INSERT INTO t (id) VALUES (8), (9)");
    let events = sink.wait_for(7);
    let kinds: Vec<String> =
        events.iter().map(|event| event.text("type").rsplit('.').next().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["insert", "update", "update", "delete", "truncate", "insert", "insert"]);
    let data: Vec<serde_json::Value> =
        events.iter().map(|event| serde_json::from_slice(event.data.as_deref().unwrap()).unwrap()).collect();
    let row = &data[0]["new"];
    let seen = (&row["id"], &row["f"], &row["b"], &row["j"], &row["s"], &row["raw"]);
    let (id, f, b, j) = (1.into(), "NaN".into(), true.into(), serde_json::json!({"a": [1]}));
    assert_eq!(seen, (&id, &f, &b, &j, &"ä \"x\"".into(), &"\\x00ff".into()));
    assert_eq!(row["big"].as_str().map(str::len), Some(96_000));
    assert_eq!(
        (data[1]["new"].get("big"), data[1].get("old")),
        (None, None),
        "a large value that did not change is not sent"
    );
    assert_eq!((&data[2]["old"], &data[2]["new"]["s"]), (&serde_json::json!({"id": 1}), &serde_json::Value::Null));
    assert_eq!(data[3]["old"], serde_json::json!({"id": 2}));
    let first = &events[0];
    assert_eq!(
        (first.text("subject"), first.text("datacontenttype")),
        ("public.t".to_owned(), "application/json".to_owned())
    );
    assert!(events[5].id().ends_with(":1") && events[6].id().ends_with(":2"), "{}", events[6].id());
    assert_eq!(adapter.stop(), Some(0));
}

/// A server without logical decoding, a wrong password and two adapters of one slot are reasons; the second takes over.
#[test]
fn replication_that_is_refused_says_why() {
    let Some(server) = Server::postgresql() else { return };
    query(&server, "CREATE TABLE orders (n integer)");
    query(
        &server,
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE r LOGIN REPLICATION SUPERUSER PASSWORD 'right'",
    );
    let rules = "host all r 127.0.0.1/32 scram-sha-256\nhost replication r 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
    std::fs::write(server.directory().join("data/pg_hba.conf"), rules).unwrap();
    query(&server, "SELECT pg_reload_conf()");
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "wr0ng-passw0rd").unwrap();
    let receiver = replication(&server, server.port, "")
        .replace("\"user\":\"postgres\"", &format!("\"user\":\"r\",\"password\":\"{}\"", password.display()));
    let sink = Sink::new();
    let url = sink.url();
    let variables = [("ADAPTER_RECEIVER", receiver.as_str()), ("K_SINK", &url), ("ADAPTER_LOG", "trace")];
    let first = Adapter::start("postgresql", &variables);
    let body = first.wait_reason("ConnectionFailed");
    assert!(body.contains("password authentication failed"), "{body}");
    std::fs::write(&password, "right\n").unwrap();
    let first = first.wait_ready();
    assert!(!first.log().contains("wr0ng"));
    let second = Adapter::start("postgresql", &variables);
    let body = second.wait_reason("ConnectionFailed");
    assert!(body.contains("is active for PID"), "{body}");
    first.kill();
    let _second = second.wait_ready();
    insert(&server, 0..10);
    sink.wait_for_numbers(10);
}
