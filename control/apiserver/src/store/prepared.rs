//! An object serialized before it reaches the writer's thread: complete except for its version, which that thread assigns.

use serde_json::Value;

use super::{OBJECT_BYTES_MAX, OBJECT_DEPTH_MAX, ObjectHead, StoreError};

/// The text of an object before and after its version.
#[derive(Debug)]
pub struct PreparedObject {
    pub(super) head: ObjectHead,
    /// Without the version.
    text: String,
    /// The position of the version.
    at: usize,
}

impl PreparedObject {
    /// # Errors
    /// The object is too long, nests too deep, or has no metadata.
    pub fn of(mut value: Value) -> Result<Self, StoreError> {
        // Nothing that a client sends can be this text.
        let mark = uuid::Uuid::new_v4().simple().to_string();
        value["metadata"]["resourceVersion"] = Value::String(mark.clone());
        if !is_within(&value, OBJECT_DEPTH_MAX) {
            return Err(StoreError::TooDeep);
        }
        // Not by `Display`, which takes twice the time.
        let mut text = serde_json::to_string(&value).map_err(|_| StoreError::Canceled)?;
        let head = ObjectHead::from_object(&value);
        let at = text.find(&mark).ok_or(StoreError::Canceled)?;
        text.replace_range(at..at + mark.len(), "");
        if text.len() > OBJECT_BYTES_MAX {
            return Err(StoreError::TooLarge { bytes: text.len() });
        }
        Ok(Self { head, text, at })
    }

    /// The whole text.
    pub(super) fn with_version(self, version: u64) -> (ObjectHead, Vec<u8>) {
        let mut text = self.text;
        text.insert_str(self.at, &version.to_string());
        (self.head, text.into_bytes())
    }
}

/// Whether the value nests no deeper than `levels`. Reads no deeper than that.
fn is_within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|inner| is_within(inner, levels - 1)),
        Value::Object(fields) => levels > 0 && fields.values().all(|inner| is_within(inner, levels - 1)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn version_stands_where_the_object_has_it() {
        let value = json!({ "kind": "A", "metadata": { "name": "a", "uid": "u", "resourceVersion": "3" }, "spec": { "a": [1] } });
        let (head, text) = PreparedObject::of(value.clone()).unwrap().with_version(42);
        let mut expected = value;
        expected["metadata"]["resourceVersion"] = "42".into();
        assert_eq!(text, expected.to_string().into_bytes());
        assert_eq!(head, ObjectHead::from_object(&expected));
    }
}
