//! The operator's ConfigMaps.

use http::Method;
use serde_json::{Value, json};
use sluicegate_control::kinds::settings;

use crate::support::TestApiServer;

/// Every ConfigMap of upstream's that is read exists from the start, with its keys; a changed one stays as it is over
/// a restart.
#[tokio::test]
async fn the_operators_maps_exist_and_are_theirs_from_then_on() {
    let server = TestApiServer::real().await;
    for row in settings::config_maps() {
        let path = format!("/api/v1/namespaces/{}/configmaps/{}", row.namespace, row.name);
        let (code, map) = server.get(&path).await;
        assert_eq!((code, &map["data"]["_example"]), (200, &json!(row.example)), "{}", row.name);
    }
    let path = "/api/v1/namespaces/knative-serving/configmaps/config-defaults";
    let change = json!({ "data": { "revision-timeout-seconds": "60" } });
    let (code, changed) = server.ask(Method::PATCH, path, &change).await;
    assert_eq!(code, 200, "{changed}");
    sluicegate_control::api::seed(&server.store, &server.registry).await.unwrap();
    assert_eq!(server.get(path).await.1, changed);
}

/// A value that makes no sense is refused by every verb, with its key named.
#[tokio::test]
async fn a_bad_value_is_refused_with_its_key() {
    let server = TestApiServer::real().await;
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
        let (code, refusal) = server.ask(Method::PATCH, &path, &json!({ "data": { key: value } })).await;
        let causes = &refusal["details"]["causes"];
        assert_eq!(code, 422, "{name}: {refusal}");
        assert!(causes[0]["field"].as_str().unwrap().starts_with(&format!("data[{key}")), "{refusal}");
    }
}

const FEATURES: &str = "/api/v1/namespaces/knative-serving/configmaps/config-features";
const SERVICES: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";

/// A feature without an effect here may be set, and the response has a warning.
#[tokio::test]
async fn a_feature_that_changes_nothing_is_warned_of() {
    let server = TestApiServer::real().await;
    let affinity = "kubernetes.podspec-affinity";
    for (data, expected) in [
        (json!({ affinity: "enabled" }), Some(affinity)),
        (json!({ affinity: null, "tag-header-based-routing": "enabled" }), None),
    ] {
        let request = http::Request::patch(FEATURES).header("content-type", "application/merge-patch+json");
        let response = server.send(request.body(json!({ "data": data }).to_string().into()).unwrap()).await;
        assert_eq!(response.status().as_u16(), 200);
        let warning = response.headers().get("warning").map(|warning| warning.to_str().unwrap());
        assert_eq!(warning.is_some(), expected.is_some(), "{warning:?}");
        assert!(warning.unwrap_or_default().contains(expected.unwrap_or_default()), "{warning:?}");
    }
}

/// What the operator's features say of containers holds from then on: secure defaults are filled in, and empty folders refused.
#[tokio::test]
async fn features_about_containers_are_heeded() {
    let server = TestApiServer::real().await;
    let service = |name: &str| {
        json!({ "metadata": { "name": name }, "spec": { "template": { "spec": { "containers": [{ "image": "a/b",
            "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }], "volumes": [{ "name": "v", "emptyDir": {} }] } } } })
    };
    let context = |made: &Value| made["spec"]["template"]["spec"]["containers"][0]["securityContext"].clone();
    let (code, made) = server.ask(Method::POST, SERVICES, &service("before")).await;
    assert_eq!((code, context(&made)), (201, Value::Null), "{made}");
    let secure = json!({ "data": { "secure-pod-defaults": "Enabled" } });
    assert_eq!(server.ask(Method::PATCH, FEATURES, &secure).await.0, 200);
    let (code, made) = server.ask(Method::POST, SERVICES, &service("after")).await;
    let wanted = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "runAsNonRoot": true,
        "seccompProfile": { "type": "RuntimeDefault" } });
    assert_eq!((code, context(&made)), (201, wanted), "{made}");

    let no_folders = json!({ "data": { "kubernetes.podspec-volumes-emptydir": "disabled" } });
    assert_eq!(server.ask(Method::PATCH, FEATURES, &no_folders).await.0, 200);
    let (code, refusal) = server.ask(Method::POST, SERVICES, &service("late")).await;
    assert!(
        (400..500).contains(&code) && refusal["message"].as_str().unwrap().contains("volumes[0].emptyDir"),
        "{refusal}"
    );
}
