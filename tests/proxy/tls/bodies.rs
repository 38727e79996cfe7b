//! Large bodies both ways, with ends that are distinguishable from cuts.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use kit::server::closed_address;
use kit::{ApplianceSetup, HttpCall, TIMEOUT, TestUpstream, wait};
use rustls::version;

use super::client::{BIN, BOTH, TlsAuthority, server};

const LARGE: usize = 16 * 1024 * 1024;

#[test]
fn a_large_body_goes_both_ways_byte_for_byte() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    let body: Vec<u8> = (0..LARGE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for spoken in [&version::TLS12, &version::TLS13] {
        let client = authority.client(&[spoken]);
        let answer = client.call(appliance.https(), "app.test", &HttpCall::post("/mirror").body(body.clone()));
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.body.len()), (200, LARGE));
        assert!(answer.body == body, "{spoken:?}: the body changed on its way");
    }
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_it() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    let mut connection = authority.client(BOTH).connect(appliance.https(), "app.test").unwrap();
    let call = HttpCall::get("/chunks?count=64&bytes=100000").host("app.test");
    connection.tls.write_all(&call.to_bytes(appliance.https())).unwrap();
    // The socket's buffers fill up meanwhile.
    wait::until(TIMEOUT, "the upstream to be asked", || (upstream.requests() == 1).then_some(()));
    let mut first = [0; 1];
    connection.tls.read_exact(&mut first).unwrap();
    let others: Vec<_> = (0..4)
        .map(|_| {
            let (client, https) = (authority.client(BOTH), appliance.https());
            thread::spawn(move || client.call(https, "app.test", &HttpCall::get("/")).unwrap().status)
        })
        .collect();
    assert!(others.into_iter().all(|other| other.join().unwrap() == 200));

    let mut whole = first.to_vec();
    while !whole.ends_with(b"0\r\n\r\n") {
        let mut piece = [0; 1000];
        let length = connection.tls.read(&mut piece).unwrap();
        assert_ne!(length, 0, "after {} bytes", whole.len());
        whole.extend_from_slice(&piece[..length]);
    }
    assert!(whole.len() > 6_400_000);
}

/// A complete response ends with `close_notify`, whether the client or the server asked to close.
#[test]
fn an_ending_connection_says_so() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let mut appliance = server(&authority, &[("*", "app.test")], &upstream);
    let client = authority.client(BOTH);
    let open = || client.connect(appliance.https(), "app.test").unwrap();

    let mut asked = open();
    let close = HttpCall::get("/").host("app.test").header("Connection", "close");
    assert_eq!(asked.call(&close).unwrap().status, 200);
    assert_eq!(asked.rest().unwrap(), b"");

    let mut refused = open();
    refused.tls.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").unwrap();
    assert_eq!(refused.receive().unwrap().status, 400);
    assert_eq!(refused.rest().unwrap(), b"");

    let mut half = open();
    half.tls.write_all(&HttpCall::get("/delay?ms=300").host("app.test").to_bytes(appliance.https())).unwrap();
    half.tls.conn.send_close_notify();
    half.tls.flush().unwrap();
    assert_eq!(half.receive().unwrap().status, 200, "a client that said goodbye still gets its answer");

    let mut idle = open();
    assert_eq!(idle.call(&HttpCall::get("/").host("app.test")).unwrap().status, 200);
    assert!(appliance.terminate().success());
    assert_eq!(idle.rest().unwrap(), b"", "a drain is no cut");
}

/// An answer that breaks off must not look whole, not even to a client of HTTP/1.0 whose body ends with the
/// connection.
#[test]
fn an_answer_that_breaks_off_is_no_end() {
    let authority = TlsAuthority::new();
    let instance = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let files = authority.issue("app", "app.test");
    let appliance = ApplianceSetup::new(BIN)
        .route("*", instance.local_addr().unwrap())
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("*={files}"))
        .start();
    let server = thread::spawn(move || {
        let (mut socket, _) = instance.accept().unwrap();
        let mut request = [0; 4096];
        let _ = socket.read(&mut request).unwrap();
        socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").unwrap();
        socket.shutdown(Shutdown::Both).unwrap();
    });
    let mut connection = authority.client(BOTH).connect(appliance.https(), "app.test").unwrap();
    connection.tls.write_all(b"GET / HTTP/1.0\r\nHost: app.test\r\n\r\n").unwrap();
    let why = connection.rest().unwrap_err();
    assert_eq!(why.kind(), std::io::ErrorKind::UnexpectedEof);
    server.join().unwrap();
}

/// Whether the client's connection was cut on its way or ended too early: there is no whole request.
#[test]
fn a_request_that_breaks_off_is_answered_by_nobody() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let appliance = server(&authority, &[("*", "app.test")], &upstream);
    for polite in [false, true] {
        let mut connection = authority.client(BOTH).connect(appliance.https(), "app.test").unwrap();
        let begun = b"POST /mirror HTTP/1.1\r\nHost: app.test\r\nContent-Length: 10\r\n\r\nhello";
        connection.tls.write_all(begun).unwrap();
        if polite {
            connection.tls.conn.send_close_notify();
            connection.tls.flush().unwrap();
        }
        connection.tls.sock.shutdown(Shutdown::Write).unwrap();
        assert!(connection.receive().is_err());
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn a_refusal_of_the_gateway_comes_by_tls_too() {
    let authority = TlsAuthority::new();
    let files = authority.issue("app", "app.test");
    let appliance = ApplianceSetup::new(BIN)
        .route("app.test", closed_address())
        .flag("https", "127.0.0.1:0")
        .flag("tls-cert", &format!("*={files}"))
        .start();
    let mut connection = authority.client(BOTH).connect(appliance.https(), "app.test").unwrap();
    assert_eq!(connection.call(&HttpCall::get("/").host("app.test")).unwrap().status, 502);
    assert_eq!(connection.call(&HttpCall::get("/").host("other.test")).unwrap().status, 404);
}
