//! The methods that a path supports, for the `Allow` header of a 405 (RFC 9110, 15.5.6).

use axum::response::Response;
use http::{HeaderValue, StatusCode, header};

use types::kind_registry::KindRegistry;

use super::request_path::RequestTarget;
use super::{account_tokens, backup, discovery, logs, pod_streams, request_path};

/// The HTTP methods of an API verb, for one object and for a collection.
const OF_OBJECT: [(&str, &str); 4] = [("get", "GET"), ("update", "PUT"), ("patch", "PATCH"), ("delete", "DELETE")];
const OF_COLLECTION: [(&str, &str); 3] = [("list", "GET"), ("create", "POST"), ("deletecollection", "DELETE")];

/// Names the allowed methods in a 405.
pub(super) fn add(response: &mut Response, registry: &KindRegistry, path: &str) {
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return;
    }
    if let Ok(methods) = HeaderValue::from_str(&methods(registry, path).join(", ")) {
        response.headers_mut().insert(header::ALLOW, methods);
    }
}

/// None: the path is of something that Kubernetes has and this API has not.
fn methods(registry: &KindRegistry, path: &str) -> Vec<&'static str> {
    if let Ok(target) = request_path::parse(path, registry) {
        return of_objects(&target);
    }
    if account_tokens::parse_path(path).is_some() {
        return vec!["POST"];
    }
    if logs::parse_path(path).is_some() || logs::revision::parse_path(path).is_some() {
        return vec!["GET"];
    }
    if pod_streams::parse_path(path).is_some() {
        return vec!["GET", "POST"];
    }
    match request_path::split(path) {
        _ if path == backup::PATH => vec!["GET", "PUT"],
        Some(_) => Vec::new(),
        None => vec!["GET", "HEAD"],
    }
}

fn of_objects(target: &RequestTarget) -> Vec<&'static str> {
    let meta = target.entry.meta;
    let verbs = match target.scale {
        _ if target.status => discovery::status_verbs(&target.entry).to_vec(),
        _ if target.finalize => vec!["update"],
        Some(_) => discovery::SCALE_VERBS.to_vec(),
        None => discovery::verbs(&target.entry),
    };
    if target.watch || target.name.is_none() && meta.namespaced && target.namespace.is_none() {
        return vec!["GET"]; // of all namespaces
    }
    let table = if target.name.is_some() { OF_OBJECT.as_slice() } else { &OF_COLLECTION };
    table.iter().filter(|(verb, _)| verbs.contains(verb)).map(|(_, method)| *method).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allow_lists_the_methods_of_each_path() {
        let registry = types::registry();
        for (path, allowed) in [
            ("/api/v1/namespaces/default/configmaps", "GET, POST, DELETE"),
            ("/api/v1/configmaps", "GET"),
            ("/api/v1/namespaces/default/configmaps/a", "GET, PUT, PATCH, DELETE"),
            ("/api/v1/namespaces/default/finalize", "PUT"),
            ("/api/v1/watch/configmaps", "GET"),
            ("/apis/serving.knative.dev/v1/namespaces/default/services/a/status", "GET, PUT, PATCH"),
            ("/apis/apps/v1/namespaces/default/deployments", "GET, POST, DELETE"),
            ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "POST"),
            ("/api/v1/namespaces/default/serviceaccounts/a/token", "POST"),
            ("/api/v1/namespaces/default/pods/a/log", "GET"),
            ("/api/v1/namespaces/default/pods/a/exec", "GET, POST"),
            ("/api/v1/namespaces/default/pods/a/eviction", ""),
            ("/sluicegate/backup", "GET, PUT"),
            ("/version", "GET, HEAD"),
            ("/apis", "GET, HEAD"),
        ] {
            assert_eq!(methods(&registry, path).join(", "), allowed, "{path}");
        }
    }
}
