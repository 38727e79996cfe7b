//! Custom kinds.

use http::Method;
use serde_json::{Value, json};

use crate::support::TestApiServer;

pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(crate) const CRONS: &str = "/apis/example.com/v1/namespaces/default/crons";

pub(crate) fn definition() -> Value {
    json!({
        "metadata": { "name": "crons.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "crons", "kind": "Cron", "shortNames": ["ct"], "categories": ["all"] },
            "versions": [{ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "additionalPrinterColumns": [{ "name": "Cron", "type": "string", "jsonPath": ".spec.cron" }],
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "spec": { "type": "object", "required": ["cron"], "properties": {
                        "cron": { "type": "string" }, "replicas": { "type": "integer", "default": 1, "maximum": 5 } } },
                    "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                } } } }],
        },
    })
}

/// Definition and table of a kind with these columns, of one object.
async fn table_of(columns: Value, object: Value) -> Value {
    let server = TestApiServer::real().await;
    let mut definition = definition();
    let version = &mut definition["spec"]["versions"][0];
    version["additionalPrinterColumns"] = columns;
    version["schema"]["openAPIV3Schema"] = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let (code, made) = server.ask(Method::POST, DEFINITIONS, &definition).await;
    assert_eq!(code, 201, "{made}");
    let (code, made) = server.ask(Method::POST, CRONS, &object).await;
    assert_eq!(code, 201, "{made}");
    server.get_as(CRONS, "application/json;as=Table;g=meta.k8s.io;v=v1").await.1
}

/// APP-36: the columns of a client's kind: each with its type, format, priority and description, of several values
/// the first, a column Name in addition to the name, and no columns from an invalid path on.
#[tokio::test]
async fn columns_of_a_clients_kind_are_those_of_its_definition() {
    let column = |name: &str, kind: &str, path: &str| json!({ "name": name, "type": kind, "jsonPath": path });
    let mut wide = column("Size", "integer", ".spec.size");
    wide["priority"] = 1.into();
    wide["format"] = "int32".into();
    wide["description"] = "How large".into();
    let columns = json!([
        column("Name", "string", ".spec.name"),
        wide,
        column("Ready", "string", ".spec.conditions[?(@.type=='Ready')].status"),
        column("First", "string", ".spec.list[*]"),
        column("Map", "string", ".spec.map"),
        column("On", "boolean", ".spec.on"),
        column("None", "number", ".spec.none"),
        column("Bad", "string", ".spec.list["),
        column("Behind", "string", ".spec.name"),
    ]);
    let object = cron(
        "a",
        json!({ "name": "own", "size": 3, "list": ["x", "y"], "map": { "b": 1 }, "on": true,
            "conditions": [{ "type": "Other", "status": "False" }, { "type": "Ready", "status": "True" }] }),
    );
    let table = table_of(columns, object).await;
    let reported = table["columnDefinitions"].as_array().unwrap();
    let names: Vec<&str> = reported.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Name", "Name", "Size", "Ready", "First", "Map", "On", "None"]);
    let size =
        json!({ "name": "Size", "type": "integer", "format": "int32", "priority": 1, "description": "How large" });
    assert_eq!(reported[2], size);
    assert_eq!(
        reported[3]["description"],
        "Custom resource definition column (in JSONPath format): .spec.conditions[?(@.type=='Ready')].status"
    );
    let cells = json!(["a", "own", 3, "True", "x", "{\"b\":1}", true, null]);
    assert_eq!(table["rows"][0]["cells"], cells);
}

/// APP-36: what Kubernetes refuses of a column is refused with the field and its words.
#[tokio::test]
async fn a_column_that_kubernetes_refuses_is_refused() {
    let server = TestApiServer::real().await;
    for (column, field, reported) in [
        (
            json!({ "name": "A", "type": "string", "jsonPath": "spec.a" }),
            "JSONPath",
            "must be a simple json path starting with .",
        ),
        (
            json!({ "name": "A", "type": "string", "jsonPath": ".a", "format": "int9" }),
            "format",
            "must be one of byte,date,",
        ),
        (json!({ "name": "A", "type": "text", "jsonPath": ".a" }), "type", "must be one of boolean,date,"),
        (json!({ "name": "A", "jsonPath": ".a" }), "type", "Required value: must be one of boolean,date,"),
    ] {
        let mut definition = definition();
        definition["spec"]["versions"][0]["additionalPrinterColumns"] = json!([column]);
        let (code, refusal) = server.ask(Method::POST, DEFINITIONS, &definition).await;
        let cause = &refusal["details"]["causes"][0];
        let at = format!("spec.versions[0].additionalPrinterColumns[0].{field}");
        assert_eq!((code, &cause["field"]), (422, &json!(at)), "{refusal}");
        assert!(cause["message"].as_str().unwrap().contains(reported), "{refusal}");
    }
}

pub(crate) fn cron(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "example.com/v1", "kind": "Cron", "metadata": { "name": name }, "spec": spec })
}

/// APP-35, APP-36: a defined kind is served at once: discovered, checked, filled in, pruned, with a status of its
/// own and its columns; and it survives as its definition does.
#[tokio::test]
async fn a_kind_that_a_client_defines_is_served_like_any_other() {
    let server = TestApiServer::real().await;
    assert_eq!(server.get(CRONS).await.0, 404);
    let (code, made) = server.ask(Method::POST, DEFINITIONS, &definition()).await;
    assert_eq!(code, 201, "{made}");
    let established = made["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Established");
    assert_eq!(established.unwrap()["status"], "True");

    let (_, list) = server.get("/apis/example.com/v1").await;
    assert_eq!((&list["resources"][0]["kind"], &list["resources"][0]["shortNames"]), (&json!("Cron"), &json!(["ct"])));
    let (_, openapi) = server.get("/openapi/v3/apis/example.com/v1").await;
    assert!(openapi.to_string().contains("replicas"), "{openapi}");

    let object = cron("a", json!({ "cron": "* * * * *", "typo": 1 }));
    let (code, stored) = server.ask(Method::POST, CRONS, &object).await;
    assert_eq!((code, &stored["spec"]), (201, &json!({ "cron": "* * * * *", "replicas": 1 })));
    assert_eq!(stored["metadata"]["generation"], 1);
    let strict = format!("{CRONS}?fieldValidation=Strict");
    let (code, refusal) = server.ask(Method::POST, &strict, &cron("b", json!({ "cron": "x", "typo": 1 }))).await;
    assert!(code == 400 && refusal["message"].as_str().unwrap().contains("spec.typo"), "{refusal}");
    for (spec, field) in [(json!({}), "spec.cron"), (json!({ "cron": "x", "replicas": 9 }), "spec.replicas")] {
        let (code, refusal) = server.ask(Method::POST, CRONS, &cron("b", spec)).await;
        assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!(field)), "{refusal}");
    }

    let mut reported = stored.clone();
    reported["status"] = json!({ "address": { "url": "http://a" } });
    let (code, reported) = server.ask(Method::PUT, &format!("{CRONS}/a/status"), &reported).await;
    assert_eq!((code, &reported["status"]["address"]["url"]), (200, &json!("http://a")));
    assert_eq!(reported["metadata"]["generation"], 1, "a status is no change of the spec");
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let (_, rows) = server.get_as(CRONS, table).await;
    assert_eq!(rows["rows"][0]["cells"], json!(["a", "* * * * *"]));
}

/// A change of the definition holds at once, and what was stored goes with it.
#[tokio::test]
async fn a_definition_changes_and_goes_with_its_objects() {
    let server = TestApiServer::real().await;
    server.ask(Method::POST, DEFINITIONS, &definition()).await;
    server.ask(Method::POST, CRONS, &cron("a", json!({ "cron": "x" }))).await;
    let path = format!("{DEFINITIONS}/crons.example.com");
    let mut wider = server.get(&path).await.1;
    wider["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"]["maximum"] =
        json!(10);
    let (code, said) = server.ask(Method::PUT, &path, &wider).await;
    assert_eq!(code, 200, "{said}");
    assert_eq!(server.ask(Method::POST, CRONS, &cron("b", json!({ "cron": "x", "replicas": 9 }))).await.0, 201);

    sluicegate_control::api::seed(&server.store, &server.registry).await.unwrap();
    assert_eq!(server.get(&path).await.0, 200, "a restart keeps it");
    assert_eq!(server.delete(&path).await.0, 200);
    assert_eq!(server.get(CRONS).await.0, 404);
    server.ask(Method::POST, DEFINITIONS, &definition()).await;
    assert_eq!(server.get(CRONS).await.1["items"], json!([]), "its objects went with it");
}

/// What the appliance is made of is not redefined, and a definition that makes no sense is refused.
#[tokio::test]
async fn our_own_kinds_are_not_redefined() {
    let server = TestApiServer::real().await;
    let own = format!("{DEFINITIONS}/brokers.eventing.knative.dev");
    assert_eq!(server.delete(&own).await.0, 403);
    assert_eq!(server.ask(Method::PATCH, &own, &json!({ "spec": { "scope": "Cluster" } })).await.0, 403);
    let mut bad = definition();
    bad["spec"]["scope"] = json!("Everywhere");
    let (code, refusal) = server.ask(Method::POST, DEFINITIONS, &bad).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("spec.scope")), "{refusal}");
}

/// APP-36: a schema is the status' schema too: what it does not name is dropped, what it forbids is refused.
#[tokio::test]
async fn a_status_keeps_to_the_schema() {
    let server = TestApiServer::real().await;
    let mut definition = definition();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] =
        json!({ "type": "object", "properties": { "phase": { "type": "string" } } });
    server.ask(Method::POST, DEFINITIONS, &definition).await;
    server.ask(Method::POST, CRONS, &cron("a", json!({ "cron": "x" }))).await;
    let path = format!("{CRONS}/a/status");
    let status = json!({ "status": { "phase": "on", "typo": 1 } });
    let (code, stored) = server.ask(Method::PATCH, &path, &status).await;
    assert_eq!((code, &stored["status"]), (200, &json!({ "phase": "on" })));
    let (code, refusal) = server.ask(Method::PATCH, &path, &json!({ "status": { "phase": 1 } })).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("status.phase")));
}

/// The definition with what its objects can be scaled, selected and judged by.
fn wide_definition() -> Value {
    let mut definition = definition();
    let version = &mut definition["spec"]["versions"][0];
    version["subresources"]["scale"] = json!({ "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector" });
    version["selectableFields"] = json!([{ "jsonPath": ".spec.cron" }]);
    let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["parts"] = json!({ "type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"], "items": { "type": "object", "required": ["name"], "properties": {
            "name": { "type": "string" }, "n": { "type": "integer" } } } });
    spec["x-kubernetes-validations"] = json!([
        { "rule": "self.replicas != 4", "message": "four is no number of replicas" },
        { "rule": "self.cron == oldSelf.cron", "message": "cron stays", "fieldPath": ".cron" },
    ]);
    definition
}

/// APP-36: `kubectl scale` and autoscalers work on a kind whose definition says where it keeps its number.
#[tokio::test]
async fn a_kind_that_says_how_is_scaled() {
    let server = TestApiServer::real().await;
    let (code, made) = server.ask(Method::POST, DEFINITIONS, &wide_definition()).await;
    assert_eq!(code, 201, "{made}");
    let (_, list) = server.get("/apis/example.com/v1").await;
    let scale = list["resources"].as_array().unwrap().iter().find(|one| one["name"] == "crons/scale").unwrap();
    assert_eq!((&scale["group"], &scale["kind"]), (&json!("autoscaling"), &json!("Scale")));
    server.ask(Method::POST, CRONS, &cron("a", json!({ "cron": "x", "replicas": 2 }))).await;
    let path = format!("{CRONS}/a/scale");
    let (code, scale) = server.get(&path).await;
    assert_eq!((code, &scale["spec"], &scale["status"]), (200, &json!({ "replicas": 2 }), &json!({ "replicas": 0 })));
    let (code, more) = server.ask(Method::PATCH, &path, &json!({ "spec": { "replicas": 3 } })).await;
    assert_eq!((code, &more["spec"]["replicas"]), (200, &json!(3)), "{more}");
    assert_eq!(server.get(&format!("{CRONS}/a")).await.1["spec"]["replicas"], 3);
    let applied = server.ask_as(Method::PATCH, &path, "application/apply-patch+yaml", scale.to_string()).await;
    let (code, refusal) = (applied.0, applied.1["message"].to_string());
    assert!(code == 415 && refusal.contains("merge-patch") && !refusal.contains("apply-patch"), "{refusal}");
    let (code, refusal) = server.ask(Method::PUT, &path, &scale).await;
    assert_eq!((code, &refusal["reason"]), (409, &json!("Conflict")), "an older version: {refusal}");
    for (number, field) in [(-1, "spec.replicas"), (9, "spec.replicas"), (4, "spec")] {
        let mut wanted = json!({ "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": { "name": "a" } });
        wanted["spec"] = json!({ "replicas": number });
        let (code, refusal) = server.ask(Method::PUT, &path, &wanted).await;
        assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!(field)), "{refusal}");
    }
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    assert_eq!(server.get_as(&path, table).await.1["rows"][0]["cells"][1], 3);
    let owners = server.get(&format!("{CRONS}/a")).await.1["metadata"]["managedFields"].to_string();
    assert!(owners.contains(r#""subresource":"scale""#), "{owners}");
    assert_eq!(server.get(&format!("{CRONS}/none/scale")).await.0, 404);
    assert_eq!(server.get("/api/v1/namespaces/default/configmaps/a/scale").await.0, 404);
}

/// APP-36: the definition's own rules, the fields that objects are selected by, and the keys of its lists hold.
#[tokio::test]
async fn rules_selectable_fields_and_keys_of_a_definition_hold() {
    let server = TestApiServer::real().await;
    server.ask(Method::POST, DEFINITIONS, &wide_definition()).await;
    let (code, refusal) = server.ask(Method::POST, CRONS, &cron("a", json!({ "cron": "x", "replicas": 4 }))).await;
    let why = r#"Cron.example.com "a" is invalid: spec: Invalid value: "object": four is no number of replicas"#;
    assert_eq!((code, &refusal["message"]), (422, &json!(why)));
    for (name, at) in [("a", "x"), ("b", "y")] {
        assert_eq!(server.ask(Method::POST, CRONS, &cron(name, json!({ "cron": at }))).await.0, 201);
    }
    let path = format!("{CRONS}/a");
    let (code, refusal) = server.ask(Method::PATCH, &path, &json!({ "spec": { "cron": "z" } })).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("spec.cron")), "{refusal}");
    let (_, found) = server.get(&format!("{CRONS}?fieldSelector=spec.cron%3Dy")).await;
    assert_eq!((found["items"].as_array().unwrap().len(), &found["items"][0]["metadata"]["name"]), (1, &json!("b")));
    assert_eq!(server.get(&format!("{CRONS}?fieldSelector=spec.replicas%3D1")).await.0, 400);

    let apply = |manager: &str, parts: Value| {
        let body = cron("a", json!({ "parts": parts })).to_string();
        let path = format!("{path}?fieldManager={manager}");
        let server = &server;
        async move { server.ask_as(Method::PATCH, &path, "application/apply-patch+yaml", body).await }
    };
    let (code, one) = apply("one", json!([{ "name": "p", "n": 1 }])).await;
    assert_eq!(code, 200, "{one}");
    let (code, both) = apply("two", json!([{ "name": "q", "n": 2 }])).await;
    assert_eq!((code, both["spec"]["parts"].as_array().unwrap().len()), (200, 2), "{both}");
    let (code, conflict) = apply("two", json!([{ "name": "p", "n": 7 }])).await;
    assert_eq!((code, &conflict["reason"]), (409, &json!("Conflict")), "{conflict}");
    let (_, left) = apply("one", json!([])).await;
    assert_eq!(left["spec"]["parts"], json!([{ "name": "q", "n": 2 }]));

    let mut wrong = wide_definition();
    wrong["metadata"]["name"] = json!("others.example.com");
    wrong["spec"]["names"] = json!({ "plural": "others", "kind": "Other" });
    wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        json!([{ "rule": "frob(self)" }]);
    let (code, refusal) = server.ask(Method::POST, DEFINITIONS, &wrong).await;
    assert!(code == 422 && refusal["message"].as_str().unwrap().contains("undeclared reference"), "{refusal}");
}

/// APP-18: the schema of a definition's schema goes by Kubernetes' name and contains itself, and where any value may
/// stand it has no type: Terraform's provider makes types of it, and can make one of no other.
#[tokio::test]
async fn a_schema_in_a_definition_is_described_by_reference() {
    let server = TestApiServer::real().await;
    const NAME: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    for (path, at, schemas) in [
        ("/openapi/v2", "#/definitions/", "/definitions"),
        ("/openapi/v3/apis/apiextensions.k8s.io/v1", "#/components/schemas/", "/components/schemas"),
    ] {
        let (_, document) = server.get(path).await;
        let schemas = document.pointer(schemas).unwrap();
        let definition = &schemas["io.k8s.apiextensions.v1.CustomResourceDefinition"];
        let version = &definition["properties"]["spec"]["properties"]["versions"]["items"]["properties"];
        let wanted = json!(format!("{at}{NAME}"));
        let refers = |field: &Value| field["$ref"] == wanted || field["allOf"][0]["$ref"] == wanted;
        assert!(refers(&version["schema"]["properties"]["openAPIV3Schema"]), "{path}");
        let inside = &schemas[NAME]["properties"];
        assert!(refers(&inside["properties"]["additionalProperties"]), "{path}");
        assert!(refers(&inside["not"]) && refers(&inside["anyOf"]["items"]), "{path}");
        assert_eq!((&inside["default"]["type"], &inside["maximum"]["type"]), (&Value::Null, &json!("number")));
    }
}

/// A namespace on an object that belongs to none is dropped, as Argo CD relies on when it replaces a
/// definition; on one that belongs to another namespace it is refused.
#[tokio::test]
async fn a_namespace_that_means_nothing_is_dropped() {
    let server = TestApiServer::real().await;
    let mut wanted = definition();
    wanted["metadata"]["namespace"] = "default".into();
    let (code, mut made) = server.ask(Method::POST, DEFINITIONS, &wanted).await;
    assert_eq!((code, &made["metadata"]["namespace"]), (201, &Value::Null), "{made}");
    made["metadata"]["namespace"] = "default".into();
    made["spec"]["names"]["shortNames"] = json!(["cx"]);
    let (code, changed) = server.ask(Method::PUT, &format!("{DEFINITIONS}/crons.example.com"), &made).await;
    assert_eq!((code, &changed["metadata"]["namespace"]), (200, &Value::Null), "{changed}");

    let mut foreign = cron("a", json!({ "cron": "* * * * *" }));
    foreign["metadata"]["namespace"] = "elsewhere".into();
    let (code, refusal) = server.ask(Method::POST, CRONS, &foreign).await;
    assert!(code == 400 && refusal["message"].as_str().unwrap().contains("does not match the namespace"), "{refusal}");
}
