//! From a Revision to the plan by which its instances run, or why they cannot.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use container::process_config;
use dataplane::table::{NoEndpointPolicy, Protocol, RequestTimeouts};
use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::data_sources::RevisionDataSources;
use super::images::{self, ImageStates, LocalImage};
use super::scale::scale;
use super::security_context::{container_credentials, credentials, security};
use super::{devices, downward_api, ports, probes};
use crate::kinds::duration;
use crate::kinds::serving::annotations::{CONFIGURATION, PROGRESS_DEADLINE, RUNTIME_CLASS, RUNTIME_VOLUMES, SERVICE};
use crate::kinds::serving::autoscaler_settings::AutoscalerSettings;
use crate::kinds::serving::revision::Revision;
use crate::kinds::serving::template::TIMEOUT_SECONDS_DEFAULT;
use crate::kinds::serving::{spare_instances::spares, stream_timeouts::stream_timeouts};
use crate::kinds::shared::{annotation, label, name, namespace};
use crate::publish::BackendSpec;
use autoscaler::{RevisionPlan, SparePolicy};
use runtime::volumes::{InstanceMount, is_contained_path};
use runtime::{InstanceSpec, ResourceLimits, Sidecar};

/// Why a Revision cannot run on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionError {
    pub reason: &'static str,
    pub message: String,
}

/// What a plan rests on besides the Revision.
#[derive(Debug, Clone, Copy)]
pub struct PlanInputs<'a> {
    /// Image references and the commands of this host that they run.
    pub images: &'a [(String, Vec<String>)],
    /// Images on this host; `None`: containers cannot run here.
    pub containers: Option<&'a ImageStates>,
    pub sources: &'a RevisionDataSources,
    /// Requests can come, or may come soon.
    pub reachable: bool,
    pub can_mount: bool,
    /// Even so, instances have no `/dev` of their own.
    pub host_devices: bool,
    /// `autodetect-http2` in `config-features`.
    pub detect_http2: bool,
    /// `progress-deadline` in `config-deployment`: a start that takes longer has failed.
    pub progress_deadline: Duration,
    /// User and group of instances whose manifest names no user.
    pub default_user: Option<(u32, u32)>,
    /// Manifests come from authors that do not own this host.
    pub guarded: bool,
    pub autoscaler: &'a AutoscalerSettings,
}

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

/// What runs as one container, alone.
fn instance(revision: &Revision, container: &Container, given: &PlanInputs<'_>) -> Result<InstanceSpec, RevisionError> {
    let meta = &revision.metadata;
    let Program { command, image } = program(revision, container, given)?;
    let is_container = image.is_some();
    let config = image.as_ref().map(|local| &local.config);
    let mut env = config.map(process_config::variables).unwrap_or_default();
    env.extend(given.sources.environment(container, meta)?);
    let own_dir = container.working_dir.as_deref().filter(|dir| !dir.is_empty());
    let image_dir = config.map(|config| config.working_dir.as_str()).filter(|dir| !dir.is_empty());
    Ok(InstanceSpec {
        namespace: namespace(meta).to_owned(),
        revision: name(meta).to_owned(),
        service: label(meta, SERVICE).unwrap_or_default().to_owned(),
        configuration: label(meta, CONFIGURATION).unwrap_or_default().to_owned(),
        command,
        env,
        port: ports::port(container),
        working_dir: own_dir.or(image_dir).map(PathBuf::from),
        volumes: given.sources.volumes(&revision.spec.volumes, meta)?,
        mounts: mounts(uses_volume_variable(revision) && !is_container, container, given.can_mount)?,
        credentials: match is_container {
            true => container_credentials(container)?,
            false => credentials(container, given.default_user, given.guarded)?,
        },
        read_only_root: security(container).read_only_root_filesystem == Some(true),
        resources: downward_api::resources(container)?,
        termination_message: match is_container {
            true => Some(devices::container_termination_path(container)),
            false => devices::termination_message_path(revision, container, given),
        },
        image: image.map(|local| local.image.clone()),
        startup: container.startup_probe.as_ref().map(probes::periodic_probe),
        readiness: probes::readiness(container.readiness_probe.as_ref()),
        liveness: container.liveness_probe.as_ref().map(probes::periodic_probe),
        detect_http2: false,
        startup_timeout: annotation(meta, PROGRESS_DEADLINE)
            .and_then(duration::parse_go)
            .filter(|deadline| !deadline.is_zero())
            .unwrap_or(given.progress_deadline),
        termination_grace_period: timeout(revision),
        init_containers: Vec::new(),
        sidecars: Vec::new(),
    })
}

/// Its author wants nothing to be mounted.
pub(super) fn uses_volume_variable(revision: &Revision) -> bool {
    annotation(&revision.metadata, RUNTIME_VOLUMES) == Some("env")
}

fn spare(revision: &Revision) -> SparePolicy {
    match spares(&revision.metadata) {
        (count, true) => SparePolicy { warm: 0, frozen: count },
        (count, false) => SparePolicy { warm: count, frozen: 0 },
    }
}

/// What an answer may take; and, as upstream has it, what an instance may take from SIGTERM to SIGKILL (X-QP-13).
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
            Some(why) => NoEndpointPolicy::Unavailable { reason: why.reason },
        },
        timeouts: RequestTimeouts {
            total,
            response_start: seconds(spec.response_start_timeout_seconds),
            idle: seconds(spec.idle_timeout_seconds),
            ..stream_timeouts(&revision.metadata)
        },
    }
}

/// Requests in one instance at a time; 0 = no limit.
pub(super) fn concurrency_max(revision: &Revision) -> u32 {
    revision.spec.container_concurrency.and_then(|c| u32::try_from(c).ok()).unwrap_or(0)
}

/// What a container starts.
struct Program {
    command: Vec<String>,
    /// Without one it is a program of this host.
    image: Option<Arc<LocalImage>>,
}

fn program(revision: &Revision, container: &Container, given: &PlanInputs<'_>) -> Result<Program, RevisionError> {
    match given.containers.filter(|_| images::runs_image(revision, container, given.images)) {
        Some(states) => {
            let image = images::local(states, container)?;
            Ok(Program { command: images::command(&image.config, container)?, image: Some(image) })
        }
        None => Ok(Program { command: command(revision, container, given.images)?, image: None }),
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
fn mounts(by_variable: bool, container: &Container, may_mount: bool) -> Result<Vec<InstanceMount>, RevisionError> {
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
            read_only: mount.read_only == Some(true),
        })
    };
    mounts.iter().map(of_one).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::LazyLock;

    use serde_json::{Value, json};

    use container::process_config::ImageConfig;

    use super::super::images::ImageState;
    use super::*;
    use crate::kinds::settings::{DeploymentSettings, RevisionDefaults};
    use runtime::ContainerImage;

    pub(in super::super) fn revision(container: Value, annotations: Value) -> Revision {
        let mut revision: Revision = serde_json::from_value(json!({
            "metadata": {
                "name": "a-1", "namespace": "ns", "annotations": annotations,
                "labels": {"serving.knative.dev/service": "a", "serving.knative.dev/configuration": "a"}
            },
            "spec": {"containers": [container]}
        }))
        .unwrap();
        revision.spec.set_defaults(&RevisionDefaults::default());
        revision
    }

    pub(in super::super) fn hello() -> Value {
        json!({"image": "hello", "args": ["-v"], "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$$$(C)"}]})
    }

    pub(in super::super) fn images() -> Vec<(String, Vec<String>)> {
        vec![("hello".into(), vec!["/bin/hello".into(), "serve".into()])]
    }

    pub(in super::super) fn given(images: &[(String, Vec<String>)]) -> PlanInputs<'_> {
        static NOTHING: LazyLock<RevisionDataSources> = LazyLock::new(RevisionDataSources::default);
        static AUTOSCALER: LazyLock<AutoscalerSettings> = LazyLock::new(AutoscalerSettings::default);
        PlanInputs {
            images,
            containers: None,
            sources: &NOTHING,
            reachable: true,
            can_mount: true,
            host_devices: false,
            detect_http2: false,
            progress_deadline: DeploymentSettings::default().progress_deadline,
            default_user: None,
            guarded: false,
            autoscaler: &AUTOSCALER,
        }
    }

    /// SRV-CON-03, SRV-CON-05: args and environment reach the process; the image map names the program.
    #[test]
    fn a_mapped_image_becomes_its_command_with_the_args_after_it() {
        let plan = plan(&revision(hello(), json!({})), &given(&images())).unwrap();
        assert_eq!(plan.instance.command, ["/bin/hello", "serve", "-v"]);
        assert_eq!(plan.instance.env, [("A".into(), "1".into()), ("B".into(), "1$$(C)".into())]);
        assert_eq!(plan.instance.service, "a");
        assert_eq!((plan.min_scale, plan.max_scale, plan.initial_scale), (0, 0, 1));
    }

    /// RT-PROBE-08: the template sets the startup timeout, or else the operator.
    #[test]
    fn a_template_says_how_long_a_start_may_take_or_the_operator_does() {
        let deadline = "serving.knative.dev/progress-deadline";
        let images = images();
        let given = PlanInputs { progress_deadline: Duration::from_secs(7), ..given(&images) };
        for (annotations, seconds) in [(json!({}), 7), (json!({deadline: "90s"}), 90), (json!({deadline: "0s"}), 7)] {
            let plan = plan(&revision(hello(), annotations), &given).unwrap();
            assert_eq!(plan.instance.startup_timeout, Duration::from_secs(seconds));
        }
    }

    /// SRV-CON-03, SRV-CON-04, SRV-CON-08: an image that is not mapped runs as its own words say, under the manifest's.
    #[test]
    fn unmapped_image_on_this_host_is_a_container() {
        let config = ImageConfig {
            entrypoint: vec!["/app".into(), "$HOME".into()],
            env: vec!["A=image".into(), "ONLY=image".into()],
            working_dir: "/srv".into(),
            ..ImageConfig::default()
        };
        let image = ContainerImage {
            layers: [PathBuf::from("/layer")].into(),
            user: "app".into(),
            stop_signal: process_config::stop_signal(&config),
            pin: Arc::new(()),
        };
        let local = LocalImage { image: image.clone(), config, digest: "r@sha256:1".into() };
        let states = ImageStates::from([("real".to_owned(), ImageState::Present(Arc::new(local)))]);
        let images = images();
        let given = PlanInputs { containers: Some(&states), default_user: Some((7, 7)), ..given(&images) };
        let container = json!({"image": "real", "args": ["$(A)"], "env": [{"name": "A", "value": "own"}]});
        let spec = plan(&revision(container, json!({})), &given).unwrap().instance;
        assert_eq!(spec.image, Some(image));
        assert_eq!(spec.command, ["/app", "$$HOME", "$(A)"]);
        assert_eq!(spec.working_dir, Some("/srv".into()));
        assert_eq!(spec.credentials.user, None, "the image's, and not that of processes");
        let last = |name: &str| spec.env.iter().rfind(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!((last("A"), last("ONLY")), (Some("own"), Some("image")));

        let mapped = plan(&revision(hello(), json!({})), &given).unwrap().instance;
        assert_eq!((mapped.image.clone(), mapped.credentials.user), (None, Some(7)));
        let class = json!({RUNTIME_CLASS: "process"});
        let process = json!({"image": "real", "command": ["/bin/x"]});
        assert_eq!(plan(&revision(process, class), &given).unwrap().instance.image, None);
    }

    #[test]
    fn image_that_is_not_there_is_told_with_its_reason() {
        let images = images();
        let refused = |state: Option<ImageState>| {
            let states = state.map(|state| ("gone".to_owned(), state)).into_iter().collect();
            let given = PlanInputs { containers: Some(&states), ..given(&images) };
            plan(&revision(json!({"image": "gone"}), json!({})), &given).unwrap_err()
        };
        let failed = ImageState::Failed { reason: "ContainerMissing", message: "gone: not found".into() };
        assert_eq!(refused(Some(failed)).message, "gone: not found");
        assert_eq!(refused(Some(ImageState::Pulling("2 of 3 layers".into()))).reason, "ResolvingDigests");
        assert_eq!(refused(None).reason, "ResolvingDigests");
    }

    /// SRV-CON-04: `command` is what starts.
    #[test]
    fn the_containers_own_command_wins_over_the_mapped_one() {
        let mut container = hello();
        container["command"] = json!(["/bin/other"]);
        let plan = plan(&revision(container, json!({})), &given(&images())).unwrap();
        assert_eq!(plan.instance.command, ["/bin/other", "-v"]);
    }

    /// AMB-06: no runner, no instances, and a reason that says what to do.
    #[test]
    fn an_image_that_nobody_runs_says_what_to_do() {
        let refused = plan(&revision(hello(), json!({})), &given(&[])).unwrap_err();
        assert_eq!(refused.reason, "NoRuntime");
        assert!(refused.message.contains("--image hello=COMMAND"));
    }

    #[test]
    fn the_process_annotation_runs_the_containers_command() {
        let class = json!({"runtime.sluicegate.dev/class": "process"});
        let refused = plan(&revision(hello(), class.clone()), &given(&[])).unwrap_err();
        assert_eq!(refused.reason, "CommandNotSpecified");

        let container = json!({"image": "hello", "command": ["/bin/sh"], "args": ["-c", "x"]});
        let plan = plan(&revision(container, class), &given(&[])).unwrap();
        assert_eq!(plan.instance.command, ["/bin/sh", "-c", "x"]);
    }

    #[test]
    fn annotations_set_the_scale_and_unreachable_versions_keep_nobody() {
        let annotations = json!({
            "autoscaling.knative.dev/min-scale": "2", "autoscaling.knative.dev/maxScale": "5",
            "autoscaling.knative.dev/initial-scale": "3", "autoscaling.knative.dev/target": "10",
            "autoscaling.knative.dev/window": "20s"
        });
        let revision = revision(hello(), annotations);
        let reachable = plan(&revision, &given(&images())).unwrap();
        assert_eq!((reachable.min_scale, reachable.max_scale, reachable.initial_scale), (2, 5, 3));
        assert!((reachable.target - 7.0).abs() < 1e-9);
        assert_eq!(reachable.stable_window, Duration::from_secs(20));
        assert_eq!(plan(&revision, &PlanInputs { reachable: false, ..given(&images()) }).unwrap().min_scale, 0);
    }

    /// Init containers run in order, and the largest limit of any container applies.
    #[test]
    fn init_containers_run_before_the_others() {
        let limits = |memory: &str| json!({"limits": {"memory": memory}});
        let mut container = hello();
        container["resources"] = limits("2Mi");
        let mut both = revision(container, json!({}));
        let one = json!({"name": "one", "image": "hello", "command": ["/bin/one"], "resources": limits("3Mi")});
        let two = json!({"name": "two", "image": "hello", "resources": limits("1Mi")});
        both.spec.init_containers = serde_json::from_value(json!([one, two])).unwrap();
        let found = plan(&both, &given(&images())).unwrap().instance;
        let commands: Vec<_> = found.init_containers.iter().map(|one| one.spec.command.join(" ")).collect();
        assert_eq!(commands, ["/bin/one", "/bin/hello serve"]);
        assert_eq!(found.resources.memory_bytes_max, 3 << 20);
        both.spec.init_containers[1].resources = None;
        assert_eq!(plan(&both, &given(&images())).unwrap().instance.resources.memory_bytes_max, 0);
    }

    /// SRV-REV-09, AMB-10: the container with the port serves, at any position; the others are sidecars, and their
    /// resources are added up.
    /// together.
    #[test]
    fn several_containers_are_one_that_serves_and_others_beside_it() {
        let limits = |memory: &str| json!({"limits": {"memory": memory}});
        let mut both = revision(
            json!({"name": "helper", "image": "hello", "command": ["/bin/help"], "resources": limits("1Mi"),
                "readinessProbe": {"tcpSocket": {"port": 9999}}}),
            json!({}),
        );
        let mut serving = hello();
        (serving["name"], serving["resources"]) = (json!("server"), limits("2Mi"));
        serving["ports"] = json!([{"containerPort": 8888}]);
        both.spec.containers.push(serde_json::from_value(serving).unwrap());
        let found = plan(&both, &given(&images())).unwrap().instance;
        assert_eq!((found.command[0].as_str(), found.port), ("/bin/hello", 8888));
        assert_eq!(found.resources.memory_bytes_max, 3 << 20);
        let [helper] = &*found.sidecars else { panic!("{:?}", found.sidecars) };
        assert_eq!((helper.name.as_str(), &*helper.spec.command), ("helper", &["/bin/help".to_owned()][..]));
        assert_eq!((helper.spec.port, helper.has_readiness_probe), (9999, true));

        both.spec.containers[0].resources = None;
        let open = plan(&both, &given(&images())).unwrap().instance;
        assert_eq!(open.resources.memory_bytes_max, 0, "one without a limit bounds nobody");
        both.spec.containers[0].image = Some("unknown".into());
        both.spec.containers[0].command = None;
        assert_eq!(plan(&both, &given(&images())).unwrap_err().reason, "NoRuntime");
    }

    #[test]
    fn a_mount_needs_root_or_the_word_that_the_variable_will_do() {
        let mut container = hello();
        container["volumeMounts"] = json!([{"name": "v", "mountPath": "/etc/v"}]);
        let with_volume = |annotations: Value| {
            let mut revision = revision(container.clone(), annotations);
            revision.spec.volumes = serde_json::from_value(json!([{"name": "v", "emptyDir": {}}])).unwrap();
            revision
        };
        let images = images();
        let as_root = plan(&with_volume(json!({})), &given(&images)).unwrap();
        assert_eq!(as_root.instance.mounts[0].path, PathBuf::from("/etc/v"));

        let others = PlanInputs { can_mount: false, ..given(&images) };
        let refused = plan(&with_volume(json!({})), &others).unwrap_err();
        assert_eq!(refused.reason, "VolumesNotMountable");
        assert!(refused.message.contains("/etc/v") && refused.message.contains("SLUICEGATE_VOLUMES/v"));

        let by_variable = plan(&with_volume(json!({"runtime.sluicegate.dev/volumes": "env"})), &others).unwrap();
        assert_eq!((by_variable.instance.mounts.len(), by_variable.instance.volumes.len()), (0, 1));
    }

    /// SRV-REV-11, SRV-REV-12: timeouts and concurrency reach the cores.
    #[test]
    fn the_backend_carries_timeouts_and_concurrency() {
        let mut revision = revision(hello(), json!({}));
        revision.spec.container_concurrency = Some(1);
        revision.spec.timeout_seconds = Some(10);
        assert_eq!(
            plan(&revision, &given(&images())).unwrap().instance.termination_grace_period,
            Duration::from_secs(10)
        );
        let spec = backend(&revision, None);
        assert_eq!((spec.concurrency_max, spec.timeouts.total), (1, Duration::from_secs(10)));
        assert_eq!(spec.when_empty, NoEndpointPolicy::Wait { timeout: Duration::from_secs(10) });
        let why = RevisionError { reason: "ErrImagePull", message: String::new() };
        assert_eq!(backend(&revision, Some(&why)).when_empty, NoEndpointPolicy::Unavailable { reason: "ErrImagePull" });
    }

    /// The name of the container's port selects the protocol.
    #[test]
    fn a_port_named_h2c_is_spoken_to_in_http2() {
        for (ports, protocol) in [
            (json!([]), Protocol::Http1),
            (json!([{"containerPort": 8080}]), Protocol::Http1),
            (json!([{"name": "http1", "containerPort": 8080}]), Protocol::Http1),
            (json!([{"name": "h2c", "containerPort": 8080}]), Protocol::H2c),
        ] {
            let revision = revision(json!({"image": "hello", "ports": ports}), json!({}));
            assert_eq!(backend(&revision, None).protocol, protocol, "{ports}");
        }
    }

    /// RT-PORT-02, RT-PORT-07: only a port without a name is probed for its protocol, and only if the operator
    /// enables it.
    #[test]
    fn a_port_without_a_name_is_asked_what_it_speaks() {
        for (ports, on, is_asked) in [
            (json!([]), true, true),
            (json!([{"containerPort": 8080}]), true, true),
            (json!([{"name": "http1", "containerPort": 8080}]), true, false),
            (json!([{"name": "h2c", "containerPort": 8080}]), true, false),
            (json!([]), false, false),
        ] {
            let revision = revision(json!({"image": "hello", "ports": ports}), json!({}));
            let plan = plan(&revision, &PlanInputs { detect_http2: on, ..given(&images()) }).unwrap();
            assert_eq!(plan.instance.detect_http2, is_asked, "{ports} {on}");
        }
    }
}
