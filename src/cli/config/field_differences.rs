//! The fields in which two versions of an object differ.

use serde_json::{Map, Value};

/// Bytes of a value in a line.
const VALUE_BYTES_MAX: usize = 200;

/// Lines like `spec.deny[0]: "10.0.0.0/8" -> "10.1.0.0/16"`. What an API writes by itself is no difference.
pub(super) fn differences(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let fields = |object: &Value| -> Map<String, Value> {
        let mut fields = object.as_object().cloned().unwrap_or_default();
        ["apiVersion", "metadata", "status"].iter().for_each(|name| drop(fields.remove(*name)));
        fields
    };
    compare(&Value::from(fields(before)), &Value::from(fields(after)), "", &mut lines);
    // Others add labels and annotations to an object, which stay.
    for name in ["labels", "annotations"] {
        let (before, after) = (&before["metadata"][name], &after["metadata"][name]);
        for (key, wanted) in after.as_object().into_iter().flatten() {
            compare(&before[key], wanted, &format!("metadata.{name}.{key}"), &mut lines);
        }
    }
    lines
}

fn compare(before: &Value, after: &Value, path: &str, lines: &mut Vec<String>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(before), Value::Object(after)) => {
            let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                let of = |object: &Map<String, Value>| object.get(name).cloned().unwrap_or_default();
                compare(&of(before), &of(after), &path, lines);
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            for at in 0..before.len().max(after.len()) {
                let of = |list: &[Value]| list.get(at).cloned().unwrap_or_default();
                compare(&of(before), &of(after), &format!("{path}[{at}]"), lines);
            }
        }
        _ => lines.push(format!("{path}: {} -> {}", shown(before), shown(after))),
    }
}

fn shown(value: &Value) -> String {
    if value.is_null() {
        return "(none)".to_owned();
    }
    let text = value.to_string();
    match text.char_indices().nth(VALUE_BYTES_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn difference_has_path_and_both_values() {
        let before = json!({ "metadata": { "uid": "x", "labels": { "a": "1", "others": "2" } }, "status": { "a": 1 },
            "spec": { "deny": ["a", "b"], "gone": true, "same": { "x": 1 } } });
        let after = json!({ "metadata": { "labels": { "a": "3" } },
            "spec": { "deny": ["a", "c", "d"], "new": {}, "same": { "x": 1 } } });
        assert_eq!(
            differences(&before, &after),
            [
                "spec.deny[1]: \"b\" -> \"c\"",
                "spec.deny[2]: (none) -> \"d\"",
                "spec.gone: true -> (none)",
                "spec.new: (none) -> {}",
                "metadata.labels.a: \"1\" -> \"3\"",
            ]
        );
        assert!(differences(&before, &before).is_empty());
        let long = differences(&json!({ "data": "a".repeat(500) }), &json!({}));
        assert!(long[0].len() < 2 * VALUE_BYTES_MAX && long[0].ends_with("… -> (none)"));
    }
}
