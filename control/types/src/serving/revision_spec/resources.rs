//! The rules of a container's resources, and of the resources of upstream's sidecar.

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::field_errors::{FieldErrors, MUST_NOT_SET};
use crate::quantity;
use crate::shared::annotation;

/// The annotations for the resources of upstream's sidecar.
const SIDECAR: &str = "queue.sidecar.serving.knative.dev/";
/// A share of what the container has; the former way to say it, and its former name.
const PERCENTAGE: [&str; 2] = ["resource-percentage", "resourcePercentage"];
const PERCENTAGE_BOUNDS: (f64, f64) = (0.1, 100.0);

pub(super) fn validate(container: &Container, at: &str, problems: &mut FieldErrors) {
    let Some(resources) = &container.resources else { return };
    let at = format!("{at}.resources");
    if resources.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        problems.add(format!("{at}.claims"), MUST_NOT_SET);
    }
    for (side, map) in [("limits", &resources.limits), ("requests", &resources.requests)] {
        for (name, quantity) in map.iter().flatten() {
            let why = match quantity::is_negative(&quantity.0) {
                Some(false) => continue,
                Some(true) => "must be greater than or equal to 0",
                None => quantity::NO_QUANTITY,
            };
            problems.add(format!("{at}.{side}[{name}]"), format!("invalid value: {}: {why}", quantity.0));
        }
    }
}

/// A manifest that runs here should run where there is a sidecar.
pub(in crate::serving) fn validate_sidecar(meta: &ObjectMeta, at: &str, problems: &mut FieldErrors) {
    for what in ["cpu", "memory", "ephemeral-storage"] {
        for side in ["request", "limit"] {
            let key = format!("{SIDECAR}{what}-resource-{side}");
            let Some(text) = annotation(meta, &key) else { continue };
            if quantity::is_negative(text).is_none() {
                problems.add(format!("{at}[{key}]"), format!("invalid value: {text}"));
            }
        }
    }
    for key in PERCENTAGE.map(|name| format!("{SIDECAR}{name}")) {
        let Some(text) = annotation(meta, &key) else { continue };
        let (min, max) = PERCENTAGE_BOUNDS;
        match text.parse::<f64>() {
            Ok(number) if (min..=max).contains(&number) => {}
            Ok(_) => problems.add(format!("{at}[{key}]"), format!("expected {min} <= {text} <= {max}")),
            Err(_) => problems.add(format!("{at}[{key}]"), format!("invalid value: {text}")),
        }
    }
}

/// The warnings about a template (as JSON, with the enclosing object) when it is written.
pub(super) fn warnings(object: &Value) -> Vec<String> {
    let annotations = &object["spec"]["template"]["metadata"]["annotations"];
    let keys = annotations.as_object().into_iter().flatten().map(|(key, _)| key);
    let warning_for =
        |key| format!("spec.template.metadata.annotations[{key}] has no effect: there is no sidecar here");
    keys.filter(|key| key.starts_with(SIDECAR)).map(warning_for).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::pod::tests::found_in;
    use crate::serving::revision_spec::resources::*;

    /// SRV-CON-13, SRV-CON-55, SRV-CON-56: amounts are amounts, and nothing else is asked for.
    #[test]
    fn resources_are_quantities_that_are_not_below_zero() {
        let with =
            |resources: Value| found_in(json!({"containers": [{"name": "a", "image": "a", "resources": resources}]}));
        let good = json!({"limits": {"cpu": "1.5", "memory": "1e3"}, "requests": {"example.com/gpu": "0"},
                          "claims": []});
        assert_eq!(with(good), [""; 0]);
        for (bad, wrong) in [
            (json!({"limits": {"cpu": "much"}}), "limits[cpu]: invalid value: much: quantities must match"),
            (json!({"requests": {"memory": "1GiB"}}), "requests[memory]: invalid value: 1GiB: quantities"),
            (
                json!({"requests": {"memory": "-1Mi"}}),
                "requests[memory]: invalid value: -1Mi: must be greater than or equal to 0",
            ),
            (json!({"claims": [{"name": "c"}]}), "claims: must not set the field(s)"),
        ] {
            let found = with(bad.clone());
            let wanted = format!("spec.containers[0].resources.{wrong}");
            assert!(found.len() == 1 && found[0].starts_with(&wanted), "{bad}: {found:?}");
        }
    }

    #[test]
    fn what_a_sidecar_would_be_refused_for_is_refused() {
        let found = |name: &str, value: &str| {
            let annotations = [(format!("{SIDECAR}{name}"), value.to_owned())].into();
            let meta = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
            let mut problems = FieldErrors::default();
            validate_sidecar(&meta, "a", &mut problems);
            problems.list.into_iter().map(|p| format!("{}: {}", p.field, p.message)).collect::<Vec<_>>()
        };
        for (name, value) in [
            ("cpu-resource-request", "100m"),
            ("memory-resource-limit", "1Gi"),
            ("ephemeral-storage-resource-limit", "2G"),
            ("resource-percentage", "0.1"),
            ("resourcePercentage", "100"),
        ] {
            assert_eq!(found(name, value), [""; 0], "{name}");
        }
        for (name, value, why) in [
            ("cpu-resource-request", "some", "invalid value: some"),
            ("memory-resource-request", "", "invalid value: "),
            ("ephemeral-storage-resource-request", "1GB", "invalid value: 1GB"),
            ("resource-percentage", "0.01", "expected 0.1 <= 0.01 <= 100"),
            ("resource-percentage", "NaN", "expected 0.1 <= NaN <= 100"),
            ("resourcePercentage", "half", "invalid value: half"),
        ] {
            assert_eq!(found(name, value), [format!("a[{SIDECAR}{name}]: {why}")]);
        }
    }

    #[test]
    fn sidecar_annotations_get_warning() {
        let key = format!("{SIDECAR}cpu-resource-limit");
        let object = json!({"spec": {"template": {"metadata": {"annotations": {key.clone(): "1", "a": "b"}}}}});
        let warning_for = warnings(&object);
        assert!(warning_for.len() == 1 && warning_for[0].contains(&key), "{warning_for:?}");
        assert!(warnings(&json!({"spec": 1})).is_empty());
    }
}
