//! The work that one event causes for many subscribers is spread over turns of the core.

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
