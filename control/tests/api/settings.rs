//! The operator's ConfigMaps.

use http::Method;
use serde_json::json;
use sluicegate_control::kinds::settings;

use crate::support::House;

/// Every map of upstream's that something reads is there from the start, with its keys shown; one that was
/// changed stays as it is over a restart.
#[tokio::test]
async fn the_operators_maps_exist_and_are_theirs_from_then_on() {
    let house = House::real().await;
    for row in settings::rows() {
        let path = format!("/api/v1/namespaces/{}/configmaps/{}", row.namespace, row.name);
        let (code, map) = house.get(&path).await;
        assert_eq!((code, &map["data"]["_example"]), (200, &json!(row.example)), "{}", row.name);
    }
    let path = "/api/v1/namespaces/knative-serving/configmaps/config-defaults";
    let change = json!({ "data": { "revision-timeout-seconds": "60" } });
    let (code, changed) = house.ask(Method::PATCH, path, &change).await;
    assert_eq!(code, 200, "{changed}");
    sluicegate_control::api::seed(&house.store, &house.registry).await.unwrap();
    assert_eq!(house.get(path).await.1, changed);
}

/// A value that makes no sense is refused by every verb, with its key named.
#[tokio::test]
async fn a_bad_value_is_refused_with_its_key() {
    let house = House::real().await;
    for (namespace, name, key, value) in [
        ("knative-serving", "config-autoscaler", "stable-window", "soon"),
        ("knative-serving", "config-gc", "min-non-active-revisions", "-1"),
        ("knative-serving", "config-defaults", "container-concurrency", "many"),
        ("knative-serving", "config-features", "multi-container", "perhaps"),
        ("knative-serving", "config-network", "domain-template", "{{.Nmae}}"),
        ("knative-serving", "config-domain", "not a domain", ""),
        ("knative-serving", "config-deployment", "progress-deadline", "0s"),
        ("knative-eventing", "config-features", "transport-encryption", "always"),
        ("knative-eventing", "config-br-defaults", "default-br-config", "["),
        ("knative-eventing", "default-ch-webhook", "default-ch-config", "clusterDefault: {}"),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
        let (code, refusal) = house.ask(Method::PATCH, &path, &json!({ "data": { key: value } })).await;
        let causes = &refusal["details"]["causes"];
        assert_eq!(code, 422, "{name}: {refusal}");
        assert!(causes[0]["field"].as_str().unwrap().starts_with(&format!("data[{key}")), "{refusal}");
    }
}
