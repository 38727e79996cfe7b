//! Repeated SIGKILL with everything at once: a backlog of a subscriber that is down, replies in
//! flight, cursors behind what was delivered.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kit::manifest::{NAMESPACE, trigger, with};
use kit::scene::{BROKER, ids, only, with_broker};
use kit::server::closed_address;
use kit::{Appliance, ApplianceSetup, EventSink, HttpConnection, SinkResponse, TIMEOUT, TestEvent, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const ROUNDS: usize = 6;
const CLIENTS: usize = 4;
/// New promises that each round waits for before the kill.
const EACH_ROUND: usize = 60;
/// A reply takes this long, so that a kill meets some.
const RESPONSE_DELAY: Duration = Duration::from_millis(20);

type BacklogRecords = Arc<Mutex<BTreeSet<String>>>;

fn promised(book: &BacklogRecords) -> BTreeSet<String> {
    book.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A Trigger that gives nothing up while the test runs.
fn subscribe(appliance: &Appliance, name: &str, url: &str, (at, filter): (&str, Value)) {
    let options = json!({ "retry": 10_000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S" });
    let plain = with(trigger(name, "main", url), "/spec/delivery", options);
    appliance.api().create(&with(plain, at, filter));
    appliance.api().wait_ready("Trigger", NAMESPACE, name, TIMEOUT);
}

/// Posts until its connection breaks, and keeps the ids that were answered with 202.
fn client(name: String, events: SocketAddr, book: BacklogRecords) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut connection = HttpConnection::open(events);
        for n in 0.. {
            let id = format!("{name}-{n}");
            let event = TestEvent::new(&id).of_type("question").data("text/plain", vec![b'd'; n * 61 % 3000]);
            match connection.try_call(&event.binary(BROKER)) {
                Ok(response) if response.status == 202 => {
                    book.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
                }
                Ok(response) => panic!("{id}: {response}"),
                Err(_) => return, // the kill: this one may be stored or not
            }
        }
    })
}

fn assert_arrived(sink: &EventSink, wanted: &BTreeSet<String>, what: &str) {
    let all = sink.wait_until(TIMEOUT * 2, |received| {
        let seen: BTreeSet<_> = ids(received).into_iter().collect();
        wanted.is_subset(&seen)
    });
    if let Err(received) = all {
        let seen: BTreeSet<_> = ids(&received).into_iter().collect();
        let lost: Vec<_> = wanted.difference(&seen).take(10).collect();
        panic!("{what}: {} of {} are lost, such as {lost:?}", wanted.difference(&seen).count(), wanted.len());
    }
}

/// EV-RTE-02, EV-RTE-10, EV-DLV-13, DP-ACK-02, APP-05: what got its 202 reaches the one that is there, the one
/// that was away all the time, and the one that hears the replies, however often the process is killed.
#[test]
fn nothing_is_lost_with_a_backlog_and_replies_under_way() {
    let away = closed_address();
    let here = EventSink::start();
    let hear = EventSink::start();
    let slow_sink = EventSink::answering(|event| {
        let id = format!("re-{}", event.id());
        let attributes = [("specversion", "1.0"), ("id", &*id), ("source", "/thinker"), ("type", "answer")];
        SinkResponse::event(200, &attributes, &json!({})).after(RESPONSE_DELAY)
    });
    let mut appliance = with_broker(&ApplianceSetup::new(BIN).flag("workers", "2"));
    let questions = || only(json!({ "type": "question" }));
    subscribe(&appliance, "here", &here.url(), questions());
    subscribe(&appliance, "away", &format!("http://{away}/"), questions());
    subscribe(&appliance, "thinker", &slow_sink.url(), questions());
    subscribe(&appliance, "hear", &hear.url(), only(json!({ "type": "answer" })));

    let book = BacklogRecords::default();
    for round in 0..ROUNDS {
        let start = |n| client(format!("{round}-{n}"), appliance.events(), Arc::clone(&book));
        let clients: Vec<_> = (0..CLIENTS).map(start).collect();
        let enough = promised(&book).len() + EACH_ROUND + round * 29;
        wait::until(TIMEOUT, "202s", || (promised(&book).len() >= enough).then_some(()));
        appliance.restart();
        for client in clients {
            client.join().expect("a client failed, see above");
        }
    }

    let promised = promised(&book);
    let replies = promised.iter().map(|id| format!("re-{id}")).collect();
    assert_arrived(&here, &promised, "at the one that is there");
    assert_arrived(&hear, &replies, "replies");
    let back = EventSink::start_at(away, |_| SinkResponse::status(202));
    assert_arrived(&back, &promised, "at the one that was away");
    println!("{ROUNDS} kills, {} promises, none lost", promised.len());
}
