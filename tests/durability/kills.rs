//! What survives SIGKILL: every event that was answered with 202, every object that was answered
//! with 201.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kit::manifest::{NAMESPACE, broker, trigger, with};
use kit::scene::{BROKER, with_broker};
use kit::server::closed_address;
use kit::{
    Appliance, ApplianceSetup, EventSink, HttpConnection, ReceivedRequest, SinkResponse, TIMEOUT, TestEvent, wait,
};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// Kills under load when `SLUICEGATE_KILL_ROUNDS` does not say how many.
const CRASHES: u64 = 12;
/// Clients that post at the same time, so that a crash meets events in every stage.
const CLIENTS: u64 = 4;

/// A Broker and a Trigger that never gives up while a test runs: 50 ms between attempts.
fn subscribed(url: &str) -> Appliance {
    let appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "2"));
    let api = appliance.api();
    let options = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S" });
    api.create(&with(trigger("all", "main", url), "/spec/delivery", options));
    api.wait_ready("Trigger", NAMESPACE, "all", TIMEOUT);
    appliance
}

/// A client that posts until its connection breaks, and keeps the ids that were answered with 202.
fn client(name: String, events: SocketAddr, book: Arc<AcknowledgedEvents>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut connection = HttpConnection::open(events);
        for n in 0.. {
            let id = format!("{name}-{n}");
            // Sizes from nothing to more than a page, so that records end anywhere in one.
            let data = vec![b'd'; (n * 997) % 9000];
            let event = TestEvent::new(&id).data("text/plain", data);
            match connection.try_call(&event.binary(BROKER)) {
                Ok(response) if response.status == 202 => book.note(id),
                Ok(response) => panic!("{id}: {response}"),
                Err(_) => return, // the crash: this one may be stored or not
            }
        }
    })
}

/// What was promised.
#[derive(Debug, Default)]
struct AcknowledgedEvents {
    ids: Mutex<BTreeSet<String>>,
    count: AtomicU64,
}

impl AcknowledgedEvents {
    fn note(&self, id: String) {
        self.ids.lock().expect("no client panics with the lock").insert(id);
        self.count.fetch_add(1, SeqCst);
    }

    fn ids(&self) -> BTreeSet<String> {
        self.ids.lock().expect("no client panics with the lock").clone()
    }
}

fn ids(received: &[ReceivedRequest]) -> BTreeSet<String> {
    received.iter().map(ReceivedRequest::id).collect()
}

/// Waits until all that was promised has arrived; panics with what is missing.
fn assert_kept(sink: &EventSink, promised: &BTreeSet<String>, when: &str) {
    let all = sink.wait_until(TIMEOUT, |received| ids(received).is_superset(promised));
    if let Err(received) = all {
        let missing: Vec<_> = promised.difference(&ids(&received)).cloned().collect();
        panic!("{when}: {} of {} promised events are lost: {missing:?}", missing.len(), promised.len());
    }
}

/// EV-RTE-02, DP-ACK-02, APP-05: crash after crash, no promised event is lost; duplicates are allowed.
#[test]
fn every_event_that_got_its_202_arrives_however_often_the_appliance_is_killed() {
    let sink = EventSink::start();
    let mut appliance = subscribed(&sink.url());
    let book = Arc::new(AcknowledgedEvents::default());
    let rounds = std::env::var("SLUICEGATE_KILL_ROUNDS").ok();
    let rounds = rounds.map_or(CRASHES, |rounds| rounds.parse().expect("a number of rounds"));
    for crash in 0..rounds {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| client(format!("crash-{crash}-client-{n}"), appliance.events(), Arc::clone(&book)))
            .collect();
        // Sooner and later: after one event, after some, after many.
        let enough = book.count.load(SeqCst) + 1 + (crash * 37) % 200;
        wait::until(TIMEOUT, "202s", || (book.count.load(SeqCst) >= enough).then_some(()));
        appliance.restart();
        for client in clients {
            client.join().unwrap();
        }
        assert_kept(&sink, &book.ids(), &format!("after crash {crash}"));
    }
    let promised = book.count.load(SeqCst);
    assert!(promised >= rounds, "every round had its promises");
    println!("{rounds} kills, {promised} promised events, none lost");
}

/// EV-RTE-02: promised while no subscriber listened.
#[test]
fn an_event_for_a_subscriber_that_is_away_waits_over_a_crash() {
    let address = closed_address();
    let mut appliance = subscribed(&format!("http://{address}/"));
    let promised: BTreeSet<_> = (0..20).map(|n| n.to_string()).collect();
    for id in &promised {
        let response = TestEvent::new(id).data("text/plain", id.as_str()).binary(BROKER).send(appliance.events());
        assert_eq!(response.status, 202, "{response}");
    }
    appliance.restart();
    let sink = EventSink::start_at(address, |_| SinkResponse::status(202));
    assert_kept(&sink, &promised, "after the crash");
    for received in sink.received() {
        assert_eq!(received.data(), received.id().into_bytes());
    }
}

/// EV-DLV-13, EV-OBJ-47: attempts count from one process to the next: with three retries an event is tried four times, however often
/// the appliance is killed in between.
#[test]
fn crash_keeps_attempt_counts() {
    let (sink, dead) = (EventSink::answering(|_| SinkResponse::status(503)), EventSink::start());
    let mut appliance = with_broker(&ApplianceSetup::new(BIN));
    let options = json!({
        "retry": 3, "backoffPolicy": "linear", "backoffDelay": "PT2S", "deadLetterSink": { "uri": dead.url() },
    });
    appliance.api().create(&with(trigger("all", "main", &sink.url()), "/spec/delivery", options));
    appliance.api().wait_ready("Trigger", NAMESPACE, "all", TIMEOUT);
    assert_eq!(TestEvent::new("stubborn").binary(BROKER).send(appliance.events()).status, 202);
    for attempts in 1..=3 {
        sink.wait_for(attempts, TIMEOUT);
        wait::rest(Duration::from_secs(1)); // the note of it is durable by then
        appliance.restart();
    }
    dead.wait_for(1, TIMEOUT);
    assert_eq!(sink.received().len(), 4);
}

/// EV-DLV-13: what waits for its next attempt gets it from the next process.
#[test]
fn retries_go_on_after_a_crash() {
    let crashed = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&crashed);
    let sink = EventSink::answering(move |_| SinkResponse::status(if seen.load(SeqCst) == 0 { 503 } else { 202 }));
    let mut appliance = subscribed(&sink.url());
    assert_eq!(TestEvent::new("stubborn").binary(BROKER).send(appliance.events()).status, 202);
    sink.wait_for(2, TIMEOUT);

    appliance.kill();
    crashed.store(1, SeqCst);
    let before = sink.received().len();
    appliance.restart();
    let after = sink.wait_for(before + 1, TIMEOUT).split_off(before);
    assert!(after.iter().all(|event| event.id() == "stubborn"), "{:?}", ids(&after));
}

/// EV-DLV-13: done is done; a restart does not read the log from the start.
#[test]
fn what_was_delivered_is_not_all_sent_again() {
    let sink = EventSink::start();
    let mut appliance = subscribed(&sink.url());
    let mut connection = HttpConnection::open(appliance.events());
    for n in 0..500 {
        assert_eq!(connection.call(&TestEvent::new(&n.to_string()).binary(BROKER)).status, 202);
    }
    sink.wait_for(500, TIMEOUT);

    assert_eq!(appliance.terminate().code(), Some(0));
    appliance.restart();
    assert_eq!(TestEvent::new("marker").binary(BROKER).send(appliance.events()).status, 202);
    assert_kept(&sink, &BTreeSet::from(["marker".to_owned()]), "after a tidy end");
    let again = sink.received().len() - 501;
    assert!(again < 500, "all {again} were sent again");
}

/// EV-RTE-10: a reply is as safe as the event that it answers.
#[test]
fn a_reply_survives_a_crash_before_its_own_delivery() {
    let away = closed_address();
    let sink = EventSink::answering(|event| {
        let id = format!("reply-to-{}", event.id());
        let attributes = [("specversion", "1.0"), ("id", &id), ("source", "/kit"), ("type", "reply")];
        SinkResponse::event(200, &attributes, &json!({}))
    });
    let mut appliance = subscribed(&format!("http://{away}/"));
    let api = appliance.api();
    let questions = json!({ "attributes": { "type": "question" } });
    let replies = json!({ "spec": { "filter": { "attributes": { "type": "reply" } } } });
    api.patch("Trigger", NAMESPACE, "all", &replies);
    api.wait_ready("Trigger", NAMESPACE, "all", TIMEOUT);
    api.create(&with(trigger("ask", "main", &sink.url()), "/spec/filter", questions));
    api.wait_ready("Trigger", NAMESPACE, "ask", TIMEOUT);

    let question = TestEvent::new("q").of_type("question").binary(BROKER);
    assert_eq!(question.send(appliance.events()).status, 202);
    sink.wait_for(1, TIMEOUT);
    appliance.restart();
    let listener = EventSink::start_at(away, |_| SinkResponse::status(202));
    assert_kept(&listener, &BTreeSet::from(["reply-to-q".to_owned()]), "after the crash");
}

/// APP-39: an object that was created is there, as it was, and versions never go back.
#[test]
fn every_object_that_got_its_201_is_there_after_a_crash() {
    let mut appliance = ApplianceSetup::new(BIN).start();
    let mut created: Vec<Value> = Vec::new();
    for crash in 0..5 {
        for n in 0..10 {
            created.push(appliance.api().create(&broker(&format!("broker-{crash}-{n}"))));
        }
        appliance.restart();
        let stored = appliance.api().list("Broker", NAMESPACE);
        assert_eq!(stored.len(), created.len(), "after crash {crash}");
        for before in &created {
            let name = before["metadata"]["name"].as_str().unwrap_or_default();
            let after = appliance.api().get("Broker", NAMESPACE, name).expect("created, so stored");
            assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"], "{name}");
            assert!(version(&after) >= version(before), "{name} after crash {crash}");
        }
    }
    let versions: Vec<_> = created.iter().map(version).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}
