//! Options of `--route` that protect a backend and shape its responses: rate limits, body limits, CORS and compression.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use flate2::read::GzDecoder;
use kit::message::chunks;
use kit::server::{HandlerReply, ReceivedMessage, TestServer};
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, HttpResponse, TIMEOUT, TestUpstream, http2};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

fn setup(upstream: impl std::fmt::Display, options: &str) -> ApplianceSetup {
    ApplianceSetup::new(BIN).flag("route", &format!("{HOST}={upstream}?{options}")).flag("workers", "2")
}

fn call(appliance: &Appliance, method: &str, fields: &[(&str, &str)]) -> HttpResponse {
    let call = HttpCall::new(method, "/").host(HOST);
    fields.iter().fold(call, |call, (name, value)| call.header(name, value)).send(appliance.http())
}

/// All cores count together, whichever of them has the connection.
#[test]
fn rate_limit_refuses_with_the_time_to_wait() {
    let upstream = TestUpstream::start("one");
    let appliance = setup(upstream.address(), "rate-limit=5/1h,burst=5").start();
    let statuses: Vec<_> = (0..8).map(|_| call(&appliance, "GET", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
    let refused = call(&appliance, "GET", &[]);
    let wait: u64 = refused.headers.get("retry-after").unwrap().parse().unwrap();
    assert!((1..=720).contains(&wait), "{wait}");
    assert_eq!(appliance.metric("sluicegate_refused_total", "rate_limited"), 4);
}

/// Behind a trusted proxy the client is the one that it names.
#[test]
fn rate_limit_is_for_each_client_or_key() {
    let upstream = TestUpstream::start("one");
    let options = "rate-limit=1/1h,by=client&rate-limit=3/1h,by=header:X-Api-Key";
    let appliance = setup(upstream.address(), options).flag("trusted-proxies", "127.0.0.1/32").start();
    let ask =
        |client: &str, key: &str| call(&appliance, "GET", &[("X-Forwarded-For", client), ("X-Api-Key", key)]).status;
    let statuses = [("10.0.0.1", "a"), ("10.0.0.1", "a"), ("10.0.0.2", "a"), ("10.0.0.3", "a"), ("10.0.0.4", "a")];
    assert_eq!(statuses.map(|(client, key)| ask(client, key)), [200, 429, 200, 200, 429]);
    assert_eq!(ask("10.0.0.5", "b"), 200, "another key");
}

/// RFC 9110 15.5.14: announced or not, of both protocols.
#[test]
fn body_over_the_limit_is_refused() {
    let upstream = TestUpstream::start("one");
    let appliance = setup(upstream.address(), "max-body=1000").start();
    let post = |bytes: usize, is_chunked: bool| {
        let body = vec![b'x'; bytes];
        if !is_chunked {
            return HttpCall::post("/").host(HOST).body(body).send(appliance.http()).status;
        }
        let mut connection = HttpConnection::open(appliance.http());
        connection.send(format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes());
        connection.send(&chunks(body.chunks(400)));
        connection.receive().status
    };
    for (bytes, status) in [(1000, 200), (1001, 413), (100_000, 413)] {
        assert_eq!([post(bytes, false), post(bytes, true)], [status, status], "{bytes}");
    }
    assert_eq!(appliance.metric("sluicegate_refused_total", "request_body_too_large"), 4);
    http2::run(async {
        for (bytes, status) in [(1000, 200), (1001, 413)] {
            let (client, _ended) = http2::H2Client::open(appliance.http()).await;
            let asked = http::Request::post(format!("http://{HOST}/")).body(()).unwrap();
            let (response, mut body) = client.begin(asked, false).await.unwrap();
            let _ = body.send_data(vec![b'x'; bytes].into(), true);
            assert_eq!(response.await.unwrap().status(), status, "{bytes}");
        }
    });
}

/// The Fetch standard, 3.2: the gateway answers preflights, and the backend's own fields do not count.
#[test]
fn pages_of_allowed_origins_may_use_the_route() {
    let upstream = TestServer::start(([127, 0, 0, 1], 0).into(), || {
        |_request| async {
            let reply = ReceivedMessage::new(200).header("Access-Control-Allow-Origin", "*").body(b"ok".to_vec());
            HandlerReply::Send(reply)
        }
    });
    let options = "cors-origin=https://www.foo.com,https://*.bar.com&cors-methods=GET,PUT&cors-headers=x-a\
        &cors-expose-headers=x-b&cors-credentials=true&cors-max-age=60";
    let appliance = setup(upstream.address(), options).start();
    let asks = [("Origin", "https://a.bar.com"), ("Access-Control-Request-Method", "PUT")];
    let preflight = call(&appliance, "OPTIONS", &asks);
    let field = |response: &HttpResponse, name: &str| response.headers.get(name).map(str::to_owned);
    assert_eq!(preflight.status, 200);
    for (name, value) in [
        ("access-control-allow-origin", "https://a.bar.com"),
        ("access-control-allow-methods", "GET, PUT"),
        ("access-control-allow-headers", "x-a"),
        ("access-control-allow-credentials", "true"),
        ("access-control-max-age", "60"),
    ] {
        assert_eq!(field(&preflight, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(preflight.body, b"");
    let simple = call(&appliance, "GET", &[("Origin", "https://www.foo.com")]);
    assert_eq!(field(&simple, "access-control-allow-origin").as_deref(), Some("https://www.foo.com"));
    assert_eq!(field(&simple, "access-control-expose-headers").as_deref(), Some("x-b"));
    assert_eq!((field(&simple, "vary").as_deref(), simple.body.as_slice()), (Some("Origin"), b"ok".as_slice()));
    let other = call(&appliance, "GET", &[("Origin", "https://evil.com")]);
    assert_eq!((other.status, field(&other, "access-control-allow-origin")), (200, None));
    let other =
        call(&appliance, "OPTIONS", &[("Origin", "https://evil.com"), ("Access-Control-Request-Method", "GET")]);
    assert_eq!((other.status, field(&other, "access-control-allow-origin")), (200, None));
}

fn text() -> Vec<u8> {
    (0..5_000).flat_map(|n: u32| format!("line {n} of a text that compresses well\n").into_bytes()).collect()
}

/// RFC 9110 8.4, 12.5.3: by the client's wish, with a head that says so, for clients of both protocols.
#[test]
fn text_is_compressed_for_clients_that_accept_it() {
    let upstream = TestServer::start(([127, 0, 0, 1], 0).into(), || {
        |_request| async {
            let reply = ReceivedMessage::new(200).header("Content-Type", "text/plain").header("ETag", "\"a\"");
            HandlerReply::Send(reply.body(text()))
        }
    });
    let appliance = setup(upstream.address(), "compress=gzip,br,zstd").start();
    for (accepted, coding) in
        [("gzip", Some("gzip")), ("br", Some("br")), ("zstd;q=1, gzip;q=0.5", Some("zstd")), ("deflate", None)]
    {
        let response = call(&appliance, "GET", &[("Accept-Encoding", accepted)]);
        let fields = ["content-encoding", "vary", "etag"].map(|name| response.headers.get(name));
        let etag = if coding.is_some() { "W/\"a\"" } else { "\"a\"" };
        assert_eq!(fields, [coding, Some("Accept-Encoding"), Some(etag)], "{accepted}");
        let body = match coding {
            Some("gzip") => {
                let mut out = Vec::new();
                GzDecoder::new(&response.body[..]).read_to_end(&mut out).unwrap();
                out
            }
            Some("zstd") => zstd::decode_all(&response.body[..]).unwrap(),
            Some(_) => {
                assert!(response.body.len() < 40_000, "{}", response.body.len());
                text()
            }
            None => response.body.clone(),
        };
        assert!(body == text(), "{accepted}");
    }
    http2::run(async {
        let (client, _ended) = http2::H2Client::open(appliance.http()).await;
        let asked = http::Request::get(format!("http://{HOST}/")).header("accept-encoding", "gzip").body(()).unwrap();
        let (response, _) = client.begin(asked, true).await.unwrap();
        let (parts, mut body) = response.await.unwrap().into_parts();
        let mut bytes = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece.unwrap();
            body.flow_control().release_capacity(piece.len()).unwrap();
            bytes.extend_from_slice(&piece);
        }
        assert!(parts.headers["content-encoding"] == "gzip" && !parts.headers.contains_key("content-length"));
        let mut out = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut out).unwrap();
        assert!(out == text());
    });
    assert_eq!(appliance.metric("sluicegate_compressed_responses_total", "gzip"), 2);
    let (before, after) = (
        appliance.metric("sluicegate_compression_input_bytes_total", ""),
        appliance.metric("sluicegate_compression_output_bytes_total", ""),
    );
    assert!(before == 4 * text().len() as u64 && after > 0 && after < before / 4, "{before} {after}");
}

/// Each event of a stream reaches the client before the next one is sent.
#[test]
fn stream_of_events_is_compressed_and_not_delayed() {
    const EVENTS: [&str; 2] = ["data: first\n\n", "data: second\n\n"];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, is_seen) = mpsc::channel::<()>();
    let upstream = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut head = [0; 4096];
        assert!(socket.read(&mut head).unwrap() > 0);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        socket.write_all(format!("{head}{}", chunk(EVENTS[0])).as_bytes()).unwrap();
        is_seen.recv_timeout(TIMEOUT).expect("the first event has not reached the client");
        socket.write_all(format!("{}0\r\n\r\n", chunk(EVENTS[1])).as_bytes()).unwrap();
    });
    let appliance = setup(address, "compress=gzip").start();
    let mut client = TcpStream::connect(appliance.http()).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.write_all(format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nAccept-Encoding: gzip\r\n\r\n").as_bytes()).unwrap();
    let mut received = Vec::new();
    let mut read_until = |text: &str| {
        loop {
            let mut piece = [0; 4096];
            let count = client.read(&mut piece).unwrap();
            assert!(count > 0, "the connection ended");
            received.extend_from_slice(&piece[..count]);
            if decoded_events(&received) == text {
                return;
            }
        }
    };
    read_until(EVENTS[0]);
    seen.send(()).unwrap();
    read_until(&EVENTS.concat());
    upstream.join().unwrap();
}

/// The text in the chunks that are here, of a response that may not have ended.
fn decoded_events(response: &[u8]) -> String {
    let Some(head) = response.windows(4).position(|four| four == b"\r\n\r\n") else { return String::new() };
    let (mut rest, mut body) = (&response[head + 4..], Vec::new());
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        let Some(chunk) = rest.get(line + 2..line + 2 + size).filter(|_| size > 0) else { break };
        body.extend_from_slice(chunk);
        rest = rest.get(line + 4 + size..).unwrap_or_default();
    }
    let (mut text, mut decoder) = (Vec::new(), GzDecoder::new(&body[..]));
    let mut piece = [0; 256];
    while let Ok(count @ 1..) = decoder.read(&mut piece) {
        text.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(text).unwrap()
}

/// What a compressed response could break is left as it is.
#[test]
fn responses_that_may_not_change_go_as_they_are() {
    for (name, value) in [
        ("Content-Encoding", "br"),
        ("Cache-Control", "no-transform"),
        ("Content-Type", "image/png"),
        ("Content-Digest", "sha-256=:a:"),
    ] {
        let upstream = TestServer::start(([127, 0, 0, 1], 0).into(), move || {
            move |_request| async move {
                let reply = ReceivedMessage::new(200).header(name, value);
                let reply = if name == "Content-Type" { reply } else { reply.header("Content-Type", "text/plain") };
                HandlerReply::Send(reply.body(text()))
            }
        });
        let appliance = setup(upstream.address(), "compress=gzip").start();
        let response = call(&appliance, "GET", &[("Accept-Encoding", "gzip")]);
        let coding = response.headers.get("content-encoding");
        assert!(response.body == text() && coding != Some("gzip"), "{name}: {value}: {coding:?}");
    }
}

#[test]
fn wrong_option_is_named_at_the_start() {
    for (option, words) in [
        ("rate-limit=5", "COUNT/TIME"),
        ("compress=deflate", "use gzip, br or zstd"),
        ("cors-origin=a.test", "is not an origin"),
        ("max-body=1MB", "number of bytes"),
    ] {
        let output =
            Command::new(BIN).args(["run", "--route", &format!("{HOST}=127.0.0.1:1?{option}")]).output().unwrap();
        assert!(!output.status.success());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(words), "{option}: {errors}");
    }
}
