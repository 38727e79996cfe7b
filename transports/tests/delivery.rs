//! How every adapter handles the responses of a sink, tested with the file transport through the built program.
#![allow(clippy::unwrap_used, reason = "a fixture that fails is a failed test")]

mod support;

use std::path::{Path, PathBuf};

use support::adapter_process::{Adapter, command};
use support::sink::Sink;
use support::wait;

/// A file of events with the given numbers.
fn file(directory: &Path, numbers: std::ops::Range<u64>) -> PathBuf {
    let line =
        |n| format!("{{\"specversion\":\"1.0\",\"id\":\"{n}\",\"source\":\"/s\",\"type\":\"t\",\"data\":{n}}}\n");
    let path = directory.join("in.jsonl");
    std::fs::write(&path, numbers.map(line).collect::<String>()).unwrap();
    path
}

fn receiver(path: &Path) -> String {
    serde_json::json!({"path": path, "follow": true}).to_string()
}

/// A batch with one bad event is halved until the bad one is alone; it is dead-lettered and the rest flows, in order.
#[test]
fn rejected_event_goes_to_the_dead_letter_sink() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0..400);
    let dead = Sink::new();
    let sink = Sink::answering(|_, events| if events.iter().any(|event| event.id() == "137") { 400 } else { 202 });
    let sender =
        serde_json::json!({"sinkUri": sink.url(), "batch": true, "delivery": {"deadLetterSink": {"uri": dead.url()}}});
    let adapter =
        Adapter::start("file", &[("ADAPTER_RECEIVER", &receiver(&path)), ("ADAPTER_SENDER", &sender.to_string())]);
    let wanted: Vec<u64> = (0..400).filter(|n| *n != 137).collect();
    wait("the rest of the events", || (sink.numbers() == wanted).then_some(()));
    let letter = &dead.wait_for(1)[0];
    assert_eq!((letter.id(), letter.text("knativeerrorcode")), ("137".to_owned(), "400".to_owned()));
    assert_eq!(sink.accepted().len(), 399, "no event twice");
    assert!(sink.requests().len() < 40, "{} requests", sink.requests().len());
    wait("the metric", || (adapter.metric("adapter_events_dead_lettered_total") == 1).then_some(()));
}

/// Without a dead letter sink and without a place of the protocol, a rejected event is parked in a file, and counted.
#[test]
fn rejected_event_without_dead_letter_sink_is_parked() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0..3);
    let sink = Sink::answering(|_, events| if events[0].id() == "1" { 422 } else { 202 });
    let state = directory.path().display().to_string();
    let variables = [("ADAPTER_RECEIVER", receiver(&path)), ("K_SINK", sink.url()), ("ADAPTER_STATE", state)];
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let adapter = Adapter::start("file", &variables);
    wait("the rest of the events", || (sink.numbers() == [0, 2]).then_some(()));
    assert_eq!(adapter.metric("adapter_events_parked_total"), 1);
    let parked = std::fs::read_to_string(directory.path().join("parked.jsonl")).unwrap();
    assert!(parked.contains("\"id\":\"1\"") && parked.contains("\"knativeerrorcode\":\"422\""), "{parked}");
}

/// 401, 403 and 404 are held with their reason and retried; nothing is dropped.
#[test]
fn refused_events_are_held_until_the_sink_accepts() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0..50);
    let sink = Sink::answering(|_, _| 401);
    let adapter = Adapter::start("file", &[("ADAPTER_RECEIVER", &receiver(&path)), ("K_SINK", &sink.url())]);
    for status in [401, 403, 404] {
        sink.set(move |_, _| status);
        let body = wait("the reason", || {
            Some(adapter.readiness()).filter(|body| body.contains(&format!("answered {status}")))
        });
        assert!(body.contains("SinkRefusesEvents") && body.contains("\"ready\":false"), "{body}");
    }
    sink.set(|_, _| 202);
    sink.wait_for_numbers(50);
    adapter.wait_ready();
}

/// SRC-19, SRC-30, TRN-39: overrides replace attributes, a trace is passed on or begun.
#[test]
fn overrides_and_trace_context_reach_the_sink() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0..1);
    let sink = Sink::new();
    let overrides = r#"{"extensions":{"team":"a","type":"other"}}"#;
    let variables =
        [("ADAPTER_RECEIVER", receiver(&path)), ("K_SINK", sink.url()), ("K_CE_OVERRIDES", overrides.to_owned())];
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let _adapter = Adapter::start("file", &variables);
    let event = &sink.wait_for(1)[0];
    assert_eq!((event.text("team"), event.text("type")), ("a".to_owned(), "other".to_owned()));
    let trace = sink.requests()[0].header("traceparent").unwrap().to_owned();
    assert!(trace.len() == 55 && trace.starts_with("00-"), "{trace}");
}

/// TRN-06, TRN-56: SIGHUP takes the changed file, and the process stays.
#[test]
fn hangup_changes_the_source_in_the_same_process() {
    let directory = tempfile::tempdir().unwrap();
    let first = file(directory.path(), 0..10);
    let second = directory.path().join("second.jsonl");
    std::fs::rename(&first, &second).unwrap();
    let first = file(directory.path(), 0..5);
    let (old, new) = (Sink::new(), Sink::new());
    let config = directory.path().join("config.json");
    let write = |path: &Path, sink: &Sink| {
        let document = serde_json::json!({"source": {"path": path, "follow": true}, "sink": {"sinkUri": sink.url()}});
        std::fs::write(&config, document.to_string()).unwrap();
    };
    write(&first, &old);
    let adapter = Adapter::start("file", &[("ADAPTER_CONFIG", config.to_str().unwrap()), ("ADAPTER_LOG", "debug")]);
    old.wait_for_numbers(5);
    // A configuration that is wrong changes nothing.
    std::fs::write(&config, "{\"source\":{\"pth\":1}}").unwrap();
    adapter.signal("HUP");
    wait("the metric", || (adapter.metric("adapter_reload_failures_total") == 1).then_some(()));
    adapter.wait_reason("ConfigurationInvalid");
    write(&second, &new);
    adapter.signal("HUP");
    new.wait_for_numbers(10);
    assert_eq!(old.accepted().len(), 5);
    let adapter = adapter.wait_ready();
    assert_eq!(adapter.stop(), Some(0));
}

/// TRN-07, TRN-20, TRN-21: a token is a file; a missing one holds events until it is there; its bytes are nowhere else.
#[test]
fn token_file_is_used_and_shown_nowhere() {
    const SECRET: &str = "s3cr3t-t0ken";
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0..5);
    let token = directory.path().join("token");
    let sink = Sink::answering(
        |request, _| if request.header("authorization") == Some("Bearer s3cr3t-t0ken") { 202 } else { 401 },
    );
    let sender = serde_json::json!({"sinkUri": sink.url(), "token": token}).to_string();
    let adapter = Adapter::start(
        "file",
        &[("ADAPTER_RECEIVER", &receiver(&path)), ("ADAPTER_SENDER", &sender), ("ADAPTER_LOG", "trace")],
    );
    adapter.wait_reason("SinkRefusesEvents");
    std::fs::write(&token, format!("{SECRET}\n")).unwrap();
    sink.wait_for_numbers(5);
    let process = PathBuf::from(format!("/proc/{}", adapter.child.id()));
    let shown = [
        String::from_utf8_lossy(&std::fs::read(process.join("environ")).unwrap()).into_owned(),
        String::from_utf8_lossy(&std::fs::read(process.join("cmdline")).unwrap()).into_owned(),
        adapter.log(),
        adapter.readiness(),
        support::http::get(adapter.port, "/metrics").unwrap().text(),
    ];
    assert!(shown.iter().all(|text| !text.contains(SECRET)), "{shown:?}");
    assert_eq!(
        shown[1].split('\0').filter(|argument| !argument.is_empty()).count(),
        2,
        "program and transport: {}",
        shown[1]
    );
}

/// TRN-55: 0 sends once, 1 retries, 2 is refused where ids are new at each delivery.
#[test]
fn quality_of_service_is_kept_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), 0..20);
    let sink = Sink::answering(|_, events| if events[0].id() == "3" { 503 } else { 202 });
    let unreliable = serde_json::json!({"path": path, "follow": true, "qos": 0}).to_string();
    let adapter = Adapter::start("file", &[("ADAPTER_RECEIVER", &unreliable), ("K_SINK", &sink.url())]);
    wait("the metrics", || {
        let counts = (adapter.metric("adapter_events_accepted_total"), adapter.metric("adapter_events_dropped_total"));
        (counts == (19, 1)).then_some(())
    });
    assert!(adapter.readiness().contains("\"qos\":0"));
    for (kind, receiver) in [("file", r#"{"qos":2}"#), ("nats", r#"{"servers":["127.0.0.1:1"],"subject":"s","qos":1}"#)]
    {
        let mut command = command(kind, &[("ADAPTER_RECEIVER", receiver), ("K_SINK", &sink.url())]);
        let output = command.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && log.contains("is refused, because this transport allows at most"), "{log}");
    }
}
