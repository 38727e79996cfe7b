//! The maximum size of a value, derived from its schema as Kubernetes estimates it: what the schema does not
//! bound is as large as a request can carry.

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::Value;

use crate::CelType;
use crate::bounded_regex::PatternSet;

/// Bytes of the largest request that estimates reckon with; Kubernetes' figure, whatever a body may have here.
const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;
/// Characters of an object's name.
const NAME_CHARS_MAX: u64 = 253;
/// Bytes of one character.
const CHAR_BYTES_MAX: u64 = 4;
/// Bytes of a time or a duration as it is written, with its quotes.
const MOMENT_BYTES_MAX: u64 = 32;
const DATE_BYTES: u64 = 12;

/// The target of a step from a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SchemaStep<'a> {
    Field(&'a str),
    /// An item of a list, or a value of a map.
    Item,
    Key,
}

/// A place that a schema describes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SchemaNode<'a> {
    /// `whole`: an object of its own.
    Schema { schema: &'a Value, whole: bool },
    /// The size of a complete object.
    Metadata,
    /// A text of at most that many bytes.
    Text(u64),
}

/// Remembers of each schema what was computed, and the patterns of a definition's rules, which are bounded together.
#[derive(Debug, Default)]
pub struct SizeEstimator {
    pub(crate) patterns: RefCell<PatternSet>,
    least: RefCell<HashMap<*const Value, u64>>,
}

impl<'a> SchemaNode<'a> {
    pub(crate) fn step(self, step: SchemaStep<'_>) -> Option<Self> {
        let seen = |schema: &'a Value| {
            let whole = schema["x-kubernetes-embedded-resource"] == true;
            CelType::of(schema, false).map(|_| Self::Schema { schema, whole })
        };
        match (self, step) {
            (Self::Schema { whole: true, .. }, SchemaStep::Field("apiVersion" | "kind")) => {
                Some(Self::Text(REQUEST_BYTES_MAX - 2))
            }
            (Self::Schema { whole: true, .. }, SchemaStep::Field("metadata")) => Some(Self::Metadata),
            (Self::Schema { schema, .. }, SchemaStep::Field(name)) => {
                schema["properties"].get(name).and_then(seen).filter(|_| !is_map(schema))
            }
            (Self::Schema { schema, .. }, SchemaStep::Key) => is_map(schema).then_some(Self::Text(0)),
            (Self::Schema { schema, .. }, SchemaStep::Item) if is_map(schema) => seen(&schema["additionalProperties"]),
            (Self::Schema { schema, .. }, SchemaStep::Item) => seen(&schema["items"]),
            (Self::Metadata, SchemaStep::Field("name")) => Some(Self::Text(NAME_CHARS_MAX * CHAR_BYTES_MAX)),
            (Self::Metadata, SchemaStep::Field("generateName")) => {
                Some(Self::Text((NAME_CHARS_MAX - 1) * CHAR_BYTES_MAX))
            }
            _ => None,
        }
    }
}

fn is_map(schema: &Value) -> bool {
    schema["additionalProperties"].is_object()
}

impl SizeEstimator {
    /// How many items, entries or bytes there can be; 0 of what has none.
    pub(crate) fn max_size(&self, node: SchemaNode<'_>) -> u64 {
        let SchemaNode::Schema { schema, .. } = node else {
            return if let SchemaNode::Text(bytes) = node { bytes } else { 0 };
        };
        let bound = |name: &str| schema[name].as_f64().map(to_u64);
        let text = || bound("maxLength").map(|chars| chars.saturating_mul(CHAR_BYTES_MAX));
        if schema["x-kubernetes-int-or-string"] == true {
            return text().unwrap_or(REQUEST_BYTES_MAX - 2);
        }
        let budget = REQUEST_BYTES_MAX - 2;
        match (schema["type"].as_str().unwrap_or(""), schema["format"].as_str().unwrap_or("")) {
            // Each with the comma behind it.
            ("array", _) => {
                bound("maxItems").unwrap_or_else(|| budget / (self.min_json_bytes(&schema["items"], false) + 1))
            }
            // ... and a key, its quotes and the colon.
            ("object", _) if is_map(schema) => bound("maxProperties")
                .unwrap_or_else(|| budget / (self.min_json_bytes(&schema["additionalProperties"], false) + 6)),
            ("string", "byte") => bound("maxLength").unwrap_or(budget),
            ("string", "duration" | "date-time") => MOMENT_BYTES_MAX,
            ("string", "date") => DATE_BYTES,
            ("string", _) => text().or_else(|| longest(schema)).unwrap_or(budget),
            _ => 0,
        }
    }

    /// How often a value of the schema can be in a request.
    pub fn max_in_request(&self, schema: &Value, whole: bool) -> u64 {
        REQUEST_BYTES_MAX / (self.min_json_bytes(schema, whole) + 1)
    }

    /// The size of the smallest value as JSON.
    fn min_json_bytes(&self, schema: &Value, whole: bool) -> u64 {
        let known = self.least.borrow().get(&std::ptr::from_ref(schema)).copied();
        known.unwrap_or_else(|| {
            let found = self.compute_min_json_bytes(schema, whole);
            self.least.borrow_mut().insert(schema, found);
            found
        })
    }

    /// Recursion is bounded by a body's nesting.
    fn compute_min_json_bytes(&self, schema: &Value, whole: bool) -> u64 {
        if schema["x-kubernetes-int-or-string"] == true {
            return 1;
        }
        match (schema["type"].as_str().unwrap_or(""), schema["format"].as_str().unwrap_or("")) {
            ("string", "duration") => 3,
            ("string", "date") => DATE_BYTES,
            ("string", "date-time") => 21,
            ("string" | "array", _) => 2,
            ("boolean", _) => 4,
            ("number" | "integer", _) => 1,
            ("object", _) if !is_map(schema) => {
                let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let fields = required.filter_map(|name| {
                    let own = whole && ["apiVersion", "kind", "metadata"].contains(&name);
                    let inner = schema["properties"].get(name);
                    let inner = inner.filter(|inner| inner.get("default").is_none());
                    let least = if own { Some(2) } else { inner.map(|inner| self.min_json_bytes(inner, false)) };
                    least.map(|least| name.len() as u64 + least + 4)
                });
                2 + fields.sum::<u64>()
            }
            _ => 2,
        }
    }
}

fn longest(schema: &Value) -> Option<u64> {
    let values = schema["enum"].as_array().filter(|values| !values.is_empty())?;
    values.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max().or(Some(0))
}

/// The factor by which a list or map multiplies its content; `None`: unbounded.
pub fn declared_max(schema: &Value) -> Option<u64> {
    match schema["type"].as_str() {
        Some("object") if is_map(schema) => schema["maxProperties"].as_f64().map(to_u64),
        Some("array") => schema["maxItems"].as_f64().map(to_u64),
        _ => Some(1),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float saturates")]
fn to_u64(number: f64) -> u64 {
    number as u64
}
