//! Trusted proxies, the PROXY protocol, error pages and certificates of static routes.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TestUpstream};
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

fn seen(appliance: &Appliance, call: HttpCall) -> Value {
    let response = call.host(HOST).send(appliance.http());
    assert_eq!(response.status, 200, "{response}");
    response.json()["headers"].clone()
}

/// RT-HDR-05..07: what a client says about other clients is replaced, unless it is a trusted proxy.
#[test]
fn forged_client_address_is_replaced() {
    let upstream = TestUpstream::start("one");
    let call = || {
        HttpCall::get("/")
            .header("X-Forwarded-For", "1.1.1.1, 192.0.2.7")
            .header("Forwarded", "for=1.1.1.1, for=192.0.2.7;proto=https")
            .header("X-Forwarded-Proto", "https")
            .header("X-Forwarded-Host", "evil.example.com")
            .header("X-Real-IP", "1.1.1.1")
            .header("X-Forwarded-Port", "443")
    };
    let plain = ApplianceSetup::new(BIN).route(HOST, upstream.address()).start();
    let headers = seen(&plain, call());
    for (name, value) in [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-proto", "http"), ("x-forwarded-host", HOST)] {
        assert_eq!(headers[name], value, "{headers}");
    }
    assert_eq!(headers["forwarded"], format!("for=127.0.0.1;host=\"{HOST}\";proto=http"));
    assert!(headers["x-real-ip"].is_null() && headers["x-forwarded-port"].is_null(), "{headers}");

    let trusting =
        ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("trusted-proxies", "127.0.0.0/8").start();
    let headers = seen(&trusting, call());
    // The proxy wrote the last entry; the one before it is the client's.
    assert_eq!(headers["x-forwarded-for"], "192.0.2.7, 127.0.0.1", "{headers}");
    assert!(
        headers["forwarded"].as_str().unwrap().starts_with("for=192.0.2.7;proto=https, for=127.0.0.1"),
        "{headers}"
    );
    assert_eq!((&headers["x-forwarded-proto"], &headers["x-real-ip"]), (&"https".into(), &"1.1.1.1".into()));

    let two = ApplianceSetup::new(BIN)
        .route(HOST, upstream.address())
        .flag("trusted-proxies", "127.0.0.0/8,192.0.2.0/24")
        .flag("trusted-hops", "1")
        .start();
    assert_eq!(seen(&two, call())["x-forwarded-for"], "192.0.2.7, 127.0.0.1");
}

/// The PROXY protocol names the client, to the upstream as well; another connection without it is closed.
#[test]
fn proxy_protocol_header_names_the_client() {
    let upstream = TestUpstream::start("one");
    let appliance = ApplianceSetup::new(BIN)
        .route(HOST, upstream.address())
        .flag("trusted-proxies", "127.0.0.0/8")
        .flag("proxy-protocol", "http")
        .start();
    let v1 = b"PROXY TCP4 192.0.2.9 192.0.2.10 50000 80\r\n".to_vec();
    let v2 =
        [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".as_slice(), &[192, 0, 2, 9, 192, 0, 2, 10, 0xc3, 0x50, 0, 80]].concat();
    for header in [v1, v2] {
        // In one piece with the request, and byte by byte.
        for size in [usize::MAX, 1] {
            let mut client = HttpConnection::open(appliance.http());
            let request = HttpCall::get("/").host(HOST).header("X-Forwarded-For", "1.1.1.1").to_bytes(client.peer());
            for piece in [header.clone(), request].concat().chunks(size.min(1 << 20)) {
                client.send(piece);
            }
            let headers = client.receive().json()["headers"].clone();
            assert_eq!(headers["x-forwarded-for"], "192.0.2.9", "{headers}");
            assert_eq!(client.call(&HttpCall::get("/").host(HOST)).status, 200, "the connection goes on");
        }
    }
    assert!(
        HttpCall::get("/").host(HOST).try_send(appliance.http()).is_err(),
        "a header is required of trusted proxies"
    );
}

/// The upstream is told of each client, by a connection of its own.
#[test]
fn upstream_is_told_of_each_client_by_the_proxy_protocol() {
    for (version, begins) in
        [("v1", &b"PROXY TCP4 127.0.0.1 127.0.0.1 "[..]), ("v2", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01")]
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let instance =
            thread::spawn(move || (0..2).map(|_| serve_one(&mut listener.accept().unwrap().0)).collect::<Vec<_>>());
        let route = format!("{HOST}={address}?proxy-protocol={version}");
        let appliance = ApplianceSetup::new(BIN).flag("route", &route).flag("workers", "1").start();
        let mut client = HttpConnection::open(appliance.http());
        for _ in 0..2 {
            assert_eq!(client.call(&HttpCall::get("/").host(HOST)).status, 200);
        }
        for received in instance.join().unwrap() {
            assert!(received.starts_with(begins), "{received:?}");
            assert!(received.windows(16).any(|window| window.starts_with(b"GET / HTTP/1.1")), "{received:?}");
        }
    }
}

/// Reads one request and answers it; the connection could be kept.
fn serve_one(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    while !received.windows(4).any(|window| window == b"\r\n\r\n")
        || !received.windows(5).any(|window| window == b"GET /")
    {
        let mut buffer = [0; 4096];
        let bytes = stream.read(&mut buffer).unwrap();
        assert!(bytes > 0, "{received:?}");
        received.extend_from_slice(&buffer[..bytes]);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
    received
}

/// Bodies of failures tell clients nothing about the operator's backends; the log and trusted clients get the reason.
#[test]
fn failure_is_told_neutrally_to_clients() {
    let closed = kit::server::closed_address();
    let plain = ApplianceSetup::new(BIN).route(HOST, closed).start();
    for (host, status, body) in [(HOST, 502, "bad gateway\n"), ("else.example.com", 404, "not found\n")] {
        let response = HttpCall::get("/").host(host).send(plain.http());
        assert_eq!((response.status, response.text().as_str(), response.reason()), (status, body, ""), "{response}");
    }
    plain.wait_says("no route for host");
    plain.wait_says(&format!("no instance of static/{HOST} accepts connections"));

    let trusting = ApplianceSetup::new(BIN).route(HOST, closed).flag("trusted-proxies", "127.0.0.1").start();
    let response = HttpCall::get("/").host(HOST).send(trusting.http());
    assert!(response.text() == "bad gateway\n" && response.reason().contains("accepts connections"), "{response}");
}

#[test]
fn error_pages_are_the_operators() {
    let setup = ApplianceSetup::new(BIN).route(HOST, kit::server::closed_address());
    let (own, class) = (setup.write_file("404.html", "<h1>not here</h1>"), setup.write_file("5xx.json", "{}"));
    let appliance = setup
        .flag("error-page", &format!("404={}", own.display()))
        .flag("error-page", &format!("5xx={}", class.display()))
        .start();
    let response = HttpCall::get("/").host("else.example.com").send(appliance.http());
    assert_eq!((response.status, response.text().as_str()), (404, "<h1>not here</h1>"));
    assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"));
    let response = HttpCall::get("/").host(HOST).send(appliance.http());
    assert_eq!((response.status, response.text().as_str()), (502, "{}"));
    let refused = ApplianceSetup::new(BIN).flag("error-page", "404=/nowhere.html").refused();
    assert!(refused.to_string().contains("/nowhere.html"), "{refused}");
}

/// Names are addresses of listeners too.
#[test]
fn listener_flag_takes_a_host_name() {
    let upstream = TestUpstream::start("one");
    let setup =
        ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("http", "localhost:0").flag("admin", ":0");
    let appliance = setup.start();
    assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    let admin = SocketAddr::from(([127, 0, 0, 1], appliance.admin().port()));
    assert_eq!(HttpCall::get("/healthz").send(admin).status, 200);
    let refused = ApplianceSetup::new(BIN).flag("http", "no_host:80").refused();
    assert!(refused.to_string().contains("localhost:8080"), "{refused}");
}
