//! The rules of the pod part of a revision: containers, ports, environment, probes, volumes.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::field_errors::{FieldErrors, MISSING, MUST_NOT_SET, exactly_one};
use crate::serving::revision_spec::{RevisionSpec, env, resources, security, volumes};
use crate::settings::ServingFeatures;
use support::names::{NOT_A_SUBDOMAIN, is_dns_subdomain, is_dns1123_label, is_image_reference, label_error};

/// Ports that upstream's own sidecar takes; a manifest that runs here should run there.
const PORTS_RESERVED: [i32; 6] = [8008, 8012, 8013, 8022, 9090, 9091];
/// A TCP port is sixteen bits.
const PORT_MAX: i32 = 65_535;
const NAMES_RESERVED: [&str; 1] = ["queue-proxy"];

pub(super) fn validate(spec: &RevisionSpec, at: &str, problems: &mut FieldErrors) {
    if spec.containers.is_empty() {
        problems.add(format!("{at}.containers"), MISSING);
    }
    if spec.automount_service_account_token == Some(true) {
        problems.add(format!("{at}.automountServiceAccountToken"), MUST_NOT_SET);
    }
    if let Some(account) = spec.service_account_name.as_deref().filter(|name| !name.is_empty())
        && !is_dns_subdomain(account)
    {
        let path = format!("{at}.serviceAccountName");
        let why = format!("invalid value: {account}: {path}\n{NOT_A_SUBDOMAIN}");
        problems.add(path, why);
    }
    validate_port_count(spec, at, problems);
    let volumes = volumes::validate(&spec.volumes, at, problems);
    let mut names = HashSet::new();
    let mut mounted = HashSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let at = format!("{at}.containers[{index}]");
        if !names.insert(container.name.as_str()) {
            problems.add(format!("{at}.name"), format!("duplicate container name \"{}\"", container.name));
        }
        let serves = spec.containers.len() == 1 || container.ports.as_ref().is_some_and(|p| !p.is_empty());
        validate_container(container, serves, &at, problems);
        volumes::validate_mounts(container, &volumes, &mut mounted, &at, problems);
    }
    for (index, container) in spec.init_containers.iter().enumerate() {
        let at = format!("{at}.initContainers[{index}]");
        if !names.insert(container.name.as_str()) {
            problems.add(format!("{at}.name"), format!("duplicate container name \"{}\"", container.name));
        }
        validate_container(container, false, &at, problems);
        for (field, probe) in probes(container) {
            if probe.is_some() {
                problems.add(format!("{at}.{field}"), "field not allowed in an init container");
            }
        }
        volumes::validate_mounts(container, &volumes, &mut mounted, &at, problems);
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        if !volume.name.is_empty() && !mounted.contains(volume.name.as_str()) {
            problems.add(
                format!("{at}.volumes[{index}].name"),
                format!("volume with name \"{}\" not mounted", volume.name),
            );
        }
    }
}

/// SRV-CON-11, AMB-10: of all containers exactly one serves.
fn validate_port_count(spec: &RevisionSpec, at: &str, problems: &mut FieldErrors) {
    let count: usize = spec.containers.iter().map(|c| c.ports.as_ref().map_or(0, Vec::len)).sum();
    if count > 1 {
        problems.add(
            format!("{at}.containers[*].ports"),
            "more than one container port is set: only a single port is allowed across all containers",
        );
    } else if count == 0 && spec.containers.len() > 1 {
        problems.add(format!("{at}.containers[*].ports"), MISSING);
    }
}

fn validate_container(container: &Container, serves: bool, at: &str, problems: &mut FieldErrors) {
    if NAMES_RESERVED.contains(&container.name.as_str()) {
        problems.add(format!("{at}.name"), format!("\"{}\" is a reserved container name", container.name));
    } else if !is_dns1123_label(&container.name) {
        // Upstream leaves this one to the Pod, and so the words are Kubernetes'.
        let why = label_error(&container.name);
        problems.add(format!("{at}.name"), format!("Invalid value: {:?}: {why}", container.name));
    }
    match container.image.as_deref().unwrap_or_default() {
        "" => problems.add(format!("{at}.image"), MISSING),
        image if !is_image_reference(image) => {
            problems.add(format!("{at}.image"), format!("invalid value: {image}: Failed to parse image reference"));
        }
        _ => {}
    }
    for (field, set) in [
        ("lifecycle", container.lifecycle.is_some()),
        ("resizePolicy", container.resize_policy.is_some()),
        ("restartPolicy", container.restart_policy.is_some()),
        ("stdin", container.stdin == Some(true)),
        ("stdinOnce", container.stdin_once == Some(true)),
        ("tty", container.tty == Some(true)),
        ("volumeDevices", container.volume_devices.is_some()),
    ] {
        if set {
            problems.add(format!("{at}.{field}"), MUST_NOT_SET);
        }
    }
    if let Some(policy) = &container.termination_message_policy
        && !["", "File", "FallbackToLogsOnError"].contains(&policy.as_str())
    {
        problems.add(format!("{at}.terminationMessagePolicy"), format!("invalid value: {policy}"));
    }
    if let Some(path) = container.termination_message_path.as_deref().filter(|path| !path.is_empty())
        && (!volumes::is_clean_path(path) || volumes::PATHS_RESERVED.contains(&path))
    {
        let why = format!("invalid value: {path}: must be absolute and clean, and no reserved path");
        problems.add(format!("{at}.terminationMessagePath"), why);
    }
    validate_ports(container, at, problems);
    for (index, env) in container.env.iter().flatten().enumerate() {
        env::validate(env, serves, &format!("{at}.env[{index}]"), problems);
    }
    for (index, from) in container.env_from.iter().flatten().enumerate() {
        let set = usize::from(from.config_map_ref.is_some()) + usize::from(from.secret_ref.is_some());
        exactly_one(set, &format!("{at}.envFrom[{index}]"), "configMapRef, secretRef", problems);
    }
    security::validate(container, at, problems);
    resources::validate(container, at, problems);
    if serves {
        for (field, probe) in probes(container) {
            if let Some(probe) = probe {
                let at = format!("{at}.{field}");
                validate_probe(probe, field == "readinessProbe", &at, problems);
                validate_probe_port(probe, container, &at, problems);
            }
        }
    }
}

/// SRV-CON-11, and what of several containers the operator's features allow.
pub(super) fn validate_by(spec: &RevisionSpec, at: &str, features: &ServingFeatures, problems: &mut FieldErrors) {
    let count = spec.containers.len();
    if count > 1 && !features.is_enabled("multi-container") {
        let why = format!("multi-container is off, but found {count} containers");
        problems.add(format!("{at}.containers"), why);
    }
    let before = spec.init_containers.len();
    if before > 0 && !features.is_enabled("kubernetes.podspec-init-containers") {
        let why = format!("pod spec support for init-containers is off, but found {before} init containers");
        problems.add(format!("{at}.initContainers"), format!("{MUST_NOT_SET}: {why}"));
    }
    let may_write = features.is_allowed("kubernetes.podspec-persistent-volume-write");
    let claims = features.is_allowed("kubernetes.podspec-persistent-volume-claim").then_some(may_write);
    volumes::reject_claims(spec, claims, at, problems);
    if !features.is_allowed("kubernetes.podspec-volumes-emptydir") {
        volumes::reject_empty_dirs(&spec.volumes, at, problems);
    }
    let are_probed = features.is_enabled("multi-container-probing");
    for (index, container) in spec.containers.iter().enumerate() {
        if count == 1 || container.ports.as_ref().is_some_and(|ports| !ports.is_empty()) {
            continue;
        }
        for (field, probe) in probes(container) {
            let at = format!("{at}.containers[{index}].{field}");
            match probe {
                Some(probe) if are_probed => {
                    validate_probe(probe, field == "readinessProbe", &at, problems);
                }
                Some(_) => problems.add(at, MUST_NOT_SET),
                None => {}
            }
        }
    }
}

fn probes(container: &Container) -> [(&'static str, Option<&Probe>); 3] {
    [
        ("livenessProbe", container.liveness_probe.as_ref()),
        ("readinessProbe", container.readiness_probe.as_ref()),
        ("startupProbe", container.startup_probe.as_ref()),
    ]
}

fn validate_ports(container: &Container, at: &str, problems: &mut FieldErrors) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let at = format!("{at}.ports[{index}]");
        if !(0..=PORT_MAX).contains(&port.container_port) {
            problems.add(format!("{at}.containerPort"), format!("expected 0 <= {} <= {PORT_MAX}", port.container_port));
        } else if PORTS_RESERVED.contains(&port.container_port) {
            problems.add(format!("{at}.containerPort"), format!("{} is a reserved port", port.container_port));
        }
        if let Some(name) = &port.name
            && !["", "http1", "h2c"].contains(&name.as_str())
        {
            problems.add(
                format!("{at}.name"),
                format!("Port name {name} is not allowed: Name must be empty, or one of: 'h2c', 'http1'"),
            );
        }
        if let Some(protocol) = &port.protocol
            && !["", "TCP"].contains(&protocol.as_str())
        {
            problems.add(format!("{at}.protocol"), format!("invalid value: {protocol}"));
        }
        for (field, set) in [("hostPort", port.host_port.is_some_and(|p| p != 0)), ("hostIP", port.host_ip.is_some())] {
            if set {
                problems.add(format!("{at}.{field}"), MUST_NOT_SET);
            }
        }
    }
}

fn validate_probe(probe: &Probe, readiness: bool, at: &str, problems: &mut FieldErrors) {
    let handlers = [probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.exec.is_some(), probe.grpc.is_some()];
    exactly_one(handlers.iter().filter(|set| **set).count(), at, "exec, grpc, httpGet, tcpSocket", problems);

    let period = probe.period_seconds.unwrap_or(0);
    let floor = |value: Option<i32>, min: i32, field: &str, problems: &mut FieldErrors| {
        if let Some(value) = value
            && value < min
        {
            problems.add(format!("{at}.{field}"), format!("expected {min} <= {value} <= {}", i32::MAX));
        }
    };
    floor(probe.period_seconds, 0, "periodSeconds", problems);
    floor(probe.initial_delay_seconds, 0, "initialDelaySeconds", problems);
    floor(probe.success_threshold, 1, "successThreshold", problems);
    if !readiness && let Some(count) = probe.success_threshold.filter(|count| *count > 1) {
        // Upstream leaves this one to the Pod, and so the words are Kubernetes'.
        problems.add(format!("{at}.successThreshold"), format!("Invalid value: {count}: must be 1"));
    }
    if readiness && period == 0 {
        // "As fast as possible until ready" has no rounds that could be counted.
        for (field, value) in [("failureThreshold", probe.failure_threshold), ("timeoutSeconds", probe.timeout_seconds)]
        {
            if value.unwrap_or(0) != 0 {
                problems.add(format!("{at}.{field}"), format!("{field} is disallowed when periodSeconds is zero"));
            }
        }
    } else {
        floor(probe.failure_threshold, 1, "failureThreshold", problems);
        floor(probe.timeout_seconds, 1, "timeoutSeconds", problems);
    }
}

/// A probe that names a port names the container's. One without a name is called `http`, as upstream calls it.
fn validate_probe_port(probe: &Probe, container: &Container, at: &str, problems: &mut FieldErrors) {
    let port = container.ports.iter().flatten().next().and_then(|port| port.name.as_deref());
    let own = port.filter(|name| !name.is_empty()).unwrap_or("http");
    let named = [
        ("httpGet", probe.http_get.as_ref().map(|get| &get.port)),
        ("tcpSocket", probe.tcp_socket.as_ref().map(|tcp| &tcp.port)),
    ];
    for (field, port) in named {
        if let Some(IntOrString::String(name)) = port
            && !name.is_empty()
            && name != own
        {
            let why = format!("invalid value: {name}: Probe port must match container port");
            problems.add(format!("{at}.{field}.port"), why);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use crate::serving::revision_spec::pod::*;
    use crate::settings::ConfigMapSetting;

    /// The problems of a spec of one valid container, patched with `patch`.
    fn found(patch: Value) -> Vec<String> {
        let mut container = json!({"name": "user-container", "image": "hello"});
        for (key, value) in patch.as_object().unwrap() {
            container[key] = value.clone();
        }
        found_in(json!({"containers": [container]}))
    }

    pub(in super::super) fn found_in(spec: Value) -> Vec<String> {
        let spec: RevisionSpec = serde_json::from_value(spec).unwrap();
        let mut problems = FieldErrors::default();
        validate(&spec, "spec", &mut problems);
        problems.list.into_iter().map(|p| format!("{}: {}", p.field, p.message)).collect()
    }

    /// SRV-CON-34: only a readiness probe counts successes in a row.
    #[test]
    fn success_threshold_beyond_readiness_is_one() {
        let probe = json!({"tcpSocket": {"port": 0}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 1, "successThreshold": 2});
        assert!(found(json!({"readinessProbe": probe})).is_empty());
        for field in ["livenessProbe", "startupProbe"] {
            let reported = format!("spec.containers[0].{field}.successThreshold: Invalid value: 2: must be 1");
            assert_eq!(found(json!({field: probe})), [reported]);
        }
    }

    #[test]
    fn the_least_container_is_taken() {
        assert!(found(json!({})).is_empty());
    }

    /// SRV-CON-07, SRV-CON-11, SRV-CON-16, SRV-CON-17, SRV-CON-19, SRV-CON-20, SRV-CON-48, SRV-CON-50,
    /// RT-PORT-04, RT-PORT-05, RT-PORT-09, RT-LIFE-13, RT-ISO-02: each row breaks one rule, and the answer
    /// names the field.
    #[test]
    fn each_broken_rule_is_named_with_its_field() {
        for (patch, field) in [
            (json!({"image": ""}), "spec.containers[0].image: missing"),
            (json!({"image": "Not An Image"}), "spec.containers[0].image: invalid"),
            (json!({"name": "queue-proxy"}), "spec.containers[0].name"),
            (
                json!({"ports": [{"containerPort": 80}, {"containerPort": 81}]}),
                "spec.containers[*].ports: more than one",
            ),
            (json!({"ports": [{"containerPort": 8012}]}), "spec.containers[0].ports[0].containerPort"),
            (json!({"ports": [{"containerPort": 70000}]}), "spec.containers[0].ports[0].containerPort"),
            (json!({"ports": [{"containerPort": 80, "name": "grpc"}]}), "spec.containers[0].ports[0].name"),
            (json!({"ports": [{"containerPort": 80, "protocol": "UDP"}]}), "spec.containers[0].ports[0].protocol"),
            (json!({"ports": [{"containerPort": 80, "hostPort": 1}]}), "spec.containers[0].ports[0].hostPort"),
            (json!({"env": [{"name": ""}]}), "spec.containers[0].env[0].name"),
            (json!({"env": [{"name": "PORT", "value": "1"}]}), "spec.containers[0].env[0].name"),
            (json!({"env": [{"name": "K_SERVICE", "value": "1"}]}), "spec.containers[0].env[0].name"),
            (
                json!({"env": [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
                "spec.containers[0].env[0]: expected exactly one",
            ),
            (json!({"env": [{"name": "A", "valueFrom": {}}]}), "spec.containers[0].env[0].valueFrom"),
            (json!({"envFrom": [{"prefix": "a"}]}), "spec.containers[0].envFrom[0]"),
            (json!({"lifecycle": {}}), "spec.containers[0].lifecycle"),
            (json!({"restartPolicy": "Always"}), "spec.containers[0].restartPolicy"),
            (
                json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}),
                "spec.containers[0].resizePolicy",
            ),
            (json!({"tty": true}), "spec.containers[0].tty"),
            (json!({"volumeDevices": []}), "spec.containers[0].volumeDevices"),
            (json!({"terminationMessagePolicy": "Never"}), "spec.containers[0].terminationMessagePolicy"),
            (json!({"terminationMessagePath": "a/b"}), "spec.containers[0].terminationMessagePath"),
            (json!({"terminationMessagePath": "/dev"}), "spec.containers[0].terminationMessagePath"),
            (
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"},
                    "secretKeyRef": {"name": "s", "key": "k"}}}]}),
                "spec.containers[0].env[0].valueFrom: expected exactly one",
            ),
            (json!({"readinessProbe": {}}), "spec.containers[0].readinessProbe: expected exactly one, got neither"),
            (
                json!({"readinessProbe": {"tcpSocket": {"port": 0}, "failureThreshold": 3}}),
                "spec.containers[0].readinessProbe.failureThreshold",
            ),
            (
                json!({"livenessProbe": {"tcpSocket": {"port": 0}, "timeoutSeconds": 0}}),
                "spec.containers[0].livenessProbe.timeoutSeconds",
            ),
            (json!({"volumeMounts": [{"name": "no", "mountPath": "/x"}]}), "spec.containers[0].volumeMounts[0].name"),
        ] {
            let problems = found(patch.clone());
            assert!(problems.len() == 1 && problems[0].starts_with(field), "{patch}: {problems:?}");
        }
    }

    /// SRV-CON-32, SRV-CON-35: a port is named as the container's is, or not at all.
    #[test]
    fn a_probe_names_no_other_port_than_the_containers() {
        let with = |ports: Value, port: Value| {
            found(json!({"ports": ports, "readinessProbe": {"httpGet": {"port": port}},
                         "livenessProbe": {"tcpSocket": {"port": port}, "timeoutSeconds": 1, "failureThreshold": 1}}))
        };
        let (none, unnamed) = (json!([]), json!([{"containerPort": 80}]));
        let named = json!([{"containerPort": 80, "name": "h2c"}]);
        for (ports, port, taken) in [
            (&named, json!("h2c"), true),
            (&named, json!(8080), true),
            (&named, json!(""), true),
            (&named, json!("http1"), false),
            (&unnamed, json!("http"), true),
            (&unnamed, json!("web"), false),
            (&none, json!("http1"), false),
        ] {
            let found = with(ports.clone(), port.clone());
            assert_eq!(found.is_empty(), taken, "{ports} {port}: {found:?}");
            if let (false, Some(name)) = (taken, port.as_str()) {
                let reported = format!("invalid value: {name}: Probe port must match container port");
                assert_eq!(
                    found,
                    [
                        format!("spec.containers[0].livenessProbe.tcpSocket.port: {reported}"),
                        format!("spec.containers[0].readinessProbe.httpGet.port: {reported}"),
                    ]
                );
            }
        }
    }

    /// SRV-REV-09 (AMB-10): several containers are fine as long as one of them serves.
    #[test]
    fn of_several_containers_exactly_one_has_the_port() {
        let serving = json!({"name": "a", "image": "a", "ports": [{"containerPort": 8080}]});
        let sidecar = json!({"name": "b", "image": "b", "env": [{"name": "PORT", "value": "9"}]});
        assert!(found_in(json!({"containers": [serving, sidecar]})).is_empty());
        assert_eq!(
            found_in(json!({"containers": [sidecar, {"name": "c", "image": "c"}]})),
            ["spec.containers[*].ports: missing field(s)"]
        );
        assert_eq!(found_in(json!({"containers": []})), ["spec.containers: missing field(s)"]);
        let twin = json!({"name": "a", "image": "a"});
        assert!(found_in(json!({"containers": [serving, twin]}))[0].contains("duplicate container name"));
    }

    /// Upstream's `kubernetes.podspec-init-containers`: off until the operator turns it on; they are not probed, and their
    /// names and mounts count with the others'.
    #[test]
    fn init_containers_need_the_operators_feature() {
        let with = |before: Value| {
            json!({"containers": [{"name": "a", "image": "a"}], "initContainers": [before],
                "volumes": [{"name": "v", "emptyDir": {}}]})
        };
        let mount = json!([{"name": "v", "mountPath": "/v"}]);
        let good = with(json!({"name": "b", "image": "b", "volumeMounts": mount}));
        assert_eq!(found_in(good.clone()), [] as [&str; 0]);
        let probe = json!({"tcpSocket": {"port": 1}});
        let bad = json!({"name": "a", "volumeMounts": mount, "startupProbe": probe, "lifecycle": {}});
        let at = "spec.initContainers[0]";
        assert_eq!(
            found_in(with(bad)),
            [
                format!("{at}.name: duplicate container name \"a\""),
                format!("{at}.image: {MISSING}"),
                format!("{at}.lifecycle: {MUST_NOT_SET}"),
                format!("{at}.startupProbe: field not allowed in an init container"),
            ]
        );
        let found = |word: &str| {
            let data = [("kubernetes.podspec-init-containers".to_owned(), word.to_owned())].into();
            let mut problems = FieldErrors::default();
            let features = ServingFeatures::parse(&data, &mut problems);
            validate_by(&serde_json::from_value(good.clone()).unwrap(), "spec", &features, &mut problems);
            problems.list.into_iter().map(|p| format!("{}: {}", p.field, p.message)).collect::<Vec<_>>()
        };
        let reported = "pod spec support for init-containers is off, but found 1 init containers";
        assert_eq!(found("disabled"), [format!("spec.initContainers: {MUST_NOT_SET}: {reported}")]);
        assert!(found("enabled").is_empty());
    }
}
