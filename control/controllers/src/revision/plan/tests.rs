use std::sync::LazyLock;

use serde_json::{Value, json};

use container::process_config::ImageProcess;

use super::super::data_sources::RevisionDataSources;
use super::super::images::{ImageState, ImageStates};
use super::*;
use runtime::ContainerImage;
use types::settings::AutoscalerSettings;
use types::settings::{DeploymentSettings, RevisionDefaults};

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
        state_root: None,
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
    let config = ImageProcess {
        entrypoint: vec!["/app".into(), "$HOME".into()],
        env: vec!["A=image".into(), "ONLY=image".into()],
        working_dir: "/srv".into(),
        ..ImageProcess::default()
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
fn missing_image_is_reported_with_reason() {
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
fn containers_are_one_server_and_sidecars() {
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
    assert_eq!(open.resources.memory_bytes_max, 0, "a container without a limit sets no bound");
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
    assert_eq!(plan(&revision, &given(&images())).unwrap().instance.termination_grace_period, Duration::from_secs(10));
    let spec = backend(&revision, None);
    assert_eq!((spec.concurrency_max, spec.timeouts.total), (1, Duration::from_secs(10)));
    assert_eq!(spec.when_empty, NoEndpointPolicy::Wait { timeout: Duration::from_secs(10) });
    let why = RevisionError { reason: "ErrImagePull", message: String::new() };
    let reason = Box::new("ErrImagePull");
    assert_eq!(backend(&revision, Some(&why)).when_empty, NoEndpointPolicy::Unavailable { reason });
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
