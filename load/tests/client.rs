//! The generator against servers that are not ours: what arrives, and what is counted.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use kit::http2::H2Server;
use kit::server::closed_address;
use kit::tls::TlsFront;
use kit::{EventSink, SinkResponse, TestUpstream};
use sluicegate_load::{
    Arrivals, FailureKind, LoadProtocol, LoadResult, LoadSpec, LoadTestError, OpenLoopRate, RequestOptions, StopHandle,
    TlsTrust, compare, run,
};

/// So many requests in a closed loop.
fn requests(address: SocketAddr, path: &str, count: u64) -> LoadSpec {
    LoadSpec { connections: 4, requests: Some(count), ..LoadSpec::new(format!("http://{address}{path}")) }
}

fn statuses(result: &LoadResult) -> Vec<(u16, u64)> {
    result.statuses.iter().map(|(status, count)| (*status, *count)).collect()
}

#[test]
fn closed_loop_sends_exactly_the_requests_asked_for() {
    let upstream = TestUpstream::start("a");
    let result = run(&LoadSpec { threads: 2, ..requests(upstream.address(), "/", 301) }).unwrap();
    assert_eq!((statuses(&result), result.failures.len()), (vec![(200, 301)], 0));
    assert_eq!((upstream.requests(), upstream.connections()), (301, 4));
    assert_eq!((result.latency.count(), result.in_time, result.unsent), (301, 301, 0));
    assert_eq!(result.series.iter().map(|point| point.counts.responses).sum::<u64>(), 301);
    assert!(result.rate() > 0.0 && result.latency.max() <= result.measured);
}

#[test]
fn error_statuses_and_bytes_are_counted() {
    let upstream = TestUpstream::start("a");
    let result = run(&requests(upstream.address(), "/status?code=503", 10)).unwrap();
    assert_eq!((statuses(&result), result.counts.error_responses), (vec![(503, 10)], 10));
    let result = run(&requests(upstream.address(), "/chunks?count=3&bytes=100000", 10)).unwrap();
    assert!(result.counts.bytes > 3_000_000, "{}", result.counts.bytes);
}

#[test]
fn server_that_closes_after_each_response_is_reached_again() {
    let upstream = TestUpstream::start("a");
    let result = run(&requests(upstream.address(), "/close", 20)).unwrap();
    assert_eq!((statuses(&result), result.failures.len()), (vec![(200, 20)], 0));
    assert!(upstream.connections() >= 20, "{}", upstream.connections());
}

#[test]
fn connection_without_response_is_a_failure_with_its_text() {
    let upstream = TestUpstream::start("a");
    let result = run(&requests(upstream.address(), "/hangup", 5)).unwrap();
    let closed = &result.failures[&FailureKind::Closed];
    assert_eq!((closed.count, result.counts.responses), (5, 0));
    assert!(closed.example.contains("closed the connection"), "{}", closed.example);
}

#[test]
fn slow_response_times_out() {
    let upstream = TestUpstream::start("a");
    let spec = LoadSpec { timeout: Duration::from_millis(50), ..requests(upstream.address(), "/delay?ms=20000", 2) };
    let result = run(&spec).unwrap();
    assert_eq!(result.failures[&FailureKind::Timeout].count, 2);
}

#[test]
fn target_without_listener_is_an_error_with_advice() {
    let why = run(&requests(closed_address(), "/", 5)).unwrap_err();
    assert!(matches!(why, LoadTestError::Unreachable { .. }), "{why}");
    let text = why.to_string();
    assert!(text.contains("127.0.0.1:") && text.contains("refused") && text.contains("listens"), "{text}");
}

#[test]
fn hostile_responses_are_failures() {
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (bytes, kind) in [
        ("SSH-2.0-OpenSSH_9.2\r\n".to_owned(), FailureKind::Malformed),
        ("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\ntoo short".to_owned(), FailureKind::Closed),
        (format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(1 << 20)), FailureKind::Malformed),
        (format!("{chunks}fffffffffffffffff\r\n"), FailureKind::Malformed),
        (format!("{chunks}ffffffffffffffff\r\n{}", "x".repeat(1 << 20)), FailureKind::Closed),
        (String::new(), FailureKind::Closed),
    ] {
        let text = bytes.clone();
        let sink = EventSink::answering(move |_| SinkResponse::raw(text.as_bytes()));
        let result = run(&requests(sink.address(), "/", 3)).unwrap();
        let kinds: Vec<_> = result.failures.iter().map(|(kind, failure)| (*kind, failure.count)).collect();
        assert_eq!(kinds, [(kind, 3)], "{:?}", &bytes[..bytes.len().min(80)]);
    }
}

#[test]
fn open_loop_sends_each_arrival_once() {
    let upstream = TestUpstream::start("a");
    for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
        let before = upstream.requests();
        let rate = OpenLoopRate { from: 400.0, to: 400.0, arrivals };
        let spec = LoadSpec { rate: Some(rate), threads: 2, ..requests(upstream.address(), "/", 200) };
        let result = run(&spec).unwrap();
        let sent = upstream.requests() - before;
        assert_eq!((result.requests(), result.failures.len()), (sent, 0), "{arrivals:?}");
        assert!(sent + result.unsent <= 201 && sent > 0, "{sent} and {} for {arrivals:?}", result.unsent);
    }
}

/// The target takes 20 ms a request, and one is due each millisecond: each waits longer than the one before.
#[test]
fn open_loop_counts_latency_from_when_a_request_was_due() {
    let sink = EventSink::answering(|_| SinkResponse::status(200).after(Duration::from_millis(20)));
    let rate = OpenLoopRate { from: 1_000.0, to: 1_000.0, arrivals: Arrivals::Constant };
    let url = format!("http://{}/slow", sink.address());
    let spec = LoadSpec { rate: Some(rate), duration: Some(Duration::from_millis(400)), ..LoadSpec::new(url) };
    let result = run(&spec).unwrap();
    // One connection has at most 20 responses in this time, the last of which was due 380 ms before.
    assert!(result.counts.responses <= 25 && result.unsent >= 300, "{} and {}", result.counts.responses, result.unsent);
    assert!(result.latency.max() >= Duration::from_millis(150), "{:?}", result.latency.max());
    assert!(result.notes.iter().any(|note| note.contains("did not keep up")), "{:?}", result.notes);
}

#[test]
fn warm_up_is_sent_and_not_counted() {
    let upstream = TestUpstream::start("a");
    let spec = LoadSpec { warm_up: Duration::from_millis(100), ..requests(upstream.address(), "/", 10) };
    let result = run(&spec).unwrap();
    assert_eq!(result.counts.responses, 10);
    assert!(upstream.requests() > 10, "{}", upstream.requests());
}

#[test]
fn events_have_the_attributes_and_an_id_each() {
    let sink = EventSink::start();
    let request = RequestOptions { event_type: Some("a.b".to_owned()), ..RequestOptions::default() };
    let result = run(&LoadSpec { request, threads: 2, ..requests(sink.address(), "/x", 40) }).unwrap();
    assert_eq!(result.counts.responses, 40);
    let received = sink.received();
    let ids: BTreeSet<_> = received.iter().map(|event| event.id()).collect();
    assert_eq!((received.len(), ids.len()), (40, 40));
    assert!(received.iter().all(|event| event.attribute("type").as_deref() == Some("a.b") && !event.is_structured()));
}

#[test]
fn http2_streams_share_connections() {
    let server = H2Server::start();
    let spec =
        LoadSpec { protocol: LoadProtocol::Http2, streams: 8, connections: 2, ..requests(server.address(), "/", 200) };
    let result = run(&spec).unwrap();
    assert_eq!((statuses(&result), result.failures.len()), (vec![(200, 200)], 0));
    assert_eq!((server.requests(), server.connections()), (200, 2));
    assert!(result.counts.bytes > 200 * 50, "{}", result.counts.bytes);
}

#[test]
fn grpc_counts_the_status_of_the_trailers() {
    let server = H2Server::start();
    let request = RequestOptions { is_grpc: true, body: "abc".into(), ..RequestOptions::default() };
    let spec = |path| LoadSpec {
        protocol: LoadProtocol::Http2,
        request: request.clone(),
        ..requests(server.address(), path, 10)
    };
    let result = run(&spec("/mirror")).unwrap();
    assert_eq!((result.grpc_statuses.clone(), result.counts.error_responses), (BTreeMap::from([(0, 10)]), 0));
    let result = run(&spec("/trailers-only")).unwrap();
    assert_eq!((result.grpc_statuses.clone(), result.counts.error_responses), (BTreeMap::from([(7, 10)]), 10));
}

#[test]
fn http2_request_that_times_out_is_cancelled() {
    let server = H2Server::start();
    let spec = requests(server.address(), "/hang", 3);
    let spec = LoadSpec { protocol: LoadProtocol::Http2, timeout: Duration::from_millis(50), connections: 1, ..spec };
    let result = run(&spec).unwrap();
    assert_eq!(result.failures[&FailureKind::Timeout].count, 3);
}

#[test]
fn endless_http2_body_times_out() {
    let server = H2Server::start();
    let spec = LoadSpec { protocol: LoadProtocol::Http2, ..requests(server.address(), "/crumbs", 2) };
    let result = run(&LoadSpec { timeout: Duration::from_millis(100), connections: 1, ..spec }).unwrap();
    // h2 closes a connection with too many frames of one byte.
    assert_eq!((result.counts.failures, result.counts.responses), (2, 0), "{:?}", result.failures);
}

#[test]
fn server_without_http2_is_a_failure() {
    let upstream = TestUpstream::start("a");
    let spec = LoadSpec { protocol: LoadProtocol::Http2, ..requests(upstream.address(), "/", 3) };
    // The first frames of HTTP/2 are no request of HTTP/1.1, so the server closes, at the latest for the first stream.
    match run(&spec) {
        Ok(result) => assert_eq!((result.counts.responses, result.counts.failures), (0, 3)),
        Err(why) => assert!(matches!(why, LoadTestError::Unreachable { .. }), "{why}"),
    }
}

#[test]
fn tls_trusts_the_given_authority_or_any() {
    let upstream = TestUpstream::start("a");
    let server = H2Server::start();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let front = |alpn: &[&[u8]], to| TlsFront::start(certificate.as_bytes(), key.as_bytes(), alpn, to);
    let (plain, http2) = (front(&[], upstream.address()), front(&[b"h2"], server.address()));
    let spec = |front: &TlsFront, trust| LoadSpec {
        trust,
        requests: Some(20),
        connections: 2,
        ..LoadSpec::new(format!("https://{}/", front.address()))
    };
    let authority = || TlsTrust::Authorities(certificate.clone().into_bytes());
    for trust in [authority(), TlsTrust::Insecure] {
        let result = run(&spec(&plain, trust.clone())).unwrap();
        assert_eq!((statuses(&result), result.failures.len()), (vec![(200, 20)], 0), "{trust:?}");
        let result = run(&LoadSpec { protocol: LoadProtocol::Http2, streams: 4, ..spec(&http2, trust) }).unwrap();
        assert_eq!((statuses(&result), result.failures.len()), (vec![(200, 20)], 0));
    }
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert.pem();
    let why = run(&spec(&plain, TlsTrust::Authorities(other.into_bytes()))).unwrap_err().to_string();
    assert!(why.contains("--ca") && why.contains("certificate"), "{why}");
    let why = run(&LoadSpec { protocol: LoadProtocol::Http2, ..spec(&plain, authority()) }).unwrap_err().to_string();
    assert!(why.contains("h2"), "{why}");
}

#[test]
fn large_bodies_go_both_ways() {
    let (upstream, server) = (TestUpstream::start("a"), H2Server::start());
    let request = RequestOptions { body: vec![b'x'; 300_000].into(), ..RequestOptions::default() };
    let result = run(&LoadSpec { request: request.clone(), ..requests(upstream.address(), "/mirror", 8) }).unwrap();
    assert!(result.counts.responses == 8 && result.counts.bytes > 8 * 300_000, "{result:?}");
    let spec =
        LoadSpec { request, protocol: LoadProtocol::Http2, streams: 2, ..requests(server.address(), "/mirror", 8) };
    let result = run(&spec).unwrap();
    assert!(result.counts.responses == 8 && result.counts.bytes > 8 * 300_000, "{result:?}");
}

#[test]
fn stopped_test_reports_what_it_has() {
    let upstream = TestUpstream::start("a");
    let stop = StopHandle::default();
    let spec = LoadSpec {
        duration: Some(Duration::from_secs(3_600)),
        ..LoadSpec::new(format!("http://{}/", upstream.address()))
    };
    let rated = OpenLoopRate { from: 0.01, to: 0.01, arrivals: Arrivals::Constant };
    stop.stop();
    for spec in [LoadSpec { rate: Some(rated), ..spec.clone() }, spec] {
        let result = sluicegate_load::run_observed(&spec, &stop, &mut |_| ()).unwrap();
        assert!(result.measured < Duration::from_secs(60), "{:?}", result.measured);
        assert!(result.counts.responses >= 1, "{:?}", result.counts);
    }
}

#[test]
fn comparison_sends_to_both_targets_in_rounds() {
    let (left, right) = (TestUpstream::start("a"), TestUpstream::start("b"));
    let spec = |upstream: &TestUpstream| requests(upstream.address(), "/", 25);
    let mut rounds = BTreeSet::new();
    let both = compare(&spec(&left), &spec(&right), 3, &StopHandle::default(), &mut |round, _| rounds.extend([round]));
    let both = both.unwrap();
    assert_eq!((left.requests(), right.requests(), both.rounds), (75, 75, 3));
    assert_eq!((both.first.counts.responses, both.second.counts.responses), (75, 75));
    assert!(both.rows.iter().all(|row| row.ratio.is_some()), "{:?}", both.rows);
    assert_eq!(rounds.len(), 3);
}

#[test]
fn processor_time_of_a_process_is_per_request() {
    let upstream = TestUpstream::start("a");
    let result = run(&LoadSpec { cpu_of: Some(std::process::id()), ..requests(upstream.address(), "/", 200) }).unwrap();
    assert!(result.target_cpu_us().unwrap() > 0.0 && result.generator_cpu_us() > 0.0);
    assert!(run(&LoadSpec { cpu_of: Some(u32::MAX), ..requests(upstream.address(), "/", 1) }).is_err());
}
