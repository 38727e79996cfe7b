//! Malformed events: each is accepted as a whole or rejected with a reason, and nothing in between.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use kit::scene::{BROKER, ids, post, subscribe, with_broker};
use kit::{Appliance, ApplianceSetup, EventSink, HttpCall, HttpConnection, HttpResponse, TIMEOUT, TestEvent};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const JSON: &str = "application/cloudevents+json";
const BATCH: &str = "application/cloudevents-batch+json";

fn whole(id: &str) -> Value {
    json!({ "specversion": "1.0", "id": id, "source": "/s", "type": "t" })
}

fn of_type(content_type: &str, body: impl Into<Vec<u8>>) -> HttpCall {
    HttpCall::post(BROKER).header("Content-Type", content_type).body(body)
}

fn batch(of: &Value) -> HttpCall {
    of_type(BATCH, of.to_string())
}

fn structured(change: impl FnOnce(&mut Value)) -> HttpCall {
    let mut event = whole("kept");
    change(&mut event);
    of_type(JSON, event.to_string())
}

fn spelled(id: &str, extension: &str) -> HttpCall {
    HttpCall::post(BROKER)
        .header("ce-specversion", "1.0")
        .header("ce-id", id)
        .header("ce-source", "/s")
        .header("ce-type", "t")
        .header("ce-ext", extension)
}

/// A request line and headers as they are, for a whole event but for what they say themselves.
fn raw(line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let event = "Ce-Specversion: 1.0\r\nCe-Source: /s\r\nCe-Type: t\r\n";
    [format!("{line}\r\nHost: h\r\n{event}{headers}\r\n").as_bytes(), body].concat()
}

fn say(appliance: &Appliance, bytes: &[u8]) -> HttpResponse {
    let mut connection = HttpConnection::open(appliance.events());
    connection.send(bytes);
    connection.receive()
}

/// An appliance with a subscriber that gets everything.
fn server() -> (EventSink, Appliance) {
    let sink = EventSink::start();
    let appliance = with_broker(&ApplianceSetup::new(BIN));
    subscribe(appliance.api(), "all", &sink.url(), &[]);
    (sink, appliance)
}

/// Sends them all: each one answered with 202 is delivered, and no other is. A rejection has a reason.
fn check(rows: Vec<(&str, HttpCall, u16)>, delivered: &[&str]) {
    let (sink, mut appliance) = server();
    for (what, call, status) in rows {
        let answer = call.send(appliance.events());
        assert_eq!(answer.status, status, "{what}: {answer}");
        assert_eq!(answer.body.is_empty(), status == 202, "{what}: {answer}");
    }
    check_delivered(&sink, &appliance, delivered);
    assert!(appliance.is_running());
}

/// These in any order, each as often as it stands here.
fn check_delivered(sink: &EventSink, appliance: &Appliance, wanted: &[&str]) {
    post(appliance, &TestEvent::new("last"));
    let received = sink.wait_until(TIMEOUT, |all| ids(all).contains(&"last".to_owned()) && all.len() > wanted.len());
    let mut received = ids(&received.unwrap());
    received.sort();
    let mut wanted: Vec<_> = wanted.iter().copied().chain(["last"]).collect();
    wanted.sort_unstable();
    assert_eq!(received, wanted);
}

/// DP-PROTO-06, DP-ACK-04, DP-ACK-11: a batch is stored whole or not at all; ids in it may be the same.
#[test]
fn batch_is_appended_atomically() {
    let many = |count: usize| Value::Array((0..count).map(|n| whole(&n.to_string())).collect());
    let large = |bytes: usize| {
        let mut event = whole("large");
        event["data"] = json!("x".repeat(bytes));
        event
    };
    let with_subject = |bytes: usize| {
        let mut event = whole("large");
        event["subject"] = json!("x".repeat(bytes));
        event
    };
    check(
        vec![
            ("nothing in it", batch(&json!([])), 202),
            ("one id twice", batch(&json!([whole("same"), whole("same")])), 202),
            ("a batch in a batch", batch(&json!([[whole("no")]])), 400),
            ("a good one and a nested one", batch(&json!([whole("no"), [whole("no")]])), 400),
            ("nothing for an event", batch(&json!([whole("no"), null])), 400),
            ("not a list", batch(&whole("no")), 400),
            ("a list that does not end", of_type(BATCH, format!("[{}", whole("no"))), 400),
            ("more behind its end", of_type(BATCH, format!("[{}]]", whole("no"))), 400),
            ("ten thousand", batch(&many(10_000)), 400),
            ("a million numbers", of_type(BATCH, format!("[{}0]", "0,".repeat(1_000_000))), 400),
            ("large attributes among others", batch(&json!([whole("no"), with_subject(256 << 10)])), 413),
            ("one too large among others", batch(&json!([whole("no"), large((1 << 20) + 1)])), 413),
            ("one event as a batch", of_type(JSON, json!([whole("no")]).to_string()), 400),
        ],
        &["same", "same"],
    );
}

/// DP-PROTO-02, DP-PROTO-03, DP-ACK-04: Content-Type alone says how the event is carried, and a claim that does not hold
/// is refused.
#[test]
fn the_content_type_says_how_an_event_is_carried() {
    let envelope = || whole("enveloped").to_string();
    let signs = |call: HttpCall| {
        let signs = [("specversion", "1.0"), ("id", "by-headers"), ("source", "/s"), ("type", "t")];
        signs.iter().fold(call, |call, (name, value)| call.header(&format!("ce-{name}"), value))
    };
    check(
        vec![
            ("an envelope as plain JSON", of_type("application/json", envelope()), 400),
            ("an envelope without a type", HttpCall::post(BROKER).body(envelope()), 400),
            ("attributes and no envelope", signs(of_type(JSON, "data")), 400),
            ("both, by headers", signs(of_type("text/plain", envelope())), 202),
            ("both, in an envelope", signs(of_type(JSON, envelope())), 202),
            (
                "in capitals, of another charset",
                of_type("APPLICATION/CLOUDEVENTS+JSON; charset=latin1", envelope()),
                202,
            ),
            ("no format", signs(of_type("application/cloudevents", envelope())), 415),
            ("another format", signs(of_type("application/cloudevents+avro", envelope())), 415),
            ("a batch of another format", of_type("application/cloudevents-batch+protobuf", envelope()), 415),
            (
                "packed, which nobody would tell its subscribers",
                signs(of_type("text/plain", "data").header("Content-Encoding", "gzip")),
                415,
            ),
            ("as it is", signs(of_type("text/plain", "data").header("Content-Encoding", "Identity")), 202),
            ("no media type", signs(of_type("nonsense", "data")), 400),
            ("an empty one", signs(of_type("", "data")), 400),
            ("two types", signs(of_type("text/plain", "data").header("Content-Type", "text/html")), 400),
            (
                "two types, one of them an envelope's",
                signs(of_type(JSON, envelope()).header("Content-Type", "text/plain")),
                400,
            ),
        ],
        &["by-headers", "by-headers", "enveloped", "enveloped"],
    );
}

/// DP-ACK-04: attributes at their limits and one beyond.
#[test]
fn attributes_are_taken_up_to_their_limits() {
    let extended = |count: usize| {
        structured(|event| {
            for n in 0..count {
                event[format!("x{n}")] = json!("1");
            }
        })
    };
    let member = |name: &str, value: Value| structured(|event| event[name] = value);
    let text = |members: &str| of_type(JSON, format!(r#"{{"specversion":"1.0","id":"kept","source":"/s",{members}}}"#));
    let flood = format!(r#""type":"t"{}"#, r#","a":0"#.repeat(600_000));
    check(
        vec![
            ("256 of them", extended(252), 202),
            ("257 of them", extended(253), 400),
            ("half a million of one name", text(&flood), 400),
            ("a name of 255", member(&"n".repeat(255), json!(1)), 202),
            ("a name of 256", member(&"n".repeat(256), json!(1)), 400),
            ("a name of none", member("", json!(1)), 400),
            ("the largest integer", member("n", json!(i32::MAX)), 202),
            ("the smallest integer", member("n", json!(i32::MIN)), 202),
            ("one more", member("n", json!(i64::from(i32::MAX) + 1)), 400),
            ("a fraction", member("n", json!(1.5)), 400),
            ("an exponent", text(r#""type":"t","n":1e3"#), 400),
            ("a list", member("n", json!([1])), 400),
            ("an object", member("n", json!({})), 400),
            ("nothing is as absent", member("n", Value::Null), 202),
            ("no type by null", member("type", Value::Null), 400),
            ("data in both ways", text(r#""type":"t","data":1,"data_base64":"AA==""#), 400),
            ("data twice", text(r#""type":"t","data":1,"data":1"#), 400),
            ("a type twice", text(r#""type":"t","type":"t""#), 400),
            ("half a surrogate", text(r#""type":"t","ext":"\ud800""#), 400),
            ("a control character", text(r#""type":"t","ext":"\u0000""#), 400),
            ("a code point that is no character", text(r#""type":"t","ext":"\uffff""#), 400),
            ("a line end", text(r#""type":"t","ext":"a\r\nx: y""#), 400),
        ],
        &["kept"; 5],
    );
}

/// DP-PROTO-02, DP-ACK-04: percent-encoding that hides what must not be in an attribute is rejected; an invalid encoding is not decoded.
#[test]
fn percent_encoding_hides_nothing_that_is_not_allowed() {
    let mut rows = vec![
        ("a character", spelled("escape", "%E2%82%AC"), 202),
        ("in small letters", spelled("escape", "%e2%82%ac"), 202),
        ("a percent sign", spelled("escape", "50%25"), 202),
        ("a quoted one", spelled("escape", "\"a \\\"b\\\" %20\""), 202),
        ("once and not twice", spelled("escape", "%2541"), 202),
        ("no digits", spelled("escape", "100%"), 202),
        ("one digit", spelled("escape", "%4"), 202),
        ("no hexadecimal digits", spelled("escape", "%GG"), 202),
        ("a sign for a digit", spelled("escape", "%+1"), 202),
    ];
    for (what, value) in [
        ("a cut escape at the end", "abc%E2%8"),
        ("bytes that are no UTF-8", "%ff"),
        ("a cut character", "%E2%82"),
        ("a longer way to write a slash", "%c0%af"),
        ("half a surrogate", "%ed%a0%80"),
        ("beyond the last code point", "%f4%90%80%80"),
        ("no character", "%EF%BF%BF"),
        ("NUL", "%00"),
        ("DEL", "%7F"),
        ("a line end and a header", "a%0d%0ax:%20y"),
        ("a quote that does not end", "\"a"),
        ("a quote in quotes", "\"a\"b\""),
        ("an escape of nothing", "\"a\\\""),
    ] {
        rows.push((what, spelled("no", value), 400));
    }
    check(rows, &["escape"; 9]);
}

/// DP-PROTO-01, DP-ACK-04, DP-PROTO-13: what stands on the wire around an event: names twice, trailers, expectations,
/// targets in other forms, HTTP/1.0.
#[test]
fn an_event_is_what_its_request_says_and_not_its_trailers() {
    let (sink, mut appliance) = server();
    let line = format!("POST {BROKER} HTTP/1.1");
    let chunked = "Ce-Id: chunked\r\nTransfer-Encoding: chunked\r\n";
    let with = |id: &str, extension: &[u8]| {
        let headers = format!("Ce-Id: {id}\r\nContent-Length: 0\r\nCe-Ext: ");
        [raw(&line, &headers, b"").strip_suffix(b"\r\n").unwrap(), extension, b"\r\n\r\n"].concat()
    };
    let rows: Vec<(&str, Vec<u8>, u16)> = vec![
        ("an id twice", raw(&line, "Ce-Id: no\r\nce-id: no\r\nContent-Length: 0\r\n", b""), 400),
        ("an id twice, the same", raw(&line, "Ce-Id: no\r\nCe-Id: no\r\nContent-Length: 0\r\n", b""), 400),
        (
            "datacontenttype as a header",
            raw(&line, "Ce-Id: no\r\nCe-Datacontenttype: a/b\r\nContent-Length: 0\r\n", b""),
            400,
        ),
        ("a name that is none", raw(&line, "Ce-Id: no\r\nCe-my_ext: 1\r\nContent-Length: 0\r\n", b""), 400),
        ("a prefix alone", raw(&line, "Ce-Id: no\r\nCe-: 1\r\nContent-Length: 0\r\n", b""), 400),
        ("Latin-1, as Python and Node send it", with("latin1", b"Z\xfcrich"), 202),
        ("Latin-1 with an escape", with("no", b"Z\xfc%20"), 400),
        ("trailers", raw(&line, chunked, b"3;x=y\r\nabc\r\n0\r\nCe-Id: trailer\r\nCe-Ext: %\r\n\r\n"), 202),
        (
            "an id in trailers alone",
            raw(&line, "Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\nCe-Id: no\r\n\r\n"),
            400,
        ),
        (
            "an upgrade",
            raw(&line, "Ce-Id: upgrade\r\nConnection: Upgrade\r\nUpgrade: h2c, foo\r\nContent-Length: 0\r\n", b""),
            202,
        ),
        ("an unknown expectation", raw(&line, "Ce-Id: no\r\nExpect: nonsense\r\nContent-Length: 0\r\n", b""), 417),
        (
            "a target with its host",
            raw(&format!("POST http://h{BROKER} HTTP/1.1"), "Ce-Id: absolute\r\nContent-Length: 0\r\n", b""),
            202,
        ),
        ("a query", raw(&format!("POST {BROKER}?a=b HTTP/1.1"), "Ce-Id: query\r\nContent-Length: 0\r\n", b""), 202),
        ("a way up", raw(&format!("POST {BROKER}/../main HTTP/1.1"), "Ce-Id: no\r\nContent-Length: 0\r\n", b""), 404),
        ("two slashes", raw(&format!("POST /{BROKER} HTTP/1.1"), "Ce-Id: no\r\nContent-Length: 0\r\n", b""), 404),
        (
            "an escaped path",
            raw("POST /brokers/default/m%61in HTTP/1.1", "Ce-Id: no\r\nContent-Length: 0\r\n", b""),
            404,
        ),
        ("no length", raw(&line, "Ce-Id: lengthless\r\n", b""), 202),
        ("HTTP/1.0", raw(&format!("POST {BROKER} HTTP/1.0"), "Ce-Id: old\r\nContent-Length: 1\r\n", b"x"), 202),
        (
            "a method of the same letters",
            raw(&format!("post {BROKER} HTTP/1.1"), "Ce-Id: no\r\nContent-Length: 0\r\n", b""),
            405,
        ),
    ];
    for (what, bytes, status) in rows {
        let answer = say(&appliance, &bytes);
        assert_eq!(answer.status, status, "{what}: {answer}");
    }
    let mut patient = HttpConnection::open(appliance.events());
    patient.send(&raw(&line, "Ce-Id: patient\r\nExpect: 100-continue\r\nContent-Length: 3\r\n", b""));
    assert_eq!(patient.receive_one(false).unwrap().status, 100);
    patient.send(b"abc");
    assert_eq!(patient.receive().status, 202);
    // Several events on one connection before any answer, and one that does not come whole.
    let mut pipe = HttpConnection::open(appliance.events());
    for id in ["first", "second", "third"] {
        pipe.send(&raw(&line, &format!("Ce-Id: {id}\r\nContent-Length: 2\r\n"), b"ab"));
    }
    pipe.send(&raw(&line, "Ce-Id: no\r\nContent-Length: 9\r\n", b"cut"));
    pipe.finish();
    assert_eq!([(); 3].map(|()| pipe.receive().status), [202; 3]);

    let wanted = [
        "chunked",
        "latin1",
        "upgrade",
        "absolute",
        "query",
        "lengthless",
        "old",
        "patient",
        "first",
        "second",
        "third",
    ];
    check_delivered(&sink, &appliance, &wanted);
    let trailing: BTreeSet<_> =
        sink.received().iter().filter(|one| one.id() == "chunked").map(|one| one.attribute("ext")).collect();
    assert_eq!(trailing, BTreeSet::from([None]));
    assert!(appliance.is_running());
}

/// DP-PROTO-11: the webhook validation handshake answers that events may come, from which origin and at which rate;
/// an unknown path is refused.
#[test]
fn options_request_gets_allowed_methods() {
    let (_sink, appliance) = server();
    let ask = |path: &str| {
        let call = HttpCall::new("OPTIONS", path).header("WebHook-Request-Origin", "events.example.com");
        let call = call.header("WebHook-Request-Rate", "120").header("WebHook-Request-Callback", "http://127.0.0.1:1/");
        call.send(appliance.events())
    };
    let answer = ask(BROKER);
    assert_eq!((answer.status, answer.body.len()), (200, 0), "{answer}");
    for (name, value) in [("Allow", "POST, OPTIONS"), ("WebHook-Allowed-Origin", "*"), ("WebHook-Allowed-Rate", "*")] {
        assert_eq!(answer.headers.get(name), Some(value), "{answer}");
    }
    for path in ["/brokers/default/none", "/", "*"] {
        let answer = ask(path);
        assert!(matches!(answer.status, 400 | 404), "{path}: {answer}");
        assert_eq!(answer.headers.get("webhook-allowed-origin"), None, "{path}: {answer}");
    }
}
