//! Faults under load: weights change, instances come and go, certificates change, and one process replaces another,
//! while all kinds of clients send requests without a pause. `FAULTS_SECONDS=60 cargo test --test proxy tls::faults` runs it
//! for longer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use kit::background_clients::{BackgroundClient, BackgroundClients, keep_alive, one_by_one, streams};
use kit::http2::{self, H2Server};
use kit::kingress::{backend, ingress, rule, split};
use kit::manifest::{NAMESPACE, service, with};
use kit::{ApplianceSetup, HttpCall, KitApi, TIMEOUT, TestUpstream, wait};
use serde_json::{Value, json};

use super::client::{self, BIN, BOTH, TlsAuthority};

const APP: &str = "app.example.com";
const CHAT: &str = "chat.example.com";
const SOCKET: &str = "socket.example.com";
const HELLO: &str = "hello.default.localhost";
const IMAGE: &str = "example.com/hello";
const SECONDS_DEFAULT: u64 = 5;

/// Asks by TLS on one connection until that ends, then on another.
fn by_tls(client: client::TlsTestClient, to: SocketAddr) -> BackgroundClient {
    Box::new(move |stop, answers| {
        let call = HttpCall::post("/mirror").host(APP).body(vec![b'x'; 10_000]);
        let failure = |what: &str, why: &dyn std::fmt::Display| format!("TLS: {what}: {why}");
        while !stop.load(SeqCst) {
            let mut connection = client.connect(to, APP).map_err(|why| failure("connect", &why))?;
            while !stop.load(SeqCst) {
                let answer = connection.call(&call).map_err(|why| failure("call", &why))?;
                if (answer.status, answer.body.len()) != (200, 10_000) {
                    return Err(failure("answer", &answer));
                }
                answers.fetch_add(1, SeqCst);
                if answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
                    break;
                }
            }
        }
        Ok(())
    })
}

/// Calls as gRPC makes them: a message, trailers behind it, and a status in the answer's trailers.
fn grpc(to: SocketAddr) -> BackgroundClient {
    Box::new(move |stop, answers| {
        http2::run(async {
            let mut check = HeaderMap::new();
            check.insert("x-check", HeaderValue::from_static("7"));
            while !stop.load(SeqCst) {
                let (client, _ended) = http2::H2Client::open(to).await;
                while !stop.load(SeqCst) {
                    let request = Request::post(format!("http://{CHAT}/mirror"));
                    let request = request.header("te", "trailers").body(()).unwrap();
                    let Ok((response, mut out)) = client.begin(request, false).await else { break };
                    let message = Bytes::from(vec![b'g'; 5_000]);
                    let sending = async {
                        http2::send_all(&mut out, message, false).await?;
                        out.send_trailers(check.clone())
                    };
                    let reading = async { http2::answer(response.await?).await };
                    let answer = match http2::both(sending, reading).await {
                        (_, Ok(answer)) => answer,
                        // Begun while the goodbye was in progress and never looked at.
                        (_, Err(why)) if http2::is_unprocessed(&why) => break,
                        (_, Err(why)) => return Err(format!("gRPC: {why}")),
                    };
                    let status = answer.trailers.as_ref().and_then(|fields| fields.get("grpc-status"));
                    if answer.status != 200 || answer.body.len() != 5_000 || status.is_none_or(|s| s != "0") {
                        return Err(format!("gRPC: {answer:?}"));
                    }
                    answers.fetch_add(1, SeqCst);
                }
            }
            Ok(())
        })
    })
}

/// Frames there and back until the server says goodbye (1001), then again.
fn web_socket(to: SocketAddr) -> BackgroundClient {
    const FRAME: &[u8] = b"\x82\x85\x01\x02\x03\x04hello";
    const GOODBYE: &[u8] = b"\x88\x02\x03\xe9";
    Box::new(move |stop, answers| {
        let failed = |what: &'static str| move |why: std::io::Error| format!("WebSocket: {what}: {why}");
        while !stop.load(SeqCst) {
            let mut stream = TcpStream::connect(to).map_err(failed("connect"))?;
            stream.set_read_timeout(Some(TIMEOUT)).map_err(failed("timeout"))?;
            let request = format!(
                "GET / HTTP/1.1\r\nHost: {SOCKET}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).map_err(failed("ask"))?;
            let head = read_head(&mut stream).map_err(failed("answer"))?;
            if !head.starts_with("HTTP/1.1 101 ") {
                return Err(format!("WebSocket: {head}"));
            }
            while !stop.load(SeqCst) {
                // A frame that crosses the goodbye is the client's to send again.
                let sent = stream.write_all(FRAME);
                let mut received = [0; FRAME.len()];
                stream.read_exact(&mut received[..GOODBYE.len()]).map_err(failed("listen"))?;
                if received.starts_with(GOODBYE) {
                    break;
                }
                sent.map_err(failed("speak"))?;
                stream.read_exact(&mut received[GOODBYE.len()..]).map_err(failed("listen on"))?;
                if received != FRAME {
                    return Err(format!("WebSocket: {received:02x?} came back"));
                }
                answers.fetch_add(1, SeqCst);
                wait::rest(Duration::from_millis(1));
            }
        }
        Ok(())
    })
}

fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Switches every connection, and sends back what comes.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || echo_one(stream));
        }
    });
    address
}

fn echo_one(mut stream: TcpStream) -> std::io::Result<()> {
    read_head(&mut stream)?;
    let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    stream.write_all(switched.as_bytes())?;
    let mut piece = [0; 4096];
    loop {
        let count = wait::read(&mut stream, &mut piece)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&piece[..count])?;
    }
}

/// The hosts' rules, with this share of the application's requests for its second backend.
fn rules(second: u32) -> Value {
    let one = |host: &str, splits: Value| rule(host, &[json!({ "path": "", "splits": splits })]);
    let shares = match second {
        0 => json!([split("one", 100)]),
        share => json!([split("one", 100 - share), split("two", share)]),
    };
    json!([one(APP, shares), one(CHAT, json!([split("chat", 100)])), one(SOCKET, json!([split("socket", 100)]))])
}

fn subsets(addresses: &[SocketAddr]) -> Value {
    let all = addresses.iter().map(|address| {
        json!({ "addresses": [{ "ip": address.ip() }], "ports": [{ "name": "http", "port": address.port() }] })
    });
    json!({ "subsets": all.collect::<Vec<_>>() })
}

/// One round of changes. Each is in effect before the next one comes.
fn turn(api: KitApi, number: u32, upstreams: &[TestUpstream]) {
    api.patch("Ingress", NAMESPACE, "all", &json!({ "spec": { "rules": rules([0, 50, 99, 1][number as usize % 4]) } }));
    let (one, two) = (upstreams[0].address(), upstreams[1].address());
    let instances = [vec![one, two], vec![two], vec![one]];
    api.patch("Endpoints", NAMESPACE, "one", &subsets(&instances[number as usize % 3]));
    let scale = ["1", "3", "2"][number as usize % 3];
    let template = json!({ "metadata": { "annotations": { "autoscaling.knative.dev/min-scale": scale } } });
    api.patch("Service", NAMESPACE, "hello", &json!({ "spec": { "template": template } }));
}

#[test]
fn no_client_notices_a_day_of_changes() {
    let seconds = std::env::var("FAULTS_SECONDS").map_or(SECONDS_DEFAULT, |text| text.parse().unwrap());
    let (authority, chat, socket) = (TlsAuthority::new(), H2Server::start(), echo());
    let upstreams = [TestUpstream::start("one"), TestUpstream::start("two"), TestUpstream::start("three")];
    let mut current = ApplianceSetup::new(BIN)
        .hello_image(IMAGE)
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("*={}", authority.issue("app", APP)))
        .flag("workers", "2")
        .start();
    let api = current.api();
    backend(api, "one", "http", &[upstreams[0].address(), upstreams[1].address()]);
    backend(api, "two", "http", &[upstreams[2].address()]);
    backend(api, "chat", "h2c", &[chat.address()]);
    backend(api, "socket", "http", &[socket]);
    api.create(&ingress("all", rules(50)));
    let scale = "/spec/template/metadata/annotations/autoscaling.knative.dev~1min-scale";
    api.create(&with(service("hello", IMAGE, "x"), scale, json!("2")));
    api.wait_ready("Ingress", NAMESPACE, "all", TIMEOUT);
    api.wait_ready("Service", NAMESPACE, "hello", TIMEOUT);

    let (to, https) = (current.http(), current.https());
    let mut clients = BackgroundClients::new();
    clients.add(keep_alive(to, |_| HttpCall::get("/").host(APP), 200, Duration::ZERO));
    clients.add(keep_alive(to, |_| HttpCall::post("/mirror").host(APP).body(vec![b'x'; 50_000]), 200, Duration::ZERO));
    clients.add(one_by_one(to, APP));
    clients.add(one_by_one(to, HELLO));
    clients.add(streams(to, APP));
    clients.add(streams(to, HELLO));
    clients.add(grpc(to));
    clients.add(web_socket(to));
    clients.add(by_tls(authority.client(BOTH), https));
    clients.goes_on(100);

    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut number, mut leaving) = (0, Vec::new());
    while number < 4 || Instant::now() < end {
        turn(api, number, &upstreams);
        clients.goes_on(50);
        authority.issue("app", APP);
        current.reload();
        clients.goes_on(50);
        if number % 4 == 1 {
            let next = current.successor();
            clients.goes_on(50);
            leaving.push(std::mem::replace(&mut current, next));
        }
        number += 1;
    }
    clients.goes_on(100);
    // WebSockets keep an old process for as long as it waits for idle clients; requests go on meanwhile.
    for mut old in leaving {
        wait::until(4 * TIMEOUT, "the old process to end", || (!old.is_running()).then_some(()));
        assert_eq!(old.wait().code(), Some(0), "{}", old.stderr());
    }
    let answers = clients.end();
    assert!(chat.requests() > 0 && upstreams.iter().all(|upstream| upstream.requests() > 0), "{answers} answers");
    assert!(!current.stderr().contains("panicked"), "{}", current.stderr());
}
