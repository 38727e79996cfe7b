//! Fields of a pod that upstream accepts only if the operator turns on a feature, and that have no effect here.
//!
//! Without the feature they are refused, as upstream refuses them: a developer who asks for the host's process
//! namespace, or for certain nodes, must not believe to have it. With the feature a manifest for a cluster is accepted,
//! the fields are dropped, and the author gets a warning.

use serde_json::Value;

use super::RevisionSpec;
use crate::field_errors::{FieldErrors, MUST_NOT_SET};
use crate::settings::ServingFeatures;

/// Name and feature of each, in the order of [`values`].
const FIELDS: [(&str, &str); 15] = [
    ("affinity", "kubernetes.podspec-affinity"),
    ("dnsConfig", "kubernetes.podspec-dnsconfig"),
    ("dnsPolicy", "kubernetes.podspec-dnspolicy"),
    ("hostAliases", "kubernetes.podspec-hostaliases"),
    ("hostIPC", "kubernetes.podspec-hostipc"),
    ("hostNetwork", "kubernetes.podspec-hostnetwork"),
    ("hostPID", "kubernetes.podspec-hostpid"),
    ("nodeSelector", "kubernetes.podspec-nodeselector"),
    ("priorityClassName", "kubernetes.podspec-priorityclassname"),
    ("runtimeClassName", "kubernetes.podspec-runtimeclassname"),
    ("schedulerName", "kubernetes.podspec-schedulername"),
    ("securityContext", "kubernetes.podspec-securitycontext"),
    ("shareProcessNamespace", "kubernetes.podspec-shareprocessnamespace"),
    ("tolerations", "kubernetes.podspec-tolerations"),
    ("topologySpreadConstraints", "kubernetes.podspec-topologyspreadconstraints"),
];

/// The values of [`FIELDS`], as references of the kind that `$spec` is.
macro_rules! values {
    ($spec:ident) => {{
        let RevisionSpec {
            affinity,
            dns_config,
            dns_policy,
            host_aliases,
            host_ipc,
            host_network,
            host_pid,
            node_selector,
            priority_class_name,
            runtime_class_name,
            scheduler_name,
            security_context,
            share_process_namespace,
            tolerations,
            topology_spread_constraints,
            ..
        } = $spec;
        [
            affinity,
            dns_config,
            dns_policy,
            host_aliases,
            host_ipc,
            host_network,
            host_pid,
            node_selector,
            priority_class_name,
            runtime_class_name,
            scheduler_name,
            security_context,
            share_process_namespace,
            tolerations,
            topology_spread_constraints,
        ]
    }};
}

/// Drops those that ask for nothing, and those whose feature is on.
pub(super) fn set_defaults(spec: &mut RevisionSpec, features: &ServingFeatures) {
    for ((_, feature), value) in FIELDS.iter().zip(values!(spec)) {
        if value.as_deref().is_some_and(|value| is_empty(value) || features.is_allowed(feature)) {
            *value = None;
        }
    }
}

/// Refuses those that are left.
pub(super) fn validate(spec: &RevisionSpec, at: &str, problems: &mut FieldErrors) {
    for ((field, _), value) in FIELDS.iter().zip(values!(spec)) {
        if value.is_some() {
            problems.add(format!("{at}.{field}"), MUST_NOT_SET);
        }
    }
}

/// Warnings for the author of an accepted template (as JSON, with what is around it).
pub(super) fn warnings(object: &Value) -> impl Iterator<Item = String> {
    let spec = &object["spec"]["template"]["spec"];
    let set = FIELDS.iter().filter(|(field, _)| spec.get(field).is_some_and(|value| !is_empty(value)));
    set.map(|(field, _)| format!("spec.template.spec.{field} has no effect: instances run on this host, without pods"))
}

/// What typed clients send for a field that is not set.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::{ConfigMapSetting, Settings};

    fn with(field: &str, value: Value) -> RevisionSpec {
        serde_json::from_value(json!({"containers": [{"image": "a"}], field: value})).unwrap()
    }

    fn problems(mut spec: RevisionSpec, settings: &Settings) -> Vec<String> {
        let mut problems = FieldErrors::default();
        spec.set_feature_defaults(settings);
        spec.validate("spec", &mut problems);
        problems.list.into_iter().map(|one| format!("{}: {}", one.field, one.message)).collect()
    }

    /// RT-ISO-01, SRV-EXT-04.
    #[test]
    fn pod_field_behind_a_feature_is_refused_by_name() {
        let settings = Settings::default();
        for (field, feature) in FIELDS {
            for value in [json!(true), json!("x"), json!(["x"]), json!({"x": 1})] {
                let wanted = format!("spec.{field}: must not set the field(s)");
                assert_eq!(problems(with(field, value), &settings), [wanted]);
            }
            for empty in [json!(false), json!(""), json!([]), json!({})] {
                assert_eq!(problems(with(field, empty), &settings), [""; 0], "{field}");
            }
            let mut spec = with(field, json!("x"));
            let on = [(feature.to_owned(), "enabled".to_owned())].into();
            set_defaults(&mut spec, &ConfigMapSetting::parse(&on, &mut FieldErrors::default()));
            assert_eq!(serde_json::to_value(&spec).unwrap().get(field), None, "{field}");
        }
    }

    #[test]
    fn pod_field_without_effect_is_a_warning() {
        let template = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
        let told: Vec<_> = warnings(&template(json!({"nodeSelector": {"a": "b"}, "hostPID": false}))).collect();
        assert_eq!(told, ["spec.template.spec.nodeSelector has no effect: instances run on this host, without pods"]);
    }
}
