//! Events on hold because an object that their owner refers to is missing.

use contract::load::SubscriberCounters;

use super::*;

/// A subscriber of `http://s/`, some of whose events are on hold.
fn holding(hold: HoldReason) -> Subscriber {
    Subscriber { hold, ..trigger("t", "http://s/") }
}

/// EV-TRG-11, EV-SUB-17: nothing is sent to the old target; events that arrive meanwhile are delivered when
/// the new one is known.
#[test]
fn subscriber_without_target_waits_and_misses_nothing() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let tally = Arc::new(SubscriberCounters::default());
    let to = |url, hold| Subscriber { hold, tally: Arc::clone(&tally), ..trigger("t", url) };
    rig.publish(vec![to("http://old/", HoldReason::Nothing)]);
    rig.rule(|_| ScriptedAnswer::Status(202));
    rig.run(async {
        rig.post("1", "t").await;
        rig.rest(seconds(1)).await;
        let stream = rig.publish(vec![to("http://old/", HoldReason::Everything)]);
        for id in ["2", "3"] {
            assert_eq!(rig.post(id, "t").await, 202);
        }
        rig.rest(seconds(60)).await;
        assert_eq!((rig.ids("http://old/"), ends(&stream, 0)), (vec!["1".to_owned()], [1, 0, 0, 0, 2]));

        rig.publish(vec![to("http://new/", HoldReason::Nothing)]);
        rig.sync();
        rig.rest(seconds(1)).await;
        assert_eq!((rig.ids("http://new/"), rig.calls("http://old/").len()), (vec!["2".into(), "3".into()], 1));
        assert_eq!(ends(&stream, 0), [3, 0, 0, 0, 0]);
    });
}

/// EV-TRG-11: an event that is being retried continues at the new target.
#[test]
fn held_retry_goes_to_new_target() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![trigger("t", "http://old/")]);
    rig.rule(|call| ScriptedAnswer::Status(if call.url == "http://old/" { 503 } else { 202 }));
    rig.run(async {
        rig.post("1", "t").await;
        rig.rest(Duration::from_millis(500)).await;
        rig.publish(vec![Subscriber { hold: HoldReason::Everything, ..trigger("t", "http://old/") }]);
        rig.sync();
        rig.rest(seconds(60)).await;
        assert_eq!(rig.calls("http://old/").len(), 1);
        rig.publish(vec![trigger("t", "http://new/")]);
        rig.sync();
        rig.rest(seconds(1)).await;
        assert_eq!(rig.ids("http://new/"), ["1"]);
    });
}

/// EV-OBJ-46, AMB-30: a configured but missing sink is no reason to drop an event; the next ones are not
/// delayed.
#[test]
fn dead_letter_waits_for_missing_sink() {
    for (hold, sink, dead_letters, end) in [
        (HoldReason::Nothing, Some("http://dls/"), vec!["1".to_owned()], [1, 0, 1, 0, 0]),
        (HoldReason::Nothing, None, vec![], [1, 0, 0, 1, 0]),
    ] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let tally = Arc::clone(&rig.publish(vec![holding(HoldReason::DeadLetters)]).subscribers[0].tally);
        rig.rule(|call| ScriptedAnswer::Status(if call.url == "http://s/" && call.id == "1" { 400 } else { 202 }));
        rig.run(async {
            rig.post("1", "t").await;
            rig.post("2", "t").await;
            rig.rest(seconds(60)).await;
            assert_eq!(rig.ids("http://s/"), ["1", "2"], "it is not asked again and again");
            assert_eq!(tally.pending(), 1);

            let found = Subscriber { dead_letter: sink.map(target), tally: Arc::clone(&tally), ..holding(hold) };
            let stream = rig.publish(vec![found]);
            rig.sync();
            rig.rest(seconds(1)).await;
            assert_eq!((rig.ids("http://dls/"), ends(&stream, 0)), (dead_letters, end));
        });
    }
}

/// EV-OBJ-46: a sink may come back while the last attempt is in flight.
#[test]
fn sink_returning_during_last_attempt_gets_dead_letter() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.publish(vec![holding(HoldReason::DeadLetters)]);
    let ten = seconds(10);
    rig.rule(
        move |call| {
            if call.url == "http://s/" { ScriptedAnswer::After(ten, 503) } else { ScriptedAnswer::Status(202) }
        },
    );
    rig.run(async {
        rig.post("1", "t").await;
        rig.rest(seconds(25)).await; // in the third attempt of 10 s
        let found = Subscriber { dead_letter: Some(target("http://dls/")), ..holding(HoldReason::Nothing) };
        rig.publish(vec![found]);
        rig.sync();
        rig.rest(seconds(20)).await;
        assert_eq!(rig.ids("http://dls/"), ["1"]);
    });
}
