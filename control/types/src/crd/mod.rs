//! CustomResourceDefinition: describes a kind and its versions to clients.
//!
//! Those of our own kinds are derived from the registry, never written by clients: `kn source list-types` and other clients that look
//! for addressable kinds by label reads them.

pub mod versions;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::custom_kinds;
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::CREATED_AT;
use crate::role_rules::CONTROLLER_READS;
use crate::shared::name;

/// The annotation that lists what a source can send.
pub const EVENT_TYPES: &str = "registry.knative.dev/eventTypes";

impl ResourceStrategy for CustomResourceDefinition {
    const META: KindMeta = KindMeta {
        group: "apiextensions.k8s.io",
        version: "v1",
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        singular: "customresourcedefinition",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[CREATED_AT],
        role_rules: &[CONTROLLER_READS],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn normalize_output(object: &mut Value) {
        let versions = object.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
        versions.into_iter().flatten().filter_map(|version| version.get_mut("schema")).for_each(remove_decimal_points);
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let names = &mut self.spec.names;
        names.singular.get_or_insert_with(|| names.kind.to_lowercase());
        names.list_kind.get_or_insert_with(|| format!("{}List", names.kind));
        self.spec.conversion.get_or_insert_with(|| CustomResourceConversion {
            strategy: "None".into(),
            ..CustomResourceConversion::default()
        });
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        // The rules look at it as it is stored.
        let spec = serde_json::to_value(&self.spec).unwrap_or_default();
        let name = name(&self.metadata);
        custom_kinds::validate(name, &spec, problems);
        if let Some(before) = before {
            let before = serde_json::to_value(&before.spec).unwrap_or_default();
            custom_kinds::ratchet(name, &before, problems);
            custom_kinds::validate_update(&spec, &before, problems);
        }
    }
}

/// The bounds of a schema are doubles, and a whole one came without a point: `kubectl apply` would find it changed.
fn remove_decimal_points(schema: &mut Value) {
    /// Beyond it not every whole number is a double.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                let bound = ["maximum", "minimum", "multipleOf"].contains(&name.as_str());
                match value.as_f64().filter(|number| bound && number.fract() == 0.0) {
                    #[expect(clippy::cast_possible_truncation, reason = "whole, and small enough")]
                    Some(number) if number.abs() <= WHOLE_MAX => *value = (number as i64).into(),
                    _ => remove_decimal_points(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(remove_decimal_points),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A definition that is applied twice is the same: bounds keep their form, and what only has their name stays.
    #[test]
    fn whole_bounds_have_no_point() {
        let schema = |least: Value| {
            json!({ "spec": { "versions": [{ "name": "v1" }, { "schema": { "openAPIV3Schema": { "minimum": least, "maximum": 1.5,
                "properties": { "minimum": { "multipleOf": least } }, "anyOf": [{ "maximum": least }] } } }] } })
        };
        let mut object = schema(json!(2.0));
        CustomResourceDefinition::normalize_output(&mut object);
        assert_eq!(object.to_string(), schema(json!(2)).to_string());
        let mut nothing = json!({ "spec": {} });
        CustomResourceDefinition::normalize_output(&mut nothing);
        assert_eq!(nothing, json!({ "spec": {} }));
    }
}
