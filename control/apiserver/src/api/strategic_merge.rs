//! Strategic merge patch: a merge patch that merges keyed lists by element.
//!
//! Only for Kubernetes' own kinds, whose list keys are known; kubectl sends it for them.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// In what, which lists of objects are merged by a key; all other lists are replaced, an EndpointSlice's ports too.
const KEYED_LISTS: [(&str, &str, &str); 17] = [
    ("metadata", "ownerReferences", "uid"),
    ("status", "conditions", "type"),
    ("spec", "ports", "port"),
    ("", "secrets", "name"),
    ("", "imagePullSecrets", "name"),
    ("spec", "containers", "name"),
    ("spec", "initContainers", "name"),
    ("spec", "volumes", "name"),
    ("spec", "imagePullSecrets", "name"),
    ("spec", "hostAliases", "ip"),
    ("spec", "topologySpreadConstraints", "topologyKey"),
    ("containers", "env", "name"),
    ("containers", "ports", "containerPort"),
    ("containers", "volumeMounts", "mountPath"),
    ("initContainers", "env", "name"),
    ("initContainers", "ports", "containerPort"),
    ("initContainers", "volumeMounts", "mountPath"),
];
/// Lists of plain values that are merged as sets.
const SETS: [(&str, &str); 1] = [("metadata", "finalizers")];

/// Whether the list `name` of the field `parent` is merged; and by which key, if its elements have one.
pub(super) fn list_merge_key(parent: &str, name: &str) -> Option<Option<&'static str>> {
    let key = KEYED_LISTS.iter().find(|(within, list, _)| (*within, *list) == (parent, name)).map(|(_, _, key)| *key);
    (key.is_some() || SETS.contains(&(parent, name))).then_some(key)
}

/// Applies `patch` to an object. Recursion is bounded by the patch's depth, which its parser bounds.
pub(super) fn merge(object: &mut Value, patch: &Value) -> Result<(), String> {
    merge_into(object, patch, "")
}

/// The same to what the field `parent` holds; to the whole object if that is empty.
fn merge_into(target: &mut Value, patch: &Value, parent: &str) -> Result<(), String> {
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
        let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
        into.retain(|name, _| kept.contains(name.as_str()));
    }
    for (name, value) in fields {
        merge_field(into, parent, name, value)?;
    }
    for (name, order) in fields.iter().filter_map(|(name, order)| Some((name.strip_prefix(ELEMENT_ORDER)?, order))) {
        let order = order.as_array().ok_or("$setElementOrder has to be a list")?;
        if let (Some(key), Some(Value::Array(list))) = (list_merge_key(parent, name), into.get_mut(name)) {
            *list = in_order(std::mem::take(list), order, None, key);
        }
    }
    Ok(())
}

/// What tells the elements of a list apart. Texts, which most of them are, are not copied.
#[derive(PartialEq, Eq, Hash)]
enum ElementIdentity<'a> {
    Text(&'a str),
    Serialized(String),
}

impl<'a> ElementIdentity<'a> {
    fn of(element: &'a Value, key: Option<&str>) -> Self {
        match key.map_or(element, |key| &element[key]) {
            Value::String(text) => Self::Text(text),
            other => Self::Serialized(other.to_string()),
        }
    }
}

/// The elements that `order` names in its order, and the others as they were in `original`, or else in `merged`: each before
/// what it was before.
fn in_order(merged: Vec<Value>, order: &[Value], original: Option<&[Value]>, key: Option<&str>) -> Vec<Value> {
    fn places<'a>(list: &'a [Value], key: Option<&str>) -> HashMap<ElementIdentity<'a>, usize> {
        list.iter().enumerate().rev().map(|(place, item)| (ElementIdentity::of(item, key), place)).collect()
    }
    let (order, original) = (places(order, key), original.map(|list| places(list, key)));
    // Each element is serialized once: it may be as long as the body.
    let placed = merged.into_iter().enumerate().map(|(place, item)| {
        let identity = ElementIdentity::of(&item, key);
        let before = original.as_ref().map_or(Some(place), |original| original.get(&identity).copied());
        let named = order.get(&identity).copied();
        drop(identity);
        (named, before, item)
    });
    let (mut named, mut others): (Vec<_>, Vec<_>) = placed.partition(|(named, ..)| named.is_some());
    named.sort_by_key(|(order, ..)| *order);
    others.sort_by_key(|(_, original, _)| *original);
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut found = Vec::new();
    loop {
        let first = match (others.peek(), named.peek()) {
            (None, None) => return found,
            (Some((_, Some(other), _)), Some((_, Some(name), _))) => other < name,
            (Some(_), Some(_)) => false,
            (other, _) => other.is_some(),
        };
        let next = if first { others.next() } else { named.next() };
        found.extend(next.map(|(.., item)| item));
    }
}

fn merge_field(into: &mut Map<String, Value>, parent: &str, name: &str, value: &Value) -> Result<(), String> {
    if let Some(list) = name.strip_prefix(DELETE_FROM) {
        let gone = value.as_array().ok_or("$deleteFromPrimitiveList has to be a list")?;
        if let Some(list) = into.get_mut(list).and_then(Value::as_array_mut) {
            let gone: HashSet<String> = gone.iter().map(Value::to_string).collect();
            list.retain(|one| !gone.contains(&one.to_string()));
        }
        return Ok(());
    }
    // Orders are for when everything else is done.
    if name == DIRECTIVE || name == RETAIN_KEYS || name.starts_with(ELEMENT_ORDER) {
        return Ok(());
    }
    match value {
        Value::Null => {
            into.remove(name);
        }
        Value::Object(inner) if inner.get(DIRECTIVE).is_some_and(|said| said == "delete") => {
            into.remove(name);
        }
        Value::Object(_) => merge_into(into.entry(name).or_insert(Value::Null), value, name)?,
        Value::Array(elements) => {
            let (list, merging) = (into.entry(name).or_insert(Value::Null), list_merge_key(parent, name));
            let original = list.as_array().cloned().unwrap_or_default();
            merge_list(list, merging, name, elements)?;
            // What the patch names stands as it does there.
            if let (Some(key), Value::Array(list)) = (merging, list) {
                *list = in_order(std::mem::take(list), elements, Some(&original), key);
            }
        }
        plain => {
            into.insert(name.into(), plain.clone());
        }
    }
    Ok(())
}

fn merge_list(target: &mut Value, merging: Option<Option<&str>>, name: &str, elements: &[Value]) -> Result<(), String> {
    let (key, set) = (merging.flatten(), merging == Some(None));
    let replace = elements.iter().any(|one| one[DIRECTIVE] == "replace");
    if replace || (key.is_none() && !set) || !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Some(list) = target.as_array_mut() else { return Ok(()) };
    let elements = elements.iter().filter(|element| element[DIRECTIVE] != "replace");
    let Some(key) = key else {
        let mut there: HashSet<String> = list.iter().filter(|_| set).map(Value::to_string).collect();
        list.extend(elements.filter(|element| !set || there.insert(element.to_string())).cloned());
        return Ok(());
    };
    // Keys may stand several times: the first one is meant.
    let mut places: HashMap<String, VecDeque<usize>> = HashMap::new();
    for (place, identity) in list.iter().enumerate().filter_map(|(place, one)| Some((place, one.get(key)?))) {
        places.entry(identity.to_string()).or_default().push_back(place);
    }
    let mut gone = HashSet::new();
    for element in elements {
        let identity = element.get(key).ok_or_else(|| format!("an element of {name} lacks its key {key}"))?;
        let known = places.entry(identity.to_string()).or_default();
        if element[DIRECTIVE] == "delete" {
            gone.extend(known.pop_front());
        } else if let Some(place) = known.front() {
            merge_into(&mut list[*place], element, name)?;
        } else {
            let mut new = Value::Null;
            merge_into(&mut new, element, name)?;
            known.push_back(list.len());
            list.push(new);
        }
    }
    let mut place = 0..;
    list.retain(|_| place.next().is_none_or(|place| !gone.contains(&place)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn merged(mut target: Value, patch: &Value) -> Value {
        merge(&mut target, patch).unwrap();
        target
    }

    #[test]
    fn keyed_lists_merge_by_key_and_others_are_replaced() {
        let within = |spec: Value| json!({ "spec": spec });
        let target = json!({ "ports": [{ "port": 80, "name": "a" }, { "port": 81 }], "args": [1, 2] });
        let patch = json!({
            "ports": [{ "port": 80, "name": "b" }, { "port": 81, "$patch": "delete" }, { "port": 82 }],
            "$setElementOrder/ports": [{ "port": 80 }, { "port": 82 }],
            "args": [3],
        });
        let expected = json!({ "ports": [{ "port": 80, "name": "b" }, { "port": 82 }], "args": [3] });
        assert_eq!(merged(within(target), &within(patch)), within(expected));
        // A slice's ports stand elsewhere, and are one value.
        let slice = json!({ "ports": [{ "port": 80 }, { "port": 81 }] });
        assert_eq!(merged(slice, &json!({ "ports": [{ "port": 80 }] })), json!({ "ports": [{ "port": 80 }] }));
    }

    #[test]
    fn finalizers_are_a_set_and_can_be_taken_out_one_by_one() {
        let within = |metadata: Value| json!({ "metadata": metadata });
        let target = within(json!({ "finalizers": ["a", "b"] }));
        let patch = within(json!({ "$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["b", "c"] }));
        assert_eq!(merged(target, &patch), within(json!({ "finalizers": ["b", "c"] })));
    }

    /// Each name was looked for in the whole list of those to keep: minutes, on the thread of all writes.
    #[test]
    fn a_long_list_of_names_to_keep_is_gone_through_once() {
        let names = || (0..100_000).map(|n| n.to_string());
        let target: Value = names().map(|name| (name, Value::from(1))).collect::<Map<_, _>>().into();
        let patch = json!({ "$retainKeys": names().skip(1).collect::<Vec<_>>() });
        assert_eq!(merged(target, &patch).as_object().unwrap().len(), 99_999);
    }

    /// One that stands twice is taken out one at a time, and a long list is gone through once.
    #[test]
    fn keys_that_stand_twice_and_long_lists_are_merged() {
        let within = |ports: Value| json!({ "spec": { "ports": ports } });
        let port = |port: u32, name: &str| json!({ "port": port, "name": name });
        let target = within(json!([port(53, "a"), port(53, "b"), port(54, "c")]));
        let delete = json!({ "port": 53, "$patch": "delete" });
        assert_eq!(merged(target.clone(), &within(json!([delete]))), within(json!([port(53, "b"), port(54, "c")])));
        assert_eq!(merged(target.clone(), &within(json!([delete, delete]))), within(json!([port(54, "c")])));
        assert_eq!(
            merged(target, &within(json!([delete, port(53, "d"), port(55, "e"), port(55, "f")]))),
            within(json!([port(53, "d"), port(55, "f"), port(54, "c")]))
        );
        let many = |name: &str| within((0..20_000).map(|number| port(number, name)).collect());
        assert_eq!(merged(many("a"), &many("b")), many("b"));
    }

    #[test]
    fn directives_replace_delete_and_retain() {
        let target = json!({ "data": { "a": 1, "b": 2 } });
        for (patch, expected) in [
            (json!({ "data": { "$patch": "replace", "c": 3 } }), json!({ "data": { "c": 3 } })),
            (json!({ "data": { "$patch": "delete" } }), json!({})),
            (json!({ "data": { "$retainKeys": ["a"] } }), json!({ "data": { "a": 1 } })),
            (json!({ "data": null }), json!({})),
        ] {
            assert_eq!(merged(target.clone(), &patch), expected);
        }
        assert!(merge(&mut target.clone(), &json!({ "$patch": 5 })).is_err());
        assert!(merge(&mut target.clone(), &json!({ "spec": { "ports": [{}] } })).is_err());
    }

    /// APP-29: without an order, what the patch names stands first and as it is there.
    #[test]
    fn what_a_patch_adds_stands_where_kubernetes_puts_it() {
        let ports = |numbers: &[u16]| json!({ "spec": { "ports": numbers.iter().map(|port| json!({ "port": port })).collect::<Vec<_>>() } });
        for (there, patch, wanted) in [
            (&[80, 81][..], &[82][..], &[82, 80, 81][..]),
            (&[80, 81], &[81], &[80, 81]),
            (&[80, 81, 82], &[82, 80], &[81, 82, 80]),
        ] {
            assert_eq!(merged(ports(there), &ports(patch)), ports(wanted), "{there:?} {patch:?}");
        }
        let finalizers = |names: &[&str]| json!({ "metadata": { "finalizers": names } });
        assert_eq!(merged(finalizers(&["a"]), &finalizers(&["b"])), finalizers(&["b", "a"]));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i8>().prop_map(Value::from),
            "(delete|replace|merge|a|b)".prop_map(Value::from),
        ];
        let name = "(spec|metadata|ports|port|finalizers|conditions|type|a|b|[$]patch|[$]retainKeys|[$]deleteFromPrimitiveList/finalizers)";
        leaf.prop_recursive(4, 30, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(name, inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever is sent is applied or refused in words; what is applied is so when it is sent again.
        #[test]
        fn any_patch_fits_or_is_refused_and_a_second_time_changes_nothing(target in any_value(), patch in any_value()) {
            let mut once = target;
            if merge(&mut once, &patch).is_ok() && !patch.to_string().contains('$') {
                let mut twice = once.clone();
                // A list of its own may hold what its elements are merged by twice.
                if merge(&mut twice, &patch).is_ok() && !patch.to_string().contains("ports") && !patch.to_string().contains("conditions") {
                    prop_assert_eq!(twice, once);
                }
            }
        }
    }
}
