//! Reviews, which are answered and not stored, and aggregated roles.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use serde_json::{Value, json};
use sluicegate_control::api::{self, ApiServerConfig, AuthenticationSources, TokenSigner};
use sluicegate_control::store::{OBJECT_BYTES_MAX, ObjectStore};
use tower::ServiceExt as _;

use crate::support::TestApiServer;

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
/// Reads of a role before the test fails.
const LOOKS_MAX: usize = 1_000;

/// An API that signs tokens.
fn signing(server: &TestApiServer) -> axum::Router {
    let signer = Some(Arc::new(TokenSigner::open(&server.dir.path().join("key")).unwrap()));
    let around = ApiServerConfig {
        authentication: AuthenticationSources { service_accounts: signer, ..AuthenticationSources::default() },
        ..ApiServerConfig::default()
    };
    api::router_with(server.store.clone(), server.registry.clone(), around)
}

async fn post(router: &axum::Router, path: &str, body: &Value) -> Value {
    let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    let request = request.body(axum::body::Body::from(body.to_string())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 201, "{path}");
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

async fn review(router: &axum::Router, token: &Value, audiences: Value) -> Value {
    let asked = json!({ "spec": { "token": token, "audiences": audiences } });
    post(router, "/apis/authentication.k8s.io/v1/tokenreviews", &asked).await["status"].clone()
}

/// APP-34: a server that receives a service account's token can ask for its account and audience.
#[tokio::test]
async fn token_is_reviewed_for_its_audience() {
    let server = TestApiServer::real().await;
    server.ask(Method::POST, "/api/v1/namespaces", &json!({ "metadata": { "name": "default" } })).await;
    let (_, account) = server.ask(Method::POST, ACCOUNTS, &json!({ "metadata": { "name": "robot" } })).await;
    let router = signing(&server);
    let wanted = json!({ "spec": { "audiences": ["vault", "shop"] } });
    let made = post(&router, &format!("{ACCOUNTS}/robot/token"), &wanted).await;
    let token = &made["status"]["token"];

    let status = review(&router, token, json!(["elsewhere", "vault"])).await;
    assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &json!(["vault"])), "{status}");
    let user = &status["user"];
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    assert_eq!(user["uid"], account["metadata"]["uid"]);
    assert!(user["groups"].as_array().unwrap().contains(&json!("system:serviceaccounts:default")), "{user}");
    for (token, audiences) in
        [(token.clone(), json!(["elsewhere"])), (token.clone(), Value::Null), (json!("a.b.c"), json!(["vault"]))]
    {
        let status = review(&router, &token, audiences).await;
        assert_eq!(status, json!({ "user": {}, "error": "invalid bearer token" }));
    }
    server.delete(&format!("{ACCOUNTS}/robot")).await;
    assert!(review(&router, token, json!(["vault"])).await["authenticated"].is_null(), "it died with its account");
}

/// The rules of a role, once they are as many.
async fn rules(server: &TestApiServer, name: &str, count: usize) -> Value {
    for _ in 0..LOOKS_MAX {
        let (_, role) = server.get(&format!("{ROLES}/{name}")).await;
        if role["rules"].as_array().is_some_and(|rules| rules.len() == count) {
            return role["rules"].clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{name} has no {count} rules: {:?}", server.get(&format!("{ROLES}/{name}")).await);
}

fn part(name: &str, to: &str, resource: &str) -> Value {
    let rule = json!({ "verbs": ["get"], "apiGroups": [""], "resources": [resource] });
    json!({ "metadata": { "name": name, "labels": { "to": to } }, "rules": [rule] })
}

fn whole(name: &str, labels: Value, of: &str) -> Value {
    let selectors = json!([{ "matchLabels": { "to": of } }]);
    json!({ "metadata": { "name": name, "labels": labels },
        "aggregationRule": { "clusterRoleSelectors": selectors }, "rules": [] })
}

/// An aggregated role shows what it adds up to, through one that is aggregated itself, and follows changes; so do
/// those that were there before the start.
#[tokio::test]
async fn an_aggregated_role_says_what_it_adds_up_to() {
    let server = TestApiServer::real().await;
    for role in [
        whole("outer", json!({}), "outer"),
        whole("inner", json!({ "to": "outer" }), "inner"),
        part("a", "inner", "pods"),
        part("b", "inner", "secrets"),
        part("c", "inner", "pods"),
    ] {
        assert_eq!(server.ask(Method::POST, ROLES, &role).await.0, 201);
    }
    let TestApiServer { store, registry, dir } = server;
    drop(store);
    let server = TestApiServer { store: Arc::new(ObjectStore::open(dir.path()).unwrap()), registry, dir };
    tokio::spawn(api::aggregate(server.store.clone()));
    let both = rules(&server, "inner", 2).await;
    assert_eq!(both[0]["resources"], json!(["pods"]));
    assert_eq!(rules(&server, "outer", 2).await, both);
    server.delete(&format!("{ROLES}/b")).await;
    assert_eq!(rules(&server, "outer", 1).await[0]["resources"], json!(["pods"]));
}

/// An aggregated role that would exceed the object size limit is logged; the others are aggregated.
#[tokio::test]
async fn a_role_that_would_be_too_large_does_not_keep_others_from_theirs() {
    let server = TestApiServer::real().await;
    let half = "p".repeat(OBJECT_BYTES_MAX / 2);
    for role in [
        whole("all-too-much", json!({}), "large"),
        part("large-a", "large", &half),
        part("large-b", "large", &format!("{half}s")),
        whole("small", json!({}), "small"),
    ] {
        assert_eq!(server.ask(Method::POST, ROLES, &role).await.0, 201);
    }
    tokio::spawn(api::aggregate(server.store.clone()));
    assert_eq!(rules(&server, "small", 0).await, json!([]));
    assert_eq!(server.ask(Method::POST, ROLES, &part("a", "small", "pods")).await.0, 201);
    assert_eq!(rules(&server, "small", 1).await[0]["resources"], json!(["pods"]));
    assert_eq!(rules(&server, "all-too-much", 0).await, json!([]));
}

/// APP-33: `kubectl auth whoami` of older clients uses an older version.
#[tokio::test]
async fn older_review_version_reports_the_user() {
    let server = TestApiServer::real().await;
    for version in ["v1", "v1beta1"] {
        let path = format!("/apis/authentication.k8s.io/{version}/selfsubjectreviews");
        let body = json!({ "apiVersion": format!("authentication.k8s.io/{version}"), "kind": "SelfSubjectReview" });
        let (code, answer) = server.ask(Method::POST, &path, &body).await;
        assert_eq!((code, &answer["apiVersion"]), (201, &body["apiVersion"]), "{answer}");
        assert!(answer["status"]["userInfo"]["username"].is_string(), "{answer}");
    }
}
