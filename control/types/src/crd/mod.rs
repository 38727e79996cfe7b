//! CustomResourceDefinition: how clients learn which kinds there are, and what can be done with them.
//!
//! Those of our own kinds are derived from the registry, never written by clients: `kn source list-types` and everybody who looks
//! for addressable kinds by label reads them.

pub mod versions;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::custom_kinds;
use crate::field_errors::FieldErrors;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::CREATED_AT;
use crate::shared::name;

const ADDRESSABLE: &str = "duck.knative.dev/addressable";
const BINDING: &str = "duck.knative.dev/binding";
const PODSPECABLE: &str = "duck.knative.dev/podspecable";
const SOURCE: &str = "duck.knative.dev/source";
const EVENTING_SOURCE: &str = "eventing.knative.dev/source";
const SUBSCRIBABLE: &str = "messaging.knative.dev/subscribable";

/// What kinds can be, as the labels of their definitions. A kind may stand in several rows.
const LABELS: [(&str, &[&str]); 6] = [
    (
        ADDRESSABLE,
        &[
            "services.serving.knative.dev",
            "routes.serving.knative.dev",
            "brokers.eventing.knative.dev",
            "eventtransforms.eventing.knative.dev",
            "channels.messaging.knative.dev",
            "inmemorychannels.messaging.knative.dev",
            "sequences.flows.knative.dev",
            "parallels.flows.knative.dev",
            "integrationsinks.sinks.knative.dev",
            "jobsinks.sinks.knative.dev",
            "redisstreamsinks.sinks.knative.dev",
            "kafkasinks.eventing.knative.dev",
            "adaptersinks.adapters.sluicegate.dev",
        ],
    ),
    (PODSPECABLE, &["services.serving.knative.dev", "configurations.serving.knative.dev"]),
    (SUBSCRIBABLE, &["channels.messaging.knative.dev", "inmemorychannels.messaging.knative.dev"]),
    (SOURCE, &SOURCES),
    (EVENTING_SOURCE, &SOURCES),
    (BINDING, &["sinkbindings.sources.knative.dev"]),
];

const SOURCES: [&str; 9] = [
    "kafkasources.sources.knative.dev",
    "rabbitmqsources.sources.knative.dev",
    "redisstreamsources.sources.knative.dev",
    "adaptersources.adapters.sluicegate.dev",
    "apiserversources.sources.knative.dev",
    "pingsources.sources.knative.dev",
    "containersources.sources.knative.dev",
    "sinkbindings.sources.knative.dev",
    "integrationsources.sources.knative.dev",
];

/// The annotation that lists what a source can send.
pub const EVENT_TYPES: &str = "registry.knative.dev/eventTypes";
const PING_TYPES: &str =
    r#"[{"type":"dev.knative.sources.ping","description":"CloudEvent type for fixed payload on a schedule"}]"#;
const API_SERVER_TYPES: &str = r#"[{"type":"dev.knative.apiserver.resource.add","description":"An object was added, with the object"},{"type":"dev.knative.apiserver.resource.delete","description":"An object was deleted, with the object"},{"type":"dev.knative.apiserver.resource.update","description":"An object was changed, with the object"},{"type":"dev.knative.apiserver.ref.add","description":"An object was added, by reference"},{"type":"dev.knative.apiserver.ref.delete","description":"An object was deleted, by reference"},{"type":"dev.knative.apiserver.ref.update","description":"An object was changed, by reference"}]"#;
const KAFKA_TYPES: &str =
    r#"[{"type":"dev.knative.kafka.event","description":"A record of a topic that is no CloudEvent"}]"#;
const RABBITMQ_TYPES: &str =
    r#"[{"type":"dev.knative.rabbitmq.event","description":"A message of a queue that is no CloudEvent"}]"#;
const REDIS_STREAM_TYPES: &str =
    r#"[{"type":"dev.knative.sources.redisstream","description":"An entry of a stream that is no CloudEvent"}]"#;
const INTEGRATION_TYPES: &str =
    r#"[{"type":"dev.knative.connector.event.timer","description":"The message of a timer, in a fixed period"}]"#;

/// The labels of the definition `PLURAL.GROUP`; all have the value `true`.
pub fn labels(definition: &str) -> impl Iterator<Item = &'static str> {
    let named = move |(_, kinds): &&(&str, &[&str])| kinds.contains(&definition);
    LABELS.iter().filter(named).map(|(label, _)| *label)
}

/// What objects of the kind send, for those that say so.
#[must_use]
pub fn event_types(definition: &str) -> Option<&'static str> {
    match definition {
        "pingsources.sources.knative.dev" => Some(PING_TYPES),
        "apiserversources.sources.knative.dev" => Some(API_SERVER_TYPES),
        "kafkasources.sources.knative.dev" => Some(KAFKA_TYPES),
        "rabbitmqsources.sources.knative.dev" => Some(RABBITMQ_TYPES),
        "redisstreamsources.sources.knative.dev" => Some(REDIS_STREAM_TYPES),
        "integrationsources.sources.knative.dev" => Some(INTEGRATION_TYPES),
        _ => None,
    }
}

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

    #[test]
    fn what_is_said_about_event_types_is_json() {
        for name in SOURCES {
            let Some(text) = event_types(name) else { continue };
            let types: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
            assert!(types.iter().all(|one| one["type"].is_string() && one["description"].is_string()));
        }
        let labels: Vec<_> = labels("sinkbindings.sources.knative.dev").collect();
        assert_eq!(labels, [SOURCE, EVENTING_SOURCE, BINDING]);
    }
}
