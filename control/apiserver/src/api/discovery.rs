//! Discovery: the served groups, versions, kinds and verbs, in the original and the aggregated format.

use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};

use crate::access::service_account_tokens::ISSUER;
use types::kind_registry::{AllowedVerbs, KindEntry, KindRegistry};

use super::api_groups::{groups, kinds, versions};
use super::errors::StatusError;
use super::{ApiServer, content_negotiation, delete, openapi, pod_streams, readiness};

/// The release of Kubernetes whose behavior is implemented.
const MAJOR: &str = "1";
const MINOR: &str = "34";
pub(super) const SCALE_VERBS: [&str; 3] = ["get", "patch", "update"];
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Answers paths that are not about objects; `None` for those that are.
pub(super) fn handle(server: &ApiServer, head: &Parts) -> Option<Result<Response, StatusError>> {
    let (registry, headers) = (&server.registry, &head.headers);
    let parts: Vec<&str> = head.uri.path().trim_matches('/').split('/').collect();
    let found = match parts.as_slice() {
        [""] => Ok(document(&paths(registry))),
        [endpoint @ ("healthz" | "livez" | "readyz"), only @ ..] if only.len() < 2 => {
            readiness::answer(server, head, endpoint, only.first().copied()).ok_or_else(StatusError::unknown_path)
        }
        ["version"] => Ok(document(&version())),
        ["openid", "v1", "jwks"] => jwks(server),
        [".well-known", "openid-configuration"] => openid_configuration(server),
        ["openapi", rest @ ..] => openapi::handle(server, rest, head),
        ["api"] if aggregated(headers) => Ok(aggregate(server, true, headers)),
        ["apis"] if aggregated(headers) => Ok(aggregate(server, false, headers)),
        ["api"] => Ok(document(&core_versions())),
        ["apis"] => Ok(document(&json!({
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": groups(registry).iter().map(|group| group_document(registry, group)).collect::<Vec<_>>(),
        }))),
        ["api", version] => resources(registry, "", version),
        ["apis", group] if groups(registry).contains(group) => {
            let mut found = group_document(registry, group);
            found["kind"] = "APIGroup".into();
            found["apiVersion"] = "v1".into();
            Ok(document(&found))
        }
        ["apis", _] => Err(StatusError::unknown_path()),
        ["apis", group, version] => resources(registry, group, version),
        _ => return None,
    };
    let reads = head.method == Method::GET || head.method == Method::HEAD;
    Some(if reads { found } else { Err(StatusError::method_not_allowed()) })
}

/// The list of paths, for `kubectl get --raw /`.
fn paths(registry: &KindRegistry) -> Value {
    let fixed = ["/.well-known/openid-configuration", "/api", "/api/v1", "/apis", "/healthz", "/livez"];
    let mut paths: Vec<String> = fixed.map(str::to_owned).into();
    for group in groups(registry) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions(registry, group).iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(["/openapi/v2", "/openapi/v3", "/openid/v1/jwks", "/readyz", "/version"].map(str::to_owned));
    json!({ "paths": paths })
}

/// The keys that verify service account tokens.
fn jwks(server: &ApiServer) -> Result<Response, StatusError> {
    let signer = server.authentication.service_accounts.as_ref().ok_or_else(StatusError::unknown_path)?;
    Ok(([(header::CONTENT_TYPE, "application/jwk-set+json")], signer.jwks().to_string()).into_response())
}

/// The issuer of tokens.
fn openid_configuration(server: &ApiServer) -> Result<Response, StatusError> {
    server.authentication.service_accounts.as_ref().ok_or_else(StatusError::unknown_path)?;
    Ok(document(&json!({
        "issuer": ISSUER,
        "jwks_uri": format!("{ISSUER}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })))
}

fn core_versions() -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    })
}

/// The version of Kubernetes whose API this is, and ours.
#[must_use]
pub fn git_version() -> String {
    format!("v{MAJOR}.{MINOR}.0+sluicegate-{}", env!("CARGO_PKG_VERSION"))
}

fn version() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "gitVersion": git_version(),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn group_document(registry: &KindRegistry, group: &str) -> Value {
    let versions: Vec<Value> = versions(registry, group)
        .iter()
        .map(|version| json!({ "groupVersion": format!("{group}/{version}"), "version": version }))
        .collect();
    json!({ "name": group, "preferredVersion": versions.first(), "versions": versions })
}

fn resources(registry: &KindRegistry, group: &str, version: &str) -> Result<Response, StatusError> {
    let mut resources = Vec::new();
    for entry in kinds(registry, group, version) {
        let meta = entry.meta;
        let mut resource = json!({
            "name": meta.plural,
            "singularName": meta.singular,
            "namespaced": meta.namespaced,
            "kind": meta.kind,
            "verbs": verbs(entry),
        });
        if !meta.short_names.is_empty() {
            resource["shortNames"] = meta.short_names.into();
        }
        if !meta.categories.is_empty() {
            resource["categories"] = meta.categories.into();
        }
        resources.push(resource);
        if meta.has_status {
            resources.push(json!({
                "name": format!("{}/status", meta.plural),
                "singularName": "",
                "namespaced": meta.namespaced,
                "kind": meta.kind,
                "verbs": status_verbs(entry),
            }));
        }
        if has_scale(entry) {
            resources.push(json!({
                "name": format!("{}/scale", meta.plural), "singularName": "", "namespaced": meta.namespaced,
                "kind": "Scale", "group": "autoscaling", "version": "v1", "verbs": SCALE_VERBS,
            }));
        }
    }
    let of_core = |plural: &str| group.is_empty() && resources.iter().any(|one| one["name"] == plural);
    let (namespaces, pods, accounts) = (of_core("namespaces"), of_core("pods"), of_core("serviceaccounts"));
    if namespaces {
        resources.push(json!({
            "name": "namespaces/finalize", "singularName": "", "namespaced": false, "kind": "Namespace",
            "verbs": ["update"],
        }));
    }
    if pods {
        resources.push(json!({
            "name": "pods/log", "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["get"],
        }));
        resources.extend(pod_streams::discovery());
    }
    if accounts {
        resources.push(json!({
            "name": "serviceaccounts/token", "singularName": "", "namespaced": true, "kind": "TokenRequest",
            "group": "authentication.k8s.io", "version": "v1", "verbs": ["create"],
        }));
    }
    if resources.is_empty() {
        return Err(StatusError::unknown_path());
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(document(&json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    })))
}

fn has_scale(entry: &KindEntry) -> bool {
    entry.scale_subresource().is_some()
}

pub(super) fn status_verbs(entry: &KindEntry) -> &'static [&'static str] {
    if entry.access == AllowedVerbs::ReadOnly { &["get"] } else { &["get", "patch", "update"] }
}

pub(super) fn verbs(entry: &KindEntry) -> Vec<&'static str> {
    match entry.access {
        AllowedVerbs::ReadOnly => return vec!["get", "list"],
        AllowedVerbs::CreateOnly => return vec!["create"],
        AllowedVerbs::Derived => return vec!["delete", "deletecollection", "get", "list", "watch"],
        AllowedVerbs::Full => {}
    }
    let mut verbs = vec!["delete", "get", "list", "patch", "update", "watch"];
    if delete::has_collection(entry.meta) {
        verbs.insert(1, "deletecollection");
    }
    if entry.meta.user_creatable {
        verbs.insert(0, "create");
    }
    verbs
}

/// The Accept header selects aggregated discovery (v2).
fn aggregated(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("");
    accept.split(',').any(|wanted| {
        let parts: Vec<&str> = wanted.split(';').map(str::trim).collect();
        ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"].iter().all(|part| parts.contains(part))
    })
}

fn aggregate(server: &ApiServer, core: bool, headers: &HeaderMap) -> Response {
    let registry = &server.registry;
    let written = || {
        let groups = if core { vec![""] } else { groups(registry) };
        let items: Vec<Value> = groups.iter().map(|group| aggregated_group(registry, group)).collect();
        let list = json!({
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        });
        list.to_string().into_bytes()
    };
    let name = if core { "aggregated api" } else { "aggregated apis" };
    let mut response = server.documents.get_or_render(registry, name, AGGREGATED, written).response(headers);
    // Cached, and revalidated each time.
    response.headers_mut().insert(header::CACHE_CONTROL, http::HeaderValue::from_static("public"));
    response
}

fn aggregated_group(registry: &KindRegistry, group: &str) -> Value {
    let versions: Vec<Value> = versions(registry, group)
        .into_iter()
        .map(|version| {
            let resources: Vec<Value> = kinds(registry, group, version).map(aggregated_resource).collect();
            json!({ "version": version, "resources": resources, "freshness": "Current" })
        })
        .collect();
    let metadata = if group.is_empty() { json!({}) } else { json!({ "name": group }) };
    json!({ "metadata": metadata, "versions": versions })
}

fn aggregated_resource(entry: &KindEntry) -> Value {
    let meta = entry.meta;
    let kind = json!({ "group": meta.group, "version": meta.version, "kind": meta.kind });
    let mut resource = json!({
        "resource": meta.plural,
        "responseKind": kind,
        "scope": if meta.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": meta.singular,
        "verbs": verbs(entry),
        "shortNames": meta.short_names,
        "categories": meta.categories,
    });
    let mut parts = Vec::new();
    if meta.has_status {
        parts.push(json!({ "subresource": "status", "responseKind": kind, "verbs": status_verbs(entry) }));
    }
    if has_scale(entry) {
        let kind = json!({ "group": "autoscaling", "version": "v1", "kind": "Scale" });
        parts.push(json!({ "subresource": "scale", "responseKind": kind, "verbs": SCALE_VERBS }));
    }
    let of_core = |plural: &str| meta.group.is_empty() && meta.plural == plural;
    if of_core("namespaces") {
        parts.push(json!({ "subresource": "finalize", "responseKind": kind, "verbs": ["update"] }));
    }
    if of_core("pods") {
        parts.push(json!({ "subresource": "log", "responseKind": kind, "verbs": ["get"] }));
    }
    if of_core("serviceaccounts") {
        let kind = json!({ "group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest" });
        parts.push(json!({ "subresource": "token", "responseKind": kind, "verbs": ["create"] }));
    }
    if !parts.is_empty() {
        resource["subresources"] = parts.into();
    }
    resource
}

fn document(document: &Value) -> Response {
    content_negotiation::json(StatusCode::OK, document.to_string())
}
