//! Restarts: what the next process finds and does.

use std::collections::BTreeSet;

use contract::filter::{self, FilterRule};

use super::*;
use crate::delivery_log::DeliveryOutcome;
use crate::limits::CURSOR_INTERVAL;
use crate::stalled::{self, Phase, StalledEvent};

fn numbers(ids: &[String]) -> BTreeSet<u32> {
    ids.iter().filter_map(|id| id.parse().ok()).collect()
}

/// EV-DLV-13: after a restart unfinished events are delivered, and finished ones are not.
#[test]
fn restart_resends_only_unfinished_events() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    // Every seventh fails, and its retry would come only after this lifetime.
    rig.rule(|call| ScriptedAnswer::Status(if call.id.parse::<u32>().unwrap() % 7 == 0 { 503 } else { 202 }));
    let retrying_trigger = || {
        let mut subscriber = trigger("t", "http://s/");
        subscriber.delivery.backoff = BackoffPolicy::Linear(seconds(3600));
        subscriber
    };
    rig.publish(vec![retrying_trigger()]);
    rig.run(async {
        for n in 0..100 {
            rig.post(&n.to_string(), "t").await;
        }
        rig.rest(seconds(1)).await; // more than CURSOR_INTERVAL
    });
    rig.end();

    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(vec![retrying_trigger()]);
    rig.sync();
    rig.run(rig.rest(seconds(1)));
    let expected: BTreeSet<u32> = (0..100).filter(|n| n % 7 == 0).collect();
    assert_eq!(numbers(&rig.ids("http://s/")), expected);
    assert_eq!(rig.ids("http://s/").len(), expected.len());
    assert_eq!(ends(&stream, 0), [expected.len() as u64, 0, 0, 0, 0]);
}

/// EV-DLV-08, EV-DLV-09: an event given up is recorded as given up no later than as done: otherwise a kill
/// in between would make it look delivered, and it could not be replayed. Where no further event comes,
/// deliveries are recorded by then, too.
#[test]
fn given_up_event_is_recorded_before_cursor() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let dead_lettered = Subscriber { dead_letter: Some(target("http://dls/")), ..trigger("buried", "http://s/") };
    rig.publish(vec![trigger("dropped", "http://s/"), dead_lettered, trigger("taken", "http://ok/")]);
    rig.rule(|call| ScriptedAnswer::Status(if call.url == "http://s/" { 400 } else { 202 }));
    rig.run(async {
        rig.post("1", "t").await;
        rig.rest(CURSOR_INTERVAL + Duration::from_millis(50)).await;
    });
    let mut received = Vec::new();
    let held = each_note(folder.path(), |note| received.push((note.subscriber.to_owned(), note.what, note.position)));
    for (name, what) in [
        ("dropped", DeliveryOutcome::Dropped),
        ("buried", DeliveryOutcome::DeadLettered),
        ("taken", DeliveryOutcome::Replied),
    ] {
        let &(_, _, position) = received.iter().find(|(of, how, _)| of == name && *how == what).unwrap();
        let mark = held.streams["broker/ns/b/1"].mark(name).unwrap();
        assert!(mark.is_done(position), "{name}: otherwise this shows nothing");
    }
}

/// EV-DLV-13, EV-OBJ-47: the attempt count survives a restart, and an event ends after the configured
/// number of attempts.
#[test]
fn attempts_before_restart_count() {
    let folder = folder();
    let mut attempts = Vec::new();
    for _ in 0..4 {
        let rig = BrokerFixture::new(folder.path());
        let mut subscriber = trigger("t", "http://s/");
        subscriber.delivery.retries_max = 5;
        subscriber.delivery.backoff = BackoffPolicy::Linear(seconds(2));
        let stream = rig.publish(vec![subscriber]);
        rig.rule(|_| ScriptedAnswer::Status(503));
        rig.run(async {
            rig.sync();
            if attempts.is_empty() {
                rig.post("1", "t").await;
            }
            rig.rest(seconds(3)).await; // two attempts, and their entries
        });
        attempts.push(rig.ids("http://s/").len());
        assert_eq!(ends(&stream, 0)[3], u64::from(attempts.len() == 3));
        rig.end();
    }
    assert_eq!(attempts, [2, 2, 2, 0]);
}

/// The position of the first event of the fixture's stream.
fn first_position(folder: &std::path::Path) -> u64 {
    let (log, _) = wal::WriteAheadLog::open(folder, wal::LogOptions::default()).unwrap();
    let (stream, _) = log.streams().find(|(_, name)| *name == "broker/ns/b/1").unwrap();
    log.read_from(stream, wal::LogPosition::ORIGIN).next().unwrap().position.get()
}

/// Runs until two events are in flight for these subscribers, and ends the process.
fn leave_two_events(folder: &std::path::Path, subscribers: Vec<Subscriber>) -> (Arc<EventStream>, u64) {
    let rig = BrokerFixture::new(folder);
    let stream = rig.publish(subscribers);
    rig.rule(|_| ScriptedAnswer::After(seconds(3600), 202));
    rig.run(async {
        rig.post("1", "t").await;
        rig.post("2", "t").await;
        rig.rest(seconds(1)).await;
    });
    rig.end();
    (stream, first_position(folder))
}

/// An event at which a core stopped before the process was killed is not tried again: it becomes a dead letter, or is
/// dropped if even encoding a request of it stops the core. Subscribers that the record does not name get it.
#[test]
fn event_that_stopped_core_is_set_aside_after_restart() {
    let folder = folder();
    let all = || {
        let dead_lettered = Subscriber { dead_letter: Some(target("http://dls/")), ..trigger("buried", "http://a/") };
        vec![dead_lettered, trigger("dropped", "http://b/"), trigger("taken", "http://c/")]
    };
    let (_, first) = leave_two_events(folder.path(), all());
    let event = |subscriber: &str, phase| StalledEvent {
        stream: "broker/ns/b/1".into(),
        subscriber: subscriber.into(),
        position: first,
        phase,
        other_subscribers: Vec::new(),
    };
    let both = [event("buried", Phase::Filter), event("dropped", Phase::Request)];
    stalled::write(folder.path(), &both).unwrap();

    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(all());
    rig.rule(|_| ScriptedAnswer::Status(202));
    rig.sync();
    rig.run(rig.rest(seconds(1)));
    let ids = ["http://a/", "http://dls/", "http://b/", "http://c/"].map(|url| rig.ids(url));
    assert_eq!(ids.each_ref().map(|ids| ids.join(" ")), ["2", "1", "2", "1 2"]);
    let tally = |nth: usize| &stream.subscribers[nth].tally;
    assert_eq!((tally(0).stalled.load(Relaxed), tally(0).stalled_position.load(Relaxed)), (1, first));
    assert_eq!((tally(1).dropped_by_reason(), tally(2).delivered.load(Relaxed)), ([0, 0, 0, 0, 1], 2));
    assert_eq!((tally(1).stalled.load(Relaxed), tally(2).stalled.load(Relaxed)), (1, 0));
}

/// One restart is enough, however many subscribers have a filter or a request that the event stops: it is set aside for
/// all of them. A subscriber whose work on it is of another kind gets it.
#[test]
fn event_that_stopped_core_is_set_aside_for_subscribers_alike() {
    let sql = |text: &str| {
        let expression = FilterRule::Sql(filter::cesql::parse(text).unwrap());
        EventFilter::Rules([FilterRule::Not(Box::new(expression))].into())
    };
    let exact = || EventFilter::Exact(vec![("type".into(), "t".into())]);
    // Before the restart every filter matches.
    let all = |unwanted: &str| {
        let with = |name: &str, filter| Subscriber { filter, ..trigger(name, &format!("http://{name}/")) };
        vec![
            with("stalled", sql("type LIKE 'x%'")),
            with("alike", sql("id = '9'")),
            with("unwanted", sql(unwanted)),
            with("exact", exact()),
            with("all", EventFilter::Everything),
        ]
    };
    for (phase, delivered, dropped) in [
        (Phase::Filter, ["2", "2", "", "1 2", "1 2"], [1, 1, 1, 0, 0]),
        (Phase::Request, ["2", "2", "", "2", "2"], [1, 1, 0, 1, 1]),
        (Phase::Reply, ["2", "1 2", "", "1 2", "1 2"], [1, 0, 0, 0, 0]),
    ] {
        let folder = folder();
        let (stream, position) = leave_two_events(folder.path(), all("type = 'x'"));
        let stalled = &stream.subscribers[0];
        let record = StalledEvent {
            stream: "broker/ns/b/1".into(),
            subscriber: stalled.name.to_string(),
            position,
            phase,
            other_subscribers: stalled::others_at_risk(&stream, stalled, phase)
                .map(|one| one.name.to_string())
                .collect(),
        };
        stalled::write(folder.path(), &[record]).unwrap();

        let rig = BrokerFixture::new(folder.path());
        let stream = rig.publish(all("type = 't'"));
        rig.rule(|_| ScriptedAnswer::Status(202));
        rig.sync();
        rig.run(rig.rest(seconds(1)));
        let ids = stream.subscribers.iter().map(|one| rig.ids(&format!("http://{}/", one.name)).join(" "));
        assert_eq!(ids.collect::<Vec<_>>(), delivered, "{phase:?}");
        let counts = stream.subscribers.iter().map(|one| one.tally.dropped_by_reason()[4]);
        assert_eq!(counts.collect::<Vec<_>>(), dropped, "{phase:?}");
    }
}

/// An empty table, as after a start, deletes no events.
#[test]
fn empty_table_at_start_deletes_nothing() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![trigger("t", "http://s/")]);
    rig.rule(|_| ScriptedAnswer::After(seconds(3600), 202));
    rig.run(rig.post("1", "t"));
    rig.end();

    let rig = BrokerFixture::new(folder.path());
    rig.run(rig.rest(seconds(3600)));
    rig.publish_as("broker/ns/other/2", Vec::new());
    rig.sync();
    rig.run(rig.rest(seconds(60)));
    rig.publish(vec![trigger("t", "http://s/")]);
    rig.sync();
    rig.run(rig.rest(seconds(1)));
    assert_eq!(rig.ids("http://s/"), ["1"]);
}

/// EV-RTE-02, EV-RTE-10, EV-RTE-20, EV-DLV-13: whenever the power fails, every event with a 202 is
/// delivered after the restart, and so is the reply of every event that is not delivered again: a cursor
/// never passes an event whose reply is not durable.
#[test]
fn power_cut_loses_no_event_and_no_reply() {
    let (mut cut_short, mut resent_total) = (0, 0);
    for seed in 0..60 {
        let folder = folder();
        let fixture = BrokerFixture::with(folder.path(), &[], seed, FaultProfile::moderate(), options());
        let subscribers = || vec![of_type(trigger("a", "http://a/"), "A"), of_type(trigger("b", "http://b/"), "B")];
        let answer = |call: &RecordedCall| match &*call.url {
            "http://a/" => reply(&format!("1{}", call.id), "B"),
            _ => ScriptedAnswer::Status(202),
        };
        fixture.publish(subscribers());
        fixture.rule(answer);
        let acknowledged = Rc::new(RefCell::new(BTreeSet::new()));
        let (done, rng) = (Rc::clone(&acknowledged), fastrand::Rng::with_seed(seed));
        let mut rng = rng;
        let runtime_ms = rng.u64(1..200);
        let _ = fixture.run(fixture.ring.timeout(Duration::from_millis(runtime_ms), async {
            for n in 1000_u32.. {
                if fixture.post(&n.to_string(), "A").await == 202 {
                    done.borrow_mut().insert(n);
                } else {
                    fixture.rest(seconds(1)).await; // the disk failed: nothing more in this lifetime
                }
            }
        }));
        fixture.simulation.power_cut();
        let first_a = numbers(&fixture.ids("http://a/"));
        let first_b = numbers(&fixture.ids("http://b/"));
        fixture.end();

        let next = BrokerFixture::new(folder.path());
        let stream = next.publish(subscribers());
        next.rule(answer);
        next.sync();
        next.run(next.rest(seconds(120)));
        let again = numbers(&next.ids("http://a/"));
        let replies: BTreeSet<u32> = first_b.union(&numbers(&next.ids("http://b/"))).copied().collect();
        for n in &*acknowledged.borrow() {
            assert!(first_a.contains(n) || again.contains(n), "seed {seed}: event {n} is lost");
            assert!(replies.contains(&(10_000 + n)), "seed {seed}: the reply to {n} is lost");
        }
        assert_eq!(ends(&stream, 0)[4] + ends(&stream, 1)[4], 0, "seed {seed}: nothing is left over");
        cut_short += usize::from(!acknowledged.borrow().is_empty());
        resent_total += again.len();
    }
    assert!(cut_short > 20 && resent_total > 20, "the lives must end in the middle of something");
}

/// DP-OBS-02: a core that took over another's log delivers its events, and records the outcomes there;
/// replies go to its own.
#[test]
fn log_of_removed_core_drains() {
    let (old, new) = (folder(), folder());
    let subscribers = || vec![of_type(trigger("a", "http://a/"), "A"), of_type(trigger("b", "http://b/"), "B")];
    let rig = BrokerFixture::new(old.path());
    rig.publish(subscribers());
    rig.rule(|_| ScriptedAnswer::After(seconds(3600), 202));
    rig.run(async {
        for n in 0..20 {
            rig.post(&n.to_string(), "A").await;
        }
    });
    rig.end();

    let rig = BrokerFixture::with(new.path(), &[old.path()], 1, FaultProfile::calm(), options());
    let stream = rig.publish(subscribers());
    rig.rule(|call| if call.url == "http://a/" { reply("r", "B") } else { ScriptedAnswer::Status(202) });
    rig.sync();
    rig.run(rig.rest(seconds(10)));
    assert_eq!(numbers(&rig.ids("http://a/")), (0..20).collect());
    assert_eq!(rig.calls("http://b/").len(), 20);
    assert_eq!(ends(&stream, 0), [20, 20, 0, 0, 0]);
    assert_eq!((ends(&stream, 1)[0], ends(&stream, 1)[4]), (20, 0)); // the last cursors may not have been durable
    let mut taken = BTreeSet::new();
    each_note(old.path(), |note| {
        if (note.subscriber, note.what, note.status) == ("a", DeliveryOutcome::Replied, 200) {
            taken.insert(note.position);
        }
    });
    assert_eq!(taken.len(), 20);
}
