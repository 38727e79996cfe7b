//! Upstreams that hang or fail: timeouts of static routes, outlier detection and health checks.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a helper of a test that fails is a failed test")]

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use kit::kingress::{backend, ingress, path, rule};
use kit::manifest::NAMESPACE;
use kit::server::{HandlerReply, ReceivedMessage, TestServer};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TIMEOUT, TestUpstream, http2, wait};
use serde_json::json;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

/// Accepts connections, reads, and never answers. Lives as long as the test.
fn hung() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || while stream.read(&mut [0; 1024]).is_ok_and(|bytes| bytes > 0) {});
        }
    });
    address
}

fn gateway(addresses: &[SocketAddr], options: &str) -> Appliance {
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let rule = format!("{HOST}={}{options}", addresses.join(","));
    ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1").start()
}

fn status(appliance: &Appliance, target: &str) -> u16 {
    HttpCall::get(target).host(HOST).send(appliance.http()).status
}

/// A response that does not begin in time is a 504, and the time is the route's own.
#[test]
fn hung_upstream_ends_with_its_response_start_timeout() {
    let appliance = gateway(&[hung()], "?response-start-timeout=300ms");
    let begin = Instant::now();
    assert_eq!(status(&appliance, "/"), 504);
    assert!((Duration::from_millis(300)..TIMEOUT).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert_eq!(appliance.metric("sluicegate_refused_total", "response_timeout"), 1);
}

/// The response has its time from the end of the request on: an upload may take longer.
#[test]
fn slow_upload_outlives_the_response_start_timeout() {
    let upstream = TestUpstream::start("one");
    let appliance = gateway(&[upstream.address()], "?response-start-timeout=600ms");
    let mut client = HttpConnection::open(appliance.http());
    client.send(format!("POST /mirror HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\n").as_bytes());
    for byte in b"hello" {
        thread::sleep(Duration::from_millis(250));
        client.send(&[*byte]);
    }
    let response = client.receive();
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
}

/// One of three that hangs is tried last after its first timeout.
#[test]
fn hung_one_of_three_is_ejected() {
    let (one, two) = (TestUpstream::start("one"), TestUpstream::start("two"));
    let appliance = gateway(&[one.address(), hung(), two.address()], "?response-start-timeout=300ms");
    let mut late = 0;
    for _ in 0..60 {
        match status(&appliance, "/") {
            200 => {}
            504 => late += 1,
            other => panic!("status {other}"),
        }
    }
    assert_eq!(late, 1, "after its first timeout it is ejected for 30 s");
    assert_eq!(appliance.metric("sluicegate_upstream_ejections_total", ""), 1);
}

/// A client that uploads too slowly says nothing about the address.
#[test]
fn late_upload_ejects_no_address() {
    let (one, two) = (TestUpstream::start("one"), TestUpstream::start("two"));
    let appliance = gateway(&[one.address(), two.address()], "?request-timeout=300ms");
    let mut client = HttpConnection::open(appliance.http());
    client.send(format!("POST /mirror HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\nh").as_bytes());
    assert_eq!(client.receive().status, 504);
    assert_eq!(appliance.metric("sluicegate_upstream_ejections_total", ""), 0);
}

/// A server that answers every request with this status.
fn server(status: u16) -> TestServer {
    TestServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), move || {
        move |_request| async move { HandlerReply::Send(ReceivedMessage::new(status)) }
    })
}

/// One that answers 500 in a row is tried last.
#[test]
fn upstream_with_errors_in_a_row_is_ejected() {
    let good = TestUpstream::start("good");
    let failing = server(500);
    let appliance = gateway(&[failing.address(), good.address()], "");
    let failed = (0..100).filter(|_| status(&appliance, "/") == 500).count();
    assert_eq!(failed, 5, "five in a row eject it for 30 s");
}

/// RFC 8441: the handshake of a WebSocket over HTTP/2 counts as any other request.
#[test]
fn failed_http2_websocket_handshakes_eject_an_upstream() {
    let (failing, good) = (server(500), server(404));
    let appliance = gateway(&[failing.address(), good.address()], "");
    http2::run(async {
        let (client, _ended) = http2::H2Client::open(appliance.http()).await;
        client.knows_extended_connect().await;
        let mut failed = 0;
        for _ in 0..50 {
            let mut asked = http::Request::builder().method("CONNECT").uri(format!("http://{HOST}/")).body(()).unwrap();
            asked.extensions_mut().insert(h2::ext::Protocol::from("websocket"));
            let (response, _stream) = client.begin(asked, false).await.unwrap();
            failed += usize::from(response.await.unwrap().status() == 500);
        }
        assert_eq!(failed, 5, "five in a row eject it for 30 s");
    });
}

/// An address that fails its health check gets no requests.
#[test]
fn address_that_fails_its_health_check_gets_no_requests() {
    let (one, two) = (TestUpstream::start("one"), TestUpstream::start("two"));
    // The check of both fails, so both are used.
    let appliance = gateway(&[one.address(), two.address()], "?health-check=/status?code=503");
    appliance.wait_says("fails its health check");
    assert_eq!(status(&appliance, "/"), 200);
    let appliance = gateway(&[one.address(), hung()], "?health-check=/");
    appliance.wait_says("fails its health check");
    let is_alone = || {
        let routes = HttpCall::get(&format!("/debug/routes?host={HOST}")).send(appliance.admin()).json();
        (routes["backends"][format!("static/{HOST}")]["ready_instances"] == 1).then_some(())
    };
    wait::until(TIMEOUT, "the healthy address alone", is_alone);
    assert_eq!(status(&appliance, "/"), 200);
}

/// APP-12: backends of an Ingress have the same default timeouts.
#[test]
fn backend_of_an_ingress_has_default_timeouts() {
    let appliance = ApplianceSetup::new(BIN).flag("workers", "1").start();
    let upstream = TestUpstream::start("one");
    backend(appliance.api(), "app", "http", &[upstream.address()]);
    appliance.api().create(&ingress("app", json!([rule(HOST, &[path("", "app")])])));
    appliance.api().wait_ready("Ingress", NAMESPACE, "app", TIMEOUT);
    assert_eq!(status(&appliance, "/"), 200);
    let routes = HttpCall::get(&format!("/debug/routes?host={HOST}")).send(appliance.admin()).json();
    let backends: Vec<_> = routes["backends"].as_object().unwrap().values().collect();
    let timeouts = json!({ "total": 0, "response_start": 60_000, "idle": 300_000 });
    assert_eq!(backends[0]["timeouts_ms"], timeouts, "{routes}");
}
