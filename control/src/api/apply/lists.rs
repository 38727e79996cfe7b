//! Which lists are more than one value: those with a key are owned and merged element by element.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Lists of objects, by the field they stand in, and what tells their elements apart. All other lists
/// (`traffic` among them) are one value, taken or left whole.
const KEYED: [(&str, &[&str]); 11] = [
    ("conditions", &["type"]),
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("env", &["name"]),
    ("volumes", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("imagePullSecrets", &["name"]),
    ("ownerReferences", &["uid"]),
    ("secrets", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("ports", &["port", "protocol"]),
];
/// Lists of plain values of which every one counts by itself.
const SETS: [&str; 1] = ["finalizers"];
/// What a port without a protocol speaks.
const PROTOCOL_DEFAULT: &str = "TCP";

/// The names of a list's elements in the notation of `fieldsV1` (`k:{"name":"a"}`, `v:"a"`); `None` when
/// the list is one value: it has no key, or an element lacks it, or two share it.
pub(super) fn elements(list: &str, items: &[Value]) -> Option<Vec<String>> {
    let names: Vec<String> = if SETS.contains(&list) {
        items.iter().map(|item| format!("v:{item}")).collect()
    } else {
        let mut keys = KEYED.iter().filter(|(name, _)| *name == list).map(|(_, keys)| *keys);
        keys.find_map(|keys| items.iter().map(|item| name(keys, item)).collect())?
    };
    let different: BTreeSet<&String> = names.iter().collect();
    (different.len() == names.len()).then_some(names)
}

fn name(keys: &[&str], item: &Value) -> Option<String> {
    let mut named = Map::new();
    for key in keys {
        let value = match item.get(key) {
            Some(value) => value.clone(),
            None if *key == "protocol" => PROTOCOL_DEFAULT.into(),
            None => return None,
        };
        named.insert((*key).into(), value);
    }
    Some(format!("k:{}", Value::Object(named)))
}

/// What a name says to people: `.spec`, `[name="a"]`, `[="a"]`.
pub(super) fn told(element: &str) -> String {
    match element.split_at_checked(2) {
        Some(("k:", json)) => {
            let named: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
            let pairs: Vec<String> = named.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", pairs.join(","))
        }
        Some(("v:", json)) => format!("[={json}]"),
        Some((_, field)) => format!(".{field}"),
        None => element.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(list: &str, items: Value) -> Option<Vec<String>> {
        elements(list, items.as_array().unwrap())
    }

    #[test]
    fn elements_are_named_by_their_key_if_all_have_one() {
        assert_eq!(names("env", json!([{ "name": "a", "value": "1" }])).unwrap(), [r#"k:{"name":"a"}"#]);
        assert_eq!(names("finalizers", json!(["x"])).unwrap(), [r#"v:"x""#]);
        let port = names("ports", json!([{ "port": 80 }])).unwrap();
        assert_eq!(port, [r#"k:{"port":80,"protocol":"TCP"}"#]);
        assert_eq!(told(&port[0]), r#"[port=80,protocol="TCP"]"#);
        assert_eq!(names("containers", json!([{ "image": "a" }])), None, "the name is defaulted later");
        assert_eq!(names("env", json!([{ "name": "a" }, { "name": "a" }])), None);
        assert_eq!(names("traffic", json!([{ "tag": "a" }])), None);
    }
}
