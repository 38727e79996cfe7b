//! Hostile and malformed bytes: a clear rejection, nothing stored, nothing forwarded, and
//! the process continues.

use kit::manifest::{NAMESPACE, broker, service, trigger};
use kit::{
    Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, HttpResponse, TIMEOUT, TestEvent, TestUpstream,
};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";
const BROKER: &str = "/brokers/default/main";

/// Requests that no server may take for one request, and why.
const MALFORMED: &[(&str, &str)] = &[
    ("no host", "GET / HTTP/1.1\r\n\r\n"),
    ("two hosts", "GET / HTTP/1.1\r\nHost: app.example.com\r\nHost: b\r\n\r\n"),
    ("a host with a space", "GET / HTTP/1.1\r\nHost: app.example.com b\r\n\r\n"),
    ("space before the colon", "GET / HTTP/1.1\r\nHost: app.example.com\r\nX-A : 1\r\n\r\n"),
    ("a folded header", "GET / HTTP/1.1\r\nHost: app.example.com\r\nX-A: 1\r\n folded\r\n\r\n"),
    ("a header without colon", "GET / HTTP/1.1\r\nHost: app.example.com\r\nnonsense\r\n\r\n"),
    ("an empty header name", "GET / HTTP/1.1\r\nHost: app.example.com\r\n: 1\r\n\r\n"),
    ("NUL in a value", "GET / HTTP/1.1\r\nHost: app.example.com\r\nX-A: a\0b\r\n\r\n"),
    ("a bare CR in a value", "GET / HTTP/1.1\r\nHost: app.example.com\r\nX-A: a\rb\r\n\r\n"),
    ("no version", "GET /\r\nHost: app.example.com\r\n\r\n"),
    ("an unknown version", "GET / HTTP/3.7\r\nHost: app.example.com\r\n\r\n"),
    ("a method of control characters", "G\x01T / HTTP/1.1\r\nHost: app.example.com\r\n\r\n"),
    ("a space in the target", "GET /a b HTTP/1.1\r\nHost: app.example.com\r\n\r\n"),
    (
        "length and chunks",
        "POST / HTTP/1.1\r\nHost: app.example.com\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    ),
    ("two lengths", "POST / HTTP/1.1\r\nHost: app.example.com\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    ("a list of lengths", "POST / HTTP/1.1\r\nHost: app.example.com\r\nContent-Length: 1, 2\r\n\r\nab"),
    ("a negative length", "POST / HTTP/1.1\r\nHost: app.example.com\r\nContent-Length: -1\r\n\r\n"),
    ("a signed length", "POST / HTTP/1.1\r\nHost: app.example.com\r\nContent-Length: +1\r\n\r\na"),
    (
        "a length past all numbers",
        "POST / HTTP/1.1\r\nHost: app.example.com\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    ),
    (
        "chunks that are not last",
        "POST / HTTP/1.1\r\nHost: app.example.com\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    (
        "a coding that only looks like chunks",
        "POST / HTTP/1.1\r\nHost: app.example.com\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunks twice",
        "POST / HTTP/1.1\r\nHost: app.example.com\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("chunks in HTTP/1.0", "POST / HTTP/1.0\r\nHost: app.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a TLS hello", "\x16\x03\x01\x02\0\x01\0\x01\u{7f}\x03\x03 random random random\r\n\r\n"),
    ("nonsense", "\u{1}\u{2}\u{3}\r\n\r\n"),
];

/// Chunked bodies whose head is fine. The request may have been passed on by the time they break.
const BROKEN_CHUNKS: &[&str] =
    &["-1\r\n", "g\r\n", "0x5\r\nhello\r\n", "fffffffffffffffff\r\n", "5\r\nhelloXX0\r\n\r\n"];

fn gateway(upstream: &TestUpstream) -> Appliance {
    ApplianceSetup::new(BIN).route(HOST, upstream.address()).start()
}

/// What is answered to raw bytes; `None` when the connection is closed without an answer.
fn answer(at: std::net::SocketAddr, bytes: &[u8]) -> Option<HttpResponse> {
    let mut connection = HttpConnection::open(at);
    connection.send(bytes);
    connection.finish();
    connection.try_receive(false).ok()
}

#[test]
fn malformed_requests_are_refused_and_reach_nobody() {
    let upstream = TestUpstream::start("one");
    let mut appliance = gateway(&upstream);
    for (what, bytes) in MALFORMED {
        let response = answer(appliance.http(), bytes.as_bytes());
        let status = response.as_ref().map_or(0, |response| response.status);
        assert!(matches!(status, 400 | 501 | 505), "{what}: {response:?}");
    }
    assert_eq!(upstream.requests(), 0, "none of them was passed on");
    assert!(appliance.is_running());
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
}

#[test]
fn a_refused_request_ends_its_connection() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    // What is after bytes that were not understood could be another's request.
    let mut connection = HttpConnection::open(appliance.http());
    connection
        .send(b"POST / HTTP/1.1\r\nHost: app.example.com\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n");
    connection.send(b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: app.example.com\r\n\r\n");
    assert_eq!(connection.receive().status, 400);
    assert_eq!(connection.rest(), Some(Vec::new()));
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn a_body_whose_chunks_break_is_not_completed() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    for chunks in BROKEN_CHUNKS {
        let head = format!("POST /mirror HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let response = answer(appliance.http(), [head.as_bytes(), chunks.as_bytes()].concat().as_slice());
        assert!(response.is_none_or(|response| response.status == 400), "{chunks:?}");
    }
    assert_eq!(upstream.requests(), 0, "none of them arrived whole");
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
}

#[test]
fn heads_without_end_are_refused() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream);
    let long = "x".repeat(1024 * 1024);
    let many: String = (0..20_000).map(|n| format!("X-{n}: 1\r\n")).collect();
    for (what, bytes) in [
        ("a long target", format!("GET /{long} HTTP/1.1\r\nHost: {HOST}\r\n\r\n")),
        ("a long value", format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-A: {long}\r\n\r\n")),
        ("a long name", format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{long}: 1\r\n\r\n")),
        ("many headers", format!("GET / HTTP/1.1\r\nHost: {HOST}\r\n{many}\r\n")),
        ("a head that never ends", format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nX-A: {long}")),
    ] {
        // The response may be lost in the reset that follows unread bytes; a 2xx must not come.
        let response = answer(appliance.http(), bytes.as_bytes());
        assert!(response.is_none_or(|r| matches!(r.status, 400 | 414 | 431)), "{what}");
    }
    assert_eq!(upstream.requests(), 0);
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
}

#[test]
fn clients_that_leave_at_any_moment_leave_nothing_behind() {
    let upstream = TestUpstream::start("one");
    let mut appliance = gateway(&upstream);
    let whole = HttpCall::post("/mirror").host(HOST).body("0123456789").to_bytes(appliance.http());
    for cut in 0..=whole.len() {
        let mut connection = HttpConnection::open(appliance.http());
        connection.send(&whole[..cut]);
        drop(connection);
    }
    for _ in 0..50 {
        let mut connection = HttpConnection::open(appliance.http());
        connection.send(&HttpCall::get("/chunks?count=1000&bytes=1000").host(HOST).to_bytes(appliance.http()));
        drop(connection); // in the middle of the answer
    }
    assert!(appliance.is_running());
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
}

#[test]
fn an_upstream_that_answers_nonsense_cannot_hurt() {
    let nonsense: &[&[u8]] = &[
        b"",
        b"\0\0\0\0",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nX-A: a\r\n folded\r\n\r\n",
    ];
    for bytes in nonsense {
        let babble = EventSink::answering(|_| kit::SinkResponse::raw(bytes));
        let upstream = TestUpstream::start("one");
        let mut appliance =
            ApplianceSetup::new(BIN).route("babble", babble.address()).route(HOST, upstream.address()).start();
        let mut connection = HttpConnection::open(appliance.http());
        connection.send(&HttpCall::get("/").host("babble").to_bytes(appliance.http()));
        // A head that was fine may have been passed on; then the body must not look complete.
        let response = connection.try_receive(false);
        let refused = response.as_ref().is_ok_and(|response| response.status == 502);
        assert!(refused || response.is_err(), "{:?}: {response:?}", String::from_utf8_lossy(bytes));
        assert!(appliance.is_running());
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    }
}

/// DP-ACK-04: what is no event is a 400 with a reason, and is not stored.
#[test]
fn malformed_events_are_refused_and_never_delivered() {
    let sink = EventSink::start();
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&broker("main"));
    api.create(&trigger("all", "main", &sink.url()));
    api.wait_ready("Trigger", NAMESPACE, "all", TIMEOUT);

    let good = || TestEvent::new("bad").data("application/json", "{}");
    let structured = |body: &str| {
        HttpCall::post(BROKER).header("Content-Type", "application/cloudevents+json").body(body.as_bytes())
    };
    let batch = json!([TestEvent::new("bad").envelope(), TestEvent::new("bad").without("id").envelope()]);
    let calls = [
        ("no attributes at all", HttpCall::post(BROKER).body("{}")),
        ("no id", good().without("id").binary(BROKER)),
        ("no source", good().without("source").binary(BROKER)),
        ("no type", good().without("type").binary(BROKER)),
        ("no specversion", good().without("specversion").binary(BROKER)),
        ("an empty id", good().with("id", "").binary(BROKER)),
        ("version 0.2", good().with("specversion", "0.2").binary(BROKER)),
        ("version 9.9", good().with("specversion", "9.9").binary(BROKER)),
        ("a time that is none", good().with("time", "yesterday").binary(BROKER)),
        ("no id, structured", good().without("id").structured(BROKER)),
        ("version 9.9, structured", good().with("specversion", "9.9").structured(BROKER)),
        ("an attribute in capitals", good().with("Wrong", "1").structured(BROKER)),
        ("broken JSON", structured("{\"specversion\":\"1.0\",")),
        ("an array", structured("[]")),
        ("a number", structured("1")),
        ("nothing", structured("")),
        (
            "invalid UTF-8",
            HttpCall::post(BROKER).header("Content-Type", "application/cloudevents+json").body([0xff; 8]),
        ),
        ("an id that is a number", structured(r#"{"specversion":"1.0","id":1,"source":"/a","type":"t"}"#)),
        (
            "base64 that is none",
            structured(r#"{"specversion":"1.0","id":"1","source":"/a","type":"t","data_base64":"!"}"#),
        ),
        (
            "a batch with one bad event",
            HttpCall::post(BROKER).header("Content-Type", "application/cloudevents-batch+json").body(batch.to_string()),
        ),
        ("deep nesting", structured(&"[".repeat(100_000))),
    ];
    for (what, call) in calls {
        let response = call.send(appliance.events());
        assert_eq!(response.status, 400, "{what}: {response}");
        assert!(!response.body.is_empty(), "{what}: no reason given");
    }

    let marker = TestEvent::new("marker").binary(BROKER).send(appliance.events());
    assert_eq!(marker.status, 202, "{marker}");
    let received = sink.wait_for(1, TIMEOUT);
    assert_eq!(received[0].id(), "marker", "only the good event is delivered");
}

#[test]
fn events_past_the_limit_are_refused_before_they_are_sent() {
    let appliance = ApplianceSetup::new(BIN).start();
    appliance.api().create(&broker("main"));
    appliance.api().wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    let head = format!(
        "POST {BROKER} HTTP/1.1\r\nHost: events\r\nCe-Specversion: 1.0\r\nCe-Id: 1\r\nCe-Source: /a\r\n\
         Ce-Type: t\r\nContent-Length: 100000000000\r\n\r\n"
    );
    let mut connection = HttpConnection::open(appliance.events());
    connection.send(head.as_bytes());
    assert_eq!(connection.receive().status, 413);
    assert_eq!(TestEvent::new("2").binary(BROKER).send(appliance.events()).status, 202);
}

#[test]
fn malformed_requests_to_the_other_ports_are_refused_too() {
    let mut appliance = ApplianceSetup::new(BIN).start();
    let ports = appliance.ports();
    for at in [ports.events, ports.api, ports.admin] {
        for (what, bytes) in MALFORMED {
            let status = answer(at, bytes.as_bytes()).map_or(0, |response| response.status);
            assert!(!(200..300).contains(&status) || at != ports.events, "{what} at {at}: {status}");
            assert!(status < 500 || matches!(status, 501 | 505), "{what} at {at}: {status}");
        }
    }
    assert!(appliance.is_running());
    assert_eq!(HttpCall::get("/readyz").send(ports.api).status, 200);
    assert_eq!(HttpCall::get("/readyz").send(ports.admin).status, 200);
}

/// The refusal is a Status that says so.
fn assert_status(response: &HttpResponse, codes: &[u16], what: &str) {
    assert!(codes.contains(&response.status), "{what}: {response}");
    let status: Value = response.json();
    assert_eq!(status["kind"], "Status", "{what}");
    assert_eq!(status["code"], response.status, "{what}");
    for field in ["reason", "message"] {
        assert!(status[field].as_str().is_some_and(|text| !text.is_empty()), "{what}: no {field} in {status}");
    }
}

/// APP-19: every refusal is a Status, and leaves nothing behind.
#[test]
fn objects_that_make_no_sense_are_refused_and_not_stored() {
    let appliance = ApplianceSetup::new(BIN).hello_image("example.com/hello").start();
    let services = "/apis/serving.knative.dev/v1/namespaces/default/services";
    let triggers = "/apis/eventing.knative.dev/v1/namespaces/default/triggers";
    let good = service("good", "example.com/hello", "world");
    let json = |target: &str, body: &str| HttpCall::post(target).header("Content-Type", "application/json").body(body);
    let yaml = |body: &str| HttpCall::post(services).header("Content-Type", "application/yaml").body(body);
    let changed =
        |pointer: &str, value: Value| json(services, &kit::manifest::with(good.clone(), pointer, value).to_string());

    let calls: Vec<(&str, &[u16], HttpCall)> = vec![
        ("an unknown group", &[404], json("/apis/nonsense.dev/v1/namespaces/default/things", "{}")),
        ("an unknown kind", &[404], json("/apis/serving.knative.dev/v1/namespaces/default/things", "{}")),
        ("an unknown version", &[404], json("/apis/serving.knative.dev/v9/namespaces/default/services", "{}")),
        ("a kind in another's place", &[400], json(services, &broker("b").to_string())),
        ("another namespace's object", &[400], changed("/metadata/namespace", json!("other"))),
        ("broken JSON", &[400], json(services, "{\"kind\":")),
        ("no JSON", &[400], json(services, "\u{1}")),
        ("an empty body", &[400], json(services, "")),
        ("an array", &[400], json(services, "[]")),
        ("deep nesting", &[400], json(services, &"[".repeat(100_000))),
        ("broken YAML", &[400], yaml("kind: [Service\n  - x: {")),
        ("YAML with tabs", &[400], yaml("kind:\n\tService: 1")),
        (
            "an unknown media type",
            &[415],
            HttpCall::post(services).header("Content-Type", "text/x-nonsense").body("{}"),
        ),
        ("no name", &[400, 422], changed("/metadata/name", json!(null))),
        ("a name with spaces", &[400, 422], changed("/metadata/name", json!("not a name"))),
        ("no spec", &[400, 422], changed("/spec", json!({}))),
        ("a spec of another shape", &[400, 422], changed("/spec", json!("text"))),
        ("containers that are none", &[400, 422], changed("/spec/template/spec/containers", json!([]))),
        (
            "percents over 100",
            &[400, 422],
            changed("/spec/traffic", json!([{ "latestRevision": true, "percent": 101 }])),
        ),
        ("a Trigger without Broker", &[400, 422], {
            json(triggers, &kit::manifest::with(trigger("t", "b", "http://x/"), "/spec/broker", json!("")).to_string())
        }),
        ("a Trigger without subscriber", &[400, 422], {
            json(
                triggers,
                &kit::manifest::with(trigger("t", "b", "http://x/"), "/spec/subscriber", json!({})).to_string(),
            )
        }),
        ("a relative subscriber", &[400, 422], json(triggers, &trigger("t", "b", "/relative").to_string())),
        ("a wrong method", &[405], HttpCall::new("PUT", services).json(&good)),
    ];
    for (what, codes, call) in calls {
        assert_status(&call.send(appliance.api().address()), codes, what);
    }
    for kind in ["Service", "Configuration", "Route", "Revision", "Broker", "Trigger"] {
        assert_eq!(appliance.api().list(kind, NAMESPACE), Vec::<Value>::new(), "{kind}");
    }
    appliance.api().create(&good);
}

/// SRV-API-09: Revisions come from Configurations alone.
#[test]
fn client_cannot_create_revision() {
    let appliance = ApplianceSetup::new(BIN).hello_image("example.com/hello").start();
    let revision = json!({
        "apiVersion": "serving.knative.dev/v1", "kind": "Revision",
        "metadata": { "name": "r", "namespace": NAMESPACE },
        "spec": { "containers": [{ "image": "example.com/hello" }] },
    });
    assert_status(&appliance.api().try_create(&revision), &[403], "a Revision");
    assert!(appliance.api().list("Revision", NAMESPACE).is_empty());
}

#[test]
fn patches_that_make_no_sense_change_nothing() {
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    api.create(&broker("main"));
    let before = api.wait_ready("Broker", NAMESPACE, "main", TIMEOUT);
    let patch = |content_type: &str, body: &str| {
        HttpCall::new("PATCH", &kit::KitApi::path("Broker", NAMESPACE, "main"))
            .header("Content-Type", content_type)
            .body(body)
            .send(api.address())
    };
    assert_status(&patch("application/merge-patch+json", "{"), &[400], "broken JSON");
    assert_status(&patch("application/merge-patch+json", "[1]"), &[400, 422], "an array");
    assert_status(&patch("application/json-patch+json", "{}"), &[400, 422], "no list of operations");
    assert_status(
        &patch("application/json-patch+json", r#"[{"op":"remove","path":"/no/such"}]"#),
        &[400, 422],
        "a path that is not there",
    );
    assert_status(&patch("text/plain", "{}"), &[415], "an unknown patch type");
    assert_status(
        &patch("application/merge-patch+json", r#"{"metadata":{"resourceVersion":"1"}}"#),
        &[409],
        "an old version",
    );
    let after = api.get("Broker", NAMESPACE, "main").unwrap();
    assert_eq!(after, before);
}

#[test]
fn a_body_past_all_measure_is_refused() {
    let appliance = ApplianceSetup::new(BIN).start();
    let head = "POST /api/v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 100000000\r\n\r\n";
    let mut connection = HttpConnection::open(appliance.api().address());
    connection.send(head.as_bytes());
    connection.send(&vec![b' '; 8 * 1024 * 1024]);
    let response = connection.try_receive(false);
    assert!(response.is_ok_and(|response| response.status == 413));
}
