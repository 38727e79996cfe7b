//! Migrates an object from kubectl's client-side apply to server-side apply without a conflict between the two.
//!
//! kubectl records in an annotation what client-side apply sent. Fields that still have these values belong to
//! kubectl, whichever manager is recorded as their owner. The annotation is kept up to date for a kubectl that uses
//! client-side apply again.

use serde_json::Value;

use super::field_set::{FieldDiff, FieldSet};
use super::field_writer::FieldWriter;

/// Under which name kubectl applies by the server; with any other there is nothing to come from.
const KUBECTL: &str = "kubectl";
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Of an object's annotations together, as Kubernetes has it; a longer note is left out.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;

fn last_applied(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION].as_str().filter(|text| !text.is_empty())
}

/// The fields that kubectl may take from other managers: those with the values in its annotation.
pub(in super::super) fn takeover_fields(writer: &FieldWriter, live: &Value) -> Option<FieldSet> {
    let noted: Value = serde_json::from_str(last_applied(live).filter(|_| writer.manager == KUBECTL)?).ok()?;
    if noted["apiVersion"] != live["apiVersion"] || !noted.is_object() {
        return None;
    }
    let at = writer.location();
    let mut found = FieldSet::of(at, &noted);
    let FieldDiff { added, modified, removed } = FieldDiff::of(at, None, Some(&noted), Some(live));
    for differs in [added, modified, removed] {
        found.subtract(&differs);
    }
    Some(found)
}

pub(in super::super) fn should_update(writer: &FieldWriter, object: &Value) -> bool {
    writer.manager == KUBECTL && last_applied(object).is_some()
}

/// Notes what was applied.
pub(in super::super) fn update_annotation(object: &mut Value, wanted: &Value) {
    let mut wanted = wanted.clone();
    let annotations = wanted["metadata"].get_mut("annotations").and_then(Value::as_object_mut);
    if annotations.is_some_and(|annotations| annotations.remove(ANNOTATION).is_some() && annotations.is_empty())
        && let Some(metadata) = wanted["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    let note = format!("{wanted}\n");
    let annotations = object["metadata"].get_mut("annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.remove(ANNOTATION);
        let others: usize =
            annotations.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
        if others + ANNOTATION.len() + note.len() <= ANNOTATION_BYTES_MAX {
            annotations.insert(ANNOTATION.into(), note.into());
        }
    }
}
