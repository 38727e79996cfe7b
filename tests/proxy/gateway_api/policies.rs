//! SecurityPolicy and TrafficPolicy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kit::wait;

use super::*;
use crate::forward_auth::AuthService;
use crate::route_authentication::{ANN, Issuer, basic, now_s};

const POLICY_GROUP: &str = "gateway.sluicegate.dev/v1alpha1";

fn policy(kind: &str, name: &str, targets: &[Value], fields: Value) -> Value {
    let mut spec = json!({ "targetRefs": targets });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    json!({ "apiVersion": POLICY_GROUP, "kind": kind, "metadata": metadata, "spec": spec })
}

fn security(name: &str, targets: &[Value], fields: Value) -> Value {
    policy("SecurityPolicy", name, targets, fields)
}

fn target(kind: &str, name: &str) -> Value {
    json!({ "group": "gateway.networking.k8s.io", "kind": kind, "name": name })
}

fn rule_of(route: &str, rule: &str) -> Value {
    json!({ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route, "sectionName": rule })
}

fn secret(name: &str, key: &str, text: &str) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": { key: STANDARD.encode(text) } })
}

/// Rules of these names and paths, which lead to the Service `app`.
fn named_rules(names: &[&str]) -> Value {
    let rule = |name: &&str| {
        let matches = json!([{ "path": { "value": format!("/{name}") } }]);
        json!({ "name": name, "matches": matches, "backendRefs": [to("app")] })
    };
    names.iter().map(rule).collect()
}

fn wait_status(appliance: &Appliance, path: &str, status: u16) -> HttpResponse {
    let found = || Some(get(appliance, HOST, path)).filter(|response| response.status == status);
    wait::until(TIMEOUT, &format!("{status} for {path}"), found)
}

/// Waits until the policy has these conditions at its first ancestor, and returns the name of that.
fn wait_conditions(api: KitApi, kind: &str, name: &str, accepted: &str, resolved: &str) -> String {
    let policy = api.wait_for(kind, NAMESPACE, name, TIMEOUT, |policy| {
        let conditions = &policy["status"]["ancestors"][0]["conditions"];
        let is = |kind: &str, wanted: &str| conditions.is_array() && condition(conditions, kind) == wanted;
        is("Accepted", accepted) && is("ResolvedRefs", resolved)
    });
    let ancestor = &policy["status"]["ancestors"][0]["ancestorRef"];
    format!("{} {}", ancestor["kind"].as_str().unwrap(), ancestor["name"].as_str().unwrap())
}

/// The policy of a rule replaces that of the route, which replaces that of the Gateway; and a policy that is deleted uncovers the
/// next one.
#[test]
fn policy_of_the_smallest_target_holds() {
    let appliance = with_gateway();
    let (api, _upstreams) = (appliance.api(), backends(&appliance, ["app"]));
    serve(api, &route("a", named_rules(&["rule", "route"])));
    let mut other = route("b", named_rules(&["gateway"]));
    other["spec"]["hostnames"] = json!(["other.example.com"]);
    serve(api, &other);
    let denied = |name: &str, target: Value| api.create(&security(name, &[target], json!({ "deny": ["127.0.0.0/8"] })));
    let open = |name: &str, target: Value| api.create(&security(name, &[target], json!({ "deny": ["10.0.0.0/8"] })));
    wait_status(&appliance, "/rule", 200);
    denied("gateway", target("Gateway", "web"));
    wait_status(&appliance, "/rule", 403);
    wait_status(&appliance, "/route", 403);
    assert_eq!(wait_conditions(api, "SecurityPolicy", "gateway", "True Accepted", "True ResolvedRefs"), "Gateway web");
    open("route", target("HTTPRoute", "a"));
    wait_status(&appliance, "/rule", 200);
    wait_status(&appliance, "/route", 200);
    denied("rule", rule_of("a", "rule"));
    wait_status(&appliance, "/rule", 403);
    wait_conditions(api, "SecurityPolicy", "rule", "True Accepted", "True ResolvedRefs");
    assert_eq!(get(&appliance, HOST, "/route").status, 200);
    assert_eq!(get(&appliance, "other.example.com", "/gateway").status, 403);
    api.delete("SecurityPolicy", NAMESPACE, "rule");
    wait_status(&appliance, "/rule", 200);
    api.delete("SecurityPolicy", NAMESPACE, "route");
    wait_status(&appliance, "/rule", 403);
}

/// A SecurityPolicy whose Secret is missing or broken closes its route, and opens it to the right clients as soon as the Secret
/// can be used. The users change with the Secret.
#[test]
fn policy_without_its_secret_closes_the_route() {
    let appliance = with_gateway();
    let (api, upstreams) = (appliance.api(), backends(&appliance, ["app"]));
    api.create(&security(
        "p",
        &[target("HTTPRoute", "a")],
        json!({ "basicAuth": {
        "secretRef": { "name": "users" }, "userHeader": "X-User" } }),
    ));
    let ancestor = wait_conditions(api, "SecurityPolicy", "p", "False TargetNotFound", "False RefNotFound");
    assert_eq!(ancestor, "HTTPRoute a");
    serve(api, &route("a", named_rules(&["x"])));
    wait_conditions(api, "SecurityPolicy", "p", "False Invalid", "False RefNotFound");
    let closed = wait_status(&appliance, "/x", 503);
    assert!(!closed.text().contains("users"), "{}", closed.text());
    api.create(&secret("users", "htpasswd", "ann:plain text"));
    wait_conditions(api, "SecurityPolicy", "p", "False Invalid", "False Invalid");
    assert_eq!(get(&appliance, HOST, "/x").status, 503);
    assert_eq!(upstreams[0].requests(), 0);

    api.patch("Secret", NAMESPACE, "users", &json!({ "data": { "htpasswd": STANDARD.encode(ANN) } }));
    wait_status(&appliance, "/x", 401);
    assert_eq!(wait_conditions(api, "SecurityPolicy", "p", "True Accepted", "True ResolvedRefs"), "Gateway web");
    let login = || HttpCall::get("/x").host(HOST).header("authorization", &basic("ann:open sesame"));
    let response = login().send(appliance.http());
    assert_eq!((response.status, &response.json()["headers"]["x-user"]), (200, &json!("ann")));
    api.delete("Secret", NAMESPACE, "users");
    wait::until(TIMEOUT, "the route to close", || (login().send(appliance.http()).status == 503).then_some(()));
}

/// Keys are fetched from a URI. Before the first success tokens are answered 503; after it they are verified, also while the
/// issuer is down.
#[test]
fn tokens_are_verified_with_fetched_keys() {
    let appliance = with_gateway();
    let (api, _upstreams, issuer) = (appliance.api(), backends(&appliance, ["app"]), Issuer::new());
    // A port that refuses connections until the issuer starts there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    serve(api, &route("a", named_rules(&["x"])));
    let jwt = json!({ "issuer": "https://issuer.test/", "audiences": ["app"], "jwks": { "uri": format!("http://{address}/keys") },
        "claimHeaders": [{ "claim": "sub", "header": "X-Subject" }] });
    api.create(&security("p", &[target("HTTPRoute", "a")], json!({ "jwt": jwt })));
    wait_conditions(api, "SecurityPolicy", "p", "True Accepted", "False Invalid");
    wait_status(&appliance, "/x", 401);
    let token = |audience: &str| {
        issuer.token(&json!({ "iss": "https://issuer.test/", "aud": audience, "exp": now_s() + 600, "sub": "ann" }))
    };
    let call = |token: &str| {
        let bearer = format!("Bearer {token}");
        HttpCall::get("/x").host(HOST).header("authorization", &bearer).send(appliance.http())
    };
    assert_eq!(call(&token("app")).status, 503);

    let keys = issuer.keys();
    let server = std::net::TcpListener::bind(address).unwrap();
    let served = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = server.accept().unwrap();
        let mut request = [0; 4096];
        let read = stream.read(&mut request).unwrap();
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{keys}", keys.len());
        stream.write_all(response.as_bytes()).unwrap();
        String::from_utf8_lossy(&request[..read]).into_owned()
    });
    wait_conditions(api, "SecurityPolicy", "p", "True Accepted", "True ResolvedRefs");
    assert!(served.join().unwrap().starts_with("GET /keys HTTP/1.1\r\n"));
    let response = wait::until(TIMEOUT, "a verified token", || {
        Some(call(&token("app"))).filter(|response| response.status == 200)
    });
    assert_eq!(response.json()["headers"]["x-subject"], "ann");
    assert_eq!((call(&token("other")).status, call(&Issuer::new().token(&json!({}))).status), (401, 401));
}

/// The service of a policy is a core Service, in another namespace with a grant, or has a URL. Without it the route is closed.
#[test]
fn policy_asks_its_authorization_service() {
    let appliance = with_gateway();
    let (api, upstreams, service) = (appliance.api(), backends(&appliance, ["app"]), AuthService::start());
    let call = |cookie: &str| HttpCall::get("/x").host(HOST).header("cookie", cookie).send(appliance.http());
    namespace(api, "auth", json!({}));
    serve(api, &route("a", named_rules(&["x"])));
    let http = json!({ "backendRef": { "name": "login", "namespace": "auth", "port": 80 }, "path": "/verify",
        "headersToBackend": ["X-User"] });
    api.create(&security("p", &[target("HTTPRoute", "a")], json!({ "extAuth": { "http": http } })));
    wait_conditions(api, "SecurityPolicy", "p", "False Invalid", "False RefNotPermitted");
    wait_status(&appliance, "/x", 503);
    api.create(&json!({ "apiVersion": GROUP, "kind": "ReferenceGrant",
        "metadata": { "name": "g", "namespace": "auth" },
        "spec": { "from": [{ "group": "gateway.sluicegate.dev", "kind": "SecurityPolicy", "namespace": NAMESPACE }],
            "to": [{ "group": "", "kind": "Service" }] } }));
    wait_conditions(api, "SecurityPolicy", "p", "False Invalid", "False BackendNotFound");
    assert_eq!(upstreams[0].requests(), 0);

    backend(api, "auth", "login", service.address(), None);
    wait_conditions(api, "SecurityPolicy", "p", "True Accepted", "True ResolvedRefs");
    wait_status(&appliance, "/x", 302);
    let permitted = call("ann");
    assert_eq!((permitted.status, &permitted.json()["headers"]["x-user"]), (200, &json!("ann")));
    let asked = service.asked();
    assert_eq!((asked.target.as_str(), asked.headers.get("host")), ("/verify", Some("login.auth:80")));

    // By the name of a host, which is resolved, and whose service is gone in the end.
    let port = service.address().port();
    let url =
        |url: String| json!({ "spec": { "extAuth": { "http": { "backendRef": null, "path": null, "url": url } } } });
    api.patch("SecurityPolicy", NAMESPACE, "p", &url(format!("http://localhost:{port}/by-url")));
    wait::until(TIMEOUT, "a request by URL", || {
        let status = call("ann").status;
        (status == 200 && service.asked().target == "/by-url").then_some(())
    });
    wait_conditions(api, "SecurityPolicy", "p", "True Accepted", "True ResolvedRefs");
    api.patch("SecurityPolicy", NAMESPACE, "p", &url("http://nowhere.invalid/".to_owned()));
    wait_conditions(api, "SecurityPolicy", "p", "True Accepted", "False Invalid");
    wait_status(&appliance, "/x", 503);
    let refused = api.try_patch("SecurityPolicy", NAMESPACE, "p", &url("http://127.0.0.1/ a".to_owned()));
    assert!(refused.status == 422 && refused.text().contains("spec.extAuth.http.url"), "{refused}");
}

/// Of two policies for one target the oldest holds, and the other says so until the first is gone.
#[test]
fn second_policy_of_a_target_conflicts() {
    let appliance = with_gateway();
    let (api, _upstreams) = (appliance.api(), backends(&appliance, ["app"]));
    serve(api, &route("a", named_rules(&["x"])));
    let limited = |name: &str, bytes: u32| {
        policy("TrafficPolicy", name, &[target("HTTPRoute", "a")], json!({ "requestBody": { "maxBytes": bytes } }))
    };
    api.create(&limited("a-first", 4));
    wait_conditions(api, "TrafficPolicy", "a-first", "True Accepted", "True ResolvedRefs");
    api.create(&limited("b-second", 8));
    wait_conditions(api, "TrafficPolicy", "b-second", "False Conflicted", "True ResolvedRefs");
    let post = |body: &str| HttpCall::post("/x").host(HOST).body(body.as_bytes()).send(appliance.http()).status;
    wait::until(TIMEOUT, "the limit of the first", || (post("12345") == 413).then_some(()));
    assert_eq!(post("1234"), 200);
    api.delete("TrafficPolicy", NAMESPACE, "a-first");
    wait_conditions(api, "TrafficPolicy", "b-second", "True Accepted", "True ResolvedRefs");
    wait::until(TIMEOUT, "the limit of the second", || (post("12345") == 200).then_some(()));
    assert_eq!(post("123456789"), 413);
    api.create(&policy("TrafficPolicy", "rule", &[rule_of("a", "none")], json!({})));
    wait_conditions(api, "TrafficPolicy", "rule", "False TargetNotFound", "True ResolvedRefs");
}

/// CORS, rate limits and compression of policies, for all rules of a Gateway.
#[test]
fn policies_of_a_gateway_hold_for_its_routes() {
    let appliance = with_gateway();
    let (api, _upstreams) = (appliance.api(), backends(&appliance, ["app"]));
    serve(api, &route("a", named_rules(&["x"])));
    let gateway = [target("Gateway", "web")];
    api.create(&security("p", &gateway, json!({ "cors": { "allowOrigins": ["https://a.test"] } })));
    let from_page = || HttpCall::get("/x").host(HOST).header("origin", "https://a.test").send(appliance.http());
    wait::until(TIMEOUT, "the header", || {
        (from_page().header("access-control-allow-origin") == Some("https://a.test")).then_some(())
    });
    let limits = json!([{ "requests": 2, "period": "1h", "by": "Header", "header": "X-Key" }]);
    api.patch("SecurityPolicy", NAMESPACE, "p", &json!({ "spec": { "rateLimits": limits, "cors": null } }));
    let by_key = |key: &str| HttpCall::get("/x").host(HOST).header("x-key", key).send(appliance.http()).status;
    wait::until(TIMEOUT, "the limit", || (by_key("a") == 429).then_some(()));
    assert_eq!([by_key("b"), by_key("b"), by_key("b")], [200, 200, 429]);
    // A change elsewhere in the policy does not fill the buckets again.
    api.patch("SecurityPolicy", NAMESPACE, "p", &json!({ "spec": { "deny": ["10.0.0.0/8"] } }));
    api.wait_for("SecurityPolicy", NAMESPACE, "p", TIMEOUT, |policy| {
        policy["status"]["ancestors"][0]["conditions"][0]["observedGeneration"] == policy["metadata"]["generation"]
    });
    assert_eq!(by_key("b"), 429);
}

/// A misspelt field does not make a weaker policy.
#[test]
fn unknown_field_of_a_policy_is_refused() {
    let appliance = with_gateway();
    let refused = appliance.api().try_create(&security("p", &[target("HTTPRoute", "a")], json!({ "denny": ["::1"] })));
    assert!(refused.status == 400 && refused.text().contains("denny"), "{refused}");
}
