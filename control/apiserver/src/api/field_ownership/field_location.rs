//! Which lists are owned and merged element by element, by the key of each element.
//!
//! The schema says so for custom kinds, the name of the field for built-in ones.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use types::kind_registry::KindMeta;

const LIST_TYPE: &str = "x-kubernetes-list-type";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";
const MAP_TYPE: &str = "x-kubernetes-map-type";

/// A place in an object: the field that a value is in, and what the kind's schema says of it.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct FieldLocation<'a> {
    name: &'a str,
    /// The field or list around it; of a whole object's fields nothing.
    parent: &'a str,
    meta: Option<&'static KindMeta>,
    schema: Option<&'a Value>,
}

impl<'a> FieldLocation<'a> {
    /// A whole object.
    pub(in super::super) fn root(schema: Option<&'a Value>) -> Self {
        Self { name: "", parent: "", meta: None, schema }
    }

    /// A whole object of this kind.
    pub(in super::super) fn root_of_kind(meta: &'static KindMeta, schema: Option<&'a Value>) -> Self {
        Self { meta: Some(meta), ..Self::root(schema) }
    }

    /// The part that an element of the notation stands for.
    pub(in super::super) fn child<'b>(self, element: &'b str) -> FieldLocation<'b>
    where
        'a: 'b,
    {
        let (meta, parent) = (self.meta, self.name);
        let Some(name) = element.strip_prefix("f:") else {
            return FieldLocation { name: "", parent, meta, schema: self.schema.map(|schema| &schema["items"]) };
        };
        // Metadata is the same for all kinds.
        let own = self.schema.filter(|_| !(self.name.is_empty() && name == "metadata"));
        let schema = own.map(|schema| match &schema["properties"][name] {
            Value::Null => &schema["additionalProperties"],
            known => known,
        });
        FieldLocation { name, parent, meta, schema }
    }

    /// Whether the element is a field that the schema names: not a key of a map, nor an element of a list.
    pub(in super::super) fn has_field(self, element: &str) -> bool {
        let Some(name) = element.strip_prefix("f:") else { return false };
        // Maps of our own kinds hold plain values, which count by themselves in any case.
        self.schema.is_none_or(|schema| {
            schema["properties"].get(name).is_some() || (self.name.is_empty() && name == "metadata")
        })
    }

    /// A map that is taken or left whole.
    pub(in super::super) fn is_atomic(self) -> bool {
        if let Some(schema) = self.schema {
            return schema[MAP_TYPE] == "atomic";
        }
        let kind = self.meta.map_or("", |meta| meta.kind);
        ATOMIC_ELEMENTS.iter().any(|list| self.name.is_empty() && self.parent == *list)
            || ATOMIC_REFERENCES.contains(&self.name)
            || ATOMIC_MAPS.contains(&(kind, self.parent, self.name))
            || (self.is_of_knative() && self.name == "nodeSelector")
    }

    fn is_of_knative(self) -> bool {
        self.meta.is_some_and(|meta| meta.group.ends_with(super::KNATIVE))
    }

    /// The keys of this list's elements; several if the field name occurs in several lists.
    fn keys(self) -> impl Iterator<Item = &'static [&'static str]> {
        let whole = match self.name {
            // Knative's schemas do not specify keys there. It also keeps the bookkeeping of statuses small.
            "conditions" | "containers" | "initContainers" => self.is_of_knative(),
            "imagePullSecrets" => self.meta.is_some_and(|meta| meta.kind == "ServiceAccount"),
            // An EndpointSlice's.
            "ports" => self.parent.is_empty() && self.meta.is_some(),
            _ => false,
        };
        let name = self.name;
        KEYED_LISTS.iter().filter(move |(known, _)| !whole && *known == name).map(|(_, keys)| *keys)
    }
}

/// Lists of objects, by the field they are in, and what tells their elements apart. All other lists
/// (`traffic` among them) are one value, taken or left whole.
const KEYED_LISTS: [(&str, &[&str]); 11] = [
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
/// Lists of which every element is one value.
const ATOMIC_ELEMENTS: [&str; 3] = ["imagePullSecrets", "ownerReferences", "secrets"];
/// References that are one value wherever they stand.
const ATOMIC_REFERENCES: [&str; 10] = [
    "configMapKeyRef",
    "fieldRef",
    "involvedObject",
    "objectRef",
    "regarding",
    "related",
    "resourceFieldRef",
    "roleRef",
    "scaleTargetRef",
    "secretKeyRef",
];
/// Maps that are one value: of which kind, in what, by which name.
const ATOMIC_MAPS: [(&str, &str, &str); 2] = [("Deployment", "spec", "selector"), ("Service", "spec", "selector")];
/// Lists of plain values of which every one counts by itself.
const SETS: [&str; 1] = ["finalizers"];
/// The default protocol of a port.
const PROTOCOL_DEFAULT: &str = "TCP";

/// The names of a list's elements in the notation of `fieldsV1` (`k:{"name":"a"}`, `v:"a"`); `None` when
/// the list is one value: it has no key, or an element lacks it, or two share it.
pub(in super::super) fn elements(at: FieldLocation<'_>, items: &[Value]) -> Option<Vec<String>> {
    let names = names(at, items)?;
    first_duplicate(&names).is_none().then_some(names)
}

/// The same, if two may share a name.
fn names(at: FieldLocation<'_>, items: &[Value]) -> Option<Vec<String>> {
    match at.schema {
        Some(schema) => by_schema(schema, items),
        None if SETS.contains(&at.name) => Some(items.iter().map(|item| format!("v:{item}")).collect()),
        None => at.keys().find_map(|keys| items.iter().map(|item| name(keys, item)).collect()),
    }
}

/// The first name that stands twice.
fn first_duplicate(names: &[String]) -> Option<&String> {
    let mut known = BTreeSet::new();
    names.iter().find(|name| !known.insert(*name))
}

/// Where the elements of a list share a name that has to tell them apart, and what is wrong there; in the words of
/// Kubernetes.
pub(in super::super) fn find_duplicate(at: FieldLocation<'_>, value: &Value) -> Option<String> {
    match value {
        Value::Object(_) if at.is_atomic() => None,
        Value::Object(fields) => fields.iter().find_map(|(name, inner)| {
            let found = find_duplicate(at.child(&format!("f:{name}")), inner)?;
            Some(format!(".{name}{found}"))
        }),
        Value::Array(items) => {
            let names = names(at, items)?;
            if let Some(name) = first_duplicate(&names) {
                return Some(format!(": duplicate entries for key {}", display_name(name)));
            }
            names.iter().zip(items).find_map(|(name, item)| {
                let found = find_duplicate(at.child(name), item)?;
                Some(format!("{}{found}", display_name(name)))
            })
        }
        _ => None,
    }
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
                // A key that is left out tells an element apart as well, as long as another is there.
                let pairs: Map<String, Value> = keys.iter().filter_map(|key| value(key)).collect();
                (!pairs.is_empty()).then(|| format!("k:{}", Value::Object(pairs)))
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

/// A field path in messages: `.spec`, `[name="a"]`, `[="a"]`.
pub(in super::super) fn display_name(element: &str) -> String {
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
        elements(FieldLocation::root(None).child(&field), items.as_array().unwrap())
    }

    /// APP-30: lists and maps of a custom kind are owned as its schema says.
    #[test]
    fn a_schema_says_which_lists_have_keys() {
        let schema = json!({ "properties": {
            "metadata": { "type": "object" },
            "ports": { "type": "array" },
            "tags": { LIST_TYPE: "set" },
            "parts": { LIST_TYPE: "map", LIST_KEYS: ["name", "kind"],
                "items": { "properties": { "kind": { "default": "x" }, "inner": { MAP_TYPE: "atomic" } } } },
        } });
        let root = FieldLocation::root(Some(&schema));
        let names = |field: &str, items: Value| elements(root.child(field), items.as_array().unwrap());
        assert_eq!(names("f:ports", json!([{ "port": 80 }])), None, "the schema says nothing of keys");
        assert_eq!(names("f:tags", json!(["a"])).unwrap(), [r#"v:"a""#]);
        let parts = names("f:parts", json!([{ "name": "a" }, { "name": "a", "kind": "y" }])).unwrap();
        assert_eq!(parts, [r#"k:{"kind":"x","name":"a"}"#, r#"k:{"kind":"y","name":"a"}"#]);
        assert!(root.child("f:parts").child(&parts[0]).child("f:inner").is_atomic());
        let metadata = root.child("f:metadata");
        let finalizers = elements(metadata.child("f:finalizers"), &[json!("x")]);
        assert_eq!(finalizers.unwrap(), [r#"v:"x""#]);
    }

    /// A kind of these names.
    fn object(group: &'static str, kind: &'static str) -> FieldLocation<'static> {
        let meta = KindMeta { group, kind, ..types::core_kinds::NAMESPACE };
        FieldLocation::root_of_kind(Box::leak(Box::new(meta)), None)
    }

    /// APP-30: what is one value in Kubernetes' own schemas, and in Knative's, is owned as one.
    #[test]
    fn some_maps_and_lists_are_one_value_in_one_kind_and_not_in_another() {
        let (port, named) = ([json!({ "port": 80 })], [json!({ "name": "a" })]);
        let service = object("", "Service").child("f:spec");
        assert!(service.child("f:selector").is_atomic());
        assert!(!service.child("f:labels").is_atomic());
        assert!(elements(service.child("f:ports"), &port).is_some());
        assert!(elements(object("discovery.k8s.io", "EndpointSlice").child("f:ports"), &port).is_none());

        let account = object("", "ServiceAccount");
        assert!(elements(account.child("f:imagePullSecrets"), &named).is_none());
        let secrets = account.child("f:secrets");
        assert!(secrets.child(&elements(secrets, &named).unwrap()[0]).is_atomic());

        let pod = object("serving.knative.dev", "Revision").child("f:spec");
        assert!(elements(pod.child("f:containers"), &named).is_none());
        assert!(elements(pod.child("f:volumes"), &named).is_some());
        assert!(pod.child("f:nodeSelector").is_atomic());
        assert!(elements(object("", "Pod").child("f:spec").child("f:containers"), &named).is_some());
    }

    /// APP-30: two elements by one name have no owner each.
    #[test]
    fn elements_that_share_a_name_are_found_with_their_place() {
        let at = object("", "Service");
        for (value, wanted) in [
            (
                json!({ "spec": { "ports": [{ "port": 90 }, { "port": 90 }] } }),
                Some(r#".spec.ports: duplicate entries for key [port=90,protocol="TCP"]"#),
            ),
            (
                json!({ "metadata": { "finalizers": ["a/b", "a/b"] } }),
                Some(r#".metadata.finalizers: duplicate entries for key [="a/b"]"#),
            ),
            (
                json!({ "env": [{ "name": "a", "env": [{ "name": "b" }, { "name": "b" }] }] }),
                Some(r#".env[name="a"].env: duplicate entries for key [name="b"]"#),
            ),
            (json!({ "spec": { "ports": [{ "port": 90 }, { "port": 91 }], "args": ["a", "a"] } }), None),
        ] {
            assert_eq!(find_duplicate(at, &value).as_deref(), wanted);
        }
    }

    #[test]
    fn elements_are_named_by_their_key_if_all_have_one() {
        assert_eq!(names("env", json!([{ "name": "a", "value": "1" }])).unwrap(), [r#"k:{"name":"a"}"#]);
        assert_eq!(names("finalizers", json!(["x"])).unwrap(), [r#"v:"x""#]);
        let port = names("ports", json!([{ "port": 80 }])).unwrap();
        assert_eq!(port, [r#"k:{"port":80,"protocol":"TCP"}"#]);
        assert_eq!(display_name(&port[0]), r#"[port=80,protocol="TCP"]"#);
        assert_eq!(names("containers", json!([{ "image": "a" }])), None, "the name is defaulted later");
        assert_eq!(names("env", json!([{ "name": "a" }, { "name": "a" }])), None);
        assert_eq!(names("traffic", json!([{ "tag": "a" }])), None);
    }
}
