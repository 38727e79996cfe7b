//! Revisions that cannot start: how long they are attempted, and what ends that.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::limits::{RESTART_DELAY_MAX, SAMPLE_INTERVAL};
use super::tests::{AutoscalerFixture, KEY, MOMENT, at_once, plan};
use super::{RevisionPlan, RevisionState, SparePolicy};
use crate::scripted_runtime::InstanceScript;
use runtime::InstanceSpec;

fn crashing(_: u64) -> InstanceScript {
    InstanceScript { ready_after: None, crash_after: Some(SAMPLE_INTERVAL), ..InstanceScript::READY_AT_ONCE }
}

fn hanging(_: u64) -> InstanceScript {
    InstanceScript { ready_after: None, ..InstanceScript::READY_AT_ONCE }
}

/// A program with a progress deadline of so many seconds.
fn with_deadline(seconds: u64, plan: RevisionPlan) -> RevisionPlan {
    let startup_max = Duration::from_secs(seconds);
    RevisionPlan {
        instance: Arc::new(InstanceSpec { startup_timeout: startup_max, ..(*plan.instance).clone() }),
        ..plan
    }
}

/// RT-PROBE-08: neither a crash loop nor a program that hangs continues forever, whatever its scale.
#[tokio::test(start_paused = true)]
async fn revision_over_its_deadline_is_scaled_to_zero() {
    for script in [crashing as fn(u64) -> InstanceScript, hanging] {
        for plan in [
            plan(),
            RevisionPlan { min_scale: 2, initial_scale: 3, spare: SparePolicy { warm: 1, frozen: 0 }, ..plan() },
        ] {
            let stage = AutoscalerFixture::with(with_deadline(100, plan), script).await;
            sleep(Duration::from_secs(95)).await;
            assert!(stage.autoscaler.status(KEY).desired > 0);
            sleep(Duration::from_secs(30)).await;
            let (seen, starts) = (stage.autoscaler.status(KEY), stage.runtime.starts().len());
            assert!(seen.deadline_exceeded && matches!(seen.state, RevisionState::Failed { .. }), "{seen:?}");
            assert_eq!((seen.desired, stage.runtime.living()), (0, 0));
            sleep(Duration::from_secs(10_000)).await;
            assert_eq!(stage.runtime.starts().len(), starts, "it is not tried any more");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_for_a_revision_over_its_deadline_retries_it() {
    let second_works = |id| if id == 100 { hanging(id) } else { at_once(id) };
    let stage = AutoscalerFixture::with(with_deadline(100, plan()), second_works).await;
    sleep(Duration::from_secs(200)).await;
    assert_eq!((stage.autoscaler.status(KEY).deadline_exceeded, stage.runtime.living()), (true, 0));
    stage.autoscaler.record_demand(KEY);
    sleep(MOMENT).await;
    let seen = stage.autoscaler.status(KEY);
    assert_eq!((seen.state, seen.deadline_exceeded), (RevisionState::Ready, false));
}

/// A crashing or hanging revision is stopped when no request can reach it, and is started at once when one can again.
#[tokio::test(start_paused = true)]
async fn revision_that_loses_its_route_is_not_restarted() {
    let (usual, plan) = (plan, |plan| with_deadline(600, plan));
    for (script, has_failed) in [(crashing as fn(u64) -> InstanceScript, true), (hanging, false)] {
        let stage = AutoscalerFixture::with(plan(RevisionPlan { min_scale: 1, ..usual() }), script).await;
        sleep(Duration::from_secs(60)).await;
        stage.autoscaler.declare(KEY, plan(RevisionPlan { reachable: false, ..usual() }));
        sleep(SAMPLE_INTERVAL).await;
        let starts = stage.runtime.starts().len();
        assert_eq!((stage.autoscaler.status(KEY).desired, stage.runtime.living()), (0, 0));
        assert_eq!(stage.state() == RevisionState::Unreachable, !has_failed, "{:?}", stage.state());
        sleep(Duration::from_secs(10_000)).await;
        assert_eq!(stage.runtime.starts().len(), starts);

        stage.autoscaler.declare(KEY, plan(usual()));
        sleep(MOMENT).await;
        assert_eq!(stage.runtime.starts().len(), starts + 1, "a Route needs it again");
    }
}

/// One that was ready is kept from a crash loop in the same way: its minimum ends with its Route.
#[tokio::test(start_paused = true)]
async fn crash_loop_of_a_proven_revision_ends_with_its_route() {
    let first_works = |id| if id == 100 { at_once(id) } else { crashing(id) };
    let stage = AutoscalerFixture::with(with_deadline(100, RevisionPlan { min_scale: 1, ..plan() }), first_works).await;
    stage.autoscaler.restart_instance(KEY, 100);
    sleep(Duration::from_secs(5_000)).await;
    let starts = stage.runtime.starts();
    assert_eq!(
        stage.autoscaler.status(KEY).desired,
        1,
        "its Route waits for it, whatever the deadline of a first start"
    );
    let longest = starts.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(
        longest.is_some_and(|rest| rest >= RESTART_DELAY_MAX && rest < RESTART_DELAY_MAX + SAMPLE_INTERVAL * 3),
        "{longest:?}"
    );
    stage.autoscaler.declare(KEY, RevisionPlan { reachable: false, ..plan() });
    sleep(SAMPLE_INTERVAL).await;
    let known = stage.runtime.starts().len();
    sleep(Duration::from_secs(5_000)).await;
    assert_eq!((stage.runtime.starts().len(), stage.runtime.living()), (known, 0));
}
