use serde_json::json;

use super::*;
use crate::field_errors::AdmissionError;
use crate::kind_registry::RequestContext;

fn entry(plural: &str, version: &str) -> KindEntry {
    let mut all = entries().into_iter();
    all.find(|entry| (entry.meta.plural, entry.meta.version) == (plural, version)).unwrap()
}

/// The problems that admission finds, as `FIELD: MESSAGE`.
fn refused(plural: &str, spec: Value) -> Vec<String> {
    let object = json!({ "metadata": { "name": "a" }, "spec": spec });
    match entry(plural, "v1").admit_object(object, None, &RequestContext::default()) {
        Ok(_) => Vec::new(),
        Err(AdmissionError::Invalid(problems)) => {
            problems.into_iter().map(|problem| format!("{}: {}", problem.field, problem.message)).collect()
        }
        Err(other) => vec![format!("{other:?}")],
    }
}

#[test]
fn every_definition_is_a_schema_with_a_spec() {
    for entry in entries() {
        let schema = entry.openapi_schema();
        assert!(schema["properties"]["spec"]["properties"].is_object(), "{}", entry.meta.kind);
        assert!(schema["properties"]["spec"].to_string().contains("description"), "{}", entry.meta.kind);
        assert!(!entry.definition().unwrap().schema().to_string().contains("\"description\":\""));
    }
}

#[test]
fn route_gets_upstreams_defaults() {
    let spec = json!({ "parentRefs": [{ "name": "g" }], "rules": [{ "backendRefs": [{ "name": "s", "port": 80 }] }] });
    let object = json!({ "metadata": { "name": "a" }, "spec": spec });
    let admitted = entry("httproutes", "v1").admit_object(object, None, &RequestContext::default()).unwrap();
    let rule = &admitted["spec"]["rules"][0];
    assert_eq!(rule["matches"], json!([{ "path": { "type": "PathPrefix", "value": "/" } }]));
    let backend = &rule["backendRefs"][0];
    assert_eq!((&backend["group"], &backend["kind"], &backend["weight"]), (&json!(""), &json!("Service"), &json!(1)));
    let parent = json!({ "group": GROUP, "kind": "Gateway", "name": "g" });
    assert_eq!(admitted["spec"]["parentRefs"][0], parent);
}

#[test]
fn route_beyond_the_limits_is_refused() {
    let rule = json!({ "backendRefs": [{ "name": "s", "port": 80 }] });
    let matches = |count: usize| json!([{ "matches": vec![json!({ "path": { "value": "/" } }); count] }]);
    let filter = |name: &str| json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": { "remove": [name] } });
    for (rules, wanted) in [
        (json!(vec![rule; 17]), "must have at most 16 items"),
        (matches(65), "must have at most 64 items"),
        (json!([{ "filters": [filter("a"), filter("b")] }]), "RequestHeaderModifier filter cannot be repeated"),
        (json!([{ "filters": [{ "type": "RequestRedirect" }] }]), "filter.requestRedirect must be specified"),
        (json!([{ "matches": [{ "path": { "value": "a" } }] }]), "value must be an absolute path and start with '/'"),
        (json!([{ "matches": [{ "path": { "type": "Exact", "value": "/a//b" } }] }]), "must not contain '//'"),
        (
            json!([{ "matches": [{ "headers": [{ "name": "a", "value": "1" }, { "name": "a", "value": "2" }] }] }]),
            "Duplicate value",
        ),
        (
            json!([{ "filters": [{ "type": "RequestRedirect", "requestRedirect": {} }],
                "backendRefs": [{ "name": "s", "port": 80 }] }]),
            "RequestRedirect filter must not be used together with backendRefs",
        ),
        (json!([{ "backendRefs": [{ "name": "s" }] }]), "Must have port for Service reference"),
        (
            json!([{ "timeouts": { "request": "1s", "backendRequest": "2s" } }]),
            "backendRequest timeout cannot be longer",
        ),
    ] {
        let problems = refused("httproutes", json!({ "rules": rules }));
        assert!(problems.iter().any(|problem| problem.contains(wanted)), "{wanted}: {problems:?}");
    }
}

#[test]
fn gateway_keeps_to_upstreams_rules() {
    let listener = |name: &str, protocol: &str| json!({ "name": name, "port": 80, "protocol": protocol });
    let mut with_tls = listener("a", "HTTP");
    with_tls["tls"] = json!({ "certificateRefs": [{ "name": "s" }] });
    for (listeners, wanted) in [
        (json!([listener("a", "HTTP"), listener("a", "HTTP")]), "Duplicate value"),
        (
            json!([listener("a", "HTTP"), listener("b", "HTTP")]),
            "Combination of port, protocol and hostname must be unique",
        ),
        (json!([with_tls]), "tls must not be specified for protocols ['HTTP', 'TCP', 'UDP']"),
        (json!([]), "should be at least 1 items"),
    ] {
        let problems = refused("gateways", json!({ "gatewayClassName": "sluicegate", "listeners": listeners }));
        assert!(problems.iter().any(|problem| problem.contains(wanted)), "{wanted}: {problems:?}");
    }
    let listener = json!({ "name": "a", "port": 80, "protocol": "HTTP" });
    assert_eq!(refused("gateways", json!({ "gatewayClassName": "a", "listeners": [listener] })), [""; 0]);
}

#[test]
fn beta_objects_are_stored_as_v1() {
    let beta = entry("httproutes", "v1beta1");
    let mut object = json!({ "apiVersion": "gateway.networking.k8s.io/v1beta1", "spec": { "hostnames": ["a.test"] } });
    beta.to_stored(&mut object);
    assert_eq!(object["apiVersion"], "gateway.networking.k8s.io/v1");
    assert_eq!(beta.from_stored(object)["apiVersion"], "gateway.networking.k8s.io/v1beta1");
}
