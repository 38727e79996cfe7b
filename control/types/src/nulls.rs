//! `null` in an object of a client: always the absence of a value, whatever the type of the field.

use serde_json::{Value, json};

/// Fields that hold a map of texts.
const TEXT_MAPS: [&str; 7] =
    ["annotations", "binaryData", "data", "labels", "matchLabels", "nodeSelector", "stringData"];

/// A field that is `null` counts as left out, as everywhere in Kubernetes; an entry of a map of texts
/// (`color:` with nothing behind it) as empty.
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields.iter_mut() {
                if TEXT_MAPS.contains(&name.as_str())
                    && let Value::Object(texts) = inner
                {
                    texts.values_mut().filter(|text| text.is_null()).for_each(|text| *text = "".into());
                } else {
                    drop_nulls(inner);
                }
            }
            fields.retain(|_, inner| !inner.is_null());
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

pub(crate) fn has_nulls(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().any(has_nulls),
        Value::Array(items) => items.iter().any(has_nulls),
        _ => false,
    }
}

/// Items of lists that are `null` become zero values of their type, as with Go's reader, so that a template's
/// `apiGroups: [""]`, written without the quotes, means the core group. For kinds that are not validated by a schema.
pub(crate) fn fill_null_items(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                fill_null_items(inner, schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]));
            }
        }
        Value::Array(items) => {
            let schema = &schema["items"];
            for item in items {
                match schema["type"].as_str() {
                    Some("string") if item.is_null() => *item = "".into(),
                    Some("object") if item.is_null() => *item = json!({}),
                    Some("integer" | "number") if item.is_null() => *item = 0.into(),
                    Some("boolean") if item.is_null() => *item = false.into(),
                    _ => fill_null_items(item, schema),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-28: `null` is no value, whatever a field's type is.
    #[test]
    fn a_null_counts_as_left_out_and_in_a_map_of_texts_as_empty() {
        let mut object = json!({ "metadata": { "name": "a", "labels": { "x": null }, "annotations": null },
            "data": { "a": null, "b": "1" }, "spec": { "list": [{ "a": null, "b": null }], "deep": { "c": null } } });
        drop_nulls(&mut object);
        let expected = json!({ "metadata": { "name": "a", "labels": { "x": "" } }, "data": { "a": "", "b": "1" },
            "spec": { "list": [{}], "deep": {} } });
        assert_eq!(object, expected);
    }

    /// APP-28: in a list it is nothing of what the list holds.
    #[test]
    fn a_null_in_a_list_is_nothing_of_the_items_type() {
        let list = |of: &str| json!({ "items": { "type": of } });
        let lists = json!({ "properties": { "texts": list("string"), "flags": list("boolean"),
            "counts": list("integer"), "structs": list("object"), "any": { "items": {} } } });
        let schema = json!({ "additionalProperties": { "items": lists } });
        let mut object = json!({ "a": [{ "texts": [null, "x"], "flags": [null], "counts": [null, 1],
            "structs": [null], "any": [null], "unknown": [null] }] });
        fill_null_items(&mut object, &schema);
        let expected = json!({ "a": [{ "texts": ["", "x"], "flags": [false], "counts": [0, 1],
            "structs": [{}], "any": [null], "unknown": [null] }] });
        assert_eq!(object, expected);
    }
}
