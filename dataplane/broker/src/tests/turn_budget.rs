//! The work that one event causes for many subscribers is spread over turns of the core.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use contract::filter::cesql;
use contract::table::FilterRule;
use ring::TURN_STEPS_MAX;

use super::*;

const SUBSCRIBERS: usize = 200;

/// The largest attributes that the fixture's broker accepts in an event with some data.
const SUBJECT_BYTES: usize = 90_000;

/// Counts polls of another task until `until` holds, and turns of the loop.
async fn polls_and_turns(rig: &BrokerFixture, until: impl Fn() -> bool) -> (usize, u64) {
    let turns = rig.ring.heartbeat().turns();
    let mut polls = 0;
    while !until() {
        rig.ring.yield_now().await;
        polls += 1;
        assert!(polls < 1_000_000, "it never ends");
    }
    (polls, rig.ring.heartbeat().turns() - turns)
}

/// Polls a request for the first time.
async fn begin(mut request: Pin<&mut impl Future<Output = u16>>) {
    let polled = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
    assert!(polled.is_pending());
}

async fn post_large(rig: &BrokerFixture) -> u16 {
    let subject = "a".repeat(SUBJECT_BYTES);
    let event = format!(r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"{subject}"}}"#);
    let headers = [("content-type", "application/cloudevents+json")];
    rig.request("POST", PATH, &headers, event.as_bytes()).await.status
}

fn with_filter(n: usize, text: &str) -> Subscriber {
    let filter = EventFilter::Rules([FilterRule::Sql(cesql::parse(text).unwrap())].into());
    Subscriber { filter, ..trigger(&format!("t{n}"), &format!("http://s{n}/")) }
}

/// EV-DLV-13: however many filters read a large event, the core turns in between, and no subscriber misses or doubles it.
#[test]
fn filters_of_many_subscribers_take_many_turns() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    // Each searches the subject; one in ten matches.
    let filter = |n: usize| if n.is_multiple_of(10) { "subject LIKE '%a'" } else { "subject LIKE '%a_b%'" };
    let stream = rig.publish((0..SUBSCRIBERS).map(|n| with_filter(n, filter(n))).collect());
    let (polls, turns) = rig.run(async {
        rig.sync();
        rig.rest(seconds(1)).await;
        assert_eq!(post_large(&rig).await, 202);
        let settled = || stream.subscribers.iter().map(|one| one.tally.delivered.load(Relaxed)).sum::<u64>();
        polls_and_turns(&rig, || settled() == SUBSCRIBERS as u64 / 10).await
    });
    // A step for each character and filter at least.
    let expected = SUBSCRIBERS * 9 / 10 * SUBJECT_BYTES / TURN_STEPS_MAX;
    assert!(polls >= expected && turns >= expected as u64, "{polls} polls, {turns} turns of {expected}");
    for n in 0..SUBSCRIBERS {
        assert_eq!(rig.calls(&format!("http://s{n}/")).len(), usize::from(n.is_multiple_of(10)), "{n}");
    }
}

/// Subscribers that read the log by themselves filter and encode a large event each: in many turns too.
#[test]
fn backlog_of_many_subscribers_takes_many_turns() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let (polls, turns) = rig.run(async {
        rig.publish(Vec::new());
        assert_eq!(post_large(&rig).await, 202);
        let late = |n| Subscriber { initial_offset: InitialOffset::Earliest, ..with_filter(n, "subject LIKE '%a'") };
        let stream = rig.publish((0..SUBSCRIBERS).map(late).collect());
        rig.sync();
        let delivered = || stream.subscribers.iter().map(|one| one.tally.delivered.load(Relaxed)).sum::<u64>();
        polls_and_turns(&rig, || delivered() == SUBSCRIBERS as u64).await
    });
    let expected = SUBSCRIBERS * SUBJECT_BYTES / crate::limits::ENCODED_BYTES_PER_STEP / TURN_STEPS_MAX;
    assert!(polls >= expected && turns >= expected as u64, "{polls} polls, {turns} turns of {expected}");
    for n in 0..SUBSCRIBERS {
        assert_eq!(rig.calls(&format!("http://s{n}/")).len(), 1, "{n}");
    }
}

/// A Trigger that is deleted while its filters wait for the next turn gets nothing, and the others everything.
#[test]
fn subscribers_may_change_between_turns_of_one_event() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let all = |count: usize| (0..count).map(|n| with_filter(n, "subject LIKE '%a_b%' OR id = '1'")).collect();
    rig.publish(all(SUBSCRIBERS));
    rig.run(async {
        rig.sync();
        rig.rest(seconds(1)).await;
        assert_eq!(post_large(&rig).await, 202);
        for _ in 0..5 {
            rig.ring.yield_now().await;
        }
        rig.publish(all(SUBSCRIBERS / 2));
        rig.sync();
        rig.rest(seconds(10)).await;
        for n in 0..SUBSCRIBERS / 2 {
            assert_eq!(rig.calls(&format!("http://s{n}/")).len(), 1, "{n}");
        }
    });
}

/// EV-DLV-13: a Trigger that is deleted before its worker had a turn is not offered the events that came meanwhile.
#[test]
fn subscriber_deleted_while_it_waits_is_offered_nothing() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    let stream = rig.publish(vec![trigger("t", "http://s/")]);
    rig.run(async {
        rig.ring.charge(TURN_STEPS_MAX);
        rig.sync();
        rig.ring.yield_now().await; // the worker waits for budget
        let mut copy = pin!(rig.copy(b"appended, and not durable yet"));
        begin(copy.as_mut()).await;
        rig.publish(Vec::new());
        rig.sync();
        assert_eq!(copy.await, 202);
        rig.rest(seconds(1)).await;
    });
    assert_eq!(stream.subscribers[0].tally.offered.load(Relaxed), 0);
    assert!(rig.calls("http://s/").is_empty());
}

/// EV-TRG-12: a request that waits while another table is published does not bring the older one back.
#[test]
fn request_that_waits_keeps_newer_table_in_effect() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.run(async {
        rig.publish(vec![trigger("old", "http://old/")]);
        rig.sync();
        rig.rest(seconds(1)).await;
        rig.ring.charge(TURN_STEPS_MAX);
        let mut post = pin!(rig.post("1", "t"));
        begin(post.as_mut()).await;
        rig.publish(vec![trigger("new", "http://new/")]);
        rig.sync();
        assert_eq!(post.await, 202);
        rig.rest(seconds(1)).await;
    });
    assert_eq!((rig.ids("http://old/").len(), rig.ids("http://new/").len()), (0, 1));
}

/// A request to an ordered stream never waits for budget, or a later one would overtake it.
#[test]
fn requests_to_ordered_stream_keep_order_without_budget() {
    let folder = folder();
    let rig = BrokerFixture::new(folder.path());
    rig.in_order.set(true);
    rig.run(async {
        rig.publish(vec![trigger("t", "http://s/")]);
        rig.sync();
        rig.rest(seconds(1)).await;
        rig.ring.charge(TURN_STEPS_MAX);
        let (mut first, mut second) = (pin!(rig.post("1", "t")), pin!(rig.post("2", "t")));
        begin(first.as_mut()).await;
        let before = rig.ring.heartbeat().turns();
        while rig.ring.heartbeat().turns() == before {
            rig.ring.yield_now().await;
        }
        begin(second.as_mut()).await;
        assert_eq!((first.await, second.await), (202, 202));
        rig.rest(seconds(1)).await;
    });
    assert_eq!(rig.ids("http://s/"), ["1", "2"]);
}
