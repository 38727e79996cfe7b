//! `--upgrade-protocols` through the built binary: tunnels of protocols other than WebSocket.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use kit::{Appliance, ApplianceSetup, TIMEOUT, http2};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Reads a head and `body` bytes, says `response`, and sends back what comes; gives the head back at the client's end.
fn server(body: usize, response: &'static str) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = read_head(&mut stream);
        stream.read_exact(&mut vec![0; body]).unwrap();
        stream.write_all(response.as_bytes()).unwrap();
        let mut bytes = [0; 65536];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            stream.write_all(&bytes[..count]).unwrap();
        }
        head
    });
    (address, thread)
}

fn gateway(address: SocketAddr, protocols: &str) -> Appliance {
    ApplianceSetup::new(BIN).route(HOST, address).flag("upgrade-protocols", protocols).flag("workers", "1").start()
}

fn ask(appliance: &Appliance, request: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(appliance.http()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let head = read_head(&mut stream);
    (stream, head)
}

fn request(method: &str, upgrade: &str, rest: &str) -> String {
    format!("{method} /x HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n{rest}")
}

fn has_line(head: &str, line: &str) -> bool {
    head.lines().any(|found| found.eq_ignore_ascii_case(line))
}

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw/2\r\nX-Own: 1\r\n\r\n";

/// RFC 9110 7.8: a listed protocol is asked for, and its bytes pass as they are, also those that look like frames.
#[test]
fn listed_protocol_becomes_a_tunnel() {
    for method in ["GET", "POST"] {
        let (address, server) = server(0, SWITCHED);
        let appliance = gateway(address, "other,Raw/2");
        let (mut stream, head) = ask(&appliance, &request(method, "unknown, raw/2", "Content-Length: 0\r\n\r\n"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        for line in ["connection: upgrade", "upgrade: raw/2", "x-own: 1"] {
            assert!(has_line(&head, line), "{line} in {head}");
        }
        let sent: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut writer = stream.try_clone().unwrap();
        let wanted = sent.clone();
        let writing = thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        assert!(received == wanted, "{} of {} bytes came back", received.len(), wanted.len());
        let head = server.join().unwrap();
        assert!(has_line(&head, "upgrade: raw/2") && has_line(&head, "connection: upgrade"), "{head}");
    }
}

/// A request to upgrade may have a body, as `docker exec` has; the tunnel begins behind it.
#[test]
fn upgrade_with_a_body_switches_behind_it() {
    let (address, server) = server(4, SWITCHED);
    let appliance = gateway(address, "raw/2");
    let (mut stream, head) = ask(&appliance, &request("POST", "raw/2", "Content-Length: 4\r\n\r\nbodyearly"));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream.shutdown(Shutdown::Write).unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    assert_eq!(received, "early");
    server.join().unwrap();
}

#[test]
fn unlisted_protocol_is_left_out() {
    const PLAIN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let (address, server) = server(0, PLAIN);
    let appliance = gateway(address, "other");
    let (stream, head) = ask(&appliance, &request("GET", "raw/2", "\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    drop((stream, appliance));
    let head = server.join().unwrap().to_ascii_lowercase();
    assert!(!head.contains("upgrade"), "{head}");
}

/// A 101 with a protocol that was not requested would leave the client with bytes that it cannot read: 502.
#[test]
fn switch_to_another_protocol_is_refused() {
    for asked in ["raw/1", "websocket"] {
        let (address, server) = server(0, SWITCHED);
        let appliance = gateway(address, "raw/1");
        let (stream, head) = ask(&appliance, &request("GET", asked, "\r\n"));
        assert!(head.starts_with("HTTP/1.1 502 "), "{asked}: {head}");
        drop((stream, appliance));
        server.join().unwrap();
    }
}

#[test]
fn upgrade_that_the_server_declines_is_a_plain_response() {
    const PLAIN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno";
    let (address, server) = server(0, PLAIN);
    let appliance = gateway(address, "raw/2");
    let (mut stream, head) = ask(&appliance, &request("GET", "raw/2", "\r\n"));
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let mut body = [0; 2];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(&body, b"no");
    drop((stream, appliance));
    server.join().unwrap();
}

/// A stop ends a tunnel without a Close frame, which only WebSocket has.
#[test]
fn stop_ends_a_tunnel_without_bytes_of_its_own() {
    let (address, server) = server(0, SWITCHED);
    let mut appliance = gateway(address, "raw/2");
    let (mut stream, head) = ask(&appliance, &request("GET", "raw/2", "\r\n"));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream.write_all(b"abc").unwrap();
    let mut received = [0; 3];
    stream.read_exact(&mut received).unwrap();
    assert!(appliance.terminate().success());
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
    server.join().unwrap();
}

#[test]
fn upgrade_to_an_instance_of_http2_is_501() {
    let instance = http2::H2Server::start();
    let rule = format!("{HOST}=h2c://{}", instance.address());
    let appliance = ApplianceSetup::new(BIN).flag("route", &rule).flag("upgrade-protocols", "raw/2").start();
    let (_, head) = ask(&appliance, &request("GET", "raw/2", "\r\n"));
    assert!(head.starts_with("HTTP/1.1 501 "), "{head}");
}

#[test]
fn http_as_a_listed_protocol_stops_the_start() {
    for protocols in ["h2c", "raw/2,HTTP/2.0", "a b"] {
        let reported = ApplianceSetup::new(BIN).flag("upgrade-protocols", protocols).refused().stderr;
        assert!(reported.contains("upgrade-protocols"), "{protocols}: {reported}");
    }
}
