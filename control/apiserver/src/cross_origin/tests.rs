use http::Request;

use super::*;

fn protection() -> CrossOriginProtection {
    let hosts = OwnHosts::new("127.0.0.1".parse().unwrap(), ["gate.example.com".to_owned()]);
    CrossOriginProtection::new(GuardedListener::Api, false, hosts, Arc::default())
}

/// Status of a request with these fields; 200: it is accepted.
fn status(protection: &CrossOriginProtection, method: &str, target: &str, fields: &[(&str, &str)]) -> u16 {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    protection.decide(&head).map_or_else(|rejection| rejection.status().as_u16(), |()| 200)
}

const HOST: (&str, &str) = ("host", "localhost:8001");

#[test]
fn absolute_target_and_host_are_both_checked() {
    let own = protection();
    for (target, fields, expected) in [
        ("http://localhost:8001/api", [HOST].as_slice(), 200),
        ("http://127.0.0.1/api", &[HOST], 200),
        ("http://evil.example/api", &[HOST], 421),
        ("http://localhost:8001/api", &[("host", "evil.example")], 421),
        ("http://user@localhost:8001/api", &[HOST], 400),
        ("/api", &[], 400),
        ("/api", &[HOST, HOST], 400),
        ("/api", &[HOST, ("host", "evil.example")], 400),
        ("/api", &[("host", "")], 400),
        ("/api", &[("host", "evil.example:8001")], 421),
    ] {
        assert_eq!(status(&own, "GET", target, fields), expected, "{target} {fields:?}");
    }
}

#[test]
fn host_is_optional_only_for_http10_health_probes() {
    let own = protection();
    for (version, path, expected) in
        [(Version::HTTP_10, "/readyz", 200), (Version::HTTP_10, "/api", 400), (Version::HTTP_11, "/readyz", 400)]
    {
        let (head, ()) = Request::get(path).version(version).body(()).unwrap().into_parts();
        let answered = own.decide(&head).map_or_else(|why| why.status().as_u16(), |()| 200);
        assert_eq!(answered, expected, "{version:?} {path}");
    }
}

/// RFC 9113, 8.3.1: clients of HTTP/2 send `:authority` and no Host.
#[test]
fn authority_of_http2_is_its_host() {
    let own = protection();
    for (target, expected) in [("http://localhost:8001/api", 200), ("http://evil.example/api", 421), ("/api", 400)] {
        let (head, ()) = Request::get(target).version(Version::HTTP_2).body(()).unwrap().into_parts();
        let answered = own.decide(&head).map_or_else(|why| why.status().as_u16(), |()| 200);
        assert_eq!(answered, expected, "{target}");
    }
}

#[test]
fn origin_of_another_page_is_rejected() {
    let own = protection();
    for (host, origin, expected) in [
        ("localhost:8001", "http://localhost:8001", 200),
        ("localhost:8001", "http://LOCALHOST:8001", 200),
        ("localhost", "http://localhost", 200),
        ("localhost", "http://localhost:80", 200),
        ("gate.example.com:8001", "http://gate.example.com:8001", 200),
        ("[::1]:8001", "http://[::1]:8001", 200),
        ("localhost:8001", "http://127.0.0.1:8001", 403),
        ("localhost:8001", "https://localhost:8001", 403),
        ("localhost:8001", "http://localhost:3000", 403),
        ("localhost:8001", "http://localhost", 403),
        ("localhost:8001", "http://evil.example", 403),
        ("localhost:8001", "null", 403),
        ("localhost:8001", "", 403),
        ("localhost:8001", "file://", 403),
        ("localhost:8001", "http://localhost:8001/", 403),
        ("localhost:8001", "http://localhost:8001@evil.example", 403),
    ] {
        for (method, path) in [("GET", "/api"), ("POST", "/api"), ("OPTIONS", "/api"), ("DELETE", "/readyz")] {
            let fields = [("host", host), ("origin", origin)];
            assert_eq!(status(&own, method, path, &fields), expected, "{method} {path} {fields:?}");
        }
    }
    let twice = [HOST, ("origin", "http://localhost:8001"), ("origin", "http://evil.example")];
    assert_eq!(status(&own, "GET", "/api", &twice), 403);
}

#[test]
fn origin_of_tls_listener_has_scheme_https() {
    let hosts = OwnHosts::new("0.0.0.0".parse().unwrap(), ["gate".to_owned()]);
    let own = CrossOriginProtection::new(GuardedListener::Api, true, hosts, Arc::default());
    for (host, origin, expected) in [
        ("gate", "https://gate", 200),
        ("gate:443", "https://gate", 200),
        ("10.0.0.5:6443", "https://10.0.0.5:6443", 200),
        ("gate:80", "http://gate", 403),
    ] {
        assert_eq!(status(&own, "POST", "/api", &[("host", host), ("origin", origin)]), expected, "{host} {origin}");
    }
}

#[test]
fn fetch_site_of_another_page_is_rejected() {
    let own = protection();
    for (site, expected) in
        [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403), ("Same-Origin", 403), ("", 403)]
    {
        let fields = [HOST, ("sec-fetch-site", site)];
        assert_eq!(status(&own, "GET", "/api/v1/secrets", &fields), expected, "{site}");
        assert_eq!(status(&own, "GET", "/readyz", &fields), 200, "{site}");
    }
    let twice = [HOST, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")];
    assert_eq!(status(&own, "GET", "/api", &twice), 403);
}

#[test]
fn health_is_open_to_plain_gets_of_any_origin() {
    let own = protection();
    let origin = ("origin", "http://evil.example");
    for (method, path, further, expected) in [
        ("GET", "/healthz", ("accept", "*/*"), 200),
        ("GET", "/readyz/store", ("accept", "*/*"), 200),
        ("HEAD", "/livez", ("accept", "*/*"), 200),
        ("POST", "/healthz", ("accept", "*/*"), 403),
        ("GET", "/healthz", ("upgrade", "websocket"), 403),
        ("GET", "/healthzz", ("accept", "*/*"), 403),
        ("GET", "/healthz/../api", ("accept", "*/*"), 200), // the path is not resolved, and names nothing
    ] {
        assert_eq!(status(&own, method, path, &[HOST, origin, further]), expected, "{method} {path} {further:?}");
    }
    assert_eq!(status(&own, "GET", "/healthz", &[("host", "evil.example")]), 421);
}

#[test]
fn body_needs_a_content_type_that_needs_a_preflight() {
    let own = protection();
    let length = ("content-length", "2");
    for (fields, expected) in [
        ([length, ("content-type", "application/json")], 200),
        ([length, ("content-type", "application/strategic-merge-patch+json")], 200),
        ([length, ("content-type", "application/vnd.kubernetes.protobuf")], 200),
        ([length, ("content-type", "application/yaml; charset=utf-8")], 200),
        ([length, ("accept", "*/*")], 415),
        ([length, ("content-type", "")], 415),
        ([length, ("content-type", " ; charset=utf-8")], 415),
        ([length, ("content-type", "json")], 415),
        ([length, ("content-type", "text/plain")], 415),
        ([length, ("content-type", "Text/Plain;charset=UTF-8")], 415),
        ([length, ("content-type", "text/plain; application/json")], 415),
        ([length, ("content-type", "application/x-www-form-urlencoded")], 415),
        ([length, ("content-type", "multipart/form-data; boundary=x")], 415),
        ([("transfer-encoding", "chunked"), ("accept", "*/*")], 415),
        ([("content-length", "0"), ("accept", "*/*")], 200),
        ([("content-type", "text/plain"), ("accept", "*/*")], 200), // without a body
    ] {
        for method in ["POST", "PUT", "DELETE", "GET"] {
            let fields = [HOST, fields[0], fields[1]];
            assert_eq!(status(&own, method, "/api", &fields), expected, "{method} {fields:?}");
        }
    }
    for (agent, expected) in [("kubectl/v1.34.1 (linux/amd64)", 200), ("Mozilla/5.0 kubectl/v1.34.1", 415)] {
        assert_eq!(status(&own, "POST", "/api", &[HOST, length, ("user-agent", agent)]), expected, "{agent}");
    }
    let json = ("content-type", "application/json");
    assert_eq!(status(&own, "POST", "/api", &[HOST, length, json, ("content-type", "text/plain")]), 415);
}

#[test]
fn unix_socket_has_any_host_and_no_origin() {
    let own = CrossOriginProtection::of_socket(GuardedListener::ApiSocket, Arc::default());
    for (fields, expected) in [
        ([("host", "api"), ("accept", "*/*")], 200),
        ([("host", "evil.example"), ("accept", "*/*")], 200),
        ([("host", "api"), ("origin", "http://api")], 403),
        ([("host", "api"), ("sec-fetch-site", "cross-site")], 403),
        ([("host", "api"), ("content-length", "1")], 415),
    ] {
        assert_eq!(status(&own, "POST", "/api", &fields), expected, "{fields:?}");
    }
}

#[test]
fn rejection_names_what_to_do_and_is_cut() {
    let own = protection();
    let long = format!("{}.example:8001", "x".repeat(500));
    for (host, shown) in [("gate.lan:8001", "--allowed-host gate.lan"), (long.as_str(), "xxx")] {
        let (head, ()) = Request::get("/api").header("host", host).body(()).unwrap().into_parts();
        let message_of = own.decide(&head).unwrap_err().to_string();
        assert!(message_of.contains(shown) && message_of.len() < 600, "{message_of}");
    }
}
