//! Sets of fields, as `fieldsV1` writes them, and the questions that ownership asks of them.
//!
//! Everything here follows an object's or a body's nesting, which the parsers of bodies bound.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::lists::{At, elements};

/// A set of fields as a tree. `owned`: the field at this place itself is in the set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) owned: bool,
    pub(super) below: BTreeMap<String, Fields>,
}

impl Fields {
    fn leaf() -> Self {
        Self { owned: true, below: BTreeMap::new() }
    }

    /// All fields of a whole object.
    #[cfg(test)]
    pub(super) fn of(value: &Value) -> Self {
        Self::changed(At::whole(None), None, value)
    }

    /// The fields of `after` that are not so in `before`.
    pub(super) fn changed(at: At<'_>, before: Option<&Value>, after: &Value) -> Self {
        if before == Some(after) {
            return Self::default();
        }
        let mut found = Self::default();
        let below = children(at, after);
        if below.is_empty() {
            return Self::leaf();
        }
        let before = Parts::of(at, before);
        for (element, inner) in below {
            let old = before.get(&element);
            let mut inside = Self::changed(at.below(&element), old, inner);
            // An element of a list is there or not; a field of an object only has a value.
            inside.owned |= !element.starts_with("f:") && old.is_none();
            if !inside.is_empty() {
                found.below.insert(element, inside);
            }
        }
        found
    }

    pub(super) fn parse(value: &Value) -> Self {
        let Some(fields) = value.as_object() else { return Self::default() };
        let below: BTreeMap<String, Self> = fields
            .iter()
            .filter(|(name, _)| *name != ".")
            .map(|(name, inner)| (name.clone(), Self::parse(inner)))
            .collect();
        Self { owned: below.is_empty() || fields.contains_key("."), below }
    }

    pub(super) fn write(&self) -> Value {
        let mut fields: Map<String, Value> =
            self.below.iter().map(|(name, inner)| (name.clone(), inner.write())).collect();
        if self.owned && !fields.is_empty() {
            fields.insert(".".into(), json!({}));
        }
        fields.into()
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.owned && self.below.is_empty()
    }

    /// The field is one value for its owner, whatever is in it.
    pub(super) fn is_leaf(&self) -> bool {
        self.owned && self.below.is_empty()
    }

    /// Makes a field that is in the set one value, whatever of it was there.
    pub(super) fn close(&mut self, element: &str) {
        if let Some(inner) = self.below.get_mut(element) {
            *inner = Self::leaf();
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.owned |= other.owned;
        for (name, inner) in &other.below {
            self.below.entry(name.clone()).or_default().add(inner);
        }
    }

    /// Takes out what is in `other`, and everything that overlaps with it.
    pub(super) fn subtract(&mut self, other: &Self) {
        if other.is_leaf() {
            *self = Self::default();
            return;
        }
        if self.is_leaf() && !other.is_empty() {
            self.owned = false;
        }
        for (name, inner) in &other.below {
            if let Some(mine) = self.below.get_mut(name) {
                mine.subtract(inner);
            }
        }
        self.below.retain(|_, inner| !inner.is_empty());
    }

    /// Takes out what a client's `wanted` still has, by its fields `mine`. A map or list that it sends empty is still
    /// there; what was in it is not.
    pub(super) fn subtract_wanted(&mut self, at: At<'_>, mine: &Self, wanted: Option<&Value>) {
        if mine.is_leaf() {
            let holds = |value: &Value| value.is_object() || value.is_array();
            let emptied = wanted.is_some_and(holds) && !self.below.is_empty();
            self.owned = false;
            if !emptied {
                self.below.clear();
            }
            return;
        }
        if self.is_leaf() && !mine.is_empty() {
            self.owned = false;
        }
        let wanted = Parts::of(at, wanted);
        for (element, inner) in &mine.below {
            if let Some(last) = self.below.get_mut(element) {
                last.subtract_wanted(at.below(element), inner, wanted.get(element));
            }
        }
        self.below.retain(|_, inner| !inner.is_empty());
    }

    /// Keeps what `value` has.
    pub(super) fn keep_existing(&mut self, at: At<'_>, value: &Value) {
        let parts = Parts::of(at, Some(value));
        self.below.retain(|element, inner| match parts.get(element) {
            Some(there) => {
                inner.keep_existing(at.below(element), there);
                !inner.is_empty()
            }
            None => false,
        });
    }
}

/// The name of the field that an element of the notation stands for; list elements have none.
pub(super) fn field(element: &str) -> &str {
    element.strip_prefix("f:").unwrap_or("")
}

/// The parts of a value with their names in the notation; none of what is one value.
fn children<'a>(at: At<'_>, value: &'a Value) -> Vec<(String, &'a Value)> {
    match value {
        Value::Object(_) if at.is_one_value() => Vec::new(),
        Value::Object(fields) => fields.iter().map(|(name, inner)| (format!("f:{name}"), inner)).collect(),
        Value::Array(items) => {
            elements(at, items).map_or_else(Vec::new, |names| names.into_iter().zip(items).collect())
        }
        _ => Vec::new(),
    }
}

/// A value's parts, found by their names. Naming a list's elements goes through all of them, so it is done once for all
/// questions.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    value: Option<&'a Value>,
    places: HashMap<String, usize>,
}

impl<'a> Parts<'a> {
    pub(super) fn of(at: At<'_>, value: Option<&'a Value>) -> Self {
        let names = match value {
            Some(Value::Array(items)) => elements(at, items),
            _ => None,
        };
        let places = names.into_iter().flatten().enumerate().map(|(place, name)| (name, place)).collect();
        Self { value, places }
    }

    pub(super) fn get(&self, element: &str) -> Option<&'a Value> {
        match self.value? {
            Value::Object(fields) => fields.get(element.strip_prefix("f:")?),
            Value::Array(items) => items.get(*self.places.get(element)?),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_survives_being_written_and_read() {
        let object = json!({ "a": 1, "env": [{ "name": "x", "value": "y" }], "list": [1, 2], "empty": {} });
        let set = Fields::of(&object);
        let written = set.write();
        assert_eq!(
            written,
            json!({ "f:a": {}, "f:empty": {}, "f:list": {},
                "f:env": { r#"k:{"name":"x"}"#: { ".": {}, "f:name": {}, "f:value": {} } } })
        );
        assert_eq!(Fields::parse(&written), set);
    }

    #[test]
    fn a_change_names_what_is_different_and_only_that() {
        let before = json!({ "a": 1, "b": { "c": 1, "d": 2 }, "env": [{ "name": "x", "value": "1" }] });
        let after = json!({ "a": 1, "b": { "c": 2, "d": 2 },
            "env": [{ "name": "x", "value": "2" }, { "name": "z" }] });
        let changed = Fields::changed(At::whole(None), Some(&before), &after).write();
        assert_eq!(
            changed,
            json!({ "f:b": { "f:c": {} }, "f:env": {
                r#"k:{"name":"x"}"#: { "f:value": {} },
                r#"k:{"name":"z"}"#: { ".": {}, "f:name": {} } } })
        );
    }

    #[test]
    fn a_whole_field_and_a_part_of_it_overlap() {
        let whole = Fields::parse(&json!({ "f:a": {}, "f:b": {} }));
        let part = Fields::parse(&json!({ "f:a": { "f:c": {} } }));
        let mut one = whole.clone();
        one.subtract(&part);
        assert_eq!(one.write(), json!({ "f:b": {} }));
        let mut other = part.clone();
        other.subtract(&whole);
        assert!(other.is_empty());
    }
}
