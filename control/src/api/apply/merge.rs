//! Lays a client's intent over what is stored, and takes away what the client no longer wants.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::fields::{Fields, field};
use super::lists::{At, elements, told};

/// `live` with the fields of `wanted`.
pub(super) fn merge(at: At<'_>, live: Option<&Value>, wanted: &Value) -> Value {
    match (live, wanted) {
        (Some(Value::Object(live)), Value::Object(wanted)) if !at.is_one_value() => {
            // What is wanted is not cloned first: that would clone each level as often as it is deep.
            let untouched = live.iter().filter(|(name, _)| !wanted.contains_key(*name));
            let mut merged: Map<String, Value> =
                untouched.map(|(name, value)| (name.clone(), value.clone())).collect();
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

/// Takes out of `merged` what its applier applied `last` and nobody of `owned` has, the applier's new fields among
/// them. What was in a list's element or a map that goes, goes along, unless it is owned.
pub(super) fn prune(at: At<'_>, merged: Value, last: &Fields, owned: &Fields) -> Value {
    let last = last.with_holders(at);
    let all = Fields::of(at, &merged).with_holders(at);
    let mut kept = Fields::of(at, &without(at, &merged, &last)).with_holders(at);
    kept.add(&owned.with_holders(at));
    let mut gone = all.clone();
    gone.subtract(&kept);

    let left = Fields::of(at, &without(at, &merged, &gone)).with_holders(at);
    let mut gone = all;
    gone.subtract(&left);
    let gone = gone.shared(&last);
    if gone.is_empty() { merged } else { without(at, &merged, &gone) }
}

fn without(at: At<'_>, value: &Value, gone: &Fields) -> Value {
    let mut left = value.clone();
    remove(at, &mut left, gone);
    left
}

/// Removes fields with all that is in them, and what becomes empty by that.
fn remove(at: At<'_>, value: &mut Value, gone: &Fields) {
    match value {
        Value::Object(_) if at.is_one_value() => {}
        Value::Object(fields) => {
            for (element, inner) in &gone.below {
                let name = field(element);
                let Some(there) = fields.get_mut(name) else { continue };
                if inner.owned || removed_all(at.below(element), there, inner) {
                    fields.remove(name);
                }
            }
        }
        Value::Array(items) => {
            let Some(names) = elements(at, items) else { return };
            let mut names = names.into_iter();
            items.retain_mut(|item| {
                let element = names.next().unwrap_or_default();
                let Some(inner) = gone.below.get(&element) else { return true };
                !inner.owned && !removed_all(at.below(&element), item, inner)
            });
        }
        _ => {}
    }
}

/// Whether nothing is left of a map or list in which there was something.
fn removed_all(at: At<'_>, value: &mut Value, gone: &Fields) -> bool {
    let was_hollow = is_hollow(value);
    remove(at, value, gone);
    !was_hollow && is_hollow(value)
}

fn is_hollow(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Bytes of all paths that one set is told with: a key may be as long as the body, with thousands of fields inside.
const PATH_BYTES_MAX: usize = 256 * 1024;

/// The fields of a set as people write them (`.spec.template.spec.containers[name="a"].image`), as many as
/// [`PATH_BYTES_MAX`] holds; those of one place before those inside them.
pub(super) fn paths(fields: &Fields) -> Vec<String> {
    let mut found = Vec::new();
    collect(fields, &mut String::new(), &mut found, &mut 0);
    found
}

fn collect(fields: &Fields, at: &mut String, found: &mut Vec<String>, bytes: &mut usize) {
    for (element, _) in fields.below.iter().filter(|(_, inner)| inner.owned) {
        if *bytes >= PATH_BYTES_MAX {
            return;
        }
        let path = format!("{at}{}", told(element));
        *bytes += path.len();
        found.push(path);
    }
    for (element, inner) in fields.below.iter().filter(|(_, inner)| !inner.below.is_empty()) {
        let before = at.len();
        at.push_str(&told(element));
        collect(inner, at, found, bytes);
        at.truncate(before);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fields::Compared;
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

    /// What stays of `merged` when its applier sends `wanted` after `last`, and another owns `others`.
    fn pruned(last: &Value, wanted: &Value, others: Value) -> Value {
        let at = At::whole(None);
        let merged = merge(at, Some(last), wanted);
        let mut owned = Fields::of(at, wanted);
        owned.add(&Fields::parse(&others));
        prune(at, merged, &Fields::of(at, last), &owned)
    }

    /// APP-30: what an applier leaves out goes, unless somebody else has it.
    #[test]
    fn what_nobody_else_owns_goes_and_what_becomes_empty_goes_with_it() {
        let last = json!({ "x": 1, "labels": { "a": "1", "b": "2" }, "only": { "x": 1 },
            "env": [{ "name": "a", "value": "1" }, { "name": "b", "value": "2" }] });
        let others = json!({ "f:labels": { "f:b": {} }, "f:env": {
            r#"k:{"name":"b"}"#: { ".": {}, "f:name": {} } } });
        let left = pruned(&last, &json!({ "x": 1 }), others);
        assert_eq!(left, json!({ "x": 1, "labels": { "b": "2" }, "env": [{ "name": "b" }] }));
        // Who owns a field of an element does not own that it is there.
        let others = json!({ "f:env": { r#"k:{"name":"b"}"#: { "f:value": {} } } });
        let left = pruned(&last, &json!({ "x": 1 }), others);
        assert_eq!(left["env"], Value::Null);
    }

    /// APP-30: what nobody applied, such as a default, goes with the element that it stands in, and only so.
    #[test]
    fn what_has_no_owner_stays_unless_what_it_stands_in_goes() {
        let (last, at) = (json!({ "spec": { "env": [{ "name": "a" }, { "name": "b" }] } }), At::whole(None));
        let live =
            json!({ "spec": { "default": 1, "env": [{ "name": "a", "default": 1 }, { "name": "b" }] } });
        let wanted = json!({ "spec": { "env": [{ "name": "b" }] } });
        let merged = merge(at, Some(&live), &wanted);
        let left = prune(at, merged, &Fields::of(at, &last), &Fields::of(at, &wanted));
        assert_eq!(left, json!({ "spec": { "default": 1, "env": [{ "name": "b" }] } }));
    }

    #[test]
    fn paths_of_one_place_stand_before_those_inside_it() {
        let set = Fields::parse(&json!({ "f:a": { "f:x": {} }, "f:b": {}, "f:env": {
            r#"k:{"name":"x"}"#: { ".": {}, "f:value": {} } } }));
        assert_eq!(paths(&set), [".b", ".a.x", r#".env[name="x"]"#, r#".env[name="x"].value"#]);
    }

    /// Naming a list's elements once for each of them took minutes, on the thread of all writes.
    #[test]
    fn a_long_list_is_gone_through_once_for_all_its_elements() {
        let list = |value: &str| -> Value {
            json!({ "env": (0..20_000).map(|n| json!({ "name": n.to_string(), "value": value })).collect::<Vec<_>>() })
        };
        let (one, two, at) = (list("1"), list("2"), At::whole(None));
        let compared = Compared::of(at, None, Some(&one), Some(&two));
        assert_eq!(compared.modified.below["f:env"].below.len(), 20_000);
        let mut kept = Fields::of(at, &one);
        kept.keep_existing(at, &two);
        let merged = merge(at, Some(&one), &two);
        assert_eq!(merged, two);
        assert_eq!(prune(at, merged, &kept, &Fields::default()), json!({}));
    }
}
