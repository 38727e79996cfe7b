//! Revisions that cannot start: how long they are tried, and what ends that.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::limits::{RESTART_MAX, TICK};
use super::tests::{KEY, MOMENT, Stage, at_once, plan};
use super::{Plan, Spare, State};
use crate::runtime::InstanceSpec;
use crate::runtime::scripted::Script;

fn crashing(_: u64) -> Script {
    Script { ready_after: None, crash_after: Some(TICK), ..Script::READY_AT_ONCE }
}

fn hanging(_: u64) -> Script {
    Script { ready_after: None, ..Script::READY_AT_ONCE }
}

/// A program with a progress deadline of so many seconds.
fn with_deadline(seconds: u64, plan: Plan) -> Plan {
    let startup_max = Duration::from_secs(seconds);
    Plan { instance: Arc::new(InstanceSpec { startup_max, ..(*plan.instance).clone() }), ..plan }
}

/// RT-PROBE-08: neither a crash loop nor a program that hangs goes on for ever, whatever its scale.
#[tokio::test(start_paused = true)]
async fn revision_over_its_deadline_is_scaled_to_zero() {
    for script in [crashing as fn(u64) -> Script, hanging] {
        for plan in [plan(), Plan { min: 2, initial: 3, spare: Spare { warm: 1, frozen: 0 }, ..plan() }] {
            let stage = Stage::with(with_deadline(100, plan), script).await;
            sleep(Duration::from_secs(95)).await;
            assert!(stage.fleet.observe(KEY).desired > 0);
            sleep(Duration::from_secs(30)).await;
            let (seen, starts) = (stage.fleet.observe(KEY), stage.runtime.starts().len());
            assert!(seen.deadline_exceeded && matches!(seen.state, State::Failed { .. }), "{seen:?}");
            assert_eq!((seen.desired, stage.runtime.living()), (0, 0));
            sleep(Duration::from_secs(10_000)).await;
            assert_eq!(stage.runtime.starts().len(), starts, "it is not tried any more");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_for_a_revision_over_its_deadline_retries_it() {
    let second_works = |id| if id == 100 { hanging(id) } else { at_once(id) };
    let stage = Stage::with(with_deadline(100, plan()), second_works).await;
    sleep(Duration::from_secs(200)).await;
    assert_eq!((stage.fleet.observe(KEY).deadline_exceeded, stage.runtime.living()), (true, 0));
    stage.fleet.demand(KEY);
    sleep(MOMENT).await;
    let seen = stage.fleet.observe(KEY);
    assert_eq!((seen.state, seen.deadline_exceeded), (State::Ready, false));
}

/// What crashes, or hangs, is stopped when no request can reach it, and is tried at once when one can again.
#[tokio::test(start_paused = true)]
async fn revision_that_loses_its_route_is_not_restarted() {
    let (usual, plan) = (plan, |plan| with_deadline(600, plan));
    for (script, has_failed) in [(crashing as fn(u64) -> Script, true), (hanging, false)] {
        let stage = Stage::with(plan(Plan { min: 1, ..usual() }), script).await;
        sleep(Duration::from_secs(60)).await;
        stage.fleet.declare(KEY, plan(Plan { reachable: false, ..usual() }));
        sleep(TICK).await;
        let starts = stage.runtime.starts().len();
        assert_eq!((stage.fleet.observe(KEY).desired, stage.runtime.living()), (0, 0));
        assert_eq!(stage.state() == State::Unreachable, !has_failed, "{:?}", stage.state());
        sleep(Duration::from_secs(10_000)).await;
        assert_eq!(stage.runtime.starts().len(), starts);

        stage.fleet.declare(KEY, plan(usual()));
        sleep(MOMENT).await;
        assert_eq!(stage.runtime.starts().len(), starts + 1, "a Route needs it again");
    }
}

/// One that was ready is kept from a crash loop in the same way: its minimum ends with its Route.
#[tokio::test(start_paused = true)]
async fn crash_loop_of_a_proven_revision_ends_with_its_route() {
    let first_works = |id| if id == 100 { at_once(id) } else { crashing(id) };
    let stage = Stage::with(with_deadline(100, Plan { min: 1, ..plan() }), first_works).await;
    stage.fleet.restart(KEY, 100);
    sleep(Duration::from_secs(5_000)).await;
    let starts = stage.runtime.starts();
    assert_eq!(
        stage.fleet.observe(KEY).desired,
        1,
        "its Route waits for it, whatever the deadline of a first start"
    );
    let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(longest.is_some_and(|rest| rest >= RESTART_MAX && rest < RESTART_MAX + TICK * 3), "{longest:?}");
    stage.fleet.declare(KEY, Plan { reachable: false, ..plan() });
    sleep(TICK).await;
    let known = stage.runtime.starts().len();
    sleep(Duration::from_secs(5_000)).await;
    assert_eq!((stage.runtime.starts().len(), stage.runtime.living()), (known, 0));
}
