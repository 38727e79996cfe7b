//! The instances of a Revision as its Deployment.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::pod::annotations;
use crate::serverless_service::{labels, owner};
use autoscaler::{InstancePhase, InstanceStatus};
use runtime::deployment_name;
use types::serving::annotations::REVISION_UID;
use types::serving::revision::Revision;
use types::shared::{name, namespace};

/// The Deployment of `revision`, of which `desired` instances are wanted; `before` is the one that is there.
pub(super) fn desired_deployment(
    revision: &Revision,
    desired: u32,
    seen: &[InstanceStatus],
    before: Option<&Deployment>,
) -> Deployment {
    let desired = i32::try_from(desired).unwrap_or(i32::MAX);
    let spec = match before.and_then(|before| before.spec.clone()) {
        Some(spec) => DeploymentSpec { replicas: Some(desired), ..spec },
        None => spec(revision, desired),
    };
    let generation = before.map_or(1, |before| {
        let then = before.metadata.generation.unwrap_or(1);
        if before.spec.as_ref() == Some(&spec) { then } else { then + 1 }
    });
    let metadata = before.map_or_else(|| metadata(revision), |before| before.metadata.clone());
    Deployment { metadata, spec: Some(spec), status: Some(status(desired, generation, seen)) }
}

fn metadata(revision: &Revision) -> ObjectMeta {
    ObjectMeta {
        name: Some(deployment_name(name(&revision.metadata))),
        namespace: Some(namespace(&revision.metadata).into()),
        labels: Some(labels(revision)),
        owner_references: Some(vec![owner(revision)]),
        ..ObjectMeta::default()
    }
}

fn spec(revision: &Revision, desired: i32) -> DeploymentSpec {
    let serving = revision.spec.serving_container().cloned().unwrap_or_default();
    let uid = revision.metadata.uid.clone().unwrap_or_default();
    DeploymentSpec {
        replicas: Some(desired),
        selector: LabelSelector {
            match_labels: Some(BTreeMap::from([(REVISION_UID.to_owned(), uid)])),
            ..LabelSelector::default()
        },
        template: PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(labels(revision)),
                annotations: Some(annotations(revision)).filter(|all| !all.is_empty()),
                ..ObjectMeta::default()
            }),
            spec: Some(PodSpec { containers: vec![serving], ..PodSpec::default() }),
        },
        strategy: Some(strategy()),
        ..DeploymentSpec::default()
    }
}

/// Upstream's, in full: what `kubectl describe` shows.
fn strategy() -> DeploymentStrategy {
    let bounds = RollingUpdateDeployment {
        max_surge: Some(IntOrString::String("25%".into())),
        max_unavailable: Some(IntOrString::Int(0)),
    };
    DeploymentStrategy { type_: Some("RollingUpdate".into()), rolling_update: Some(bounds) }
}

/// Frozen instances and those that end are no replicas.
fn status(desired: i32, generation: i64, seen: &[InstanceStatus]) -> DeploymentStatus {
    let count = |counts: fn(InstancePhase) -> bool| {
        i32::try_from(seen.iter().filter(|one| counts(one.phase)).count()).unwrap_or(i32::MAX)
    };
    let replicas = count(|stage| !matches!(stage, InstancePhase::Frozen | InstancePhase::Terminating));
    let ready = count(|stage| stage == InstancePhase::Ready);
    let condition = |kind: &str, (status, reason): (&str, &str)| DeploymentCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        ..DeploymentCondition::default()
    };
    let available =
        if ready >= desired { ("True", "MinimumReplicasAvailable") } else { ("False", "MinimumReplicasUnavailable") };
    DeploymentStatus {
        observed_generation: Some(generation),
        replicas: Some(replicas),
        updated_replicas: Some(replicas),
        ready_replicas: Some(ready),
        available_replicas: Some(ready),
        unavailable_replicas: Some((replicas.max(desired) - ready).max(0)),
        conditions: Some(vec![
            condition("Available", available),
            condition("Progressing", ("True", "NewReplicaSetAvailable")),
        ]),
        ..DeploymentStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use types::serving::revision_spec::RevisionSpec;

    fn seen(stage: InstancePhase) -> InstanceStatus {
        let at = Timestamp::UNIX_EPOCH;
        InstanceStatus {
            id: 71,
            lineage: 35,
            created_at: at,
            restarts: 0,
            phase: stage,
            address: None,
            started_at: at,
            last_termination: None,
            sidecars: Vec::new(),
            not_ready_reason: None,
        }
    }

    #[test]
    fn counts_who_runs_and_observes_the_generation_that_its_write_makes() {
        let revision = Revision::new("ns", "hello-00001", RevisionSpec::default());
        let stages = [
            InstancePhase::Ready,
            InstancePhase::Ready,
            InstancePhase::Starting,
            InstancePhase::Frozen,
            InstancePhase::Terminating,
        ];
        let made = desired_deployment(&revision, 3, &stages.map(seen), None);
        assert_eq!(made.metadata.name.as_deref(), Some("hello-00001-deployment"));
        let status = made.status.clone().unwrap();
        assert_eq!((status.replicas, status.ready_replicas), (Some(3), Some(2)));
        assert_eq!((status.unavailable_replicas, status.observed_generation), (Some(1), Some(1)));
        assert_eq!(status.conditions.unwrap()[0].status, "False");

        let mut stored = made;
        stored.metadata.generation = Some(1);
        let same = desired_deployment(&revision, 3, &stages.map(seen), Some(&stored));
        assert_eq!(same, stored);
        let asleep = desired_deployment(&revision, 0, &[], Some(&stored));
        let status = asleep.status.unwrap();
        assert_eq!((status.observed_generation, status.unavailable_replicas), (Some(2), Some(0)));
        assert_eq!(asleep.spec.unwrap().replicas, Some(0));
    }
}
