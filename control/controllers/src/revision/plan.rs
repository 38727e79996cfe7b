//! Builds the plan of a Revision's instances, or the reason why it cannot run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use container::process_config;
use contract::table::{NoEndpointPolicy, Protocol, RequestTimeouts};
use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};

use super::error::RevisionError;
use super::images::{self, LocalImage};
use super::plan_inputs::{PlanInputs, uses_volume_variable};
use super::scale::{concurrency_max, scale};
use super::security_context::{container_credentials, process_credentials, security};
use super::state_directory::StateDirectory;
use super::{devices, downward_api, ports, probes};
use crate::publish::BackendSpec;
use autoscaler::{RevisionPlan, SparePolicy};
use runtime::volumes::{InstanceMount, is_contained_path};
use runtime::{InstanceSpec, ProbeSpec, ResourceLimits, RestartPolicy, Sidecar};
use types::duration;
use types::serving::annotations::{
    CONFIGURATION, PROGRESS_DEADLINE, RELOAD_VOLUME, RUNTIME_CLASS, RUNTIME_READINESS, RUNTIME_VOLUMES, SERVICE,
};
use types::serving::revision::Revision;
use types::serving::revision_spec::TIMEOUT_SECONDS_DEFAULT;
use types::serving::{spare_instances::spares, stream_timeouts::stream_timeouts};
use types::shared::{annotation, label, name, namespace};

pub fn plan(revision: &Revision, given: &PlanInputs<'_>) -> Result<RevisionPlan, RevisionError> {
    let container = revision.spec.serving_container().ok_or_else(|| RevisionError {
        reason: "ContainerMissing",
        message: "The revision has no container.".to_owned(),
    })?;
    given.sources.check_account(&revision.metadata)?;
    let scale = scale(revision, given.autoscaler);
    let other = |container: &Container| {
        // The instance has one message about its end, and that is the serving one's.
        let spec = InstanceSpec { termination_message: None, ..instance(revision, container, given)? };
        let is_probed = container.readiness_probe.is_some();
        Ok(Sidecar { name: container.name.clone(), has_readiness_probe: is_probed, spec })
    };
    let mut sidecars = revision.spec.sidecars().map(other).collect::<Result<Vec<_>, RevisionError>>()?;
    let before = revision.spec.init_containers.iter().map(other);
    let init_containers = before.collect::<Result<Vec<_>, RevisionError>>()?;
    let mut serving = instance(revision, container, given)?;
    if serving.image.is_some() || devices::has_own_dev(revision, given) {
        devices::share_dev_shm(&mut serving, &mut sidecars);
    }
    let detects_http2 = given.detect_http2 && ports::says_no_protocol(container);
    let each = |others: &[Sidecar]| others.iter().map(|one| one.spec.resources).collect::<Vec<_>>();
    let resources = each(&sidecars).into_iter().fold(serving.resources, ResourceLimits::sum);
    let resources = each(&init_containers).into_iter().fold(resources, ResourceLimits::max);
    Ok(RevisionPlan {
        instance: Arc::new(InstanceSpec {
            resources,
            init_containers,
            sidecars,
            detect_http2: detects_http2,
            ..serving
        }),
        // A Revision that no request can reach needs no ready instances.
        min_scale: if given.reachable { scale.min } else { 0 },
        max_scale: scale.max,
        initial_scale: scale.initial,
        inherited_scale: 0,
        metric: scale.metric,
        target: scale.target,
        total: scale.total,
        target_burst_capacity: scale.burst_capacity,
        concurrency_max: concurrency_max(revision),
        // No request comes back to a Revision that is not reachable.
        idle_window: scale.stable_window + if given.reachable { scale.scale_to_zero_retention } else { Duration::ZERO },
        weighted_average: scale.weighted,
        stable_window: scale.stable_window,
        panic_window: scale.panic_window,
        panic_threshold: scale.panic_threshold,
        activation_scale: scale.activation,
        scale_down_delay: scale.scale_down_delay,
        scale_up_rate: given.autoscaler.scale_up_rate,
        scale_down_rate: given.autoscaler.scale_down_rate,
        scale_to_zero_disabled: !given.autoscaler.scale_to_zero_enabled && given.reachable,
        spare: spare(revision),
        reachable: given.reachable,
    })
}

/// The spec of one container.
fn instance(revision: &Revision, container: &Container, given: &PlanInputs<'_>) -> Result<InstanceSpec, RevisionError> {
    let meta = &revision.metadata;
    let InstanceProgram { command, image } = program(revision, container, given)?;
    let is_container = image.is_some();
    let config = image.as_ref().map(|local| &local.config);
    let mut env = config.map(process_config::variables).unwrap_or_default();
    let by_variable = uses_volume_variable(revision) && !is_container;
    let state = StateDirectory::of(revision, given.state_root, given.can_mount && !by_variable);
    env.extend(given.sources.environment(container, meta, state.as_ref().map(StateDirectory::variable))?);
    let own_dir = container.working_dir.as_deref().filter(|dir| !dir.is_empty());
    let image_dir = config.map(|config| config.working_dir.as_str()).filter(|dir| !dir.is_empty());
    let mut spec = InstanceSpec {
        pod: None,
        namespace: namespace(meta).to_owned(),
        revision: name(meta).to_owned(),
        service: label(meta, SERVICE).unwrap_or_default().to_owned(),
        configuration: label(meta, CONFIGURATION).unwrap_or_default().to_owned(),
        command,
        env,
        port: ports::port(container),
        other_ports: Vec::new(),
        working_dir: own_dir.or(image_dir).map(PathBuf::from),
        volumes: given.sources.volumes(&revision.spec.volumes, meta)?,
        mounts: mounts(by_variable, container, &revision.spec.volumes, given.can_mount)?,
        reload_volume: annotation(meta, RELOAD_VOLUME).map(str::to_owned),
        credentials: match is_container {
            true => container_credentials(container, meta)?,
            false => process_credentials(container, meta, (given.default_user, given.guarded))?,
        },
        restart: RestartPolicy::default(),
        read_only_root: security(container).read_only_root_filesystem == Some(true),
        resources: downward_api::resources(container)?,
        termination_message: match is_container {
            true => Some(devices::container_termination_path(container)),
            false => devices::termination_message_path(revision, container, given),
        },
        image: image.map(|local| local.image.clone()),
        startup: container.startup_probe.as_ref().map(probes::periodic_probe),
        readiness: match annotation(meta, RUNTIME_READINESS) {
            Some("none") => ProbeSpec::running(),
            _ => probes::readiness(container.readiness_probe.as_ref()),
        },
        liveness: container.liveness_probe.as_ref().map(probes::periodic_probe),
        detect_http2: false,
        startup_timeout: annotation(meta, PROGRESS_DEADLINE)
            .and_then(duration::parse_go)
            .filter(|deadline| !deadline.is_zero())
            .unwrap_or(given.progress_deadline),
        termination_grace_period: timeout(revision),
        init_containers: Vec::new(),
        sidecars: Vec::new(),
    };
    if let Some(state) = state {
        state.add_to(&mut spec);
    }
    Ok(spec)
}

fn spare(revision: &Revision) -> SparePolicy {
    match spares(&revision.metadata) {
        (count, true) => SparePolicy { warm: 0, frozen: count },
        (count, false) => SparePolicy { warm: count, frozen: 0 },
    }
}

/// The timeout of a response; and, as in upstream, the time of an instance from SIGTERM to SIGKILL (X-QP-13).
fn timeout(revision: &Revision) -> Duration {
    let seconds = revision.spec.timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let default = Duration::from_secs(TIMEOUT_SECONDS_DEFAULT.unsigned_abs());
    seconds.filter(|seconds| *seconds > 0).map_or(default, Duration::from_secs)
}

/// How the cores treat the Revision's requests.
#[must_use]
pub fn backend(revision: &Revision, unrunnable: Option<&RevisionError>) -> BackendSpec {
    let seconds = |value: Option<i64>| Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).unwrap_or(0));
    let (spec, total) = (&revision.spec, timeout(revision));
    BackendSpec {
        protocol: if spec.uses_h2c() { Protocol::H2c } else { Protocol::Http1 },
        concurrency_max: concurrency_max(revision),
        // The wait for an instance counts toward the response timeout.
        when_empty: match unrunnable {
            None => NoEndpointPolicy::Wait { timeout: total },
            Some(why) => NoEndpointPolicy::Unavailable { reason: Box::new(why.reason) },
        },
        timeouts: RequestTimeouts {
            total,
            response_start: seconds(spec.response_start_timeout_seconds),
            idle: seconds(spec.idle_timeout_seconds),
            ..stream_timeouts(&revision.metadata)
        },
    }
}

/// The command of a container.
struct InstanceProgram {
    command: Vec<String>,
    /// Without one it is a program of this host.
    image: Option<Arc<LocalImage>>,
}

fn program(
    revision: &Revision,
    container: &Container,
    given: &PlanInputs<'_>,
) -> Result<InstanceProgram, RevisionError> {
    match given.containers.filter(|_| images::runs_image(revision, container, given.images)) {
        Some(states) => {
            let image = images::local(states, container)?;
            Ok(InstanceProgram { command: images::command(&image.config, container)?, image: Some(image) })
        }
        None => Ok(InstanceProgram { command: command(revision, container, given.images)?, image: None }),
    }
}

/// AMB-06: the operator's image map, or the annotation that makes the container's command one of this
/// host. As in a container, `command` takes the place of the image's own and `args` follow.
fn command(
    revision: &Revision,
    container: &Container,
    images: &[(String, Vec<String>)],
) -> Result<Vec<String>, RevisionError> {
    let image = container.image.as_deref().unwrap_or_default();
    let own = container.command.clone().unwrap_or_default();
    let mapped = images.iter().find(|(reference, _)| reference == image).map(|(_, command)| command.clone());
    let is_process = annotation(&revision.metadata, RUNTIME_CLASS) == Some("process");
    let mut command = match mapped {
        _ if is_process || mapped.is_some() && !own.is_empty() => own,
        // The operator's arguments are taken literally; only a manifest's may refer to variables.
        Some(mapped) => mapped.iter().map(|word| word.replace('$', "$$")).collect(),
        None => {
            return Err(RevisionError {
                reason: "NoRuntime",
                message: format!(
                    "Nothing on this host runs the image \"{image}\": run the appliance as root, so that it runs containers, \
                     start with --image {image}=COMMAND, or set the template's annotation {RUNTIME_CLASS} to process and \
                     give the container a command."
                ),
            });
        }
    };
    if command.is_empty() {
        return Err(RevisionError {
            reason: "CommandNotSpecified",
            message: format!("The annotation {RUNTIME_CLASS} asks for a process, and the container has no command."),
        });
    }
    command.extend(container.args.clone().unwrap_or_default());
    Ok(command)
}

/// Where the instance sees its volumes; nowhere if its author wants to find them by the variable.
fn mounts(
    by_variable: bool,
    container: &Container,
    volumes: &[Volume],
    may_mount: bool,
) -> Result<Vec<InstanceMount>, RevisionError> {
    if by_variable {
        return Ok(Vec::new());
    }
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    if let (Some(first), false) = (mounts.first(), may_mount) {
        return Err(RevisionError {
            reason: "VolumesNotMountable",
            message: format!(
                "mountPath {} needs a mount namespace, which only root may make: run the appliance as root, or set \
                 the template's annotation {RUNTIME_VOLUMES} to env and read the files below $SLUICEGATE_VOLUMES/{}.",
                first.mount_path, first.name
            ),
        });
    }
    let is_read_only_claim = |mount: &VolumeMount| {
        let mut claims = volumes.iter().filter(|volume| volume.name == mount.name);
        claims.any(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true)))
    };
    let of_one = |mount: &VolumeMount| {
        let sub_path = mount.sub_path.clone().filter(|path| !path.is_empty());
        if let Some(path) = sub_path.as_deref().filter(|path| !is_contained_path(path)) {
            return Err(RevisionError {
                reason: "CreateContainerConfigError",
                message: format!("the subPath \"{path}\" leads out of its volume"),
            });
        }
        Ok(InstanceMount {
            volume: mount.name.clone(),
            path: PathBuf::from(&mount.mount_path),
            sub_path,
            read_only: mount.read_only == Some(true) || is_read_only_claim(mount),
        })
    };
    mounts.iter().map(of_one).collect()
}

#[cfg(test)]
pub(super) mod tests;
