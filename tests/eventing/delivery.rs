//! Delivery through the built binary: retried where that helps, dead-lettered where it does not, and
//! replies that are events are published again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kit::manifest::{NAMESPACE, channel, subscription, with};
use kit::scene::{BROKER, SILENCE, delivery, ids, only, post, subscribe};
use kit::server::closed_address;
use kit::{
    Appliance, ApplianceSetup, EventSink, HttpConnection, ReceivedRequest, SinkResponse, TIMEOUT, TestEvent, wait,
};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn appliance() -> Appliance {
    kit::scene::with_broker(&ApplianceSetup::new(BIN))
}

/// EV-ADR-04: the user and password of a URL are for its host alone (RFC 7617).
#[test]
fn user_in_url_is_sent_as_basic_and_not_reported() {
    let (sink, dead) = (EventSink::answering(|_| SinkResponse::status(400)), EventSink::start());
    let named = |url: &str, user: &str| url.replacen("http://", &format!("http://{user}@"), 1);
    let appliance = appliance();
    let options = json!({ "retry": 0, "deadLetterSink": { "uri": named(&dead.url(), "letters") } });
    subscribe(appliance.api(), "t", &named(&sink.url(), "me%40home:pass"), &[("/spec/delivery", options)]);
    post(&appliance, &TestEvent::new("1"));
    let letter = &dead.wait_for(1, TIMEOUT)[0];
    let asked = &sink.received()[0];
    let basic = |login: &str| format!("Basic {}", STANDARD.encode(login));
    assert_eq!(asked.header("authorization"), Some(&*basic("me@home:pass")));
    assert_eq!(letter.header("authorization"), Some(&*basic("letters:")));
    assert_eq!(letter.attribute("knativeerrordest"), Some(sink.url()));
    assert!(asked.header("host").is_some_and(|host| !host.contains('@')));
    assert!(!appliance.stderr().contains("pass@"), "{}", appliance.stderr());
}

/// DP-RETRY-01, DP-RETRY-02, DP-RETRY-03, DP-RETRY-04, DP-RETRY-05, DP-RETRY-06, DP-RETRY-07,
/// DP-RETRY-08, DP-RETRY-09, DP-RETRY-10, DP-RETRY-11, DP-RETRY-12, DP-RETRY-13, DP-RETRY-14,
/// DP-RETRY-15, DP-RETRY-16, EV-DLV-02, EV-DLV-04: the response table, row by row, with two retries.
#[test]
fn what_a_subscriber_answers_decides_what_happens_next() {
    const COMPLETE: (u32, u32) = (1, 0); // requests at the subscriber, at the dead letter sink
    const FAILED: (u32, u32) = (1, 1);
    const RETRIED: (u32, u32) = (3, 1);
    let rows: Vec<(u16, (u32, u32))> = [
        (vec![200, 201, 202, 204, 299], COMPLETE),
        (vec![101, 300, 301, 302, 307, 308], FAILED),
        (vec![400, 401, 402, 403, 405, 406, 410, 413, 415, 418, 422, 425, 426, 428, 431, 451], FAILED),
        (vec![404, 408, 409, 429, 500, 501, 502, 503, 504, 511, 600, 999], RETRIED),
    ]
    .into_iter()
    .flat_map(|(codes, outcome)| codes.into_iter().map(move |code| (code, outcome)))
    .collect();

    let dead = EventSink::start();
    let sink = EventSink::answering(move |event| {
        match event.attribute("code").as_deref() {
        Some("101") => SinkResponse::raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"),
        Some("interim") => SinkResponse::raw(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        Some(code) => SinkResponse::status(code.parse().unwrap_or(500)).header("Location", "/moved"),
        None => SinkResponse::status(500),
    }
    });
    let appliance = appliance();
    subscribe(appliance.api(), "codes", &sink.url(), &[delivery(2, &dead)]);
    let nobody = format!("http://{}/", closed_address());
    subscribe(appliance.api(), "refused", &nobody, &[delivery(2, &dead), only(json!({ "code": "refused" }))]);

    let mut wanted: BTreeMap<String, (u32, u32)> =
        rows.into_iter().map(|(code, outcome)| (code.to_string(), outcome)).collect();
    wanted.insert("interim".to_owned(), COMPLETE);
    for code in wanted.keys() {
        post(&appliance, &TestEvent::new(code).with("code", code));
    }
    post(&appliance, &TestEvent::new("refused").with("code", "refused"));
    // The subscriber answers this one with 500; the port of the other Trigger with nothing.
    wanted.insert("refused".to_owned(), (3, 2));

    let (requests, letters) = wanted.values().fold((0, 0), |(r, l), (a, b)| (r + a, l + b));
    sink.wait_for(requests as usize, TIMEOUT);
    dead.wait_for(letters as usize, TIMEOUT);
    // One too many ends the wait early; the comparison below then says which.
    let _ = wait::try_until(SILENCE, || {
        (sink.received().len() > requests as usize || dead.received().len() > letters as usize).then_some(())
    });
    let counts = |received: Vec<ReceivedRequest>| {
        let mut counts = BTreeMap::<String, u32>::new();
        received.iter().for_each(|event| *counts.entry(event.id()).or_default() += 1);
        counts
    };
    let (at_sink, at_dead) = (counts(sink.received()), counts(dead.received()));
    let seen: BTreeMap<_, _> = wanted
        .keys()
        .map(|id| {
            let count = |counts: &BTreeMap<String, u32>| counts.get(id).copied().unwrap_or_default();
            (id.clone(), (count(&at_sink), count(&at_dead)))
        })
        .collect();
    assert_eq!(seen, wanted);
    assert!(sink.received().iter().all(|event| event.request.path() == "/"), "a redirect was followed");
}

/// DP-RETRY-16, AMB-28: no answer at all is tried again, and each request that was read is an attempt: also one on a connection
/// that has carried others, which was once sent twice.
#[test]
fn a_subscriber_that_hangs_up_is_tried_as_often_as_it_should() {
    for retries in [0, 2] {
        let dead = EventSink::start();
        let sink = EventSink::answering(|event| match event.id().as_str() {
            "bad" => SinkResponse::hang_up(),
            _ => SinkResponse::status(202),
        });
        let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN).flag("workers", "1"));
        subscribe(appliance.api(), "all", &sink.url(), &[delivery(retries, &dead)]);
        for warm in 0..4 {
            post(&appliance, &TestEvent::new("good"));
            sink.wait_for(warm + 1, TIMEOUT);
        }
        post(&appliance, &TestEvent::new("bad"));
        assert_eq!(ids(&dead.wait_for(1, TIMEOUT)), ["bad"]);
        let wanted = 4 + 1 + retries as usize;
        wait::nothing(SILENCE, "another request or dead letter", || {
            (sink.received().len() > wanted || dead.received().len() > 1).then_some(())
        });
        assert_eq!(sink.received().len(), wanted);
    }
}

/// EV-DLV-03, DP-RETRY-17, DP-RETRY-22: tried again until it works, as the same event.
#[test]
fn an_event_that_fails_twice_is_delivered_the_third_time() {
    let dead = EventSink::start();
    let sink = EventSink::answering(|event| SinkResponse::status(if event.attempt < 3 { 503 } else { 202 }));
    for policy in ["linear", "exponential"] {
        let appliance = appliance();
        let (pointer, options) = delivery(3, &dead);
        subscribe(appliance.api(), "all", &sink.url(), &[(pointer, with(options, "/backoffPolicy", json!(policy)))]);
        let before = sink.received().len();
        post(&appliance, &TestEvent::new(policy).with("subject", "same").data("text/plain", "data"));
        let attempts = sink.wait_for(before + 3, TIMEOUT).split_off(before);
        for attempt in &attempts {
            assert_eq!((attempt.id().as_str(), attempt.data().as_slice()), (policy, b"data".as_slice()));
            assert_eq!(attempt.attribute("subject").as_deref(), Some("same"));
        }
        wait::nothing(SILENCE, "a fourth attempt or a dead letter", || {
            (sink.received().len() > before + 3 || !dead.received().is_empty()).then_some(())
        });
    }
}

/// EV-DLV-08, EV-DLV-10, EV-DLV-11: the dead letter is the event, and tells where and how it failed.
#[test]
fn a_dead_letter_tells_its_story() {
    let sink = EventSink::answering(|_| SinkResponse::body(400, "text/plain", "I will not take that"));
    let dead = EventSink::answering(|event| SinkResponse::status(if event.attempt == 1 { 503 } else { 202 }));
    let appliance = appliance();
    subscribe(appliance.api(), "all", &sink.url(), &[delivery(2, &dead)]);
    post(&appliance, &TestEvent::new("1").with("subject", "s").data("application/json", "{ \"a\": 1 }"));

    let letters = dead.wait_for(2, TIMEOUT); // the sink itself failed once
    let letter = &letters[1];
    assert_eq!((letter.id().as_str(), letter.data().as_slice()), ("1", b"{ \"a\": 1 }".as_slice()));
    assert_eq!(letter.attribute("subject").as_deref(), Some("s"));
    assert_eq!(letter.attribute("knativeerrordest").as_deref(), Some(sink.url().as_str()));
    assert_eq!(letter.attribute("knativeerrorcode").as_deref(), Some("400"));
    let body = STANDARD.decode(letter.attribute("knativeerrordata").unwrap_or_default()).unwrap();
    assert_eq!(String::from_utf8_lossy(&body), "I will not take that");
    assert_eq!(sink.received().len(), 1);
}

/// EV-ADR-04, DP-RETRY-16: a URL with an unsupported scheme is handled like a destination that does not answer.
#[test]
fn events_for_an_unknown_scheme_are_dead_letters() {
    let dead = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "all", "bad://uri", &[delivery(1, &dead)]);
    let trigger = appliance.api().get("Trigger", NAMESPACE, "all").unwrap();
    assert_eq!(trigger["status"]["subscriberUri"], "bad://uri");
    post(&appliance, &TestEvent::new("1"));
    let letter = &dead.wait_for(1, TIMEOUT)[0];
    assert_eq!(letter.attribute("knativeerrordest").as_deref(), Some("bad://uri"));
}

/// EV-DLV-09: given up without a dead letter sink, and the next one goes its way.
#[test]
fn without_a_dead_letter_sink_the_backlog_moves_on() {
    let sink = EventSink::answering(|event| SinkResponse::status(if event.id() == "bad" { 400 } else { 202 }));
    let appliance = appliance();
    subscribe(appliance.api(), "all", &sink.url(), &[("/spec/delivery", json!({ "retry": 0 }))]);
    post(&appliance, &TestEvent::new("bad"));
    post(&appliance, &TestEvent::new("good"));
    let mut received = ids(&sink.wait_for(2, TIMEOUT));
    received.sort();
    assert_eq!(received, ["bad", "good"]);
    wait::nothing(SILENCE, "another attempt", || (sink.received().len() > 2).then_some(()));
}

/// DP-RETRY-18: retries are on by default.
#[test]
fn a_trigger_without_delivery_options_retries_by_default() {
    let sink = EventSink::answering(|event| SinkResponse::status(if event.attempt < 3 { 500 } else { 202 }));
    let appliance = appliance();
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    post(&appliance, &TestEvent::new("1"));
    assert_eq!(ids(&sink.wait_for(3, TIMEOUT)), ["1", "1", "1"]);
}

/// DP-RETRY-19: one subscriber's silence is its own.
#[test]
fn a_subscriber_that_never_answers_holds_nobody_up() {
    let silent = EventSink::answering(|_| SinkResponse::status(202).after(Duration::from_secs(60)));
    let quick = EventSink::start();
    let appliance = appliance();
    subscribe(appliance.api(), "silent", &silent.url(), &[]);
    subscribe(appliance.api(), "quick", &quick.url(), &[]);
    for n in 0..500 {
        post(&appliance, &TestEvent::new(&n.to_string()));
    }
    quick.wait_for(500, TIMEOUT);
    assert!(silent.received().len() < 500, "requests in flight to one subscriber are limited");
}

/// EV-DLV-05, EV-RTE-10, DP-REPLY-01, DP-REPLY-04, DP-PROTO-04: an answer that is an event comes back
/// in, in either mode.
#[test]
fn a_reply_goes_through_the_broker_like_any_event() {
    let replies = EventSink::start();
    let sink = EventSink::answering(|event| {
        let id = format!("reply-to-{}", event.id());
        let reply = TestEvent::new(&id).of_type("reply").data("application/json", r#"{"n":1}"#);
        match event.id().as_str() {
            "structured" => SinkResponse::structured(200, &reply.envelope()),
            _ => {
                let attributes = [("specversion", "1.0"), ("id", &id), ("source", "/kit"), ("type", "reply")];
                SinkResponse::event(200, &attributes, &json!({ "n": 1 }))
            }
        }
    });
    let appliance = appliance();
    subscribe(appliance.api(), "ask", &sink.url(), &[only(json!({ "type": "question" }))]);
    subscribe(appliance.api(), "hear", &replies.url(), &[only(json!({ "type": "reply" }))]);
    for id in ["binary", "structured"] {
        post(&appliance, &TestEvent::new(id).of_type("question"));
    }

    let reply_events = replies.wait_for(2, TIMEOUT);
    let names: BTreeSet<_> = ids(&reply_events).into_iter().collect();
    assert_eq!(names, BTreeSet::from(["reply-to-binary".to_owned(), "reply-to-structured".to_owned()]));
    for reply in &reply_events {
        assert_eq!(serde_json::from_slice::<Value>(&reply.data()).unwrap(), json!({ "n": 1 }));
    }
    for asked in sink.received() {
        assert_eq!(asked.header("prefer"), Some("reply"));
    }
}

/// DP-REPLY-05, DP-REPLY-06, DP-REPLY-07, DP-REPLY-10: what is no reply is not routed, and what only
/// claims to be one is a failure.
#[test]
fn answers_that_are_no_replies_stay_where_they_are() {
    let sink = EventSink::answering(|event| {
        let full = [("specversion", "1.0"), ("id", "r"), ("source", "/kit"), ("type", "reply")];
        match event.id().as_str() {
            "empty" => SinkResponse::status(200),
            "text" => SinkResponse::body(200, "text/plain", "thank you"),
            "accepted" => SinkResponse::event(202, &full, &json!({})),
            "created" => SinkResponse::event(201, &full, &json!({})),
            "broken" => SinkResponse::event(200, &[("specversion", "1.0"), ("type", "reply")], &json!({})),
            other => panic!("nobody sent {other}"),
        }
    });
    let (replies, dead) = (EventSink::start(), EventSink::start());
    let appliance = appliance();
    subscribe(appliance.api(), "ask", &sink.url(), &[only(json!({ "type": "question" })), delivery(2, &dead)]);
    subscribe(appliance.api(), "hear", &replies.url(), &[only(json!({ "type": "reply" }))]);
    for id in ["empty", "text", "accepted", "created", "broken"] {
        post(&appliance, &TestEvent::new(id).of_type("question"));
    }

    assert_eq!(ids(&dead.wait_for(1, TIMEOUT)), ["broken"]);
    wait::nothing(SILENCE, "something was routed", || (!replies.received().is_empty()).then(|| replies.received()));
    let mut asked = ids(&sink.received());
    asked.sort();
    assert_eq!(asked, ["accepted", "broken", "broken", "broken", "created", "empty", "text"]);
}

/// EV-RTE-12, EV-RTE-13: an echo comes back to its own Trigger, and ends.
#[test]
fn an_endless_echo_ends_at_its_hop_limit() {
    let sink = EventSink::answering(|event| {
        let attributes = [("specversion", "1.0"), ("id", "echo"), ("source", "/kit"), ("type", "kit.test")];
        assert_eq!(event.attribute("knativebrokerttl"), None, "the counter is the broker's own");
        SinkResponse::event(200, &attributes, &json!({}))
    });
    let appliance = appliance();
    subscribe(appliance.api(), "echo", &sink.url(), &[]);
    post(&appliance, &TestEvent::new("first").with("knativebrokerttl", "5"));
    // Taken in with 4 hops left, and again with 3, 2 and 1.
    assert_eq!(ids(&sink.wait_for(4, TIMEOUT)), ["first", "echo", "echo", "echo"]);
    wait::nothing(SILENCE, "the echo went on", || (sink.received().len() > 4).then_some(()));
    let spent = TestEvent::new("spent").with("knativebrokerttl", "1").binary(BROKER).send(appliance.events());
    assert_eq!(spent.status, 400, "{spent}");
}

/// EV-RTE-13, X-BRK-04: an event that comes back in by a Broker's own address has made a hop, whether it was sent there, through a
/// channel, or as a dead letter. Such loops were once endless.
#[test]
fn a_loop_over_addresses_ends_at_its_hop_limit() {
    let to_broker = json!({ "ref": { "apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "main" } });
    let to_channel = json!({ "ref": { "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c" } });
    let appliance = appliance();
    let api = appliance.api();
    api.create(&channel("c"));
    api.wait_ready("Channel", NAMESPACE, "c", TIMEOUT);
    let reply_events = EventSink::start();
    let seen = EventSink::answering(|_| SinkResponse::status(400));
    subscribe(api, "count", &reply_events.url(), &[]);
    let own = |kind: &str| only(json!({ "kind": kind }));
    subscribe(api, "straight", "", &[own("straight"), ("/spec/subscriber", to_broker.clone())]);
    subscribe(api, "round", "", &[own("round"), ("/spec/subscriber", to_channel)]);
    let letters = json!({ "retry": 0, "deadLetterSink": to_broker.clone() });
    subscribe(api, "buried", &seen.url(), &[own("buried"), ("/spec/delivery", letters)]);
    api.create(&with(subscription("back", "c", ""), "/spec/subscriber", to_broker));
    api.wait_ready("Subscription", NAMESPACE, "back", TIMEOUT);

    // Accepted with 5 hops left, and then with one less at each Broker, until no hop is left.
    for (kind, times) in [("straight", 5), ("round", 3), ("buried", 5)] {
        let before = reply_events.received().len();
        post(&appliance, &TestEvent::new(kind).with("kind", kind).with("knativebrokerttl", "6"));
        let received = reply_events.wait_for(before + times, TIMEOUT).split_off(before);
        assert!(received.iter().all(|event| event.id() == kind));
        assert!(received.iter().all(|event| event.header("sluicegate-hops-left").is_none()));
        wait::nothing(SILENCE, "the loop went on", || (reply_events.received().len() > before + times).then_some(()));
    }
    assert_eq!(seen.received().len(), 5);
}

/// A fan-out that has hundreds of requests in flight to one address opens a connection for each place, and
/// then continues with those.
#[test]
fn a_fan_out_to_one_address_keeps_its_connections() {
    const TRIGGERS: usize = 8;
    const EVENTS: usize = 400;
    /// Requests in flight to one subscriber from one core.
    const WINDOW: usize = 64;
    let sink = EventSink::answering(|_| SinkResponse::status(202).after(Duration::from_millis(100)));
    let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN).flag("workers", "1"));
    for n in 0..TRIGGERS {
        subscribe(appliance.api(), &format!("t{n}"), &sink.url(), &[]);
    }
    let mut connection = HttpConnection::open(appliance.events());
    for n in 0..EVENTS {
        assert_eq!(connection.call(&TestEvent::new(&n.to_string()).binary(BROKER)).status, 202);
    }
    sink.wait_for(TRIGGERS * EVENTS, TIMEOUT);
    let opened = sink.connections();
    assert!(opened <= (TRIGGERS * WINDOW) as u64, "{opened} connections for {} requests", TRIGGERS * EVENTS);
}

/// EV-ADR-10: a host that the operator routes is a destination like any other.
#[test]
fn a_routed_host_is_a_destination() {
    let sink = EventSink::start();
    let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN).route("sink.test", sink.address()));
    subscribe(appliance.api(), "t", "http://sink.test/in", &[]);
    post(&appliance, &TestEvent::new("1"));
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["1"]);
}

/// EV-RTE-05, EV-TRG-13: a Trigger that is not Ready, here for want of its dead letter sink, gets its events anyway.
#[test]
fn a_trigger_that_is_not_ready_gets_events_too() {
    let sink = EventSink::start();
    let appliance = appliance();
    let nowhere = json!({ "apiVersion": "v1", "kind": "Service", "name": "none" });
    let lost = json!({ "deadLetterSink": { "ref": nowhere } });
    let object = with(kit::manifest::trigger("t", "main", &sink.url()), "/spec/delivery", lost);
    appliance.api().create(&object);
    appliance.api().wait_for("Trigger", "default", "t", TIMEOUT, |object| {
        kit::api::condition(object, "Ready").is_some_and(|ready| ready["reason"] == "DeadLetterSinkResolveFailed")
    });
    post(&appliance, &TestEvent::new("1"));
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["1"]);
}

/// DP-REPLY-09: a response body that is no event is discarded, and logged at level debug.
#[test]
fn reply_that_is_not_an_event_is_logged_at_debug() {
    let sink = EventSink::answering(|_| SinkResponse::body(200, "text/plain", "thank you"));
    let appliance = kit::scene::with_broker(&ApplianceSetup::new(BIN).env("SLUICEGATE_LOG", "debug"));
    subscribe(appliance.api(), "ask", &sink.url(), &[]);
    post(&appliance, &TestEvent::new("1"));
    appliance.wait_says("body of a 200 dropped: not an event");
    wait::until(TIMEOUT, "the count", || {
        (appliance.metric("sluicegate_subscriber_replies_dropped_total", "default/ask") == 1).then_some(())
    });
}

/// EV-RTE-22: a Subscription that is not Ready any more, here for want of its dead letter sink, gets its events all the
/// same.
#[test]
fn a_subscription_that_is_not_ready_gets_events_too() {
    let sink = EventSink::start();
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&kit::manifest::channel("c"));
    api.create(&kit::manifest::subscription("s", "c", &sink.url()));
    api.wait_ready("Subscription", "default", "s", TIMEOUT);
    let nowhere = json!({ "apiVersion": "v1", "kind": "Service", "name": "none" });
    let lost = json!({ "spec": { "delivery": { "deadLetterSink": { "ref": nowhere } } } });
    api.patch("Subscription", "default", "s", &lost);
    api.wait_for("Subscription", "default", "s", TIMEOUT, |object| {
        kit::api::condition(object, "Ready").is_some_and(|ready| ready["reason"] == "DeadLetterSinkResolveFailed")
    });
    let sent = TestEvent::new("1").binary("/channels/default/c").send(appliance.events());
    assert_eq!(sent.status, 202, "{sent}");
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["1"]);
}

/// EV-DLV-12: a dead letter that goes through a Channel of the appliance is the one that a sink outside gets.
#[test]
fn a_dead_letter_by_way_of_a_channel_is_the_same_one() {
    let sink = EventSink::answering(|_| SinkResponse::body(400, "text/plain", "no"));
    let (outside, behind) = (EventSink::start(), EventSink::start());
    let appliance = appliance();
    let api = appliance.api();
    api.create(&kit::manifest::channel("letters"));
    api.create(&kit::manifest::subscription("letters", "letters", &behind.url()));
    api.wait_ready("Subscription", NAMESPACE, "letters", TIMEOUT);
    let channel = json!({ "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "letters" });
    for (name, to) in [("out", json!({ "uri": outside.url() })), ("in", json!({ "ref": channel }))] {
        let options = json!({ "retry": 0, "deadLetterSink": to });
        subscribe(api, name, &sink.url(), &[("/spec/delivery", options)]);
    }
    post(&appliance, &TestEvent::new("1").with("subject", "s").data("text/plain", "data"));
    let [one, other] = [&outside, &behind].map(|sink| sink.wait_for(1, TIMEOUT)[0].clone());
    let reported = |letter: &kit::ReceivedRequest| {
        let names = ["id", "source", "type", "subject", "knativeerrordest", "knativeerrorcode", "knativeerrordata"];
        (names.map(|name| letter.attribute(name)), letter.data())
    };
    assert_eq!(reported(&one), reported(&other));
    assert_eq!(one.attribute("knativeerrorcode").as_deref(), Some("400"));
}
