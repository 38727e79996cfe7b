//! TLS to instances: `--route HOST=https://…` and `h2://…`, and which certificates are trusted.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use kit::http2::{self, H2Client, H2Server};
use kit::tls::TlsFront;
use kit::{Appliance, ApplianceSetup, HttpCall, HttpConnection, TIMEOUT, TestUpstream, wait};

use super::client::{BIN, TlsAuthority};

const HOST: &str = "app.example.com";

/// A front whose certificate is for `name`.
pub(crate) fn front(authority: &TlsAuthority, name: &str, alpn: &[&[u8]], to: std::net::SocketAddr) -> TlsFront {
    let files = authority.issue(name, name);
    let (certificate, key) = files.split_once(',').unwrap();
    TlsFront::start(&std::fs::read(certificate).unwrap(), &std::fs::read(key).unwrap(), alpn, to)
}

/// A gateway to these addresses, verified by the authority.
fn gateway(authority: &TlsAuthority, scheme: &str, fronts: &[&TlsFront], options: &str) -> Appliance {
    let addresses: Vec<_> = fronts.iter().map(|front| front.address().to_string()).collect();
    let ca = authority.own_file();
    let rule = format!("{HOST}={scheme}://{}?ca={}{options}", addresses.join(","), ca.display());
    ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1").flag("trusted-proxies", "127.0.0.0/8").start()
}

#[test]
fn an_instance_is_reached_by_tls_and_its_connection_is_kept() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let front = front(&authority, HOST, &[], upstream.address());
    let appliance = gateway(&authority, "https", &[&front], "");
    let mut connection = HttpConnection::open(appliance.http());
    for _ in 0..20 {
        assert_eq!(connection.call(&HttpCall::get("/").host(HOST)).status, 200);
    }
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mirrored = connection.call(&HttpCall::post("/mirror").host(HOST).body(body.clone()));
    assert!(mirrored.status == 200 && mirrored.body == body, "{} bytes", mirrored.body.len());
    assert_eq!((front.handshakes(), front.named()), ((1, 0, 0), vec![HOST.to_owned()]));
    assert_eq!(appliance.metric("sluicegate_upstream_connections_reused_total", ""), 20);
    // A client of HTTP/2 to the same instance.
    http2::run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let request = Request::post(format!("http://{HOST}/mirror")).body(()).unwrap();
        let answer = client.send(request, Bytes::from(body.clone()), None).await.unwrap();
        assert!(answer.status == 200 && answer.body == body, "{} bytes", answer.body.len());
    });
}

#[test]
fn a_new_connection_resumes_the_session() {
    let (authority, upstream) = (TlsAuthority::new(), TestUpstream::start("one"));
    let front = front(&authority, HOST, &[b"http/1.1"], upstream.address());
    let appliance = gateway(&authority, "https", &[&front], "");
    for _ in 0..4 {
        assert_eq!(HttpCall::get("/close").host(HOST).send(appliance.http()).status, 200);
    }
    let (full, resumed, failed) = front.handshakes();
    assert_eq!((full, resumed, failed), (1, 3, 0));
}

#[test]
fn an_instance_that_speaks_http2_by_tls_gets_streams_and_trailers() {
    let (authority, instance) = (TlsAuthority::new(), H2Server::start());
    let front = front(&authority, "inside.test", &[b"h2"], instance.address());
    let appliance = gateway(&authority, "h2", &[&front], "&name=inside.test");
    http2::run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let request = || Request::post(format!("http://{HOST}/mirror")).body(()).unwrap();
        let mut check = HeaderMap::new();
        check.insert("x-check", HeaderValue::from_static("5"));
        for _ in 0..5 {
            let answer = client.send(request(), Bytes::from(vec![b'x'; 100_000]), Some(check.clone())).await.unwrap();
            let trailers = answer.trailers.unwrap();
            assert_eq!((answer.status, answer.body.len()), (200, 100_000));
            assert_eq!((&trailers["grpc-status"], &trailers["x-check"]), (&"0".parse().unwrap(), &check["x-check"]));
        }
    });
    assert_eq!(HttpCall::get("/x").host(HOST).send(appliance.http()).status, 200);
    assert_eq!((front.named(), instance.connections()), (vec!["inside.test".to_owned()], 1));
}

/// Requests go only to instances with a valid certificate for the expected name.
#[test]
fn untrusted_instance_gets_no_request_and_client_gets_reason() {
    let (authority, other) = (TlsAuthority::new(), TlsAuthority::new());
    let upstream = TestUpstream::start("one");
    let wrong_name = front(&authority, "wrong.test", &[], upstream.address());
    let unauthorized = front(&other, HOST, &[], upstream.address());
    let right = front(&authority, HOST, &[], upstream.address());
    for (bad, said) in [(&wrong_name, "not valid for"), (&unauthorized, "(ca=FILE)")] {
        let appliance = gateway(&authority, "https", &[bad], "");
        let answer = HttpCall::get("/").host(HOST).send(appliance.http());
        assert_eq!(answer.status, 502, "{answer}");
        assert!(answer.reason().contains("TLS verification") && answer.reason().contains(said), "{answer}");
        http2::run(async {
            let (client, _ended) = H2Client::open(appliance.http()).await;
            let request = Request::get(format!("http://{HOST}/")).body(()).unwrap();
            let answer = client.call(request).await.unwrap();
            assert!(answer.status == 502 && answer.reason().contains(said), "{answer:?}");
        });
        assert_eq!(appliance.metric("sluicegate_refused_total", "upstream_tls_verification_failed"), 2);
        wait::until(TIMEOUT, "a line in the log", || {
            appliance.stderr().contains("TLS verification of an instance failed").then_some(())
        });
    }
    assert_eq!(upstream.requests(), 0, "nothing was sent to any of them");
    // A valid one replaces the other.
    let appliance = gateway(&authority, "https", &[&wrong_name, &right], "");
    for _ in 0..10 {
        assert_eq!(HttpCall::get("/").host(HOST).send(appliance.http()).status, 200);
    }
    // Instances without TLS, or without HTTP/2 where that is required.
    let ca = authority.own_file();
    let plain = format!("{HOST}=https://{}?ca={}", upstream.address(), ca.display());
    let appliance = ApplianceSetup::new(BIN).flag("route", &plain).start();
    let answer = HttpCall::get("/").host(HOST).send(appliance.http());
    assert_eq!(answer.status, 502, "{answer}");
    let appliance = gateway(&authority, "h2", &[&right], "");
    let answer = HttpCall::get("/").host(HOST).send(appliance.http());
    assert!(answer.status == 502 && answer.reason().contains("h2"), "{answer}");
}

#[test]
fn an_authority_that_cannot_be_read_stops_the_start() {
    let authority = TlsAuthority::new();
    std::fs::write(authority.file("bad.pem"), "no certificate").unwrap();
    for (file, said) in [("bad.pem", "no certificate of an authority"), ("none.pem", "none.pem")] {
        let rule = format!("{HOST}=https://127.0.0.1:9?ca={}", authority.file(file).display());
        let refusal = ApplianceSetup::new(BIN).flag("route", &rule).refused();
        assert_eq!(refusal.code, Some(1), "{refusal}");
        assert!(refusal.stderr.contains(said) && refusal.stderr.contains(HOST), "{refusal}");
    }
}
