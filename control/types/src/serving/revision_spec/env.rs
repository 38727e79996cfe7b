//! Variables of a container: their sources, and those that the operator's features must enable.

use k8s_openapi::api::core::v1::EnvVar;

use crate::field_errors::{FieldErrors, MISSING, MUST_NOT_SET, exactly_one};
use crate::serving::revision_spec::RevisionSpec;
use crate::settings::ServingFeatures;

const ENV_RESERVED: [&str; 4] = ["PORT", "K_SERVICE", "K_CONFIGURATION", "K_REVISION"];

pub(super) fn validate(env: &EnvVar, serves: bool, at: &str, problems: &mut FieldErrors) {
    if env.name.is_empty() {
        problems.add(format!("{at}.name"), MISSING);
    }
    // The manifest's author sets the port of a sidecar.
    if ENV_RESERVED.contains(&env.name.as_str()) && (serves || env.name != "PORT") {
        problems.add(format!("{at}.name"), format!("\"{}\" is a reserved environment variable", env.name));
    }
    let Some(from) = &env.value_from else { return };
    if env.value.as_deref().is_some_and(|value| !value.is_empty()) {
        problems.add(at, "expected exactly one, got both: value, valueFrom");
    }
    let at = format!("{at}.valueFrom");
    let set = [
        from.config_map_key_ref.is_some(),
        from.secret_key_ref.is_some(),
        from.field_ref.is_some(),
        from.resource_field_ref.is_some(),
    ];
    let set = set.iter().filter(|set| **set).count();
    exactly_one(set, &at, "configMapKeyRef, fieldRef, resourceFieldRef, secretKeyRef", problems);
    if let Some(key) = &from.config_map_key_ref {
        needs_key(&key.key, &key.name, &format!("{at}.configMapKeyRef"), problems);
    }
    if let Some(key) = &from.secret_key_ref {
        needs_key(&key.key, &key.name, &format!("{at}.secretKeyRef"), problems);
    }
}

fn needs_key(key: &str, name: &str, at: &str, problems: &mut FieldErrors) {
    for (field, value) in [("key", key), ("name", name)] {
        if value.is_empty() {
            problems.add(format!("{at}.{field}"), MISSING);
        }
    }
}

/// Sources that only a feature of the operator's allows.
pub(super) fn validate_by(spec: &RevisionSpec, at: &str, features: &ServingFeatures, problems: &mut FieldErrors) {
    if features.is_allowed("kubernetes.podspec-fieldref") {
        return;
    }
    for (container_at, container) in spec.each_container() {
        for (place, env) in container.env.iter().flatten().enumerate() {
            let Some(from) = &env.value_from else { continue };
            for (field, set) in
                [("fieldRef", from.field_ref.is_some()), ("resourceFieldRef", from.resource_field_ref.is_some())]
            {
                if set {
                    problems.add(format!("{at}.{container_at}.env[{place}].valueFrom.{field}"), MUST_NOT_SET);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::serving::revision_spec::env::*;
    use crate::settings::ConfigMapSetting;

    /// Upstream's `kubernetes.podspec-fieldref`: off until the operator turns it on.
    #[test]
    fn field_refs_need_the_operators_feature() {
        let spec: RevisionSpec = serde_json::from_value(json!({"containers": [{"image": "a", "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}]}))
        .unwrap();
        let found = |word: &str| {
            let data = [("kubernetes.podspec-fieldref".to_owned(), word.to_owned())].into();
            let mut problems = FieldErrors::default();
            let features = ServingFeatures::parse(&data, &mut problems);
            validate_by(&spec, "spec", &features, &mut problems);
            problems.list.into_iter().map(|p| p.field).collect::<Vec<_>>()
        };
        let at = |place: u32, field: &str| format!("spec.containers[0].env[{place}].valueFrom.{field}");
        assert_eq!(found("disabled"), [at(1, "fieldRef"), at(2, "resourceFieldRef")]);
        assert!(found("enabled").is_empty() && found("allowed").is_empty());
    }
}
