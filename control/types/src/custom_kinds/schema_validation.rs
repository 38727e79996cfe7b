//! Validates the schema of a definition: it must be structural, with patterns that compile and
//! lists whose keys exist.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::combinators;
use super::patterns::Patterns;
use super::rule_costs::RuleCosts;
use super::structural_schema::{
    self, EMBEDDED, INT_OR_STRING, LIST_KEYS, LIST_TYPE, MAP_TYPE, PRESERVE, SchemaContext,
};
use super::validation_rules::{self, RuleLocation};
use super::work::{At, ValidationWork};
use crate::field_errors::FieldErrors;
use cel::declared_max;

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Levels of a schema that are checked; a body has no more.
const DEPTH_MAX: usize = 64;

/// Validates the schema at `at`.
pub(super) fn validate(schema: &Value, at: &str, problems: &mut FieldErrors) {
    if schema["type"] != "object" {
        let type_name = schema["type"].as_str().unwrap_or("");
        problems.add(format!("{at}.type"), format!("Invalid value: {type_name:?}: must be object at the root"));
    }
    if schema.get("additionalProperties").is_some_and(|inner| !inner.is_null()) {
        problems.add(format!("{at}.additionalProperties"), "Forbidden: must not be used at the root");
    }
    let metadata = &schema["properties"]["metadata"];
    let known = |name: &String| ["name", "generateName"].contains(&name.as_str());
    let said = |name: &String| ["type", "properties", "description", "default"].contains(&name.as_str());
    if !metadata.as_object().is_none_or(|fields| fields.keys().all(said))
        || !metadata["properties"].as_object().is_none_or(|fields| fields.keys().all(known))
    {
        let why = "Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified";
        problems.add(format!("{at}.properties[metadata]"), why);
    }
    let mut costs = RuleCosts::default();
    let patterns = Patterns::of(schema);
    let root = At::Root(at);
    let place = RuleLocation { path: root, is_root: true, cardinality_max: Some(1), uncorrelatable_list: None };
    check(schema, place, (&patterns, &ValidationWork::default()), 0, (&mut costs, problems));
    costs.check_total(at, problems);
}

fn check(
    schema: &Value,
    place: RuleLocation<'_>,
    (patterns, work): (&Patterns, &ValidationWork),
    depth: usize,
    (costs, problems): (&mut RuleCosts, &mut FieldErrors),
) {
    let at = place.path;
    if depth > DEPTH_MAX || problems.is_full() {
        return;
    }
    check_type(schema, at, depth, problems);
    if let Some(pattern) = schema["pattern"].as_str()
        && let Some(why) = patterns.wrong(pattern)
    {
        let why = format!("Invalid value: {pattern:?}: must be a valid regular expression, but isn't: {why}");
        problems.add(At::Field(&at, "pattern"), why);
    }
    if schema["uniqueItems"] == true {
        let why = "Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        problems.add(format!("{at}.uniqueItems"), why);
    }
    if schema["additionalProperties"] == false {
        problems.add(format!("{at}.additionalProperties"), "Forbidden: additionalProperties cannot be set to false");
    }
    if schema.get("$ref").is_some() {
        problems.add(format!("{at}.$ref"), "Forbidden: $ref is not supported");
    }
    if schema["properties"].is_object() && schema["additionalProperties"].is_object() {
        let why = "Forbidden: additionalProperties and properties are mutual exclusive";
        problems.add(format!("{at}.additionalProperties"), why);
    }
    if let Some(default) = schema.get("default").filter(|default| !default.is_null()) {
        let mut wrong = FieldErrors::default();
        let held = SchemaContext { schema, patterns, work, old_value: None };
        structural_schema::validate(default, held, At::Root(""), &mut wrong);
        for problem in wrong.into_list() {
            problems.add(format!("{at}.default{}", dotted(&problem.field)), problem.message);
        }
    }
    check_list(schema, at, problems);
    combinators::check(schema, at, problems);
    validation_rules::validate(schema, place, costs, problems);
    let times = place.cardinality_max.zip(declared_max(schema)).map(|(times, most)| times.saturating_mul(most));
    let mut go_in = |inner: &Value, at: At<'_>, list: Option<At<'_>>| {
        let whole = inner[EMBEDDED] == true;
        let place = RuleLocation { path: at, is_root: whole, cardinality_max: times, uncorrelatable_list: list };
        check(inner, place, (patterns, work), depth + 1, (&mut *costs, &mut *problems));
    };
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        go_in(inner, At::Entry(&at, "properties", name), place.uncorrelatable_list);
    }
    for name in ["items", "additionalProperties"] {
        if schema[name].is_object() {
            // Items without keys cannot be distinguished.
            let loose = name == "items" && schema[LIST_TYPE] != "map";
            go_in(&schema[name], At::Field(&at, name), place.uncorrelatable_list.or(loose.then_some(at)));
        }
    }
}

fn dotted(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!(".{field}") }
}

fn check_type(schema: &Value, at: At<'_>, depth: usize, problems: &mut FieldErrors) {
    match schema["type"].as_str().unwrap_or("") {
        "" if depth == 0 || schema[INT_OR_STRING] == true || schema[PRESERVE] == true => {}
        "" => {
            let why = "Required value: must not be empty for specified object fields";
            problems.add(format!("{at}.type"), why);
        }
        known if TYPES.contains(&known) => {}
        other => {
            let all = TYPES.map(|one| format!("{one:?}")).join(", ");
            problems.add(format!("{at}.type"), format!("Unsupported value: {other:?}: supported values: {all}"));
        }
    }
    if schema[EMBEDDED] == true {
        if schema["type"] != "object" {
            let type_name = schema["type"].as_str().unwrap_or("");
            let why = format!("Invalid value: {type_name:?}: must be object if {EMBEDDED} is true");
            problems.add(At::Field(&at, "type"), why);
        }
        if schema["properties"].as_object().is_none_or(Map::is_empty) && schema[PRESERVE] != true {
            let why = format!("Required value: must not be empty if {EMBEDDED} is true without {PRESERVE}");
            problems.add(At::Field(&at, "properties"), why);
        }
    }
    if schema["type"] == "array" && !schema["items"].is_object() {
        problems.add(format!("{at}.items"), "Required value: must be specified");
    }
}

fn check_list(schema: &Value, at: At<'_>, problems: &mut FieldErrors) {
    let Some(kind) = schema[LIST_TYPE].as_str() else { return };
    if !matches!(kind, "atomic" | "map" | "set") {
        let why = format!("Unsupported value: {kind:?}: supported values: \"atomic\", \"map\", \"set\"");
        return problems.add(format!("{at}.{LIST_TYPE}"), why);
    }
    let item = &schema["items"];
    if kind == "set" && item["type"] == "object" && item[MAP_TYPE] != "atomic" {
        let why = format!("Invalid value: \"\": must be atomic as item of a list with {LIST_TYPE}=set");
        problems.add(format!("{at}.items.{MAP_TYPE}"), why);
    }
    if kind != "map" {
        return;
    }
    let keys: Vec<&str> = schema[LIST_KEYS].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if keys.is_empty() {
        let why = format!("Required value: must not be empty if {LIST_TYPE} is map");
        problems.add(format!("{at}.{LIST_KEYS}"), why);
    }
    let required: HashSet<&str> = item["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (index, key) in keys.into_iter().enumerate() {
        let known = &item["properties"][key];
        if !known.is_object() {
            let why = format!("Invalid value: {key:?}: entries must all be names of item properties");
            problems.add(format!("{at}.{LIST_KEYS}[{index}]"), why);
        } else if known.get("default").is_none() && !required.contains(key) {
            let why = format!(
                "Required value: this property is in {LIST_KEYS}, so it must have a default or be a required property"
            );
            problems.add(format!("{at}.items.properties[{key}].default"), why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// APP-20: a definition whose schema cannot be followed is refused where it is wrong.
    #[test]
    fn a_schema_says_types_patterns_and_keys_that_mean_something() {
        for (inner, field) in [
            (json!({ "type": "string", "pattern": "^[a-z]+$", "default": "a" }), None),
            (json!({ INT_OR_STRING: true }), None),
            (json!({ PRESERVE: true }), None),
            (json!({}), Some("type")),
            (json!({ "type": "text" }), Some("type")),
            (json!({ "type": "string", "pattern": "[" }), Some("pattern")),
            (json!({ "type": "integer", "default": "x" }), Some("default")),
            (json!({ "type": "array" }), Some("items")),
            (json!({ "type": "object", "$ref": "#/x" }), Some("$ref")),
            (json!({ "type": "object", "additionalProperties": false }), Some("additionalProperties")),
            (json!({ "type": "array", "uniqueItems": true, "items": { "type": "string" } }), Some("uniqueItems")),
            (
                json!({ "type": "object", "properties": { "x": { "type": "string" } },
                    "additionalProperties": { "type": "string" } }),
                Some("additionalProperties"),
            ),
            (
                json!({ "type": "array", LIST_TYPE: "map", LIST_KEYS: ["k"], "items": { "type": "object",
                    "properties": { "k": { "type": "string" } } } }),
                Some("items.properties[k].default"),
            ),
            (
                json!({ "type": "array", LIST_TYPE: "map", LIST_KEYS: ["z"], "items": { "type": "object",
                    "properties": { "k": { "type": "string" } } } }),
                Some("x-kubernetes-list-map-keys[0]"),
            ),
            (
                json!({ "type": "array", LIST_TYPE: "map", "items": { "type": "object" } }),
                Some("x-kubernetes-list-map-keys"),
            ),
            (json!({ "type": "array", LIST_TYPE: "x", "items": { "type": "object" } }), Some(LIST_TYPE)),
        ] {
            let schema = json!({ "type": "object", "properties": { "a": inner } });
            let mut problems = FieldErrors::default();
            validate(&schema, "s", &mut problems);
            let found: Vec<_> = problems.list.iter().map(|problem| problem.field.clone()).collect();
            let expected: Vec<_> = field.map(|field| format!("s.properties[a].{field}")).into_iter().collect();
            assert_eq!(found, expected, "{schema}");
        }
        let mut deep = json!({ "type": "string" });
        for _ in 0..100 {
            deep = json!({ "type": "object", "properties": { "a": deep } });
        }
        let mut problems = FieldErrors::default();
        validate(&deep, "s", &mut problems);
        assert!(problems.list.is_empty());
        for (schema, field) in [
            (json!({ "type": "string" }), "s.type"),
            (json!({ "type": "object", "additionalProperties": true }), "s.additionalProperties"),
            (
                json!({ "type": "object", "properties": { "metadata": { "type": "object",
                    "properties": { "labels": { "type": "object" } } } } }),
                "s.properties[metadata]",
            ),
        ] {
            let mut problems = FieldErrors::default();
            validate(&schema, "s", &mut problems);
            assert_eq!(problems.list.iter().map(|problem| &*problem.field).collect::<Vec<_>>(), [field]);
        }
    }

    /// APP-36: items of a set are distinguished as a whole, and combinators are checked wherever they are.
    #[test]
    fn sets_are_scalar_and_combinators_declare_nothing() {
        for (inner, field) in [
            (json!({ "type": "array", LIST_TYPE: "set", "items": { "type": "string" } }), None),
            (json!({ "type": "array", LIST_TYPE: "set", "items": { "type": "object", MAP_TYPE: "atomic" } }), None),
            (
                json!({ "type": "array", LIST_TYPE: "set", "items": { "type": "object" } }),
                Some("s.properties[a].items.x-kubernetes-map-type"),
            ),
            (json!({ "type": "integer", "not": { "type": "string" } }), Some("s.properties[a].not.type")),
        ] {
            let schema = json!({ "type": "object", "properties": { "a": inner } });
            let mut problems = FieldErrors::default();
            validate(&schema, "s", &mut problems);
            let found: Vec<_> = problems.list.iter().map(|problem| &*problem.field).collect();
            assert_eq!(found, Vec::from_iter(field), "{schema}");
        }
    }
}
