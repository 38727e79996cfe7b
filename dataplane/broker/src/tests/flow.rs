//! Many subscribers: each independent, within its window, with correct counts of its events.

use contract::abandoned::AbandonedEvents;
use contract::table::{DeliveryOrder, InitialOffset};

use super::*;
use crate::delivery_log::{self, DeliveryOutcome};
use crate::limits::{RECORDS_PER_TURN_MAX, UNFINISHED_MAX};

/// EV-RTE-03, -04, -06, -07, EV-BRK-03, EV-RTE-23: one evaluation each; one delivery for each that matches,
/// the same destination or not.
#[test]
fn matching_subscribers_get_every_event_once() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(vec![
        trigger("all", "http://all/"),
        of_type(trigger("a1", "http://a/"), "A"),
        of_type(trigger("a2", "http://a/"), "A"),
        of_type(trigger("b", "http://b/"), "B"),
        of_type(trigger("none", "http://none/"), "C"),
    ]);
    rig.run(async {
        for n in 0..500 {
            let ty = if n % 2 == 0 { "A" } else { "B" };
            assert_eq!(rig.post(&n.to_string(), ty).await, 202);
        }
        rig.rest(seconds(1)).await;
    });
    let mut seen = rig.ids("http://all/");
    seen.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(seen, (0..500).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!((rig.calls("http://a/").len(), rig.calls("http://b/").len()), (500, 250));
    assert!(rig.calls("http://none/").is_empty());
    let expected =
        [[500, 0, 0, 0, 0], [250, 250, 0, 0, 0], [250, 250, 0, 0, 0], [250, 250, 0, 0, 0], [0, 500, 0, 0, 0]];
    for (at, expected) in expected.into_iter().enumerate() {
        assert_eq!(ends(&stream, at), expected, "{at}");
    }
}

/// A subscriber whose attempts fail at once (its URL has an unsupported scheme) is one of many: its backlog
/// is processed in turns, between which the core serves others.
#[test]
fn attempts_that_fail_at_once_do_not_block_core() {
    const EVENTS: usize = 1000;
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let turns = Rc::new(Cell::new(0_usize));
    let mut per_turn = BTreeMap::<usize, usize>::new();
    let (seen, most) = (Rc::clone(&turns), Rc::new(Cell::new(0)));
    let noted = Rc::clone(&most);
    rig.rule(move |call| {
        if call.url == "http://keeps/" {
            return ScriptedAnswer::After(seconds(3600), 202);
        }
        let here = per_turn.entry(seen.get()).or_default();
        *here += 1;
        noted.set(noted.get().max(*here));
        ScriptedAnswer::Refuse
    });
    rig.publish(vec![trigger("keeps", "http://keeps/")]);
    rig.run(async {
        for n in 0..EVENTS {
            assert_eq!(rig.post(&n.to_string(), "t").await, 202);
        }
        let mut gone = trigger("gone", "http://gone/");
        (gone.initial_offset, gone.delivery.retries_max) = (InitialOffset::Earliest, 0);
        rig.publish(vec![trigger("keeps", "http://keeps/"), gone]);
        rig.sync();
        while rig.calls("http://gone/").len() < EVENTS {
            turns.set(turns.get() + 1);
            rig.ring.yield_now().await;
        }
    });
    assert!(most.get() <= 2 * RECORDS_PER_TURN_MAX, "{} attempts in one turn", most.get());
}

/// EV-TRG-12: an event posted right after a publish, before the core was woken, reaches the new subscriber;
/// an earlier one does not.
#[test]
fn new_subscriber_misses_nothing_after_publish() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    for round in 0..50 {
        let (old, new) = (trigger("old", "http://old/"), format!("n{round}"));
        rig.publish(vec![old]);
        rig.run(rig.post(&format!("{round}-before"), "t"));
        rig.publish(vec![trigger("old", "http://old/"), trigger(&new, &format!("http://{new}/"))]);
        rig.run(async {
            rig.post(&format!("{round}-after"), "t").await;
            rig.rest(seconds(1)).await;
        });
        assert_eq!(rig.ids(&format!("http://{new}/")), [format!("{round}-after")]);
    }
    assert_eq!(rig.calls("http://old/").len(), 100);
}

/// EV-TRG-12: a stream whose new subscriber finds no space for its cursor rejects events until it has; the
/// other streams continue.
#[test]
fn stream_rejects_events_until_subscriber_is_registered() {
    let folder = folder();
    let few = LogOptions { cursors_max: 2, ..options() };
    let rig = BrokerFixture::with(folder.path(), &[], 1, FaultProfile::calm(), few);
    let triggers = |count: usize| (0..count).map(|n| trigger(&format!("t{n}"), "http://s/")).collect::<Vec<_>>();
    rig.publish(triggers(1));
    rig.run(rig.post("0", "t"));
    rig.publish(triggers(3).into_iter().rev().collect()); // the running one comes last
    rig.run(async {
        assert_eq!(rig.post("1", "t").await, 503);
        let headers = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
        assert_eq!(rig.request("POST", QUIET_PATH, &headers, b"").await.status, 202);
        assert!(rig.ids("http://s/").contains(&"0".into()), "the one that was running goes on");
        rig.publish(triggers(3).split_off(2).into_iter().chain(triggers(1)).collect());
        assert_eq!(rig.post("2", "t").await, 202);
        rig.rest(seconds(1)).await;
    });
    assert_eq!(rig.ids("http://s/"), ["0", "2", "2"]);
}

/// DP-RETRY-19: a subscriber never has more requests in flight than its window.
#[test]
fn window_is_filled_and_never_exceeded() {
    for window in [1, 3, 8] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let mut subscriber = trigger("t", "http://s/");
        subscriber.delivery.window = window;
        let stream = rig.publish(vec![subscriber]);
        rig.rule(|_| ScriptedAnswer::After(Duration::from_millis(100), 202));
        rig.run(async {
            for n in 0..40 {
                rig.post(&n.to_string(), "t").await;
            }
            rig.rest(seconds(60)).await;
        });
        assert_eq!(rig.most_open("http://s/"), window);
        assert_eq!(ends(&stream, 0), [40, 0, 0, 0, 0]);
    }
}

/// DP-RETRY-19: our own instances get as many as they take plus a window, never above the bound, and in
/// strict order still one.
#[test]
fn window_follows_instance_count() {
    for (sequence, capacity, most) in [
        (DeliveryOrder::Free, 0, 8),
        (DeliveryOrder::Free, 4, 12),
        (DeliveryOrder::Free, usize::MAX, UNFINISHED_MAX),
        (DeliveryOrder::Strict, 100, 1),
    ] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let mut subscriber = trigger("t", "http://s/");
        subscriber.delivery.sequence = sequence;
        let stream = rig.publish(vec![subscriber]);
        rig.rule(|_| ScriptedAnswer::After(seconds(10), 202));
        rig.capacity(capacity);
        let events = if sequence == DeliveryOrder::Strict { 20 } else { UNFINISHED_MAX + 200 };
        rig.run(async {
            // All have come in before the first is answered.
            for n in 0..events {
                rig.post(&n.to_string(), "t").await;
            }
            rig.rest(seconds(3000)).await;
        });
        assert_eq!(rig.most_open("http://s/") as usize, most, "{sequence:?}, {capacity} places");
        assert_eq!(ends(&stream, 0), [events as u64, 0, 0, 0, 0]);
    }
}

/// DP-RETRY-19: a subscriber that fails everything stops reading at a bound, keeps its events, and blocks
/// no other.
#[test]
fn dead_subscriber_is_bounded_and_blocks_no_other() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut dead = trigger("dead", "http://dead/");
    dead.delivery.retries_max = 1_000_000;
    dead.delivery.backoff = BackoffPolicy::Linear(seconds(3600));
    let stream = rig.publish(vec![dead, trigger("live", "http://live/")]);
    rig.rule(|call| ScriptedAnswer::Status(if call.url == "http://dead/" { 503 } else { 202 }));
    let events = 3 * UNFINISHED_MAX;
    rig.run(async {
        for n in 0..events {
            rig.post(&n.to_string(), "t").await;
        }
        rig.rest(seconds(60)).await;
    });
    assert_eq!(rig.calls("http://dead/").len(), UNFINISHED_MAX);
    assert_eq!(ends(&stream, 0), [0, 0, 0, 0, events as u64]);
    assert_eq!(ends(&stream, 1), [events as u64, 0, 0, 0, 0]);
}

/// DP-RETRY-19: a slow subscriber does not slow down others.
#[test]
fn slow_subscriber_does_not_block_others() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut slow = trigger("slow", "http://slow/");
    slow.delivery.window = 1;
    rig.publish(vec![slow, trigger("fast", "http://fast/")]);
    rig.rule(|call| match &*call.url {
        "http://slow/" => ScriptedAnswer::After(seconds(10), 202),
        _ => ScriptedAnswer::Status(202),
    });
    rig.run(async {
        for n in 0..50 {
            rig.post(&n.to_string(), "t").await;
        }
        rig.rest(seconds(1)).await;
        assert_eq!((rig.calls("http://slow/").len(), rig.calls("http://fast/").len()), (1, 50));
        rig.rest(seconds(600)).await;
        assert_eq!(rig.calls("http://slow/").len(), 50);
    });
}

/// EV-TRG-11: a new target, filter or delivery applies to events after it, and to retries too.
#[test]
fn changed_subscriber_keeps_its_position() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![trigger("t", "http://old/")]);
    rig.rule(|call| ScriptedAnswer::Status(if call.url == "http://old/" { 503 } else { 202 }));
    rig.run(async {
        rig.post("1", "t").await;
        rig.rest(Duration::from_millis(500)).await;
        rig.publish(vec![trigger("t", "http://new/")]);
        rig.sync();
        rig.post("2", "t").await;
        rig.rest(seconds(10)).await;
    });
    assert_eq!((rig.ids("http://old/"), rig.ids("http://new/")), (vec!["1".into()], vec!["2".into(), "1".into()]));
}

/// A subscriber that is missing in the table for a moment continues where it was; one that stays away is
/// deleted, and starts from the beginning if it ever returns.
#[test]
fn removed_subscriber_is_deleted_after_delay() {
    for (away, expected) in [(60, &["1", "2"][..]), (600, &["1"])] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        rig.publish(vec![trigger("t", "http://s/"), trigger("other", "http://o/")]);
        rig.run(async {
            rig.post("1", "t").await;
            rig.rest(seconds(1)).await;
            rig.publish(vec![trigger("other", "http://o/")]);
            rig.sync();
            rig.post("2", "t").await;
            rig.rest(seconds(away)).await;
            assert_eq!(rig.ids("http://s/"), ["1"], "EV-TRG-14: nothing is sent while it is away");
            let stream = rig.publish(vec![trigger("t", "http://s/"), trigger("other", "http://o/")]);
            rig.sync();
            rig.rest(seconds(1)).await;
            assert_eq!(rig.ids("http://s/"), expected);
            assert_eq!(ends(&stream, 0)[0], expected.len() as u64 - 1);
        });
    }
}

/// DP-OBS-02: a deleted subscriber abandons what it had not got by then, and nothing that came in before it
/// was forgotten; one without a backlog abandons nothing.
#[test]
fn deleted_subscriber_abandons_its_backlog() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut behind = trigger("behind", "http://away/");
    behind.delivery.retries_max = 1_000;
    rig.publish(vec![behind, trigger("done", "http://s/"), trigger("other", "http://o/")]);
    rig.rule(|call| ScriptedAnswer::Status(if call.url == "http://away/" { 503 } else { 202 }));
    rig.run(async {
        for id in ["1", "2"] {
            rig.post(id, "t").await;
        }
        rig.rest(seconds(1)).await;
        let without = rig.publish(vec![trigger("other", "http://o/")]);
        rig.sync();
        for id in ["3", "4", "5"] {
            rig.post(id, "t").await;
        }
        rig.rest(seconds(200)).await;
        assert_eq!(without.tally.abandoned.load(Relaxed), 2);
    });
    let left = AbandonedEvents { stream: "broker/ns/b/1".into(), is_whole: false, events: 2 };
    assert_eq!(rig.left_behind(), (vec![left], 2));
}

/// A stream that is deleted with a backlog is reported: how much, the names, and in the delivery log the
/// subscribers.
#[test]
fn deleted_stream_reports_abandoned_events() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let retrying_trigger = |name| {
        let mut one = trigger(name, "http://away/");
        one.delivery.retries_max = 1_000;
        one
    };
    rig.publish(vec![
        retrying_trigger("a"),
        retrying_trigger("b"),
        trigger("done", "http://s/"),
        of_type(retrying_trigger("none"), "x"),
    ]);
    rig.rule(|call| ScriptedAnswer::Status(if call.url == "http://away/" { 503 } else { 202 }));
    rig.run(async {
        for id in ["1", "2", "3"] {
            rig.post(id, "t").await;
        }
        rig.rest(seconds(1)).await;
        rig.publish_as("broker/ns/b/2", Vec::new());
        rig.sync();
        rig.rest(seconds(100)).await;
        assert_eq!(rig.left_behind(), (Vec::new(), 0), "it may yet come back");
        rig.rest(seconds(100)).await;
    });
    let left = AbandonedEvents { stream: "broker/ns/b/1".into(), is_whole: true, events: 6 };
    assert_eq!(rig.left_behind(), (vec![left], 6));
    assert_eq!(rig.left_behind(), (Vec::new(), 6), "it is reported once");

    let mut named = Vec::new();
    each_note(folder.path(), |note| {
        if note.what == DeliveryOutcome::Abandoned {
            named
                .push(delivery_log::abandoned_subscriber(note.subscriber).map(|(s, by)| (s.to_owned(), by.to_owned())));
        }
    });
    named.sort();
    let of = |name: &str| Some(("broker/ns/b/1".to_owned(), name.to_owned()));
    assert_eq!(named, [of("a"), of("b")]);
}

/// EV-RTE-09, EV-RTE-25: the data arrives as the bytes that were sent.
#[test]
fn data_is_not_altered() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![trigger("t", "http://s/")]);
    let bodies: [&[u8]; 4] = [b"", b"\xff\xfe\x00\x01", b" { \"a\" : 1.0 } ", &[b'x'; 65_536]];
    rig.run(async {
        for body in bodies {
            let headers = [
                ("ce-specversion", "1.0"),
                ("ce-id", "1"),
                ("ce-source", "/s"),
                ("ce-type", "t"),
                ("Content-Type", "application/json; x=1"),
            ];
            assert_eq!(rig.request("POST", PATH, &headers, body).await.status, 202);
            rig.rest(seconds(1)).await;
        }
    });
    for (call, body) in rig.calls("http://s/").iter().zip(bodies) {
        assert_eq!(&*call.request.body, body);
        assert_eq!(call.header("content-type").unwrap(), "application/json; x=1");
    }
}
