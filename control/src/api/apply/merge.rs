//! Lays a client's intent over what is stored, and takes away what the client no longer wants.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::fields::{Fields, Parts, field};
use super::lists::{At, elements, told};

/// `live` with the fields of `wanted`.
pub(super) fn merge(at: At<'_>, live: Option<&Value>, wanted: &Value) -> Value {
    match (live, wanted) {
        (Some(Value::Object(live)), Value::Object(wanted)) if !at.is_one_value() => {
            let mut merged = live.clone();
            for (name, value) in wanted {
                let element = format!("f:{name}");
                merged.insert(name.clone(), merge(at.below(&element), live.get(name), value));
            }
            merged.into()
        }
        (Some(Value::Array(live)), Value::Array(wanted)) => merge_lists(at, live, wanted),
        _ => wanted.clone(),
    }
}

/// The elements of a keyed list; any other list is replaced. What both have stands in the client's order, what is
/// only there stays before what comes anew.
fn merge_lists(at: At<'_>, live: &[Value], wanted: &[Value]) -> Value {
    let (Some(live_names), Some(wanted_names)) = (elements(at, live), elements(at, wanted)) else {
        return wanted.into();
    };
    let (live_places, wanted_places) = (places(&live_names), places(&wanted_names));
    let old = |element: &String| live_places.get(element.as_str()).map(|place| &live[*place]);
    let mut merged = Vec::new();
    let (mut left, mut right) = (0, 0);
    while left < live.len() || right < wanted.len() {
        let place = live_names.get(left).and_then(|name| wanted_places.get(name.as_str()));
        match place {
            // Nobody but others has it.
            None if left < live.len() => {
                merged.push(live[left].clone());
                left += 1;
            }
            // It came where the client has it.
            Some(place) if *place < right => left += 1,
            _ => {
                merged.push(merge(at.below(&wanted_names[right]), old(&wanted_names[right]), &wanted[right]));
                right += 1;
            }
        }
    }
    merged.into()
}

/// Where each name of a list stands.
fn places(names: &[String]) -> HashMap<&str, usize> {
    names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect()
}

/// Removes the fields in `gone` from `value` that none of `claims` has.
pub(super) fn remove(at: At<'_>, value: &mut Value, gone: &Fields, claims: &[&Fields]) {
    // A list with keys is like a map.
    let names = match &*value {
        Value::Array(items) => elements(at, items),
        _ => None,
    };
    // Who owns a map without owning anything in it wants it to be there, and not what others put in.
    if claims.iter().any(|claim| claim.is_leaf()) && !value.is_object() && names.is_none() {
        return;
    }
    let places = places(names.as_deref().unwrap_or_default());
    let mut out = HashSet::new();
    for (element, inner) in &gone.below {
        let claims: Vec<&Fields> = claims.iter().filter_map(|claim| claim.below.get(element)).collect();
        let whole = inner.is_leaf() || (inner.owned && !element.starts_with("f:"));
        let place = places.get(element.as_str()).copied();
        let there = match value {
            Value::Object(fields) => fields.get_mut(field(element)),
            Value::Array(items) => place.and_then(|place| items.get_mut(place)),
            _ => None,
        };
        let Some(there) = there else { continue };
        let mut goes = claims.is_empty() && whole;
        if !goes {
            remove(at.below(element), there, inner, &claims);
            goes = is_hollow(there) && !claims.iter().any(|claim| claim.is_leaf());
        }
        match value {
            Value::Object(fields) if goes => {
                fields.remove(field(element));
            }
            Value::Array(_) if goes => out.extend(place),
            _ => {}
        }
    }
    if let Value::Array(items) = value {
        let mut place = 0..;
        items.retain(|_| place.next().is_none_or(|place| !out.contains(&place)));
    }
}

fn is_hollow(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// The fields that `mine` and `theirs` both have and that `merged` makes different from `live`.
pub(super) fn clashes(at: At<'_>, mine: &Fields, theirs: &Fields, live: &Value, merged: &Value) -> Fields {
    clash(at, mine, theirs, Some(live), Some(merged))
}

fn clash(at: At<'_>, mine: &Fields, theirs: &Fields, live: Option<&Value>, merged: Option<&Value>) -> Fields {
    if live == merged || mine.is_empty() || theirs.is_empty() {
        return Fields::default();
    }
    if mine.is_leaf() || theirs.is_leaf() {
        return Fields { owned: true, ..Fields::default() };
    }
    let mut found = Fields::default();
    let (live, merged) = (Parts::of(at, live), Parts::of(at, merged));
    for (element, inner) in &mine.below {
        let Some(other) = theirs.below.get(element) else { continue };
        let clashed = clash(at.below(element), inner, other, live.get(element), merged.get(element));
        if !clashed.is_empty() {
            found.below.insert(element.clone(), clashed);
        }
    }
    found
}

/// Every field of a set as people write it (`.spec.template.spec.containers[name="a"].image`).
pub(super) fn paths(fields: &Fields) -> Vec<String> {
    let mut found = Vec::new();
    collect(fields, &mut String::new(), &mut found);
    found
}

fn collect(fields: &Fields, at: &mut String, found: &mut Vec<String>) {
    if fields.owned {
        found.push(at.clone());
    }
    for (element, inner) in &fields.below {
        let before = at.len();
        at.push_str(&told(element));
        collect(inner, at, found);
        at.truncate(before);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keyed_lists_merge_by_key_and_other_lists_are_replaced() {
        let live = json!({ "env": [{ "name": "a", "value": "1" }, { "name": "b" }], "traffic": [1, 2] });
        let wanted = json!({ "env": [{ "name": "c" }, { "name": "a", "value": "2" }], "traffic": [3] });
        assert_eq!(
            merge(At::whole(None), Some(&live), &wanted),
            json!({ "env": [{ "name": "c" }, { "name": "a", "value": "2" }, { "name": "b" }], "traffic": [3] })
        );
    }

    #[test]
    fn what_comes_anew_stands_behind_what_others_have() {
        let list = |names: &str| -> Value {
            json!({ "env": names.chars().map(|name| json!({ "name": name })).collect::<Vec<_>>() })
        };
        for (live, wanted, merged) in [
            ("ab", "c", "abc"),
            ("ab", "ca", "cab"),
            ("abc", "cb", "acb"),
            ("abcd", "db", "adbc"),
            ("", "ab", "ab"),
            ("ab", "", "ab"),
        ] {
            assert_eq!(
                merge(At::whole(None), Some(&list(live)), &list(wanted)),
                list(merged),
                "{live} {wanted}"
            );
        }
    }

    #[test]
    fn what_nobody_else_claims_goes_and_what_becomes_empty_goes_with_it() {
        let mut value = json!({ "labels": { "a": "1", "b": "2" }, "only": { "x": 1 },
            "env": [{ "name": "a", "value": "1" }, { "name": "b", "value": "2" }] });
        let gone = Fields::of(&value);
        let claim = Fields::parse(&json!({ "f:labels": { "f:b": {} }, "f:env": {
            r#"k:{"name":"b"}"#: { "f:name": {} } } }));
        remove(At::whole(None), &mut value, &gone, &[&claim]);
        assert_eq!(value, json!({ "labels": { "b": "2" }, "env": [{ "name": "b" }] }));
    }

    #[test]
    fn an_empty_map_is_kept_and_what_was_in_it_goes() {
        let last = json!({ "data": { "a": "1", "b": "2" }, "emptyDir": {}, "list": [1] });
        let wanted = json!({ "data": {}, "emptyDir": {}, "list": [1] });
        let mine = Fields::of(&wanted);
        let mut gone = Fields::of(&last);
        gone.subtract_wanted(At::whole(None), &mine, Some(&wanted));
        let other = Fields::parse(&json!({ "f:data": { "f:b": {} } }));
        let mut value = last.clone();
        remove(At::whole(None), &mut value, &gone, &[&other, &mine]);
        assert_eq!(value, json!({ "data": { "b": "2" }, "emptyDir": {}, "list": [1] }));
        let mut value = last;
        remove(At::whole(None), &mut value, &gone, &[&mine]);
        assert_eq!(value, wanted);
    }

    #[test]
    fn two_owners_clash_only_where_the_value_changes() {
        let live = json!({ "a": 1, "b": 1, "env": [{ "name": "x", "value": "1" }] });
        let merged = json!({ "a": 1, "b": 2, "env": [{ "name": "x", "value": "2" }] });
        let all = Fields::of(&live);
        assert_eq!(
            paths(&clashes(At::whole(None), &all, &all, &live, &merged)),
            [".b", r#".env[name="x"].value"#]
        );
        assert!(clashes(At::whole(None), &all, &Fields::default(), &live, &merged).is_empty());
    }

    /// Naming a list's elements once for each of them took minutes, on the thread of all writes.
    #[test]
    fn a_long_list_is_gone_through_once_for_all_its_elements() {
        let list = |value: &str| -> Value {
            json!({ "env": (0..20_000).map(|n| json!({ "name": n.to_string(), "value": value })).collect::<Vec<_>>() })
        };
        let (one, two, at) = (list("1"), list("2"), At::whole(None));
        let changed = Fields::changed(at, Some(&one), &two);
        assert_eq!(changed.below["f:env"].below.len(), 20_000);
        assert_eq!(clashes(at, &changed, &Fields::of(&one), &one, &two), changed);
        let mut kept = Fields::of(&one);
        kept.keep_existing(at, &two);
        kept.subtract_wanted(at, &changed, Some(&two));
        let mut merged = merge(at, Some(&one), &two);
        assert_eq!(merged, two);
        remove(at, &mut merged, &Fields::of(&one), &[]);
        assert_eq!(merged, json!({}));
    }
}
