//! What an object refers to that may not be in the appliance.

use std::collections::BTreeSet;

use serde_json::Value;

/// Secrets by name, in the namespace of the object.
pub(super) fn secrets(object: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(object, &mut |key, value| {
        let name = match key {
            "secretKeyRef" | "secretRef" => value["name"].as_str(),
            "secret" => value["secretName"].as_str().or_else(|| value["name"].as_str()),
            _ => None,
        };
        found.extend(name.map(str::to_owned));
        if key == "imagePullSecrets" {
            let names = value.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
            found.extend(names.map(str::to_owned));
        }
    });
    found
}

/// Destinations of events that are core Services: `NAMESPACE/NAME`.
pub(super) fn core_services(object: &Value) -> BTreeSet<String> {
    let home = object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
    let mut found = BTreeSet::new();
    walk(object, &mut |key, value| {
        if key == "ref" && value["kind"] == "Service" && value["apiVersion"] == "v1" {
            let namespace = value["namespace"].as_str().unwrap_or(home);
            found.extend(value["name"].as_str().map(|name| format!("{namespace}/{name}")));
        }
    });
    found
}

/// URLs of services of the cluster.
pub(super) fn cluster_urls(object: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(object, &mut |key, value| {
        if let (true, Some(url)) = (["uri", "url"].contains(&key), value.as_str()) {
            let host = url.split("://").nth(1).unwrap_or_default().split(['/', ':']).next().unwrap_or_default();
            if host.ends_with(".svc") || host.contains(".svc.") {
                found.insert(url.to_owned());
            }
        }
    });
    found
}

/// Calls with each field below `value`. Objects of an API are nested a few dozen levels at most.
fn walk(value: &Value, visit: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                visit(key, inner);
                walk(inner, visit);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| walk(item, visit)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_found_wherever_a_template_names_them() {
        let object = json!({ "spec": { "template": { "spec": {
            "imagePullSecrets": [{ "name": "registry" }],
            "containers": [{
                "env": [{ "valueFrom": { "secretKeyRef": { "name": "db", "key": "password" } } }],
                "envFrom": [{ "secretRef": { "name": "all" } }, { "configMapRef": { "name": "no" } }],
            }],
            "volumes": [
                { "secret": { "secretName": "files" } },
                { "projected": { "sources": [{ "secret": { "name": "projected" } }] } },
            ],
        } } } });
        let names: Vec<String> = secrets(&object).into_iter().collect();
        assert_eq!(names, ["all", "db", "files", "projected", "registry"]);
    }

    #[test]
    fn destinations_in_the_cluster_are_found() {
        let trigger = json!({
            "metadata": { "namespace": "shop" },
            "spec": {
                "subscriber": { "ref": { "apiVersion": "v1", "kind": "Service", "name": "mail" } },
                "delivery": { "deadLetterSink": { "uri": "http://log.ops.svc.cluster.local/x" } },
            },
        });
        assert_eq!(core_services(&trigger).into_iter().collect::<Vec<_>>(), ["shop/mail"]);
        assert_eq!(cluster_urls(&trigger).len(), 1);
        let knative = json!({ "ref": { "apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "a" } });
        assert!(core_services(&knative).is_empty());
        assert!(cluster_urls(&json!({ "uri": "http://example.com/a.svc.b" })).is_empty());
    }
}
