//! Parses an object as a Rust type, and collects the fields that the type does not have.

use serde::de::DeserializeOwned;
use serde_ignored::Path;
use serde_json::Value;

use crate::strict_deserializer::StrictDeserializer;

/// Unknown fields that are reported one by one; a client that has more has the wrong kind.
pub const UNKNOWN_FIELDS_REPORTED_MAX: usize = 100;
/// Bytes of their paths: a key of a map may be as long as the body.
const UNKNOWN_BYTES_MAX: usize = 64 * 1024;

/// Reads an object and notes the fields that its type does not know.
pub fn read<R: DeserializeOwned>(object: &Value, unknown: &mut Vec<String>) -> serde_json::Result<R> {
    let mut bytes = 0;
    let mut note = |path: Path<'_>| {
        if unknown.len() < UNKNOWN_FIELDS_REPORTED_MAX && bytes < UNKNOWN_BYTES_MAX {
            let path = format_path(&path);
            bytes += path.len();
            unknown.push(path);
        }
    };
    // Named by its trait: a closure's own type would have every kind read a pod's template by code of its own.
    let note: &mut dyn FnMut(Path<'_>) = &mut note;
    serde_ignored::deserialize(StrictDeserializer(object), note)
}

/// `spec.containers[0].foo`
fn format_path(path: &Path<'_>) -> String {
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", format_path(parent)),
        Path::Map { parent, key } => match format_path(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => format_path(parent),
    }
}
