//! Sets of fields in the `fieldsV1` format, and their intersection, union and difference.
//!
//! All functions here recurse by an object's or a body's nesting, which the parsers of bodies bound.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value, json};

use super::field_location::{FieldLocation, elements};

/// A set of fields as a tree. `owned`: the field at this place itself is in the set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct FieldSet {
    pub(in super::super) owned: bool,
    /// None of them is empty.
    pub(in super::super) children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    pub(in super::super) fn leaf() -> Self {
        Self { owned: true, children: BTreeMap::new() }
    }

    /// All that a client says with `value`: what is one value, and elements of lists. A field that only holds others
    /// is not in it, unless it is empty or a key that the schema does not name.
    pub(in super::super) fn of(at: FieldLocation<'_>, value: &Value) -> Self {
        let Some(parts) = named_parts(at, value) else { return Self::leaf() };
        let mut found = Self::default();
        for (element, inner) in parts {
            let mut inside = Self::of(at.child(&element), inner);
            let empty = inner.is_null() || inner.as_object().is_some_and(Map::is_empty);
            inside.owned |= empty || !at.has_field(&element);
            found.insert(element, inside);
        }
        found
    }

    pub(in super::super) fn insert(&mut self, element: String, inside: Self) {
        if !inside.is_empty() {
            self.children.insert(element, inside);
        }
    }

    pub(in super::super) fn parse(value: &Value) -> Self {
        let Some(fields) = value.as_object() else { return Self::default() };
        let below: BTreeMap<String, Self> = fields
            .iter()
            .filter(|(name, _)| *name != ".")
            .map(|(name, inner)| (name.clone(), Self::parse(inner)))
            .filter(|(_, inner)| !inner.is_empty())
            .collect();
        Self { owned: below.is_empty() || fields.contains_key("."), children: below }
    }

    pub(in super::super) fn into_value(self) -> Value {
        let mut fields: Map<String, Value> =
            self.children.into_iter().map(|(name, inner)| (name, inner.into_value())).collect();
        if self.owned && !fields.is_empty() {
            fields.insert(".".into(), json!({}));
        }
        fields.into()
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        !self.owned && self.children.is_empty()
    }

    pub(in super::super) fn add(&mut self, other: &Self) {
        self.owned |= other.owned;
        for (name, inner) in &other.children {
            self.children.entry(name.clone()).or_default().add(inner);
        }
    }

    /// Adds a set that is not needed any more.
    pub(super) fn append(&mut self, other: Self) {
        self.owned |= other.owned;
        if self.children.is_empty() {
            self.children = other.children;
            return;
        }
        for (name, inner) in other.children {
            self.children.entry(name).or_default().append(inner);
        }
    }

    /// Takes out what is in `other`, field by field: what holds a field, or is in it, stays.
    pub(in super::super) fn subtract(&mut self, other: &Self) {
        self.owned &= !other.owned;
        // As much work as the smaller set has: thousands of owners of a field each lose what one writer sets.
        if self.children.len() <= other.children.len() {
            self.children.retain(|name, mine| {
                other.children.get(name).into_iter().for_each(|inner| mine.subtract(inner));
                !mine.is_empty()
            });
            return;
        }
        for (name, inner) in &other.children {
            let Some(mine) = self.children.get_mut(name) else { continue };
            mine.subtract(inner);
            if mine.is_empty() {
                self.children.remove(name);
            }
        }
    }

    /// The intersection.
    pub(in super::super) fn intersection(&self, other: &Self) -> Self {
        let mut found = Self { owned: self.owned && other.owned, children: BTreeMap::new() };
        for (name, inner) in &self.children {
            if let Some(theirs) = other.children.get(name) {
                found.insert(name.clone(), inner.intersection(theirs));
            }
        }
        found
    }

    /// The set, and every field that holds one of it; not the elements of lists, which are there or not by themselves.
    pub(in super::super) fn with_ancestors(&self, at: FieldLocation<'_>) -> Self {
        let mut found = Self { owned: self.owned, children: BTreeMap::new() };
        for (element, inner) in &self.children {
            let mut inside = inner.with_ancestors(at.child(element));
            inside.owned |= at.has_field(element);
            found.children.insert(element.clone(), inside);
        }
        found
    }

    /// Keeps what `value` has.
    pub(in super::super) fn retain_existing(&mut self, at: FieldLocation<'_>, value: &Value) {
        let parts = NamedParts::of(at, Some(value));
        self.children.retain(|element, inner| match parts.get(element) {
            Some(there) => {
                inner.retain_existing(at.child(element), there);
                !inner.is_empty()
            }
            None => false,
        });
    }
}

/// The fields of one value that the other does not have.
#[derive(Debug, Default)]
pub(in super::super) struct FieldDiff {
    pub(in super::super) added: FieldSet,
    pub(in super::super) modified: FieldSet,
    pub(in super::super) removed: FieldSet,
}

impl FieldDiff {
    /// From `before` to `after`. `blank`: what an object of the kind has anyway, written or not.
    ///
    /// A new value is added with everything in it, and itself: a new map is one field more.
    pub(in super::super) fn of(
        at: FieldLocation<'_>,
        blank: Option<&Value>,
        before: Option<&Value>,
        after: Option<&Value>,
    ) -> Self {
        let (before, after) = (before.or(blank), after.or(blank));
        let mut found = Self::default();
        if before == after {
            return found;
        }
        let (old, new) = (before.map(|value| named_parts(at, value)), after.map(|value| named_parts(at, value)));
        let is_one = |side: &Option<Option<Vec<_>>>| matches!(side, Some(None));
        let one = is_one(&old) || is_one(&new);
        let (old, new) = (old.flatten().unwrap_or_default(), new.flatten().unwrap_or_default());
        let are_empty = old.is_empty() && new.is_empty();
        found.added.owned = before.is_none();
        found.removed.owned = after.is_none();
        found.modified.owned = before.is_some() && after.is_some() && (one || are_empty);

        let mut compare = |element: String, before, after| {
            let blank = blank.and_then(|blank| blank.get(field(&element)));
            let inside = Self::of(at.child(&element), blank, before, after);
            found.insert(element, inside);
        };
        if old.is_empty() {
            new.into_iter().for_each(|(element, value)| compare(element, None, Some(value)));
            return found;
        }
        let mut sides: BTreeMap<String, (Option<&Value>, Option<&Value>)> =
            old.into_iter().map(|(element, value)| (element, (Some(value), None))).collect();
        for (element, value) in new {
            sides.entry(element).or_default().1 = Some(value);
        }
        sides.into_iter().for_each(|(element, (before, after))| compare(element, before, after));
        found
    }

    pub(in super::super) fn insert(&mut self, element: String, inside: Self) {
        let Self { added, modified, removed } = inside;
        // The name is copied only for a set that has it; most fields are in one.
        for (set, inner) in [(&mut self.modified, modified), (&mut self.removed, removed)] {
            if !inner.is_empty() {
                set.children.insert(element.clone(), inner);
            }
        }
        self.added.insert(element, added);
    }

    /// Takes the fields that are new or changed; what was removed stays.
    pub(in super::super) fn take_changed(&mut self) -> FieldSet {
        let mut changed = std::mem::take(&mut self.modified);
        changed.append(std::mem::take(&mut self.added));
        changed
    }
}

/// The name of the field that an element of the notation stands for; list elements have none.
pub(in super::super) fn field(element: &str) -> &str {
    element.strip_prefix("f:").unwrap_or("")
}

/// The parts of a value with their names in the notation; `None` for what is one value.
fn named_parts<'a>(at: FieldLocation<'_>, value: &'a Value) -> Option<Vec<(String, &'a Value)>> {
    match value {
        Value::Object(_) if at.is_atomic() => None,
        Value::Object(fields) => Some(fields.iter().map(|(name, inner)| (format!("f:{name}"), inner)).collect()),
        Value::Array(items) => elements(at, items).map(|names| names.into_iter().zip(items).collect()),
        // A list or map without an owner.
        Value::Null => Some(Vec::new()),
        _ => None,
    }
}

/// A value's parts, found by their names. Naming a list's elements goes through all of them, so it is done once for all
/// questions.
#[derive(Debug)]
pub(in super::super) struct NamedParts<'a> {
    value: Option<&'a Value>,
    positions: HashMap<String, usize>,
}

impl<'a> NamedParts<'a> {
    pub(in super::super) fn of(at: FieldLocation<'_>, value: Option<&'a Value>) -> Self {
        let names = match value {
            Some(Value::Array(items)) => elements(at, items),
            _ => None,
        };
        let places = names.into_iter().flatten().enumerate().map(|(place, name)| (name, place)).collect();
        Self { value, positions: places }
    }

    pub(in super::super) fn get(&self, element: &str) -> Option<&'a Value> {
        match self.value? {
            Value::Object(fields) => fields.get(element.strip_prefix("f:")?),
            Value::Array(items) => items.get(*self.positions.get(element)?),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(before: &Value, after: &Value) -> [Value; 3] {
        let found = FieldDiff::of(FieldLocation::root(None), None, Some(before), Some(after));
        [found.added.into_value(), found.modified.into_value(), found.removed.into_value()]
    }

    #[test]
    fn a_set_survives_being_written_and_read() {
        let object = json!({ "a": 1, "env": [{ "name": "x", "value": "y" }], "list": [1, 2], "empty": {} });
        let set = FieldSet::of(FieldLocation::root(None), &object);
        let written = set.clone().into_value();
        assert_eq!(
            written,
            json!({ "f:a": {}, "f:empty": {}, "f:list": {},
                "f:env": { r#"k:{"name":"x"}"#: { ".": {}, "f:name": {}, "f:value": {} } } })
        );
        assert_eq!(FieldSet::parse(&written), set);
    }

    /// APP-30: a map or list that comes, or goes, is a field by itself; one that stays is not.
    #[test]
    fn a_comparison_names_what_comes_what_changes_and_what_goes() {
        let before = json!({ "a": 1, "b": { "c": 1, "d": 2 }, "env": [{ "name": "x", "value": "1" }] });
        let after = json!({ "a": 1, "b": { "c": 2 }, "new": { "map": { "e": 1 } },
            "env": [{ "name": "x", "value": "2" }, { "name": "z" }] });
        let [added, modified, removed] = compared(&before, &after);
        assert_eq!(
            added,
            json!({ "f:new": { ".": {}, "f:map": { ".": {}, "f:e": {} } },
                "f:env": { r#"k:{"name":"z"}"#: { ".": {}, "f:name": {} } } })
        );
        assert_eq!(modified, json!({ "f:b": { "f:c": {} }, "f:env": { r#"k:{"name":"x"}"#: { "f:value": {} } } }));
        assert_eq!(removed, json!({ "f:b": { "f:d": {} } }));
        let [added, _, removed] = compared(&after, &before);
        assert_eq!(added, json!({ "f:b": { "f:d": {} } }));
        assert_eq!(removed["f:new"], json!({ ".": {}, "f:map": { ".": {}, "f:e": {} } }));
    }

    #[test]
    fn a_field_that_becomes_something_else_changes_and_takes_its_parts_along() {
        let [added, modified, removed] = compared(&json!({ "a": { "b": 1 } }), &json!({ "a": 1 }));
        assert_eq!((added, modified), (json!({}), json!({ "f:a": {} })));
        assert_eq!(removed, json!({ "f:a": { "f:b": {} } }));
        let [_, modified, removed] = compared(&json!({ "a": { "b": 1 } }), &json!({ "a": {} }));
        assert_eq!((modified, removed), (json!({}), json!({ "f:a": { "f:b": {} } })));
        let [_, modified, _] = compared(&json!({ "a": [] }), &json!({ "a": {} }));
        assert_eq!(modified, json!({ "f:a": {} }));
    }

    #[test]
    fn initial_fields_are_not_added() {
        let blank = json!({ "spec": { "containers": null } });
        let after = json!({ "spec": { "containers": [{ "name": "a" }], "volumes": [{ "name": "v" }] } });
        let found = FieldDiff::of(FieldLocation::root(None), Some(&blank), None, Some(&after));
        let containers = json!({ r#"k:{"name":"a"}"#: { ".": {}, "f:name": {} } });
        let volumes = json!({ ".": {}, r#"k:{"name":"v"}"#: { ".": {}, "f:name": {} } });
        assert_eq!(
            found.added.clone().into_value(),
            json!({ "f:spec": { "f:containers": containers, "f:volumes": volumes } })
        );
        let mut same = FieldDiff::of(FieldLocation::root(None), Some(&blank), Some(&json!({})), Some(&blank));
        assert!(same.take_changed().is_empty() && same.removed.is_empty());
    }

    #[test]
    fn sets_are_compared_field_by_field() {
        let whole = FieldSet::parse(&json!({ "f:a": { ".": {}, "f:c": {} }, "f:b": {} }));
        let part = FieldSet::parse(&json!({ "f:a": { "f:c": {} }, "f:d": {} }));
        assert_eq!(whole.intersection(&part).into_value(), json!({ "f:a": { "f:c": {} } }));
        let mut one = whole.clone();
        one.subtract(&part);
        assert_eq!(one.into_value(), json!({ "f:a": {}, "f:b": {} }));
        let mut other = part.clone();
        other.subtract(&whole);
        assert_eq!(other.into_value(), json!({ "f:d": {} }));
        let holders = part.with_ancestors(FieldLocation::root(None));
        assert_eq!(holders.into_value(), json!({ "f:a": { ".": {}, "f:c": {} }, "f:d": {} }));
    }
}
