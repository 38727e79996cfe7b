//! Protection of the API and the admin listener from web pages, through the built binary.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod browser;
mod events;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use kit::manifest::{NAMESPACE, broker, trigger};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, HttpResponse, TIMEOUT, TestEvent};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const REPLAY: &str = "/debug/events/replay?trigger=default/t&from=earliest";

/// An appliance with one event that was delivered, so that a replay would send something.
fn with_one_event() -> (Appliance, EventSink) {
    let (appliance, sink) = (ApplianceSetup::new(BIN).start(), EventSink::start());
    appliance.api().create(&broker("main"));
    appliance.api().create(&trigger("t", "main", &sink.url()));
    appliance.api().wait_ready("Trigger", NAMESPACE, "t", TIMEOUT);
    let answer = TestEvent::new("one").binary("/brokers/default/main").send(appliance.events());
    assert_eq!(answer.status, 202, "{answer}");
    sink.wait_for(1, TIMEOUT);
    (appliance, sink)
}

/// Answer to a request that is sent as it stands.
fn raw(at: SocketAddr, request: &str) -> HttpResponse {
    let mut connection = HttpConnection::open(at);
    connection.send(request.as_bytes());
    connection.try_receive(false).unwrap()
}

/// A count of the metric of rejections.
fn rejections(appliance: &Appliance, listener: &str, reason: &str) -> u64 {
    let metrics = HttpCall::get("/metrics").send(appliance.admin());
    let series = format!("sluicegate_cross_origin_rejections_total{{listener=\"{listener}\",reason=\"{reason}\"}} ");
    metrics.text().lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).unwrap()
}

#[test]
fn host_that_is_not_the_listeners_own_is_rejected() {
    let appliance = ApplianceSetup::new(BIN).flag("allowed-host", "gate.lan").start();
    for at in [appliance.api().address(), appliance.admin()] {
        let port = at.port();
        for (head, expected) in [
            (format!("GET /readyz HTTP/1.1\r\nHost: localhost:{port}"), 200),
            ("GET /readyz HTTP/1.1\r\nHost: LOCALHOST".to_owned(), 200),
            (format!("GET /readyz HTTP/1.1\r\nHost: localhost.:{port}"), 200),
            (format!("GET /readyz HTTP/1.1\r\nHost: [::1]:{port}"), 200),
            ("GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:1".to_owned(), 200),
            (format!("GET /readyz HTTP/1.1\r\nHost: gate.lan:{port}"), 200),
            (format!("GET http://localhost:{port}/readyz HTTP/1.1\r\nHost: localhost"), 200),
            ("GET /readyz HTTP/1.0".to_owned(), 200),
            (format!("GET /readyz HTTP/1.1\r\nHost: evil.example:{port}"), 421),
            ("GET /readyz HTTP/1.1\r\nHost: localhost.evil.example".to_owned(), 421),
            ("GET /readyz HTTP/1.1\r\nHost: 0.0.0.0".to_owned(), 421),
            (format!("GET http://evil.example:{port}/readyz HTTP/1.1\r\nHost: localhost"), 421),
            ("GET /readyz HTTP/1.1\r\nHost: localhost:8001.".to_owned(), 400),
            ("GET /readyz HTTP/1.1\r\nHost: user@localhost".to_owned(), 400),
            ("GET /readyz HTTP/1.1\r\nHost:".to_owned(), 400),
            ("GET /readyz HTTP/1.1".to_owned(), 400),
            ("GET /readyz HTTP/1.1\r\nHost: localhost\r\nHost: localhost".to_owned(), 400),
            ("GET /version HTTP/1.0".to_owned(), 400),
        ] {
            let answer = raw(at, &format!("{head}\r\nConnection: close\r\n\r\n"));
            assert_eq!(answer.status, expected, "{at}: {head}: {answer}");
        }
    }
}

#[test]
fn rejection_is_a_status_on_the_api_and_text_on_admin() {
    let appliance = ApplianceSetup::new(BIN).start();
    let [api, admin] = [appliance.api().address(), appliance.admin()];
    let foreign = HttpCall::get("/api/v1/secrets").host("evil.example").send(api);
    let status = foreign.json();
    assert_eq!((foreign.status, &status["kind"], &status["code"]), (421, &json!("Status"), &json!(421)));
    assert!(status["message"].as_str().unwrap().contains("--allowed-host evil.example"), "{status}");
    let foreign = HttpCall::get("/metrics").host("evil.example").send(admin);
    assert!(foreign.status == 421 && foreign.text().starts_with("Host \"evil.example\""), "{foreign}");

    for at in [api, admin] {
        let preflight = HttpCall::new("OPTIONS", "/readyz")
            .header("Origin", "http://localhost:3000")
            .header("Access-Control-Request-Method", "POST")
            .send(at);
        assert_eq!(preflight.status, 403, "{preflight}");
        let grants = |(name, _): &(String, String)| name.to_ascii_lowercase().starts_with("access-control-");
        assert!(!preflight.headers.0.iter().any(grants), "{preflight}");
    }
    assert_eq!((rejections(&appliance, "api", "host"), rejections(&appliance, "admin", "host")), (1, 1));
    assert_eq!((rejections(&appliance, "api", "origin"), rejections(&appliance, "admin", "origin")), (1, 1));
    appliance.wait_says("rejected a request that a web page may have sent");
}

#[test]
fn requests_as_pages_send_them_do_nothing() {
    let (appliance, sink) = with_one_event();
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "planted" } }).to_string();
    let [api, admin] = [appliance.api().address(), appliance.admin()];
    let create = || HttpCall::post(MAPS).body(map.as_bytes());
    for (what, call, expected) in [
        ("no content type", create(), 415),
        ("plain text", create().header("Content-Type", "text/plain;charset=UTF-8"), 415),
        ("a form", create().header("Content-Type", "application/x-www-form-urlencoded"), 415),
        ("a form in parts", create().header("Content-Type", "multipart/form-data; boundary=a"), 415),
        ("an origin", create().header("Origin", "http://localhost:3000"), 403),
        ("no origin", create().header("Origin", "null"), 403),
        (
            "JSON of another site",
            create().header("Content-Type", "application/json").header("Sec-Fetch-Site", "cross-site"),
            403,
        ),
        (
            "JSON of another port",
            create().header("Content-Type", "application/json").header("Sec-Fetch-Site", "same-site"),
            403,
        ),
        ("a read", HttpCall::get("/api/v1/secrets").header("Sec-Fetch-Site", "same-site"), 403),
        (
            "a WebSocket",
            HttpCall::get(MAPS)
                .header("Origin", "http://evil.example")
                .header("Connection", "Upgrade")
                .header("Upgrade", "websocket"),
            403,
        ),
        ("a backup", HttpCall::new("PUT", "/sluicegate/backup").body("{}"), 415),
        ("a token", HttpCall::post("/api/v1/namespaces/default/serviceaccounts/default/token").body("{}"), 415),
        ("a review", HttpCall::post("/apis/authentication.k8s.io/v1/tokenreviews").body("{}"), 415),
    ] {
        let answer = call.send(api);
        assert_eq!((answer.status, &answer.json()["kind"]), (expected, &json!("Status")), "{what}: {answer}");
    }
    for (what, call, expected) in [
        ("an origin", HttpCall::post(REPLAY).header("Origin", "http://evil.example"), 403),
        ("another port", HttpCall::post(REPLAY).header("Sec-Fetch-Site", "same-site"), 403),
        ("plain text", HttpCall::post(REPLAY).header("Content-Type", "text/plain").body("x"), 415),
        ("an image", HttpCall::get("/debug/events/dead-letters").header("Sec-Fetch-Site", "cross-site"), 403),
        ("metrics", HttpCall::get("/metrics").header("Origin", "http://evil.example"), 403),
    ] {
        let answer = call.send(admin);
        assert_eq!(answer.status, expected, "{what}: {answer}");
    }
    assert!(appliance.api().get("ConfigMap", NAMESPACE, "planted").is_none());

    // What is no page's continues as before, and shows that a replay would have sent something.
    let own = create().header("Content-Type", "application/json").header("Origin", &format!("http://{api}"));
    assert_eq!(own.send(api).status, 201);
    for at in [api, admin] {
        assert_eq!(HttpCall::get("/readyz").header("Origin", "http://status.example").send(at).status, 200);
    }
    assert_eq!(sink.received().len(), 1);
    assert_eq!(HttpCall::post(REPLAY).send(admin).status, 200);
    sink.wait_for(2, TIMEOUT);
}

#[test]
fn unix_socket_takes_any_host_and_no_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let appliance = ApplianceSetup::new(BIN).flag("api-socket", &path.display().to_string()).start();
    let ask = |head: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(ask("GET /api/v1/secrets HTTP/1.1\r\nHost: api"), "200");
    assert_eq!(ask("GET /api/v1/secrets HTTP/1.1\r\nHost: api\r\nOrigin: http://api"), "403");
    assert_eq!(rejections(&appliance, "api-socket", "origin"), 1);
}

#[test]
fn loopback_needs_a_token_where_the_operator_says_so() {
    let setup = ApplianceSetup::new(BIN).switch("api-authenticate");
    let appliance = setup.start();
    let api = appliance.api().address();
    assert_eq!(HttpCall::get(MAPS).send(api).status, 401);
    assert_eq!(HttpCall::get("/readyz").send(api).status, 200);
    let kubeconfig = std::fs::read_to_string(setup.data().join("api/kubeconfig")).unwrap();
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap();
    let call = HttpCall::get(MAPS).header("Authorization", &format!("Bearer {token}"));
    assert_eq!(call.send(api).status, 200);
}

#[test]
fn method_that_is_not_allowed_is_answered_with_those_that_are() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api().address();
    for (method, path, allowed) in [
        ("PUT", MAPS, "GET, POST, DELETE"),
        ("POST", "/api/v1/namespaces/default/pods/one", "GET, PUT, PATCH, DELETE"),
        ("POST", "/api/v1/namespaces/default", "GET, PUT, PATCH, DELETE"),
        ("DELETE", "/version", "GET, HEAD"),
        ("DELETE", "/sluicegate/backup", "GET, PUT"),
        ("GET", "/api/v1/namespaces/default/serviceaccounts/default/token", "POST"),
    ] {
        let answer = HttpCall::new(method, path).send(api);
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allowed)), "{method} {path}: {answer}");
    }
    let answer = HttpCall::post("/metrics").send(appliance.admin());
    assert!(answer.status == 405 && answer.header("allow").is_some(), "{answer}");
}
