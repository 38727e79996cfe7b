//! Kinds that clients define.

use http::Method;
use serde_json::{Value, json};

use crate::support::House;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRONS: &str = "/apis/example.com/v1/namespaces/default/crons";

fn definition() -> Value {
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

fn cron(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "example.com/v1", "kind": "Cron", "metadata": { "name": name }, "spec": spec })
}

/// APP-35, APP-36: a defined kind is served at once: discovered, checked, filled in, pruned, with a status of its
/// own and its columns; and it survives as its definition does.
#[tokio::test]
async fn a_kind_that_a_client_defines_is_served_like_any_other() {
    let house = House::real().await;
    assert_eq!(house.get(CRONS).await.0, 404);
    let (code, made) = house.ask(Method::POST, DEFINITIONS, &definition()).await;
    assert_eq!(code, 201, "{made}");
    let established =
        made["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Established");
    assert_eq!(established.unwrap()["status"], "True");

    let (_, list) = house.get("/apis/example.com/v1").await;
    assert_eq!(
        (&list["resources"][0]["kind"], &list["resources"][0]["shortNames"]),
        (&json!("Cron"), &json!(["ct"]))
    );
    let (_, openapi) = house.get("/openapi/v3/apis/example.com/v1").await;
    assert!(openapi.to_string().contains("replicas"), "{openapi}");

    let object = cron("a", json!({ "cron": "* * * * *", "typo": 1 }));
    let (code, stored) = house.ask(Method::POST, CRONS, &object).await;
    assert_eq!((code, &stored["spec"]), (201, &json!({ "cron": "* * * * *", "replicas": 1 })));
    assert_eq!(stored["metadata"]["generation"], 1);
    let strict = format!("{CRONS}?fieldValidation=Strict");
    let (code, refusal) =
        house.ask(Method::POST, &strict, &cron("b", json!({ "cron": "x", "typo": 1 }))).await;
    assert!(code == 400 && refusal["message"].as_str().unwrap().contains("spec.typo"), "{refusal}");
    for (spec, field) in [(json!({}), "spec.cron"), (json!({ "cron": "x", "replicas": 9 }), "spec.replicas")]
    {
        let (code, refusal) = house.ask(Method::POST, CRONS, &cron("b", spec)).await;
        assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!(field)), "{refusal}");
    }

    let mut told = stored.clone();
    told["status"] = json!({ "address": { "url": "http://a" } });
    let (code, told) = house.ask(Method::PUT, &format!("{CRONS}/a/status"), &told).await;
    assert_eq!((code, &told["status"]["address"]["url"]), (200, &json!("http://a")));
    assert_eq!(told["metadata"]["generation"], 1, "a status is no change of the spec");
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let (_, rows) = house.get_as(CRONS, table).await;
    assert_eq!(rows["rows"][0]["cells"], json!(["a", "* * * * *"]));
}

/// A change of the definition holds at once, and what was stored goes with it.
#[tokio::test]
async fn a_definition_changes_and_goes_with_its_objects() {
    let house = House::real().await;
    house.ask(Method::POST, DEFINITIONS, &definition()).await;
    house.ask(Method::POST, CRONS, &cron("a", json!({ "cron": "x" }))).await;
    let path = format!("{DEFINITIONS}/crons.example.com");
    let mut wider = house.get(&path).await.1;
    wider["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"]
        ["maximum"] = json!(10);
    let (code, said) = house.ask(Method::PUT, &path, &wider).await;
    assert_eq!(code, 200, "{said}");
    assert_eq!(
        house.ask(Method::POST, CRONS, &cron("b", json!({ "cron": "x", "replicas": 9 }))).await.0,
        201
    );

    sluicegate_control::api::seed(&house.store, &house.registry).await.unwrap();
    assert_eq!(house.get(&path).await.0, 200, "a restart keeps it");
    assert_eq!(house.delete(&path).await.0, 200);
    assert_eq!(house.get(CRONS).await.0, 404);
    house.ask(Method::POST, DEFINITIONS, &definition()).await;
    assert_eq!(house.get(CRONS).await.1["items"], json!([]), "its objects went with it");
}

/// What the appliance is made of is not redefined, and a definition that makes no sense is refused.
#[tokio::test]
async fn our_own_kinds_are_not_redefined() {
    let house = House::real().await;
    let own = format!("{DEFINITIONS}/brokers.eventing.knative.dev");
    assert_eq!(house.delete(&own).await.0, 403);
    assert_eq!(house.ask(Method::PATCH, &own, &json!({ "spec": { "scope": "Cluster" } })).await.0, 403);
    let mut bad = definition();
    bad["spec"]["scope"] = json!("Everywhere");
    let (code, refusal) = house.ask(Method::POST, DEFINITIONS, &bad).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("spec.scope")), "{refusal}");
}

/// APP-36: a schema is the status' schema too: what it does not name is dropped, what it forbids is refused.
#[tokio::test]
async fn a_status_keeps_to_the_schema() {
    let house = House::real().await;
    let mut definition = definition();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] =
        json!({ "type": "object", "properties": { "phase": { "type": "string" } } });
    house.ask(Method::POST, DEFINITIONS, &definition).await;
    house.ask(Method::POST, CRONS, &cron("a", json!({ "cron": "x" }))).await;
    let path = format!("{CRONS}/a/status");
    let status = json!({ "status": { "phase": "on", "typo": 1 } });
    let (code, stored) = house.ask(Method::PATCH, &path, &status).await;
    assert_eq!((code, &stored["status"]), (200, &json!({ "phase": "on" })));
    let (code, refusal) = house.ask(Method::PATCH, &path, &json!({ "status": { "phase": 1 } })).await;
    assert_eq!((code, &refusal["details"]["causes"][0]["field"]), (422, &json!("status.phase")));
}
