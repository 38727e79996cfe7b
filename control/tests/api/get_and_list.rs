//! Get, list, tables, discovery.

use std::sync::Arc;

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};
use sluicegate_control::api;
use tower::ServiceExt as _;

use crate::support::{TestApiServer, WIDGETS};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

/// SRV-API-05
#[tokio::test]
async fn an_unknown_name_is_a_404_that_says_what_was_not_found() {
    let server = TestApiServer::open().await;
    let (code, refusal) = server.get(&format!("{WIDGETS}/none")).await;
    assert_eq!(code, 404);
    assert_eq!(refusal["reason"], "NotFound");
    assert_eq!(refusal["message"], r#"widgets.test.sluicegate.dev "none" not found"#);
}

/// SRV-API-06, APP-25, APP-26
#[tokio::test]
async fn a_list_is_ordered_versioned_and_narrowed_by_selectors() {
    let server = TestApiServer::open().await;
    for (name, tier) in [("b", "x"), ("a", "y"), ("c", "x")] {
        server.widget(name, &json!({ "tier": tier })).await;
    }
    let (code, list) = server.get(WIDGETS).await;
    assert_eq!((code, &list["kind"]), (200, &json!("WidgetList")));
    assert_eq!(list["metadata"]["resourceVersion"], server.store.read().revision().to_string());
    assert_eq!(names(&list), ["a", "b", "c"]);
    for (query, expected) in [
        ("labelSelector=tier%3Dx", vec!["b", "c"]),
        ("labelSelector=tier%20in%20(y),!none", vec!["a"]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        ("labelSelector=tier%3Dx&fieldSelector=metadata.name!%3Db", vec!["c"]),
    ] {
        assert_eq!(names(&server.get(&format!("{WIDGETS}?{query}")).await.1), expected, "{query}");
    }
    let (_, all) = server.get("/apis/test.sluicegate.dev/v1/widgets").await;
    assert_eq!(names(&all), ["a", "b", "c"]);
    let (_, none) = server.get("/apis/test.sluicegate.dev/v1/namespaces/other/widgets").await;
    assert_eq!(none["items"], json!([]));
}

/// APP-27: what changes between two pages is in neither.
#[tokio::test]
async fn pages_join_to_the_list_of_the_moment_of_the_first_page() {
    let server = TestApiServer::open().await;
    for name in ["a", "b", "c", "d"] {
        server.widget(name, &json!({})).await;
    }
    let (_, first) = server.get(&format!("{WIDGETS}?limit=2")).await;
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(2)));
    server.widget("bb", &json!({})).await;
    server.delete(&format!("{WIDGETS}/d")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = server.get(&format!("{WIDGETS}?limit=2&continue={token}")).await;
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert!(second["metadata"].get("continue").is_none());
    assert_eq!(server.get(&format!("{WIDGETS}?continue=junk")).await.0, 400);
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = format!("{WIDGETS}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(names(&server.get(&exact).await.1), ["a", "b", "c", "d"]);
    let (code, refusal) = server.get(&format!("{WIDGETS}?resourceVersion=999999")).await;
    assert_eq!((code, &refusal["reason"]), (504, &json!("Timeout")));
}

/// APP-36
#[tokio::test]
async fn a_table_has_the_kinds_columns_and_cells() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({})).await;
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    server.ask(http::Method::PATCH, &format!("{WIDGETS}/one/status"), &status).await;
    let (_, table) = server.get_as(WIDGETS, TABLE).await;
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    let columns: Vec<&Value> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|column| &column["name"]).collect();
    assert_eq!(columns, ["Name", "Size", "Ready", "Color", "Age"]);
    let row = &table["rows"][0];
    assert_eq!(row["cells"].as_array().unwrap()[..4], [json!("one"), json!(1), json!("True"), json!(null)]);
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    let (_, table) = server.get_as(&format!("{WIDGETS}/one?includeObject=Object"), TABLE).await;
    assert_eq!(table["rows"][0]["object"]["spec"]["size"], 1);
    let (_, table) = server.get_as(&format!("{WIDGETS}?includeObject=None"), TABLE).await;
    assert!(table["rows"][0].get("object").is_none());
    let (_, list) = server.get_as(WIDGETS, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").await;
    assert_eq!((&list["kind"], &list["items"][0]["spec"]), (&json!("PartialObjectMetadataList"), &Value::Null));
}

/// APP-17
#[tokio::test]
async fn discovery_names_groups_kinds_verbs_and_subresources() {
    let server = TestApiServer::open().await;
    assert_eq!(server.get("/api").await.1["versions"], json!(["v1"]));
    let (_, groups) = server.get("/apis").await;
    assert_eq!(groups["groups"][0]["name"], "test.sluicegate.dev");
    assert_eq!(server.get("/apis/test.sluicegate.dev").await.1["preferredVersion"]["version"], "v1");
    let (_, kinds) = server.get("/apis/test.sluicegate.dev/v1").await;
    let resources = kinds["resources"].as_array().unwrap();
    assert_eq!(
        resources[0],
        json!({
            "name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget",
            "shortNames": ["wg"], "categories": ["all"],
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        })
    );
    assert_eq!(resources[1]["name"], "widgets/status");
    assert_eq!(resources[2]["name"], "gadgets");
    assert!(!resources[2]["verbs"].as_array().unwrap().contains(&json!("create")));
    let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let (_, aggregated) = server.get_as("/apis", v2).await;
    let widgets = &aggregated["items"][0]["versions"][0]["resources"][0];
    assert_eq!((&widgets["resource"], &widgets["scope"]), (&json!("widgets"), &json!("Namespaced")));
    assert_eq!(widgets["subresources"][0]["subresource"], "status");
    let (_, core) = server.get_as("/api", v2).await;
    assert_eq!(core["items"][0]["versions"][0]["resources"][0]["resource"], "namespaces");
}

/// APP-18
#[tokio::test]
async fn openapi_and_version_can_be_read_and_hold_the_conditions() {
    let server = TestApiServer::open().await;
    assert_eq!(server.get("/version").await.1["major"], "1");
    for path in ["/healthz", "/readyz", "/livez"] {
        assert_eq!(server.get(path).await, (200, json!("ok")), "{path}");
    }
    let (_, index) = server.get("/openapi/v3").await;
    let path = "apis/test.sluicegate.dev/v1";
    let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap();
    let (code, document) = server.get(url).await;
    assert_eq!(code, 200);
    let schema = &document["components"]["schemas"]["dev.sluicegate.test.v1.Widget"];
    assert!(schema["properties"]["status"]["properties"]["conditions"].is_object(), "{schema}");
    let one = "/apis/test.sluicegate.dev/v1/namespaces/{namespace}/widgets/{name}";
    let parameters = document["paths"][one]["patch"]["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|parameter| parameter["name"] == "fieldValidation"));
    assert_eq!(server.get("/openapi/v2").await.1["swagger"], "2.0");
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    assert_eq!(server.get_as("/openapi/v2", protobuf).await.0, 200);
}

/// APP-18: documents about kinds carry a print, and a client that has one is not sent it again; under its own print
/// a document may be kept for good, and one that is gone leads to what there is now.
#[tokio::test]
async fn documents_about_kinds_are_sent_once() {
    let server = TestApiServer::real().await;
    let router = api::router(Arc::clone(&server.store), Arc::clone(&server.registry));
    let ask = async |path: &str, accept: &str, tag: &str| {
        let request = Request::get(path).header("accept", accept).header("if-none-match", tag);
        router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    };
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for (path, accept) in [
        ("/api", aggregated),
        ("/apis", aggregated),
        ("/openapi/v2", "application/json"),
        ("/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"),
        ("/openapi/v3", "application/json"),
        ("/openapi/v3/apis/serving.knative.dev/v1", "application/json"),
    ] {
        let first = ask(path, accept, "").await;
        let tag = first.headers()["etag"].to_str().unwrap().to_owned();
        assert!(first.status() == 200 && tag.starts_with('"') && tag.len() > 60, "{path} {tag}");
        assert_eq!(first.headers()["vary"], "Accept");
        let again = ask(path, accept, &tag).await;
        assert_eq!((again.status().as_u16(), &again.headers()["etag"]), (304, &first.headers()["etag"]));
    }
    let (_, index) = server.get("/openapi/v3").await;
    let url = index["paths"]["apis/serving.knative.dev/v1"]["serverRelativeURL"].as_str().unwrap();
    let kept = ask(url, "application/json", "").await;
    assert_eq!(
        (kept.status().as_u16(), &kept.headers()["cache-control"]),
        (200, &"public, immutable".parse().unwrap())
    );
    assert!(kept.headers()["expires"].to_str().unwrap().ends_with(" GMT"));
    let (path, _) = url.split_once('?').unwrap();
    let moved = ask(&format!("{path}?hash=0"), "application/json", "").await;
    assert_eq!((moved.status().as_u16(), moved.headers()["location"].to_str().unwrap()), (301, url));

    // A kind that a client defines is another document.
    let before = ask("/openapi/v3", "application/json", "").await.headers()["etag"].clone();
    let definition = json!({ "metadata": { "name": "cups.example.com" }, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": { "plural": "cups", "singular": "cup", "kind": "Cup" },
        "versions": [{ "name": "v1", "served": true, "storage": true,
            "schema": { "openAPIV3Schema": { "type": "object" } } }],
    } });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(server.ask(Method::POST, path, &definition).await.0, 201);
    assert_ne!(ask("/openapi/v3", "application/json", "").await.headers()["etag"], before);
}

/// A client that requests YAML gets it, errors too; a watch is not a document.
#[tokio::test]
async fn objects_are_written_in_yaml_for_who_asks() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({})).await;
    let ask = async |path: String, accept| match server.get_as(&path, accept).await {
        (code, Value::String(text)) => (code, serde_norway::from_str::<Value>(&text).unwrap()),
        (_, json) => panic!("{path} is JSON: {json}"),
    };
    let (code, one) = ask(format!("{WIDGETS}/one"), "application/yaml").await;
    assert_eq!((code, &one["metadata"]["name"]), (200, &json!("one")));
    let (code, list) = ask(WIDGETS.into(), "application/yaml, application/json").await;
    assert_eq!((code, &list["kind"]), (200, &json!("WidgetList")));
    let (code, refusal) = ask(format!("{WIDGETS}/two"), "application/yaml").await;
    assert_eq!((code, &refusal["reason"]), (404, &json!("NotFound")));
    let (code, refusal) = ask(format!("{WIDGETS}?watch=1"), "application/yaml").await;
    assert_eq!((code, &refusal["reason"]), (406, &json!("NotAcceptable")));
    let (_, json) = server.get_as(&format!("{WIDGETS}/one"), "application/json, application/yaml").await;
    assert_eq!(json["metadata"]["name"], "one");
}

/// APP-27: which moment a list is of is asked for by both parameters or by none.
#[tokio::test]
async fn a_match_without_a_version_to_match_is_refused_by_its_name() {
    let server = TestApiServer::open().await;
    for (query, why) in [
        ("resourceVersionMatch=Exact", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        ),
        (
            "watch=1&resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
    ] {
        let (code, refusal) = server.get(&format!("/api/v1/namespaces?{query}")).await;
        assert_eq!((code, &refusal["details"]["kind"]), (422, &json!("ListOptions")), "{refusal}");
        let cause = json!([{ "reason": "FieldValueForbidden", "field": "resourceVersionMatch",
            "message": format!("Forbidden: {why}") }]);
        assert_eq!(refusal["details"]["causes"], cause);
    }
}

/// APP-27: the remaining count is reported for all, not for some; and a page continues at its own moment.
#[tokio::test]
async fn list_without_selectors_reports_remaining_count() {
    let server = TestApiServer::open().await;
    for name in ["a", "b", "c"] {
        server.widget(name, &json!({ "tier": "x" })).await;
    }
    let all = server.get(&format!("{WIDGETS}?limit=1")).await.1;
    assert_eq!(all["metadata"]["remainingItemCount"], 2);
    let some = server.get(&format!("{WIDGETS}?limit=1&labelSelector=tier")).await.1;
    assert!(some["metadata"]["continue"].is_string() && some["metadata"]["remainingItemCount"].is_null(), "{some}");
    let token = some["metadata"]["continue"].as_str().unwrap();
    let (code, refusal) =
        server.get(&format!("{WIDGETS}?resourceVersionMatch=Exact&resourceVersion=0&continue={token}")).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("resourceVersionMatch")));
}

/// curl and browsers get one line per field, as in Kubernetes; programs get as few bytes as possible.
#[tokio::test]
async fn who_reads_by_himself_gets_lines() {
    let server = TestApiServer::open().await;
    server.widget("one", &json!({})).await;
    let router = api::router(Arc::clone(&server.store), Arc::clone(&server.registry));
    let one = format!("{WIDGETS}/one");
    for (path, agent, in_lines) in [
        (one.clone(), "", false),
        (one.clone(), "kubectl/v1.34.0", false),
        (one.clone(), "curl/8.5.0", true),
        (WIDGETS.to_owned(), "Mozilla/5.0 (X11; Linux x86_64)", true),
        ("/apis".to_owned(), "Wget/1.21", true),
        (format!("{one}?pretty=true"), "kubectl/v1.34.0", true),
        (format!("{one}?pretty=false"), "curl/8.5.0", false),
        (format!("{WIDGETS}/none"), "curl/8.5.0", true),
    ] {
        let request = Request::get(&path).header("user-agent", agent).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text.contains("\n  \"kind\": "), in_lines, "{path} {agent}: {text}");
        assert!(serde_json::from_str::<Value>(text).is_ok());
    }
}
