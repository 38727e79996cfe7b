//! `sluicegate load` as a user calls it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

use kit::server::closed_address;
use kit::{EventSink, TestUpstream};
use serde_json::Value;

fn load(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluicegate")).arg("load").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn load_prints_a_summary_and_nothing_to_stderr() {
    let upstream = TestUpstream::start("a");
    let output = load(&[&format!("http://{}/", upstream.address()), "-n", "50", "-c", "2"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    let summary = text(&output.stdout);
    for part in ["statuses   200: 50", "failures   none", "p99.9", "generator"] {
        assert!(summary.contains(part), "{part:?} in\n{summary}");
    }
    assert_eq!((upstream.requests(), upstream.connections()), (50, 2));
}

#[test]
fn load_writes_several_reports() {
    let upstream = TestUpstream::start("a");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let url = format!("http://{}/status?code=503", upstream.address());
    let html = format!("html:{}", page.display());
    let output = load(&[&url, "-n", "20", "--output", "json", "--output", &html]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tests"][0]["statuses"]["503"], 20);
    assert!(std::fs::read_to_string(page).unwrap().contains("<svg "));
    let unwritable = load(&[&url, "-n", "1", "--output", "csv:/proc/none/x.csv"]);
    assert!(text(&unwritable.stderr).contains("/proc/none/x.csv") && unwritable.status.code() == Some(1));
    assert_eq!(upstream.requests(), 20, "a file that cannot be written is reported before the test");
}

#[test]
fn load_compares_two_targets() {
    let (left, right) = (TestUpstream::start("a"), TestUpstream::start("b"));
    let [first, second] = [&left, &right].map(|upstream| format!("http://{}/", upstream.address()));
    let output = load(&[&first, "--compare", &second, "--rounds", "2", "-n", "30"]);
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(summary.contains("B / A") && summary.contains("2 rounds each"), "{summary}");
    assert_eq!((left.requests(), right.requests()), (60, 60));
}

#[test]
fn load_without_any_response_fails_with_reason() {
    let upstream = TestUpstream::start("a");
    let address = closed_address();
    for (words, part) in [
        (vec![format!("http://{address}/")], "refused"),
        (
            vec![format!("http://{}/hangup", upstream.address()), "-n".to_owned(), "3".to_owned()],
            "closed the connection",
        ),
        (vec!["ftp://127.0.0.1/".to_owned()], "http://HOST:PORT/PATH"),
        (vec!["http://no-such-host.invalid/".to_owned()], "no-such-host.invalid"),
    ] {
        let output = load(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {error}");
        assert!(error.starts_with("error: ") && error.contains(part), "{words:?}: {error}");
    }
}

#[test]
fn load_sends_events_to_a_sink() {
    let sink = EventSink::start();
    let output = load(&[&format!("http://{}/", sink.address()), "--cloudevent=a.b", "--body", "{\"n\":1}", "-n", "5"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let events = sink.received();
    assert_eq!(events.len(), 5);
    assert!(
        events.iter().all(|event| event.attribute("type").as_deref() == Some("a.b") && event.data() == b"{\"n\":1}")
    );
}
