//! What operators and clients can read about source kinds before an object of them exists.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use crate::support::TestApiServer;

const SOURCES: &str = "labelSelector=duck.knative.dev%2Fsource%3Dtrue";

/// SRC-04, SRC-08, SRC-09, SRC-10, SRC-13, SRC-14, SRC-15, SRC-21, SRC-22, SRC-23, SRC-25: the definition of each source kind has the
/// columns and the schema that all sources share, and says in its registry which events come.
#[tokio::test]
async fn each_definition_says_what_sources_have_in_common() {
    let server = TestApiServer::real().await;
    let (_, all) = server.get(&format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions?{SOURCES}")).await;
    let all = all["items"].as_array().unwrap();
    assert_eq!(all.len(), 10);
    for definition in all {
        let name = &definition["metadata"]["name"];
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let columns = version["additionalPrinterColumns"].as_array().unwrap();
            for (column, path, kind) in [
                ("Ready", ".status.conditions[?(@.type==\"Ready\")].status", "string"),
                ("Reason", ".status.conditions[?(@.type==\"Ready\")].reason", "string"),
                ("Age", ".metadata.creationTimestamp", "date"),
            ] {
                let found = columns.iter().find(|one| one["name"] == column).unwrap();
                assert_eq!((&found["jsonPath"], &found["type"]), (&json!(path), &json!(kind)), "{name}");
            }
            let object = &version["schema"]["openAPIV3Schema"]["properties"];
            let conditions = &object["status"]["properties"]["conditions"];
            assert_eq!(conditions["type"], "array", "{name}");
            assert_eq!(conditions["items"]["required"], json!(["type", "status"]), "{name}");
            for field in ["type", "status", "severity", "lastTransitionTime", "reason", "message"] {
                assert_eq!(conditions["items"]["properties"][field]["type"], "string", "{name} {field}");
            }
            assert_eq!(object["status"]["properties"]["sinkUri"]["type"], "string", "{name}");
            let spec = &object["spec"]["properties"];
            assert_eq!(spec["sink"]["type"], "object", "{name}");
            assert_eq!(spec["ceOverrides"]["properties"]["extensions"]["type"], "object", "{name}");
        }
        let registry = definition["metadata"]["annotations"]["registry.knative.dev/eventTypes"].as_str();
        let types: Vec<Value> = registry.map(|text| serde_json::from_str(text).unwrap()).unwrap_or_default();
        // What these send is the choice of their users.
        let of_users = [
            "adaptersources.adapters.sluicegate.dev",
            "containersources.sources.knative.dev",
            "sinkbindings.sources.knative.dev",
        ];
        assert_eq!(types.is_empty(), of_users.iter().any(|one| name == one), "{name}");
        for entry in &types {
            assert!(entry["type"].as_str().is_some_and(|kind| kind.starts_with("dev.knative.")), "{entry}");
            assert!(entry["description"].is_string(), "{entry}");
        }
    }
    let path = "/apis/sources.knative.dev/v1/namespaces/default/pingsources";
    let (code, answer) = server.ask(Method::POST, path, &json!({ "metadata": { "name": "a" }, "spec": {} })).await;
    assert!(code == 422 && answer["message"].as_str().unwrap().contains("spec.sink"), "{answer}");
}

/// SRC-26, SRC-27: a user who may read all sources gets each kind's rights by their label.
#[tokio::test]
async fn source_kinds_are_readable_by_the_role_that_gathers_them() {
    let server = TestApiServer::real().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let (_, gathers) = server.get(&format!("{roles}/source-observer")).await;
    let selectors = &gathers["aggregationRule"]["clusterRoleSelectors"];
    assert_eq!(*selectors, json!([{ "matchLabels": { "duck.knative.dev/source": "true" } }]));
    let (_, gathered) = server.get(&format!("{roles}?{SOURCES}")).await;
    let rules = gathered["items"].as_array().unwrap().iter().flat_map(|role| role["rules"].as_array().unwrap());
    let rules: Vec<&Value> = rules.collect();
    let (_, all) = server.get(&format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions?{SOURCES}")).await;
    for definition in all["items"].as_array().unwrap() {
        let plural = &definition["spec"]["names"]["plural"];
        let covers = |rule: &&&Value| rule["resources"].as_array().unwrap().contains(plural);
        let verbs = &rules.iter().find(covers).unwrap()["verbs"];
        assert_eq!(*verbs, json!(["get", "list", "watch"]), "{plural}");
    }
}

/// What every source has, and all that a reader of the duck type knows.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct DuckSource {
    spec: DuckSpec,
    status: DuckStatus,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct DuckSpec {
    sink: DuckSink,
    ce_overrides: DuckOverrides,
}

#[derive(Debug, serde::Deserialize)]
struct DuckSink {
    uri: String,
}

#[derive(Debug, serde::Deserialize)]
struct DuckOverrides {
    extensions: BTreeMap<String, String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct DuckStatus {
    observed_generation: i64,
    sink_uri: String,
    conditions: Vec<BTreeMap<String, String>>,
    ce_attributes: Vec<BTreeMap<String, String>>,
}

/// SRC-28: objects of each kind are read as sources, whatever else they have.
#[tokio::test]
async fn a_reader_of_the_duck_type_understands_each_kind() {
    let server = TestApiServer::real().await;
    let owner = json!({ "apiVersion": "v1", "kind": "Service", "name": "a" });
    let pod = json!({ "spec": { "containers": [{ "image": "hello", "name": "c" }] } });
    for (plural, own) in [
        ("pingsources", json!({ "schedule": "* * * * *", "data": "{}" })),
        ("sinkbindings", json!({ "subject": owner })),
        ("containersources", json!({ "template": pod })),
        ("apiserversources", json!({ "resources": [{ "apiVersion": "v1", "kind": "Event" }] })),
    ] {
        let mut spec = own;
        spec["sink"] = json!({ "uri": "http://sink.example.com/" });
        spec["ceOverrides"] = json!({ "extensions": { "shop": "two" } });
        let path = format!("/apis/sources.knative.dev/v1/namespaces/default/{plural}");
        let (code, mut made) =
            server.ask(Method::POST, &path, &json!({ "metadata": { "name": "a" }, "spec": spec })).await;
        assert_eq!(code, 201, "{made}");
        made["status"] = json!({
            "observedGeneration": 1,
            "sinkUri": "http://sink.example.com/",
            "conditions": [{ "type": "Ready", "status": "True" }],
            "ceAttributes": [{ "type": "t", "source": "/s" }],
        });
        let (code, response) = server.ask(Method::PUT, &format!("{path}/a/status"), &made).await;
        assert_eq!(code, 200, "{response}");

        let (_, read) = server.get(&format!("{path}/a")).await;
        let DuckSource { spec, status } = serde_json::from_value(read).unwrap();
        assert_eq!((&*spec.sink.uri, &*status.sink_uri), ("http://sink.example.com/", &*spec.sink.uri));
        assert_eq!(spec.ce_overrides.extensions["shop"], "two", "{plural}");
        assert_eq!(status.observed_generation, 1, "{plural}");
        assert_eq!((&*status.conditions[0]["type"], &*status.conditions[0]["status"]), ("Ready", "True"));
        assert_eq!(status.ce_attributes[0]["source"], "/s", "{plural}");
    }
}
