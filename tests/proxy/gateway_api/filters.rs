//! What happens to requests and responses on the way.

use super::*;

fn filtered(path: &str, filters: Value, backend: Option<&str>) -> Value {
    let mut rule = json!({ "matches": [{ "path": { "value": path } }], "filters": filters });
    if let Some(backend) = backend {
        rule["backendRefs"] = json!([to(backend)]);
    }
    rule
}

/// HTTPRouteRequestHeaderModifier, HTTPRouteResponseHeaderModifier, HTTPRouteBackendRequestHeaderModifier.
#[test]
fn headers_are_set_added_and_removed() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["app"]);
    let field = |name: &str, value: &str| json!({ "name": name, "value": value });
    let changes = json!({ "set": [field("X-Set", "rule")], "add": [field("X-Add", "rule")], "remove": ["X-Remove"] });
    let response =
        json!({ "set": [field("X-Upstream", "hidden")], "add": [field("X-More", "1")], "remove": ["Content-Type"] });
    let mut per_backend = filtered("/backend", json!([]), Some("app"));
    per_backend["backendRefs"][0]["filters"] =
        json!([{ "type": "RequestHeaderModifier", "requestHeaderModifier": changes }]);
    let rules = json!([
        filtered(
            "/request",
            json!([{ "type": "RequestHeaderModifier", "requestHeaderModifier": changes }]),
            Some("app")
        ),
        filtered(
            "/response",
            json!([{ "type": "ResponseHeaderModifier", "responseHeaderModifier": response }]),
            Some("app")
        ),
        per_backend,
    ]);
    serve(appliance.api(), &route("headers", rules));
    for target in ["/request", "/backend"] {
        let call = HttpCall::get(target).host(HOST).header("x-set", "client").header("x-add", "client");
        let seen = call.header("x-remove", "client").send(appliance.http()).json();
        let headers = &seen["headers"];
        assert_eq!((headers["x-set"].as_str(), headers["x-remove"].as_str()), (Some("rule"), None), "{target}: {seen}");
        assert_eq!(headers["x-add"], "client, rule", "{target}");
    }
    let response = get(&appliance, HOST, "/response");
    assert_eq!(response.header("x-upstream"), Some("hidden"));
    assert_eq!((response.header("x-more"), response.header("content-type")), (Some("1"), None));
}

/// HTTPRouteRedirectHostAndStatus, HTTPRouteRedirectScheme, HTTPRouteRedirectPort, HTTPRouteRedirectPath,
/// HTTPRoute303RedirectStatusCode.
#[test]
fn redirect_changes_what_its_filter_names() {
    let appliance = with_gateway();
    let port = appliance.http().port();
    let redirect = |path: &str, filter: Value| {
        filtered(path, json!([{ "type": "RequestRedirect", "requestRedirect": filter }]), None)
    };
    let rules = json!([
        redirect("/host", json!({ "hostname": "other.test" })),
        redirect("/scheme", json!({ "scheme": "https", "statusCode": 301 })),
        redirect("/port", json!({ "port": 8083, "statusCode": 307 })),
        redirect(
            "/full",
            json!({ "path": { "type": "ReplaceFullPath", "replaceFullPath": "/new" }, "statusCode": 308 })
        ),
        redirect(
            "/prefix",
            json!({ "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/new" }, "statusCode": 303 })
        ),
    ]);
    let route = serve(appliance.api(), &route("redirects", rules));
    assert_eq!(condition(conditions(&route), "Accepted"), "True Accepted");
    let host = format!("{HOST}:{port}");
    for (target, status, location) in [
        ("/host/a?b=c", 302, format!("http://other.test:{port}/host/a?b=c")),
        ("/scheme", 301, format!("https://{HOST}/scheme")),
        ("/port", 307, format!("http://{HOST}:8083/port")),
        ("/full/a?b=c", 308, format!("http://{host}/new?b=c")),
        ("/prefix/a", 303, format!("http://{host}/new/a")),
        ("/prefix", 303, format!("http://{host}/new")),
    ] {
        let response = get(&appliance, &host, target);
        assert_eq!((response.status, response.header("location")), (status, Some(location.as_str())), "{target}");
    }
}

/// HTTPRouteRewriteHost, HTTPRouteRewritePath.
#[test]
fn rewrite_changes_host_and_path_for_the_backend() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["app"]);
    let rewrite = |path: &str, filter: Value| {
        filtered(path, json!([{ "type": "URLRewrite", "urlRewrite": filter }]), Some("app"))
    };
    let prefix = |to: &str| json!({ "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": to } });
    let rules = json!([
        rewrite("/host", json!({ "hostname": "inner.test" })),
        rewrite("/full", json!({ "path": { "type": "ReplaceFullPath", "replaceFullPath": "/one" } })),
        rewrite("/prefix", prefix("/new")),
        rewrite("/strip", prefix("/")),
    ]);
    serve(appliance.api(), &route("rewrites", rules));
    let seen = |target: &str| get(&appliance, HOST, target).json();
    assert_eq!(seen("/host/a")["headers"]["host"], "inner.test");
    for (target, path) in [
        ("/host/a", "/host/a"),
        ("/full/a?b", "/one?b"),
        ("/prefix/a?b", "/new/a?b"),
        ("/prefix", "/new"),
        ("/strip/a", "/a"),
        ("/strip", "/"),
    ] {
        assert_eq!(seen(target)["target"], path, "{target}");
    }
}

/// HTTPRouteRequestMirror, HTTPRouteRequestMultipleMirrors, HTTPRouteRequestPercentageMirror.
#[test]
fn mirrors_get_their_part_of_the_requests() {
    let appliance = with_gateway();
    let upstreams = backends(&appliance, ["app", "all", "none"]);
    let mirror = |name: &str, percent: u32| json!({ "type": "RequestMirror", "requestMirror": { "backendRef": to(name), "percent": percent } });
    serve(
        appliance.api(),
        &route("mirror", json!([filtered("/", json!([mirror("all", 100), mirror("none", 0)]), Some("app"))])),
    );
    for _ in 0..20 {
        assert_eq!(answers(&appliance, HttpCall::get("/").host(HOST)), "app");
    }
    kit::wait::until(TIMEOUT, "copies of all requests", || (upstreams[1].requests() == 20).then_some(()));
    assert_eq!((upstreams[0].requests(), upstreams[2].requests()), (20, 0));
}

/// HTTPRouteTimeoutRequest, HTTPRouteTimeoutBackendRequest.
#[test]
fn request_beyond_its_timeout_is_answered_504() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["app"]);
    let timed = |path: &str, timeouts: Value| {
        let mut rule = filtered(path, json!([]), Some("app"));
        rule["timeouts"] = timeouts;
        rule
    };
    let mut object = route(
        "timeouts",
        json!([timed("/delay", json!({ "request": "300ms" })), timed("/", json!({ "request": "0s" }))]),
    );
    object["spec"]["rules"][0]["timeouts"]["backendRequest"] = "200ms".into();
    serve(appliance.api(), &object);
    assert_eq!(get(&appliance, HOST, "/delay?ms=5000").status, 504);
    assert_eq!(get(&appliance, HOST, "/delay?ms=1").status, 200);
}

/// A filter that is not there is not left out: its requests fail, and the status says why.
#[test]
fn unsupported_filter_is_refused_and_answered_500() {
    let appliance = with_gateway();
    let _upstreams = backends(&appliance, ["app"]);
    let extension =
        json!([{ "type": "ExtensionRef", "extensionRef": { "group": "a.test", "kind": "B", "name": "c" } }]);
    let rules = json!([filtered("/ext", extension, Some("app")), { "backendRefs": [to("app")] }]);
    let route = serve(appliance.api(), &route("extension", rules));
    assert_eq!(condition(conditions(&route), "Accepted"), "False UnsupportedValue");
    assert_eq!(["/ext", "/"].map(|target| get(&appliance, HOST, target).status), [500, 200]);
}
