//! `--route HOST=unix:/PATH` through the built binary: upstreams that listen on Unix sockets.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TestUpstream, http2};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

/// Answers every request on every connection with its own head as the body.
fn echo_heads(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer_all(stream.unwrap()));
        }
    });
}

fn answer_all(mut stream: UnixStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while stream.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
        if head.ends_with(b"\r\n\r\n") {
            let length = head.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").unwrap();
            stream.write_all(&head).unwrap();
            head.clear();
        }
    }
}

/// Carries every connection to a server that listens on TCP.
fn forward(path: &Path, to: std::net::SocketAddr) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (here, there) = (stream.unwrap(), std::net::TcpStream::connect(to).unwrap());
            let (mut up, mut down) = (here.try_clone().unwrap(), there.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut up, &mut { there }));
            thread::spawn(move || io::copy(&mut down, &mut { here }));
        }
    });
}

fn gateway(targets: &str) -> Appliance {
    ApplianceSetup::new(BIN).flag("route", &format!("{HOST}={targets}")).flag("workers", "1").start()
}

/// SRV-REQ-01: an upstream on a Unix socket gets the requests of its host, with that host, on connections that are kept.
#[test]
fn route_to_a_unix_socket_carries_requests() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    echo_heads(&path);
    let appliance = gateway(&format!("unix:{}", path.display()));
    let mut connection = HttpConnection::open(appliance.http());
    for number in 0..20 {
        let response = connection.call(&HttpCall::get(&format!("/{number}")).host(HOST));
        let head = String::from_utf8_lossy(&response.body).into_owned();
        assert_eq!(response.status, 200, "{response}");
        assert!(head.starts_with(&format!("GET /{number} HTTP/1.1\r\nHost: {HOST}\r\n")), "{head}");
    }
    let routes = HttpCall::get("/debug/routes").send(appliance.admin()).json();
    let shown = &routes["backends"][format!("static/{HOST}")]["instances"][0]["address"];
    assert_eq!(*shown, format!("unix:{}", path.display()), "{routes}");
    assert_eq!(appliance.metric("sluicegate_upstream_connections_total", ""), 1);
}

#[test]
fn route_to_a_unix_socket_carries_http2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let server = http2::H2Server::start();
    forward(&path, server.address());
    let appliance = gateway(&format!("h2c://unix://{}", path.display()));
    for _ in 0..5 {
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    }
    assert_eq!((server.requests(), server.connections()), (5, 1));
}

#[test]
fn route_to_a_mixed_list_uses_every_address() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let (one, two) = (TestUpstream::start("one"), TestUpstream::start("two"));
    forward(&path, two.address());
    let appliance = gateway(&format!("{},unix:{}", one.address(), path.display()));
    for _ in 0..100 {
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    }
    assert!(one.requests() > 0 && two.requests() > 0, "{} {}", one.requests(), two.requests());
}

/// The socket may come and go: requests fail as for an address without a listener, and begin to work when there is one.
#[test]
fn route_to_a_missing_unix_socket_works_once_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let appliance = gateway(&format!("unix:{}", path.display()));
    appliance.wait_says("cannot be reached yet");
    let get = || HttpCall::get("/").host(HOST).send(appliance.http());
    let refused = get();
    assert_eq!(refused.status, 502, "{refused}");
    std::fs::write(&path, "no socket").unwrap();
    assert_eq!(get().status, 502);
    std::fs::remove_file(&path).unwrap();
    echo_heads(&path);
    assert_eq!(get().status, 200);
}

#[test]
fn route_to_a_bad_unix_path_stops_the_start() {
    for (path, why) in [
        ("unix:app.sock", "not absolute"),
        ("unix://app.sock", "not absolute"),
        (&*format!("unix:/{}", "a".repeat(120)), "at most 107"),
    ] {
        let reported = ApplianceSetup::new(BIN).flag("route", &format!("{HOST}={path}")).refused().stderr;
        assert!(
            reported.contains(why) && reported.contains("app.sock") | reported.contains("aaa"),
            "{path}: {reported}"
        );
    }
}

/// The target policy: requests to the API's own socket would be made as its owner.
#[test]
fn route_to_the_own_api_socket_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, link) = (dir.path().join("api.sock"), dir.path().join("link.sock"));
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    for path in [&socket, &link] {
        let setup = ApplianceSetup::new(BIN)
            .flag("api-socket", &socket.display().to_string())
            .flag("route", &format!("{HOST}=unix:{}", path.display()));
        let reported = setup.refused().stderr;
        assert!(reported.contains("a socket of this appliance"), "{reported}");
    }
}
