//! OpenAPI version 2, for kubectl before 1.27: `explain`, `diff`, `--dry-run=server` and its own validation.
//!
//! Its dialect is narrower than that of version 3, and its reader rejects the whole document for one schema
//! that it does not understand (a choice of types, a list of anything), custom kinds included. So what it
//! cannot express is left out, which specifies less and forbids nothing.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use types::kind_registry::{KindEntry, KindMeta, KindRegistry};

use super::super::api_groups::root;
use super::super::{patch, strategic_merge};
use super::{METADATA, document_info, schema_name, schemas, type_of};

const DEFINITIONS: &str = "#/definitions/";
const ANYTHING: &str = "x-kubernetes-preserve-unknown-fields";
const NUMBER_OR_TEXT: &str = "x-kubernetes-int-or-string";
/// Keywords that version 2 does not have.
const UNSUPPORTED_KEYWORDS: [&str; 6] = ["anyOf", "oneOf", "not", "nullable", "const", "default"];
/// The types that its reader accepts.
const TYPES: [&str; 6] = ["object", "array", "string", "integer", "number", "boolean"];
/// Without Kubernetes' strategic one: where it is missing, newer clients go by the types that they know.
const PATCHES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

pub(super) fn document(registry: &KindRegistry) -> Value {
    let entries: Vec<&KindEntry> = registry.entries.iter().collect();
    let mut definitions = schemas(&entries, DEFINITIONS);
    let others = |entry: &&&KindEntry| !patch::is_core(entry);
    let others: HashSet<String> = entries.iter().filter(others).map(|entry| schema_name(entry.meta)).collect();
    definitions.iter_mut().for_each(|(name, schema)| {
        let root = if name == METADATA { "metadata" } else { "" };
        to_v2(schema, (!others.contains(name)).then_some(root));
    });
    let paths: Map<String, Value> = entries.iter().flat_map(|entry| paths(entry.meta)).collect();
    json!({ "swagger": "2.0", "info": document_info(), "paths": paths, "definitions": definitions })
}

/// Leaves of a schema what version 2 can say. `merges`: the name of the field that it is of, if lists are to say
/// that they are merged by a key; clients that make strategic patches by this document have to know what this
/// server does with them.
fn to_v2(schema: &mut Value, merges: Option<&str>) {
    let Some(fields) = schema.as_object_mut() else {
        *schema = json!({});
        return;
    };
    if let Some(Value::Array(all)) = fields.remove("allOf")
        && let [one] = all.as_slice()
        && let Some(reference) = one.get("$ref")
    {
        fields.retain(|name, _| name == "description");
        fields.insert("$ref".into(), reference.clone());
        return;
    }
    let known = |found: &str| found.starts_with(DEFINITIONS);
    if fields.get("$ref").is_some_and(|to| !to.as_str().is_some_and(known)) {
        fields.remove("$ref");
    }
    UNSUPPORTED_KEYWORDS.iter().for_each(|name| drop(fields.remove(*name)));
    let known = fields.get("type").and_then(Value::as_str).is_some_and(|found| TYPES.contains(&found));
    if !known || fields.get(NUMBER_OR_TEXT) == Some(&Value::Bool(true)) {
        fields.remove("type");
    }
    if fields.get(ANYTHING) == Some(&Value::Bool(true)) {
        ["type", "properties", "items", "additionalProperties", "required"]
            .iter()
            .for_each(|name| drop(fields.remove(*name)));
    }
    if fields.get("additionalProperties").is_some_and(|inner| !inner.is_object()) {
        fields.remove("additionalProperties");
    }
    if fields.get("type").is_some_and(|found| found == "array") {
        fields.entry("items").or_insert_with(|| json!({}));
    }
    for name in ["items", "additionalProperties"] {
        fields.get_mut(name).into_iter().for_each(|inner| to_v2(inner, merges));
    }
    let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
    for (name, inner) in properties.into_iter().flatten() {
        to_v2(inner, merges.map(|_| name.as_str()));
        let is_list = inner["type"] == "array";
        let merging = merges.filter(|_| is_list).and_then(|parent| strategic_merge::list_merge_key(parent, name));
        if let Some((key, inner)) = merging.zip(inner.as_object_mut()) {
            inner.insert("x-kubernetes-patch-strategy".into(), "merge".into());
            inner.extend(key.map(|key| ("x-kubernetes-patch-merge-key".to_owned(), key.into())));
        }
    }
}

/// The collection's and the object's operations.
fn paths(meta: &'static KindMeta) -> [(String, Value); 2] {
    let space = if meta.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("/{}{space}/{}", root(meta), meta.plural);
    let one = format!("{collection}/{{name}}");
    let reference = json!({ "$ref": format!("{DEFINITIONS}{}", schema_name(meta)) });
    let query = |name: &str| json!({ "name": name, "in": "query", "type": "string", "uniqueItems": true });
    let operation = |action: &str, writes: bool| {
        let mut parameters = Vec::new();
        if writes {
            parameters.extend(["dryRun", "fieldManager", "fieldValidation"].map(query));
            let schema = if action == "patch" { json!({ "type": "object" }) } else { reference.clone() };
            parameters.push(json!({ "name": "body", "in": "body", "required": true, "schema": schema }));
        }
        json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": type_of(meta),
            "consumes": if action == "patch" { PATCHES.to_vec() } else { vec!["*/*"] },
            "produces": ["application/json"],
            "parameters": parameters,
            "responses": { "200": { "description": "OK", "schema": reference } },
        })
    };
    let mut delete = operation("delete", false);
    delete["parameters"] = json!([query("dryRun")]);
    [
        (collection, json!({ "get": operation("list", false), "post": operation("post", true) })),
        (
            one,
            json!({ "get": operation("get", false), "put": operation("put", true), "delete": delete,
                "patch": operation("patch", true) }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the reader of kubectl 1.20 requires of every schema; otherwise it rejects the document.
    fn check(at: &str, schema: &Value, definitions: &Map<String, Value>) {
        assert!(schema.is_object(), "{at}");
        if let Some(reference) = schema.get("$ref") {
            let name = reference.as_str().unwrap().strip_prefix(DEFINITIONS).unwrap();
            assert!(definitions.contains_key(name) && schema.get("properties").is_none(), "{at}: {name}");
        }
        if let Some(kind) = schema.get("type") {
            assert!(TYPES.contains(&kind.as_str().unwrap()), "{at}: {kind}");
        }
        assert!(schema["type"] != "array" || schema["items"].is_object(), "{at}: a list of nothing");
        for foreign in UNSUPPORTED_KEYWORDS.iter().chain(&["allOf"]) {
            assert!(schema.get(foreign).is_none(), "{at}: {foreign}");
        }
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{at}.{name}"), inner, definitions);
        }
        for name in ["items", "additionalProperties"] {
            schema.get(name).into_iter().for_each(|inner| check(&format!("{at}[]"), inner, definitions));
        }
    }

    /// APP-18: every kind can be explained by, and is checked by, clients that know version 2 alone.
    #[test]
    fn every_schema_is_one_that_the_old_reader_understands() {
        let document = document(&types::registry());
        let definitions = document["definitions"].as_object().unwrap();
        for (name, schema) in definitions {
            check(name, schema, definitions);
        }
        let traffic = &definitions["dev.knative.serving.v1.Service"]["properties"]["spec"]["properties"]["traffic"];
        assert_eq!(traffic["items"]["properties"]["percent"]["type"], "integer");
        let ports = &definitions["io.k8s.api.core.v1.Service"]["properties"]["spec"]["properties"]["ports"];
        assert_eq!(ports["x-kubernetes-patch-merge-key"], "port");
        let patch = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]["patch"];
        assert!(patch["parameters"].as_array().unwrap().iter().any(|one| one["name"] == "dryRun"));
    }

    #[test]
    fn what_version_2_cannot_say_is_left_out() {
        let cases = [
            (json!(true), json!({})),
            (json!({ "type": ["string", "null"] }), json!({})),
            (json!({ "$ref": "#/$defs/a" }), json!({})),
            (json!({ "type": "array" }), json!({ "type": "array", "items": {} })),
            (json!({ "type": "array", "items": true }), json!({ "type": "array", "items": {} })),
            (json!({ "type": "object", "additionalProperties": true }), json!({ "type": "object" })),
            (json!({ "type": "integer", NUMBER_OR_TEXT: true }), json!({ NUMBER_OR_TEXT: true })),
            (json!({ "type": "object", ANYTHING: true, "properties": { "a": {} } }), json!({ ANYTHING: true })),
            (json!({ "anyOf": [{ "type": "string" }], "description": "d" }), json!({ "description": "d" })),
            (
                json!({ "allOf": [{ "$ref": "#/definitions/a" }], "description": "d" }),
                json!({ "$ref": "#/definitions/a", "description": "d" }),
            ),
        ];
        for (mut schema, expected) in cases {
            to_v2(&mut schema, Some(""));
            assert_eq!(schema, expected);
        }
    }
}
