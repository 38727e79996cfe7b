//! OpenAPI: every kind with its schema and verbs, for `kubectl explain` and client-side validation.
//!
//! The listed parameters also announce to clients that the server validates fields itself.

mod swagger;
mod swagger_protobuf;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use types::kind_registry::{KindEntry, KindMeta, KindRegistry, ResourceStrategy as _};
use types::schema;

use super::ApiServer;
use super::api_groups::{groups, kinds, root, versions};
use super::document_cache::{CachedDocument, DocumentCache};
use super::errors::StatusError;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const TITLE: &str = "Sluicegate";
/// Where schemas are in a document.
const SCHEMAS: &str = "#/components/schemas/";
/// The one schema that all kinds share.
const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// What a definition says of a version's objects, by the name that Kubernetes has for it: it contains itself, and
/// Terraform, whose types cannot, looks for the name.
const SCHEMA_OF_A_SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
/// Where it is in the schema of definitions.
const SCHEMA_OF_A_VERSION: &str =
    "/properties/spec/properties/versions/items/properties/schema/properties/openAPIV3Schema";

/// `rest` is the path behind `/openapi/`.
pub(super) fn handle(server: &ApiServer, rest: &[&str], head: &Parts) -> Result<Response, StatusError> {
    let (registry, cache, headers) = (&server.registry, &server.documents, &head.headers);
    let (group, version) = match rest {
        ["v2"] if accepts_only_protobuf(headers) => {
            let written = || swagger_protobuf::encode(&swagger::document(registry));
            return Ok(cache.get_or_render(registry, "v2 protobuf", PROTOBUF, written).response(headers));
        }
        ["v2"] => {
            let written = || swagger::document(registry).to_string().into_bytes();
            return Ok(cache.get_or_render(registry, "v2", JSON, written).response(headers));
        }
        ["v3"] => {
            let written = || index(cache, registry).to_string().into_bytes();
            return Ok(cache.get_or_render(registry, "v3", JSON, written).response(headers));
        }
        ["v3", "api", version] => ("", *version),
        ["v3", "apis", group, version] => (*group, *version),
        _ => return Err(StatusError::unknown_path()),
    };
    let printed = group_version(cache, registry, group, version).ok_or_else(StatusError::unknown_path)?;
    let query = head.uri.query().unwrap_or("");
    match query.split('&').find_map(|part| part.strip_prefix("hash=")) {
        None | Some("") => Ok(printed.response(headers)),
        Some(asked) if asked == printed.etag => Ok(printed.immutable_response(headers, jiff::Timestamp::now())),
        // What the client read of is gone; here is what there is now.
        Some(_) => {
            let to = format!("{}?hash={}", head.uri.path(), printed.etag);
            Ok((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, to)]).into_response())
        }
    }
}

fn accepts_only_protobuf(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("*/*");
    accept.split(',').all(|wanted| wanted.contains("protobuf"))
}

/// Where each group's document is: under its print, so that a client reads it once.
fn index(cache: &DocumentCache, registry: &Arc<KindRegistry>) -> Value {
    let mut paths = Map::new();
    let groups = std::iter::once("").chain(groups(registry));
    for group in groups {
        for version in versions(registry, group) {
            let Some(entry) = kinds(registry, group, version).next() else { continue };
            let Some(printed) = group_version(cache, registry, group, version) else { continue };
            let root = root(entry.meta);
            let url = format!("/openapi/v3/{root}?hash={}", printed.etag);
            paths.insert(root, json!({ "serverRelativeURL": url }));
        }
    }
    json!({ "paths": paths })
}

fn group_version(
    cache: &DocumentCache,
    registry: &Arc<KindRegistry>,
    group: &str,
    version: &str,
) -> Option<Arc<CachedDocument>> {
    let entries: Vec<&KindEntry> = kinds(registry, group, version).collect();
    let first = entries.first()?;
    Some(cache.get_or_render(registry, &root(first.meta), JSON, || {
        let document = json!({
            "openapi": "3.0.0",
            "info": document_info(),
            "paths": entries.iter().flat_map(|entry| paths(entry.meta)).collect::<Map<_, _>>(),
            "components": { "schemas": schemas(&entries, SCHEMAS) },
        });
        document.to_string().into_bytes()
    }))
}

fn document_info() -> Value {
    json!({ "title": TITLE, "version": env!("CARGO_PKG_VERSION") })
}

/// The collection's and the object's operations.
fn paths(meta: &'static KindMeta) -> [(String, Value); 2] {
    let space = if meta.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("/{}{space}/{}", root(meta), meta.plural);
    let one = format!("{collection}/{{name}}");
    let schema = reference(SCHEMAS, &schema_name(meta));
    let operation = |action: &str| {
        json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": type_of(meta),
            "parameters": [
                query("dryRun"),
                query("fieldManager"),
                query("fieldValidation"),
            ],
            "responses": { "200": {
                "description": "OK",
                "content": { "application/json": { "schema": schema } },
            } },
        })
    };
    let mut patch = operation("patch");
    let any = json!({ "schema": { "type": "object" } });
    patch["requestBody"] = json!({ "content": {
            "application/apply-patch+yaml": any,
            "application/json-patch+json": any,
            "application/merge-patch+json": any,
        } });
    [
        (collection, json!({ "get": operation("list"), "post": operation("post") })),
        (
            one,
            json!({ "get": operation("get"), "put": operation("put"), "delete": operation("delete"), "patch": patch }),
        ),
    ]
}

fn query(name: &str) -> Value {
    json!({ "name": name, "in": "query", "schema": { "type": "string", "uniqueItems": true } })
}

/// The kinds' schemas and those they refer to, below `at`.
fn schemas(entries: &[&KindEntry], at: &str) -> Map<String, Value> {
    let of_kinds = entries.iter().map(|entry| (schema_name(entry.meta), schema(entry, at)));
    let mut schemas: Map<String, Value> = of_kinds.collect();
    schemas.insert(METADATA.into(), schema::of::<ObjectMeta>());
    if let Some(definition) = schemas.get_mut(&schema_name(&CustomResourceDefinition::META))
        && let Some(inside) = definition.pointer_mut(SCHEMA_OF_A_VERSION)
    {
        *inside = json!({ "description": inside["description"], "allOf": [reference(at, SCHEMA_OF_A_SCHEMA)] });
        schemas.insert(SCHEMA_OF_A_SCHEMA.into(), schema_of_a_schema(at));
    }
    schemas
}

fn reference(at: &str, name: &str) -> Value {
    json!({ "$ref": format!("{at}{name}") })
}

/// It contains itself, and what stands for any value has no type.
fn schema_of_a_schema(at: &str) -> Value {
    let mut schema = schema::of::<JSONSchemaProps>();
    let inner = json!({ "allOf": [reference(at, SCHEMA_OF_A_SCHEMA)] });
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, field) in fields.into_iter().flatten() {
        match name.as_str() {
            "allOf" | "anyOf" | "oneOf" => field["items"] = inner.clone(),
            "definitions" | "patternProperties" | "properties" => {
                field["additionalProperties"] = inner.clone();
            }
            "not" => *field = inner.clone(),
            "default" | "example" => *field = schema::anything(),
            "enum" => field["items"] = schema::anything(),
            _ => {}
        }
    }
    schema
}

fn schema(entry: &KindEntry, at: &str) -> Value {
    let mut schema = entry.openapi_schema();
    let properties = &mut schema["properties"];
    for (name, what) in [
        ("apiVersion", "Group and version of the kind that this object is written in."),
        ("kind", "The kind of the object."),
    ] {
        properties[name] = json!({ "type": "string", "description": what });
    }
    properties["metadata"] = json!({
        "description": "Name, labels, annotations and what the server keeps about the object.",
        "allOf": [reference(at, METADATA)],
    });
    // As in Kubernetes: a review of oneself (a SelfSubjectReview) need not have a name.
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name != "metadata");
    }
    schema["type"] = "object".into();
    schema["x-kubernetes-group-version-kind"] = json!([type_of(entry.meta)]);
    schema
}

fn type_of(meta: &KindMeta) -> Value {
    json!({ "group": meta.group, "version": meta.version, "kind": meta.kind })
}

/// `dev.knative.serving.v1.Service`: the group's parts turned round.
fn schema_name(meta: &KindMeta) -> String {
    let mut parts: Vec<&str> = meta.group.split('.').rev().collect();
    if meta.group.is_empty() {
        parts = vec!["io", "k8s", "api", "core"];
    }
    parts.extend([meta.version, meta.kind]);
    parts.join(".")
}
