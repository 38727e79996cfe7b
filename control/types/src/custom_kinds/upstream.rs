//! The definition of a kind that another project publishes and that the appliance serves as its own.

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::CustomKind;

/// A published schema. Its rules are compiled at the first object of the kind: an appliance without such objects does not
/// spend memory on them.
#[derive(Debug)]
pub struct UpstreamDefinition {
    text: &'static str,
    compiled: OnceLock<CustomKind>,
}

impl UpstreamDefinition {
    /// `text` is the schema in JSON.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self { text, compiled: OnceLock::new() }
    }

    /// The schema with its descriptions. Parsed at each call.
    #[must_use]
    pub fn schema(&self) -> Value {
        super::version_schema(&self.version())
    }

    /// The rules for objects.
    pub fn compiled(&self) -> &CustomKind {
        self.compiled.get_or_init(|| {
            let mut version = self.version();
            remove_descriptions(&mut version);
            CustomKind::of(&version, None)
        })
    }

    /// The version as a CustomResourceDefinition has it.
    fn version(&self) -> Value {
        // A test shows that all texts are JSON.
        let schema: Value = serde_json::from_str(self.text).unwrap_or_default();
        let mut version = json!({ "schema": {} });
        version["schema"]["openAPIV3Schema"] = schema; // moved: `json!` would copy it
        version
    }
}

/// Descriptions are half of a schema, and no rule reads them.
fn remove_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // A field that is called `description` has a schema, and not a text.
            fields.retain(|name, value| name != "description" || !value.is_string());
            fields.values_mut().for_each(remove_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_descriptions),
        _ => {}
    }
}
