//! The backends that a route refers to.

use super::*;

fn resolved(route: &Value) -> String {
    condition(conditions(route), "ResolvedRefs")
}

/// HTTPRouteInvalidNonExistentBackendRef, HTTPRouteInvalidBackendRefUnknownKind, BackendProtocol: such requests are answered
/// 500, and the status has the reason.
#[test]
fn invalid_backend_is_answered_500_with_a_reason() {
    let appliance = with_gateway();
    let api = appliance.api();
    let upstream = TestUpstream::start("tls");
    backend(api, NAMESPACE, "tls", upstream.address(), Some("https"));
    for (name, reference, reason) in [
        ("missing", to("missing"), "BackendNotFound"),
        ("port", json!({ "name": "tls", "port": 81 }), "BackendNotFound"),
        ("kind", json!({ "group": "unknown.test", "kind": "Other", "name": "a", "port": 80 }), "InvalidKind"),
        ("protocol", to("tls"), "UnsupportedProtocol"),
        ("knative", json!({ "group": "serving.knative.dev", "kind": "Service", "name": "none" }), "BackendNotFound"),
    ] {
        let mut object = route(name, json!([{ "backendRefs": [reference] }]));
        let host = format!("{name}.test");
        object["spec"]["hostnames"] = json!([host]);
        let route = serve(api, &object);
        assert_eq!(resolved(&route), format!("False {reason}"), "{name}");
        assert_eq!(condition(conditions(&route), "Accepted"), "True Accepted", "{name}");
        assert_eq!(get(&appliance, &host, "/").status, 500, "{name}");
    }
    // The Service comes later.
    backend(api, NAMESPACE, "missing", upstream.address(), None);
    api.wait_for("HTTPRoute", NAMESPACE, "missing", TIMEOUT, |route| resolved(route) == "True ResolvedRefs");
    kit::wait::until(TIMEOUT, "the backend", || (get(&appliance, "missing.test", "/").status == 200).then_some(()));
}

/// HTTPRouteInvalidCrossNamespaceBackendRef, HTTPRouteReferenceGrant, HTTPRoutePartiallyInvalidViaInvalidReferenceGrant.
#[test]
fn backend_of_another_namespace_needs_a_grant() {
    let appliance = with_gateway();
    let api = appliance.api();
    namespace(api, "apps", json!({}));
    let upstream = TestUpstream::start("app");
    backend(api, "apps", "app", upstream.address(), None);
    let reference = json!({ "name": "app", "namespace": "apps", "port": 80 });
    let route = serve(api, &route("cross", json!([{ "backendRefs": [reference] }])));
    assert_eq!(resolved(&route), "False RefNotPermitted");
    assert_eq!(get(&appliance, HOST, "/").status, 500);

    let grant = |name: &str, from: &str| {
        let from = json!([{ "group": "gateway.networking.k8s.io", "kind": from, "namespace": NAMESPACE }]);
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
            "metadata": { "name": name, "namespace": "apps" },
            "spec": { "from": from, "to": [{ "group": "", "kind": "Service", "name": "app" }] },
        })
    };
    for grant in [grant("other", "GRPCRoute"), grant("right", "HTTPRoute")] {
        // The older version, which Gateway API's guides use.
        let path = "/apis/gateway.networking.k8s.io/v1beta1/namespaces/apps/referencegrants";
        let response = api.send(HttpCall::post(path).json(&grant));
        assert_eq!(response.status, 201, "{response}");
    }
    api.wait_for("HTTPRoute", NAMESPACE, "cross", TIMEOUT, |route| resolved(route) == "True ResolvedRefs");
    assert_eq!(answers(&appliance, HttpCall::get("/").host(HOST)), "app");
    api.delete("ReferenceGrant", "apps", "right");
    api.wait_for("HTTPRoute", NAMESPACE, "cross", TIMEOUT, |route| resolved(route) == "False RefNotPermitted");
    assert_eq!(get(&appliance, HOST, "/").status, 500);
}

/// HTTPRouteWeight: requests are divided by weights, and the share of an invalid backend is answered 500.
#[test]
fn weights_divide_requests_and_invalid_shares_fail() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["one", "two", "none"]);
    let weighted = |name: &str, weight: u32| json!({ "name": name, "port": 80, "weight": weight });
    let references = json!([weighted("one", 6), weighted("two", 2), weighted("missing", 2), weighted("none", 0)]);
    serve(appliance.api(), &route("weights", json!([{ "backendRefs": references }])));
    let mut counts = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..1_000 {
        *counts.entry(answers(&appliance, HttpCall::get("/").host(HOST))).or_default() += 1;
    }
    // Within ten points, as in upstream's suite.
    assert!((500..=700).contains(&counts["one"]) && (100..=300).contains(&counts["two"]), "{counts:?}");
    assert!((100..=300).contains(&counts["500"]) && counts.len() == 3, "{counts:?}");

    let idle = route(
        "idle",
        json!([{ "backendRefs": [weighted("one", 0)] }, { "matches": [{ "path": { "value": "/none" } }] }]),
    );
    let mut idle = idle;
    idle["spec"]["hostnames"] = json!(["idle.test"]);
    serve(appliance.api(), &idle);
    assert_eq!(["/", "/none"].map(|target| get(&appliance, "idle.test", target).status), [500, 500]);
}

/// A Service with no ready endpoint is answered 503, as Gateway API asks.
#[test]
fn service_without_endpoints_is_answered_503() {
    let appliance = with_gateway();
    let metadata = json!({ "name": "empty", "namespace": NAMESPACE });
    let spec = json!({ "ports": [{ "port": 80 }] });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec });
    kit::kingress::core_service(appliance.api(), &service);
    let route = serve(appliance.api(), &route("empty", json!([{ "backendRefs": [to("empty")] }])));
    assert_eq!(resolved(&route), "True ResolvedRefs");
    assert_eq!(get(&appliance, HOST, "/").status, 503);
}

/// A Knative Service as a backend starts with the first request, next to a core Service.
#[test]
fn knative_service_is_a_backend_that_scales_to_zero() {
    const IMAGE: &str = "registry.example.com/hello:v1";
    let appliance = ApplianceSetup::new(BIN).hello_image(IMAGE).start();
    let api = appliance.api();
    let listener = json!({ "name": "http", "port": appliance.http().port(), "protocol": "HTTP" });
    gateway(&appliance, "web", json!([listener]));
    api.create(&kit::manifest::service("hello", IMAGE, "Gateway"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let _upstreams = backends(&appliance, ["core"]);
    let knative = json!({ "group": "serving.knative.dev", "kind": "Service", "name": "hello" });
    let core = json!({ "matches": [{ "path": { "value": "/core" } }], "backendRefs": [to("core")] });
    let route = serve(api, &route("mixed", json!([{ "backendRefs": [knative] }, core])));
    assert_eq!(resolved(&route), "True ResolvedRefs");
    let response = get(&appliance, HOST, "/");
    assert_eq!((response.status, response.text().contains("Gateway")), (200, true), "{response}");
    assert_eq!(answers(&appliance, HttpCall::get("/core").host(HOST)), "core");
}
