//! Strategic merge patch: Kubernetes' merge patch that knows which lists are keyed.
//!
//! For core kinds only, whose lists are known; what kubectl sends for them.

use serde_json::{Map, Value};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Lists of objects whose elements are merged by a key; all other lists are replaced.
const KEYED_LISTS: [(&str, &str); 5] = [
    ("ownerReferences", "uid"),
    ("conditions", "type"),
    ("ports", "port"),
    ("secrets", "name"),
    ("imagePullSecrets", "name"),
];
/// Lists of plain values that are merged as sets.
const SETS: [&str; 1] = ["finalizers"];

/// Applies `patch` to `target`. Recursion is bounded by the patch's depth, which its parser bounds.
pub(super) fn merge(target: &mut Value, patch: &Value) -> Result<(), String> {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return Ok(());
    };
    match fields.get(DIRECTIVE).map(Value::as_str) {
        None => {}
        Some(Some("merge")) => {}
        Some(Some("replace")) => *target = Value::Object(Map::new()),
        Some(Some("delete")) => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some(_) => return Err("$patch has to be merge, replace or delete".into()),
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(into) = target.as_object_mut() else { return Ok(()) };
    if let Some(kept) = fields.get(RETAIN_KEYS) {
        let kept = kept.as_array().ok_or("$retainKeys has to be a list")?;
        into.retain(|name, _| kept.iter().any(|one| one == name.as_str()));
    }
    for (name, value) in fields {
        merge_field(into, name, value)?;
    }
    Ok(())
}

fn merge_field(into: &mut Map<String, Value>, name: &str, value: &Value) -> Result<(), String> {
    if let Some(list) = name.strip_prefix(DELETE_FROM) {
        let gone = value.as_array().ok_or("$deleteFromPrimitiveList has to be a list")?;
        if let Some(list) = into.get_mut(list).and_then(Value::as_array_mut) {
            list.retain(|one| !gone.contains(one));
        }
        return Ok(());
    }
    // The order of a keyed list means nothing to any kind here.
    if name == DIRECTIVE || name == RETAIN_KEYS || name.starts_with(ELEMENT_ORDER) {
        return Ok(());
    }
    match value {
        Value::Null => {
            into.remove(name);
        }
        Value::Object(_) => merge(into.entry(name).or_insert(Value::Null), value)?,
        Value::Array(elements) => merge_list(into.entry(name).or_insert(Value::Null), name, elements)?,
        plain => {
            into.insert(name.into(), plain.clone());
        }
    }
    Ok(())
}

fn merge_list(target: &mut Value, name: &str, elements: &[Value]) -> Result<(), String> {
    let key = KEYED_LISTS.iter().find(|(list, _)| *list == name).map(|(_, key)| *key);
    let set = SETS.contains(&name);
    let replace = elements.iter().any(|one| one[DIRECTIVE] == "replace");
    if replace || (key.is_none() && !set) || !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Some(list) = target.as_array_mut() else { return Ok(()) };
    for element in elements {
        if element[DIRECTIVE] == "replace" {
            continue;
        }
        let Some(key) = key else {
            if !set || !list.contains(element) {
                list.push(element.clone());
            }
            continue;
        };
        let identity = element.get(key).ok_or_else(|| format!("an element of {name} lacks its key {key}"))?;
        let place = list.iter().position(|one| one.get(key) == Some(identity));
        match (element[DIRECTIVE] == "delete", place) {
            (true, Some(place)) => {
                list.remove(place);
            }
            (true, None) => {}
            (false, Some(place)) => merge(&mut list[place], element)?,
            (false, None) => {
                let mut new = Value::Null;
                merge(&mut new, element)?;
                list.push(new);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(mut target: Value, patch: &Value) -> Value {
        merge(&mut target, patch).unwrap();
        target
    }

    #[test]
    fn keyed_lists_merge_by_key_and_others_are_replaced() {
        let target = json!({ "ports": [{ "port": 80, "name": "a" }, { "port": 81 }], "args": [1, 2] });
        let patch = json!({
            "ports": [{ "port": 80, "name": "b" }, { "port": 81, "$patch": "delete" }, { "port": 82 }],
            "$setElementOrder/ports": [{ "port": 80 }, { "port": 82 }],
            "args": [3],
        });
        let expected = json!({ "ports": [{ "port": 80, "name": "b" }, { "port": 82 }], "args": [3] });
        assert_eq!(merged(target, &patch), expected);
    }

    #[test]
    fn finalizers_are_a_set_and_can_be_taken_out_one_by_one() {
        let target = json!({ "finalizers": ["a", "b"] });
        let patch = json!({ "$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["b", "c"] });
        assert_eq!(merged(target, &patch), json!({ "finalizers": ["b", "c"] }));
    }

    #[test]
    fn directives_replace_delete_and_retain() {
        let target = json!({ "data": { "a": 1, "b": 2 } });
        for (patch, expected) in [
            (json!({ "data": { "$patch": "replace", "c": 3 } }), json!({ "data": { "c": 3 } })),
            (json!({ "data": { "$patch": "delete" } }), json!({ "data": {} })),
            (json!({ "data": { "$retainKeys": ["a"] } }), json!({ "data": { "a": 1 } })),
            (json!({ "data": null }), json!({})),
        ] {
            assert_eq!(merged(target.clone(), &patch), expected);
        }
        assert!(merge(&mut target.clone(), &json!({ "$patch": 5 })).is_err());
        assert!(merge(&mut target.clone(), &json!({ "ports": [{}] })).is_err());
    }
}
