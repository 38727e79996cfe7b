//! Malformed responses of subscribers: each event still has one outcome, the one in the response table.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::manifest::NAMESPACE;
use kit::scene::{SILENCE, ids, only, post, subscribe, with_broker};
use kit::{ApplianceSetup, EventSink, HttpRequest, TIMEOUT, TestEvent, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// More than is taken of any answer.
const HUGE_BYTES: usize = 3 << 20;
/// Attempts at an event that fails in a way that may pass: one, and one retry.
const BOTH: usize = 2;

/// What it does with the connection once it has the request.
#[derive(Clone)]
enum Manner {
    Say(Vec<u8>),
    /// Byte by byte.
    Dribble(Vec<u8>),
    /// Says that and no more, and keeps the connection.
    Stall(Vec<u8>),
    /// Says that and resets the connection.
    Reset(Vec<u8>),
}

/// A subscriber on plain sockets, a thread for each connection.
struct HostileSubscriber {
    address: SocketAddr,
    /// Requests by the event's id.
    asked: Arc<Mutex<HashMap<String, usize>>>,
}

impl HostileSubscriber {
    fn start(behavior: HashMap<String, Manner>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<HashMap<String, usize>>>::default();
        let (noted, behavior) = (Arc::clone(&asked), Arc::new(behavior));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (noted, behavior) = (Arc::clone(&noted), Arc::clone(&behavior));
                std::thread::spawn(move || serve(stream, &noted, &behavior));
            }
        });
        Self { address, asked }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn asked(&self, id: &str) -> usize {
        self.asked.lock().unwrap().get(id).copied().unwrap_or(0)
    }
}

/// One request per connection, except a complete one: then the connection stays open.
fn serve(mut stream: TcpStream, asked: &Mutex<HashMap<String, usize>>, behavior: &HashMap<String, Manner>) {
    let mut held = Vec::new();
    loop {
        let request = loop {
            if let Ok(Some((request, length))) = HttpRequest::parse(&held) {
                held.drain(..length);
                break request;
            }
            let mut piece = [0; 4096];
            match stream.read(&mut piece) {
                Ok(read) if read > 0 => held.extend_from_slice(&piece[..read]),
                _ => return,
            }
        };
        let id = request.headers.get("ce-id").unwrap_or_default().to_owned();
        *asked.lock().unwrap().entry(id.clone()).or_default() += 1;
        // A peer that has read enough may have disconnected.
        match &behavior[&id] {
            Manner::Say(bytes) => drop(stream.write_all(bytes)),
            Manner::Dribble(bytes) => {
                for byte in bytes {
                    drop(stream.write_all(&[*byte]));
                    wait::rest(Duration::from_millis(1));
                }
            }
            Manner::Stall(bytes) => {
                drop(stream.write_all(bytes));
                drop(stream.read(&mut [0])); // until the other side has had enough
                return;
            }
            Manner::Reset(bytes) => {
                drop(stream.write_all(bytes));
                // Unread bytes make the kernel answer the close with a reset.
                wait::rest(Duration::from_millis(20));
                let socket = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
                return socket.unwrap();
            }
        }
    }
}

fn whole(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn envelope(id: &str) -> String {
    json!({ "specversion": "1.0", "id": id, "source": "/r", "type": "reply" }).to_string()
}

/// How an event ends: how often the subscriber was asked, and with which code it is a dead letter.
type End = (usize, Option<&'static str>);

const DONE: End = (1, None);
const FAILED: End = (BOTH, Some("500"));

fn rows() -> Vec<(&'static str, Manner, End)> {
    use Manner::{Dribble, Reset, Say, Stall};
    const SIGNS: &str = "ce-specversion: 1.0\r\nce-id: signs\r\nce-source: /r\r\nce-type: reply\r\n";
    const JSON: &str = "Content-Type: application/cloudevents+json\r\n";
    let huge = "x".repeat(HUGE_BYTES);
    let as_event = |id: &str| whole("200 OK", &SIGNS.replace("signs", id), "");
    let after = |when: &str| Say(whole("503 Service Unavailable", &format!("Retry-After: {when}\r\n"), ""));
    let flood = |line: &str, count: usize| format!("HTTP/1.1 202 Accepted\r\n{}\r\n", line.repeat(count));
    vec![
        ("slow-202", Dribble(whole("202 Accepted", "", "")), DONE),
        ("slow-reply", Dribble(as_event("from-slow")), DONE),
        ("silent", Stall(Vec::new()), FAILED),
        ("half-a-head", Stall(b"HTTP/1.1 202 Acc".to_vec()), FAILED),
        ("half-a-body", Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_vec()), FAILED),
        ("101", Say(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n".to_vec()), (1, Some("101"))),
        (
            "hints",
            Say(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_vec()),
            DONE,
        ),
        ("only-hints", Reset(b"HTTP/1.1 100 Continue\r\n\r\n".repeat(10_000)), FAILED),
        ("308", Say(whole("308 Permanent Redirect", "Location: /elsewhere\r\n", "")), (1, Some("308"))),
        ("long-head", Reset(flood(&format!("X: {huge}\r\n"), 1).into_bytes()), FAILED),
        ("many-headers", Reset(flood("X: y\r\n", 20_000).into_bytes()), FAILED),
        ("nonsense", Reset(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec()), FAILED),
        ("two-lengths", Reset(b"HTTP/1.1 202 A\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".to_vec()), FAILED),
        ("huge-202", Say(whole("202 Accepted", "", &huge)), DONE),
        ("huge-text", Say(whole("200 OK", "Content-Type: text/plain\r\n", &huge)), DONE),
        ("huge-400", Say(whole("400 Bad Request", "", &huge)), (1, Some("400"))),
        ("huge-503", Say(whole("503 Service Unavailable", "", &huge)), (BOTH, Some("503"))),
        ("huge-reply", Say(whole("200 OK", SIGNS, &huge)), FAILED),
        ("reset-early", Reset(Vec::new()), FAILED),
        ("reset-late", Reset(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_vec()), FAILED),
        ("reset-in-chunks", Reset(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab".to_vec()), FAILED),
        ("both-signs", Say(whole("200 OK", &format!("{SIGNS}{JSON}"), &envelope("from-envelope"))), DONE),
        ("signs-twice", Say(whole("200 OK", &format!("{SIGNS}ce-id: again\r\n"), "")), FAILED),
        ("bad-escape", Say(whole("200 OK", &format!("{SIGNS}ce-ext: %ff\r\n"), "")), FAILED),
        ("broken-envelope", Say(whole("200 OK", JSON, "{")), FAILED),
        ("batch", Say(whole("200 OK", "Content-Type: application/cloudevents-batch+json\r\n", "[]")), FAILED),
        ("xml", Say(whole("200 OK", "Content-Type: application/cloudevents+xml\r\n", "<x/>")), FAILED),
        ("204-with-signs", Say(format!("HTTP/1.1 204 No Content\r\n{SIGNS}\r\n").into_bytes()), DONE),
        ("no-event", Say(whole("200 OK", "Content-Type: application/json\r\n", &envelope("no"))), DONE),
        ("later-date", after("Wed, 21 Oct 2099 07:28:00 GMT"), (BOTH, Some("503"))),
        ("later-past", after("Wed, 21 Oct 2015 07:28:00 GMT"), (BOTH, Some("503"))),
        ("later-negative", after("-1"), (BOTH, Some("503"))),
        ("later-huge", after("99999999999999999999999"), (BOTH, Some("503"))),
        ("later-nonsense", after("soon, \u{e9}"), (BOTH, Some("503"))),
    ]
}

/// DP-RETRY-01, DP-RETRY-02, DP-RETRY-03, DP-RETRY-04, DP-RETRY-05, DP-RETRY-06, DP-RETRY-14, DP-RETRY-16, DP-REPLY-05,
/// DP-REPLY-06, DP-REPLY-07, DP-REPLY-10: whatever comes back, each event ends once and as its status says; what is
/// too much to be taken changes nothing of that.
#[test]
fn whatever_a_subscriber_answers_each_event_ends_once() {
    let rows = rows();
    let behavior = rows.iter().map(|(id, manner, _)| ((*id).to_owned(), manner.clone())).collect();
    let (hostile, dead, replies) = (HostileSubscriber::start(behavior), EventSink::start(), EventSink::start());
    let mut appliance = with_broker(&ApplianceSetup::new(BIN));
    let features = json!({ "data": { "delivery-retryafter": "enabled" } });
    appliance.api().patch("ConfigMap", "knative-eventing", "config-features", &features);
    wait::until(TIMEOUT, "the feature", || {
        let metadata = json!({ "name": "try", "namespace": NAMESPACE });
        let spec =
            json!({ "broker": "none", "delivery": { "retryAfterMax": "PT1S" }, "subscriber": { "uri": "http://x/" } });
        let object =
            json!({ "apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "metadata": metadata, "spec": spec });
        (appliance.api().try_create(&object).status == 201).then_some(())
    });
    let delivery = json!({
        "retry": BOTH - 1, "backoffPolicy": "linear", "backoffDelay": "PT0.01S", "timeout": "PT2S",
        "retryAfterMax": "PT0.05S", "deadLetterSink": { "uri": dead.url() },
    });
    let questions = only(json!({ "type": "kit.test" }));
    subscribe(appliance.api(), "rough", &hostile.url(), &[questions, ("/spec/delivery", delivery)]);
    subscribe(appliance.api(), "hear", &replies.url(), &[only(json!({ "type": "reply" }))]);
    for (id, ..) in &rows {
        post(&appliance, &TestEvent::new(id));
    }

    wait::until(TIMEOUT, "all to come to their ends", || {
        let of_it = |what: &str| appliance.metric(&format!("sluicegate_subscriber_{what}_total"), "default/rough");
        let ended: u64 = ["delivered", "dead_lettered", "dropped"].into_iter().map(of_it).sum();
        (ended == rows.len() as u64).then_some(())
    });
    let letters: HashMap<_, _> =
        dead.received().iter().map(|one| (one.id(), one.attribute("knativeerrorcode"))).collect();
    for (id, _, (asked, code)) in &rows {
        assert_eq!(hostile.asked(id), *asked, "{id}");
        assert_eq!(letters.get(*id).cloned().flatten().as_deref(), *code, "{id}");
    }
    assert_eq!(dead.received().len(), letters.len(), "one letter for each: {:?}", ids(&dead.received()));
    let mut reply_ids = ids(&replies.wait_for(2, TIMEOUT));
    reply_ids.sort();
    assert_eq!(reply_ids, ["from-envelope", "from-slow"]);
    wait::nothing(SILENCE, "another reply", || (replies.received().len() > 2).then_some(()));
    assert!(appliance.is_running());
}
