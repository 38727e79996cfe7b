//! Ordered delivery, the configured content mode, and a subscriber that comes back.

use codec::cloudevent::{ContentMode, structured};
use contract::table::{DeliveryOrder, InitialOffset};

use super::*;
use crate::limits::UNFINISHED_MAX;

fn in_sequence(sequence: DeliveryOrder) -> Subscriber {
    let mut subscriber = trigger("t", "http://s/");
    subscriber.delivery.sequence = sequence;
    subscriber
}

/// The first attempt at each event fails.
fn failing_once() -> impl FnMut(&RecordedCall) -> ScriptedAnswer {
    let mut seen = std::collections::BTreeSet::new();
    move |call| {
        let status = if seen.insert(call.id.clone()) { 503 } else { 202 };
        ScriptedAnswer::After(Duration::from_millis(20), status)
    }
}

async fn post_with_key(rig: &BrokerFixture, id: &str, key: &str) {
    let headers =
        [("ce-specversion", "1.0"), ("ce-id", id), ("ce-source", "/s"), ("ce-type", "t"), ("ce-partitionkey", key)];
    assert_eq!(rig.request("POST", PATH, &headers, b"data").await.status, 202);
}

/// DP-RETRY-19: in a strict sequence one event is in flight, and its retries come before the next.
#[test]
fn strict_sequence_has_one_event_in_flight() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(vec![in_sequence(DeliveryOrder::Strict)]);
    rig.rule(failing_once());
    rig.run(async {
        for n in 0..20 {
            rig.post(&n.to_string(), "t").await;
        }
        rig.rest(seconds(60)).await;
    });
    let expected: Vec<_> = (0..20).flat_map(|n| [n.to_string(), n.to_string()]).collect();
    assert_eq!(rig.ids("http://s/"), expected);
    assert_eq!((rig.most_open("http://s/"), ends(&stream, 0)), (1, [20, 0, 0, 0, 0]));
}

/// Events of one key keep their order through retries; other keys are not delayed by them.
#[test]
fn ordering_keys_keep_order_and_run_concurrently() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(vec![in_sequence(DeliveryOrder::ByKey)]);
    rig.rule(failing_once());
    rig.run(async {
        for n in 0..30 {
            post_with_key(&rig, &n.to_string(), ["a", "b", "c"][n % 3]).await;
        }
        rig.rest(seconds(60)).await;
    });
    let calls: Vec<usize> = rig.ids("http://s/").iter().map(|id| id.parse().unwrap()).collect();
    for key in 0..3 {
        let of_key: Vec<_> = calls.iter().filter(|n| *n % 3 == key).collect();
        assert!(of_key.is_sorted() && of_key.len() == 20, "{of_key:?}");
    }
    assert!((2..=3).contains(&rig.most_open("http://s/")), "keys go side by side");
    assert_eq!(ends(&stream, 0), [30, 0, 0, 0, 0]);
}

/// EV-DLV-13: after a restart in the middle of a sequence the order is kept.
#[test]
fn sequence_continues_after_restart() {
    for sequence in [DeliveryOrder::Strict, DeliveryOrder::ByKey] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        rig.publish(vec![in_sequence(sequence)]);
        rig.rule(|_| ScriptedAnswer::After(seconds(1), 202));
        rig.run(async {
            for n in 0..9 {
                rig.post(&n.to_string(), "t").await;
            }
            rig.rest(seconds(4)).await;
        });
        rig.end();
        let rig = BrokerFixture::new(folder.path());
        let stream = rig.publish(vec![in_sequence(sequence)]);
        rig.sync();
        assert!(ends(&stream, 0)[4] >= 4, "what is left counts before it is read: {:?}", ends(&stream, 0));
        rig.run(rig.rest(seconds(30)));
        let ids: Vec<usize> = rig.ids("http://s/").iter().map(|id| id.parse().unwrap()).collect();
        assert!(ids.is_sorted() && ids.last() == Some(&8), "{ids:?}");
        assert_eq!(ends(&stream, 0)[4], 0);
    }
}

/// DP-RETRY-21: a subscriber at its limit of unfinished events, all in a long back-off, gets them when it
/// accepts one again.
#[test]
fn recovered_subscriber_skips_remaining_backoff() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut subscriber = trigger("t", "http://s/");
    subscriber.delivery.retries_max = 100;
    subscriber.delivery.backoff = BackoffPolicy::Exponential(seconds(10));
    let stream = rig.publish(vec![subscriber]);
    let back = Rc::new(Cell::new(false));
    let is_back = Rc::clone(&back);
    rig.rule(move |_| ScriptedAnswer::Status(if is_back.get() { 202 } else { 503 }));
    let (first, events) = (UNFINISHED_MAX - 1, UNFINISHED_MAX + 50);
    rig.run(async {
        for n in 0..first {
            rig.post(&n.to_string(), "t").await;
        }
        rig.rest(seconds(60)).await;
        for n in first..events {
            rig.post(&n.to_string(), "t").await; // one of them is started
        }
        rig.rest(seconds(140)).await;
        back.set(true); // 200 s: the first are retried at 310 s, the one at 210 s
        rig.rest(seconds(30)).await;
    });
    assert_eq!(ends(&stream, 0), [events as u64, 0, 0, 0, 0]);
}

/// X-DLV-03, DP-PROTO-09: the configured mode, whichever the event came in.
#[test]
fn event_is_sent_in_configured_mode() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let with = |name: &str, mode: Option<ContentMode>| {
        let mut subscriber = trigger(name, &format!("http://{name}/"));
        subscriber.delivery.mode = mode;
        subscriber
    };
    rig.publish(vec![
        with("json", Some(ContentMode::Structured)),
        with("binary", Some(ContentMode::Binary)),
        with("kept", None),
    ]);
    let envelope =
        br#"{"specversion":"1.0","id":"e","source":"/s","type":"t","datacontenttype":"text/plain","data":"hi"}"#;
    rig.run(async {
        rig.post("b", "t").await;
        rig.request("POST", PATH, &[("Content-Type", "application/cloudevents+json")], envelope).await;
        rig.rest(seconds(1)).await;
    });
    for call in rig.calls("http://json/") {
        let event = structured::parse(&call.request.body).unwrap();
        assert_eq!(event.attribute("type"), Some("t"));
        assert!(event.attribute("knativearrivaltime").is_some(), "X-BRK-05");
    }
    let binary = rig.calls("http://binary/");
    assert_eq!((binary[0].id.as_str(), &*binary[0].request.body), ("b", &b"data"[..]));
    assert_eq!((binary[1].id.as_str(), &*binary[1].request.body), ("e", &b"hi"[..]));
    assert!(binary.iter().all(|call| call.header("ce-knativearrivaltime").is_some()), "X-BRK-05");
    let kept = rig.calls("http://kept/");
    assert_eq!((kept[0].id.as_str(), kept[1].id.as_str()), ("b", ""));
    assert_eq!(kept[1].header("content-type").unwrap(), "application/cloudevents+json");
}

/// EV-BRK-04: a new subscriber gets later events only, unless it is configured to start with what the log
/// still has.
#[test]
fn new_subscriber_can_start_with_stored_events() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let from = |name: &str, begin: InitialOffset| Subscriber {
        initial_offset: begin,
        ..trigger(name, &format!("http://{name}/"))
    };
    rig.publish(vec![trigger("first", "http://first/")]);
    rig.run(async {
        for n in 0..5 {
            rig.post(&n.to_string(), "t").await;
        }
        rig.rest(seconds(1)).await;
    });
    let stream = rig.publish(vec![
        trigger("first", "http://first/"),
        from("all", InitialOffset::Earliest),
        from("past", InitialOffset::At(1)),
        from("future", InitialOffset::At(u64::MAX / 2)),
        from("now", InitialOffset::Now),
    ]);
    rig.run(async {
        rig.post("5", "t").await;
        rig.rest(seconds(1)).await;
    });
    let ids = |url: &str| {
        let mut ids = rig.ids(url);
        ids.sort();
        ids
    };
    for all in ["http://first/", "http://all/", "http://past/"] {
        assert_eq!(ids(all), ["0", "1", "2", "3", "4", "5"], "{all}");
    }
    for one in ["http://future/", "http://now/"] {
        assert_eq!(ids(one), ["5"], "{one}");
    }
    assert_eq!((ends(&stream, 1), ends(&stream, 4)), ([6, 0, 0, 0, 0], [1, 0, 0, 0, 0]));
}
