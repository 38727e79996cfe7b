//! A subscriber that is down: its backlog is on the disk, and memory holds only the position of each event.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kit::scene::{BROKER, subscribe, with_broker};
use kit::server::closed_address;
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, TIMEOUT, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// Events in a request: as many as one may have.
const BATCH: u64 = 1000;
/// Requests until buffers and tables have found their size.
const WARM: u64 = 100;
/// A hundredth of ten million events.
const MEASURED: u64 = 100;
/// What memory may hold of an event: the four bytes of its place, and what the allocator and the process's other
/// work take or leave meanwhile. Ten million of them at six bytes are the 64 MiB that they may cost.
const BYTES_AN_EVENT: u64 = 20;

fn batch() -> HttpCall {
    let one = |n: u64| json!({ "specversion": "1.0", "id": n.to_string(), "source": "/s", "type": "t", "data": "x".repeat(100) });
    let events = Value::Array((0..BATCH).map(one).collect());
    let call = HttpCall::post(BROKER).header("Content-Type", "application/cloudevents-batch+json");
    call.body(events.to_string())
}

/// The process's own memory, in bytes.
fn memory(appliance: &Appliance) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", appliance.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_backlog_costs_some_bytes_an_event_and_is_delivered_on_return() {
    let away = closed_address();
    let appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "1"));
    let patient = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.5S" });
    subscribe(appliance.api(), "away", &format!("http://{away}/"), &[("/spec/delivery", patient)]);
    let of_it = |what: &str| appliance.metric(&format!("sluicegate_subscriber_{what}"), "default/away");
    let mut connection = HttpConnection::open(appliance.events());
    let call = batch();
    let mut send = |batches: u64, in_all: u64| {
        for _ in 0..batches {
            assert_eq!(connection.call(&call).status, 202);
        }
        wait::until(TIMEOUT, "all to be pending", || (of_it("pending") == in_all * BATCH).then_some(()));
        memory(&appliance)
    };
    let before = send(WARM, WARM);
    let after = send(MEASURED, WARM + MEASURED);
    let grown = after.saturating_sub(before) / (MEASURED * BATCH);
    assert!(grown <= BYTES_AN_EVENT, "{grown} bytes an event: {before} to {after}");

    let _back = EventSink::start_at(away, |_| kit::SinkResponse::status(202));
    wait::until(TIMEOUT, "a good part of it to be delivered", || (of_it("delivered_total") > 5 * BATCH).then_some(()));
    assert_eq!(of_it("dropped_total") + of_it("dead_lettered_total"), 0);
}
