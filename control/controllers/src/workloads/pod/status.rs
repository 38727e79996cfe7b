//! How a Pod is: values in, values out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::pod_runner::{PodRun, RunPhase};
use super::instance::{main_container, runs_beside};
use crate::api::now;
use crate::pods::pod::{BACK_OFF, POD_INITIALIZING, RUNTIME, running, terminated, waiting, whole_seconds};
use crate::revision::instance_plan::NotRunnable;
use autoscaler::LastTermination;
use runtime::{ExitCause, SidecarStatus};
use support::instance_logs::PREVIOUS_SUFFIX;

const ADDRESS: &str = "127.0.0.1";
const CREATING: &str = "ContainerCreating";
/// The reason of a Pod that no node can take.
pub(super) const UNSCHEDULABLE: &str = "Unschedulable";
/// A container that was killed, in the numbers of shells.
const KILLED: i32 = 137;

/// By container, the restarts once it is started by this run of the appliance: one that an earlier run has started has ended with
/// that, so this is one more.
pub(super) fn restarts(pod: &Pod) -> BTreeMap<String, u32> {
    let lists = pod.status.iter().flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    let known = lists.flatten().flatten();
    let count = |one: &ContainerStatus| {
        u32::try_from(one.restart_count).unwrap_or_default().saturating_add(u32::from(one.container_id.is_some()))
    };
    known.map(|one| (one.name.clone(), count(one))).collect()
}

/// The status of a Pod that runs, or that cannot be started for a reason.
pub(super) fn status(pod: &Pod, run: Option<&PodRun>, problem: Option<&NotRunnable>) -> PodStatus {
    let view = PodView { pod, run, problem };
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let before = pod.spec.as_ref().and_then(|spec| spec.init_containers.clone()).unwrap_or_default();
    let statuses: Vec<_> = containers.iter().map(|one| view.container_status(one)).collect();
    let phase = view.phase(&statuses);
    let is_ready = statuses.iter().all(|one| one.ready) && phase == "Running";
    let has_ended = phase == "Succeeded" || phase == "Failed";
    let unready = match phase {
        "Succeeded" => "PodCompleted",
        "Failed" => "PodFailed",
        _ => "ContainersNotReady",
    };
    let is_scheduled = problem.is_none_or(|why| why.reason != UNSCHEDULABLE);
    let message = problem.filter(|_| !is_scheduled).map(|why| why.message.as_str());
    let names: Vec<&str> = statuses.iter().filter(|one| !one.ready).map(|one| one.name.as_str()).collect();
    let unready_message = format!("containers with unready status: [{}]", names.join(" "));
    let unready_message = Some(unready_message.as_str()).filter(|_| !has_ended);
    let conditions = vec![
        view.condition("PodScheduled", is_scheduled, UNSCHEDULABLE, message),
        view.condition("Initialized", view.has_initialized(), "ContainersNotInitialized", None),
        view.condition("ContainersReady", is_ready, unready, unready_message),
        view.condition("Ready", is_ready, unready, unready_message),
    ];
    let old = pod.status.clone().unwrap_or_default();
    let ip = run.map(|_| ADDRESS.to_owned()).or(old.pod_ip);
    let host = Some(ADDRESS.to_owned()).filter(|_| is_scheduled);
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions),
        reason: pod.metadata.deletion_timestamp.as_ref().map(|_| "Terminating".to_owned()),
        host_ips: host.clone().map(|ip| vec![HostIP { ip }]),
        host_ip: host,
        pod_ips: ip.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip: ip,
        start_time: old.start_time.or_else(|| is_scheduled.then(|| Time(now()))),
        qos_class: Some(qos_class(containers).to_owned()),
        init_container_statuses: Some(before.iter().map(|one| view.init_container_status(one)).collect())
            .filter(|all: &Vec<_>| !all.is_empty()),
        container_statuses: Some(statuses),
        ..PodStatus::default()
    }
}

/// The status of a Pod that is never started again, and whose containers ended with an earlier run of the appliance.
pub(super) fn lost(pod: &Pod) -> PodStatus {
    let message = "The appliance was restarted, and the container ended with the process before.";
    ended_by_us(pod, None, "ContainerStatusUnknown", message)
}

/// The status of a Pod whose `activeDeadlineSeconds` are over.
pub(super) fn deadline_exceeded(pod: &Pod, run: Option<&PodRun>) -> PodStatus {
    let failed =
        ended_by_us(pod, run, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline");
    PodStatus { reason: Some("DeadlineExceeded".to_owned()), ..failed }
}

fn ended_by_us(pod: &Pod, run: Option<&PodRun>, reason: &str, message: &str) -> PodStatus {
    let mut shown = match run {
        Some(run) => status(pod, Some(run), None),
        None => pod.status.clone().unwrap_or_default(),
    };
    let ended = ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: KILLED,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            finished_at: Some(Time(now())),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    };
    for one in shown.container_statuses.iter_mut().flatten() {
        (one.ready, one.started) = (false, Some(false));
        if one.state.as_ref().is_none_or(|state| state.terminated.is_none()) {
            one.state = Some(ended.clone());
        }
    }
    let view = PodView { pod, run, problem: None };
    for one in shown.conditions.iter_mut().flatten().filter(|one| one.type_.ends_with("Ready")) {
        *one = view.condition(&one.type_.clone(), false, "PodFailed", None);
    }
    PodStatus { phase: Some("Failed".to_owned()), message: Some(message.to_owned()), ..shown }
}

/// What is known of a Pod.
struct PodView<'a> {
    pod: &'a Pod,
    run: Option<&'a PodRun>,
    problem: Option<&'a NotRunnable>,
}

impl PodView<'_> {
    fn condition(&self, kind: &str, holds: bool, reason: &str, message: Option<&str>) -> PodCondition {
        let status = if holds { "True" } else { "False" };
        let old = self.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let old = old.into_iter().find(|one| one.type_ == kind && one.status == status);
        PodCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: (!holds).then(|| reason.to_owned()),
            message: message.filter(|_| !holds).map(str::to_owned),
            last_transition_time: old.and_then(|old| old.last_transition_time.clone()).or_else(|| Some(Time(now()))),
            ..PodCondition::default()
        }
    }

    /// All init containers have run.
    fn has_initialized(&self) -> bool {
        let names = self.pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let mut names = names.filter(|one| !runs_beside(one)).peekable();
        let Some(run) = self.run else { return names.peek().is_none() && self.problem.is_none() };
        names.all(|one| run.sidecars.iter().any(|known| known.name == one.name && known.ended))
    }

    fn phase(&self, statuses: &[ContainerStatus]) -> &'static str {
        let Some(run) = self.run else { return "Pending" };
        let is_over = run.phase == RunPhase::Ended && self.pod.metadata.deletion_timestamp.is_none();
        match run.phase {
            _ if is_over => {
                let code = |one: &ContainerStatus| one.state.as_ref()?.terminated.as_ref().map(|ended| ended.exit_code);
                let is_good = self.has_initialized() && statuses.iter().all(|one| code(one) == Some(0));
                if is_good { "Succeeded" } else { "Failed" }
            }
            _ if !self.has_initialized() => "Pending",
            _ => "Running",
        }
    }

    fn sidecar(&self, name: &str) -> Option<&SidecarStatus> {
        self.run?.sidecars.iter().find(|one| one.name == name)
    }

    fn container_status(&self, container: &Container) -> ContainerStatus {
        let is_main = container.name == main_container(self.pod);
        let status = ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            image_id: self.image_id(&container.name),
            ..ContainerStatus::default()
        };
        let Some(run) = self.run else {
            let statuses = self.pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            let old = statuses.into_iter().find(|old| old.name == container.name);
            return ContainerStatus {
                // The last one that ran, as in Kubernetes: the next start counts as a restart.
                container_id: old.and_then(|old| old.container_id.clone()),
                restart_count: old.map_or(0, |old| old.restart_count),
                started: Some(false),
                state: Some(self.problem_state()),
                ..status
            };
        };
        if is_main {
            // Without a probe of its own it is ready as long as it runs, whatever the others are.
            let is_probed = container.readiness_probe.is_some();
            let waits_for_others = match run.phase {
                RunPhase::Starting => self.has_initialized() && !run.sidecars.is_empty(),
                phase => phase == RunPhase::Unready,
            };
            let ready = run.phase == RunPhase::Ready || (!is_probed && waits_for_others);
            return ContainerStatus {
                container_id: Some(format!("{RUNTIME}{}", run.id)),
                ready,
                started: Some(ready || run.phase == RunPhase::Unready),
                restart_count: self.restart_count(&container.name),
                state: Some(self.main_state(run)),
                last_state: main_last_state(run),
                ..status
            };
        }
        let known = self.sidecar(&container.name);
        let runs = !matches!(run.phase, RunPhase::BackOff | RunPhase::Ended);
        ContainerStatus {
            container_id: Some(format!("{RUNTIME}{}/{}", run.id, container.name)),
            ready: runs && known.is_some_and(|one| one.ready),
            started: Some(known.is_some_and(|one| one.ready)),
            restart_count: self.restart_count(&container.name),
            state: Some(self.sidecar_state(run, known)),
            last_state: known.filter(|one| !one.ended).and_then(|one| sidecar_last_state(run, one)),
            ..status
        }
    }

    fn restart_count(&self, name: &str) -> i32 {
        let earlier = self.run.and_then(|run| run.restarts.get(name)).copied().unwrap_or_default();
        let count = earlier.saturating_add(self.sidecar(name).map_or(0, |one| one.restarts));
        i32::try_from(count).unwrap_or(i32::MAX)
    }

    /// What the tag of its image stands for.
    fn image_id(&self, name: &str) -> String {
        if let Some(run) = self.run {
            return run.images.get(name).cloned().unwrap_or_default();
        }
        let status = self.pod.status.as_ref();
        let lists = status.map(|status| [&status.container_statuses, &status.init_container_statuses]);
        let mut known = lists.into_iter().flatten().flatten().flatten();
        known.find(|one| one.name == name).map(|one| one.image_id.clone()).unwrap_or_default()
    }

    /// Of a container that was not started.
    fn problem_state(&self) -> ContainerState {
        match self.problem {
            Some(why) if !why.is_pulling && why.reason != UNSCHEDULABLE => {
                // A kubelet's word for both.
                let is_pull = ["ContainerMissing", "RegistryUnavailable"].contains(&why.reason);
                let reason = if is_pull { "ErrImagePull" } else { why.reason };
                let mut state = waiting(reason, None);
                if let Some(waiting) = &mut state.waiting {
                    waiting.message = Some(why.message.clone());
                }
                state
            }
            _ => waiting(CREATING, None),
        }
    }

    fn main_state(&self, run: &PodRun) -> ContainerState {
        let last = run.last.as_ref();
        match run.phase {
            RunPhase::Ended | RunPhase::BackOff if !self.has_initialized() => waiting(POD_INITIALIZING, None),
            RunPhase::Ended => last.map_or_else(|| waiting(CREATING, None), ended),
            RunPhase::BackOff | RunPhase::Restarting => waiting(BACK_OFF, last),
            RunPhase::Starting if !self.has_initialized() => waiting(POD_INITIALIZING, None),
            _ => running(Time(whole_seconds(run.started_at))),
        }
    }

    fn sidecar_state(&self, run: &PodRun, known: Option<&SidecarStatus>) -> ContainerState {
        match known {
            Some(one) if one.ended => sidecar_end(one).unwrap_or_default(),
            _ if run.phase == RunPhase::Ended => {
                // It ended with the others.
                let end = known.and_then(sidecar_end);
                end.or_else(|| run.last.as_ref().map(ended)).unwrap_or_default()
            }
            _ if run.phase == RunPhase::BackOff => waiting(BACK_OFF, run.last.as_ref()),
            Some(one) if !one.is_running && one.last_exit.is_some() => waiting(BACK_OFF, None),
            Some(one) => running(Time(whole_seconds(one.started_at.unwrap_or(run.started_at)))),
            None if !self.has_initialized() => waiting(POD_INITIALIZING, None),
            None => running(Time(whole_seconds(run.started_at))),
        }
    }

    fn init_container_status(&self, container: &Container) -> ContainerStatus {
        if runs_beside(container) {
            return ContainerStatus { ..self.container_status(container) };
        }
        let known = self.sidecar(&container.name);
        let has_run = known.is_some_and(|one| one.ended);
        let run = self.run;
        let at = |time: Option<Timestamp>| {
            Time(whole_seconds(time.or(run.map(|run| run.started_at)).unwrap_or(Timestamp::UNIX_EPOCH)))
        };
        let failed = run.filter(|run| matches!(run.phase, RunPhase::BackOff | RunPhase::Ended));
        let state = match (known, failed) {
            (Some(one), _) if one.ended => ContainerState {
                terminated: Some(ContainerStateTerminated {
                    reason: Some("Completed".into()),
                    started_at: Some(at(one.started_at)),
                    finished_at: Some(at(one.finished_at)),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            },
            (Some(_), Some(run)) if run.phase == RunPhase::BackOff => waiting(BACK_OFF, run.last.as_ref()),
            (Some(_), Some(run)) => run.last.as_ref().map(ended).unwrap_or_default(),
            (Some(one), None) if !one.is_running && one.last_exit.is_some() => waiting(BACK_OFF, None),
            (Some(one), None) => running(at(one.started_at)),
            (None, _) if self.problem.is_some() => self.problem_state(),
            (None, _) => waiting(POD_INITIALIZING, None),
        };
        ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            image_id: self.image_id(&container.name),
            container_id: run.map(|run| format!("{RUNTIME}{}/{}", run.id, container.name)),
            ready: has_run,
            started: Some(known.is_some() && !has_run),
            restart_count: self.restart_count(&container.name),
            state: Some(state),
            last_state: run
                .zip(known)
                .filter(|(_, one)| !one.ended)
                .and_then(|(run, one)| sidecar_last_state(run, one)),
            ..ContainerStatus::default()
        }
    }
}

/// How the main container ended before, and the name of its log, for `kubectl logs --previous`: until it is started again, its
/// log is still the present one.
fn main_last_state(run: &PodRun) -> Option<ContainerState> {
    let last = run.last.as_ref().filter(|_| run.phase != RunPhase::Ended)?;
    let mut state = ended(last);
    let is_replaced = last.id == run.id && !matches!(run.phase, RunPhase::Restarting | RunPhase::BackOff);
    if let Some(ended) = state.terminated.as_mut().filter(|_| is_replaced) {
        ended.container_id = Some(format!("{RUNTIME}{}/{PREVIOUS_SUFFIX}", run.id));
    }
    Some(state)
}

/// The same of another container.
fn sidecar_last_state(run: &PodRun, one: &SidecarStatus) -> Option<ContainerState> {
    let mut state = sidecar_end(one)?;
    if let Some(ended) = &mut state.terminated {
        let suffix = if one.is_running { PREVIOUS_SUFFIX } else { "" };
        ended.container_id = Some(format!("{RUNTIME}{}/{}{suffix}", run.id, one.name));
    }
    Some(state)
}

/// How a container ended.
fn ended(last: &LastTermination) -> ContainerState {
    let mut ended = terminated(last);
    if last.cause == ExitCause::NotStarted {
        ended.reason = Some("StartError".to_owned());
    }
    for time in [&mut ended.started_at, &mut ended.finished_at].into_iter().flatten() {
        *time = Time(whole_seconds(time.0));
    }
    ContainerState { terminated: Some(ended), ..ContainerState::default() }
}

fn sidecar_end(one: &SidecarStatus) -> Option<ContainerState> {
    let exit = one.last_exit.clone()?;
    let at = |time: Option<Timestamp>| time.unwrap_or(Timestamp::UNIX_EPOCH);
    let last = LastTermination {
        id: 0,
        cause: exit.cause,
        message: exit.message,
        started_at: at(one.started_at),
        finished_at: at(one.finished_at),
    };
    let mut state = ended(&last);
    if let Some(ended) = &mut state.terminated {
        ended.container_id = None;
    }
    Some(state)
}

/// As Kubernetes sorts Pods by what their containers ask for.
fn qos_class(containers: &[Container]) -> &'static str {
    let resources: Vec<_> = containers.iter().map(|one| one.resources.clone().unwrap_or_default()).collect();
    let is_empty = |one: &k8s_openapi::api::core::v1::ResourceRequirements| {
        one.limits.as_ref().is_none_or(|all| all.is_empty()) && one.requests.as_ref().is_none_or(|all| all.is_empty())
    };
    if resources.iter().all(is_empty) {
        return "BestEffort";
    }
    let is_guaranteed = |one: &k8s_openapi::api::core::v1::ResourceRequirements| {
        let limits = one.limits.clone().unwrap_or_default();
        ["cpu", "memory"].iter().all(|name| limits.contains_key(*name)) && one.requests.as_ref() == Some(&limits)
    };
    if resources.iter().all(is_guaranteed) { "Guaranteed" } else { "Burstable" }
}
