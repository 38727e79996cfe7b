//! Spans of requests, sent to a collector by OTLP over HTTP.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use kit::http2::{self, H2Client};
use kit::server::{HandlerReply, ReceivedMessage, TestServer, closed_address};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

type Documents = Arc<Mutex<Vec<(String, Value)>>>;

/// A collector: keeps what it gets, with the path it came to; refuses the first `refusals` requests for the moment.
fn collector(refusals: usize) -> (TestServer, Documents) {
    collector_refusing(refusals, 503)
}

fn collector_refusing(refusals: usize, with: u16) -> (TestServer, Documents) {
    let documents = Documents::default();
    let (kept, left) = (Arc::clone(&documents), Arc::new(Mutex::new(refusals)));
    let server = TestServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), move || {
        move |request: kit::HttpRequest| {
            let (kept, left) = (Arc::clone(&kept), Arc::clone(&left));
            async move {
                let mut left = left.lock().unwrap();
                if *left > 0 {
                    *left -= 1;
                    return HandlerReply::Send(ReceivedMessage::new(with));
                }
                let document = serde_json::from_slice(&request.body).unwrap();
                kept.lock().unwrap().push((request.path().to_owned(), document));
                HandlerReply::Send(ReceivedMessage::new(200).body("{}"))
            }
        }
    });
    (server, documents)
}

fn gateway(upstream: &TestUpstream, collector: SocketAddr) -> Appliance {
    let url = format!("http://{collector}/v1/traces");
    ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("otlp", &url).start()
}

/// All spans, once there are `count`.
fn spans(documents: &Documents, count: usize) -> Vec<Value> {
    wait::until(TIMEOUT, "the spans", || {
        let all: Vec<Value> = documents
            .lock()
            .unwrap()
            .iter()
            .flat_map(|(_, one)| one["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone())
            .collect();
        (all.len() >= count).then_some(all)
    })
}

/// An attribute's value, whatever its type.
fn attribute(span: &Value, name: &str) -> Option<String> {
    let all = span["attributes"].as_array()?;
    let value = &all.iter().find(|one| one["key"] == name)?["value"];
    Some(value["stringValue"].as_str().or(value["intValue"].as_str())?.to_owned())
}

/// RT-HDR-08: the client's trace continues, and our span stands between the client's and the instance's.
#[test]
fn a_request_leaves_a_span_between_its_client_and_its_instance() {
    let (server, documents) = collector(0);
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&upstream, server.address());
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let answer = HttpCall::get("/a/b?c=d").host(HOST).header("traceparent", &parent).send(appliance.http());
    let reported = answer.json()["headers"]["traceparent"].as_str().unwrap().to_owned();
    let fresh = HttpCall::post("/x").host(HOST).body("x").send(appliance.http());
    let begun = fresh.json()["headers"]["traceparent"].as_str().unwrap().to_owned();
    // Not to be recorded, and so it passes as it came.
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    HttpCall::get("/quiet").host(HOST).header("traceparent", &unsampled).send(appliance.http());
    HttpCall::get("/lost").host("nobody.example.com").header("traceparent", &parent).send(appliance.http());
    http2::run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let request = http::Request::get(format!("http://{HOST}/two")).body(()).unwrap();
        assert_eq!(client.call(request).await.unwrap().status, 200);
    });

    let all = spans(&documents, 4);
    let of = |path: &str| all.iter().find(|span| attribute(span, "url.path").as_deref() == Some(path)).unwrap();
    let span = of("/a/b");
    assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(TRACE), &json!(PARENT)), "{span}");
    let own = span["spanId"].as_str().unwrap();
    assert_eq!(reported, format!("00-{TRACE}-{own}-01"), "the instance's parent is our span");
    assert_eq!((&span["name"], &span["kind"], &span["status"]), (&json!("GET"), &json!(2), &json!({})));
    for (name, value) in [
        ("url.query", "c=d"),
        ("server.address", HOST),
        ("http.response.status_code", "200"),
        ("network.protocol.version", "1.1"),
        ("client.address", "127.0.0.1"),
        ("sluicegate.backend", "static/app.example.com"),
        ("sluicegate.instance", &upstream.address().to_string()),
    ] {
        assert_eq!(attribute(span, name).as_deref(), Some(value), "{name} of {span}");
    }
    let nanos = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(nanos("endTimeUnixNano") > nanos("startTimeUnixNano"), "{span}");

    let span = of("/x");
    let words: Vec<_> = begun.split('-').collect();
    assert_eq!((&span["traceId"], &span["spanId"]), (&json!(words[1]), &json!(words[2])), "{span} {begun}");
    assert_eq!(span["parentSpanId"], Value::Null, "the trace begins here");
    let span = of("/lost");
    assert_eq!(
        (&span["parentSpanId"], attribute(span, "error.type").as_deref()),
        (&json!(PARENT), Some("host_not_found"))
    );
    assert_eq!(attribute(of("/two"), "network.protocol.version").as_deref(), Some("2"));
    assert!(!all.iter().any(|span| attribute(span, "url.path").as_deref() == Some("/quiet")));
    assert!(documents.lock().unwrap().iter().all(|(path, _)| path == "/v1/traces"));
    wait::until(TIMEOUT, "the count", || (appliance.metric("sluicegate_spans_sent_total", "") == 4).then_some(()));
}

/// A collector that is away for a moment gets them anyway; one that stays away costs spans and no request.
#[test]
fn a_collector_that_is_away_costs_no_request() {
    let upstream = TestUpstream::start("one");
    let (server, documents) = collector(1);
    let appliance = gateway(&upstream, server.address());
    assert_eq!(HttpCall::get("/once").host(HOST).send(appliance.http()).status, 200);
    assert_eq!(spans(&documents, 1).len(), 1);

    let appliance = gateway(&upstream, closed_address());
    for _ in 0..50 {
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    }
    wait::until(TIMEOUT, "a count of what was lost", || {
        (appliance.metric("sluicegate_spans_failed_total", "") > 0).then_some(())
    });
    wait::until(TIMEOUT, "a line in the log", || appliance.stderr().contains("rejects spans").then_some(()));
}

/// By the protocol what is refused like this is never taken: it is lost at once, and what comes after it is sent.
#[test]
fn what_a_collector_refuses_for_good_is_not_sent_again() {
    let upstream = TestUpstream::start("one");
    let (server, documents) = collector_refusing(1, 400);
    let appliance = gateway(&upstream, server.address());
    assert_eq!(HttpCall::get("/refused").host(HOST).send(appliance.http()).status, 200);
    wait::until(TIMEOUT, "the refusal", || (appliance.metric("sluicegate_spans_failed_total", "") == 1).then_some(()));
    assert_eq!(HttpCall::get("/taken").host(HOST).send(appliance.http()).status, 200);
    let all = spans(&documents, 1);
    assert_eq!(all.len(), 1);
    assert_eq!(attribute(&all[0], "url.path").as_deref(), Some("/taken"));
}

/// What was answered before a stop is sent before the end.
#[test]
fn a_stop_sends_what_is_left() {
    let (upstream, (server, documents)) = (TestUpstream::start("one"), collector(0));
    let mut appliance = gateway(&upstream, server.address());
    for _ in 0..20 {
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    }
    assert_eq!(appliance.terminate().code(), Some(0));
    assert_eq!(spans(&documents, 20).len(), 20);
    let refusal = ApplianceSetup::new(BIN).flag("otlp", "127.0.0.1:4318").refused();
    assert!(refusal.code == Some(2) && refusal.stderr.contains("otlp"), "{refusal}");
}

/// A collector that takes connections and never answers does not hold the end up for every batch that waits.
#[test]
fn a_silent_collector_does_not_hold_the_end_up() {
    /// Eight batches: more than patience has, at five seconds each.
    const REQUESTS: usize = 4_096;
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let upstream = TestUpstream::start("one");
    let mut appliance = gateway(&upstream, silent.local_addr().unwrap());
    let mut connection = kit::HttpConnection::open(appliance.http());
    for _ in 0..REQUESTS {
        assert_eq!(connection.call(&HttpCall::get("/").host(HOST)).status, 200);
    }
    assert_eq!(appliance.terminate().code(), Some(0));
}
