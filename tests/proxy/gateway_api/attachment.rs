//! Which listeners a route attaches to, and for which hosts.

use super::*;

fn all_namespaces() -> Value {
    json!({ "namespaces": { "from": "All" } })
}

/// HTTPRouteListenerHostnameMatching, HTTPRouteHostnameIntersection.
#[test]
fn route_has_the_hosts_that_its_listeners_have_too() {
    let appliance = ApplianceSetup::new(BIN).start();
    let port = appliance.http().port();
    let listener =
        |name: &str, hostname: &str| json!({ "name": name, "port": port, "protocol": "HTTP", "hostname": hostname });
    let listeners = json!([
        listener("exact", "very.specific.test"),
        listener("wild", "*.wildcard.test"),
        listener("deeper", "*.very.wildcard.test"),
    ]);
    gateway(&appliance, "web", listeners);
    let _upstreams = backends(&appliance, ["one", "two", "three"]);
    let route = |name: &str, section: Option<&str>, hostnames: &[&str]| {
        let mut object = route(name, json!([{ "backendRefs": [to(name)] }]));
        object["spec"]["hostnames"] = json!(hostnames);
        if let Some(section) = section {
            object["spec"]["parentRefs"][0]["sectionName"] = section.into();
        }
        serve(appliance.api(), &object)
    };
    route("one", None, &["very.specific.test", "*.specific.test", "non.matching.test"]);
    route("two", None, &["*.wildcard.test", "a.very.wildcard.test"]);
    let none = route("three", Some("exact"), &["other.test"]);
    assert_eq!(condition(conditions(&none), "Accepted"), "False NoMatchingListenerHostname");
    for (host, name) in [
        ("very.specific.test", "one"),
        ("VERY.specific.test:1234", "one"),
        ("other.specific.test", "404"),
        ("non.matching.test", "404"),
        ("a.wildcard.test", "two"),
        ("a.b.wildcard.test", "two"),
        ("a.very.wildcard.test", "two"),
        ("a.b.very.wildcard.test", "two"),
        ("wildcard.test", "404"),
        ("other.test", "404"),
    ] {
        assert_eq!(answers(&appliance, HttpCall::get("/").host(host)), name, "{host}");
    }
}

/// HTTPRouteCrossNamespace, HTTPRouteInvalidCrossNamespaceParentRef, GatewayWithAttachedRoutes: routes of namespaces that a
/// listener allows attach, and are counted.
#[test]
fn listener_takes_routes_of_its_namespaces_only() {
    let appliance = ApplianceSetup::new(BIN).start();
    let port = appliance.http().port();
    let listener = |name: &str, allowed: Value| {
        let hostname = format!("{name}.test");
        json!({ "name": name, "port": port, "protocol": "HTTP", "hostname": hostname, "allowedRoutes": allowed })
    };
    let selector = json!({ "from": "Selector", "selector": { "matchLabels": { "team": "a" } } });
    let listeners = json!([
        listener("same", json!({})),
        listener("all", all_namespaces()),
        listener("some", json!({ "namespaces": selector })),
        listener("grpc", json!({ "namespaces": { "from": "All" }, "kinds": [{ "kind": "GRPCRoute" }] })),
    ]);
    gateway(&appliance, "web", listeners);
    let api = appliance.api();
    namespace(api, "apps", json!({ "team": "b" }));
    let upstream = TestUpstream::start("app");
    backend(api, "apps", "app", upstream.address(), None);
    let attach = |section: &str| {
        let mut object = route(section, json!([{ "backendRefs": [to("app")] }]));
        object["metadata"]["namespace"] = "apps".into();
        object["spec"]["hostnames"] = json!([format!("{section}.test")]);
        object["spec"]["parentRefs"] = json!([{ "name": "web", "namespace": NAMESPACE, "sectionName": section }]);
        condition(conditions(&serve(api, &object)), "Accepted")
    };
    let refused = "False NotAllowedByListeners";
    assert_eq!(["same", "all", "some", "grpc"].map(attach), [refused, "True Accepted", refused, refused]);
    assert_eq!(
        ["same.test", "all.test"].map(|host| answers(&appliance, HttpCall::get("/").host(host))),
        ["404", "app"]
    );

    // Labels of a namespace count at once.
    api.patch("Namespace", "", "apps", &json!({ "metadata": { "labels": { "team": "a" } } }));
    api.wait_for("HTTPRoute", "apps", "some", TIMEOUT, |route| {
        condition(conditions(route), "Accepted") == "True Accepted"
    });
    assert_eq!(answers(&appliance, HttpCall::get("/").host("some.test")), "app");
    let counts = |gateway: &Value| -> Vec<i64> {
        let listeners = gateway["status"]["listeners"].as_array().unwrap().iter();
        listeners.map(|listener| listener["attachedRoutes"].as_i64().unwrap()).collect()
    };
    api.wait_for("Gateway", NAMESPACE, "web", TIMEOUT, |gateway| counts(gateway) == [0, 1, 1, 0]);
}

/// HTTPRouteInvalidParentRefNotMatchingSectionName, HTTPRouteInvalidParentRefSectionNameNotMatchingPort,
/// HTTPRouteParentRefPort.
#[test]
fn parent_reference_names_a_listener_by_section_and_port() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["app"]);
    let port = appliance.http().port();
    let attach = |name: &str, parent: Value| {
        let mut object = route(name, json!([{ "backendRefs": [to("app")] }]));
        object["spec"]["parentRefs"] = json!([parent]);
        condition(conditions(&serve(appliance.api(), &object)), "Accepted")
    };
    assert_eq!(attach("section", json!({ "name": "web", "sectionName": "other" })), "False NoMatchingParent");
    assert_eq!(attach("port", json!({ "name": "web", "port": 1 })), "False NoMatchingParent");
    let wrong = json!({ "name": "web", "sectionName": "other", "port": port });
    assert_eq!(attach("both", wrong), "False NoMatchingParent");
    assert_eq!(get(&appliance, HOST, "/").status, 404);
    assert_eq!(attach("right", json!({ "name": "web", "sectionName": "http", "port": port })), "True Accepted");
    assert_eq!(get(&appliance, HOST, "/").status, 200);
}

/// A host belongs to one object: a route for the host of a Knative Service is told so, and gets it when it is free.
#[test]
fn host_of_a_knative_service_is_not_taken() {
    let appliance = ApplianceSetup::new(BIN).hello_image("registry.example.com/hello:v1").start();
    let api = appliance.api();
    api.create(&kit::manifest::service("hello", "registry.example.com/hello:v1", "Knative"));
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);
    let listener = json!({ "name": "http", "port": appliance.http().port(), "protocol": "HTTP" });
    gateway(&appliance, "web", json!([listener]));
    let _upstreams = backends(&appliance, ["app"]);
    let host = format!("hello.{NAMESPACE}.localhost");
    let mut object = route("taken", json!([{ "backendRefs": [to("app")] }]));
    object["spec"]["hostnames"] = json!([host]);
    assert_eq!(condition(conditions(&serve(api, &object)), "Accepted"), "False HostnameConflict");
    api.delete("Service", NAMESPACE, "hello");
    api.wait_for("HTTPRoute", NAMESPACE, "taken", TIMEOUT, |route| {
        condition(conditions(route), "Accepted") == "True Accepted"
    });
    assert_eq!(answers(&appliance, HttpCall::get("/").host(&host)), "app");
}

/// Routes are served before the first reconcile after a restart.
#[test]
fn routes_are_served_at_once_after_a_restart() {
    let mut appliance = with_gateway();
    let _upstreams = backends(&appliance, ["app"]);
    serve(appliance.api(), &route("app", json!([{ "backendRefs": [to("app")] }])));
    assert_eq!(answers(&appliance, HttpCall::get("/").host(HOST)), "app");
    appliance.restart_on_same_ports();
    assert_eq!(answers(&appliance, HttpCall::get("/").host(HOST)), "app");
}
