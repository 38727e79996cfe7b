//! One instance as a Pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, Pod, PodCondition, PodIP, PodSecurityContext, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

use crate::fleet::{Last, Seen, Stage};
use crate::kinds::serving::annotations::{CONFIGURATION, CONFIGURATION_GENERATION, REVISION, SERVICE};
use crate::kinds::serving::revision::Revision;
use crate::kinds::shared::{name, namespace};
use crate::runtime::{Cause, pod_name};

/// What `containerID` begins with; the instance's number follows.
const RUNTIME: &str = "process://";
/// Which container kubectl means.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Where everything runs.
const NODE: &str = "localhost";
/// Exit codes of programs that a signal ended, as shells count them.
const SIGNAL_BASE: i32 = 128;
/// A program that ran out of memory gets SIGKILL.
const OUT_OF_MEMORY: i32 = SIGNAL_BASE + 9;
/// ... and of those that ended in a way that has no code.
const NO_CODE: i32 = 255;

/// The instance behind a Pod.
#[must_use]
pub fn instance_of(pod: &Pod) -> Option<u64> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find_map(|status| status.container_id.as_deref()?.strip_prefix(RUNTIME)?.parse().ok())
}

/// The Pod of an instance of `revision`.
#[must_use]
pub(super) fn pod(revision: &Revision, seen: &Seen) -> Pod {
    let status = status(revision, seen);
    Pod {
        metadata: metadata(revision, seen),
        spec: Some(PodSpec {
            containers: revision.spec.containers.clone(),
            node_name: Some(NODE.into()),
            restart_policy: Some("Always".into()),
            // Always there in Kubernetes, so that clients (kubectl debug) look into it without asking.
            security_context: Some(PodSecurityContext::default()),
            ..PodSpec::default()
        }),
        status: Some(status),
    }
}

/// The label with the Revision's uid.
pub(super) const REVISION_UID: &str = "serving.knative.dev/revisionUID";

/// What marks everything that runs for `revision`.
pub(super) fn labels(revision: &Revision) -> BTreeMap<String, String> {
    let meta = &revision.metadata;
    let own = name(meta);
    let mut labels = meta.labels.clone().unwrap_or_default();
    let passed_on = |key: &str| {
        !key.contains("knative.dev/") || [SERVICE, CONFIGURATION, CONFIGURATION_GENERATION].contains(&key)
    };
    labels.retain(|key, _| passed_on(key));
    labels.insert(REVISION.into(), own.into());
    labels.insert(REVISION_UID.into(), meta.uid.clone().unwrap_or_default());
    labels.insert("app".into(), own.into());
    labels
}

pub(super) fn owner(revision: &Revision) -> OwnerReference {
    OwnerReference {
        api_version: revision.api_version.clone(),
        kind: revision.kind.clone(),
        name: name(&revision.metadata).into(),
        uid: revision.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn metadata(revision: &Revision, seen: &Seen) -> ObjectMeta {
    let meta = &revision.metadata;
    ObjectMeta {
        name: Some(pod_name(name(meta), seen.line)),
        namespace: Some(namespace(meta).into()),
        labels: Some(labels(revision)),
        owner_references: Some(vec![owner(revision)]),
        annotations: default_container(revision),
        ..ObjectMeta::default()
    }
}

/// Of several containers, the one that kubectl means unless it is told another.
fn default_container(revision: &Revision) -> Option<BTreeMap<String, String>> {
    let serving = revision.spec.serving_container().filter(|_| revision.spec.containers.len() > 1)?;
    Some([(DEFAULT_CONTAINER.to_owned(), serving.name.clone())].into())
}

fn status(revision: &Revision, seen: &Seen) -> PodStatus {
    let ready = seen.stage == Stage::Ready;
    let (state, reason) = state(seen);
    let serving = revision.spec.serving_container();
    let of = |container: &Container| {
        if serving.is_some_and(|serving| serving.name == container.name) {
            of_serving(container, seen, state.clone())
        } else {
            of_sidecar(container, seen, state.clone())
        }
    };
    let condition = |kind: &str, holds: bool| PodCondition {
        type_: kind.into(),
        status: if holds { "True" } else { "False" }.into(),
        reason: (!holds).then(|| "ContainersNotReady".into()),
        ..PodCondition::default()
    };
    let ip = seen.address.map(|address| address.ip().to_string());
    PodStatus {
        phase: Some("Running".into()), // there is no place to be found and no image to be fetched first
        reason,
        conditions: Some(vec![
            condition("PodScheduled", true),
            condition("Initialized", true),
            condition("ContainersReady", ready),
            condition("Ready", ready),
        ]),
        host_ip: Some("127.0.0.1".into()),
        pod_ip: ip.clone(),
        pod_ips: ip.map(|ip| vec![PodIP { ip }]),
        start_time: Some(Time(seen.began)),
        container_statuses: Some(revision.spec.containers.iter().map(of).collect()),
        ..PodStatus::default()
    }
}

fn of_serving(container: &Container, seen: &Seen, state: ContainerState) -> ContainerStatus {
    let last = seen.last.as_ref().filter(|_| seen.stage != Stage::Waiting);
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        container_id: Some(format!("{RUNTIME}{}", seen.id)),
        ready: seen.stage == Stage::Ready,
        started: Some(!matches!(seen.stage, Stage::Starting | Stage::Waiting)),
        restart_count: i32::try_from(seen.restarts).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: last
            .map(|last| ContainerState { terminated: Some(terminated(last)), ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}

/// Its starts are counted with those of the instance, because it starts anew with that too.
fn of_sidecar(container: &Container, seen: &Seen, state: ContainerState) -> ContainerStatus {
    let found = seen.beside.iter().find(|one| one.name == container.name);
    let restarts = seen.restarts.saturating_add(found.map_or(0, |one| one.restarts));
    let runs = matches!(seen.stage, Stage::Starting | Stage::Ready | Stage::Unready);
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        container_id: Some(format!("{RUNTIME}{}/{}", seen.id, container.name)),
        ready: runs && found.is_some_and(|one| one.ready),
        started: Some(found.is_some()),
        restart_count: i32::try_from(restarts).unwrap_or(i32::MAX),
        state: Some(state),
        ..ContainerStatus::default()
    }
}

/// What the container does, and the word for it if it is not what the phase says.
fn state(seen: &Seen) -> (ContainerState, Option<String>) {
    if seen.stage == Stage::Waiting {
        let reason = "CrashLoopBackOff".to_owned();
        let message = seen.last.as_ref().map(|last| last.message.clone());
        let waiting = ContainerStateWaiting { reason: Some(reason.clone()), message };
        return (ContainerState { waiting: Some(waiting), ..ContainerState::default() }, Some(reason));
    }
    let running = ContainerStateRunning { started_at: Some(Time(seen.started)) };
    let reason = match seen.stage {
        Stage::Ending => Some("Terminating".to_owned()),
        Stage::Frozen => Some("Frozen".to_owned()),
        _ => None,
    };
    (ContainerState { running: Some(running), ..ContainerState::default() }, reason)
}

fn terminated(last: &Last) -> ContainerStateTerminated {
    let exit_code = match last.cause {
        Cause::Exited(code) => code,
        Cause::Signalled(signal) => SIGNAL_BASE + signal,
        Cause::OutOfMemory => OUT_OF_MEMORY,
        _ => NO_CODE,
    };
    ContainerStateTerminated {
        container_id: Some(format!("{RUNTIME}{}", last.id)),
        exit_code,
        reason: Some(
            match (&last.cause, exit_code) {
                (Cause::OutOfMemory, _) => "OOMKilled",
                (_, 0) => "Completed",
                _ => "Error",
            }
            .into(),
        ),
        message: Some(last.message.clone()),
        started_at: Some(Time(last.started)),
        finished_at: Some(Time(last.ended)),
        ..ContainerStateTerminated::default()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::kinds::serving::template::RevisionSpec;

    fn seen(stage: Stage, restarts: u32) -> Seen {
        let at = Timestamp::UNIX_EPOCH;
        let last = (restarts > 0 || stage == Stage::Waiting).then(|| Last {
            id: 70,
            cause: Cause::Signalled(9),
            message: "killed".into(),
            started: at,
            ended: at,
        });
        Seen {
            id: 71,
            line: 35,
            began: at,
            restarts,
            stage,
            address: None,
            started: at,
            last,
            beside: Vec::new(),
        }
    }

    fn revision() -> Revision {
        let mut revision = Revision::new("ns", "hello-00001", RevisionSpec::default());
        revision.spec.containers = vec![Container { name: "user-container".into(), ..Container::default() }];
        let labels = [(SERVICE, "hello"), ("serving.knative.dev/routingState", "active"), ("team", "a")];
        revision.metadata.labels =
            Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect());
        revision
    }

    #[test]
    fn a_pod_says_whose_it_is_and_which_instance_it_stands_for() {
        let pod = pod(&revision(), &seen(Stage::Ready, 0));
        assert_eq!(pod.metadata.name.as_deref(), Some("hello-00001-deployment-z"));
        let labels = pod.metadata.labels.as_ref().unwrap();
        let keys: Vec<_> = labels.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            ["app", "serving.knative.dev/revision", "serving.knative.dev/revisionUID", SERVICE, "team"]
        );
        assert_eq!(pod.metadata.owner_references.as_ref().unwrap()[0].name, "hello-00001");
        assert_eq!(instance_of(&pod), Some(71));
    }

    #[test]
    fn each_stage_has_its_word_and_its_readiness() {
        for (stage, restarts, word, ready) in [
            (Stage::Starting, 0, None, false),
            (Stage::Starting, 2, None, false),
            (Stage::Ready, 0, None, true),
            (Stage::Unready, 0, None, false),
            (Stage::Frozen, 0, Some("Frozen"), false),
            (Stage::Ending, 0, Some("Terminating"), false),
            (Stage::Waiting, 1, Some("CrashLoopBackOff"), false),
        ] {
            let status = pod(&revision(), &seen(stage, restarts)).status.unwrap();
            let container = &status.container_statuses.unwrap()[0];
            assert_eq!(
                (status.phase.as_deref(), status.reason.as_deref(), container.ready),
                (Some("Running"), word, ready),
                "{stage:?}"
            );
            assert_eq!(container.restart_count, i32::try_from(restarts).unwrap());
        }
    }

    #[test]
    fn how_the_last_one_ended_is_kept() {
        let status = pod(&revision(), &seen(Stage::Ready, 1)).status.unwrap();
        let last = status.container_statuses.unwrap()[0].last_state.clone().unwrap().terminated.unwrap();
        assert_eq!((last.exit_code, last.container_id.as_deref()), (137, Some("process://70")));
    }
}
