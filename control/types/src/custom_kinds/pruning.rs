//! Drops the fields that a structural schema does not name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};

use super::embedded;
use super::structural_schema::{EMBEDDED, PRESERVE};
use super::work::At;
use crate::object_reader::UNKNOWN_FIELDS_REPORTED_MAX;

/// Bytes of the paths of all reported unknown fields.
const DROPPED_BYTES_MAX: usize = 64 * 1024;

/// Fields that were dropped, the first of them with their paths.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    pub(super) paths: Vec<String>,
    bytes: usize,
}

impl Dropped {
    pub(super) fn note(&mut self, at: At<'_>) {
        if self.paths.len() < UNKNOWN_FIELDS_REPORTED_MAX && self.bytes < DROPPED_BYTES_MAX {
            let path = String::from(at);
            self.bytes += path.len();
            self.paths.push(path);
        }
    }
}

/// Drops every field that the schema does not name, and notes where it was.
pub(super) fn prune(value: &mut Value, schema: &Value, at: At<'_>, dropped: &mut Dropped) {
    match value {
        Value::Object(fields) => prune_fields(fields, schema, at, dropped),
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                prune(item, &schema["items"], At::Item(&at, index), dropped);
            }
        }
        _ => {}
    }
}

fn prune_fields(fields: &mut Map<String, Value>, schema: &Value, at: At<'_>, dropped: &mut Dropped) {
    let keeps = schema[PRESERVE] == true || schema["additionalProperties"] == true;
    let is_embedded = schema[EMBEDDED] == true;
    fields.retain(|name, value| {
        let here = At::Field(&at, name);
        if is_embedded && embedded::IDENTITY.contains(&name.as_str()) {
            // Whatever the schema says of them: every object has these, in the same shape.
            prune_metadata(name, value, here, dropped);
        } else if let Some(known) = schema["properties"].get(name) {
            prune(value, known, here, dropped);
        } else if schema["additionalProperties"].is_object() {
            prune(value, &schema["additionalProperties"], here, dropped);
        } else if !keeps {
            dropped.note(here);
            return false;
        }
        true
    });
}

/// Drops from metadata what no metadata has, as of a whole object.
fn prune_metadata(name: &str, value: &mut Value, at: At<'_>, dropped: &mut Dropped) {
    if name != "metadata" || !value.is_object() {
        return;
    }
    let mut note = |path: serde_ignored::Path<'_>| dropped.note(At::Field(&at, &path.to_string()));
    // Metadata of the wrong shape is refused by `validate`.
    let read: Result<ObjectMeta, _> = serde_ignored::deserialize(&*value, &mut note);
    if let Some(known) = read.ok().and_then(|read| serde_json::to_value(read).ok()) {
        *value = known;
    }
}
