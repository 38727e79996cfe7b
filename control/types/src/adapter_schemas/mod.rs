//! What is known of adapters, for the whole cluster: the schemas of their configuration, and their events.

mod transports;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::adapter_program::AdapterProgram;
use crate::custom_kinds;
use crate::field_errors::FieldErrors;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdapterTypeSpec {
    /// The adapter: an image or a built-in transport. It applies to all objects that run the same.
    pub adapter: AdapterProgram,
    /// The schema of `spec.source` of AdapterSources, in the dialect of CustomResourceDefinitions.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub source_schema: Value,
    /// The schema of `spec.sink` of AdapterSinks.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub sink_schema: Value,
    /// What its AdapterSources emit, if they do not say so themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_types: Vec<EmittedType>,
    /// The adapter reads its configuration from the file `ADAPTER_CONFIG`, and again on SIGHUP: an edit needs no other process.
    #[serde(skip_serializing_if = "is_false")]
    pub live: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A type of events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EmittedType {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

impl AdapterTypeSpec {
    /// The one of the adapter.
    #[must_use]
    pub fn find<'a>(types: impl IntoIterator<Item = &'a Self>, adapter: &AdapterProgram) -> Option<&'a Self> {
        types.into_iter().find(|known| known.adapter == *adapter)
    }
}

/// Says what the schema of an adapter does not allow in its section: that of its AdapterType, or else of the built-in
/// transport.
pub(crate) fn validate_section(
    types: &[AdapterTypeSpec],
    adapter: &AdapterProgram,
    name: &str,
    section: &Value,
    problems: &mut FieldErrors,
) {
    let known = AdapterTypeSpec::find(types, adapter);
    let schema = known.map(|known| if name == "sink" { &known.sink_schema } else { &known.source_schema });
    let schema = schema.filter(|schema| !schema.is_null()).cloned();
    let built_in = || transports::schema(adapter.transport.as_deref()?, name);
    if let Some(schema) = schema.or_else(built_in) {
        custom_kinds::validate_value(&with_files(section, true), &schema, &format!("spec.{name}"), problems);
    }
}

/// The section as the adapter gets it: the path of a file where a Secret is named.
fn with_files(value: &Value, is_top: bool) -> Value {
    let file = || Value::String("/secret".to_owned());
    match value {
        Value::Object(fields) => {
            let names_secret = fields.get("secret").is_some_and(|secret| secret["name"].is_string());
            if names_secret && !is_top {
                return file();
            }
            let field = |(name, value): (&String, &Value)| match name.as_str() {
                "secret" if names_secret => (name.clone(), file()),
                _ => (name.clone(), with_files(value, false)),
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::Array(items) => items.iter().map(|item| with_files(item, false)).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(types: &[AdapterTypeSpec], adapter: &AdapterProgram, section: &Value) -> Vec<String> {
        let mut problems = FieldErrors::default();
        validate_section(types, adapter, "source", section, &mut problems);
        problems.into_list().into_iter().map(|problem| problem.field).collect()
    }

    /// TRN-45, TRN-59: a wrong type in a known field has its path; a Secret stands for its file.
    #[test]
    fn wrong_field_of_a_section_has_its_path() {
        let mqtt = AdapterProgram::transport("mqtt");
        let good =
            json!({ "host": "h", "port": 1883, "topics": ["a"], "password": { "secret": { "name": "s" } }, "new": 1 });
        assert!(fields(&[], &mqtt, &good).is_empty());
        let bad = json!({ "host": "h", "port": "1883", "topics": ["a", 7], "password": 7 });
        assert_eq!(fields(&[], &mqtt, &bad), ["spec.source.password", "spec.source.port", "spec.source.topics[1]"]);
        assert_eq!(fields(&[], &mqtt, &json!({ "host": "h" })), ["spec.source.topics"]);
        let own = AdapterProgram { transport: None, image: Some("example.com/a".to_owned()) };
        let schema = json!({ "type": "object", "properties": { "rate": { "type": "integer", "minimum": 1 } } });
        let types = [AdapterTypeSpec { adapter: own.clone(), source_schema: schema, ..AdapterTypeSpec::default() }];
        assert_eq!(fields(&types, &own, &json!({ "rate": 0, "other": 1 })), ["spec.source.rate", "spec.source.other"]);
        assert!(fields(&[], &own, &json!({ "rate": 0 })).is_empty(), "its AdapterType is not there");
    }
}
