//! Whether a request is granted: what it does, held against the rules of RBAC.

use axum::body::Bytes;
use http::Method;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use serde_json::Value;

use crate::access::{Action, rbac};
use crate::kind::{Requester, Resource as _};
use crate::store::Memory;

use super::errors::Refusal;
use super::{Call, Server, body, patch, path};

/// Paths that anybody may ask for, known or not.
const OPEN: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];
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
pub(super) fn check(server: &Server, who: &Requester, action: &Action<'_>) -> Result<(), Refusal> {
    let granted = who.internal || rbac::allows(&server.store.read(), &who.user, &who.groups, action);
    if granted { Ok(()) } else { Err(Refusal::not_granted(&who.user, action)) }
}

pub(super) fn check_path(server: &Server, who: &Requester, verb: &str, path: &str) -> Result<(), Refusal> {
    let granted = who.internal
        || is_open(path)
        || rbac::allows_path(&server.store.read(), &who.user, &who.groups, verb, path);
    if granted { Ok(()) } else { Err(Refusal::path_not_granted(&who.user, verb, path)) }
}

/// Refuses to say that there is nothing at a path, to who might not ask for it if there were.
pub(super) fn check_unknown(
    server: &Server,
    who: &Requester,
    method: &Method,
    path: &str,
) -> Result<(), Refusal> {
    let Some(named) = path::named(path) else {
        return check_path(server, who, &method.as_str().to_ascii_lowercase(), path);
    };
    let action = Action {
        verb: verb(method, named.name.is_some(), named.watch),
        group: named.group,
        resource: named.plural,
        subresource: named.part,
        namespace: named.namespace.unwrap_or(""),
        name: named.name.unwrap_or(""),
    };
    check(server, who, &action)
}

/// Whether a stranger may ask for it.
pub(super) fn is_open(path: &str) -> bool {
    OPEN.iter().any(|open| path == *open || path.strip_prefix(open).is_some_and(|rest| rest.starts_with('/')))
}

/// Nobody hands on what he does not have: who writes a role must have all of its rules, who writes a
/// binding those of its role, unless he may `escalate` or `bind`.
pub(super) fn check_escalation(call: &Call, bytes: &Bytes) -> Result<(), Refusal> {
    let meta = call.target.entry.meta;
    let who = &call.server.requester;
    if meta.group != RBAC || who.internal {
        return Ok(());
    }
    let value = said(call, bytes)?;
    let memory = call.server.store.read();
    let beyond = if meta.plural.ends_with("bindings") {
        bound_beyond(&memory, call, &value)?
    } else {
        written_beyond(&memory, call, &value)
    };
    match beyond {
        None => Ok(()),
        Some(rule) => {
            let why = format!(
                "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
                who.user,
                listed(&who.groups),
                told(&rule)
            );
            let name = call.target.name.as_deref().or(value["metadata"]["name"].as_str()).unwrap_or("");
            Err(Refusal::forbidden(meta, name, &why))
        }
    }
}

/// What a write says: an object, or a part of one, or a list of operations.
fn said(call: &Call, bytes: &Bytes) -> Result<Value, Refusal> {
    let media = body::content_type(&call.headers).unwrap_or_default();
    match body::object(&call.headers, call.target.entry.meta.kind, bytes) {
        Ok(object) => Ok(object),
        Err(_) if media.ends_with("+json") => body::json(bytes),
        Err(_) => body::yaml(bytes).map_err(|why| Refusal::bad_request(why.to_string())),
    }
}

/// A rule as Kubernetes writes one: `{APIGroups:["a" "b"], Resources:["c"], Verbs:["get"]}`.
fn told(rule: &Value) -> String {
    let fields = ["apiGroups", "resources", "nonResourceURLs", "resourceNames", "verbs"];
    let names = ["APIGroups", "Resources", "NonResourceURLs", "ResourceNames", "Verbs"];
    let said = fields.iter().zip(names).filter_map(|(field, name)| {
        let values: Vec<&str> = rule[field].as_array()?.iter().filter_map(Value::as_str).collect();
        (!values.is_empty()).then(|| format!("{name}:{}", listed(&values)))
    });
    format!("{{{}}}", said.collect::<Vec<_>>().join(", "))
}

fn listed(words: &[impl AsRef<str>]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{:?}", word.as_ref())).collect();
    format!("[{}]", words.join(" "))
}

/// What a binding gives that its author may neither bind nor do himself. A patch says only a part: what is stored and what
/// comes are both looked at.
fn bound_beyond(memory: &Memory, call: &Call, value: &Value) -> Result<Option<Value>, Refusal> {
    let who = &call.server.requester;
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
        let bind = Action { verb: "bind", group: RBAC, resource, subresource: "", namespace, name };
        if rbac::allows(memory, &who.user, &who.groups, &bind) {
            continue;
        }
        // Of a role that is not there nobody knows what it will give.
        let rules = rbac::rules_of(memory, &role, namespace).ok_or_else(|| Refusal::not_found(meta, name))?;
        let beyond = rbac::beyond(memory, &who.user, &who.groups, namespace, &rules);
        if beyond.is_some() {
            return Ok(beyond);
        }
    }
    Ok(None)
}

/// What a role says that its author may not do himself, unless he may escalate it.
fn written_beyond(memory: &Memory, call: &Call, value: &Value) -> Option<Value> {
    let who = &call.server.requester;
    let namespace = call.target.namespace.as_deref().unwrap_or("");
    let (resource, name) = (call.target.entry.meta.plural, call.target.name.as_deref().unwrap_or(""));
    let escalate = Action { verb: "escalate", group: RBAC, resource, subresource: "", namespace, name };
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
            patched = by_operations(memory, call, value)?;
            &patched
        }
        None => value,
    };
    if value["aggregationRule"].is_object() {
        return Some(value["aggregationRule"].clone());
    }
    let wanted: Vec<Value> = value["rules"].as_array().into_iter().flatten().cloned().collect();
    rbac::beyond(memory, &who.user, &who.groups, namespace, &wanted)
}

/// What a patch by operations makes of the stored role; `None`: nothing, and it will be told so.
fn by_operations(memory: &Memory, call: &Call, operations: &Value) -> Option<Value> {
    let stored = memory.get(&call.key().ok()?)?.value();
    let media = body::content_type(&call.headers).unwrap_or_default();
    let patch = patch::parse(&call.target.entry, &media, operations.to_string().as_bytes()).ok()?;
    patch::lay(&patch, stored).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_told_as_kubernetes_tells_it() {
        let rule = serde_json::json!({ "apiGroups": ["", "b"], "resources": ["c"], "resourceNames": [], "verbs": ["get"] });
        assert_eq!(told(&rule), r#"{APIGroups:["" "b"], Resources:["c"], Verbs:["get"]}"#);
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
    fn a_stranger_sees_health_and_version_only() {
        assert!(is_open("/healthz") && is_open("/readyz/ping") && is_open("/version"));
        for closed in ["/", "/api", "/healthzz", "/apis", "/openapi/v3"] {
            assert!(!is_open(closed), "{closed}");
        }
    }
}
