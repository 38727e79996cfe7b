//! Complete objects inside others (`x-kubernetes-embedded-resource`): they have a type and metadata like any object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};

use super::work::At;
use crate::field_errors::FieldErrors;
use support::{labels, names};

/// Fields that every object has, whether its schema has them or not.
pub(super) const IDENTITY: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Validates the type and metadata of an embedded object, with the messages of Kubernetes.
pub(super) fn validate(fields: &Map<String, Value>, at: At<'_>, problems: &mut FieldErrors) {
    for name in ["apiVersion", "kind"] {
        let here = At::Field(&at, name);
        let why = match fields.get(name) {
            None => Some("Required value: must not be empty".to_owned()),
            Some(Value::String(text)) if text.is_empty() => Some("Invalid value: \"\": must not be empty".into()),
            Some(Value::String(text)) if name == "kind" => wrong_with_kind(text),
            Some(Value::String(text)) => wrong_with_version(text),
            Some(other) => Some(format!("Invalid value: {other}: must be a string")),
        };
        why.into_iter().for_each(|why| problems.add(here, why));
    }
    let metadata = At::Field(&at, "metadata");
    match fields.get("metadata") {
        None => {}
        Some(Value::Object(inner)) => validate_metadata(inner, metadata, problems),
        Some(other) => problems.add(metadata, format!("Invalid value: {other}: must be an object")),
    }
}

fn wrong_with_version(text: &str) -> Option<String> {
    (text.matches('/').count() > 1).then(|| format!("Invalid value: {text:?}: unexpected GroupVersion string: {text}"))
}

fn wrong_with_kind(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    (!names::is_dns1035_label(&lower)).then(|| {
        let why = names::label_1035_error(&lower);
        format!("Invalid value: {text:?}: may have mixed case, but should otherwise match: {why}")
    })
}

fn validate_metadata(inner: &Map<String, Value>, at: At<'_>, problems: &mut FieldErrors) {
    let read: Result<ObjectMeta, _> = serde_json::from_value(Value::Object(inner.clone()));
    let metadata = match read {
        Ok(metadata) => metadata,
        Err(why) => return problems.add(at, format!("Invalid value: {why}")),
    };
    if let Some(name) = metadata.name.filter(|name| [".", ".."].contains(&name.as_str()) || name.contains(['/', '%'])) {
        let why = format!("Invalid value: {name:?}: may not be '.' or '..', nor contain '/' or '%'");
        problems.add(At::Field(&at, "name"), why);
    }
    let mut check = |field: &str, text: &str, why: Option<String>| {
        if let Some(why) = why {
            problems.add(At::Field(&at, field), format!("Invalid value: {text:?}: {why}"));
        }
    };
    for (key, value) in metadata.labels.iter().flatten() {
        check("labels", key, labels::label_key_error(key));
        check("labels", value, labels::label_value_error(value));
    }
    for (key, _) in metadata.annotations.iter().flatten() {
        // Kubernetes takes annotation keys in any case.
        check("annotations", key, labels::label_key_error(&key.to_ascii_lowercase()));
    }
    for name in metadata.finalizers.iter().flatten() {
        check("finalizers", name, labels::label_key_error(name));
    }
}
