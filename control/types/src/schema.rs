//! Schemas of kinds in Kubernetes' dialect, generated from the Rust types.
//!
//! The server parses with the same types that clients read in `/openapi` and in CRDs, so the two cannot
//! drift. `schemars` writes JSON Schema 2020-12; Kubernetes reads the older dialect of OpenAPI and requires
//! every schema to be complete (structural), so the differences are converted here.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Marks a field as "any value" for Kubernetes' clients.
const PRESERVE_UNKNOWN_FIELDS: &str = "x-kubernetes-preserve-unknown-fields";
/// The formats of numbers that OpenAPI knows.
const NUMBER_FORMATS: [&str; 4] = ["int32", "int64", "float", "double"];

/// The complete schema of `T`, without references.
#[must_use]
pub fn of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    to_openapi(&mut schema);
    schema
}

/// The schema of a value of any type.
#[must_use]
pub fn anything() -> Value {
    json!({ PRESERVE_UNKNOWN_FIELDS: true })
}

/// Keeps only the named properties of an object's schema, and requires none of them.
pub fn retain_properties(schema: &mut Value, names: &[&str]) {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| names.contains(&name.as_str()));
    }
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("required");
    }
}

fn to_openapi(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else {
        // `true`: no constraint at all.
        *schema = anything();
        return;
    };
    for foreign in ["$schema", "$defs", "title", "default"] {
        fields.remove(foreign);
    }
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = strip_requirement_ids(text);
    }
    without_null(fields);
    // Only a type that contains itself is left as a reference.
    if fields.remove("$ref").is_some() {
        fields.insert("type".into(), "object".into());
        fields.insert(PRESERVE_UNKNOWN_FIELDS.into(), true.into());
    }
    enum_of_constants(fields);
    if fields.get("format").is_some_and(|format| fields["type"] == "integer" && !known_format(format)) {
        fields.remove("format");
    }
    for (name, inner) in fields.iter_mut() {
        match (name.as_str(), inner) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(set_field_type),
            ("items" | "additionalProperties", inner) if *inner != false => set_field_type(inner),
            ("allOf" | "anyOf" | "oneOf", Value::Array(choices)) => choices.iter_mut().for_each(to_openapi),
            _ => {}
        }
    }
}

/// The text without the marks of the requirements that it stands for, `(SRV-REQ-06)`: they mean nothing to readers of
/// `kubectl explain`.
fn strip_requirement_ids(text: &str) -> String {
    let is_mark = |inside: &str| {
        inside.contains('-')
            && inside.chars().all(|letter| letter.is_ascii_uppercase() || "-, 0123456789".contains(letter))
    };
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('(') {
        kept.push_str(before);
        match behind.split_once(')') {
            Some((inside, after)) if is_mark(inside) => {
                kept.truncate(kept.trim_end().len());
                rest = after;
            }
            _ => {
                kept.push('(');
                rest = behind;
            }
        }
    }
    kept + rest
}

/// Every field and element must declare a type, or that it accepts any value.
fn set_field_type(schema: &mut Value) {
    to_openapi(schema);
    if let Some(fields) = schema.as_object_mut()
        && !["type", "x-kubernetes-int-or-string"].iter().any(|said| fields.contains_key(*said))
    {
        fields.insert(PRESERVE_UNKNOWN_FIELDS.into(), true.into());
    }
}

fn known_format(format: &Value) -> bool {
    NUMBER_FORMATS.iter().any(|known| format == known)
}

/// An optional field is one that may be absent, not one that may be null.
fn without_null(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = fields.get("type")
        && let Some(kept) = types.iter().find(|one| *one != "null").cloned()
    {
        fields.insert("type".into(), kept);
    }
    let Some(Value::Array(choices)) = fields.get_mut("anyOf") else { return };
    choices.retain(|choice| choice["type"] != "null");
    if let [Value::Object(only)] = choices.as_slice() {
        let only = only.clone();
        fields.remove("anyOf");
        for (name, value) in only {
            fields.entry(name).or_insert(value);
        }
    }
}

/// An enum whose variants are described comes as a choice of constants.
fn enum_of_constants(fields: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = fields.get("oneOf") else { return };
    let constants: Option<Vec<Value>> = choices.iter().map(|choice| choice.get("const").cloned()).collect();
    if let Some(constants) = constants {
        fields.remove("oneOf");
        fields.insert("type".into(), "string".into());
        fields.insert("enum".into(), constants.into());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A tree.
    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only its schema is looked at")]
    struct TreeFixture {
        /// How many.
        count: Option<u16>,
        kind: Option<TreeKind>,
        names: BTreeMap<String, Value>,
        /// Whatever.
        any: Value,
        #[serde(default)]
        branches: Vec<TreeFixture>,
        parent: Option<Box<TreeFixture>>,
    }

    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only its schema is looked at")]
    enum TreeKind {
        /// Keeps its leaves.
        Evergreen,
        /// Does not.
        Deciduous,
    }

    #[test]
    fn what_people_read_has_no_marks_of_requirements() {
        for (written, read) in [
            ("If any, it counts (X-FLT-01).", "If any, it counts."),
            ("A (b) of (SRV-API-01, APP-2) and (c-1) (", "A (b) of and (c-1) ("),
            ("(X-1)", ""),
        ] {
            assert_eq!(strip_requirement_ids(written), read);
        }
    }

    #[test]
    fn a_schema_is_whole_and_in_the_dialect_of_openapi() {
        let schema = of::<TreeFixture>();
        let properties = &schema["properties"];
        assert_eq!(schema["description"], "A tree.");
        assert_eq!(properties["count"]["type"], "integer");
        assert_eq!(properties["count"]["description"], "How many.");
        assert!(properties["count"].get("format").is_none(), "OpenAPI has no uint16");
        assert_eq!(properties["kind"]["enum"], json!(["Evergreen", "Deciduous"]));
        assert_eq!(properties["names"]["additionalProperties"][PRESERVE_UNKNOWN_FIELDS], true);
        assert_eq!(properties["any"], json!({ "description": "Whatever.", PRESERVE_UNKNOWN_FIELDS: true }));
        assert_eq!(properties["branches"]["items"][PRESERVE_UNKNOWN_FIELDS], true);
        assert_eq!(properties["parent"][PRESERVE_UNKNOWN_FIELDS], true);
        let text = schema.to_string();
        for foreign in ["$ref", "$defs", "$schema", "null", "anyOf", "oneOf", "default"] {
            assert!(!text.contains(foreign), "{foreign} in {text}");
        }
    }
}
