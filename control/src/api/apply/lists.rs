//! Which lists are more than one value: those with a key are owned and merged element by element.
//!
//! Of a client's own kinds its schema says so; of all others the name of the field does.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

const LIST_TYPE: &str = "x-kubernetes-list-type";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";
const MAP_TYPE: &str = "x-kubernetes-map-type";

/// A place in an object: the field that a value stands in, and what the kind's schema says of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a> {
    name: &'a str,
    schema: Option<&'a Value>,
}

impl<'a> At<'a> {
    /// A whole object.
    pub(super) fn whole(schema: Option<&'a Value>) -> Self {
        Self { name: "", schema }
    }

    /// The part that an element of the notation stands for.
    pub(super) fn below<'b>(self, element: &'b str) -> At<'b>
    where
        'a: 'b,
    {
        let Some(name) = element.strip_prefix("f:") else {
            return At { name: "", schema: self.schema.map(|schema| &schema["items"]) };
        };
        // Metadata is the same for all kinds.
        let own = self.schema.filter(|_| !(self.name.is_empty() && name == "metadata"));
        let schema = own.map(|schema| match &schema["properties"][name] {
            Value::Null => &schema["additionalProperties"],
            known => known,
        });
        At { name, schema }
    }

    /// A map that is taken or left whole.
    pub(super) fn is_one_value(self) -> bool {
        self.schema.is_some_and(|schema| schema[MAP_TYPE] == "atomic")
    }
}

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
pub(super) fn elements(at: At<'_>, items: &[Value]) -> Option<Vec<String>> {
    let names: Vec<String> = match at.schema {
        Some(schema) => by_schema(schema, items)?,
        None if SETS.contains(&at.name) => items.iter().map(|item| format!("v:{item}")).collect(),
        None => {
            let mut keys = KEYED.iter().filter(|(name, _)| *name == at.name).map(|(_, keys)| *keys);
            keys.find_map(|keys| items.iter().map(|item| name(keys, item)).collect())?
        }
    };
    let different: BTreeSet<&String> = names.iter().collect();
    (different.len() == names.len()).then_some(names)
}

fn by_schema(schema: &Value, items: &[Value]) -> Option<Vec<String>> {
    match schema[LIST_TYPE].as_str()? {
        "set" => Some(items.iter().map(|item| format!("v:{item}")).collect()),
        "map" => {
            let keys: Vec<&str> = schema[LIST_KEYS].as_array()?.iter().filter_map(Value::as_str).collect();
            let named = |item: &Value| {
                let value = |key: &str| {
                    let default = schema["items"]["properties"][key].get("default");
                    Some((key.to_owned(), item.get(key).or(default)?.clone()))
                };
                let pairs: Option<Map<String, Value>> = keys.iter().map(|key| value(key)).collect();
                pairs.map(|pairs| format!("k:{}", Value::Object(pairs)))
            };
            items.iter().map(named).collect()
        }
        _ => None,
    }
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
        let field = format!("f:{list}");
        elements(At::whole(None).below(&field), items.as_array().unwrap())
    }

    /// APP-30: lists and maps of a client's own kind are owned as its schema says.
    #[test]
    fn a_schema_says_which_lists_have_keys() {
        let schema = json!({ "properties": {
            "metadata": { "type": "object" },
            "ports": { "type": "array" },
            "tags": { LIST_TYPE: "set" },
            "parts": { LIST_TYPE: "map", LIST_KEYS: ["name", "kind"],
                "items": { "properties": { "kind": { "default": "x" }, "inner": { MAP_TYPE: "atomic" } } } },
        } });
        let root = At::whole(Some(&schema));
        let names = |field: &str, items: Value| elements(root.below(field), items.as_array().unwrap());
        assert_eq!(names("f:ports", json!([{ "port": 80 }])), None, "the schema says nothing of keys");
        assert_eq!(names("f:tags", json!(["a"])).unwrap(), [r#"v:"a""#]);
        let parts = names("f:parts", json!([{ "name": "a" }, { "name": "a", "kind": "y" }])).unwrap();
        assert_eq!(parts, [r#"k:{"kind":"x","name":"a"}"#, r#"k:{"kind":"y","name":"a"}"#]);
        assert!(root.below("f:parts").below(&parts[0]).below("f:inner").is_one_value());
        let metadata = root.below("f:metadata");
        let finalizers = elements(metadata.below("f:finalizers"), &[json!("x")]);
        assert_eq!(finalizers.unwrap(), [r#"v:"x""#]);
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
