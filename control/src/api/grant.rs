//! Whether a request is granted: what it does, held against the rules of RBAC.

use axum::body::Bytes;
use http::Method;
use serde_json::Value;

use crate::access::{Action, rbac};
use crate::kind::Requester;
use crate::store::Memory;

use super::errors::Refusal;
use super::{Call, Server, body, path};

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
    // A patch says only a part; what is stored and what comes are both held against what he has.
    let value: Value = body::object(&call.headers, meta.kind, bytes)
        .or_else(|_| serde_norway::from_slice(bytes).map_err(|why| Refusal::bad_request(why.to_string())))?;
    let memory = call.server.store.read();
    let namespace = call.target.namespace.as_deref().unwrap_or("");
    let (verb, role) = if meta.plural.ends_with("bindings") {
        ("bind", if value["roleRef"]["kind"] == "ClusterRole" { "clusterroles" } else { "roles" })
    } else {
        ("escalate", meta.plural)
    };
    let named = value["roleRef"]["name"].as_str().or(call.target.name.as_deref()).unwrap_or("");
    let action = Action { verb, group: RBAC, resource: role, subresource: "", namespace, name: named };
    if rbac::allows(&memory, &who.user, &who.groups, &action) {
        return Ok(());
    }
    match granted_beyond(&memory, call, who, namespace, &value) {
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

fn granted_beyond(
    memory: &Memory,
    call: &Call,
    who: &Requester,
    namespace: &str,
    value: &Value,
) -> Option<Value> {
    let meta = call.target.entry.meta;
    let mut wanted: Vec<Value> = Vec::new();
    if meta.plural.ends_with("bindings") {
        let stored = call.key().ok().and_then(|key| memory.get(&key));
        let references = [Some(value["roleRef"].clone()), stored.map(|one| one.value()["roleRef"].take())];
        for reference in references.into_iter().flatten().filter(Value::is_object) {
            wanted.extend(rbac::rules_of(memory, &reference, namespace));
        }
    } else {
        if let Some(patch) = value.as_array() {
            // JSON patch: whatever it carries could become a rule.
            return patch.first().cloned();
        }
        if value["aggregationRule"].is_object() {
            return Some(value["aggregationRule"].clone());
        }
        wanted.extend(value["rules"].as_array().into_iter().flatten().cloned());
    }
    rbac::beyond(memory, &who.user, &who.groups, namespace, &wanted)
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
