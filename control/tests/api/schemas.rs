//! The published schemas: OpenAPI, definitions, and unknown fields.

use axum::body::Body;
use http::{Method, Request, header};
use serde_json::{Value, json};
use sluicegate_control::api;

use crate::support::{MAPS, TestApiServer, WIDGETS};

const KSVCS: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Code, warnings and document of a POST.
async fn post(server: &TestApiServer, path: &str, media: &str, body: impl Into<Body>) -> (u16, Vec<String>, Value) {
    let request = Request::post(path).header(header::CONTENT_TYPE, media).body(body.into()).unwrap();
    let response = server.send(request).await;
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|one| one.to_str().unwrap().to_owned()).collect();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, warnings, serde_json::from_slice(&body).unwrap())
}

fn ksvc(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "template": { "spec": {
        "containers": [{ "image": "hello" }] } } } })
}

/// COND-02: every field of a condition is described, for every kind with a status, in both documents.
#[tokio::test]
async fn the_documents_describe_all_fields_of_a_condition() {
    let server = TestApiServer::real().await;
    let (_, serving) = server.get("/openapi/v3/apis/serving.knative.dev/v1").await;
    let (_, eventing) = server.get("/openapi/v3/apis/eventing.knative.dev/v1").await;
    let (_, old) = server.get("/openapi/v2").await;
    for (schemas, kind) in [
        (&serving["components"]["schemas"], "dev.knative.serving.v1.Service"),
        (&serving["components"]["schemas"], "dev.knative.serving.v1.Revision"),
        (&eventing["components"]["schemas"], "dev.knative.eventing.v1.Trigger"),
        (&old["definitions"], "dev.knative.eventing.v1.Broker"),
    ] {
        let condition = &schemas[kind]["properties"]["status"]["properties"]["conditions"]["items"];
        for field in ["type", "status", "reason", "message", "severity", "lastTransitionTime"] {
            let described = &condition["properties"][field];
            assert_eq!(described["type"], "string", "{kind} {field}");
            assert!(described["description"].is_string(), "{kind} {field}");
        }
        assert_eq!(condition["properties"]["lastTransitionTime"]["format"], "date-time");
    }
}

#[tokio::test]
async fn the_schema_follows_the_types_down_to_the_last_field() {
    let server = TestApiServer::real().await;
    let (_, serving) = server.get("/openapi/v3/apis/serving.knative.dev/v1").await;
    let service = &serving["components"]["schemas"]["dev.knative.serving.v1.Service"];
    let at = |pointer: &str| service.pointer(pointer).unwrap_or(&Value::Null).clone();
    assert_eq!(at("/properties/spec/properties/traffic/items/properties/percent/format"), "int64");
    assert_eq!(
        at("/properties/metadata/allOf/0/$ref"),
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    let pod = "/properties/spec/properties/template/properties/spec/properties";
    let container = format!("{pod}/containers/items/properties");
    assert_eq!(at(&format!("{container}/env/items/properties/name/type")), "string");
    assert_eq!(at(&format!("{container}/lifecycle")), Value::Null);
    assert_eq!(at(&format!("{pod}/volumes/items/properties/hostPath")), Value::Null);
}

/// AMB-01: serving kinds drop what they do not know; the client hears of it as it asked to.
#[tokio::test]
async fn an_unknown_field_is_warned_of_refused_or_ignored_as_asked() {
    let server = TestApiServer::real().await;
    let mut service = ksvc("one");
    service["spec"]["foo"] = 1.into();
    service["spec"]["template"]["spec"]["containers"][0]["bar"] = 2.into();
    let body = service.to_string();
    let reported =
        [r#"299 - "unknown field \"spec.foo\"""#, r#"299 - "unknown field \"spec.template.spec.containers[0].bar\"""#];
    for (query, code, mut warnings) in [
        ("?fieldValidation=Strict&dryRun=All", 400, vec![]),
        ("?fieldValidation=Warn&dryRun=All", 201, reported.to_vec()),
        ("?fieldValidation=Ignore&dryRun=All", 201, vec![]),
        ("", 201, reported.to_vec()),
    ] {
        let (found, mut said, answer) =
            post(&server, &format!("{KSVCS}{query}"), "application/json", body.clone()).await;
        said.sort();
        warnings.sort_unstable();
        assert_eq!((found, said), (code, warnings.into_iter().map(String::from).collect()), "{query}: {answer}");
        if code == 400 {
            let message = answer["message"].as_str().unwrap();
            assert!(
                message.starts_with(
                    r#"Service in version "v1" cannot be handled as a Service: strict decoding error: unknown field "#
                ),
                "{message}"
            );
            assert_eq!(answer["reason"], "BadRequest");
        } else {
            assert!(answer["spec"].get("foo").is_none(), "{answer}");
        }
    }
    let patch = json!({ "spec": { "foo": 1 } });
    let path = format!("{KSVCS}/one?fieldValidation=Strict");
    let (code, refusal) = server.ask(Method::PATCH, &path, &patch).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("patch")), "{refusal}");
    assert!(refusal["message"].as_str().unwrap().contains(r#"unknown field "spec.foo""#), "{refusal}");
}

#[tokio::test]
async fn duplicate_field_is_reported_in_json_and_yaml() {
    let server = TestApiServer::open().await;
    let path = format!("{MAPS}?fieldValidation=Strict");
    let text = r#"{"metadata": {"name": "a"}, "data": {"k": "1", "k": "2"}}"#;
    let (code, _, refusal) = post(&server, &path, "application/json", text).await;
    assert_eq!(code, 400, "{refusal}");
    assert!(refusal["message"].as_str().unwrap().ends_with(r#"duplicate field "data.k""#), "{refusal}");
    let text = "metadata:\n  name: a\nspec:\n  size: 1\n  size: 2\n";
    let (code, warnings, _) = post(&server, WIDGETS, "application/yaml", text).await;
    assert_eq!((code, warnings), (201, vec![r#"299 - "duplicate field \"spec.size\"""#.to_owned()]));
}

/// APP-35: the kinds' definitions are found by label, with columns and schema, and are established.
#[tokio::test]
async fn definitions_are_listed_by_what_their_kinds_can_be() {
    let server = TestApiServer::real().await;
    let (_, list) = server.get(&format!("{CRDS}?labelSelector=duck.knative.dev/addressable%3Dtrue")).await;
    let items = list["items"].as_array().unwrap();
    let found: Vec<_> = items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    for name in ["services.serving.knative.dev", "routes.serving.knative.dev", "brokers.eventing.knative.dev"] {
        assert!(found.contains(&name), "{found:?}");
    }
    assert!(!found.contains(&"triggers.eventing.knative.dev"));

    let (code, broker) = server.get(&format!("{CRDS}/brokers.eventing.knative.dev")).await;
    assert_eq!(code, 200);
    assert_eq!(broker["spec"]["names"]["categories"], json!(["all", "knative", "eventing"]));
    let version = &broker["spec"]["versions"][0];
    let columns = version["additionalPrinterColumns"].as_array().unwrap();
    let names: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["URL", "Age", "Ready", "Reason", "Class"]);
    assert_eq!(columns[4]["priority"], 1);
    let schema = &version["schema"]["openAPIV3Schema"];
    assert_eq!(schema["properties"]["spec"]["properties"]["delivery"]["properties"]["retry"]["type"], "integer");
    let conditions = broker["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True"));
    assert!(server.get(&format!("{CRDS}/configmaps")).await.0 == 404);
}

#[tokio::test]
async fn our_definitions_are_not_written_by_clients_nor_again_at_a_restart() {
    let server = TestApiServer::real().await;
    let (code, _) = server.delete(&format!("{CRDS}/brokers.eventing.knative.dev")).await;
    assert_eq!(code, 403);
    let (code, _) = server.ask(Method::POST, CRDS, &json!({ "metadata": { "name": "a.example.com" } })).await;
    assert_eq!(code, 422);
    let revision = server.store.read().revision();
    api::seed(&server.store, &server.registry).await.unwrap();
    assert_eq!(server.store.read().revision(), revision);
}

/// `kn` up to 1.16 knows the version before, and what it writes is the same object.
#[tokio::test]
async fn a_ping_source_is_one_object_in_both_versions() {
    let server = TestApiServer::real().await;
    let path = |version: &str| format!("/apis/sources.knative.dev/{version}/namespaces/default/pingsources");
    let ping = json!({ "apiVersion": "sources.knative.dev/v1beta2", "kind": "PingSource", "metadata": { "name": "p" },
        "spec": { "schedule": "1 * * * *", "data": "x", "sink": { "uri": "http://sink.example.com" } } });
    let (code, warnings, made) = post(&server, &path("v1beta2"), "application/json", ping.to_string()).await;
    assert_eq!((code, &made["apiVersion"]), (201, &json!("sources.knative.dev/v1beta2")), "{made}");
    assert!(warnings.iter().any(|warning| warning.contains("v1beta2 PingSource is deprecated")), "{warnings:?}");
    let (_, new) = server.get(&format!("{}/p", path("v1"))).await;
    assert_eq!((&new["apiVersion"], &new["spec"]), (&json!("sources.knative.dev/v1"), &made["spec"]));
    let (_, group) = server.get("/apis/sources.knative.dev").await;
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let (_, definition) = server.get(&format!("{CRDS}/pingsources.sources.knative.dev")).await;
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let stored: Vec<_> = versions.iter().map(|one| (&one["name"], &one["storage"])).collect();
    assert_eq!(stored, [(&json!("v1"), &json!(true)), (&json!("v1beta2"), &json!(false))]);
    assert_eq!(versions[1]["deprecated"], true);
}

/// Upstream's definition says the same: the version goes, and the newest shows no schema.
#[tokio::test]
async fn the_first_version_of_event_types_is_deprecated() {
    let server = TestApiServer::real().await;
    let (_, definition) = server.get(&format!("{CRDS}/eventtypes.eventing.knative.dev")).await;
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let version = |name: &str| versions.iter().find(|one| one["name"] == name).unwrap();
    let is_deprecated = |name: &str| version(name)["deprecated"] == true;
    assert_eq!(["v1beta1", "v1beta2", "v1beta3"].map(is_deprecated), [true, false, false]);
    let columns = |name: &str| version(name)["additionalPrinterColumns"].to_string();
    assert_eq!(["v1beta2", "v1beta3"].map(|name| columns(name).contains("Schema")), [true, false]);
    let path = "/apis/eventing.knative.dev/v1beta1/namespaces/default/eventtypes";
    let response = server.send(Request::get(path).body(Body::empty()).unwrap()).await;
    let reported = response.headers()["warning"].to_str().unwrap();
    assert!(reported.contains("v1beta1 EventType is deprecated"), "{reported}");
}

/// APP-18: readers of OpenAPI that are stricter than kubectl give up on `required: null`.
#[tokio::test]
async fn what_a_schema_requires_is_a_list_or_nothing() {
    let server = TestApiServer::real().await;
    let (_, index) = server.get("/openapi/v3").await;
    for path in index["paths"].as_object().unwrap().values() {
        let (_, document) = server.get(path["serverRelativeURL"].as_str().unwrap()).await;
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            assert!(schema.get("required").is_none_or(Value::is_array), "{name}");
        }
    }
}
