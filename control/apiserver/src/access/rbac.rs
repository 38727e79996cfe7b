//! Role-based access control as Kubernetes evaluates it: bindings lead from a user to roles, roles consist of rules, and
//! a request that no rule grants is denied.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{MASTERS, RequestAttributes};
use crate::store::{MemoryIndex, ObjectHead, ObjectKey, StoredObject};

const GROUP: &str = "rbac.authorization.k8s.io";
const ACCOUNT: &str = "system:serviceaccount:";

/// Whether `user`, being in `groups`, may do it.
#[must_use]
pub fn allows(memory: &MemoryIndex, user: &str, groups: &[String], action: &RequestAttributes<'_>) -> bool {
    groups.iter().any(|group| group == MASTERS)
        || rules(memory, user, groups, action.namespace).iter().any(|rule| grants(rule, action))
}

/// Whether `user` may ask for this path, which is not about objects.
#[must_use]
pub fn allows_path(memory: &MemoryIndex, user: &str, groups: &[String], verb: &str, path: &str) -> bool {
    let fits = |pattern: &Value| {
        let pattern = pattern.as_str().unwrap_or("");
        pattern == path || pattern.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
    };
    groups.iter().any(|group| group == MASTERS)
        || rules(memory, user, groups, "")
            .iter()
            .any(|rule| contains(&rule["verbs"], verb) && list(&rule["nonResourceURLs"]).any(fits))
}

/// All rules that hold for `user` in `namespace`; those that hold everywhere if it is empty.
#[must_use]
pub fn rules(memory: &MemoryIndex, user: &str, groups: &[String], namespace: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for binding in all(memory, "clusterrolebindings", None) {
        let binding = binding.value();
        if is_bound(&binding, user, groups) {
            found.extend(rules_of(memory, &binding["roleRef"], "").unwrap_or_default());
        }
    }
    if !namespace.is_empty() {
        for binding in all(memory, "rolebindings", Some(namespace)) {
            let binding = binding.value();
            if is_bound(&binding, user, groups) {
                found.extend(rules_of(memory, &binding["roleRef"], namespace).unwrap_or_default());
            }
        }
    }
    found
}

/// The rules of `wanted` (of a role) that `user` does not have, and so must not grant. Empty: granting is allowed.
#[must_use]
pub fn missing_rules(
    memory: &MemoryIndex,
    user: &str,
    groups: &[String],
    namespace: &str,
    wanted: &[Value],
) -> Option<Value> {
    if groups.iter().any(|group| group == MASTERS) {
        return None;
    }
    let own = rules(memory, user, groups, namespace);
    wanted.iter().find(|rule| !is_covered(&own, rule)).cloned()
}

/// The rules that a `roleRef` leads to; `None` where there is no such role.
#[must_use]
pub fn rules_of(memory: &MemoryIndex, reference: &Value, namespace: &str) -> Option<Vec<Value>> {
    let name = reference["name"].as_str().unwrap_or("");
    let cluster_wide = reference["kind"] == "ClusterRole";
    let (plural, namespace) = if cluster_wide { ("clusterroles", "") } else { ("roles", namespace) };
    let key = ObjectKey { resource: resource(plural), namespace: namespace.into(), name: name.into() };
    let role = memory.get(&key)?.value();
    Some(aggregated(memory, name, &role).unwrap_or_else(|| list(&role["rules"]).cloned().collect()))
}

/// The rules of all that an aggregated role selects, each once, whatever its own field says at the moment. `None`: it
/// is not aggregated.
#[must_use]
pub fn aggregated(memory: &MemoryIndex, name: &str, role: &Value) -> Option<Vec<Value>> {
    let selectors: Vec<&Value> = list(&role["aggregationRule"]["clusterRoleSelectors"]).collect();
    if selectors.is_empty() {
        return None;
    }
    let mut rules = Vec::new();
    for other in all(memory, "clusterroles", None) {
        if *other.key.name != *name && selectors.iter().any(|selector| selects(selector, &other.head)) {
            for rule in list(&other.value()["rules"]) {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    Some(rules)
}

fn selects(selector: &Value, head: &ObjectHead) -> bool {
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = list(&selector["matchExpressions"]);
    pairs.into_iter().all(|(key, value)| value.as_str().is_some_and(|value| head.label(key) == Some(value)))
        && expressions.all(|one| {
            let label = head.label(one["key"].as_str().unwrap_or(""));
            let listed = label.is_some() && list(&one["values"]).any(|value| value.as_str() == label);
            match one["operator"].as_str() {
                Some("In") => listed,
                Some("NotIn") => !listed,
                Some("Exists") => label.is_some(),
                Some("DoesNotExist") => label.is_none(),
                _ => false,
            }
        })
}

fn is_bound(binding: &Value, user: &str, groups: &[String]) -> bool {
    list(&binding["subjects"]).any(|subject| {
        let name = subject["name"].as_str().unwrap_or("");
        match subject["kind"].as_str() {
            Some("User") => name == user,
            Some("Group") => groups.iter().any(|group| group == name),
            Some("ServiceAccount") => {
                let home = subject["namespace"].as_str().or(binding["metadata"]["namespace"].as_str());
                let named = user.strip_prefix(ACCOUNT).and_then(|rest| rest.split_once(':'));
                named.is_some_and(|(namespace, account)| Some(namespace) == home && account == name)
            }
            _ => false,
        }
    })
}

fn grants(rule: &Value, action: &RequestAttributes<'_>) -> bool {
    let full = format!("{}/{}", action.resource, action.subresource);
    let any_with = format!("*/{}", action.subresource);
    let about = |resource: &Value| {
        let resource = resource.as_str().unwrap_or("");
        resource == "*"
            || if action.subresource.is_empty() {
                resource == action.resource
            } else {
                resource == full || resource == any_with
            }
    };
    let names = &rule["resourceNames"];
    contains(&rule["verbs"], action.verb)
        && contains(&rule["apiGroups"], action.group)
        && list(&rule["resources"]).any(about)
        && (list(names).next().is_none() || list(names).any(|name| name == action.name))
}

/// Whether every single thing that `rule` grants is granted by one of `own`.
fn is_covered(own: &[Value], rule: &Value) -> bool {
    let one = |value: &Value| json!([value]);
    let empty = json!([""]);
    let names = if list(&rule["resourceNames"]).next().is_some() { &rule["resourceNames"] } else { &empty };
    let objects = list(&rule["verbs"]).all(|verb| {
        list(&rule["apiGroups"]).all(|group| {
            list(&rule["resources"]).all(|resource| {
                list(names).all(|name| own.iter().any(|have| covers(have, [verb, group, resource, name])))
            })
        })
    });
    let paths = list(&rule["verbs"]).all(|verb| {
        list(&rule["nonResourceURLs"]).all(|path| {
            own.iter().any(|have| {
                contains(&have["verbs"], verb.as_str().unwrap_or(""))
                    && (have["nonResourceURLs"] == one(path)
                        || list(&have["nonResourceURLs"]).any(|p| p == path || p == "*"))
            })
        })
    });
    objects && paths
}

fn covers(have: &Value, [verb, group, resource, name]: [&Value; 4]) -> bool {
    let within = |field: &str, wanted: &Value| list(&have[field]).any(|one| one == "*" || one == wanted);
    let text = resource.as_str().unwrap_or("");
    let by_part = text
        .split_once('/')
        .is_some_and(|(_, part)| list(&have["resources"]).any(|one| one.as_str() == Some(&format!("*/{part}"))));
    within("verbs", verb)
        && within("apiGroups", group)
        && (within("resources", resource) || by_part)
        && (list(&have["resourceNames"]).next().is_none() || list(&have["resourceNames"]).any(|one| one == name))
}

fn contains(words: &Value, word: &str) -> bool {
    list(words).any(|one| one == "*" || one == word)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn all(memory: &MemoryIndex, plural: &str, namespace: Option<&str>) -> Vec<Arc<StoredObject>> {
    memory.list(&resource(plural), namespace).items()
}

fn resource(plural: &str) -> Arc<str> {
    format!("{GROUP}/{plural}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action<'a>(verb: &'a str, group: &'a str, resource: &'a str) -> RequestAttributes<'a> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        RequestAttributes { verb, group, resource, subresource, namespace: "", name: "n" }
    }

    #[test]
    fn a_rule_grants_what_all_of_its_lists_name() {
        let rule = json!({ "verbs": ["get", "list"], "apiGroups": ["", "a"], "resources": ["x", "y/status"] });
        for (verb, group, resource, granted) in [
            ("get", "", "x", true),
            ("list", "a", "y/status", true),
            ("watch", "", "x", false),
            ("get", "b", "x", false),
            ("get", "", "y", false),
            ("get", "", "x/status", false),
        ] {
            assert_eq!(grants(&rule, &action(verb, group, resource)), granted, "{verb} {group} {resource}");
        }
        let all = json!({ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] });
        assert!(grants(&all, &action("any", "any", "any/part")));
        let parts = json!({ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*/status"] });
        assert!(grants(&parts, &action("get", "", "x/status")) && !grants(&parts, &action("get", "", "x")));
        let named = json!({ "verbs": ["get"], "apiGroups": [""], "resources": ["x"], "resourceNames": ["n"] });
        assert!(grants(&named, &action("get", "", "x")));
        assert!(!grants(&named, &RequestAttributes { name: "m", ..action("get", "", "x") }));
    }

    #[test]
    fn nobody_is_bound_by_a_likeness() {
        let binding = json!({ "metadata": { "namespace": "home" }, "subjects": [
            { "kind": "User", "name": "alice" },
            { "kind": "Group", "name": "crew" },
            { "kind": "ServiceAccount", "name": "robot", "namespace": "far" },
        ] });
        let group = ["crew".to_owned()];
        assert!(is_bound(&binding, "alice", &[]) && is_bound(&binding, "bob", &group));
        assert!(is_bound(&binding, "system:serviceaccount:far:robot", &[]));
        for other in ["bob", "crew", "robot", "system:serviceaccount:home:robot"] {
            assert!(!is_bound(&binding, other, &[]), "{other}");
        }
    }

    #[test]
    fn only_what_one_has_oneself_is_covered() {
        let own = [json!({ "verbs": ["get", "list"], "apiGroups": [""], "resources": ["x", "y"] })];
        let rule =
            |verbs: Value, resources: Value| json!({ "verbs": verbs, "apiGroups": [""], "resources": resources });
        assert!(is_covered(&own, &rule(json!(["get"]), json!(["x", "y"]))));
        for more in [rule(json!(["*"]), json!(["x"])), rule(json!(["get"]), json!(["x", "z"]))] {
            assert!(!is_covered(&own, &more), "{more}");
        }
        let named = json!({ "verbs": ["get"], "apiGroups": [""], "resources": ["x"], "resourceNames": ["a"] });
        assert!(is_covered(&own, &named));
        assert!(!is_covered(&[named], &rule(json!(["get"]), json!(["x"]))));
    }

    #[test]
    fn an_aggregation_selects_by_labels_and_expressions() {
        let head = ObjectHead::from_object(&json!({ "metadata": { "labels": { "a": "1" } } }));
        for (selector, selected) in [
            (json!({ "matchLabels": { "a": "1" } }), true),
            (json!({ "matchLabels": { "a": "2" } }), false),
            (json!({ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["1", "2"] }] }), true),
            (json!({ "matchExpressions": [{ "key": "a", "operator": "NotIn", "values": ["1"] }] }), false),
            (json!({ "matchExpressions": [{ "key": "b", "operator": "DoesNotExist" }] }), true),
            (json!({ "matchExpressions": [{ "key": "b", "operator": "Exists" }] }), false),
        ] {
            assert_eq!(selects(&selector, &head), selected, "{selector}");
        }
    }
}
