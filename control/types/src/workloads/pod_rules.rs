//! The rules of a Pod's spec, in Kubernetes' words.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};

use super::{CONTAINERS_MAX, pod_volume_rules, probe_rules};
use crate::field_errors::FieldErrors;
use crate::quantity;
use crate::serving::revision_spec::security;
use support::names::{is_dns1123_label, label_error, port_name_error};

const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Says what is wrong with a Pod's spec, or with that of a template for Pods.
pub(super) fn validate(spec: &PodSpec, at: &str, problems: &mut FieldErrors) {
    if spec.containers.is_empty() {
        problems.add(format!("{at}.containers"), "Required value");
    }
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    if count > CONTAINERS_MAX {
        let why = format!("Too many: {count}: must have at most {CONTAINERS_MAX} items");
        return problems.add(format!("{at}.containers"), why);
    }
    let volumes = pod_volume_rules::validate(spec, at, problems);
    let mut names = HashSet::new();
    let lists =
        [("initContainers", spec.init_containers.as_deref().unwrap_or_default()), ("containers", &spec.containers)];
    for (list, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            let at = format!("{at}.{list}[{index}]");
            validate_container(container, &at, &volumes, problems);
            if !container.name.is_empty() && !names.insert(container.name.as_str()) {
                problems.add(format!("{at}.name"), format!("Duplicate value: {:?}", container.name));
            }
            let restart = container.restart_policy.as_deref();
            if let Some(policy) = restart.filter(|policy| list == "containers" || *policy != "Always") {
                let why =
                    format!("Forbidden: {policy:?} is not supported here: only init containers with \"Always\" are");
                problems.add(format!("{at}.restartPolicy"), why);
            }
        }
    }
    unsupported(spec.restart_policy.as_deref(), &RESTART_POLICIES, &format!("{at}.restartPolicy"), problems);
    if let Some(grace) = spec.termination_grace_period_seconds.filter(|grace| *grace < 0) {
        let why = format!("Invalid value: {grace}: must be greater than or equal to 0");
        problems.add(format!("{at}.terminationGracePeriodSeconds"), why);
    }
    if let Some(seconds) = spec.active_deadline_seconds.filter(|seconds| !(1..=i64::from(i32::MAX)).contains(seconds)) {
        let why = format!("Invalid value: {seconds}: must be between 1 and 2147483647, inclusive");
        problems.add(format!("{at}.activeDeadlineSeconds"), why);
    }
    if spec.ephemeral_containers.as_ref().is_some_and(|all| !all.is_empty()) {
        problems.add(format!("{at}.ephemeralContainers"), "Forbidden: cannot be set on create");
    }
    if let Some(context) = &spec.security_context {
        // It holds for each container without an own user or group.
        let (user, group) = (context.run_as_user, context.run_as_group);
        security::validate_ids(user, group, &format!("{at}.securityContext"), problems);
    }
    for (field, set) in [("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)] {
        if set == Some(true) {
            problems.add(format!("{at}.{field}"), "Forbidden: containers have namespaces of their own here");
        }
    }
}

/// A word that has to be one of these, or absent.
pub(super) fn unsupported(found: Option<&str>, known: &[&str], field: &str, problems: &mut FieldErrors) {
    if let Some(found) = found.filter(|found| !known.contains(found)) {
        let all: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
        problems.add(field, format!("Unsupported value: {found:?}: supported values: {}", all.join(", ")));
    }
}

fn validate_container(container: &Container, at: &str, volumes: &HashSet<&str>, problems: &mut FieldErrors) {
    let name = container.name.as_str();
    if name.is_empty() {
        problems.add(format!("{at}.name"), "Required value");
    } else if !is_dns1123_label(name) {
        problems.add(format!("{at}.name"), format!("Invalid value: {name:?}: {}", label_error(name)));
    }
    match container.image.as_deref() {
        None | Some("") => problems.add(format!("{at}.image"), "Required value"),
        Some(image) if image.trim() != image => {
            let why = format!("Invalid value: {image:?}: must not have leading or trailing whitespace");
            problems.add(format!("{at}.image"), why);
        }
        Some(_) => {}
    }
    let pull = container.image_pull_policy.as_deref();
    unsupported(pull, &PULL_POLICIES, &format!("{at}.imagePullPolicy"), problems);
    validate_ports(container.ports.as_deref().unwrap_or_default(), at, problems);
    validate_env(container, at, problems);
    pod_volume_rules::validate_mounts(container, volumes, at, problems);
    probe_rules::validate(container, at, problems);
    validate_resources(container, at, problems);
    security::validate_for_pod(container, at, problems);
    if container.security_context.as_ref().and_then(|context| context.privileged) == Some(true) {
        problems.add(format!("{at}.securityContext.privileged"), "Forbidden: disallowed by cluster policy");
    }
}

fn validate_ports(ports: &[ContainerPort], at: &str, problems: &mut FieldErrors) {
    let mut names = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = format!("{at}.ports[{index}]");
        let number = port.container_port;
        if !(1..=65535).contains(&number) {
            let why = format!("Invalid value: {number}: must be between 1 and 65535, inclusive");
            problems.add(format!("{at}.containerPort"), why);
        }
        unsupported(port.protocol.as_deref(), &PROTOCOLS, &format!("{at}.protocol"), problems);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            if let Some(why) = port_name_error(name) {
                problems.add(format!("{at}.name"), format!("Invalid value: {name:?}: {why}"));
            } else if !names.insert(name) {
                problems.add(format!("{at}.name"), format!("Duplicate value: {name:?}"));
            }
        }
    }
}

fn validate_env(container: &Container, at: &str, problems: &mut FieldErrors) {
    for (index, env) in container.env.iter().flatten().enumerate() {
        let at = format!("{at}.env[{index}]");
        if env.name.is_empty() {
            problems.add(format!("{at}.name"), "Required value");
        }
        let Some(from) = &env.value_from else { continue };
        if env.value.as_ref().is_some_and(|value| !value.is_empty()) {
            let why = "Invalid value: \"\": may not be specified when `value` is not empty";
            problems.add(format!("{at}.valueFrom"), why);
        }
        let sources = [
            from.config_map_key_ref.is_some(),
            from.secret_key_ref.is_some(),
            from.field_ref.is_some(),
            from.resource_field_ref.is_some(),
        ];
        match sources.iter().filter(|set| **set).count() {
            0 => problems.add(
                format!("{at}.valueFrom"),
                "Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
            ),
            1 => {}
            _ => problems.add(
                format!("{at}.valueFrom"),
                "Invalid value: \"\": may not have more than one field specified at a time",
            ),
        }
    }
}

fn validate_resources(container: &Container, at: &str, problems: &mut FieldErrors) {
    let Some(resources) = &container.resources else { return };
    let read = |name: &str, text: &str| match name {
        "cpu" => quantity::milli(text),
        _ => quantity::memory(text),
    };
    for (side, all) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        for (name, asked) in all.iter().flatten() {
            let why = match quantity::is_negative(&asked.0) {
                Some(false) => continue,
                Some(true) => "must be greater than or equal to 0",
                None => quantity::NO_QUANTITY,
            };
            problems.add(format!("{at}.resources.{side}[{name}]"), format!("Invalid value: {:?}: {why}", asked.0));
        }
    }
    for (name, asked) in resources.requests.iter().flatten() {
        let limit = resources.limits.as_ref().and_then(|limits| limits.get(name));
        if let Some(limit) = limit
            && let (Some(asks), Some(most)) = (read(name, &asked.0), read(name, &limit.0))
            && asks > most
        {
            let why =
                format!("Invalid value: {:?}: must be less than or equal to {name} limit of {}", asked.0, limit.0);
            problems.add(format!("{at}.resources.requests"), why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(spec: Value) -> Vec<(String, String)> {
        let mut problems = FieldErrors::default();
        validate(&serde_json::from_value(spec).unwrap(), "spec", &mut problems);
        problems.list.into_iter().map(|one| (one.field, one.message)).collect()
    }

    #[test]
    fn each_broken_rule_is_told_in_kubernetes_words() {
        let container = |more: Value| {
            let mut container = json!({ "name": "c", "image": "i" });
            container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "containers": [container] })
        };
        for (spec, field, message) in [
            (json!({ "containers": [] }), "spec.containers", "Required value"),
            (json!({ "containers": [{ "name": "c" }] }), "spec.containers[0].image", "Required value"),
            (
                json!({ "containers": [{ "name": "c", "image": "i" }], "restartPolicy": "Sometimes" }),
                "spec.restartPolicy",
                r#"Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never""#,
            ),
            (
                container(json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] })),
                "spec.containers[0].volumeMounts[0].name",
                r#"Not found: "v""#,
            ),
            (
                container(json!({ "ports": [{ "containerPort": 0 }] })),
                "spec.containers[0].ports[0].containerPort",
                "Invalid value: 0: must be between 1 and 65535, inclusive",
            ),
            (
                container(json!({ "livenessProbe": {} })),
                "spec.containers[0].livenessProbe",
                "Required value: must specify a handler type",
            ),
            (
                container(json!({ "securityContext": { "privileged": true } })),
                "spec.containers[0].securityContext.privileged",
                "Forbidden: disallowed by cluster policy",
            ),
            (
                json!({ "containers": [{ "name": "c", "image": "i" }], "activeDeadlineSeconds": 2_147_483_648_i64 }),
                "spec.activeDeadlineSeconds",
                "Invalid value: 2147483648: must be between 1 and 2147483647, inclusive",
            ),
            (
                json!({ "containers": [{ "name": "c", "image": "i" }], "securityContext": { "runAsUser": -1 } }),
                "spec.securityContext.runAsUser",
                "Invalid value: -1: must be between 0 and 2147483647, inclusive",
            ),
            (
                container(json!({ "resources": { "limits": { "cpu": "much" }, "requests": { "cpu": "1" } } })),
                "spec.containers[0].resources.limits[cpu]",
                format!(r#"Invalid value: "much": {}"#, quantity::NO_QUANTITY).as_str(),
            ),
            (
                container(json!({ "resources": { "limits": { "cpu": "1" }, "requests": { "cpu": "1001m" } } })),
                "spec.containers[0].resources.requests",
                r#"Invalid value: "1001m": must be less than or equal to cpu limit of 1"#,
            ),
            (
                json!({ "containers": [{ "name": "c", "image": "i" }], "volumes": [{ "name": "v", "hostPath": { "path": "/" } }] }),
                "spec.volumes[0].hostPath",
                "Forbidden: configMap, emptyDir, persistentVolumeClaim, projected and secret are the volumes of this host",
            ),
        ] {
            assert_eq!(problems(spec.clone()), [(field.to_owned(), message.to_owned())], "{spec}");
        }
        let twice = json!({ "containers": [{ "name": "c", "image": "i" }, { "name": "c", "image": "i" }] });
        assert_eq!(problems(twice), [("spec.containers[1].name".to_owned(), r#"Duplicate value: "c""#.to_owned())]);
        assert!(problems(container(json!({}))).is_empty());
    }

    #[test]
    fn mount_at_a_reserved_path_is_refused() {
        let mounted = |path: &str| {
            let mount = json!({ "name": "v", "mountPath": path });
            problems(json!({
                "containers": [{ "name": "c", "image": "i", "volumeMounts": [mount] }],
                "volumes": [{ "name": "v", "emptyDir": {} }],
            }))
        };
        for path in ["/", "/dev", "/dev/log", "/a/../dev", "a", "/a//b"] {
            let why = format!("Invalid value: {path:?}: must be absolute and clean, and no reserved path");
            assert_eq!(mounted(path), [("spec.containers[0].volumeMounts[0].mountPath".to_owned(), why)]);
        }
        assert!(mounted("/dev/shm").is_empty());
    }

    #[test]
    fn pod_has_at_most_so_many_containers() {
        let pod = |count: usize| {
            let one = |index: usize| json!({ "name": format!("c{index}"), "image": "i" });
            let all: Vec<Value> = (1..count).map(one).collect();
            problems(json!({ "initContainers": [one(0)], "containers": all }))
        };
        assert!(pod(CONTAINERS_MAX).is_empty());
        assert_eq!(pod(CONTAINERS_MAX + 1)[0].1, "Too many: 33: must have at most 32 items");
    }
}
