//! Spares, with scripted instances in a time that only the test moves.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::sleep;

use super::limits::{DRAIN_STEP, TICK};
use super::tests::{KEY, MOMENT, Stage, at_once, plan};
use super::{Plan, Spare, State};
use crate::runtime::scripted::{Note, Script};

const IDLE: Duration = Duration::from_secs(62);

fn frozen(count: u32) -> Plan {
    Plan { spare: Spare { warm: 0, frozen: count }, ..plan() }
}

fn count(stage: &Stage, wanted: impl Fn(&Note) -> bool) -> usize {
    stage.runtime.times(wanted).len()
}

fn thaws(stage: &Stage) -> usize {
    count(stage, |note| matches!(note, Note::Thawed(_)))
}

#[tokio::test(start_paused = true)]
async fn an_idle_instance_is_frozen_counts_as_none_and_comes_back_without_a_start() {
    let stage = Stage::with(frozen(1), at_once).await;
    let id = stage.endpoints()[0].id;
    sleep(IDLE).await;
    let seen = stage.fleet.instances(KEY);
    assert_eq!((seen.len(), seen[0].stage), (1, super::Stage::Frozen));
    let observed = stage.fleet.observe(KEY);
    assert_eq!((observed.actual, observed.desired, observed.state), (0, 0, State::Idle));
    assert_eq!((stage.endpoints().len(), stage.runtime.living()), (0, 1));
    assert_eq!(stage.sink.load.frozen.load(Relaxed), 1);
    sleep(IDLE * 10).await;
    assert_eq!(stage.runtime.living(), 1, "it stays");

    stage.fleet.demand(KEY);
    sleep(MOMENT).await;
    assert_eq!((stage.endpoints()[0].id, thaws(&stage), stage.runtime.starts().len()), (id, 1, 1));
    assert_eq!((stage.state(), stage.sink.load.frozen.load(Relaxed)), (State::Ready, 0));
    sleep(IDLE).await;
    assert_eq!(stage.endpoints().len(), 0, "and goes to sleep again");
    assert_eq!(count(&stage, |note| *note == Note::Frozen(id)), 2);
}

#[tokio::test(start_paused = true)]
async fn as_many_are_frozen_as_may_be_and_more_are_started_when_they_are_not_enough() {
    let stage = Stage::with(Plan { target: 1.0, ..frozen(2) }, at_once).await;
    stage.sink.load.waiting.store(4, Relaxed);
    stage.fleet.demand(KEY);
    sleep(TICK).await;
    assert_eq!(stage.endpoints().len(), 4);
    stage.sink.load.waiting.store(0, Relaxed);
    sleep(IDLE * 3).await;
    assert_eq!((stage.endpoints().len(), stage.runtime.living()), (0, 2));

    stage.sink.load.waiting.store(3, Relaxed);
    stage.fleet.demand(KEY);
    sleep(TICK).await;
    assert_eq!((stage.endpoints().len(), thaws(&stage), stage.runtime.starts().len()), (3, 2, 5));
}

#[tokio::test(start_paused = true)]
async fn a_frozen_instance_ends_with_its_program_its_revision_or_its_permission() {
    let other = || {
        let mut plan = frozen(1);
        Arc::make_mut(&mut plan.instance).command.push("x".into());
        plan
    };
    for plan in [frozen(0), other(), Plan { reachable: false, ..frozen(1) }] {
        let stage = Stage::with(frozen(1), at_once).await;
        sleep(IDLE).await;
        stage.fleet.declare(KEY, plan);
        sleep(MOMENT).await;
        assert_eq!((stage.runtime.living(), stage.state()), (0, State::Idle));
    }
    let stage = Stage::with(frozen(1), at_once).await;
    sleep(IDLE).await;
    stage.fleet.retire(KEY);
    sleep(MOMENT).await;
    assert_eq!(stage.runtime.living(), 0);
    let stage = Stage::with(frozen(1), at_once).await;
    sleep(IDLE).await;
    stage.fleet.shutdown().await;
    assert_eq!(stage.runtime.living(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_dies_in_its_sleep_is_no_failure_and_the_next_request_starts_another() {
    let dies = |id| match id {
        100 => Script { crash_after: Some(IDLE * 2), ..Script::READY_AT_ONCE },
        _ => Script::READY_AT_ONCE,
    };
    let stage = Stage::with(frozen(1), dies).await;
    sleep(IDLE * 3).await;
    assert_eq!((stage.runtime.living(), stage.state()), (0, State::Idle));
    stage.fleet.demand(KEY);
    sleep(MOMENT).await;
    assert_eq!((stage.endpoints()[0].id, thaws(&stage)), (101, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_inside_keeps_an_instance_from_freezing() {
    let stage = Stage::with(frozen(1), at_once).await;
    let guard = stage.endpoints()[0].load.try_enter(0).unwrap();
    sleep(IDLE * 2).await;
    assert_eq!(count(&stage, |note| matches!(note, Note::Frozen(_))), 0);
    drop(guard);
    sleep(DRAIN_STEP * 2).await;
    assert_eq!(count(&stage, |note| matches!(note, Note::Frozen(_))), 1);
}

#[tokio::test(start_paused = true)]
async fn warm_spares_run_beyond_what_is_wanted_and_within_the_maximum() {
    let warm = Plan { spare: Spare { warm: 2, frozen: 0 }, max: 4, target: 1.0, ..plan() };
    let stage = Stage::with(warm.clone(), at_once).await;
    sleep(IDLE * 5).await;
    assert_eq!((stage.endpoints().len(), stage.fleet.observe(KEY).desired), (2, 2), "at rest");
    stage.sink.load.in_flight.store(1, Relaxed);
    stage.fleet.demand(KEY);
    sleep(TICK * 3).await;
    assert_eq!(stage.endpoints().len(), 3);
    stage.sink.load.in_flight.store(9, Relaxed);
    sleep(IDLE).await;
    assert_eq!(stage.endpoints().len(), 4);
    stage.sink.load.in_flight.store(0, Relaxed);
    stage.fleet.declare(KEY, Plan { reachable: false, ..warm });
    sleep(IDLE * 5).await;
    assert_eq!(stage.runtime.living(), 0, "nobody can ask for it");
}
