//! Authentication and authorization of the API's callers.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use http::{Method, Request};
use serde::Deserialize as _;
use serde_json::{Value, json};
use sluicegate_control::access::CONTROLLER_USER;
use sluicegate_control::access::static_tokens::StaticTokens;
use sluicegate_control::api::{self, ApiServerConfig, AuditLog, AuthenticationSources, PeerIdentity, TokenSigner};
use tower::ServiceExt as _;

use crate::support::{MAPS, TestApiServer};

const SERVICES: &str = "/apis/serving.knative.dev/v1/namespaces/default/services";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// The user of a test's request.
#[derive(Clone, Copy)]
enum RequestUser<'a> {
    /// kubectl's `--as`, by the administrator on this host.
    User(&'a str),
    Token(&'a str),
    /// From another host, without credentials.
    OtherUser,
}

async fn ask(server: &TestApiServer, who: RequestUser<'_>, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let tokens = server.dir.path().join("tokens.csv");
    std::fs::write(&tokens, "secret,alice,1,\"crew\"\n").unwrap();
    let around = ApiServerConfig {
        authentication: AuthenticationSources {
            static_tokens: StaticTokens::read(&tokens).unwrap(),
            host_token: Some("mine".into()),
            service_accounts: Some(Arc::new(TokenSigner::open(&server.dir.path().join("key")).unwrap())),
        },
        audit_log: Some(AuditLog::open(&server.dir.path().join("audit.log")).unwrap()),
        ..ApiServerConfig::default()
    };
    let router = api::router_with(server.store.clone(), server.registry.clone(), around);
    let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let mut request = Request::builder().method(method).uri(path).header("content-type", media);
    request = match who {
        RequestUser::User(name) => request.header("impersonate-user", name),
        RequestUser::Token(token) => request
            .header("authorization", format!("Bearer {token}"))
            .extension(ConnectInfo(PeerIdentity { is_local: false, certificate: None })),
        RequestUser::OtherUser => request.extension(ConnectInfo(PeerIdentity { is_local: false, certificate: None })),
    };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = router.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

async fn grant(server: &TestApiServer, user: &str, rules: &Value) {
    let role = json!({ "metadata": { "name": format!("of-{user}") }, "rules": rules });
    assert_eq!(server.ask(Method::POST, ROLES, &role).await.0, 201);
    bind(server, user, &format!("of-{user}")).await;
}

async fn bind(server: &TestApiServer, user: &str, role: &str) {
    let binding = json!({ "metadata": { "name": format!("{user}-{role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }] });
    let (code, said) = server.ask(Method::POST, BINDINGS, &binding).await;
    assert_eq!(code, 201, "{said}");
}

fn service(name: &str) -> Value {
    json!({ "metadata": { "name": name },
        "spec": { "template": { "spec": { "containers": [{ "image": "a/b" }] } } } })
}

/// A role that names an object grants to list and watch it by its name, as `kubectl get NAME --watch`, `kubectl
/// wait` and informers of one object do.
#[tokio::test]
async fn who_may_see_one_object_may_list_and_watch_it_by_name() {
    let server = TestApiServer::real().await;
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"],
        "verbs": ["list", "watch"] }]);
    grant(&server, "ann", &rules).await;
    let watch = "watch=1&timeoutSeconds=1";
    for (query, expected) in [
        ("fieldSelector=metadata.name%3Dmine".to_owned(), 200),
        (format!("fieldSelector=metadata.name%3D%3Dmine&{watch}"), 200),
        ("fieldSelector=metadata.name%3Dother".to_owned(), 403),
        ("fieldSelector=metadata.name!%3Dmine".to_owned(), 403),
        ("labelSelector=a".to_owned(), 403),
        (format!("fieldSelector=metadata.name%3Dother&{watch}"), 403),
        (watch.to_owned(), 403),
    ] {
        let path = format!("{MAPS}?{query}");
        let (code, said) = ask(&server, RequestUser::User("ann"), Method::GET, &path, &Value::Null).await;
        assert_eq!(code, expected, "{query}: {said}");
    }
}

/// SRV-API-36: the illustrative developer role is enough for its verbs, and nothing more is allowed.
#[tokio::test]
async fn a_developer_may_do_what_the_role_says_and_nothing_else() {
    let server = TestApiServer::real().await;
    let group = "serving.knative.dev";
    let rules = json!([
        { "apiGroups": [group], "resources": ["services"], "verbs": ["get", "list", "create", "update", "delete"] },
        { "apiGroups": [group], "resources": ["routes", "revisions", "configurations"], "verbs": ["get", "list"] },
    ]);
    grant(&server, "dev", &rules).await;
    let dev = RequestUser::User("dev");
    let one = format!("{SERVICES}/a");
    let (code, made) = ask(&server, dev, Method::POST, SERVICES, &service("a")).await;
    assert_eq!((code, &made["metadata"]["annotations"]["serving.knative.dev/creator"]), (201, &json!("dev")), "{made}");
    for (method, path, body, expected) in [
        (Method::GET, SERVICES.to_owned(), Value::Null, 200),
        (Method::GET, one.clone(), Value::Null, 200),
        (Method::PUT, one.clone(), made.clone(), 200),
        (Method::GET, SERVICES.replace("services", "routes"), Value::Null, 200),
        (Method::DELETE, one.clone(), Value::Null, 200),
        (Method::PATCH, one.clone(), json!({}), 403),
        (Method::PUT, format!("{one}/status"), made, 403),
        (Method::GET, format!("{SERVICES}?watch=true"), Value::Null, 403),
        (Method::DELETE, SERVICES.to_owned(), Value::Null, 403),
        (Method::GET, MAPS.to_owned(), Value::Null, 403),
        (Method::POST, ROLES.to_owned(), json!({ "metadata": { "name": "x" } }), 403),
        (Method::GET, "/api/v1/namespaces/default/pods/x/log".to_owned(), Value::Null, 403),
        (Method::POST, "/api/v1/namespaces/default/pods/x/exec?command=ls".to_owned(), Value::Null, 403),
        (Method::GET, "/api/v1/namespaces/default/pods/x/attach".to_owned(), Value::Null, 403),
        (Method::POST, "/api/v1/namespaces/default/pods/x/portforward".to_owned(), Value::Null, 403),
        (Method::GET, "/apis".to_owned(), Value::Null, 200),
        // A caller without the right to read does not learn whether the object exists.
        (Method::GET, MAPS.replace("configmaps", "nothings"), Value::Null, 403),
        (Method::GET, "/nothing".to_owned(), Value::Null, 403),
        (Method::GET, format!("{one}/nothing"), Value::Null, 403),
        (Method::GET, one.replace("/v1/", "/v9/"), Value::Null, 404),
    ] {
        let (code, said) = ask(&server, dev, method.clone(), &path, &body).await;
        assert_eq!(code, expected, "{method} {path}: {said}");
    }
    let (_, refusal) = ask(&server, dev, Method::GET, MAPS, &Value::Null).await;
    assert_eq!(
        refusal["message"],
        "configmaps is forbidden: User \"dev\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    assert_eq!(refusal["reason"], "Forbidden");
}

/// A role that may read everything opens no stream, although a WebSocket starts with a GET.
#[tokio::test]
async fn pod_stream_by_get_needs_create_too() {
    let server = TestApiServer::real().await;
    let rules = |verbs: &[&str]| json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": verbs }]);
    grant(&server, "reader", &rules(&["get", "list", "watch"])).await;
    grant(&server, "writer", &rules(&["get", "create"])).await;
    for part in ["exec?command=ls&stdout=true", "attach", "portforward"] {
        let path = format!("/api/v1/namespaces/default/pods/x/{part}");
        let (code, said) = ask(&server, RequestUser::User("reader"), Method::GET, &path, &Value::Null).await;
        let message = said["message"].as_str().unwrap();
        assert!(code == 403 && message.contains("cannot create"), "{path}: {said}");
        let (code, said) = ask(&server, RequestUser::User("writer"), Method::GET, &path, &Value::Null).await;
        assert_eq!(code, 404, "{path}: {said}");
    }
}

/// SRV-REV-17: the right to read Pods' logs is the right to read the Revision's log; without it a caller does not
/// learn whether the log exists.
#[tokio::test]
async fn who_may_read_logs_of_pods_may_read_those_of_revisions() {
    let server = TestApiServer::real().await;
    grant(&server, "ann", &json!([{ "apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"] }])).await;
    grant(&server, "bob", &json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }])).await;
    let mut revision = service("a-00001");
    revision["spec"] = revision["spec"]["template"]["spec"].take();
    let revisions = SERVICES.replace("services", "revisions");
    let (code, made) = ask(&server, RequestUser::User(CONTROLLER_USER), Method::POST, &revisions, &revision).await;
    assert_eq!(code, 201, "{made}");
    let known = format!("/sluicegate/logs/{}", made["metadata"]["uid"].as_str().unwrap());
    let unknown = "/sluicegate/logs/0";
    let follow = format!("{known}?follow=true");
    let (ann, bob) = (RequestUser::User("ann"), RequestUser::User("bob"));
    for (who, method, path, expected) in [
        (ann, Method::GET, &*known, 200),
        (ann, Method::POST, &known, 405),
        (ann, Method::GET, &follow, 400),
        (ann, Method::GET, unknown, 403),
        (bob, Method::GET, &known, 403),
        (bob, Method::GET, unknown, 403),
        (RequestUser::OtherUser, Method::GET, &known, 401),
    ] {
        let (code, said) = ask(&server, who, method.clone(), path, &Value::Null).await;
        assert_eq!(code, expected, "{method} {path}: {said}");
    }
    assert_eq!(server.ask(Method::GET, unknown, &Value::Null).await.0, 404);
}

/// APP-38: a request from another host needs credentials.
#[tokio::test]
async fn anonymous_is_refused_and_tokens_name_their_users() {
    let server = TestApiServer::real().await;
    for (path, expected) in [(MAPS, 401), ("/apis", 401), ("/healthz", 200), ("/version", 200)] {
        assert_eq!(ask(&server, RequestUser::OtherUser, Method::GET, path, &Value::Null).await.0, expected, "{path}");
    }
    assert_eq!(ask(&server, RequestUser::Token("wrong"), Method::GET, MAPS, &Value::Null).await.0, 401);
    assert_eq!(ask(&server, RequestUser::Token("secret"), Method::GET, MAPS, &Value::Null).await.0, 403);
    bind(&server, "alice", "view").await;
    assert_eq!(ask(&server, RequestUser::Token("secret"), Method::GET, MAPS, &Value::Null).await.0, 200);
    let map = json!({ "metadata": { "name": "m" } });
    assert_eq!(ask(&server, RequestUser::Token("secret"), Method::POST, MAPS, &map).await.0, 403);
    bind(&server, "alice", "edit").await;
    assert_eq!(ask(&server, RequestUser::Token("secret"), Method::POST, MAPS, &map).await.0, 201);

    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    // The second token is the appliance's own, for users that can read its folder.
    for (who, user, group) in [
        (RequestUser::Token("mine"), "sluicegate-admin", "system:masters"),
        (RequestUser::Token("secret"), "alice", "crew"),
    ] {
        let (_, review) = ask(&server, who, Method::POST, path, &json!({})).await;
        let reported = &review["status"]["userInfo"];
        assert_eq!((&reported["username"], &reported["groups"][0]), (&json!(user), &json!(group)), "{review}");
    }
    let reported = std::fs::read_to_string(server.dir.path().join("audit.log")).unwrap();
    let last: Value = serde_json::from_str(reported.lines().last().unwrap()).unwrap();
    assert_eq!((&last["user"]["username"], &last["responseStatus"]["code"]), (&json!("alice"), &json!(201)));
    assert!(!reported.contains("secret"), "tokens are not written down");

    // A self review needs an authenticated user.
    for (user, expected) in [("zoe", 201), ("system:anonymous", 403)] {
        assert_eq!(ask(&server, RequestUser::User(user), Method::POST, path, &json!({})).await.0, expected, "{user}");
    }
    let reported = std::fs::read_to_string(server.dir.path().join("audit.log")).unwrap();
    let mut lines = reported.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let zoe = lines.find(|line| line["impersonatedUser"]["username"] == "zoe").unwrap();
    assert_eq!(zoe["user"]["username"], "sluicegate-admin", "it is known who really asked: {zoe}");
}

/// A service account's token works until its account is gone, even if another takes the name.
#[tokio::test]
async fn a_service_account_acts_by_its_token_while_it_lives() {
    let server = TestApiServer::real().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let robot = json!({ "metadata": { "name": "robot" } });
    assert_eq!(server.ask(Method::POST, accounts, &robot).await.0, 201);
    let admin = RequestUser::User("root");
    bind(&server, "root", "cluster-admin").await;
    let path = format!("{accounts}/robot/token");
    let (code, answer) = ask(&server, admin, Method::POST, &path, &json!({ "spec": {} })).await;
    assert_eq!(code, 201, "{answer}");
    let token = answer["status"]["token"].as_str().unwrap().to_owned();
    let short = json!({ "spec": { "expirationSeconds": 5 } });
    assert_eq!(ask(&server, admin, Method::POST, &path, &short).await.0, 422);
    for spec in [json!("x"), json!(7), json!([])] {
        let wrong = json!({ "spec": spec });
        assert_eq!(ask(&server, admin, Method::POST, &path, &wrong).await.0, 400, "{spec}");
    }

    bind(&server, "system:serviceaccount:default:robot", "view").await;
    assert_eq!(ask(&server, RequestUser::Token(&token), Method::GET, MAPS, &Value::Null).await.0, 200);
    assert_eq!(server.delete(&format!("{accounts}/robot")).await.0, 200);
    assert_eq!(server.ask(Method::POST, accounts, &robot).await.0, 201);
    assert_eq!(ask(&server, RequestUser::Token(&token), Method::GET, MAPS, &Value::Null).await.0, 401);
}

#[tokio::test]
async fn dry_run_of_token_and_backup_has_no_effect() {
    let server = TestApiServer::real().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let robot = json!({ "metadata": { "name": "robot" } });
    assert_eq!(server.ask(Method::POST, accounts, &robot).await.0, 201);
    let path = format!("{accounts}/robot/token?dryRun=");
    bind(&server, "root", "cluster-admin").await;
    let admin = RequestUser::User("root");
    let (code, answer) = ask(&server, admin, Method::POST, &format!("{path}All"), &json!({ "spec": {} })).await;
    assert_eq!((code, &answer["status"]["token"]), (201, &json!("")), "{answer}");
    assert!(answer["status"]["expirationTimestamp"].is_string(), "{answer}");
    let short = json!({ "spec": { "expirationSeconds": 5 } });
    assert_eq!(ask(&server, admin, Method::POST, &format!("{path}All"), &short).await.0, 422);
    let (code, answer) = ask(&server, admin, Method::POST, &format!("{path}Some"), &json!({ "spec": {} })).await;
    assert!(code == 422 && answer["status"]["token"].is_null(), "{answer}");

    // A backup without objects would delete all of them.
    let empty = "{\"sluicegate\":\"backup\",\"format\":1,\"revision\":1}\n{\"objects\":0}\n";
    let restore = "/sluicegate/backup?dryRun=All";
    let (code, answer) = server.ask_as(Method::PUT, restore, "application/jsonl", empty).await;
    assert_eq!((code, &answer["objects"]), (200, &json!(0)), "{answer}");
    assert_eq!(server.ask(Method::GET, &format!("{accounts}/robot"), &Value::Null).await.0, 200);
}

/// An author can neither grant nor revoke rights that the author does not have.
#[tokio::test]
async fn rights_cannot_be_made_out_of_nothing() {
    let server = TestApiServer::real().await;
    let all = json!([{ "apiGroups": ["rbac.authorization.k8s.io"], "verbs": ["create", "update", "patch", "get"],
        "resources": ["clusterroles", "clusterrolebindings"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }]);
    grant(&server, "mallory", &all).await;
    let mallory = RequestUser::User("mallory");
    let bound = |role: &str| {
        json!({ "metadata": { "name": format!("m-{role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "kind": "User", "name": "mallory" }] })
    };
    let role = |resource: &str| {
        json!({ "metadata": { "name": format!("r-{resource}") },
        "rules": [{ "apiGroups": [""], "resources": [resource], "verbs": ["get"] }] })
    };
    for (method, path, body, expected) in [
        (Method::POST, BINDINGS.to_owned(), bound("cluster-admin"), 403),
        (Method::POST, ROLES.to_owned(), role("secrets"), 403),
        (Method::POST, ROLES.to_owned(), role("configmaps"), 201),
        (Method::POST, BINDINGS.to_owned(), bound("r-configmaps"), 201),
        (
            Method::PATCH,
            format!("{ROLES}/of-mallory"),
            json!({ "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }] }),
            403,
        ),
        (Method::PATCH, format!("{ROLES}/view"), json!({ "aggregationRule": { "clusterRoleSelectors": [{}] } }), 403),
    ] {
        let (code, said) = ask(&server, mallory, method.clone(), &path, &body).await;
        assert_eq!(code, expected, "{method} {path}: {said}");
    }
}

/// APP-38: a change of a binding's subjects grants what its role grants, whether or not the change names the role.
#[tokio::test]
async fn a_change_of_a_binding_is_judged_by_the_role_that_it_has() {
    let server = TestApiServer::real().await;
    let rbac = "rbac.authorization.k8s.io";
    let bindings = format!("/apis/{rbac}/v1/namespaces/default/rolebindings");
    let binds = json!([{ "apiGroups": [rbac], "verbs": ["create", "patch"], "resources": ["rolebindings"] },
        { "apiGroups": [rbac], "verbs": ["bind"], "resources": ["roles"] },
        { "apiGroups": [rbac], "verbs": ["bind"], "resources": ["clusterroles"], "resourceNames": ["of-the-boss", "view"] }]);
    grant(&server, "mallory", &binds).await;
    let bound = |name: &str, kind: &str, role: &str| {
        json!({ "metadata": { "name": name }, "roleRef": { "apiGroup": rbac, "kind": kind, "name": role },
            "subjects": [{ "kind": "User", "name": "boss" }] })
    };
    let of_boss = bound("of-the-boss", "ClusterRole", "admin");
    assert_eq!(server.ask(Method::POST, &bindings, &of_boss).await.0, 201);
    let mallory = RequestUser::User("mallory");
    let to_her = json!({ "subjects": [{ "kind": "User", "name": "mallory" }] });
    for (method, path, body, expected) in [
        (Method::PATCH, format!("{bindings}/of-the-boss"), to_her, 403),
        (Method::POST, bindings.clone(), bound("a", "ClusterRole", "admin"), 403),
        (Method::POST, bindings.clone(), bound("b", "ClusterRole", "view"), 201),
        (Method::POST, bindings.clone(), bound("c", "ClusterRole", "to-come"), 404),
        (Method::POST, bindings.clone(), bound("d", "Role", "to-come"), 201),
        (Method::POST, bindings.clone(), bound("e", "clusterrole", "admin"), 422),
    ] {
        let (code, said) = ask(&server, mallory, method.clone(), &path, &body).await;
        assert_eq!(code, expected, "{method} {path} {body}: {said}");
    }
}

/// APP-38: operations on a role are judged by what they make of it.
#[tokio::test]
async fn operations_on_a_role_give_what_their_author_has() {
    let server = TestApiServer::real().await;
    let rules = json!([{ "apiGroups": ["rbac.authorization.k8s.io"], "verbs": ["patch"], "resources": ["clusterroles"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }]);
    grant(&server, "mallory", &rules).await;
    let role = json!({ "metadata": { "name": "small" }, "rules": [rules[1]] });
    assert_eq!(server.ask(Method::POST, ROLES, &role).await.0, 201);
    let rule = |verb: &str| json!({ "apiGroups": [""], "resources": ["configmaps"], "verbs": [verb] });
    let add = |path: &str, value: Value| json!([{ "op": "add", "path": path, "value": value }]);
    for (operations, expected) in [
        (add("/metadata/labels", json!({ "a": "b" })), 200),
        (add("/rules/-", rule("get")), 200),
        (add("/rules/-", rule("delete")), 403),
        (add("/rules/0/verbs/-", json!("*")), 403),
        (json!([{ "op": "copy", "from": "/rules/0", "path": "/rules/-" }]), 403),
        (json!([{ "op": "test", "path": "/metadata/name", "value": "other" }]), 422),
    ] {
        let (code, said) = patch_by_operations(&server, "mallory", &format!("{ROLES}/small"), &operations).await;
        assert_eq!(code, expected, "{operations}: {said}");
    }
}

async fn patch_by_operations(server: &TestApiServer, user: &str, path: &str, operations: &Value) -> (u16, String) {
    let request = Request::patch(path).header("impersonate-user", user);
    let request = request.header("content-type", "application/json-patch+json");
    let response = server.send(request.body(Body::from(operations.to_string())).unwrap()).await;
    let code = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, String::from_utf8_lossy(&bytes).into_owned())
}

/// `kubectl auth can-i` reports the outcome of a request.
#[tokio::test]
async fn a_review_answers_as_the_request_would_be() {
    let server = TestApiServer::real().await;
    bind(&server, "eve", "view").await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (who, verb, resource, allowed) in [
        ("eve", "list", "configmaps", true),
        ("eve", "create", "configmaps", false),
        ("eve", "get", "secrets", false),
        ("nobody", "list", "configmaps", false),
    ] {
        let attributes = json!({ "verb": verb, "resource": resource, "namespace": "default" });
        let question = json!({ "spec": { "resourceAttributes": attributes } });
        let (code, review) = ask(&server, RequestUser::User(who), Method::POST, path, &question).await;
        assert_eq!((code, &review["status"]["allowed"]), (201, &json!(allowed)), "{who} {verb} {resource}: {review}");
    }
    let (_, rules) = ask(
        &server,
        RequestUser::User("eve"),
        Method::POST,
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        &json!({ "spec": { "namespace": "default" } }),
    )
    .await;
    assert!(rules["status"]["resourceRules"].as_array().unwrap().len() > 2, "{rules}");
}

/// AMB-62: the user of followers may create Revisions; the cluster role in `deploy/follow.yaml` has the same rights.
#[tokio::test]
async fn the_account_of_followers_may_what_controllers_may_and_no_more() {
    let server = TestApiServer::real().await;
    let revisions = "/apis/serving.knative.dev/v1/namespaces/default/revisions";
    let revision = json!({ "metadata": { "name": "r" }, "spec": { "containers": [{ "image": "a/b" }] } });
    let follower = RequestUser::User(CONTROLLER_USER);
    let (code, said) = ask(&server, follower, Method::POST, revisions, &revision).await;
    assert_eq!(code, 201, "{said}");
    let (code, said) = server.ask(Method::POST, revisions, &revision).await;
    assert_eq!((code, &said["reason"]), (403, &json!("Forbidden")), "the administrator may not");
    for (method, path) in [(Method::POST, MAPS), (Method::GET, ROLES), (Method::GET, "/api/v1/pods")] {
        assert_eq!(ask(&server, follower, method, path, &json!({})).await.0, 403, "{path}");
    }

    let text = include_str!("../../../deploy/follow.yaml");
    let documents = serde_norway::Deserializer::from_str(text).map(|one| Value::deserialize(one).unwrap());
    let reported = documents.into_iter().find(|one| one["kind"] == "ClusterRole").unwrap();
    let (_, ours) = server.get(&format!("{ROLES}/sluicegate-controller")).await;
    assert_eq!(reported["rules"], ours["rules"]);
}

/// What a cluster is given to run a follower: every document has its kind's shape, and no field that the kind does
/// not know.
#[test]
fn the_manifests_of_a_follower_fit_their_kinds() {
    use k8s_openapi::api::{apps::v1::Deployment, core::v1 as core, rbac::v1 as rbac};
    fn strange<T: serde::de::DeserializeOwned>(document: Value) -> Vec<String> {
        let mut strange = Vec::new();
        let read: Result<T, _> = serde_ignored::deserialize(document.clone(), |path| strange.push(path.to_string()));
        assert!(read.is_ok(), "{:?}: {document}", read.err());
        strange
    }
    let texts = [include_str!("../../../deploy/follow.yaml"), include_str!("../../../deploy/follow-certificates.yaml")];
    let documents = texts
        .into_iter()
        .flat_map(|text| serde_norway::Deserializer::from_str(text).map(|one| Value::deserialize(one).unwrap()));
    let mut kinds = Vec::new();
    for document in documents {
        let kind = document["kind"].as_str().unwrap().to_owned();
        let strange = match kind.as_str() {
            "Namespace" => strange::<core::Namespace>(document),
            "ServiceAccount" => strange::<core::ServiceAccount>(document),
            "ConfigMap" => strange::<core::ConfigMap>(document),
            "Service" => strange::<core::Service>(document),
            "ClusterRole" => strange::<rbac::ClusterRole>(document),
            "Role" => strange::<rbac::Role>(document),
            "RoleBinding" => strange::<rbac::RoleBinding>(document),
            "ClusterRoleBinding" => strange::<rbac::ClusterRoleBinding>(document),
            "Deployment" => strange::<Deployment>(document),
            other => panic!("{other} is not looked at"),
        };
        assert!(strange.is_empty(), "{kind}: {strange:?}");
        kinds.push(kind);
    }
    assert!(kinds.iter().any(|kind| kind == "Deployment") && kinds.len() >= 7, "{kinds:?}");
}
