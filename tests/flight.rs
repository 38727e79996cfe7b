//! The flight recorder through the built binary: what became of an event, and sending it again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use kit::scene::{SILENCE, delivery, ids, only, post, subscribe};
use kit::{Answer, Appliance, Event, EventSink, PATIENCE, Setup, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn appliance() -> Appliance {
    kit::scene::with_broker(&Setup::new(BIN).flag("workers", "2"))
}

fn event(appliance: &Appliance, words: &[&str]) -> Output {
    let admin = appliance.admin().to_string();
    Command::new(BIN).arg("event").args(words).args(["--admin", &admin]).output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

/// The traced event, once the flight recorder has written down what is `wanted` of it.
fn traced(appliance: &Appliance, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    wait::until(PATIENCE, &format!("the whole trace of {id}"), || {
        let output = event(appliance, &["trace", id, "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).ok()?;
        found["events"].as_array()?.iter().find(|event| wanted(event)).cloned()
    })
}

fn of<'e>(event: &'e Value, subscriber: &str) -> &'e Value {
    let all = event["subscribers"].as_array().unwrap();
    all.iter().find(|one| one["subscriber"] == subscriber).unwrap_or_else(|| panic!("{event:#}"))
}

/// DP-OBS-02, DP-OBS-03: arrival, filter verdicts, attempts with status and latency, and the end.
#[test]
fn a_trace_tells_what_became_of_an_event() {
    let sink = EventSink::answering(|event| Answer::status(if event.attempt < 3 { 503 } else { 202 }));
    let dead = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "slow", &sink.url(), &[delivery(5, &dead)]);
    subscribe(appliance.api(), "other", &sink.url(), &[only(json!({ "type": "other" }))]);
    post(&appliance, &Event::new("one"));
    let event_one = traced(&appliance, "one", |event| of(event, "default/slow")["verdict"] == "delivered");
    assert_eq!(event_one["attributes"]["source"], "/kit");
    assert_eq!(event_one["stream"], "/brokers/default/main");
    assert_eq!(of(&event_one, "default/other")["verdict"], "filtered");
    let notes = of(&event_one, "default/slow")["notes"].as_array().unwrap();
    let seen: Vec<_> = notes.iter().map(|note| (note["attempt"].clone(), note["status"].clone())).collect();
    assert_eq!(seen, [(json!(1), json!(503)), (json!(2), json!(503)), (json!(3), json!(202))]);
    assert!(notes.iter().all(|note| note["latency_ms"].is_number()));

    let told = text(&event(&appliance, &["trace", "--source", "/kit", "--since", "10m"]));
    assert!(told.contains("id one") && told.contains("attempt 3: 202"), "{told}");
    assert!(told.contains("default/slow: delivered"), "{told}");
    let unsaid = text(&event(&appliance, &["list"]));
    assert!(unsaid.contains("--dead-letters"), "what is missing is named: {unsaid}");
    let nothing = event(&appliance, &["trace", "nobody"]);
    assert!(!nothing.status.success() && text(&nothing).contains("no such event"), "{nothing:?}");
    let bad = event(&appliance, &["trace", "one", "--since", "yesterday"]);
    assert!(!bad.status.success() && text(&bad).contains("yesterday"), "{bad:?}");
}

/// What was given up is listed, and goes to its subscriber alone when it is sent again, also after a restart.
#[test]
fn dead_letters_are_listed_and_sent_again() {
    let works = Arc::new(AtomicBool::new(false));
    let is_working = Arc::clone(&works);
    let sink = EventSink::answering(move |_| Answer::status(if is_working.load(SeqCst) { 202 } else { 400 }));
    let (dead, witness) = (EventSink::start(), EventSink::start());
    let mut appliance = appliance();
    subscribe(appliance.api(), "broken", &sink.url(), &[delivery(0, &dead)]);
    subscribe(appliance.api(), "witness", &witness.url(), &[]);
    for id in ["a", "b"] {
        post(&appliance, &Event::new(id).data("text/plain", id));
    }
    dead.wait_for(2, PATIENCE);
    witness.wait_for(2, PATIENCE);
    appliance.terminate(); // an orderly end writes the last notes
    appliance.restart();

    let listed = text(&event(&appliance, &["list", "--dead-letters", "--trigger", "default/broken"]));
    assert!(
        listed.contains("id a") && listed.contains("id b") && listed.contains("dead-lettered"),
        "{listed}"
    );
    let none = text(&event(&appliance, &["list", "--dead-letters", "--trigger", "default/witness"]));
    assert!(none.contains("nothing was given up"), "{none}");

    works.store(true, SeqCst);
    let redrive = |words: &[&str]| {
        let words = [&["redrive", "--trigger", "default/broken"], words].concat();
        let done = event(&appliance, &words);
        assert!(done.status.success(), "{}", text(&done));
        text(&done)
    };
    assert!(redrive(&["--dry-run"]).contains("2 events would be sent"));
    assert_eq!(sink.received().len(), 2);
    assert!(redrive(&["--rate", "100"]).contains("2 events sent"));
    let again = sink.wait_for(4, PATIENCE).split_off(2);
    let mut names = ids(&again);
    names.sort();
    assert_eq!(names, ["a", "b"]);
    assert!(again.iter().all(|one| one.data() == one.id().as_bytes()));
    assert!(again.iter().all(|one| one.header("sluicegate-addressee").is_none()));
    wait::nothing(SILENCE, "a copy for somebody else", || {
        (witness.received().len() + dead.received().len() > 4).then_some(())
    });
    let copy = traced(&appliance, "a", |event| {
        event["replay"] == true && of(event, "default/broken")["verdict"] == "delivered"
    });
    assert_eq!(copy["subscribers"].as_array().unwrap().len(), 1, "{copy:#}");
}

/// A replay from the beginning sends what the Trigger's filter wants, once.
#[test]
fn a_trigger_is_replayed_from_a_point() {
    let (sink, keeper) = (EventSink::start(), EventSink::answering(|_| Answer::status(503)));
    let appliance = appliance();
    // Somebody who still needs the events keeps them in the log.
    let (pointer, _) = delivery(0, &sink);
    let slow = json!({ "retry": 20, "backoffPolicy": "linear", "backoffDelay": "PT60S" });
    subscribe(appliance.api(), "keeper", &keeper.url(), &[(pointer, slow)]);
    subscribe(appliance.api(), "t", &sink.url(), &[only(json!({ "type": "wanted" }))]);
    for n in 0..6 {
        let kind = if n % 2 == 0 { "wanted" } else { "unwanted" };
        post(&appliance, &Event::new(&n.to_string()).of_type(kind));
    }
    sink.wait_for(3, PATIENCE);
    let replay = |words: &[&str]| event(&appliance, &[&["replay", "--trigger", "default/t"], words].concat());
    let counted = text(&replay(&["--from", "10m", "--dry-run"]));
    assert!(counted.contains("3 events would be sent"), "{counted}");
    let sent = text(&replay(&["--from", "earliest"]));
    assert!(sent.contains("3 events sent"), "{sent}");
    let mut received = ids(&sink.wait_for(6, PATIENCE));
    received.sort();
    assert_eq!(received, ["0", "0", "2", "2", "4", "4"]);
    for (words, why) in [
        (["replay", "--trigger", "default/t", "--from", "tomorrowish"], "tomorrowish"),
        (["replay", "--trigger", "default/nobody", "--from", "10m"], "nobody"),
    ] {
        let refused = event(&appliance, &words);
        assert!(!refused.status.success() && text(&refused).contains(why), "{}", text(&refused));
    }
}

/// Dead letters go to a mended subscriber: the Trigger is patched, and sent to once it is Ready. A patch that is refused,
/// or for nobody, sends nothing; a dry run changes nothing.
#[test]
fn dead_letters_are_sent_to_a_patched_subscriber() {
    let (broken, mended) = (EventSink::answering(|_| Answer::status(400)), EventSink::start());
    let appliance = appliance();
    let options = ("/spec/delivery", json!({ "retry": 0 }));
    subscribe(appliance.api(), "t", &broken.url(), &[options]);
    post(&appliance, &Event::new("1"));
    broken.wait_for(1, PATIENCE);
    traced(&appliance, "1", |event| of(event, "default/t")["verdict"] == "dropped");
    let api = appliance.api().address().to_string();
    let redrive = |trigger: &str, words: &[&str]| {
        event(&appliance, &[&["redrive", "--trigger", trigger, "--api", &api], words].concat())
    };
    let to = format!(r#"{{"uri":"{}"}}"#, mended.url());
    for (trigger, patch, why) in [
        ("default/t", "{", "no JSON"),
        ("default/t", "[]", "has to be an object"),
        ("default/t", r#"{"uri":"nowhere"}"#, "spec.subscriber.uri"),
        ("default/nobody", to.as_str(), "no Trigger and no Subscription"),
    ] {
        let refused = redrive(trigger, &["--patch", patch]);
        assert!(!refused.status.success() && text(&refused).contains(why), "{}", text(&refused));
    }
    let dry = text(&redrive("default/t", &["--dry-run", "--patch", &to]));
    assert!(dry.contains("would be changed") && dry.contains("1 events would be sent"), "{dry}");
    let uri = || appliance.api().get("Trigger", "default", "t").unwrap()["spec"]["subscriber"]["uri"].clone();
    assert_eq!(uri(), broken.url());

    let sent = text(&redrive("default/t", &["--patch", &to]));
    assert!(sent.contains("1 events sent to default/t"), "{sent}");
    assert_eq!(ids(&mended.wait_for(1, PATIENCE)), ["1"]);
    assert_eq!((uri(), broken.received().len()), (json!(mended.url()), 1));
}

/// What retention dropped before it was read is told in the trace, not only counted.
#[test]
fn a_trace_tells_of_what_retention_dropped_unread() {
    let sink = EventSink::answering(|_| Answer::status(503));
    let appliance = appliance();
    let options = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT60S" });
    // One event at a time: all others stay unread.
    let order = ("/metadata/annotations", json!({ "sluicegate.dev/delivery.order": "strict" }));
    subscribe(appliance.api(), "lags", &sink.url(), &[("/spec/delivery", options), order]);
    for n in 0..1300 {
        post(&appliance, &Event::new(&n.to_string()));
    }
    sink.wait_for(1, PATIENCE);
    let keep = json!({ "metadata": { "annotations": { "sluicegate.dev/retention-time": "1s" } } });
    appliance.api().patch("Broker", "default", "main", &keep);
    for id in ["1200", "1299"] {
        let dropped = traced(&appliance, id, |event| of(event, "default/lags")["verdict"] != "pending");
        let told = of(&dropped, "default/lags");
        let notes = told["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note["what"].as_str().unwrap().starts_with("dropped")), "{told:#}");
    }
}
