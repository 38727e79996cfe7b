//! Channels and Subscriptions through the built binary: every Subscription gets every event, and replies go
//! to the Subscription's reply target.

use std::collections::BTreeSet;

use kit::api::condition;
use kit::manifest::{NAMESPACE, channel, subscription, with};
use kit::scene::{SILENCE, accepted, delivery, ids};
use kit::server::closed_address;
use kit::{
    Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, KitApi, ReceivedRequest, SinkResponse, TIMEOUT,
    TestEvent, wait,
};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
/// Where the Channel `main` takes events.
const CHANNEL: &str = "/channels/default/main";
const ROUNDS: usize = 6;

/// An appliance whose Channel `main` is Ready.
fn appliance() -> Appliance {
    let appliance = ApplianceSetup::new(BIN).start();
    make_channel(appliance.api(), "main");
    appliance
}

fn make_channel(api: KitApi, name: &str) -> Value {
    api.create(&channel(name));
    api.wait_ready("Channel", NAMESPACE, name, TIMEOUT)
}

/// Subscribes to `main` and waits until that is Ready; `changes` are JSON pointers and values.
fn subscribe(api: KitApi, name: &str, uri: &str, changes: &[(&str, Value)]) -> Value {
    let plain = subscription(name, "main", uri);
    api.create(&changes.iter().fold(plain, |object, (at, value)| with(object, at, value.clone())));
    api.wait_ready("Subscription", NAMESPACE, name, TIMEOUT)
}

fn post(appliance: &Appliance, event: &TestEvent) {
    accepted(&event.binary(CHANNEL), appliance);
}

fn to(sink: &EventSink) -> Value {
    json!({ "uri": sink.url() })
}

/// Answers with an event of its own, which is named after the one that it got.
fn replying() -> EventSink {
    EventSink::answering(|event| {
        let id = format!("reply-to-{}", event.id());
        let attributes = [("specversion", "1.0"), ("id", &id), ("source", "/kit"), ("type", "reply")];
        SinkResponse::event(200, &attributes, &json!({ "n": 1 }))
    })
}

fn names(received: &[ReceivedRequest]) -> BTreeSet<String> {
    received.iter().map(ReceivedRequest::id).collect()
}

/// EV-CH-02, EV-CH-03, EV-RTE-18, EV-RTE-21, EV-RTE-23, EV-RTE-25, DP-PROTO-02, DP-PROTO-03, DP-REPLY-01:
/// each Subscription gets its own copy, unaltered, in whichever mode it was sent; two with the same
/// destination get two.
#[test]
fn every_subscription_gets_every_event_unaltered() {
    let (alone, shared) = (EventSink::start(), EventSink::start());
    let appliance = appliance();
    for (name, sink) in [("a", &alone), ("b", &shared), ("c", &shared)] {
        subscribe(appliance.api(), name, &sink.url(), &[]);
    }
    let junk: Vec<u8> = (0..=255).cycle().take(5000).collect();
    post(&appliance, &TestEvent::new("binary").with("subject", "s").data("application/octet-stream", junk.clone()));
    let odd = TestEvent::new("structured").with("subject", "s").data("text/plain", " { odd ");
    accepted(&odd.structured(CHANNEL), &appliance);

    let copies = [alone.wait_for(2, TIMEOUT), shared.wait_for(4, TIMEOUT)].concat();
    for copy in &copies {
        let wanted = if copy.id() == "binary" { junk.as_slice() } else { b" { odd " };
        assert_eq!(copy.data(), wanted, "{}", copy.id());
        assert_eq!(copy.attribute("subject").as_deref(), Some("s"));
        assert_eq!(copy.header("prefer"), Some("reply"));
    }
    wait::nothing(SILENCE, "a copy too many", || {
        (alone.received().len() > 2 || shared.received().len() > 4).then_some(())
    });
    let mut at_shared = ids(&shared.received());
    at_shared.sort();
    assert_eq!(at_shared, ["binary", "binary", "structured", "structured"]);
}

/// EV-CH-02, EV-ADR-08, DP-ACK-04, DP-PROTO-11: a request that is not an event, a channel or a POST is answered with the reason.
#[test]
fn a_channel_takes_nothing_but_posted_events() {
    let appliance = appliance();
    let status = |call: HttpCall| call.send(appliance.events()).status;
    assert_eq!(status(TestEvent::new("1").binary("/channels/default/other")), 404);
    assert_eq!(status(TestEvent::new("1").binary("/brokers/default/main")), 404);
    assert_eq!(status(TestEvent::new("1").without("id").binary(CHANNEL)), 400);
    for method in ["GET", "PUT", "DELETE"] {
        let response = HttpCall::new(method, CHANNEL).send(appliance.events());
        assert_eq!((response.status, response.header("allow")), (405, Some("POST, OPTIONS")), "{method}");
    }
    let options = HttpCall::new("OPTIONS", CHANNEL).send(appliance.events());
    assert_eq!((options.status, options.header("allow")), (200, Some("POST, OPTIONS")));
    post(&appliance, &TestEvent::new("nobody-reads-it"));
}

/// EV-DLV-05, EV-DLV-07, EV-ADR-07, EV-OBJ-56, AMB-35, DP-REPLY-03: an answer continues into another Channel,
/// and to a reply target that fails twice; the subscriber is asked once.
#[test]
fn a_reply_goes_where_the_subscription_says_with_retries_of_its_own() {
    let (asked, replies_sink) = (replying(), EventSink::start());
    let stubborn = EventSink::answering(|event| SinkResponse::status(if event.attempt < 3 { 500 } else { 202 }));
    let appliance = appliance();
    let api = appliance.api();
    let replies = make_channel(api, "replies");
    let reference = json!({ "ref": {
        "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "replies",
    } });
    let on = subscribe(api, "to-channel", &asked.url(), &[("/spec/reply", reference)]);
    assert_eq!(on["status"]["physicalSubscription"]["replyUri"], replies["status"]["address"]["url"]);
    let hear = with(subscription("hear", "replies", &replies_sink.url()), "/metadata/labels", json!({ "x": "y" }));
    api.create(&hear);
    api.wait_ready("Subscription", NAMESPACE, "hear", TIMEOUT);
    post(&appliance, &TestEvent::new("1"));
    assert_eq!(ids(&replies_sink.wait_for(1, TIMEOUT)), ["reply-to-1"]);
    api.delete("Subscription", NAMESPACE, "to-channel");

    let dead = EventSink::start();
    let second = replying();
    subscribe(api, "to-url", &second.url(), &[("/spec/reply", to(&stubborn)), delivery(3, &dead)]);
    post(&appliance, &TestEvent::new("2"));
    let attempts = stubborn.wait_for(3, TIMEOUT);
    assert_eq!(ids(&attempts), ["reply-to-2", "reply-to-2", "reply-to-2"]);
    assert!(attempts.iter().all(|attempt| attempt.header("prefer").is_none()));
    wait::nothing(SILENCE, "the subscriber was asked again, or the event given up", || {
        (second.received().len() > 1 || !dead.received().is_empty()).then_some(())
    });
}

/// EV-SUB-15, EV-DLV-06: without a reply target the reply is dropped.
#[test]
fn a_reply_that_nobody_wants_is_discarded() {
    let (asked, other) = (replying(), EventSink::start());
    let appliance = appliance();
    subscribe(appliance.api(), "ask", &asked.url(), &[]);
    subscribe(appliance.api(), "other", &other.url(), &[]);
    post(&appliance, &TestEvent::new("1"));
    asked.wait_for(1, TIMEOUT);
    assert_eq!(ids(&other.wait_for(1, TIMEOUT)), ["1"]);
    wait::nothing(SILENCE, "the reply came back, or the event again", || {
        (asked.received().len() > 1 || other.received().len() > 1).then_some(())
    });
}

/// EV-SUB-13, EV-SUB-14, DP-PROTO-05, AMB-21: the reply target in the subscriber's place gets each event once, in the
/// mode in which it came though no reply is wanted; it is asked for nothing, and what it answers is dropped.
#[test]
fn a_subscription_with_nothing_but_a_reply_sends_the_events_there() {
    let target = replying();
    let appliance = appliance();
    let subscriber = ("/spec/subscriber", Value::Null);
    let ready = subscribe(appliance.api(), "only", "http://unused/", &[subscriber, ("/spec/reply", to(&target))]);
    let physical = &ready["status"]["physicalSubscription"];
    assert_eq!((physical["replyUri"].as_str(), physical.get("subscriberUri")), (Some(&*target.url()), None));
    post(&appliance, &TestEvent::new("1"));
    accepted(&TestEvent::new("2").structured(CHANNEL), &appliance);
    let got = target.wait_for(2, TIMEOUT);
    assert_eq!(names(&got), BTreeSet::from(["1".to_owned(), "2".to_owned()]));
    assert!(got.iter().all(|event| event.is_structured() == (event.id() == "2")));
    assert!(got.iter().all(|event| event.header("prefer").is_none()));
    wait::nothing(SILENCE, "more than each event once", || (target.received().len() > 2).then_some(()));
}

/// EV-CH-09, EV-DLV-03, EV-DLV-08, EV-OBJ-19, EV-OBJ-25, DP-RETRY-18: the Channel's options count for
/// who has none, and an event that fails goes to its dead letter sink.
#[test]
fn the_channels_delivery_options_are_its_subscriptions() {
    let dead = EventSink::start();
    let failing = EventSink::answering(|_| SinkResponse::status(503));
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let (_, options) = delivery(2, &dead);
    api.create(&with(channel("main"), "/spec/delivery", options));
    let ready = api.wait_ready("Channel", NAMESPACE, "main", TIMEOUT);
    assert_eq!(ready["status"]["deadLetterSinkUri"], json!(dead.url()));
    subscribe(api, "inherits", &failing.url(), &[]);
    post(&appliance, &TestEvent::new("1"));
    let letters = dead.wait_for(1, TIMEOUT);
    assert_eq!(letters[0].attribute("knativeerrordest").as_deref(), Some(&*failing.url()));
    assert_eq!(failing.received().len(), 3);

    // And without any options at all there are retries too.
    api.patch("Channel", NAMESPACE, "main", &json!({ "spec": { "delivery": null } }));
    let again = EventSink::answering(|event| SinkResponse::status(if event.attempt < 3 { 500 } else { 202 }));
    make_channel(api, "plain");
    api.create(&subscription("plain", "plain", &again.url()));
    api.wait_ready("Subscription", NAMESPACE, "plain", TIMEOUT);
    accepted(&TestEvent::new("2").binary("/channels/default/plain"), &appliance);
    assert_eq!(ids(&again.wait_for(3, TIMEOUT)), ["2", "2", "2"]);
}

/// EV-SUB-21: one subscriber is away; its sibling notices nothing, and it gets all of it later.
#[test]
fn a_subscription_keeps_its_own_backlog() {
    let away = closed_address();
    let here = EventSink::start();
    let appliance = appliance();
    let stubborn = json!({ "retry": 1000, "backoffPolicy": "linear", "backoffDelay": "PT0.05S" });
    subscribe(appliance.api(), "away", &format!("http://{away}/"), &[("/spec/delivery", stubborn)]);
    subscribe(appliance.api(), "here", &here.url(), &[]);
    let wanted: BTreeSet<_> = (0..300).map(|n| n.to_string()).collect();
    let mut connection = HttpConnection::open(appliance.events());
    for id in &wanted {
        assert_eq!(connection.call(&TestEvent::new(id).binary(CHANNEL)).status, 202);
    }
    assert_eq!(names(&here.wait_for(300, TIMEOUT)), wanted);
    let back = EventSink::start_at(away, |_| SinkResponse::status(202));
    let all = back.wait_until(TIMEOUT, |received| names(received).is_superset(&wanted));
    assert!(all.is_ok(), "{} of 300 came", names(&back.received()).len());
}

/// EV-RTE-19, EV-RTE-20, DP-ACK-02: killed again and again, no Subscription misses an event that got its
/// 202.
#[test]
fn no_subscription_misses_an_event_however_often_the_appliance_is_killed() {
    let sinks = [EventSink::start(), EventSink::start()];
    let mut appliance = appliance();
    for (name, sink) in ["a", "b"].into_iter().zip(&sinks) {
        subscribe(appliance.api(), name, &sink.url(), &[]);
    }
    let mut promised = BTreeSet::new();
    for round in 0..ROUNDS {
        let mut connection = HttpConnection::open(appliance.events());
        for n in 0..=round * 23 {
            let id = format!("{round}-{n}");
            let event = TestEvent::new(&id).data("text/plain", vec![b'd'; (n * 997) % 9000]);
            assert_eq!(connection.call(&event.binary(CHANNEL)).status, 202);
            promised.insert(id);
        }
        appliance.restart(); // right behind the last 202
        for sink in &sinks {
            let all = sink.wait_until(TIMEOUT, |received| names(received).is_superset(&promised));
            let missing: Vec<_> = promised.difference(&names(&sink.received())).cloned().collect();
            assert!(all.is_ok(), "after crash {round}: {missing:?} are lost");
        }
    }
}

/// EV-SUB-01, EV-SUB-05, EV-SUB-06, EV-SUB-18, AMB-20: a Subscription waits for its Channel and says so, and
/// when it is Ready the very next event comes.
#[test]
fn a_subscription_may_be_there_before_its_channel() {
    let sink = EventSink::start();
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&subscription("early", "main", &sink.url()));
    let waiting = api.wait_for("Subscription", NAMESPACE, "early", TIMEOUT, |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "ChannelReferenceFailed")
    });
    let ready = condition(&waiting, "Ready").unwrap();
    assert_eq!(ready["status"], "Unknown");
    assert!(ready["message"].as_str().unwrap().contains("default/main"), "{ready}");

    api.create(&channel("main"));
    api.wait_ready("Subscription", NAMESPACE, "early", TIMEOUT);
    post(&appliance, &TestEvent::new("first"));
    assert_eq!(ids(&sink.wait_for(1, TIMEOUT)), ["first"]);
}

/// EV-CH-08, EV-SUB-12, EV-SUB-16, EV-SUB-17, EV-OBJ-18: what may not change or be written is refused;
/// the rest changes in place and counts for what comes after Ready.
#[test]
fn the_channel_of_a_subscription_stays_and_its_subscriber_may_change() {
    let (old, new) = (EventSink::start(), EventSink::start());
    let appliance = appliance();
    let api = appliance.api();
    subscribe(api, "s", &old.url(), &[]);
    let refused = |kind: &str, name: &str, patch: Value| {
        assert_eq!(api.try_patch(kind, NAMESPACE, name, &patch).status, 422, "{patch}");
    };
    refused("Subscription", "s", json!({ "spec": { "channel": { "name": "other" } } }));
    refused("Subscription", "s", json!({ "spec": { "subscriber": null } }));
    refused("Channel", "main", json!({ "spec": { "channelTemplate": { "kind": "Other" } } }));
    let entry = json!([{ "uid": "1", "subscriberUri": "http://a/" }]);
    refused("Channel", "main", json!({ "spec": { "subscribers": entry } }));
    refused("InMemoryChannel", "main", json!({ "spec": { "subscribers": entry } }));

    api.patch("Subscription", NAMESPACE, "s", &json!({ "spec": { "subscriber": to(&new) } }));
    api.wait_ready("Subscription", NAMESPACE, "s", TIMEOUT);
    post(&appliance, &TestEvent::new("1"));
    assert_eq!(ids(&new.wait_for(1, TIMEOUT)), ["1"]);
    wait::nothing(SILENCE, "the old subscriber still counts", || old.received().first().map(ReceivedRequest::id));
}

/// EV-CH-01, EV-OBJ-23, EV-OBJ-24, EV-OBJ-32, EV-OBJ-55, AMB-37: the status fields that clients read.
#[test]
fn channel_and_subscription_show_where_events_go() {
    let sink = EventSink::start();
    let appliance = appliance();
    let subscribed = subscribe(appliance.api(), "s", &sink.url(), &[]);
    assert_eq!(subscribed["status"]["physicalSubscription"], json!({ "subscriberUri": sink.url() }));
    let shown = appliance.api().wait_for("Channel", NAMESPACE, "main", TIMEOUT, |channel| {
        channel["status"]["subscribers"].as_array().is_some_and(|list| !list.is_empty())
    });
    let status = &shown["status"];
    let url = format!("http://{}{CHANNEL}", appliance.events());
    assert_eq!(status["address"]["url"], json!(url));
    let uid = &subscribed["metadata"]["uid"];
    let entry = json!({ "uid": uid, "generation": 1, "observedGeneration": 1, "ready": "True" });
    assert_eq!(status["subscribers"], json!([entry]));
    assert_eq!((&status["channel"]["kind"], &status["channel"]["name"]), (&json!("InMemoryChannel"), &json!("main")));
    for (object, kinds) in [
        (&shown, ["BackingChannelReady", "Addressable", "DeadLetterSinkResolved", "EventPoliciesReady"]),
        (&subscribed, ["ReferencesResolved", "AddedToChannel", "ChannelReady", "OIDCIdentityCreated"]),
    ] {
        for kind in kinds {
            assert_eq!(condition(object, kind).unwrap()["status"], "True", "{kind}");
        }
    }
}

/// EV-SUB-18, EV-SUB-19: events may come to a Subscription before it is Ready, from one of them on; all come that are
/// accepted after it is.
#[test]
fn events_may_come_before_a_subscription_is_ready() {
    let (sink, appliance) = (EventSink::start(), appliance());
    let api = appliance.api();
    let mut sent = 0;
    let mut send = |count: usize| {
        for _ in 0..count {
            sent += 1;
            post(&appliance, &TestEvent::new(&sent.to_string()));
        }
        sent
    };
    send(20);
    api.create(&subscription("s", "main", &sink.url()));
    let before = wait::until(TIMEOUT, "the Subscription to be Ready", || {
        let before = send(1);
        let object = api.get("Subscription", NAMESPACE, "s")?;
        condition(&object, "Ready").is_some_and(|ready| ready["status"] == "True").then_some(before)
    });
    let last = send(20);
    let received = sink.wait_until(TIMEOUT, |all| names(all).contains(&last.to_string()) && all.len() >= 20);
    let mut got: Vec<usize> = received.unwrap().iter().map(|one| one.id().parse().unwrap()).collect();
    got.sort_unstable();
    assert!(got[0] <= before + 1, "one is missing after {before}: {got:?}");
    assert_eq!(got, (got[0]..=last).collect::<Vec<_>>(), "each once, without a gap");
}
