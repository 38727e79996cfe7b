//! The delivery log through the built binary: the outcomes of an event, and sending it again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::SeqCst};

use kit::manifest::{NAMESPACE, channel, subscription, with};
use kit::scene::{BROKER, SILENCE, accepted, delivery, ids, only, post, subscribe};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn appliance() -> Appliance {
    kit::scene::with_broker(&ApplianceSetup::new(BIN).flag("workers", "2"))
}

fn event(appliance: &Appliance, words: &[&str]) -> Output {
    let admin = appliance.admin().to_string();
    Command::new(BIN).arg("event").args(words).args(["--admin", &admin]).output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

/// An appliance and the subscriber of its Trigger `t`, which has had twenty events.
fn with_twenty_delivered() -> (Appliance, EventSink) {
    let (appliance, sink) = (appliance(), EventSink::start());
    subscribe(appliance.api(), "t", &sink.url(), &[]);
    for n in 0..20 {
        post(&appliance, &TestEvent::new(&n.to_string()));
    }
    sink.wait_for(20, TIMEOUT);
    (appliance, sink)
}

/// The traced event, once the flight recorder has written down what is `wanted` of it.
fn traced(appliance: &Appliance, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    wait::until(TIMEOUT, &format!("the whole trace of {id}"), || {
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
    let sink = EventSink::answering(|event| SinkResponse::status(if event.attempt < 3 { 503 } else { 202 }));
    let dead = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "slow", &sink.url(), &[delivery(5, &dead)]);
    subscribe(appliance.api(), "other", &sink.url(), &[only(json!({ "type": "other" }))]);
    post(&appliance, &TestEvent::new("one"));
    let event_one = traced(&appliance, "one", |event| of(event, "default/slow")["outcome"] == "delivered");
    assert_eq!(event_one["attributes"]["source"], "/kit");
    assert_eq!(event_one["stream"], "/brokers/default/main");
    assert_eq!(of(&event_one, "default/other")["outcome"], "filtered");
    let notes = of(&event_one, "default/slow")["notes"].as_array().unwrap();
    let seen: Vec<_> = notes.iter().map(|note| (note["attempt"].clone(), note["status"].clone())).collect();
    assert_eq!(seen, [(json!(1), json!(503)), (json!(2), json!(503)), (json!(3), json!(202))]);
    assert!(notes.iter().all(|note| note["latency_ms"].is_number()));

    let reported = text(&event(&appliance, &["trace", "--source", "/kit", "--since", "10m"]));
    assert!(reported.contains("id one") && reported.contains("attempt 3: 202"), "{reported}");
    assert!(reported.contains("default/slow: delivered"), "{reported}");
    let newest = text(&event(&appliance, &["list"]));
    assert!(newest.contains("id one") && newest.contains("default/slow: delivered"), "{newest}");
    let short = text(&event(&appliance, &["replay", "--trigger", "orders", "--from", "10m"]));
    assert!(short.contains("NAMESPACE/orders"), "what is missing is named: {short}");
    let nothing = event(&appliance, &["trace", "nobody"]);
    assert!(!nothing.status.success() && text(&nothing).contains("no such event"), "{nothing:?}");
    let bad = event(&appliance, &["trace", "one", "--since", "yesterday"]);
    assert!(!bad.status.success() && text(&bad).contains("yesterday"), "{bad:?}");
}

/// DP-OBS-02, DP-OBS-03: with fewer cores than before, the events of the other cores are reported like all.
#[test]
fn events_of_removed_cores_are_reported() {
    let status = Arc::new(AtomicU16::new(503));
    let said = Arc::clone(&status);
    let sink = EventSink::answering(move |_| SinkResponse::status(said.load(SeqCst)));
    let data = tempfile::tempdir().unwrap();
    let with = |workers| ApplianceSetup::new(BIN).flag("workers", workers).flag("data", &data.path().to_string_lossy());
    let mut before = kit::scene::with_broker(&with("2"));
    subscribe(before.api(), "t", &sink.url(), &[]);
    for n in 0..20 {
        post(&before, &TestEvent::new(&n.to_string()));
    }
    sink.wait_for(20, TIMEOUT);
    before.terminate();

    status.store(400, SeqCst);
    let after = with("1").start();
    wait::until(TIMEOUT, "twenty letters", || (open(&after, "default/t") == 20).then_some(()));
    for n in 0..20 {
        traced(&after, &n.to_string(), |event| of(event, "default/t")["outcome"] == "dropped");
    }
}

/// What was given up is listed, and goes to its subscriber alone when it is sent again, also after a restart.
#[test]
fn dead_letters_are_listed_and_sent_again() {
    let works = Arc::new(AtomicBool::new(false));
    let is_working = Arc::clone(&works);
    let sink = EventSink::answering(move |_| SinkResponse::status(if is_working.load(SeqCst) { 202 } else { 400 }));
    let (dead, oracle) = (EventSink::start(), EventSink::start());
    let mut appliance = appliance();
    subscribe(appliance.api(), "broken", &sink.url(), &[delivery(0, &dead)]);
    subscribe(appliance.api(), "witness", &oracle.url(), &[]);
    for id in ["a", "b"] {
        post(&appliance, &TestEvent::new(id).data("text/plain", id));
    }
    dead.wait_for(2, TIMEOUT);
    oracle.wait_for(2, TIMEOUT);
    appliance.terminate(); // an orderly end writes the last notes
    appliance.restart();

    let listed = text(&event(&appliance, &["list", "--dead-letters", "--trigger", "default/broken"]));
    assert!(listed.contains("id a") && listed.contains("id b") && listed.contains("dead-lettered"), "{listed}");
    let none = text(&event(&appliance, &["list", "--dead-letters", "--trigger", "default/witness"]));
    assert!(none.contains("no open dead letters"), "{none}");

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
    let again = sink.wait_for(4, TIMEOUT).split_off(2);
    let mut names = ids(&again);
    names.sort();
    assert_eq!(names, ["a", "b"]);
    assert!(again.iter().all(|one| one.data() == one.id().as_bytes()));
    assert!(again.iter().all(|one| one.header("sluicegate-addressee").is_none()));
    wait::nothing(SILENCE, "a copy for somebody else", || {
        (oracle.received().len() + dead.received().len() > 4).then_some(())
    });
    let copy = traced(&appliance, "a", |event| {
        event["replay"] == true && of(event, "default/broken")["outcome"] == "delivered"
    });
    assert_eq!(copy["subscribers"].as_array().unwrap().len(), 1, "{copy:#}");
}

/// A replay from the beginning sends what the Trigger's filter wants, once.
#[test]
fn a_trigger_is_replayed_from_a_point() {
    let (sink, keeper) = (EventSink::start(), EventSink::answering(|_| SinkResponse::status(503)));
    let appliance = appliance();
    // A subscriber that still needs the events keeps them in the log.
    let (pointer, _) = delivery(0, &sink);
    let slow = json!({ "retry": 20, "backoffPolicy": "linear", "backoffDelay": "PT60S" });
    subscribe(appliance.api(), "keeper", &keeper.url(), &[(pointer, slow)]);
    subscribe(appliance.api(), "t", &sink.url(), &[only(json!({ "type": "wanted" }))]);
    for n in 0..6 {
        let kind = if n % 2 == 0 { "wanted" } else { "unwanted" };
        post(&appliance, &TestEvent::new(&n.to_string()).of_type(kind));
    }
    sink.wait_for(3, TIMEOUT);
    let replay = |words: &[&str]| event(&appliance, &[&["replay", "--trigger", "default/t"], words].concat());
    let counted = text(&replay(&["--from", "10m", "--dry-run"]));
    assert!(counted.contains("3 events would be sent"), "{counted}");
    let sent = text(&replay(&["--from", "earliest"]));
    assert!(sent.contains("3 events sent"), "{sent}");
    let mut received = ids(&sink.wait_for(6, TIMEOUT));
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

/// Dead letters go to a repaired subscriber: the Trigger is patched, and sent to once it is Ready. A patch that is refused,
/// or without a subscriber, sends nothing; a dry run changes nothing.
#[test]
fn dead_letters_are_sent_to_a_patched_subscriber() {
    let (broken, repaired) = (EventSink::answering(|_| SinkResponse::status(400)), EventSink::start());
    let appliance = appliance();
    let options = ("/spec/delivery", json!({ "retry": 0 }));
    subscribe(appliance.api(), "t", &broken.url(), &[options]);
    post(&appliance, &TestEvent::new("1"));
    broken.wait_for(1, TIMEOUT);
    traced(&appliance, "1", |event| of(event, "default/t")["outcome"] == "dropped");
    let api = appliance.api().address().to_string();
    let redrive = |trigger: &str, words: &[&str]| {
        event(&appliance, &[&["redrive", "--trigger", trigger, "--api", &api], words].concat())
    };
    let to = format!(r#"{{"uri":"{}"}}"#, repaired.url());
    for (trigger, patch, why) in [
        ("default/t", "{", "not JSON"),
        ("default/t", "[]", "must be an object"),
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
    assert_eq!(ids(&repaired.wait_for(1, TIMEOUT)), ["1"]);
    assert_eq!((uri(), broken.received().len()), (json!(repaired.url()), 1));
}

/// Events that retention dropped before they were read are listed in the trace, not only counted.
#[test]
fn a_trace_tells_of_what_retention_dropped_unread() {
    let sink = EventSink::answering(|_| SinkResponse::status(503));
    let appliance = appliance();
    let options = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT60S" });
    // One event at a time: all others stay unread.
    let order = ("/metadata/annotations", json!({ "sluicegate.dev/delivery.order": "strict" }));
    subscribe(appliance.api(), "lags", &sink.url(), &[("/spec/delivery", options), order]);
    for n in 0..1300 {
        post(&appliance, &TestEvent::new(&n.to_string()));
    }
    sink.wait_for(1, TIMEOUT);
    let keep = json!({ "metadata": { "annotations": { "sluicegate.dev/retention-time": "1s" } } });
    appliance.api().patch("Broker", "default", "main", &keep);
    for id in ["1200", "1299"] {
        let dropped = traced(&appliance, id, |event| of(event, "default/lags")["outcome"] != "pending");
        let reported = of(&dropped, "default/lags");
        let notes = reported["notes"].as_array().unwrap();
        assert!(notes.iter().any(|note| note["event"].as_str().unwrap().starts_with("dropped")), "{reported:#}");
    }
}

/// How many dead letters a redrive would send.
fn open(appliance: &Appliance, trigger: &str) -> u64 {
    let reported = text(&event(appliance, &["redrive", "--trigger", trigger, "--dry-run"]));
    reported.split_whitespace().next().and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{reported}"))
}

/// DP-OBS-02: letters that are being sent again are not sent by a second redrive too.
#[test]
fn one_redrive_at_a_time() {
    let sink = EventSink::answering(|_| SinkResponse::status(400));
    let appliance = appliance();
    subscribe(appliance.api(), "broken", &sink.url(), &[]);
    for n in 0..3 {
        post(&appliance, &TestEvent::new(&n.to_string()));
    }
    wait::until(TIMEOUT, "three letters", || (open(&appliance, "default/broken") == 3).then_some(()));

    let redrive = ["redrive", "--trigger", "default/broken"];
    let admin = appliance.admin().to_string();
    let mut slow = Command::new(BIN);
    slow.arg("event").args(redrive).args(["--admin", &admin, "--rate", "1"]);
    let mut slow = slow.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sink.wait_for(4, TIMEOUT);
    let second = event(&appliance, &redrive);
    assert!(!second.status.success() && text(&second).contains("already"), "{second:?}");
    assert_eq!(slow.wait().unwrap().code(), Some(0));
    sink.wait_for(6, TIMEOUT);
    let third = event(&appliance, &redrive);
    assert!(third.status.success(), "{third:?}");
}

/// A dead letter that is given up again is one dead letter and not two; a delivered one is closed. Redrives once doubled them.
#[test]
fn a_dead_letter_stays_one_until_it_is_taken_and_is_none_then() {
    let works = Arc::new(AtomicBool::new(false));
    let is_working = Arc::clone(&works);
    let sink = EventSink::answering(move |_| SinkResponse::status(if is_working.load(SeqCst) { 202 } else { 400 }));
    let (dead, other) = (EventSink::start(), EventSink::answering(|_| SinkResponse::status(400)));
    let appliance = appliance();
    for (name, to) in [("broken", &sink), ("other", &other)] {
        subscribe(appliance.api(), name, &to.url(), &[delivery(0, &dead)]);
    }
    post(&appliance, &TestEvent::new("one"));
    let wait_for = |count: u64| {
        wait::until(TIMEOUT, "notes", || (open(&appliance, "default/broken") == count).then_some(()));
    };
    let listed = || text(&event(&appliance, &["list", "--dead-letters"]));
    let redrive = || text(&event(&appliance, &["redrive", "--trigger", "default/broken"]));
    for _ in 0..3 {
        wait_for(1);
        assert!(listed().contains("default/broken") && listed().contains("default/other"), "{}", listed());
        assert!(redrive().starts_with("1 events sent"));
    }
    wait_for(1);
    works.store(true, SeqCst);
    let before = sink.received().len();
    assert!(redrive().starts_with("1 events sent"));
    sink.wait_for(before + 1, TIMEOUT);
    wait_for(0);
    assert!(redrive().starts_with("0 events sent"));
    let listed = listed();
    assert!(!listed.contains("default/broken") && listed.contains("default/other"), "{listed}");
    assert_eq!((before, sink.received().len()), (4, 5));
}

/// DP-OBS-02, EV-DLV-09: also without a dead letter sink the log and the trace report why there was no response.
#[test]
fn cause_of_missing_response_is_reported() {
    let slow = EventSink::answering(|_| SinkResponse::status(202).after(std::time::Duration::from_secs(60)));
    let closing = EventSink::answering(|_| SinkResponse::hang_up());
    let appliance = appliance();
    let nobody = format!("http://{}/", kit::server::closed_address());
    let rows = [
        ("gone", nobody.as_str(), "PT30S", "the connection was refused", "no connection to"),
        ("slow", &slow.url(), "PT0.2S", "within the timeout", "no response within"),
        ("rude", &closing.url(), "PT30S", "the connection ended", "the connection closed before"),
    ];
    for (name, url, timeout, ..) in rows {
        let once = json!({ "retry": 0, "timeout": timeout });
        subscribe(appliance.api(), name, url, &[("/spec/delivery", once)]);
    }
    post(&appliance, &TestEvent::new("one"));
    let ended = |event: &Value| event["subscribers"].as_array().unwrap().iter().all(|one| one["outcome"] == "dropped");
    let traced = traced(&appliance, "one", ended);
    let reported = text(&event(&appliance, &["trace", "one"]));
    for (name, .., words, logged) in rows {
        let note = &of(&traced, &format!("default/{name}"))["notes"][0];
        assert_eq!(note["status"], 0);
        assert!(note["error"].as_str().unwrap().contains(words) && reported.contains(words), "{name}: {note:#}");
        assert!(appliance.stderr().contains(logged), "{name}: {}", appliance.stderr());
    }
}

/// What is shown has a limit, and what is sent again has none.
#[test]
fn a_redrive_reaches_more_letters_than_a_list_shows() {
    const BATCHES: usize = 11;
    let appliance = appliance();
    let nobody = format!("http://{}/", kit::server::closed_address());
    subscribe(appliance.api(), "many", &nobody, &[("/spec/delivery", json!({ "retry": 0 }))]);
    let one = |n: u64| json!({ "specversion": "1.0", "id": n.to_string(), "source": "/s", "type": "t" });
    let batch = Value::Array((0..1000).map(one).collect()).to_string();
    let call = HttpCall::post(BROKER).header("Content-Type", "application/cloudevents-batch+json").body(batch);
    for _ in 0..BATCHES {
        assert_eq!(call.send(appliance.events()).status, 202);
    }
    let all = BATCHES as u64 * 1000;
    wait::until(TIMEOUT, "all to be dropped", || {
        (appliance.metric("sluicegate_subscriber_dropped_total", "default/many") == all).then_some(())
    });
    wait::until(TIMEOUT, "all notes", || (open(&appliance, "default/many") == all).then_some(()));
    let listed = text(&event(&appliance, &["list", "--dead-letters"]));
    assert_eq!(listed.lines().count(), 10_001);
    assert!(listed.contains("1000 older ones are not listed"));
}

/// A Trigger and a Subscription may have the same name. What is meant has to be said then, and is shown.
#[test]
fn subscription_and_trigger_of_one_name_differ() {
    let (broken, repaired) = (EventSink::answering(|_| SinkResponse::status(400)), EventSink::start());
    let appliance = appliance();
    let once = ("/spec/delivery", json!({ "retry": 0 }));
    subscribe(appliance.api(), "x", &broken.url(), std::slice::from_ref(&once));
    appliance.api().create(&channel("c"));
    appliance.api().wait_ready("Channel", NAMESPACE, "c", TIMEOUT);
    appliance.api().create(&with(subscription("x", "c", &broken.url()), once.0, once.1));
    appliance.api().wait_ready("Subscription", NAMESPACE, "x", TIMEOUT);
    post(&appliance, &TestEvent::new("for-trigger"));
    accepted(&TestEvent::new("for-subscription").binary("/channels/default/c"), &appliance);
    for kind in ["trigger", "subscription"] {
        let name = format!("{kind}/default/x");
        wait::until(TIMEOUT, "its letter", || (open(&appliance, &name) == 1).then_some(()));
        let listed = text(&event(&appliance, &["list", "--dead-letters", "--trigger", &name]));
        assert!(listed.contains(&format!("{kind} default/x")), "{listed}");
        assert!(listed.contains(&format!("id for-{kind}")) && listed.lines().count() == 1, "{listed}");
    }
    let (api, to) = (appliance.api().address().to_string(), format!(r#"{{"uri":"{}"}}"#, repaired.url()));
    let redrive = |name: &str, patch: bool| {
        let more = ["--api", &api, "--patch", &to];
        let words = ["redrive", "--trigger", name];
        event(&appliance, &[&words[..], if patch { &more[..] } else { &[] }].concat())
    };
    for patch in [false, true] {
        let refused = redrive("default/x", patch);
        assert!(!refused.status.success(), "{}", text(&refused));
        assert!(text(&refused).contains("write trigger/default/x or subscription/default/x"));
    }
    assert!(text(&redrive("subscription/default/x", true)).contains("1 events sent"));
    assert_eq!(ids(&repaired.wait_for(1, TIMEOUT)), ["for-subscription"]);
    wait::nothing(SILENCE, "another's letter", || (repaired.received().len() > 1).then_some(()));
}

/// What a trace prints is taken as it stands. A bare number would mean another event in each core's log.
#[test]
fn a_replay_begins_at_the_place_that_a_trace_shows() {
    let (appliance, _sink) = with_twenty_delivered();
    let traced = event(&appliance, &["trace", "--source", "/kit", "--json"]);
    let traced: Value = serde_json::from_slice(&traced.stdout).unwrap();
    let place = |event: &Value| (event["core"].as_u64().unwrap(), event["position"].as_u64().unwrap());
    let places: Vec<_> = traced["events"].as_array().unwrap().iter().map(place).collect();
    let from = |text: &str| event(&appliance, &["replay", "--trigger", "default/t", "--dry-run", "--from", text]);
    for (core, position) in &places {
        let behind = places.iter().filter(|(other, at)| other == core && at >= position).count();
        let reported = text(&from(&format!("{core}:{position}")));
        assert!(reported.starts_with(&format!("{behind} events would be sent")), "{core}:{position}: {reported}");
    }
    for (place, why) in [(places[0].1.to_string(), "write CORE:POSITION"), ("7:0".to_owned(), "0 to 1")] {
        let refused = from(&place);
        assert!(!refused.status.success() && text(&refused).contains(why), "{}", text(&refused));
    }
}

/// DP-REPLY-10: an answer is no end while what it brought is not taken; and what came before a subscriber is not to come.
#[test]
fn a_trace_tells_what_is_to_come_from_what_never_will() {
    let malformed = EventSink::answering(|_| SinkResponse::status(200).header("ce-id", "half an event"));
    let appliance = appliance();
    let patient = json!({ "retry": 3, "backoffPolicy": "linear", "backoffDelay": "PT10S" });
    subscribe(appliance.api(), "half", &malformed.url(), &[("/spec/delivery", patient)]);
    post(&appliance, &TestEvent::new("one"));
    malformed.wait_for(1, TIMEOUT);
    let late = EventSink::start();
    subscribe(appliance.api(), "late", &late.url(), &[]);
    let noted = |event: &Value| of(event, "default/half")["notes"].as_array().is_some_and(|all| !all.is_empty());
    let event_one = traced(&appliance, "one", noted);
    assert_eq!(of(&event_one, "default/half")["outcome"], "pending", "{event_one:#}");
    traced(&appliance, "one", |event| of(event, "default/late")["outcome"] == "passed over");
    post(&appliance, &TestEvent::new("two"));
    traced(&appliance, "two", |event| of(event, "default/late")["outcome"] == "delivered");
}

/// Nothing is reported as sent without a subscriber, and an invalid command does nothing.
#[test]
fn a_replay_ends_with_its_subscriber_and_a_bad_order_before_it_begins() {
    let (appliance, sink) = with_twenty_delivered();
    for (order, status) in [
        ("trigger=default/t&from=nonsense", 400),
        ("trigger=default/t&from=earliest&dryrun=true", 400),
        ("trigger=default/t&from=earliest&dry_run=true", 200),
    ] {
        let call = HttpCall::post(&format!("/debug/events/replay?{order}"));
        assert_eq!(call.send(appliance.admin()).status, status, "{order}");
    }
    wait::nothing(SILENCE, "a replay", || (sink.received().len() > 20).then_some(()));

    let admin = appliance.admin().to_string();
    let words = ["event", "replay", "--trigger", "default/t", "--from", "earliest", "--rate", "2"];
    let mut replay = Command::new(BIN);
    replay.args(words).args(["--admin", &admin]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let replay = replay.spawn().unwrap();
    sink.wait_for(21, TIMEOUT);
    appliance.api().delete("Trigger", NAMESPACE, "t");
    let ended = replay.wait_with_output().unwrap();
    assert!(!ended.status.success() && text(&ended).contains("the subscriber was deleted"), "{}", text(&ended));
}
