//! Structural schemas of CustomResourceDefinitions: pruning, defaulting and validation.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::embedded;
use super::formats;
use super::patterns::Patterns;
use super::work::{At, ValidationWork, size};
use crate::field_errors::{FieldErrors, PROBLEMS_MAX, Problem};

pub(super) const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
pub(super) const EMBEDDED: &str = "x-kubernetes-embedded-resource";
pub(super) const LIST_TYPE: &str = "x-kubernetes-list-type";
pub(super) const LIST_KEYS: &str = "x-kubernetes-list-map-keys";
pub(super) const MAP_TYPE: &str = "x-kubernetes-map-type";
pub(super) const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

/// Drops what is null and may not be, and fills in what is left out and has a default.
pub(super) fn apply_defaults(value: &mut Value, schema: &Value, work: &ValidationWork) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| !value.is_null() || stays_null(schema, name));
            let properties = schema["properties"].as_object();
            if !work.take(fields.len() + properties.map_or(0, Map::len), At::Root("")) {
                return;
            }
            for (name, known) in properties.into_iter().flatten() {
                if !fields.contains_key(name)
                    && let Some(default) = known.get("default")
                    && work.fill(default)
                {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields.iter_mut().take(declared_limit(schema, "maxProperties")) {
                apply_defaults(value, below(schema, name), work);
            }
        }
        Value::Array(items) => {
            let items = items.iter_mut().take(declared_limit(schema, "maxItems"));
            items.for_each(|item| apply_defaults(item, &schema["items"], work));
        }
        _ => {}
    }
}

/// How many items or fields the schema allows. An object with more is refused: the rest is neither filled in nor judged, so that the
/// refusal does not cost what the object would.
fn declared_limit(schema: &Value, name: &str) -> usize {
    schema[name].as_u64().and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}

/// Whether a field that is null stays so: it may be null, or the schema does not specify it.
pub fn stays_null(schema: &Value, name: &str) -> bool {
    let known = below(schema, name);
    !known.is_object() || known["nullable"] == true
}

/// The schema of a field.
pub fn below<'a>(schema: &'a Value, name: &str) -> &'a Value {
    schema["properties"].get(name).unwrap_or(&schema["additionalProperties"])
}

/// The context of a validation.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchemaContext<'a> {
    pub(super) schema: &'a Value,
    pub(super) patterns: &'a Patterns,
    pub(super) work: &'a ValidationWork,
    /// The previous value: an unchanged value is accepted, whatever the schema says by now.
    pub(super) old_value: Option<&'a Value>,
}

impl<'a> SchemaContext<'a> {
    fn child(self, schema: &'a Value, before: Option<&'a Value>) -> Self {
        Self { schema, old_value: before, ..self }
    }
}

/// Reports values that the schema does not allow, with the messages of Kubernetes.
pub(super) fn validate(value: &Value, held: SchemaContext<'_>, at: At<'_>, problems: &mut FieldErrors) {
    let schema = held.schema;
    if !schema.is_object()
        || problems.is_full()
        || !held.work.take(1, at)
        || (value.is_null() && schema["nullable"] == true)
        || held.old_value == Some(value)
    {
        return;
    }
    if !has_type(value, schema) {
        return problems.add(at, type_mismatch(value, schema, at).0);
    }
    if let Some(words) = schema["enum"].as_array()
        && held.work.take(words.len(), at)
        && !words.contains(value)
        && held.work.take_text(words.iter().map(|word| size(word).0).sum(), at)
    {
        let known: Vec<String> = words.iter().map(Value::to_string).collect();
        problems.add(at, format!("Unsupported value: {value}: supported values: {}", known.join(", ")));
    }
    match value {
        Value::Number(number) => validate_number(number.as_f64().unwrap_or(0.0), schema, at, problems),
        Value::String(text) => validate_text(text, held, at, problems),
        Value::Array(items) => validate_items(items, held, at, problems),
        Value::Object(fields) => validate_fields(fields, held, at, problems),
        _ => {}
    }
    validate_choices(value, held, at, problems);
}

/// A value of a type that its schema does not allow.
#[derive(Debug)]
pub struct TypeMismatch {
    pub problem: Problem,
    pub found: &'static str,
    pub wanted: String,
}

/// Every value that has not the type that its schema wants.
pub fn type_mismatches(value: &Value, schema: &Value) -> Vec<TypeMismatch> {
    let mut wrong = Vec::new();
    collect_type_mismatches(value, schema, At::Root(""), &mut wrong);
    wrong
}

fn collect_type_mismatches(value: &Value, schema: &Value, at: At<'_>, wrong: &mut Vec<TypeMismatch>) {
    if wrong.len() >= PROBLEMS_MAX {
        return;
    }
    if !has_type(value, schema) {
        let (message, found, wanted) = type_mismatch(value, schema, at);
        return wrong.push(TypeMismatch { problem: Problem { field: at.into(), message }, found, wanted });
    }
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_type_mismatches(item, &schema["items"], At::Item(&at, index), wrong);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                collect_type_mismatches(value, below(schema, name), At::Field(&at, name), wrong);
            }
        }
        _ => {}
    }
}

/// How Kubernetes says that a value has the wrong type; which it has, and which is wanted.
fn type_mismatch(value: &Value, schema: &Value, at: At<'_>) -> (String, &'static str, String) {
    let (wanted, found) = (schema["type"].as_str().unwrap_or("integer or string"), type_of(value));
    let why = format!("Invalid value: {found:?}: {at} in body must be of type {wanted}: {found:?}");
    (why, found, wanted.into())
}

fn has_type(value: &Value, schema: &Value) -> bool {
    if schema[INT_OR_STRING] == true {
        return value.is_i64() || value.is_u64() || value.is_string();
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        // 1.0 is an integer in JSON's schemas.
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("number") => value.is_number(),
        _ => true,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn validate_number(number: f64, schema: &Value, at: At<'_>, problems: &mut FieldErrors) {
    let bound = |name: &str| schema[name].as_f64();
    let strict = |name: &str| schema[name] == true;
    if let Some(least) = bound("minimum")
        && (number < least || (strict("exclusiveMinimum") && number <= least))
    {
        let why = format!("Invalid value: {number}: {at} in body should be greater than or equal to {least}");
        problems.add(at, why);
    }
    if let Some(most) = bound("maximum")
        && (number > most || (strict("exclusiveMaximum") && number >= most))
    {
        problems.add(at, format!("Invalid value: {number}: {at} in body should be less than or equal to {most}"));
    }
    if !formats::number_matches(schema, number) {
        let (kind, format) = (schema["type"].as_str().unwrap_or(""), schema["format"].as_str().unwrap_or(""));
        let why = format!("Invalid value: {number}: Checked value must be of type {kind} with format {format} in {at}");
        problems.add(at, why);
    }
    if let Some(step) = bound("multipleOf").filter(|step| *step > 0.0)
        && (number / step).fract() != 0.0
    {
        problems.add(at, format!("Invalid value: {number}: {at} in body should be a multiple of {step}"));
    }
}

fn validate_text(text: &str, held: SchemaContext<'_>, at: At<'_>, problems: &mut FieldErrors) {
    let schema = held.schema;
    if !held.work.take_text(text.len(), at) {
        return;
    }
    let count = text.chars().count();
    let bound = |name: &str| schema[name].as_u64().and_then(|bound| usize::try_from(bound).ok());
    if let Some(least) = bound("minLength").filter(|least| count < *least) {
        problems.add(at, format!("Invalid value: {text:?}: {at} in body should be at least {least} chars long"));
    }
    if let Some(most) = bound("maxLength").filter(|most| count > *most) {
        problems.add(at, format!("Too long: may not be more than {most} bytes"));
    }
    if let Some(format) = formats::mismatched_format(schema, text) {
        problems.add(at, format!("Invalid value: {text:?}: {at} in body must be of type {format}: {text:?}"));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && !held.patterns.matches(pattern, text, held.work, at)
    {
        problems.add(at, format!("Invalid value: {text:?}: {at} in body should match '{pattern}'"));
    }
}

fn validate_items(items: &[Value], held: SchemaContext<'_>, at: At<'_>, problems: &mut FieldErrors) {
    let schema = held.schema;
    check_count(items.len(), schema, ["minItems", "maxItems"], "items", at, problems);
    let items = &items[..items.len().min(declared_limit(schema, "maxItems"))];
    if schema["uniqueItems"] == true
        && !items.iter().map(Value::to_string).all({
            let mut seen = HashSet::new();
            move |item| seen.insert(item)
        })
    {
        problems.add(at, format!("Invalid value: {at} in body shouldn't contain duplicates"));
    }
    check_duplicates(items, schema, at, problems);
    // Items with keys are known again wherever they stand.
    let keys = if schema[LIST_TYPE] == "map" { keys(schema) } else { Vec::new() };
    let old = held.old_value.and_then(Value::as_array).filter(|_| !keys.is_empty());
    let known: HashMap<String, &Value> =
        old.into_iter().flatten().map(|item| (item_identity(item, &keys).to_string(), item)).collect();
    for (index, item) in items.iter().enumerate() {
        let before = if known.is_empty() { None } else { known.get(&item_identity(item, &keys).to_string()) };
        let held = held.child(&schema["items"], before.copied());
        validate(item, held, At::Item(&at, index), problems);
    }
}

/// The identity of a list item: its keys, or all of it if it has none.
fn item_identity(item: &Value, keys: &[&str]) -> Value {
    if keys.is_empty() {
        return item.clone();
    }
    let named = keys.iter().filter_map(|key| Some(((*key).to_owned(), item.get(key)?.clone())));
    named.collect::<Map<_, _>>().into()
}

fn keys(schema: &Value) -> Vec<&str> {
    schema[LIST_KEYS].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Items of a set, and keys of a list that is a map, stand once.
fn check_duplicates(items: &[Value], schema: &Value, at: At<'_>, problems: &mut FieldErrors) {
    let keys: Vec<&str> = match schema[LIST_TYPE].as_str() {
        Some("map") => keys(schema),
        Some("set") => Vec::new(),
        _ => return,
    };
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let identity = item_identity(item, &keys);
        if !seen.insert(identity.to_string()) {
            problems.add(At::Item(&at, index), format!("Duplicate value: {identity}"));
        }
    }
}

fn validate_fields(fields: &Map<String, Value>, held: SchemaContext<'_>, at: At<'_>, problems: &mut FieldErrors) {
    let schema = held.schema;
    check_count(fields.len(), schema, ["minProperties", "maxProperties"], "properties", at, problems);
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    if !held.work.take(required.len(), at) {
        return;
    }
    for name in required.iter().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            problems.add(At::Field(&at, name), "Required value");
        }
    }
    let is_embedded = schema[EMBEDDED] == true;
    if is_embedded {
        embedded::validate(fields, at, problems);
    }
    for (name, value) in fields.iter().take(declared_limit(schema, "maxProperties")) {
        // Its shape is that of all metadata; what the schema says of it narrows names alone.
        let held = held.child(below(schema, name), held.old_value.and_then(|before| before.get(name)));
        validate(value, held, At::Field(&at, name), problems);
    }
}

fn check_count(
    count: usize,
    schema: &Value,
    [least, most]: [&str; 2],
    what: &str,
    at: At<'_>,
    problems: &mut FieldErrors,
) {
    let bound = |name: &str| schema[name].as_u64().and_then(|bound| usize::try_from(bound).ok());
    if let Some(least) = bound(least).filter(|least| count < *least) {
        problems.add(at, format!("Invalid value: {count}: {at} in body should be at least {least} {what}"));
    }
    if let Some(most) = bound(most).filter(|most| count > *most) {
        problems.add(at, format!("Too many: {count}: must have at most {most} items"));
    }
}

fn validate_choices(value: &Value, held: SchemaContext<'_>, at: At<'_>, problems: &mut FieldErrors) {
    let schema = held.schema;
    let fits = |one: &Value| {
        let mut inner = FieldErrors::default();
        validate(value, held.child(one, None), at, &mut inner);
        inner.list.is_empty()
    };
    for one in schema["allOf"].as_array().into_iter().flatten() {
        validate(value, held.child(one, held.old_value), at, problems);
    }
    if let Some(any) = schema["anyOf"].as_array()
        && !any.iter().any(fits)
    {
        problems.add(at, format!("Invalid value: {at} in body must validate at least one schema (anyOf)"));
    }
    if let Some(one_of) = schema["oneOf"].as_array()
        && one_of.iter().filter(|one| fits(one)).count() != 1
    {
        problems.add(at, format!("Invalid value: {at} in body must validate one and only one schema (oneOf)"));
    }
    if schema["not"].is_object() && fits(&schema["not"]) {
        problems.add(at, format!("Invalid value: {at} in body must not validate the schema (not)"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::pruning::{Dropped, prune};
    use super::*;

    fn schema() -> Value {
        json!({ "type": "object", "required": ["size"], "properties": {
            "size": { "type": "integer", "minimum": 1, "maximum": 9, "default": 3 },
            "color": { "type": "string", "enum": ["red", "blue"] },
            "name": { "type": "string", "pattern": "^[a-z]+$", "maxLength": 4 },
            "port": { INT_OR_STRING: true },
            "tags": { "type": "array", "maxItems": 2, "items": { "type": "string" } },
            "set": { "type": "array", "uniqueItems": true, "items": { "type": "object", PRESERVE: true } },
            "words": { "type": "array", "items": { "type": "string", "anyOf": [{ "pattern": "^[a-z]+$" }] } },
            "any": { "type": "object", PRESERVE: true },
            "map": { "type": "object", "additionalProperties": { "type": "integer" } },
            "gone": { "type": "string", "nullable": true },
            "one": { "type": "object", "properties": { "a": { "type": "string" }, "b": { "type": "string" } },
                "oneOf": [{ "required": ["a"] }, { "required": ["b"] }] },
        } })
    }

    #[test]
    fn unknown_fields_go_and_known_ones_stay_wherever_they_are() {
        let mut value = json!({ "size": 1, "sise": 1, "any": { "x": { "y": 1 } }, "map": { "k": 1 },
            "one": { "a": "x", "c": 1 } });
        let mut dropped = Dropped::default();
        prune(&mut value, &schema(), At::Root(""), &mut dropped);
        assert_eq!(dropped.paths, ["one.c", "sise"]);
        assert_eq!(value["any"]["x"]["y"], 1);
        assert_eq!(value["map"]["k"], 1);
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        let mut value = json!({ "size": null });
        apply_defaults(&mut value, &schema(), &ValidationWork::default());
        assert_eq!(value, json!({ "size": 3 }));
    }

    #[test]
    fn each_rule_names_the_field_that_breaks_it() {
        for (value, field) in [
            (json!({}), "size"),
            (json!({ "size": 0 }), "size"),
            (json!({ "size": 10 }), "size"),
            (json!({ "size": "1" }), "size"),
            (json!({ "size": 1.5 }), "size"),
            (json!({ "size": 1, "color": "green" }), "color"),
            (json!({ "size": 1, "name": "ABC" }), "name"),
            (json!({ "size": 1, "name": "abcde" }), "name"),
            (json!({ "size": 1, "port": true }), "port"),
            (json!({ "size": 1, "tags": ["a", "b", "c"] }), "tags"),
            (json!({ "size": 1, "tags": ["a", 1] }), "tags[1]"),
            (json!({ "size": 1, "set": [{ "a": 1 }, { "a": 1.0 }, { "a": 1 }] }), "set"),
            (json!({ "size": 1, "words": ["ab", "a1"] }), "words[1]"),
            (json!({ "size": 1, "map": { "k": "v" } }), "map.k"),
            (json!({ "size": 1, "one": {} }), "one"),
            (json!({ "size": 1, "one": { "a": "", "b": "" } }), "one"),
            (json!({ "size": 1, "color": null }), "color"),
        ] {
            let mut problems = FieldErrors::default();
            let (schema, patterns) = (schema(), Patterns::of(&schema()));
            let held = SchemaContext {
                schema: &schema,
                patterns: &patterns,
                work: &ValidationWork::default(),
                old_value: None,
            };
            validate(&value, held, At::Root(""), &mut problems);
            let fields: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(fields, [field], "{value}");
        }
        let mut problems = FieldErrors::default();
        let good = json!({ "size": 9, "color": "red", "port": "http", "gone": null, "one": { "a": "" } });
        let (schema, patterns) = (schema(), Patterns::of(&schema()));
        let work = ValidationWork::default();
        let held = SchemaContext { schema: &schema, patterns: &patterns, work: &work, old_value: None };
        validate(&good, held, At::Root(""), &mut problems);
        assert_eq!(problems.list, []);

        // A value that was stored before it was forbidden stays until it is changed.
        let old = json!({ "size": 99, "words": ["a1"], "map": { "k": "v" } });
        let mut new = old.clone();
        new["color"] = "red".into();
        validate(&new, SchemaContext { old_value: Some(&old), ..held }, At::Root(""), &mut problems);
        assert_eq!(problems.list, []);
        new["map"]["l"] = "w".into();
        validate(&new, SchemaContext { old_value: Some(&old), ..held }, At::Root(""), &mut problems);
        let fields: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["map.l"]);
    }
}
