//! The spec of one version: its fields, its defaults, and its rules; the rules of pods have a file each.

mod env;
mod pod;
mod pod_features;
pub mod resources;
pub(crate) mod security;
pub mod volumes;

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, LocalObjectReference, Probe, TCPSocketAction, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schemas;
use crate::field_errors::FieldErrors;
use crate::settings::{RevisionDefaults, ServingFeatures, Settings};

/// Longest answer by default, in seconds (AMB-11).
pub const TIMEOUT_SECONDS_DEFAULT: i64 = 300;

/// The spec of one version of the program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionSpec {
    /// The containers; exactly one of them has the port.
    #[schemars(schema_with = "schemas::containers")]
    pub containers: Vec<Container>,
    /// Init containers. Behind a feature flag.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::containers")]
    pub init_containers: Vec<Container>,
    /// Files that containers can mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::volumes")]
    pub volumes: Vec<Volume>,
    /// The service account of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Secrets with credentials of image registries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Requests that one instance takes at a time; 0 = as many as come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_concurrency: Option<i64>,
    /// Maximum time of one request, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
    /// Maximum wait for the first byte of a response, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_start_timeout_seconds: Option<i64>,
    /// Maximum idle time of a connection while a request runs, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<i64>,
    /// Whether addresses of Services are put into the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_service_links: Option<bool>,
    /// Not to be set to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub automount_service_account_token: Option<bool>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub affinity: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub dns_config: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub dns_policy: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub host_aliases: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(rename = "hostIPC", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub host_ipc: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub host_network: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(rename = "hostPID", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub host_pid: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub node_selector: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub priority_class_name: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub runtime_class_name: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub scheduler_name: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub security_context: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub share_process_namespace: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub tolerations: Option<Box<Value>>,
    /// Refused, unless a feature allows it; then it is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::anything")]
    pub topology_spread_constraints: Option<Box<Value>>,
}

/// What the author of a template (as JSON, with what is around it) is told when it is written.
#[must_use]
pub fn warnings(object: &Value) -> Vec<String> {
    let mut all = resources::warnings(object);
    all.extend(pod_features::warnings(object));
    all
}

impl RevisionSpec {
    /// The container that serves: the one with a port, or else the first.
    #[must_use]
    pub fn serving_container(&self) -> Option<&Container> {
        self.containers.get(self.serving_index())
    }

    /// The sidecar containers.
    pub fn sidecars(&self) -> impl Iterator<Item = &Container> {
        let serving = self.serving_index();
        self.containers.iter().enumerate().filter(move |(index, _)| *index != serving).map(|(_, one)| one)
    }

    /// All containers, each with its place in the spec.
    fn each_container(&self) -> impl Iterator<Item = (String, &Container)> {
        let lists = [("containers", &self.containers), ("initContainers", &self.init_containers)];
        lists.into_iter().flat_map(|(list, containers)| {
            containers.iter().enumerate().map(move |(index, one)| (format!("{list}[{index}]"), one))
        })
    }

    /// The protocol in the name of the container's port.
    #[must_use]
    pub fn uses_h2c(&self) -> bool {
        let is_h2c = |port: &ContainerPort| port.name.as_deref() == Some("h2c");
        self.containers.iter().flat_map(|container| container.ports.iter().flatten()).any(is_h2c)
    }

    fn serving_index(&self) -> usize {
        let has_port = |c: &Container| c.ports.as_ref().is_some_and(|ports| !ports.is_empty());
        self.containers.iter().position(has_port).unwrap_or(0)
    }

    /// Fills what its author left out, as `config-defaults` says.
    pub fn set_defaults(&mut self, defaults: &RevisionDefaults) {
        let timeout = *self.timeout_seconds.get_or_insert(0);
        let timeout = if timeout == 0 { defaults.timeout_seconds } else { timeout };
        self.timeout_seconds = Some(timeout);
        for (field, default) in [
            (&mut self.response_start_timeout_seconds, defaults.response_start_timeout_seconds),
            (&mut self.idle_timeout_seconds, defaults.idle_timeout_seconds),
        ] {
            if default != 0 && default < timeout {
                field.get_or_insert(default);
            }
        }
        self.container_concurrency.get_or_insert(defaults.container_concurrency);
        // Upstream fills this on creation only, for the sake of objects older than the field. We have
        // none, and a bare manifest applied again must be no change.
        if let Some(links) = defaults.enable_service_links {
            self.enable_service_links.get_or_insert(links);
        }
        default_names(&mut self.containers, &defaults.container_name);
        default_names(&mut self.init_containers, &defaults.init_container_name);
        let serving = self.serving_index();
        if let Some(container) = self.containers.get_mut(serving) {
            default_readiness(container.readiness_probe.get_or_insert_default());
        }
        let writable = volumes::writable(&self.volumes);
        for container in self.containers.iter_mut().chain(&mut self.init_containers) {
            volumes::default_mounts(container, &writable);
            default_resources(container, defaults);
        }
    }

    /// ... and what the operator's features add to them.
    pub fn set_feature_defaults(&mut self, settings: &Settings) {
        self.set_defaults(&settings.defaults);
        pod_features::set_defaults(self, &settings.features);
        for containers in [&mut self.containers, &mut self.init_containers] {
            security::set_defaults(containers, &settings.features);
        }
    }

    /// The operator's limits.
    pub fn validate_settings(&self, at: &str, defaults: &RevisionDefaults, problems: &mut FieldErrors) {
        let concurrency_min = i64::from(!defaults.allow_container_concurrency_zero);
        for (field, value, min, max) in [
            ("timeoutSeconds", self.timeout_seconds, 0, defaults.timeout_seconds_max),
            ("containerConcurrency", self.container_concurrency, concurrency_min, defaults.container_concurrency_max),
        ] {
            if let Some(value) = value
                && !(min..=max).contains(&value)
            {
                problems.add(format!("{at}.{field}"), format!("expected {min} <= {value} <= {max}"));
            }
        }
    }

    /// Validates the fields that the operator's features must enable.
    pub fn validate_features(&self, at: &str, features: &ServingFeatures, problems: &mut FieldErrors) {
        env::validate_by(self, at, features, problems);
        pod::validate_by(self, at, features, problems);
        security::validate_by(self, at, features, problems);
    }

    pub fn validate(&self, at: &str, problems: &mut FieldErrors) {
        pod::validate(self, at, problems);
        pod_features::validate(self, at, problems);
        let bounded = |value: Option<i64>, max: i64, field: &str, problems: &mut FieldErrors| {
            if let Some(value) = value
                && !(0..=max).contains(&value)
            {
                problems.add(format!("{at}.{field}"), format!("expected 0 <= {value} <= {max}"));
            }
        };
        let whole = self.timeout_seconds.filter(|&t| t > 0).unwrap_or(TIMEOUT_SECONDS_DEFAULT);
        bounded(self.response_start_timeout_seconds, whole, "responseStartTimeoutSeconds", problems);
        bounded(self.idle_timeout_seconds, whole, "idleTimeoutSeconds", problems);
    }
}

/// Sets default resources that a container does not specify itself.
///
/// The field is always there, because typed clients send it empty when they mean nothing by it: without it, what they
/// apply again would be a change and a new Revision.
fn default_resources(container: &mut Container, defaults: &RevisionDefaults) {
    let resources = container.resources.get_or_insert_default();
    for (asked, given) in [(&mut resources.requests, &defaults.requests), (&mut resources.limits, &defaults.limits)] {
        for (name, quantity) in given {
            asked.get_or_insert_default().entry(name.clone()).or_insert_with(|| quantity.clone());
        }
    }
}

/// Names the containers without a name, in one pass over them.
fn default_names(containers: &mut [Container], base: &str) {
    let mut taken: HashSet<String> =
        containers.iter().filter(|one| !one.name.is_empty()).map(|one| one.name.clone()).collect();
    let unnamed = containers.iter().filter(|one| one.name.is_empty()).count();
    let is_alone = unnamed == 1 && !taken.contains(base);
    let mut numbered = (0..).map(|number| format!("{base}-{number}"));
    for container in containers.iter_mut().filter(|one| one.name.is_empty()) {
        let free = if is_alone { Some(base.to_owned()) } else { numbered.find(|name| !taken.contains(name)) };
        container.name = free.unwrap_or_default();
        taken.insert(container.name.clone());
    }
}

fn default_readiness(probe: &mut Probe) {
    if probe.tcp_socket.is_none() && probe.http_get.is_none() && probe.exec.is_none() && probe.grpc.is_none() {
        probe.tcp_socket = Some(TCPSocketAction { host: None, port: IntOrString::Int(0) });
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
    if probe.success_threshold.unwrap_or(0) == 0 {
        probe.success_threshold = Some(1);
    }
    if probe.period_seconds.unwrap_or(0) > 0 {
        for (field, default) in [(&mut probe.failure_threshold, 3), (&mut probe.timeout_seconds, 1)] {
            if field.unwrap_or(0) == 0 {
                *field = Some(default);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    fn spec(json: serde_json::Value) -> RevisionSpec {
        serde_json::from_value(json).unwrap()
    }

    /// SRV-REV-11, SRV-REV-12, SRV-CON-10: the defaults of a spec with nothing but an image.
    #[test]
    fn an_image_alone_is_a_whole_spec() {
        let mut spec = spec(serde_json::json!({"containers": [{"image": "hello"}]}));
        spec.set_defaults(&RevisionDefaults::default());
        assert_eq!(spec.timeout_seconds, Some(300));
        assert_eq!(spec.response_start_timeout_seconds, None);
        assert_eq!(spec.container_concurrency, Some(0));
        assert_eq!(spec.enable_service_links, Some(false));
        assert_eq!(spec.containers[0].name, "user-container");
        let probe = spec.containers[0].readiness_probe.as_ref().unwrap();
        assert!(probe.tcp_socket.is_some());
        assert_eq!(probe.success_threshold, Some(1));
        assert_eq!(probe.failure_threshold, None);
    }

    #[test]
    fn defaults_applied_twice_are_the_same_as_once() {
        let mut once = spec(serde_json::json!({
            "timeoutSeconds": 400,
            "containers": [{"image": "a", "ports": [{"containerPort": 8080}], "readinessProbe": {"periodSeconds": 1}},
                           {"image": "b"}]
        }));
        once.set_defaults(&RevisionDefaults::default());
        let mut twice = once.clone();
        twice.set_defaults(&RevisionDefaults::default());
        assert_eq!(once, twice);
        assert_eq!(once.response_start_timeout_seconds, Some(300));
        assert_eq!(once.containers[1].name, "user-container-1");
    }

    /// SRV-REV-03: `kn service apply` of the same twice made two Revisions.
    #[test]
    fn what_a_typed_client_sends_empty_is_there_anyway() {
        let mut bare = spec(serde_json::json!({"containers": [{"image": "a"}], "initContainers": [{"image": "b"}]}));
        let mut typed = spec(serde_json::json!({
            "containers": [{"image": "a", "name": "", "resources": {}}],
            "initContainers": [{"image": "b", "name": "", "resources": {}}],
        }));
        for spec in [&mut bare, &mut typed] {
            spec.set_defaults(&RevisionDefaults::default());
        }
        assert_eq!(bare, typed);
        assert_eq!(serde_json::json!(bare)["containers"][0]["resources"], serde_json::json!({}));
    }

    /// SRV-REV-03: the operator's defaults fill what is left out, and change nothing that is there.
    #[test]
    fn the_operators_defaults_fill_the_gaps_only() {
        let defaults = RevisionDefaults {
            timeout_seconds: 100,
            idle_timeout_seconds: 30,
            response_start_timeout_seconds: 100,
            container_concurrency: 7,
            container_name: "app".into(),
            requests: [("cpu".to_owned(), Quantity("100m".into()))].into(),
            limits: [("memory".to_owned(), Quantity("64Mi".into()))].into(),
            enable_service_links: None,
            ..RevisionDefaults::default()
        };
        let mut bare = spec(serde_json::json!({"containers": [{"image": "a"}]}));
        bare.set_defaults(&defaults);
        assert_eq!((bare.timeout_seconds, bare.idle_timeout_seconds), (Some(100), Some(30)));
        assert_eq!((bare.response_start_timeout_seconds, bare.container_concurrency), (None, Some(7)));
        assert_eq!((bare.containers[0].name.as_str(), bare.enable_service_links), ("app", None));
        let resources = bare.containers[0].resources.clone().unwrap();
        assert_eq!(resources.requests.unwrap()["cpu"].0, "100m");
        assert_eq!(resources.limits.unwrap()["memory"].0, "64Mi");

        let mut full = spec(serde_json::json!({
            "timeoutSeconds": 20, "containerConcurrency": 1, "idleTimeoutSeconds": 2, "enableServiceLinks": true,
            "containers": [{"image": "a", "name": "x", "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}]
        }));
        let before = full.clone();
        full.set_defaults(&defaults);
        full.containers[0].readiness_probe = None;
        assert_eq!(full, before);
    }

    /// The operator's limits, as (limits, value of containerConcurrency, refused).
    #[test]
    fn the_operators_limits_hold() {
        let strict = RevisionDefaults {
            allow_container_concurrency_zero: false,
            container_concurrency_max: 5,
            timeout_seconds_max: 10,
            ..RevisionDefaults::default()
        };
        for (concurrency, timeout, refused) in [(1, 10, 0), (5, 0, 0), (0, 10, 1), (6, 10, 1), (6, 11, 2)] {
            let json = serde_json::json!({
                "containers": [], "containerConcurrency": concurrency, "timeoutSeconds": timeout});
            let mut problems = FieldErrors::default();
            spec(json).validate_settings("spec", &strict, &mut problems);
            assert_eq!(problems.list.len(), refused, "{concurrency} {timeout}");
        }
    }

    #[test]
    fn unnamed_containers_get_distinct_names() {
        let mut spec = spec(serde_json::json!({"containers": [
            {"image": "a"}, {"image": "b", "name": "user-container-0"}, {"image": "c"}]}));
        spec.set_defaults(&RevisionDefaults::default());
        let names: Vec<_> = spec.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["user-container-1", "user-container-0", "user-container-2"]);
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        let base = serde_json::json!({"containers": [{"image": "a", "name": "x"}]});
        for (field, value) in [
            ("timeoutSeconds", 601),
            ("timeoutSeconds", -1),
            ("containerConcurrency", 1001),
            ("idleTimeoutSeconds", 301),
        ] {
            let mut json = base.clone();
            json[field] = value.into();
            let mut problems = FieldErrors::default();
            let spec = spec(json);
            spec.validate("spec", &mut problems);
            spec.validate_settings("spec", &RevisionDefaults::default(), &mut problems);
            assert_eq!(problems.list.len(), 1, "{field} {value}");
            assert_eq!(problems.list[0].field, format!("spec.{field}"));
        }
    }
}
