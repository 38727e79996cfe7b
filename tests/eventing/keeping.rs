//! Retention of events, the promise of a 202, quotas, and a truncated log file:
//! through the binary.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;

use kit::manifest::{NAMESPACE, broker, channel, with};
use kit::scene::{BROKER, delivery, post, subscribe, with_broker};
use kit::server::closed_address;
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn setup() -> ApplianceSetup {
    ApplianceSetup::new(BIN).flag("workers", "1")
}

/// The sum of all samples of a metric whose labels contain `label`.
fn metric(appliance: &Appliance, name: &str, label: &str) -> u64 {
    let text = HttpCall::get("/metrics").send(appliance.admin()).text();
    let of_it = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    of_it.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

fn annotate(appliance: &Appliance, annotations: Value) {
    appliance.api().patch("Broker", NAMESPACE, "main", &json!({"metadata": {"annotations": annotations}}));
    appliance.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
}

/// AMB-47, EV-RTE-02: the policy is an annotation on a Broker or a Channel, a wrong one is refused by name, and
/// what was answered before it was durable is counted apart and delivered anyway.
#[test]
fn durability_is_an_annotation_and_early_answers_are_counted() {
    let appliance = with_broker(&setup());
    let sink = EventSink::start();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    post(&appliance, &TestEvent::new("flushed"));
    assert_eq!(metric(&appliance, "sluicegate_stream_accepted_before_flush_total", BROKER), 0);

    annotate(&appliance, json!({"sluicegate.dev/durability": "interval:200"}));
    wait::until(TIMEOUT, "an early answer", || {
        post(&appliance, &TestEvent::new("early"));
        (metric(&appliance, "sluicegate_stream_accepted_before_flush_total", BROKER) > 0).then_some(())
    });
    let received = sink.wait_for(2, TIMEOUT);
    assert!(received.iter().any(|event| event.id() == "early"));

    for object in [broker("other"), channel("other")] {
        let wrong = with(object, "/metadata/annotations", json!({"sluicegate.dev/durability": "interval:0"}));
        let refused = appliance.api().try_create(&wrong);
        assert!(refused.status >= 400, "{refused}");
        assert!(refused.text().contains("sluicegate.dev/durability"), "{refused}");
    }
}

/// APP-07, DP-ACK-10: a namespace beyond its quota gets 429 with Retry-After, and is served again when its
/// consumer has had what waited. Nothing is lost and nothing half stored.
#[test]
fn namespace_over_quota_gets_429_and_recovers() {
    let appliance = with_broker(&setup().flag("namespace-event-quota", &format!("{NAMESPACE}=200k")));
    let address = closed_address();
    let options = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S" });
    subscribe(appliance.api(), "all", &format!("http://{address}/"), &[("/spec/delivery", options)]);
    let mut taken = 0;
    let refused = loop {
        let response = TestEvent::new(&taken.to_string())
            .data("text/plain", vec![b'x'; 4000])
            .binary(BROKER)
            .send(appliance.events());
        match response.status {
            202 => taken += 1,
            _ => break response,
        }
        assert!(taken < 1000, "no quota");
    };
    assert_eq!(refused.status, 429, "{refused}");
    assert!(refused.headers.get("retry-after").is_some() && refused.text().contains("namespace default"));
    assert_eq!(metric(&appliance, "sluicegate_stream_over_quota_total", BROKER), 1);

    let sink = EventSink::start_at(address, |_| SinkResponse::status(202));
    sink.wait_for(taken, TIMEOUT);
    wait::until(TIMEOUT, "a 202", || {
        (TestEvent::new("again").binary(BROKER).send(appliance.events()).status == 202).then_some(())
    });
}

/// APP-07: what a Broker's retention does not keep is dropped, with its reason in the metrics and a log line.
#[test]
fn retention_drops_the_oldest_and_says_so() {
    let appliance = with_broker(&setup());
    let sink = EventSink::answering(|_| SinkResponse::status(503));
    subscribe(
        appliance.api(),
        "all",
        &sink.url(),
        &[("/spec/delivery", json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S" }))],
    );
    annotate(&appliance, json!({"sluicegate.dev/retention-bytes": "40k"}));
    let events: u64 = 60;
    for nth in 0..events {
        post(&appliance, &TestEvent::new(&nth.to_string()).data("text/plain", vec![b'x'; 2000]));
    }
    let by_retention = || metric(&appliance, "sluicegate_subscriber_dropped_by_total", "reason=\"retention\"");
    let dropped = wait::until(TIMEOUT, "drops", || Some(by_retention()).filter(|dropped| *dropped >= 30));
    assert!(dropped < events, "the newest stay: {dropped}");
    let of = |what: &str| metric(&appliance, &format!("sluicegate_subscriber_{what}"), BROKER);
    wait::until(TIMEOUT, "a quiet moment", || {
        (of("offered_total") == of("dropped_total") + of("pending") && of("offered_total") == events).then_some(())
    });
    appliance.wait_says("events dropped undelivered: retention");
}

fn segment(appliance: &Appliance) -> PathBuf {
    let folder = appliance.setup().data().join("log/core-0");
    let files = fs::read_dir(folder).expect("a log").map(|entry| entry.expect("listed").path());
    files.filter(|path| path.extension().is_some_and(|ext| ext == "seg")).min().expect("a segment")
}

/// APP-05, APP-06: another program truncates the log's file under a running appliance: it lives, says so, takes no more
/// events on that core, serves everything else, and the next start tells what is gone.
#[test]
fn a_log_file_cut_short_does_not_kill_the_appliance() {
    let mut appliance = with_broker(&setup());
    let (sink, dead) = (EventSink::answering(|_| SinkResponse::status(503)), EventSink::start());
    subscribe(appliance.api(), "all", &sink.url(), &[delivery(1000, &dead)]);
    for nth in 0..100 {
        post(&appliance, &TestEvent::new(&nth.to_string()).data("text/plain", vec![b'x'; 2000]));
    }
    OpenOptions::new().write(true).open(segment(&appliance)).unwrap().set_len(8192).unwrap();

    wait::until(TIMEOUT, "readyz to say it", || {
        (HttpCall::get("/readyz").send(appliance.admin()).status == 503).then_some(())
    });
    let refused = TestEvent::new("no").binary(BROKER).send(appliance.events());
    assert_eq!(refused.status, 503, "{refused}");
    assert!(refused.text().contains("was truncated from outside"), "{refused}");
    assert!(appliance.is_running() && appliance.api().get("Broker", NAMESPACE, "main").is_some());
    wait::until(TIMEOUT, "the metrics", || {
        let failed = metric(&appliance, "sluicegate_log_failed", "core");
        (failed == 1 && metric(&appliance, "sluicegate_log_corrupt_segments", "core") == 1).then_some(())
    });
    appliance.wait_says("was truncated from outside");

    appliance.restart();
    appliance.api().wait_ready("Trigger", NAMESPACE, "all", TIMEOUT);
    wait::until(TIMEOUT, "a 202", || {
        (TestEvent::new("after").binary(BROKER).send(appliance.events()).status == 202).then_some(())
    });
}
