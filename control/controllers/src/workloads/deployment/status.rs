//! How a Deployment is: values in, values out. The words are those that `kubectl rollout status` reads.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::rollout::RolloutLimits;
use types::shared::name;
use types::workloads::deployment::PROGRESS_DEADLINE_SECONDS;

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const COMPLETE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";

/// The status, and when the next reconcile is due without an event. `made` is the set that was just created.
pub(super) fn status(
    deployment: &Deployment,
    current: Option<&ReplicaSet>,
    others: &[ReplicaSet],
    made: Option<&str>,
    now: Timestamp,
) -> (DeploymentStatus, Option<Duration>) {
    let spec = deployment.spec.clone().unwrap_or_default();
    let limits = RolloutLimits::of(&spec);
    let all = || current.into_iter().chain(others);
    let sum = |count: fn(&ReplicaSet) -> Option<i32>| all().filter_map(count).sum::<i32>();
    let replicas = sum(|set| set.status.as_ref().map(|status| status.replicas));
    let ready = sum(|set| set.status.as_ref()?.ready_replicas);
    let available = sum(|set| set.status.as_ref()?.available_replicas);
    let updated = current.and_then(|set| set.status.as_ref()).map_or(0, |status| status.replicas);
    let before = deployment.status.clone().unwrap_or_default();
    let old = before.conditions.unwrap_or_default();
    let mut conditions = Vec::new();
    let is_available = available >= limits.replicas - limits.unavailable;
    conditions.push(condition(
        &old,
        AVAILABLE,
        now,
        match is_available {
            true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.".to_owned()),
            false => {
                ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.".to_owned())
            }
        },
    ));
    let is_complete = updated == limits.replicas && replicas == limits.replicas && available == limits.replicas;
    let has_moved = (before.replicas, before.updated_replicas, before.available_replicas)
        != (Some(replicas), Some(updated), Some(available));
    let deadline = Duration::from_secs(
        u64::try_from(spec.progress_deadline_seconds.unwrap_or(PROGRESS_DEADLINE_SECONDS)).unwrap_or(0),
    );
    let set = current.map(|set| name(&set.metadata)).unwrap_or_default();
    let (mut progress, look_again) = match () {
        () if spec.paused == Some(true) => {
            let paused = ("Unknown", "DeploymentPaused", "Deployment is paused".to_owned());
            (condition(&old, PROGRESSING, now, paused), None)
        }
        () if is_complete => {
            let why = format!("ReplicaSet \"{set}\" has successfully progressed.");
            (condition(&old, PROGRESSING, now, ("True", COMPLETE, why)), None)
        }
        () => progressing(&old, (set, made, has_moved), deadline, now),
    };
    if is_complete && has_moved {
        progress.last_update_time = Some(Time(now));
    }
    conditions.push(progress);
    let status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: Some(replicas),
        updated_replicas: Some(updated),
        ready_replicas: Some(ready),
        available_replicas: Some(available),
        unavailable_replicas: Some((replicas.max(limits.replicas) - available).max(0)),
        conditions: Some(conditions),
        collision_count: before.collision_count,
        ..DeploymentStatus::default()
    };
    (status, look_again)
}

/// Of a rollout under way: what has not moved for the deadline has failed, until it moves.
fn progressing(
    old: &[DeploymentCondition],
    (set, made, has_moved): (&str, Option<&str>, bool),
    deadline: Duration,
    now: Timestamp,
) -> (DeploymentCondition, Option<Duration>) {
    if let Some(made) = made {
        let why = format!("Created new replica set \"{made}\"");
        let told = condition(old, PROGRESSING, now, ("True", "NewReplicaSetCreated", why));
        return (DeploymentCondition { last_update_time: Some(Time(now)), ..told }, Some(deadline));
    }
    let before = old.iter().find(|one| one.type_ == PROGRESSING);
    // After a finished rollout, a Pod that ends begins no other one.
    let was_complete = before.is_some_and(|one| one.reason.as_deref() == Some(COMPLETE));
    let moved_at = before.and_then(|one| one.last_update_time.as_ref()).filter(|_| !has_moved).map_or(now, |at| at.0);
    if was_complete && let Some(before) = before {
        return (before.clone(), None);
    }
    let been = Duration::try_from(now.duration_since(moved_at)).unwrap_or_default();
    if been >= deadline {
        let why = format!("ReplicaSet \"{set}\" has timed out progressing.");
        return (condition(old, PROGRESSING, now, ("False", TIMED_OUT, why)), None);
    }
    let why = format!("ReplicaSet \"{set}\" is progressing.");
    let told = condition(old, PROGRESSING, now, ("True", "ReplicaSetUpdated", why));
    (DeploymentCondition { last_update_time: Some(Time(moved_at)), ..told }, Some(deadline - been))
}

fn condition(
    old: &[DeploymentCondition],
    kind: &str,
    now: Timestamp,
    (status, reason, message): (&str, &str, String),
) -> DeploymentCondition {
    let before = old.iter().find(|one| one.type_ == kind);
    let same_status = before.filter(|one| one.status == status);
    let same = same_status.filter(|one| one.reason.as_deref() == Some(reason));
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: same_status.and_then(|one| one.last_transition_time.clone()).or(Some(Time(now))),
        last_update_time: same.and_then(|one| one.last_update_time.clone()).or(Some(Time(now))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(status: &serde_json::Value) -> Deployment {
        serde_json::from_value(json!({ "metadata": { "name": "web", "generation": 2 }, "spec": { "replicas": 1,
            "progressDeadlineSeconds": 10, "selector": {}, "template": {} }, "status": status }))
        .unwrap()
    }

    fn set(available: i32) -> ReplicaSet {
        serde_json::from_value(json!({ "metadata": { "name": "web-1" }, "spec": { "replicas": 1, "selector": {} },
            "status": { "replicas": 1, "readyReplicas": available, "availableReplicas": available } }))
        .unwrap()
    }

    fn reason(status: &DeploymentStatus) -> Option<&str> {
        let progress = status.conditions.as_ref()?.iter().find(|one| one.type_ == PROGRESSING)?;
        progress.reason.as_deref()
    }

    #[test]
    fn rollout_without_progress_fails_at_its_deadline() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (first, again) = status(&deployment(&json!({})), Some(&set(0)), &[], Some("web-1"), at(100));
        assert_eq!((reason(&first), again), (Some("NewReplicaSetCreated"), Some(Duration::from_secs(10))));
        let shown = serde_json::to_value(&first).unwrap();
        let (later, again) = status(&deployment(&shown), Some(&set(0)), &[], None, at(104));
        assert_eq!((reason(&later), again), (Some("ReplicaSetUpdated"), Some(Duration::from_secs(6))));
        let (late, _) = status(&deployment(&shown), Some(&set(0)), &[], None, at(110));
        assert_eq!(reason(&late), Some(TIMED_OUT));
        let (done, again) = status(&deployment(&shown), Some(&set(1)), &[], None, at(105));
        assert_eq!((reason(&done), again, done.observed_generation), (Some(COMPLETE), None, Some(2)));
        let (collided, _) = status(&deployment(&json!({ "collisionCount": 2 })), Some(&set(1)), &[], None, at(105));
        assert_eq!(collided.collision_count, Some(2), "another name would follow");
    }
}
