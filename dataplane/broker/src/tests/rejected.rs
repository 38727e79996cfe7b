//! Our own streams that reject our own deliveries: nothing is lost.

use contract::table::DeliveryTarget;

use super::*;
use crate::limits::REFUSED_RETRY_EVERY;

const OWN: &str = "http://own/brokers/ns/other";

fn own_stream() -> DeliveryTarget {
    DeliveryTarget { is_stream: true, ..target(OWN) }
}

/// Answers the first requests to our own stream with these statuses, and all others with 202.
fn refuse(rig: &BrokerFixture, statuses: &'static [u16]) {
    let mut left = statuses.iter();
    rig.rule(move |call| match call.url.as_str() {
        OWN => ScriptedAnswer::Status(left.next().copied().unwrap_or(202)),
        _ => ScriptedAnswer::Status(202),
    });
}

#[test]
fn own_stream_that_rejects_gets_event_later() {
    for (has_sink, statuses) in [(false, &[401, 403, 401, 403, 401][..]), (true, &[401, 401, 401, 401, 401][..])] {
        let folder = folder();
        let rig = BrokerFixture::new(folder.path());
        let mut subscriber = trigger("t", OWN);
        subscriber.target = own_stream();
        subscriber.delivery.retries_max = 0;
        subscriber.dead_letter = has_sink.then(|| target("http://dls/"));
        let stream = rig.publish(vec![subscriber]);
        refuse(&rig, statuses);
        rig.run(async {
            assert_eq!(rig.post("1", "t").await, 202);
            rig.rest(2 * REFUSED_RETRY_EVERY).await;
            assert!((2..=3).contains(&rig.calls(OWN).len()), "not at once again");
            rig.rest(20 * REFUSED_RETRY_EVERY).await;
        });
        assert_eq!((rig.calls(OWN).len(), rig.calls("http://dls/").len()), (6, 0));
        assert_eq!(ends(&stream, 0), [1, 0, 0, 0, 0]);
    }
}

/// A configured dead letter sink gets events that a policy rejects.
#[test]
fn own_stream_403_goes_to_dead_letter_sink() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut subscriber = trigger("t", OWN);
    (subscriber.target, subscriber.dead_letter) = (own_stream(), Some(target("http://dls/")));
    let stream = rig.publish(vec![subscriber]);
    refuse(&rig, &[403]);
    rig.run(async {
        assert_eq!(rig.post("1", "t").await, 202);
        rig.rest(seconds(60)).await;
    });
    assert_eq!((rig.calls(OWN).len(), rig.calls("http://dls/").len()), (1, 1));
    assert_eq!(ends(&stream, 0), [0, 0, 1, 0, 0]);
}

#[test]
fn own_dead_letter_sink_401_is_retried_later() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let mut subscriber = trigger("t", "http://s/");
    (subscriber.dead_letter, subscriber.delivery.retries_max) = (Some(own_stream()), 0);
    let stream = rig.publish(vec![subscriber]);
    let mut refusals = [401, 403, 401].into_iter();
    rig.rule(move |call| match call.url.as_str() {
        OWN => ScriptedAnswer::Status(refusals.next().unwrap_or(202)),
        _ => ScriptedAnswer::Status(500),
    });
    rig.run(async {
        assert_eq!(rig.post("1", "t").await, 202);
        rig.rest(20 * REFUSED_RETRY_EVERY).await;
    });
    assert_eq!(rig.calls(OWN).len(), 4);
    assert_eq!(ends(&stream, 0), [0, 0, 1, 0, 0]);
}
