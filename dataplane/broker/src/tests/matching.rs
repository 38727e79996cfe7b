//! One match of each event for all subscribers: no subscriber misses an event, even when late or new.

use std::rc::Rc;

use contract::filter::cesql;
use contract::table::FilterRule;

use super::*;
use crate::limits::{MATCHES_MAX, SWEEP_EVERY, UNFINISHED_MAX};

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

fn expected(prefix: &str, count: usize) -> Vec<String> {
    sorted((0..count).map(|n| format!("{prefix}{n}")).collect())
}

/// EV-RTE-04, EV-RTE-07: of many subscribers each gets its own type, and counts all others as filtered.
#[test]
fn many_subscribers_get_their_own_types() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let subscribers =
        (0..300).map(|n| of_type(trigger(&format!("t{n}"), &format!("http://s{n}/")), &format!("type{n}")));
    let stream = rig.publish(subscribers.collect());
    rig.run(async {
        for n in 0..40 {
            assert_eq!(rig.post(&format!("e{n}"), &format!("type{}", n % 20)).await, 202);
        }
        rig.rest(SWEEP_EVERY * 2).await;
    });
    for n in 0..300 {
        let wanted = if n < 20 { 2 } else { 0 };
        assert_eq!(rig.calls(&format!("http://s{n}/")).len(), wanted, "{n}");
        assert_eq!(ends(&stream, n), [wanted as u64, 40 - wanted as u64, 0, 0, 0], "{n}");
    }
}

/// X-BRK-05: filters in every dialect can use the time of arrival; through the match queue, and when the
/// subscriber reads the log by itself.
#[test]
fn filters_see_arrival_time() {
    let folder = folder();
    let pair = |value: &str| vec![("knativearrivaltime".into(), value.into())];
    let sql = |text: &str| FilterRule::Sql(cesql::parse(text).unwrap());
    let filters = [
        (EventFilter::Exact(pair("")), true),
        (EventFilter::Exact(pair("2001-01-01T00:00:00Z")), false),
        (EventFilter::Rules([FilterRule::Prefix(pair("2"))].into()), true),
        (EventFilter::Rules([FilterRule::Suffix(pair("Z"))].into()), true),
        (EventFilter::Rules([sql("EXISTS knativearrivaltime AND knativearrivaltime > '2020'")].into()), false),
        (EventFilter::Rules([sql("EXISTS knativearrivaltime AND knativearrivaltime LIKE '2%Z'")].into()), true),
    ];
    let subscribers = || {
        let each = filters.iter().enumerate().map(|(n, (filter, _))| Subscriber {
            filter: filter.clone(),
            initial_offset: InitialOffset::Earliest,
            ..trigger(&format!("t{n}"), &format!("http://s{n}/"))
        });
        each.collect::<Vec<_>>()
    };
    // In the first lifetime they come after the event.
    for generation in 0..2 {
        let rig = BrokerFixture::new(folder.path());
        rig.publish(if generation == 0 { Vec::new() } else { subscribers() });
        rig.run(async {
            assert_eq!(rig.post("1", "t").await, 202);
            rig.publish(subscribers());
            rig.sync();
            rig.rest(SWEEP_EVERY * 2).await;
        });
        for (n, (filter, is_wanted)) in filters.iter().enumerate() {
            let calls = rig.calls(&format!("http://s{n}/"));
            assert_eq!(!calls.is_empty(), *is_wanted, "{filter:?} in life {generation}");
            assert!(calls.iter().all(|call| call.header("ce-knativearrivaltime").is_some()));
        }
        rig.end();
    }
}

/// EV-DLV-13: a subscriber whose match queue overflows leaves the matcher, and misses nothing.
#[test]
fn lagging_subscriber_catches_up_and_rejoins() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let is_dead = Rc::new(Cell::new(true));
    let dead = Rc::clone(&is_dead);
    rig.rule(move |_| if dead.get() { ScriptedAnswer::After(seconds(3), 503) } else { ScriptedAnswer::Status(202) });
    let mut retrying_trigger = of_type(trigger("t", "http://s/"), "wanted");
    retrying_trigger.delivery.retries_max = 1000;
    let stream = rig.publish(vec![retrying_trigger]);
    let count = MATCHES_MAX + UNFINISHED_MAX + 200;
    rig.run(async {
        for n in 0..count {
            assert_eq!(rig.post(&format!("e{n}"), "wanted").await, 202);
            assert_eq!(rig.post(&format!("o{n}"), "other").await, 202);
        }
        is_dead.set(false);
        rig.rest(seconds(60)).await;
        assert_eq!(ends(&stream, 0), [count as u64, count as u64, 0, 0, 0]);
        let before = rig.calls("http://s/").len();
        assert_eq!(rig.post("late", "wanted").await, 202);
        rig.rest(seconds(1)).await;
        assert_eq!(rig.ids("http://s/")[before..], ["late"]);
    });
    let mut ids = sorted(rig.ids("http://s/"));
    ids.dedup();
    ids.retain(|id| id != "late");
    assert_eq!(ids, expected("e", count));
}

/// EV-TRG-12: a subscriber that starts in the middle gets later events, exactly once.
#[test]
fn new_subscriber_gets_only_later_events() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let url = |n: usize| format!("http://s{n}/");
    rig.run(async {
        for round in 0..12 {
            rig.publish((0..=round).map(|n| trigger(&format!("t{n}"), &url(n))).collect());
            let posts = (0..5).map(|n| rig.post(if n % 2 == 0 { "a" } else { "b" }, "x"));
            for post in posts {
                assert_eq!(post.await, 202);
            }
        }
        rig.rest(seconds(1)).await;
    });
    for n in 0..12 {
        assert_eq!(rig.calls(&url(n)).len(), 5 * (12 - n), "{n}");
    }
}

/// EV-TRG-12, EV-DLV-13: a stream without subscribers for a while is not read; a returning subscriber
/// continues where it was, and a new one gets later events.
#[test]
fn stream_without_subscribers_loses_nothing() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let first = || trigger("t", "http://s/");
    rig.run(async {
        for (round, subscribers) in
            [vec![first()], vec![], vec![trigger("new", "http://new/"), first()], vec![]].into_iter().enumerate()
        {
            rig.publish(subscribers);
            for n in 0..5 {
                assert_eq!(rig.post(&format!("{round}-{n}"), "x").await, 202);
            }
            rig.rest(seconds(1)).await;
        }
    });
    let of = |rounds: &[usize]| -> Vec<_> {
        rounds.iter().flat_map(|round| (0..5).map(move |n| format!("{round}-{n}"))).collect()
    };
    assert_eq!(sorted(rig.ids("http://s/")), of(&[0, 1, 2]));
    assert_eq!(sorted(rig.ids("http://new/")), of(&[2]));
}

/// EV-DLV-13: events that did not match are in the cursor too: a restart does not read them again.
#[test]
fn unmatched_events_are_skipped_after_restart() {
    let folder = folder();
    let only = || vec![of_type(trigger("t", "http://s/"), "never")];
    let rig = BrokerFixture::new(folder.path());
    rig.publish(only());
    rig.run(async {
        for n in 0..50 {
            assert_eq!(rig.post(&format!("e{n}"), "other").await, 202);
        }
        rig.rest(seconds(1)).await;
    });
    rig.end();

    let next = BrokerFixture::new(folder.path());
    let stream = next.publish(only());
    next.sync();
    next.run(next.rest(seconds(1)));
    assert_eq!(ends(&stream, 0), [0, 0, 0, 0, 0]);
    assert!(next.calls("http://s/").is_empty());
}
