//! From a Pod to the instance that runs it: values in, values out.
//!
//! The checks and the plan are those of a Revision with the same containers. What differs is set afterwards: a Pod has
//! its own name and uid, no deadline for its readiness, and a restart policy.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerStatus, Pod, PodSecurityContext, PodSpec, Probe, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::super::limits::START_TIMEOUT;
use crate::revision::images::{ImageState, ImageStates};
use runtime::limits::OTHER_PORTS_MAX;
use runtime::{InstanceSpec, PodIdentity, ProbeCheck, ProbeSpec, RestartPolicy};
use support::instance_logs::pod_folder;
use types::serving::annotations::RUNTIME_HOST_USERS;
use types::serving::revision::{ContainerStatus as RevisionContainerStatus, Revision, RevisionStatus};
use types::serving::revision_spec::RevisionSpec;
use types::shared::name;

/// The Revision by whose rules the Pod runs. Its name is that of the folder of the Pod's logs.
pub(super) fn as_revision(pod: &Pod) -> Revision {
    let meta = &pod.metadata;
    let spec = pod.spec.clone().unwrap_or_default();
    let security = spec.security_context.clone().unwrap_or_default();
    let all: Vec<Container> = spec.containers.iter().chain(spec.init_containers.iter().flatten()).cloned().collect();
    let (beside, before): (Vec<_>, Vec<_>) =
        spec.init_containers.clone().unwrap_or_default().into_iter().partition(runs_beside);
    // The port of the instance is another container's.
    let beside = beside.into_iter().map(|one| Container { ports: None, ..one });
    let with_security = |container: Container| with_pod_security(container, &security);
    let containers = spec.containers.clone().into_iter().chain(beside).map(with_security).collect();
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    if spec.host_users == Some(false) {
        annotations.insert(RUNTIME_HOST_USERS.to_owned(), "false".to_owned());
    }
    Revision {
        kind: "Pod".to_owned(),
        metadata: ObjectMeta {
            name: Some(pod_folder(name(meta), meta.uid.as_deref().unwrap_or_default())),
            annotations: Some(annotations),
            ..meta.clone()
        },
        spec: RevisionSpec {
            containers,
            init_containers: before.into_iter().map(with_security).collect(),
            volumes: spec.volumes.clone().unwrap_or_default(),
            service_account_name: spec.service_account_name.clone(),
            image_pull_secrets: spec.image_pull_secrets.clone().unwrap_or_default(),
            enable_service_links: spec.enable_service_links,
            ..RevisionSpec::default()
        },
        status: Some(RevisionStatus { container_statuses: resolved(pod, &all), ..RevisionStatus::default() }),
        ..Revision::default()
    }
}

/// What the tags of its images stood for when it was started first: a tag that moves changes nothing.
fn resolved(pod: &Pod, containers: &[Container]) -> Vec<RevisionContainerStatus> {
    let status = pod.status.clone().unwrap_or_default();
    let lists = [status.container_statuses, status.init_container_statuses];
    let known = lists.into_iter().flatten().flatten().filter(|one| !one.image_id.is_empty());
    let is_same = |one: &ContainerStatus| {
        containers.iter().any(|own| own.name == one.name && own.image.as_deref() == Some(one.image.as_str()))
    };
    let digest = |one: ContainerStatus| RevisionContainerStatus { name: one.name, image_digest: one.image_id };
    known.filter(is_same).map(digest).collect()
}

/// By container, the image that its tag stands for.
pub(super) fn image_ids(revision: &Revision, states: &ImageStates) -> BTreeMap<String, String> {
    let containers = revision.spec.containers.iter().chain(&revision.spec.init_containers);
    let id = |container: &Container| match states.get(container.image.as_ref()?)? {
        ImageState::Present(image) => Some((container.name.clone(), image.digest.clone())),
        ImageState::Pulling(_) | ImageState::Failed { .. } => None,
    };
    containers.filter_map(id).collect()
}

/// The instance of the Pod, from that of its Revision.
pub(super) fn of_pod(mut instance: InstanceSpec, pod: &Pod) -> InstanceSpec {
    let spec = pod.spec.clone().unwrap_or_default();
    let main = main_container(pod).to_owned();
    let restart = restart_policy(pod);
    instance.restart = restart;
    if !spec.containers.iter().any(|one| one.name == main && one.readiness_probe.is_some()) {
        instance.readiness = ProbeSpec::single(ProbeCheck::Running);
    }
    adjust(&mut instance, pod, &spec);
    instance.other_ports = other_ports(&spec, instance.port);
    name_probe_ports(&mut instance, &spec, &main);
    for sidecar in &mut instance.sidecars {
        let is_for_others = spec.init_containers.iter().flatten().any(|one| one.name == sidecar.name);
        sidecar.spec.restart = if is_for_others { RestartPolicy::Always } else { restart };
        name_probe_ports(&mut sidecar.spec, &spec, &sidecar.name);
        adjust(&mut sidecar.spec, pod, &spec);
    }
    for before in &mut instance.init_containers {
        // It is to succeed once.
        before.spec.restart = if restart == RestartPolicy::Always { RestartPolicy::OnFailure } else { restart };
        adjust(&mut before.spec, pod, &spec);
    }
    instance
}

/// What follows the end of each of its containers.
pub(super) fn restart_policy(pod: &Pod) -> RestartPolicy {
    match pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
        Some("Never") => RestartPolicy::Never,
        Some("OnFailure") => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    }
}

/// The ports of its containers besides the one that serves, unless they are to be the host's.
fn other_ports(spec: &PodSpec, serving: u16) -> Vec<u16> {
    if spec.host_network == Some(true) {
        return Vec::new();
    }
    let beside = spec.init_containers.iter().flatten().filter(|one| runs_beside(one));
    let ports = spec.containers.iter().chain(beside).flat_map(|one| one.ports.iter().flatten());
    let is_own = |port: &&ContainerPort| {
        port.host_port.is_none_or(|port| port == 0) && port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP")
    };
    let mut own: Vec<u16> = ports.filter(is_own).filter_map(|port| u16::try_from(port.container_port).ok()).collect();
    own.retain(|port| *port > 0 && *port != serving);
    own.sort_unstable();
    own.dedup();
    own.truncate(OTHER_PORTS_MAX);
    own
}

/// Probes of Pods ask the port that they name, by number or by its name in the container.
fn name_probe_ports(instance: &mut InstanceSpec, spec: &PodSpec, container: &str) {
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let Some(container) = all.into_iter().find(|one| one.name == container) else { return };
    let own = instance.port;
    let port = |probe: &Option<Probe>| {
        probe.as_ref().and_then(|probe| probe_port(probe, container)).filter(|port| *port != own)
    };
    instance.readiness.port = port(&container.readiness_probe);
    for (to, from) in
        [(&mut instance.startup, &container.startup_probe), (&mut instance.liveness, &container.liveness_probe)]
    {
        to.iter_mut().for_each(|probe| probe.port = port(from));
    }
}

fn probe_port(probe: &Probe, container: &Container) -> Option<u16> {
    let named = probe.http_get.as_ref().map(|get| &get.port).or(probe.tcp_socket.as_ref().map(|tcp| &tcp.port));
    let number = match (named, &probe.grpc) {
        (Some(IntOrString::Int(number)), _) => *number,
        (Some(IntOrString::String(name)), _) => {
            let has_name = |port: &&ContainerPort| port.name.as_ref() == Some(name);
            container.ports.iter().flatten().find(has_name)?.container_port
        }
        (None, Some(grpc)) => grpc.port,
        (None, None) => return None,
    };
    u16::try_from(number).ok().filter(|port| *port > 0)
}

/// What all containers of a Pod have.
fn adjust(instance: &mut InstanceSpec, pod: &Pod, spec: &PodSpec) {
    let grace = spec.termination_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    instance.pod = Some(PodIdentity { name: name(&pod.metadata).to_owned(), uid });
    instance.startup_timeout = START_TIMEOUT;
    instance.termination_grace_period = Duration::from_secs(grace.unwrap_or(30));
}

/// The container that serves: the one with a port, or else the first.
pub(super) fn main_container(pod: &Pod) -> &str {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let has_port = |one: &&Container| one.ports.as_ref().is_some_and(|ports| !ports.is_empty());
    containers.iter().find(has_port).or(containers.first()).map(|one| one.name.as_str()).unwrap_or_default()
}

/// An init container that is started before the others and then runs beside them.
pub(super) fn runs_beside(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What the Pod says of all containers holds where a container says nothing.
fn with_pod_security(mut container: Container, pod: &PodSecurityContext) -> Container {
    let own: &mut SecurityContext = container.security_context.get_or_insert_default();
    own.run_as_user = own.run_as_user.or(pod.run_as_user);
    own.run_as_group = own.run_as_group.or(pod.run_as_group);
    own.run_as_non_root = own.run_as_non_root.or(pod.run_as_non_root);
    if own.seccomp_profile.is_none() {
        own.seccomp_profile.clone_from(&pod.seccomp_profile);
    }
    if *own == SecurityContext::default() {
        container.security_context = None;
    }
    container
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_container_port_but_the_hosts_is_the_pods_own() {
        let spec = |more: serde_json::Value| {
            let mut spec = json!({ "containers": [
                { "name": "web", "ports": [{ "containerPort": 80 }, { "containerPort": 9090 },
                    { "containerPort": 53, "protocol": "UDP" }, { "containerPort": 70, "hostPort": 70 }] },
                { "name": "log", "ports": [{ "containerPort": 9091 }, { "containerPort": 9090 }] },
            ] });
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<PodSpec>(spec).unwrap()
        };
        assert_eq!(other_ports(&spec(json!({})), 80), [9090, 9091]);
        assert_eq!(other_ports(&spec(json!({ "hostNetwork": true })), 80), [0; 0]);
    }

    #[test]
    fn probe_names_a_port_by_number_or_name() {
        let container: Container = serde_json::from_value(json!({ "name": "web",
            "ports": [{ "containerPort": 80 }, { "name": "health", "containerPort": 9090 }] }))
        .unwrap();
        for (probe, port) in [
            (json!({ "httpGet": { "port": "health" } }), Some(9090)),
            (json!({ "httpGet": { "port": 9090 } }), Some(9090)),
            (json!({ "tcpSocket": { "port": 7 } }), Some(7)),
            (json!({ "grpc": { "port": 8 } }), Some(8)),
            (json!({ "httpGet": { "port": "other" } }), None),
            (json!({ "exec": { "command": ["true"] } }), None),
        ] {
            assert_eq!(probe_port(&serde_json::from_value(probe.clone()).unwrap(), &container), port, "{probe}");
        }
    }

    #[test]
    fn pod_security_holds_where_a_container_says_nothing() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": "u-1" },
            "spec": {
                "securityContext": { "runAsUser": 7 },
                "initContainers": [{ "name": "before" }, { "name": "beside", "restartPolicy": "Always" }],
                "containers": [
                    { "name": "log", "securityContext": { "runAsUser": 9 } },
                    { "name": "web", "ports": [{ "containerPort": 80 }] },
                ],
            },
        }))
        .unwrap();
        let revision = as_revision(&pod);
        assert_eq!(revision.metadata.name.as_deref(), Some("pod_web_u-1"));
        let user = |one: &Container| one.security_context.as_ref().and_then(|security| security.run_as_user);
        let users: Vec<_> = revision.spec.containers.iter().map(|one| (one.name.as_str(), user(one))).collect();
        assert_eq!(users, [("log", Some(9)), ("web", Some(7)), ("beside", Some(7))]);
        assert_eq!(revision.spec.init_containers.len(), 1);
        assert_eq!((main_container(&pod), revision.spec.serving_container().unwrap().name.as_str()), ("web", "web"));
    }
}
