//! One instance as a Pod.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    Pod, PodCondition, PodIP, PodSecurityContext, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use crate::names::service_account;
use crate::serverless_service::{labels, owner};
use autoscaler::{InstancePhase, InstanceStatus, LastTermination};
use runtime::{ExitCause, pod_name};
use types::node::NODE;
use types::serving::annotations::{ROUTES, ROUTING_STATE_MODIFIED, inherited};
use types::serving::revision::Revision;
use types::shared::{name, namespace};

/// The prefix of `containerID`; the instance's number follows.
pub(crate) const RUNTIME: &str = "process://";
/// Which container kubectl means.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Exit codes of programs that a signal ended, as shells count them.
const SIGNAL_BASE: i32 = 128;
/// A program that ran out of memory gets SIGKILL.
const OUT_OF_MEMORY: i32 = SIGNAL_BASE + 9;
/// ... and of those that ended in a way that has no code.
const UNKNOWN_EXIT_CODE: i32 = 255;

/// Words for a container that does not run: its instance failed and is started later, or others run before it.
pub(crate) const BACK_OFF: &str = "CrashLoopBackOff";
pub(crate) const POD_INITIALIZING: &str = "PodInitializing";

/// The instance behind a Pod.
#[must_use]
pub fn instance_id(pod: &Pod) -> Option<u64> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find_map(|status| status.container_id.as_deref()?.strip_prefix(RUNTIME)?.parse().ok())
}

/// The Pod of an instance of `revision`.
#[must_use]
pub(super) fn desired_pod(revision: &Revision, seen: &InstanceStatus) -> Pod {
    let status = status(revision, seen);
    Pod {
        metadata: metadata(revision, seen),
        spec: Some(PodSpec {
            containers: revision.spec.containers.clone(),
            enable_service_links: revision.spec.enable_service_links,
            init_containers: Some(revision.spec.init_containers.clone()).filter(|all| !all.is_empty()),
            image_pull_secrets: Some(revision.spec.image_pull_secrets.clone()).filter(|all| !all.is_empty()),
            node_name: Some(NODE.into()),
            restart_policy: Some("Always".into()),
            service_account_name: Some(service_account(&revision.spec).into()),
            termination_grace_period_seconds: revision.spec.timeout_seconds,
            volumes: Some(revision.spec.volumes.clone()).filter(|all| !all.is_empty()),
            // Always there in Kubernetes, so that clients (kubectl debug) look into it without asking.
            security_context: Some(PodSecurityContext::default()),
            ..PodSpec::default()
        }),
        status: Some(status),
    }
}

/// ... and what is noted at it: what its template says, and nothing that changes with its traffic.
pub(super) fn annotations(revision: &Revision) -> BTreeMap<String, String> {
    let meta = &revision.metadata;
    let mut annotations = inherited(meta.annotations.as_ref(), &[ROUTES, ROUTING_STATE_MODIFIED]);
    if let Some(serving) = default_container(revision) {
        annotations.entry(DEFAULT_CONTAINER.into()).or_insert_with(|| serving.into());
    }
    annotations
}

fn metadata(revision: &Revision, seen: &InstanceStatus) -> ObjectMeta {
    let meta = &revision.metadata;
    ObjectMeta {
        name: Some(pod_name(name(meta), seen.lineage)),
        namespace: Some(namespace(meta).into()),
        labels: Some(labels(revision)),
        owner_references: Some(vec![owner(revision)]),
        annotations: Some(annotations(revision)).filter(|all| !all.is_empty()),
        ..ObjectMeta::default()
    }
}

/// Of several containers, the default container of kubectl.
fn default_container(revision: &Revision) -> Option<&str> {
    let spec = &revision.spec;
    let serving = spec.serving_container().filter(|_| spec.containers.len() + spec.init_containers.len() > 1)?;
    Some(&serving.name)
}

fn status(revision: &Revision, seen: &InstanceStatus) -> PodStatus {
    let ready = seen.phase == InstancePhase::Ready;
    let (state, reason) = state(revision, seen);
    let serving = revision.spec.serving_container();
    let of = |container: &Container| {
        if serving.is_some_and(|serving| serving.name == container.name) {
            serving_container_status(container, seen, state.clone())
        } else {
            sidecar_status(container, seen, state.clone())
        }
    };
    let condition = |kind: &str, holds: bool, (reason, message): (&str, Option<&String>)| PodCondition {
        type_: kind.into(),
        status: if holds { "True" } else { "False" }.into(),
        reason: (!holds).then(|| reason.into()),
        message: message.filter(|_| !holds).cloned(),
        ..PodCondition::default()
    };
    let unready = ("ContainersNotReady", seen.not_ready_reason.as_ref());
    let is_begun = has_initialized(revision, seen);
    let before: Vec<_> = revision.spec.init_containers.iter().map(|one| init_container_status(one, seen)).collect();
    let ip = seen.address.map(|address| address.ip().to_string());
    PodStatus {
        phase: Some("Running".into()), // there is no place to be found and no image to be fetched first
        reason,
        conditions: Some(vec![
            condition("PodScheduled", true, unready),
            condition("Initialized", is_begun, ("ContainersNotInitialized", None)),
            condition("ContainersReady", ready, unready),
            condition("Ready", ready, unready),
        ]),
        host_ip: Some("127.0.0.1".into()),
        pod_ip: ip.clone(),
        pod_ips: ip.map(|ip| vec![PodIP { ip }]),
        start_time: Some(Time(seen.created_at)),
        container_statuses: Some(revision.spec.containers.iter().map(of).collect()),
        init_container_statuses: Some(before).filter(|all| !all.is_empty()),
        ..PodStatus::default()
    }
}

fn serving_container_status(container: &Container, seen: &InstanceStatus, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        container_id: Some(format!("{RUNTIME}{}", seen.id)),
        ready: seen.phase == InstancePhase::Ready,
        started: Some(!matches!(seen.phase, InstancePhase::Starting | InstancePhase::BackOff)),
        restart_count: i32::try_from(seen.restarts).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: seen
            .last_termination
            .as_ref()
            .map(|last| ContainerState { terminated: Some(terminated(last)), ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}

/// Its starts are counted with those of the instance, because it restarts with the instance too.
fn sidecar_status(container: &Container, seen: &InstanceStatus, state: ContainerState) -> ContainerStatus {
    let found = seen.sidecars.iter().find(|one| one.name == container.name);
    let restarts = seen.restarts.saturating_add(found.map_or(0, |one| one.restarts));
    let runs = matches!(seen.phase, InstancePhase::Starting | InstancePhase::Ready | InstancePhase::Unready);
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

/// The status of an init container: those that the instance has reported have ended, except the last one.
fn init_container_status(container: &Container, seen: &InstanceStatus) -> ContainerStatus {
    let found = seen.sidecars.iter().find(|one| one.name == container.name);
    let has_run = found.is_some_and(|one| one.ready);
    // Without one clients show the year 1.
    let at = |time: Option<Timestamp>| Time(time.map_or(seen.started_at, whole_seconds));
    let state = match found {
        Some(one) if one.ready => ContainerState {
            terminated: Some(ContainerStateTerminated {
                reason: Some("Completed".into()),
                started_at: Some(at(one.started_at)),
                finished_at: Some(at(one.finished_at)),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        },
        Some(one) => running(at(one.started_at)),
        None if seen.phase == InstancePhase::BackOff => waiting(BACK_OFF, seen.last_termination.as_ref()),
        None => waiting(POD_INITIALIZING, None),
    };
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        container_id: Some(format!("{RUNTIME}{}/{}", seen.id, container.name)),
        ready: has_run,
        started: Some(found.is_some() && !has_run),
        restart_count: i32::try_from(seen.restarts).unwrap_or(i32::MAX),
        state: Some(state),
        ..ContainerStatus::default()
    }
}

/// All of those have run.
fn has_initialized(revision: &Revision, seen: &InstanceStatus) -> bool {
    let has_run = |name: &str| seen.sidecars.iter().any(|one| one.name == name && one.ready);
    revision.spec.init_containers.iter().all(|one| has_run(&one.name))
}

/// The state of the container, and its reason if it differs from the phase.
fn state(revision: &Revision, seen: &InstanceStatus) -> (ContainerState, Option<String>) {
    let reason = match seen.phase {
        InstancePhase::BackOff => {
            return (waiting(BACK_OFF, seen.last_termination.as_ref()), Some(BACK_OFF.to_owned()));
        }
        InstancePhase::Starting if !has_initialized(revision, seen) => {
            return (waiting(POD_INITIALIZING, None), Some(POD_INITIALIZING.to_owned()));
        }
        InstancePhase::Terminating => Some("Terminating".to_owned()),
        InstancePhase::Frozen => Some("Frozen".to_owned()),
        _ => None,
    };
    (running(Time(seen.started_at)), reason)
}

pub(crate) fn waiting(reason: &str, last: Option<&LastTermination>) -> ContainerState {
    let message = last.map(|last| last.message.clone());
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

/// Whole seconds, as Kubernetes' times are.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

pub(crate) fn running(since: Time) -> ContainerState {
    let running = ContainerStateRunning { started_at: Some(since) };
    ContainerState { running: Some(running), ..ContainerState::default() }
}

pub(crate) fn terminated(last: &LastTermination) -> ContainerStateTerminated {
    let exit_code = match last.cause {
        ExitCause::Exited(code) => code,
        ExitCause::Signaled(signal) => SIGNAL_BASE + signal,
        ExitCause::OutOfMemory => OUT_OF_MEMORY,
        _ => UNKNOWN_EXIT_CODE,
    };
    ContainerStateTerminated {
        container_id: Some(format!("{RUNTIME}{}", last.id)),
        exit_code,
        reason: Some(
            match (&last.cause, exit_code) {
                (ExitCause::OutOfMemory, _) => "OOMKilled",
                (_, 0) => "Completed",
                _ => "Error",
            }
            .into(),
        ),
        message: Some(last.message.clone()),
        started_at: Some(Time(last.started_at)),
        finished_at: Some(Time(last.finished_at)),
        ..ContainerStateTerminated::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::SidecarStatus;
    use types::serving::annotations::{CONFIGURATION_UID, SERVICE};
    use types::serving::annotations::{REVISION, REVISION_UID, ROUTING_STATE};
    use types::serving::revision_spec::RevisionSpec;

    fn seen(stage: InstancePhase, restarts: u32) -> InstanceStatus {
        let at = Timestamp::UNIX_EPOCH;
        let last = (restarts > 0 || stage == InstancePhase::BackOff).then(|| LastTermination {
            id: 70,
            cause: ExitCause::Signaled(9),
            message: "killed".into(),
            started_at: at,
            finished_at: at,
        });
        InstanceStatus {
            id: 71,
            lineage: 35,
            created_at: at,
            restarts,
            phase: stage,
            address: None,
            started_at: at,
            last_termination: last,
            sidecars: Vec::new(),
            not_ready_reason: None,
        }
    }

    fn revision() -> Revision {
        let mut revision = Revision::new("ns", "hello-00001", RevisionSpec::default());
        revision.spec.containers = vec![Container { name: "user-container".into(), ..Container::default() }];
        let map = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        revision.metadata.labels =
            map(&[(SERVICE, "hello"), (CONFIGURATION_UID, "u"), (ROUTING_STATE, "active"), ("team", "a")]);
        let (scrape, class) = (("prometheus.io/scrape", "true"), ("autoscaling.knative.dev/metric", "rps"));
        revision.metadata.annotations =
            map(&[scrape, class, (ROUTES, "hello"), (ROUTING_STATE_MODIFIED, "2026-01-01T00:00:00Z")]);
        revision
    }

    #[test]
    fn a_pod_says_whose_it_is_and_which_instance_it_stands_for() {
        let pod = desired_pod(&revision(), &seen(InstancePhase::Ready, 0));
        assert_eq!(pod.metadata.name.as_deref(), Some("hello-00001-deployment-z"));
        assert_eq!(pod.metadata.owner_references.as_ref().unwrap()[0].name, "hello-00001");
        assert_eq!(pod.spec.as_ref().unwrap().service_account_name.as_deref(), Some("default"));
        assert_eq!(instance_id(&pod), Some(71));
    }

    /// Pods have the labels and annotations of their template, for selectors of other tools.
    #[test]
    fn a_pod_carries_what_its_template_says_and_nothing_of_its_traffic() {
        let keys = |map: Option<BTreeMap<String, String>>| map.unwrap().into_keys().collect::<Vec<_>>();
        let plain = desired_pod(&revision(), &seen(InstancePhase::Ready, 0)).metadata;
        assert_eq!(plain.labels.as_ref().unwrap()["app"], "hello-00001");
        assert_eq!(keys(plain.labels), ["app", CONFIGURATION_UID, REVISION, REVISION_UID, SERVICE, "team"]);
        assert_eq!(keys(plain.annotations), ["autoscaling.knative.dev/metric", "prometheus.io/scrape"]);

        let mut named = revision();
        named.metadata.labels.as_mut().unwrap().insert("app".into(), "shop".into());
        named.metadata.annotations = None;
        let named = desired_pod(&named, &seen(InstancePhase::Ready, 0)).metadata;
        assert_eq!((named.labels.unwrap()["app"].as_str(), named.annotations), ("shop", None));
    }

    #[test]
    fn each_stage_has_its_word_and_its_readiness() {
        for (stage, restarts, word, ready) in [
            (InstancePhase::Starting, 0, None, false),
            (InstancePhase::Starting, 2, None, false),
            (InstancePhase::Ready, 0, None, true),
            (InstancePhase::Unready, 0, None, false),
            (InstancePhase::Frozen, 0, Some("Frozen"), false),
            (InstancePhase::Terminating, 0, Some("Terminating"), false),
            (InstancePhase::BackOff, 1, Some("CrashLoopBackOff"), false),
        ] {
            let status = desired_pod(&revision(), &seen(stage, restarts)).status.unwrap();
            let container = &status.container_statuses.unwrap()[0];
            assert_eq!(
                (status.phase.as_deref(), status.reason.as_deref(), container.ready),
                (Some("Running"), word, ready),
                "{stage:?}"
            );
            assert_eq!(container.restart_count, i32::try_from(restarts).unwrap());
        }
    }

    /// Init containers wait, run, and end, in their order.
    #[test]
    fn init_containers_are_shown_on_their_way() {
        let mut revision = revision();
        let named = |name: &str| Container { name: name.into(), ..Container::default() };
        revision.spec.init_containers = ["one", "two"].map(named).to_vec();
        let words = |reported: &[(&str, bool)]| {
            let sidecar_status = reported.iter().map(|(name, ready)| sidecar_status(name, *ready)).collect();
            let status = desired_pod(
                &revision,
                &InstanceStatus { sidecars: sidecar_status, ..seen(InstancePhase::Starting, 0) },
            )
            .status;
            let status = status.unwrap();
            let word = |one: &ContainerStatus| match one.state.clone().unwrap() {
                ContainerState { waiting: Some(waiting), .. } => waiting.reason.unwrap(),
                ContainerState { terminated: Some(over), .. } => over.reason.unwrap(),
                _ => "Running".to_owned(),
            };
            let conditions = status.conditions.unwrap();
            let begun = conditions.iter().find(|one| one.type_ == "Initialized").unwrap().status.clone();
            let all = status.init_container_statuses.unwrap();
            let words = all.iter().chain(&status.container_statuses.unwrap()).map(word).collect::<Vec<_>>();
            (begun, words.join(" "))
        };
        let waiting = "PodInitializing";
        for (reported, begun, wanted) in [
            (&[][..], "False", format!("{waiting} {waiting} {waiting}")),
            (&[("one", false)][..], "False", format!("Running {waiting} {waiting}")),
            (&[("one", true), ("two", false)][..], "False", format!("Completed Running {waiting}")),
            (&[("one", true), ("two", true)][..], "True", "Completed Completed Running".to_owned()),
        ] {
            assert_eq!(words(reported), (begun.to_owned(), wanted), "{reported:?}");
        }
    }

    /// It began and ended at these seconds after the instance began.
    fn sidecar_status(name: &str, ready: bool) -> SidecarStatus {
        let after = |ms| Timestamp::from_millisecond(ms).ok();
        let (began, ended) = (after(1_500), after(4_500).filter(|_| ready));
        SidecarStatus {
            is_running: true,
            name: name.into(),
            ready,
            restarts: 0,
            started_at: began,
            finished_at: ended,
            last_exit: None,
            ended: ready,
        }
    }

    /// `kubectl describe pod` shows both times.
    #[test]
    fn an_init_container_that_is_over_tells_when_it_ran() {
        let container = Container { name: "one".into(), ..Container::default() };
        let status = init_container_status(
            &container,
            &InstanceStatus { sidecars: vec![sidecar_status("one", true)], ..seen(InstancePhase::Ready, 0) },
        );
        let over = status.state.unwrap().terminated.unwrap();
        let second = |time: Option<Time>| time.unwrap().0.as_millisecond();
        assert_eq!((second(over.started_at), second(over.finished_at)), (1_000, 4_000));
    }

    /// `kubectl logs --previous` asks there, also while nothing runs.
    #[test]
    fn how_the_last_one_ended_is_kept() {
        for stage in [InstancePhase::Ready, InstancePhase::BackOff] {
            let status = desired_pod(&revision(), &seen(stage, 1)).status.unwrap();
            let last = status.container_statuses.unwrap()[0].last_state.clone().unwrap().terminated.unwrap();
            assert_eq!((last.exit_code, last.container_id.as_deref()), (137, Some("process://70")));
        }
    }
}
