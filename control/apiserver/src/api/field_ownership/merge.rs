//! Merges an applied configuration into the stored object, and removes fields that the applier no longer sends.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::field_location::{FieldLocation, display_name, elements};
use super::field_set::{FieldSet, field};

/// `live` with the fields of `wanted`.
pub(in super::super) fn merge(at: FieldLocation<'_>, live: Option<&Value>, wanted: &Value) -> Value {
    match (live, wanted) {
        (Some(Value::Object(live)), Value::Object(wanted)) if !at.is_atomic() => {
            // What is wanted is not cloned first: that would clone each level as often as it is deep.
            let untouched = live.iter().filter(|(name, _)| !wanted.contains_key(*name));
            let mut merged: Map<String, Value> = untouched.map(|(name, value)| (name.clone(), value.clone())).collect();
            for (name, value) in wanted {
                let element = format!("f:{name}");
                merged.insert(name.clone(), merge(at.child(&element), live.get(name), value));
            }
            merged.into()
        }
        (Some(Value::Array(live)), Value::Array(wanted)) => merge_lists(at, live, wanted),
        _ => wanted.clone(),
    }
}

/// The elements of a keyed list; any other list is replaced. What both have is in the client's order, what is
/// only there stays before new items.
fn merge_lists(at: FieldLocation<'_>, live: &[Value], wanted: &[Value]) -> Value {
    let (Some(live_names), Some(wanted_names)) = (elements(at, live), elements(at, wanted)) else {
        return wanted.into();
    };
    let (live_places, wanted_places) = (positions(&live_names), positions(&wanted_names));
    let old = |element: &String| live_places.get(element.as_str()).map(|place| &live[*place]);
    let mut merged = Vec::new();
    let (mut left, mut right) = (0, 0);
    while left < live.len() || right < wanted.len() {
        let place = live_names.get(left).and_then(|name| wanted_places.get(name.as_str()));
        match place {
            // Only others own it.
            None if left < live.len() => {
                merged.push(live[left].clone());
                left += 1;
            }
            // It came where the client has it.
            Some(place) if *place < right => left += 1,
            _ => {
                merged.push(merge(at.child(&wanted_names[right]), old(&wanted_names[right]), &wanted[right]));
                right += 1;
            }
        }
    }
    merged.into()
}

/// Where each name of a list stands.
fn positions(names: &[String]) -> HashMap<&str, usize> {
    names.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect()
}

/// Removes from `merged` what its applier applied `last` and no owner in `owned` has, the applier's new fields among
/// them. What was in a list's element or a map that goes, goes along, unless it is owned. A map or list that is owned
/// itself stays when it becomes empty.
pub(in super::super) fn prune(at: FieldLocation<'_>, merged: Value, last: &FieldSet, owned: &FieldSet) -> Value {
    let last = last.with_ancestors(at);
    let all = FieldSet::of(at, &merged).with_ancestors(at);
    let mut kept = FieldSet::of(at, &without(at, &merged, &last, owned)).with_ancestors(at);
    kept.add(&owned.with_ancestors(at));
    let mut gone = all.clone();
    gone.subtract(&kept);

    let left = FieldSet::of(at, &without(at, &merged, &gone, owned)).with_ancestors(at);
    let mut gone = all;
    gone.subtract(&left);
    let gone = gone.intersection(&last);
    if gone.is_empty() { merged } else { without(at, &merged, &gone, owned) }
}

fn without(at: FieldLocation<'_>, value: &Value, gone: &FieldSet, owned: &FieldSet) -> Value {
    let mut left = value.clone();
    remove(at, &mut left, gone, Some(owned));
    left
}

/// Removes fields with all that is in them, and what becomes empty by that and is not `owned`.
fn remove(at: FieldLocation<'_>, value: &mut Value, gone: &FieldSet, owned: Option<&FieldSet>) {
    let owned = |element: &str| owned.and_then(|owned| owned.children.get(element));
    match value {
        Value::Object(_) if at.is_atomic() => {}
        Value::Object(fields) => {
            for (element, inner) in &gone.children {
                let name = field(element);
                let Some(there) = fields.get_mut(name) else { continue };
                if inner.owned || remove_all(at.child(element), there, inner, owned(element)) {
                    fields.remove(name);
                }
            }
        }
        Value::Array(items) => {
            let Some(names) = elements(at, items) else { return };
            let mut names = names.into_iter();
            items.retain_mut(|item| {
                let element = names.next().unwrap_or_default();
                let Some(inner) = gone.children.get(&element) else { return true };
                !inner.owned && !remove_all(at.child(&element), item, inner, owned(&element))
            });
        }
        _ => {}
    }
}

/// Whether nothing is left of a map or list in which there was something, and that is not owned itself.
fn remove_all(at: FieldLocation<'_>, value: &mut Value, gone: &FieldSet, owned: Option<&FieldSet>) -> bool {
    let stays = is_empty_container(value) || owned.is_some_and(|owned| owned.owned);
    remove(at, value, gone, owned);
    !stays && is_empty_container(value)
}

fn is_empty_container(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Bytes of all paths in the message about one set: a key may be as long as the body, with thousands of fields inside.
const PATH_BYTES_MAX: usize = 256 * 1024;

/// The fields of a set as users write them (`.spec.template.spec.containers[name="a"].image`), as many as
/// [`PATH_BYTES_MAX`] holds; those of one place before those inside them.
pub(in super::super) fn paths(fields: &FieldSet) -> Vec<String> {
    let mut found = Vec::new();
    collect(fields, &mut String::new(), &mut found, &mut 0);
    found
}

fn collect(fields: &FieldSet, at: &mut String, found: &mut Vec<String>, bytes: &mut usize) {
    for (element, _) in fields.children.iter().filter(|(_, inner)| inner.owned) {
        if *bytes >= PATH_BYTES_MAX {
            return;
        }
        let path = format!("{at}{}", display_name(element));
        *bytes += path.len();
        found.push(path);
    }
    for (element, inner) in fields.children.iter().filter(|(_, inner)| !inner.children.is_empty()) {
        let before = at.len();
        at.push_str(&display_name(element));
        collect(inner, at, found, bytes);
        at.truncate(before);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::field_set::FieldDiff;
    use super::*;

    #[test]
    fn keyed_lists_merge_by_key_and_other_lists_are_replaced() {
        let live = json!({ "env": [{ "name": "a", "value": "1" }, { "name": "b" }], "traffic": [1, 2] });
        let wanted = json!({ "env": [{ "name": "c" }, { "name": "a", "value": "2" }], "traffic": [3] });
        assert_eq!(
            merge(FieldLocation::root(None), Some(&live), &wanted),
            json!({ "env": [{ "name": "c" }, { "name": "a", "value": "2" }, { "name": "b" }], "traffic": [3] })
        );
    }

    #[test]
    fn new_items_follow_items_of_others() {
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
                merge(FieldLocation::root(None), Some(&list(live)), &list(wanted)),
                list(merged),
                "{live} {wanted}"
            );
        }
    }

    /// The result of `merged` when its applier sends `wanted` after `last`, and another manager owns `others`.
    fn pruned(last: &Value, wanted: &Value, others: Value) -> Value {
        let at = FieldLocation::root(None);
        let merged = merge(at, Some(last), wanted);
        let mut owned = FieldSet::of(at, wanted);
        owned.add(&FieldSet::parse(&others));
        prune(at, merged, &FieldSet::of(at, last), &owned)
    }

    /// APP-30: a field that an applier leaves out is removed, unless another manager has it.
    #[test]
    fn what_nobody_else_owns_goes_and_what_becomes_empty_goes_with_it() {
        let last = json!({ "x": 1, "labels": { "a": "1", "b": "2" }, "only": { "x": 1 },
            "env": [{ "name": "a", "value": "1" }, { "name": "b", "value": "2" }] });
        let others = json!({ "f:labels": { "f:b": {} }, "f:env": {
            r#"k:{"name":"b"}"#: { ".": {}, "f:name": {} } } });
        let left = pruned(&last, &json!({ "x": 1 }), others);
        assert_eq!(left, json!({ "x": 1, "labels": { "b": "2" }, "env": [{ "name": "b" }] }));
        // The owner of a field of an element does not own the element.
        let others = json!({ "f:env": { r#"k:{"name":"b"}"#: { "f:value": {} } } });
        let left = pruned(&last, &json!({ "x": 1 }), others);
        assert_eq!(left["env"], Value::Null);
    }

    /// APP-30: a map that its applier sends empty is owned, so it stays without its content, null or not.
    #[test]
    fn owned_map_that_becomes_empty_stays() {
        let none = || json!({});
        for last in [json!({ "x": 1 }), json!({ "x": null, "y": { "z": 1 } }), json!({ "y": [1] })] {
            assert_eq!(
                pruned(&json!({ "spec": last }), &json!({ "spec": {} }), none()),
                json!({ "spec": {} }),
                "{last}"
            );
            assert_eq!(
                pruned(&json!({ "spec": last }), &none(), json!({ "f:spec": {} })),
                json!({ "spec": {} }),
                "{last}"
            );
            assert_eq!(pruned(&json!({ "spec": last }), &none(), none()), none(), "{last}");
        }
    }

    /// APP-30: a field without an applier, such as a default, is removed only with the element that contains it.
    #[test]
    fn what_has_no_owner_stays_unless_what_it_stands_in_goes() {
        let (last, at) = (json!({ "spec": { "env": [{ "name": "a" }, { "name": "b" }] } }), FieldLocation::root(None));
        let live = json!({ "spec": { "default": 1, "env": [{ "name": "a", "default": 1 }, { "name": "b" }] } });
        let wanted = json!({ "spec": { "env": [{ "name": "b" }] } });
        let merged = merge(at, Some(&live), &wanted);
        let left = prune(at, merged, &FieldSet::of(at, &last), &FieldSet::of(at, &wanted));
        assert_eq!(left, json!({ "spec": { "default": 1, "env": [{ "name": "b" }] } }));
    }

    #[test]
    fn paths_of_one_place_stand_before_those_inside_it() {
        let set = FieldSet::parse(&json!({ "f:a": { "f:x": {} }, "f:b": {}, "f:env": {
            r#"k:{"name":"x"}"#: { ".": {}, "f:value": {} } } }));
        assert_eq!(paths(&set), [".b", ".a.x", r#".env[name="x"]"#, r#".env[name="x"].value"#]);
    }

    /// Naming a list's elements once for each of them took minutes, on the thread of all writes.
    #[test]
    fn a_long_list_is_gone_through_once_for_all_its_elements() {
        let list = |value: &str| -> Value {
            json!({ "env": (0..20_000).map(|n| json!({ "name": n.to_string(), "value": value })).collect::<Vec<_>>() })
        };
        let (one, two, at) = (list("1"), list("2"), FieldLocation::root(None));
        let compared = FieldDiff::of(at, None, Some(&one), Some(&two));
        assert_eq!(compared.modified.children["f:env"].children.len(), 20_000);
        let mut kept = FieldSet::of(at, &one);
        kept.retain_existing(at, &two);
        let merged = merge(at, Some(&one), &two);
        assert_eq!(merged, two);
        assert_eq!(prune(at, merged, &kept, &FieldSet::default()), json!({}));
    }
}
