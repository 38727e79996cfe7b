//! Spare instances, with scripted instances in a time that only the test advances.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::sleep;

use super::limits::{DRAIN_CHECK_INTERVAL, SAMPLE_INTERVAL};
use super::tests::{AutoscalerFixture, KEY, MOMENT, at_once, plan};
use super::{RevisionPlan, RevisionState, SparePolicy};
use crate::scripted_runtime::{InstanceScript, ScriptedCall};

const IDLE: Duration = Duration::from_secs(62);

fn frozen(count: u32) -> RevisionPlan {
    RevisionPlan { spare: SparePolicy { warm: 0, frozen: count }, ..plan() }
}

fn count(stage: &AutoscalerFixture, wanted: impl Fn(&ScriptedCall) -> bool) -> usize {
    stage.runtime.call_times(wanted).len()
}

fn thaws(stage: &AutoscalerFixture) -> usize {
    count(stage, |note| matches!(note, ScriptedCall::Thawed(_)))
}

#[tokio::test(start_paused = true)]
async fn an_idle_instance_is_frozen_counts_as_none_and_comes_back_without_a_start() {
    let stage = AutoscalerFixture::with(frozen(1), at_once).await;
    let id = stage.endpoints()[0].id;
    sleep(IDLE).await;
    let seen = stage.autoscaler.instances(KEY);
    assert_eq!((seen.len(), seen[0].phase), (1, super::InstancePhase::Frozen));
    let observed = stage.autoscaler.status(KEY);
    assert_eq!((observed.actual, observed.desired, observed.state), (0, 0, RevisionState::Idle));
    assert_eq!((stage.endpoints().len(), stage.runtime.living()), (0, 1));
    assert_eq!(stage.sink.load.frozen.load(Relaxed), 1);
    sleep(IDLE * 10).await;
    assert_eq!(stage.runtime.living(), 1, "it stays");

    stage.autoscaler.record_demand(KEY);
    sleep(MOMENT).await;
    assert_eq!((stage.endpoints()[0].id, thaws(&stage), stage.runtime.starts().len()), (id, 1, 1));
    assert_eq!((stage.state(), stage.sink.load.frozen.load(Relaxed)), (RevisionState::Ready, 0));
    sleep(IDLE).await;
    assert_eq!(stage.endpoints().len(), 0, "and goes to sleep again");
    assert_eq!(count(&stage, |note| *note == ScriptedCall::Frozen(id)), 2);
}

#[tokio::test(start_paused = true)]
async fn as_many_are_frozen_as_may_be_and_more_are_started_when_they_are_not_enough() {
    let stage = AutoscalerFixture::with(RevisionPlan { target: 1.0, ..frozen(2) }, at_once).await;
    stage.sink.load.waiting.store(4, Relaxed);
    stage.autoscaler.record_demand(KEY);
    sleep(SAMPLE_INTERVAL).await;
    assert_eq!(stage.endpoints().len(), 4);
    stage.sink.load.waiting.store(0, Relaxed);
    sleep(IDLE * 3).await;
    assert_eq!((stage.endpoints().len(), stage.runtime.living()), (0, 2));

    stage.sink.load.waiting.store(3, Relaxed);
    stage.autoscaler.record_demand(KEY);
    sleep(SAMPLE_INTERVAL).await;
    assert_eq!((stage.endpoints().len(), thaws(&stage), stage.runtime.starts().len()), (3, 2, 5));
}

#[tokio::test(start_paused = true)]
async fn a_frozen_instance_ends_with_its_program_its_revision_or_its_permission() {
    let other = || {
        let mut plan = frozen(1);
        Arc::make_mut(&mut plan.instance).command.push("x".into());
        plan
    };
    for plan in [frozen(0), other(), RevisionPlan { reachable: false, ..frozen(1) }] {
        let stage = AutoscalerFixture::with(frozen(1), at_once).await;
        sleep(IDLE).await;
        stage.autoscaler.declare(KEY, plan);
        sleep(MOMENT).await;
        assert_eq!((stage.runtime.living(), stage.state()), (0, RevisionState::Idle));
    }
    let stage = AutoscalerFixture::with(frozen(1), at_once).await;
    sleep(IDLE).await;
    stage.autoscaler.retire(KEY);
    sleep(MOMENT).await;
    assert_eq!(stage.runtime.living(), 0);
    let stage = AutoscalerFixture::with(frozen(1), at_once).await;
    sleep(IDLE).await;
    stage.autoscaler.shutdown().await;
    assert_eq!(stage.runtime.living(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_dies_in_its_sleep_is_no_failure_and_the_next_request_starts_another() {
    let dies = |id| match id {
        100 => InstanceScript { crash_after: Some(IDLE * 2), ..InstanceScript::READY_AT_ONCE },
        _ => InstanceScript::READY_AT_ONCE,
    };
    let stage = AutoscalerFixture::with(frozen(1), dies).await;
    sleep(IDLE * 3).await;
    assert_eq!((stage.runtime.living(), stage.state()), (0, RevisionState::Idle));
    stage.autoscaler.record_demand(KEY);
    sleep(MOMENT).await;
    assert_eq!((stage.endpoints()[0].id, thaws(&stage)), (101, 0));
}

#[tokio::test(start_paused = true)]
async fn a_request_inside_keeps_an_instance_from_freezing() {
    let stage = AutoscalerFixture::with(frozen(1), at_once).await;
    let guard = stage.endpoints()[0].load.try_enter(0).unwrap();
    sleep(IDLE * 2).await;
    assert_eq!(count(&stage, |note| matches!(note, ScriptedCall::Frozen(_))), 0);
    drop(guard);
    sleep(DRAIN_CHECK_INTERVAL * 2).await;
    assert_eq!(count(&stage, |note| matches!(note, ScriptedCall::Frozen(_))), 1);
}

#[tokio::test(start_paused = true)]
async fn warm_spares_run_beyond_what_is_wanted_and_within_the_maximum() {
    let warm = RevisionPlan { spare: SparePolicy { warm: 2, frozen: 0 }, max_scale: 4, target: 1.0, ..plan() };
    let stage = AutoscalerFixture::with(warm.clone(), at_once).await;
    sleep(IDLE * 5).await;
    assert_eq!((stage.endpoints().len(), stage.autoscaler.status(KEY).desired), (2, 2), "at rest");
    stage.sink.load.in_flight.store(1, Relaxed);
    stage.autoscaler.record_demand(KEY);
    sleep(SAMPLE_INTERVAL * 3).await;
    assert_eq!(stage.endpoints().len(), 3);
    stage.sink.load.in_flight.store(9, Relaxed);
    sleep(IDLE).await;
    assert_eq!(stage.endpoints().len(), 4);
    stage.sink.load.in_flight.store(0, Relaxed);
    stage.autoscaler.declare(KEY, RevisionPlan { reachable: false, ..warm });
    sleep(IDLE * 5).await;
    assert_eq!(stage.runtime.living(), 0, "nobody can ask for it");
}
