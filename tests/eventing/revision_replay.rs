//! Events of the log are sent to a Revision before it replaces a Trigger's subscriber.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

use kit::api::is_ready;
use kit::manifest::{NAMESPACE, service};
use kit::scene::{delivery, ids, only, post, subscribe};
use kit::{Appliance, ApplianceSetup, EventSink, SinkResponse, TIMEOUT, TestEvent};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// The template that has all the traffic, and the one that is to be tried.
const LIVE: &str = "example.com/live";
const CANDIDATE: &str = "example.com/candidate";

/// An appliance whose Service `app` has a Revision `app-00002` without traffic, which takes events.
fn appliance() -> Appliance {
    let image = |name: &str, program: &str| format!("{name}={BIN} example {program}");
    let setup = ApplianceSetup::new(BIN)
        .flag("workers", "2")
        .flag("image", &image(LIVE, "hello"))
        .flag("image", &image(CANDIDATE, "sink"));
    let appliance = kit::scene::with_broker(&setup);
    let api = appliance.api();
    api.create(&service("app", LIVE, "one"));
    api.wait_ready("Service", NAMESPACE, "app", TIMEOUT);
    let candidate = json!({ "spec": {
        "template": { "spec": { "containers": [{ "image": CANDIDATE }] } },
        "traffic": [{ "revisionName": "app-00001", "percent": 100 }],
    } });
    api.patch("Service", NAMESPACE, "app", &candidate);
    api.wait_for("Revision", NAMESPACE, "app-00002", TIMEOUT, is_ready);
    appliance
}

/// A Trigger `t` for events of the type `wanted`, which has delivered three of six events to the sink.
fn delivered(appliance: &Appliance) -> EventSink {
    let (sink, keeper) = (EventSink::start(), EventSink::answering(|_| SinkResponse::status(503)));
    // A subscriber that still needs the events keeps them in the log.
    let (pointer, _) = delivery(0, &sink);
    let slow = json!({ "retry": 20, "backoffPolicy": "linear", "backoffDelay": "PT60S" });
    subscribe(appliance.api(), "keeper", &keeper.url(), &[(pointer, slow)]);
    subscribe(appliance.api(), "t", &sink.url(), &[only(json!({ "type": "wanted" }))]);
    for n in 0..6 {
        let kind = if n % 2 == 0 { "wanted" } else { "unwanted" };
        post(appliance, &TestEvent::new(&n.to_string()).of_type(kind));
    }
    sink.wait_for(3, TIMEOUT);
    sink
}

fn replay(appliance: &Appliance, words: &[&str]) -> Output {
    let admin = appliance.admin().to_string();
    let mut command = Command::new(BIN);
    command.args(["event", "replay", "--trigger", "default/t", "--admin", &admin]).args(words);
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

/// A Revision without a Route gets the events that the Trigger's filter selects. The subscriber gets nothing, and the
/// Trigger's counts stay.
#[test]
fn revision_without_traffic_gets_selected_events() {
    let appliance = appliance();
    let sink = delivered(&appliance);
    let offered = || appliance.metric("sluicegate_subscriber_offered_total", "default/t");
    let before = offered();

    let dry = replay(&appliance, &["--to", "revision", "app-00002", "--dry-run"]);
    let reported = text(&dry);
    assert!(reported.contains("3 events would be sent to revision app-00002"), "{reported}");
    for (id, is_listed) in [("0", true), ("1", false), ("2", true), ("4", true)] {
        assert_eq!(reported.contains(&format!("id {id}  source /kit  type wanted")), is_listed, "{reported}");
    }

    let sent = replay(&appliance, &["--to", "revision", "app-00002", "--from", "10m"]);
    let reported = text(&sent);
    assert!(sent.status.success(), "{reported}");
    assert!(reported.contains("3 events sent to revision app-00002\n  202: 3\n"), "{reported}");
    for id in ["0", "2", "4"] {
        appliance.wait_says(&format!("event type=wanted source=/kit id={id} "));
    }
    assert!(!appliance.stderr().contains("type=unwanted"));
    let mut received = ids(&sink.received());
    received.sort();
    assert_eq!((received, offered()), (vec!["0".to_owned(), "2".to_owned(), "4".to_owned()], before));

    let earlier = text(&replay(&appliance, &["--to", "revision", "app-00002", "--to-time", "10m", "--dry-run"]));
    assert!(earlier.contains("0 events would be sent"), "{earlier}");
}

/// A URL gets the same requests as the subscriber, each once. Responses other than 2xx are the exit status.
#[test]
fn url_gets_each_event_once_and_failures_are_reported() {
    let appliance = appliance();
    let sink = delivered(&appliance);
    let trial = EventSink::answering(|event| match event.id().as_str() {
        "2" => SinkResponse::status(503),
        "4" => SinkResponse::event(200, &[("id", "r"), ("source", "/r"), ("type", "wanted")], &json!(1)),
        _ => SinkResponse::status(202),
    });
    let tried = replay(&appliance, &["--to", &trial.url()]);
    let reported = text(&tried);
    assert_eq!(tried.status.code(), Some(1), "{reported}");
    for line in ["  200: 1\n", "  202: 1\n", "  503: 1\n", "dropped: 1\n", "id 2  source /kit  type wanted: 503"] {
        assert!(reported.contains(line), "{line}: {reported}");
    }
    let received = trial.received();
    assert_eq!(received.len(), 3, "a failure is not retried");
    let delivered = sink.received();
    for one in &received {
        let same = delivered.iter().find(|other| other.id() == one.id()).unwrap();
        assert_eq!(one.attribute("knativearrivaltime"), same.attribute("knativearrivaltime"));
        assert!(one.header("prefer").is_some() && one.header("sluicegate-addressee").is_none());
    }
    assert_eq!(sink.received().len(), 3, "the reply is not stored");
}

#[test]
fn destination_that_cannot_serve_is_refused() {
    let appliance = appliance();
    let _sink = delivered(&appliance);
    for (words, why) in [
        (&["--to", "revision", "app-00009"][..], "no Revision default/app-00009"),
        (&["--to", "revision/other/app-00002"], "stays in the namespace of its Trigger"),
        (&["--to", "app-00002"], "`revision NAME` or a URL"),
        (&["--to", "ftp://h/"], "no response"),
        (&["--to", "http://"], "--to"),
        (&["--from", "10m", "--to-time", "soon"], "--to-time takes a time"),
        (&["--from", "1m", "--to-time", "5m"], "before --from"),
        (&["--to", "http://h/", "--patch", "{}"], "--patch"),
        (&[], "--from"),
    ] {
        let refused = replay(&appliance, words);
        assert!(!refused.status.success() && text(&refused).contains(why), "{words:?}: {}", text(&refused));
    }
}
