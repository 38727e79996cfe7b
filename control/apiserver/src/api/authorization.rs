//! Authorizes a request: checks its verb and resource against the RBAC rules.

use axum::body::Bytes;
use http::Method;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use serde_json::Value;

use crate::access::{RequestAttributes, rbac};
use crate::store::MemoryIndex;
use types::kind_registry::{RequestContext, ResourceStrategy as _};

use super::errors::StatusError;
use super::{ApiRequest, ApiServer, body, patch, request_path};

/// Paths that every caller may read, authenticated or not.
const ANONYMOUS_PATHS: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];
const RBAC: &str = "rbac.authorization.k8s.io";

/// The verb of a request about objects.
pub(super) fn verb(method: &Method, named: bool, watch: bool) -> &'static str {
    match *method {
        Method::GET | Method::HEAD if watch => "watch",
        Method::GET | Method::HEAD if named => "get",
        Method::GET | Method::HEAD => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    }
}

/// Refuses what no rule grants.
pub(super) fn check(
    server: &ApiServer,
    who: &RequestContext,
    action: &RequestAttributes<'_>,
) -> Result<(), StatusError> {
    let granted = who.internal || rbac::allows(&server.store.read(), &who.user, &who.groups, action);
    if granted { Ok(()) } else { Err(StatusError::forbidden_by_rbac(&who.user, action)) }
}

pub(super) fn check_path(server: &ApiServer, who: &RequestContext, verb: &str, path: &str) -> Result<(), StatusError> {
    let granted = who.internal
        || is_anonymous_path(path)
        || rbac::allows_path(&server.store.read(), &who.user, &who.groups, verb, path);
    if granted { Ok(()) } else { Err(StatusError::path_forbidden_by_rbac(&who.user, verb, path)) }
}

/// Returns 403 instead of 404 for an unknown path to a caller that could not read the path if it existed.
pub(super) fn check_unknown_path(
    server: &ApiServer,
    who: &RequestContext,
    method: &Method,
    path: &str,
) -> Result<(), StatusError> {
    let Some(named) = request_path::split(path) else {
        return check_path(server, who, &method.as_str().to_ascii_lowercase(), path);
    };
    let action = RequestAttributes {
        verb: verb(method, named.name.is_some(), named.watch),
        group: named.group,
        resource: named.plural,
        subresource: named.subresource,
        namespace: named.namespace.unwrap_or(""),
        name: named.name.unwrap_or(""),
    };
    check(server, who, &action)
}

/// Whether an unauthenticated caller may read the path.
pub(super) fn is_anonymous_path(path: &str) -> bool {
    ANONYMOUS_PATHS
        .iter()
        .any(|open| path == *open || path.strip_prefix(open).is_some_and(|rest| rest.starts_with('/')))
}

/// Prevents privilege escalation: the author of a role must have all of its rules, the author of a binding those of
/// its role, unless the author may `escalate` or `bind`.
pub(super) fn check_escalation(call: &ApiRequest, bytes: &Bytes) -> Result<(), StatusError> {
    let meta = call.target.entry.meta;
    let who = &call.server.default_requester;
    if meta.group != RBAC || who.internal {
        return Ok(());
    }
    let value = written_value(call, bytes)?;
    let memory = call.server.store.read();
    let beyond = if meta.plural.ends_with("bindings") {
        missing_binding_rules(&memory, call, &value)?
    } else {
        missing_role_rules(&memory, call, &value)
    };
    match beyond {
        None => Ok(()),
        Some(rule) => {
            let why = format!(
                "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
                who.user,
                format_list(&who.groups),
                format_rule(&rule)
            );
            let name = call.target.name.as_deref().or(value["metadata"]["name"].as_str()).unwrap_or("");
            Err(StatusError::forbidden(meta, name, &why))
        }
    }
}

/// The body of a write: an object, or a part of one, or a list of operations.
fn written_value(call: &ApiRequest, bytes: &Bytes) -> Result<Value, StatusError> {
    let media = body::content_type(&call.headers).unwrap_or_default();
    match body::object(&call.headers, call.target.entry.meta.kind, bytes) {
        Ok(object) => Ok(object),
        Err(_) if media.ends_with("+json") => body::json(bytes).map(|(value, _)| value),
        Err(_) => {
            let read = body::yaml(bytes).map_err(|why| StatusError::bad_request(why.to_string()))?;
            Ok(read.0)
        }
    }
}

/// A rule as Kubernetes writes one: `{APIGroups:["a" "b"], Resources:["c"], Verbs:["get"]}`.
fn format_rule(rule: &Value) -> String {
    let fields = ["apiGroups", "resources", "nonResourceURLs", "resourceNames", "verbs"];
    let names = ["APIGroups", "Resources", "NonResourceURLs", "ResourceNames", "Verbs"];
    let said = fields.iter().zip(names).filter_map(|(field, name)| {
        let values: Vec<&str> = rule[field].as_array()?.iter().filter_map(Value::as_str).collect();
        (!values.is_empty()).then(|| format!("{name}:{}", format_list(&values)))
    });
    format!("{{{}}}", said.collect::<Vec<_>>().join(", "))
}

fn format_list(words: &[impl AsRef<str>]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{:?}", word.as_ref())).collect();
    format!("[{}]", words.join(" "))
}

/// The rules that a binding grants and that its author neither has nor may bind. A patch is partial, so both the
/// stored binding and the new values are checked.
fn missing_binding_rules(memory: &MemoryIndex, call: &ApiRequest, value: &Value) -> Result<Option<Value>, StatusError> {
    let who = &call.server.default_requester;
    let namespace = call.target.namespace.as_deref().unwrap_or("");
    let stored = call.key().ok().and_then(|key| memory.get(&key));
    let roles = [Some(value["roleRef"].clone()), stored.map(|one| one.value()["roleRef"].take())];
    for role in roles.into_iter().flatten().filter(Value::is_object) {
        let name = role["name"].as_str().unwrap_or("");
        let meta = match role["kind"].as_str() {
            Some("ClusterRole") => &ClusterRole::META,
            Some("Role") => &Role::META,
            _ => continue, // it is refused by its kind
        };
        let resource = meta.plural;
        let bind = RequestAttributes { verb: "bind", group: RBAC, resource, subresource: "", namespace, name };
        if rbac::allows(memory, &who.user, &who.groups, &bind) {
            continue;
        }
        // The rules of a role that does not exist yet are unknown.
        let rules = rbac::rules_of(memory, &role, namespace).ok_or_else(|| StatusError::not_found(meta, name))?;
        let beyond = rbac::missing_rules(memory, &who.user, &who.groups, namespace, &rules);
        if beyond.is_some() {
            return Ok(beyond);
        }
    }
    Ok(None)
}

/// The rules of a role that its author does not have, unless the author may escalate the role.
fn missing_role_rules(memory: &MemoryIndex, call: &ApiRequest, value: &Value) -> Option<Value> {
    let who = &call.server.default_requester;
    let namespace = call.target.namespace.as_deref().unwrap_or("");
    let (resource, name) = (call.target.entry.meta.plural, call.target.name.as_deref().unwrap_or(""));
    let escalate = RequestAttributes { verb: "escalate", group: RBAC, resource, subresource: "", namespace, name };
    if rbac::allows(memory, &who.user, &who.groups, &escalate) {
        return None;
    }
    let patched;
    let value = match value.as_array() {
        // What it moves may be another when it is written.
        Some(patch) if patch.iter().any(|one| one["op"] == "copy" || one["op"] == "move") => {
            return patch.first().cloned();
        }
        Some(_) => {
            patched = patched_role(memory, call, value)?;
            &patched
        }
        None => value,
    };
    if value["aggregationRule"].is_object() {
        return Some(value["aggregationRule"].clone());
    }
    let wanted: Vec<Value> = value["rules"].as_array().into_iter().flatten().cloned().collect();
    rbac::missing_rules(memory, &who.user, &who.groups, namespace, &wanted)
}

/// The stored role after a JSON patch; `None`: the patch does not apply, and the request fails with that reason.
fn patched_role(memory: &MemoryIndex, call: &ApiRequest, operations: &Value) -> Option<Value> {
    let stored = memory.get(&call.key().ok()?)?.value();
    let media = body::content_type(&call.headers).unwrap_or_default();
    let (patch, _) = patch::parse(&call.target.entry, &media, operations.to_string().as_bytes()).ok()?;
    patch::apply_patch(&patch, stored).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_formatted_as_in_kubernetes() {
        let rule =
            serde_json::json!({ "apiGroups": ["", "b"], "resources": ["c"], "resourceNames": [], "verbs": ["get"] });
        assert_eq!(format_rule(&rule), r#"{APIGroups:["" "b"], Resources:["c"], Verbs:["get"]}"#);
    }

    #[test]
    fn each_method_has_its_verb() {
        for (method, named, watch, expected) in [
            (Method::GET, true, false, "get"),
            (Method::GET, false, false, "list"),
            (Method::GET, true, true, "watch"),
            (Method::POST, false, false, "create"),
            (Method::PUT, true, false, "update"),
            (Method::PATCH, true, false, "patch"),
            (Method::DELETE, true, false, "delete"),
            (Method::DELETE, false, false, "deletecollection"),
        ] {
            assert_eq!(verb(&method, named, watch), expected);
        }
    }

    #[test]
    fn a_other_user_sees_health_and_version_only() {
        assert!(is_anonymous_path("/healthz") && is_anonymous_path("/readyz/ping") && is_anonymous_path("/version"));
        for closed in ["/", "/api", "/healthzz", "/apis", "/openapi/v3"] {
            assert!(!is_anonymous_path(closed), "{closed}");
        }
    }
}
