//! `allOf`, `anyOf`, `oneOf` and `not` of a structural schema: they restrict the surrounding schema, and specify
//! no types, no defaults and no pruning of their own.

use serde_json::{Value, json};

use super::structural_schema::{INT_OR_STRING, LIST_KEYS, LIST_TYPE, MAP_TYPE, PRESERVE};
use super::work::At;
use crate::field_errors::FieldErrors;

/// Keywords that are not allowed inside combinators, with their exceptions.
const FORBIDDEN_INSIDE: [(&str, &str); 11] = [
    ("type", "empty"),
    ("title", "empty"),
    ("description", "empty"),
    ("default", "undefined"),
    ("additionalProperties", "undefined"),
    ("nullable", "false"),
    (PRESERVE, "false"),
    ("x-kubernetes-embedded-resource", "false"),
    (LIST_KEYS, "empty"),
    (LIST_TYPE, "undefined"),
    (MAP_TYPE, "undefined"),
];

/// Says what the schema's combinators say that they may not, in the words of Kubernetes. Recursion is bounded by a body's
/// nesting.
pub(super) fn check(schema: &Value, at: At<'_>, problems: &mut FieldErrors) {
    let either = schema[INT_OR_STRING] == true;
    for (name, one) in combinators(schema) {
        // The one way to say of which types a value is that may be of two.
        let is_int_or_string_branch =
            either && (name == "anyOf[0]" || name == "anyOf[1]") && is_int_or_string(&schema["anyOf"]);
        if !is_int_or_string_branch {
            check_nested(one, At::Field(&at, &name), either && name == "allOf[0]", problems);
        }
    }
}

fn check_nested(inner: &Value, at: At<'_>, may_say_either: bool, problems: &mut FieldErrors) {
    let is_said = |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && value != "";
    for (field, how) in FORBIDDEN_INSIDE.iter().filter(|(field, _)| is_said(&inner[*field])) {
        problems.add(format!("{at}.{field}"), format!("Forbidden: must be {how} to be structural"));
    }
    if inner["properties"]["metadata"].is_object() {
        problems.add(format!("{at}.properties[metadata]"), "Forbidden: must not be specified in a nested context");
    }
    for (name, one) in combinators(inner) {
        if !(may_say_either && name.starts_with("anyOf") && is_int_or_string(&inner["anyOf"])) {
            check_nested(one, At::Field(&at, &name), false, problems);
        }
    }
    for (name, one) in inner["properties"].as_object().into_iter().flatten() {
        check_nested(one, At::Entry(&at, "properties", name), false, problems);
    }
    if inner["items"].is_object() {
        check_nested(&inner["items"], At::Field(&at, "items"), false, problems);
    }
}

fn combinators(schema: &Value) -> impl Iterator<Item = (String, &Value)> {
    let lists = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|name| {
        let all = schema[name].as_array().into_iter().flatten().enumerate();
        all.map(move |(index, one)| (format!("{name}[{index}]"), one))
    });
    lists.chain(schema.get("not").filter(|not| not.is_object()).map(|not| ("not".to_owned(), not)))
}

fn is_int_or_string(any_of: &Value) -> bool {
    *any_of == json!([{ "type": "integer" }, { "type": "string" }])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-36
    #[test]
    fn combinators_restrict_and_declare_nothing() {
        let either = json!([{ "type": "integer" }, { "type": "string" }]);
        for (schema, fields) in [
            (json!({ "type": "object", "oneOf": [{ "required": ["a"] }, { "not": { "required": ["b"] } }] }), &[][..]),
            (json!({ "type": "string", "anyOf": [{ "pattern": "a" }, { "enum": ["b"], "title": "" }] }), &[]),
            (json!({ INT_OR_STRING: true, "anyOf": either }), &[]),
            (json!({ INT_OR_STRING: true, "allOf": [{ "anyOf": either }, { "pattern": "a" }] }), &[]),
            (
                json!({ INT_OR_STRING: true, "allOf": [{ "pattern": "a" }, { "anyOf": either }] }),
                &["allOf[1].anyOf[0].type", "allOf[1].anyOf[1].type"],
            ),
            (json!({ "type": "string", "anyOf": either }), &["anyOf[0].type", "anyOf[1].type"]),
            (
                json!({ "type": "object", "not": { "properties": { "a": { "default": 1, "nullable": true } } } }),
                &["not.properties[a].default", "not.properties[a].nullable"],
            ),
            (
                json!({ "type": "array", "allOf": [{ "items": { "oneOf": [{ LIST_TYPE: "set" }] } }] }),
                &["allOf[0].items.oneOf[0].x-kubernetes-list-type"],
            ),
            (
                json!({ "type": "object", "allOf": [{ "properties": { "metadata": {} } }] }),
                &["allOf[0].properties[metadata]"],
            ),
        ] {
            let mut problems = FieldErrors::default();
            check(&schema, At::Root("s"), &mut problems);
            let found: Vec<&str> = problems.list.iter().map(|one| one.field.strip_prefix("s.").unwrap()).collect();
            assert_eq!(found, fields, "{schema}");
        }
    }
}
