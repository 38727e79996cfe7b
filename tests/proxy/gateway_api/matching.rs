//! Which rule a request takes.

use super::*;

fn matched(matches: Value, name: &str) -> Value {
    json!({ "matches": [matches], "backendRefs": [to(name)] })
}

/// HTTPRouteSimpleSameNamespace, HTTPRouteExactPathMatching, HTTPRoutePathMatchOrder.
#[test]
fn exact_paths_come_before_longer_prefixes() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["root", "prefix", "deep", "exact", "regex"]);
    let path = |kind: &str, value: &str| json!({ "path": { "type": kind, "value": value } });
    let route = route(
        "paths",
        json!([
            { "backendRefs": [to("root")] },
            matched(path("PathPrefix", "/match"), "prefix"),
            matched(path("PathPrefix", "/match/deep/"), "deep"),
            matched(path("Exact", "/match/exact"), "exact"),
            matched(path("RegularExpression", "/v[0-9]+/.*"), "regex"),
        ]),
    );
    let route = serve(appliance.api(), &route);
    assert_eq!(condition(conditions(&route), "Accepted"), "True Accepted");
    assert_eq!(condition(conditions(&route), "ResolvedRefs"), "True ResolvedRefs");
    for (target, name) in [
        ("/", "root"),
        ("/match", "prefix"),
        ("/match/", "prefix"),
        ("/matching", "root"),
        ("/match/deep", "deep"),
        ("/match/deep/er?a=b", "deep"),
        ("/match/exact", "exact"),
        ("/match/exact/", "prefix"),
        ("/match/exact?a", "exact"),
        ("/v12/a", "regex"),
        ("/v/a", "root"),
    ] {
        assert_eq!(answers(&appliance, HttpCall::get(target).host(HOST)), name, "{target}");
    }
}

/// HTTPRouteHeaderMatching, HTTPRouteMethodMatching, HTTPRouteQueryParamMatching, HTTPRouteMatching.
#[test]
fn method_headers_and_query_choose_the_rule() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["root", "method", "one", "two", "regex", "query", "both"]);
    let header = |name: &str, value: &str| json!({ "name": name, "value": value });
    let parameter = json!([{ "name": "animal", "value": "blue whale" }]);
    let rules = json!([
        { "backendRefs": [to("root")] },
        matched(json!({ "method": "PATCH" }), "method"),
        matched(json!({ "headers": [header("Version", "one")] }), "one"),
        matched(json!({ "headers": [header("Version", "one"), header("Color", "blue")] }), "two"),
        matched(json!({ "headers": [{ "name": "Version", "value": "v[0-9]", "type": "RegularExpression" }] }), "regex"),
        matched(json!({ "queryParams": parameter }), "query"),
        { "matches": [{ "headers": [header("Color", "red")] }, { "path": { "value": "/red" } }],
            "backendRefs": [to("both")] },
    ]);
    serve(appliance.api(), &route("conditions", rules));
    let call = |method: &str, target: &str| HttpCall::new(method, target).host(HOST);
    for (call, name) in [
        (call("GET", "/"), "root"),
        (call("PATCH", "/"), "method"),
        (call("PATCH", "/").header("version", "one"), "method"),
        (call("GET", "/").header("VERSION", "one"), "one"),
        (call("GET", "/").header("version", "One"), "root"),
        (call("GET", "/").header("color", "blue").header("version", "one"), "two"),
        (call("GET", "/").header("version", "v2"), "regex"),
        (call("GET", "/").header("version", "v22"), "root"),
        (call("GET", "/?animal=blue%20whale"), "query"),
        (call("GET", "/?a=b&animal=blue+whale&c"), "query"),
        (call("GET", "/?animal=whale"), "root"),
        (call("GET", "/red"), "both"),
        (call("GET", "/").header("color", "red"), "both"),
    ] {
        assert_eq!(answers(&appliance, call.clone()), name, "{call:?}");
    }
}

/// HTTPRouteMatchingAcrossRoutes: rules of all routes of a host are tried in one order, the older route first.
#[test]
fn rules_of_several_routes_are_in_one_order() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["old", "new", "deep"]);
    serve(appliance.api(), &route("b", json!([{ "backendRefs": [to("old")] }])));
    kit::wait::rest(std::time::Duration::from_millis(1_100)); // times of creation have seconds
    let deep = matched(json!({ "path": { "value": "/deep" } }), "deep");
    serve(appliance.api(), &route("a", json!([{ "backendRefs": [to("new")] }, deep])));
    assert_eq!(answers(&appliance, HttpCall::get("/").host(HOST)), "old");
    assert_eq!(answers(&appliance, HttpCall::get("/deep").host(HOST)), "deep");
    appliance.api().delete("HTTPRoute", NAMESPACE, "b");
    kit::wait::until(TIMEOUT, "the younger route", || {
        (answers(&appliance, HttpCall::get("/").host(HOST)) == "new").then_some(())
    });
    appliance.api().delete("HTTPRoute", NAMESPACE, "a");
    kit::wait::until(TIMEOUT, "no route", || (get(&appliance, HOST, "/").status == 404).then_some(()));
}
