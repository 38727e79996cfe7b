//! Computes a Revision's status from its instances: values in, values out.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;

use super::error::RevisionError;
use super::images;
use autoscaler::{RevisionState, ScaleStatus};
use types::conditions::ConditionManager;
use types::serving::revision::{
    ACTIVE, CONDITIONS, CONTAINER_HEALTHY, ContainerStatus, RESOURCES_AVAILABLE, Revision, RevisionStatus,
};
use types::shared::{ConditionStatus, Status};

/// The reason of a start that took too long.
const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
/// ... and upstream's words for what that means to requests.
const TIMED_OUT: (&str, &str) = ("TimedOut", "The target could not be activated.");
/// The message of `TOO_LATE` for a program that ended each time.
const GIVEN_UP: &str = "It was not ready within its progress deadline, and is not restarted.";
/// The reason and message of a Revision that is not started.
const UNREACHABLE: (&str, &str) =
    ("Unreachable", "No Route sends to the Revision, and it was never ready: it is not started.");
const DEPLOYING: (&str, &str) = ("Deploying", "Instances are being started.");

#[must_use]
pub fn status(
    revision: &Revision,
    unrunnable: Option<&RevisionError>,
    observed: &ScaleStatus,
    now: Timestamp,
) -> RevisionStatus {
    let mut status = revision.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match unrunnable {
        // A Revision that was well once is not in doubt while its image is looked for.
        Some(why) if why.reason == images::RESOLVING => {
            for kind in [RESOURCES_AVAILABLE, CONTAINER_HEALTHY] {
                if conditions.status_of(kind) != ConditionStatus::True {
                    conditions.mark_unknown(kind, why.reason, &why.message);
                }
            }
            conditions.mark_unknown(ACTIVE, why.reason, &why.message);
        }
        Some(why) if images::is_image_error(why) => {
            conditions.mark_unknown(RESOURCES_AVAILABLE, why.reason, &why.message);
            conditions.mark_false(CONTAINER_HEALTHY, why.reason, &why.message);
            conditions.mark_false(ACTIVE, why.reason, &why.message);
        }
        Some(why) => {
            conditions.mark_false(RESOURCES_AVAILABLE, why.reason, &why.message);
            conditions.mark_unknown(CONTAINER_HEALTHY, why.reason, &why.message);
            conditions.mark_false(ACTIVE, why.reason, &why.message);
        }
        None => mark_observed(&mut conditions, observed),
    }
    let reported = |container: &Container| ContainerStatus {
        name: container.name.clone(),
        image_digest: image_digest(container.image.as_deref().unwrap_or_default()).to_owned(),
    };
    status.container_statuses = revision.spec.containers.iter().map(reported).collect();
    status.init_container_statuses = revision.spec.init_containers.iter().map(reported).collect();
    status.actual_replicas = i32::try_from(observed.actual).ok();
    status.desired_replicas = i32::try_from(observed.desired).ok();
    status.base = Status {
        observed_generation: revision.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

/// The image itself where it is named by its digest. A tag stands for a program of this host, which no registry has.
fn image_digest(image: &str) -> &str {
    if image.contains('@') { image } else { "" }
}

fn mark_observed(conditions: &mut ConditionManager<'_>, observed: &ScaleStatus) {
    match &observed.state {
        RevisionState::Ready => {
            mark_ready(conditions);
            conditions.mark_true(ACTIVE);
        }
        RevisionState::Idle => {
            mark_ready(conditions);
            mark_scaled_to_zero(conditions);
        }
        RevisionState::Pending | RevisionState::Starting => mark_deploying(conditions, observed),
        RevisionState::Unreachable => {
            for kind in [RESOURCES_AVAILABLE, CONTAINER_HEALTHY] {
                if conditions.status_of(kind) != ConditionStatus::True {
                    conditions.mark_unknown(kind, UNREACHABLE.0, UNREACHABLE.1);
                }
            }
            mark_scaled_to_zero(conditions);
        }
        RevisionState::Failed { reason, message } if reason == PROGRESS_DEADLINE_EXCEEDED => {
            conditions.mark_false(RESOURCES_AVAILABLE, reason, message);
            conditions.mark_false(ACTIVE, TIMED_OUT.0, TIMED_OUT.1);
        }
        RevisionState::Failed { reason, message } => {
            // Upstream's words, which its tools and tests look for.
            let message = format!("Container failed with: {message}");
            conditions.mark_false(CONTAINER_HEALTHY, reason, &message);
            conditions.mark_false(ACTIVE, reason, &message);
            if observed.deadline_exceeded {
                conditions.mark_false(
                    RESOURCES_AVAILABLE,
                    PROGRESS_DEADLINE_EXCEEDED,
                    &format!("{GIVEN_UP} {message}"),
                );
                conditions.mark_false(ACTIVE, TIMED_OUT.0, TIMED_OUT.1);
            } else if conditions.status_of(RESOURCES_AVAILABLE) != ConditionStatus::True {
                conditions.mark_unknown(RESOURCES_AVAILABLE, DEPLOYING.0, DEPLOYING.1);
            }
        }
    }
}

/// A Revision that was well once is not in doubt while it wakes up again: it would lose its traffic
/// with every sleep, and all traffic would be lost at a restart of ours.
fn mark_deploying(conditions: &mut ConditionManager<'_>, observed: &ScaleStatus) {
    let with_not_ready_reason = |said: &str| match &observed.not_ready_reason {
        Some(why) => format!("{said} Not ready yet: {why}"),
        None => said.to_owned(),
    };
    for (kind, said) in
        [(RESOURCES_AVAILABLE, DEPLOYING.1.to_owned()), (CONTAINER_HEALTHY, with_not_ready_reason(DEPLOYING.1))]
    {
        if conditions.status_of(kind) != ConditionStatus::True {
            conditions.mark_unknown(kind, DEPLOYING.0, &said);
        }
    }
    let was_healthy =
        [RESOURCES_AVAILABLE, CONTAINER_HEALTHY].iter().all(|k| conditions.status_of(k) == ConditionStatus::True);
    if was_healthy && observed.desired == 0 {
        mark_scaled_to_zero(conditions);
    } else {
        let said = "Requests to the target are being buffered as resources are provisioned.";
        conditions.mark_unknown(ACTIVE, "Queued", &with_not_ready_reason(said));
    }
}

fn mark_ready(conditions: &mut ConditionManager<'_>) {
    conditions.mark_true(RESOURCES_AVAILABLE);
    conditions.mark_true(CONTAINER_HEALTHY);
}

fn mark_scaled_to_zero(conditions: &mut ConditionManager<'_>) {
    conditions.mark_false(ACTIVE, "NoTraffic", "The target is not receiving traffic.");
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::serving::revision_spec::RevisionSpec;
    use types::shared::HasConditions;

    fn observed(state: RevisionState) -> ScaleStatus {
        ScaleStatus {
            actual: 0,
            desired: 0,
            has_burst_capacity: false,
            not_ready_reason: None,
            deadline_exceeded: false,
            state,
        }
    }

    fn after(revision: &Revision, unrunnable: Option<&RevisionError>, state: RevisionState) -> Revision {
        let mut after = revision.clone();
        after.status = Some(status(revision, unrunnable, &observed(state), Timestamp::from_second(1).unwrap()));
        after
    }

    fn verdicts(revision: &Revision) -> [ConditionStatus; 4] {
        ["Ready", RESOURCES_AVAILABLE, CONTAINER_HEALTHY, ACTIVE].map(|kind| revision.condition(kind).unwrap().status)
    }

    use ConditionStatus::{False, True, Unknown};

    /// SRV-REV-15, SRV-REV-16, COND-11, COND-16: from nothing over starting and ready to sleep.
    #[test]
    fn a_revision_becomes_ready_with_its_first_instance_and_stays_so_asleep() {
        let fresh = Revision::new("ns", "a", RevisionSpec::default());
        let starting = after(&fresh, None, RevisionState::Starting);
        assert_eq!(verdicts(&starting), [Unknown; 4]);
        let ready = after(&starting, None, RevisionState::Ready);
        assert_eq!(verdicts(&ready), [True; 4]);
        let asleep = after(&ready, None, RevisionState::Idle);
        assert_eq!(verdicts(&asleep), [True, True, True, False]);
        assert_eq!(asleep.condition(ACTIVE).unwrap().severity, "Info");
    }

    /// SRV-REV-18, SRV-REV-22: a digest is reported if the image is named by one.
    #[test]
    fn an_image_named_by_its_digest_is_its_own_digest() {
        let by_digest = format!("ghcr.io/acme/hello@sha256:{}", "a".repeat(64));
        let images = [("ghcr.io/acme/hello:v1", ""), (by_digest.as_str(), by_digest.as_str())];
        let container =
            |image: &str| Container { image: Some(image.to_owned()), name: "c".into(), ..Default::default() };
        let containers: Vec<_> = images.iter().map(|(image, _)| container(image)).collect();
        let spec = RevisionSpec { init_containers: containers.clone(), containers, ..RevisionSpec::default() };
        let reported = after(&Revision::new("ns", "a", spec), None, RevisionState::Ready).status.unwrap();
        for statuses in [reported.container_statuses, reported.init_container_statuses] {
            let digests: Vec<_> = statuses.iter().map(|status| status.image_digest.as_str()).collect();
            assert_eq!(digests, images.map(|(_, digest)| digest));
        }
    }

    #[test]
    fn waking_up_again_does_not_cost_readiness() {
        let ready = after(&Revision::new("ns", "a", RevisionSpec::default()), None, RevisionState::Ready);
        for state in [RevisionState::Pending, RevisionState::Starting] {
            assert_eq!(verdicts(&after(&ready, None, state))[..3], [True; 3]);
        }
    }

    /// COND-17: what a slow start waits for is reported long before its deadline, and not when it is ready.
    #[test]
    fn not_ready_reason_is_reported() {
        let reported = |state: RevisionState| {
            let mut revision = Revision::new("ns", "a", RevisionSpec::default());
            let not_ready_reason = Some("readiness probe failed: no such command".to_owned());
            let seen = ScaleStatus { not_ready_reason, ..observed(state) };
            revision.status = Some(status(&revision, None, &seen, Timestamp::from_second(1).unwrap()));
            [CONTAINER_HEALTHY, ACTIVE].map(|kind| {
                let found = revision.condition(kind).unwrap();
                (found.status, found.message.ends_with("Not ready yet: readiness probe failed: no such command"))
            })
        };
        assert_eq!(reported(RevisionState::Starting), [(Unknown, true); 2]);
        assert_eq!(reported(RevisionState::Ready), [(True, false); 2]);
    }

    /// COND-10, COND-18: a crash is False with the exit code and the last words.
    #[test]
    fn a_failed_instance_fails_the_revision_with_its_exit_code() {
        let failed = RevisionState::Failed { reason: "ExitCode3".into(), message: "no such flag".into() };
        let fresh = Revision::new("ns", "a", RevisionSpec::default());
        let broken = after(&fresh, None, failed);
        let ready = broken.condition("Ready").unwrap();
        assert_eq!((ready.status, ready.reason.as_str()), (False, "ExitCode3"));
        assert!(ready.message.contains("no such flag"));
        assert_eq!(verdicts(&after(&broken, None, RevisionState::Ready)), [True; 4]);
    }

    /// RT-PROBE-08, COND-10: a start that took too long is reported as upstream does, Active with a separate reason.
    #[test]
    fn a_start_that_takes_too_long_times_out() {
        let fresh = Revision::new("ns", "a", RevisionSpec::default());
        let state = RevisionState::Failed { reason: PROGRESS_DEADLINE_EXCEEDED.into(), message: "too late".into() };
        let late = after(&fresh, None, state);
        assert_eq!(verdicts(&late), [False, False, Unknown, False]);
        let reasons = ["Ready", RESOURCES_AVAILABLE, ACTIVE].map(|kind| late.condition(kind).unwrap().reason.clone());
        assert_eq!(reasons, [PROGRESS_DEADLINE_EXCEEDED, PROGRESS_DEADLINE_EXCEEDED, "TimedOut"]);
    }

    /// RT-PROBE-08, COND-10: a crash loop that is over says why and that nothing is tried any more.
    #[test]
    fn crash_loop_over_its_deadline_says_both() {
        let fresh = Revision::new("ns", "a", RevisionSpec::default());
        let failed = |deadline_exceeded| ScaleStatus {
            deadline_exceeded,
            ..observed(RevisionState::Failed { reason: "ExitCode3".into(), message: "no such flag".into() })
        };
        let mut revision = fresh.clone();
        let mut reported = |deadline_exceeded| {
            let now = Timestamp::from_second(1).unwrap();
            revision.status = Some(status(&revision, None, &failed(deadline_exceeded), now));
            let reason = |kind: &str| revision.condition(kind).unwrap().reason.clone();
            ([RESOURCES_AVAILABLE, CONTAINER_HEALTHY, ACTIVE].map(reason), verdicts(&revision))
        };
        assert_eq!(
            reported(false),
            ([DEPLOYING.0, "ExitCode3", "ExitCode3"].map(Into::into), [False, Unknown, False, False])
        );
        assert_eq!(reported(true), ([PROGRESS_DEADLINE_EXCEEDED, "ExitCode3", "TimedOut"].map(Into::into), [False; 4]));
        assert_eq!(reported(false).0[0], DEPLOYING.0, "it is tried again");
    }

    #[test]
    fn revision_that_is_not_started_says_so() {
        let fresh = Revision::new("ns", "a", RevisionSpec::default());
        let revision = after(&fresh, None, RevisionState::Unreachable);
        assert_eq!(verdicts(&revision), [Unknown, Unknown, Unknown, False]);
        assert_eq!(revision.condition("Ready").unwrap().reason, "Unreachable");
        let ready = after(&fresh, None, RevisionState::Ready);
        assert_eq!(verdicts(&after(&ready, None, RevisionState::Unreachable))[..3], [True; 3]);
    }

    /// AMB-06: without a runner the resources are what is missing.
    #[test]
    fn without_a_runner_resources_are_not_available() {
        let why = RevisionError { reason: "NoRuntime", message: "nothing runs it".into() };
        let revision = after(&Revision::new("ns", "a", RevisionSpec::default()), Some(&why), RevisionState::Pending);
        assert_eq!(revision.condition(RESOURCES_AVAILABLE).unwrap().reason, "NoRuntime");
        assert_eq!(revision.condition("Ready").unwrap().status, False);
    }
}
