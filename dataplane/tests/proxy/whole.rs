//! Whole messages: the buffered client against the buffered server, as the event code uses them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ring::sim::{FaultProfile, Simulation};
use ring::{Ring, RingOptions, RingStream};
use sluicegate_dataplane::codec::http::LocalResponse;
use sluicegate_dataplane::codec::http::{MalformedHttp, Method, RequestView};
use sluicegate_dataplane::http::body_budget::BodyBudget;
use sluicegate_dataplane::http::client::{BufferedRequest, ExchangeError, UpstreamClient};
use sluicegate_dataplane::http::connection_tracker::ConnectionTracker;
use sluicegate_dataplane::http::limits::HttpLimits;
use sluicegate_dataplane::http::server::{ClientConnection, serve_buffered};

use crate::fixture::{listener, raw_instance, read_through, unused_address};

const BODY_BYTES_MAX: usize = 1000;

fn limits() -> HttpLimits {
    HttpLimits { stall_max: Duration::from_millis(200), ..HttpLimits::default() }
}

async fn echo(request: RequestView<'_>, body: Bytes) -> LocalResponse {
    let sent = format!("{} {} {}", request.method(), request.path(), body.len());
    LocalResponse { body, ..LocalResponse::empty(200) }.with("X-Said", sent)
}

/// Requests to `/secret` are rejected by their head.
fn reject(request: RequestView<'_>) -> Option<LocalResponse> {
    (request.path() == "/secret").then(|| LocalResponse::empty(401))
}

/// A buffered server on `ring`; returns its address.
fn server(ring: &Ring) -> std::net::SocketAddr {
    server_with(ring, &BodyBudget::new(BODY_BYTES_MAX, usize::MAX))
}

fn server_with(ring: &Ring, bodies: &BodyBudget) -> std::net::SocketAddr {
    let bodies = bodies.clone();
    let listener = listener(ring);
    let address = listener.local_addr().unwrap();
    let (ring, tracker) = (ring.clone(), Rc::new(ConnectionTracker::default()));
    ring.clone().spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let guard = tracker.enter(100).unwrap();
            let connection = ClientConnection::new(&ring, stream, guard, &Rc::new(limits()));
            let bodies = bodies.clone();
            ring.spawn(async move { serve_buffered(connection, &bodies, |answer| answer, &reject, &echo).await });
        }
    });
    address
}

fn post(path: &str, body: &[u8]) -> BufferedRequest {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    BufferedRequest { head: head.into(), body: Bytes::copy_from_slice(body), method: Method::Post, keeps_fields: false }
}

fn on_both<F: Future<Output = ()>>(script: impl Fn(Ring) -> F) {
    let rings = [Ring::kernel(RingOptions::default()).unwrap(), Simulation::new(7, FaultProfile::calm()).ring()];
    for ring in rings {
        ring.block_on(script(ring.clone()));
        assert_eq!(ring.panicked(), 0);
        ring.shutdown();
    }
}

#[test]
fn whole_message_round_trips_on_one_connection() {
    on_both(async |ring| {
        let address = server(&ring);
        let client = UpstreamClient::new(&ring, &limits(), Arc::default());
        for length in [0, 1, 500, BODY_BYTES_MAX] {
            let body = vec![b'x'; length];
            let answer = client.exchange(address, &post("/a?b", &body), 2000, None).await.unwrap();
            assert_eq!((answer.status, answer.body.len()), (200, length));
            assert_eq!(answer.header("x-said").unwrap(), format!("POST /a?b {length}").as_bytes());
            assert_eq!(client.pool().len(), 1);
        }
        let large = client.exchange(address, &post("/", &[b'x'; BODY_BYTES_MAX + 1]), 2000, None).await;
        assert_eq!(large.unwrap().status, 413);
        let refused = client.exchange(address, &post("/", &[b'x'; 9]), 8, None).await;
        let Err(ExchangeError::TooLarge { bytes_max: 8, answer }) = refused else { panic!("{refused:?}") };
        assert_eq!((answer.status, answer.header("x-said")), (200, Some(&b"POST / 9"[..])));
    });
}

/// No response is cut off by the end of its connection, however slow the network: the window is smaller than a
/// response.
#[test]
fn half_closed_client_gets_all_its_responses() {
    for (seed, sent) in (0..20).flat_map(|seed| [1, 2, 5].map(|sent| (seed, sent))) {
        let faults = FaultProfile {
            segment_bytes_max: 7,
            latency: Duration::from_micros(10)..=Duration::from_micros(300),
            window_bytes: 100, // less than a response
            ..FaultProfile::calm()
        };
        let ring = Simulation::new(seed, faults).ring();
        ring.block_on(async {
            let stream = Rc::new(RingStream::connect(&ring, server(&ring)).await.unwrap());
            let (client, sleeper) = (Rc::clone(&stream), ring.clone());
            ring.spawn(async move {
                for nth in 0..sent {
                    let text = format!("POST /{nth} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
                    client.send(text.into_bytes()).await.unwrap();
                    if seed % 2 == 0 {
                        sleeper.sleep(Duration::from_millis(5)).await; // one after the other
                    }
                }
                client.shutdown_write().await.unwrap();
            });
            let mut received = Vec::new();
            while let Ok(chunk) = stream.recv().await
                && !chunk.is_empty()
            {
                received.extend_from_slice(&chunk);
            }
            let received = String::from_utf8(received).unwrap();
            assert_eq!(received.matches("HTTP/1.1 200 OK\r\n").count(), sent, "seed {seed}: {received}");
            assert!(received.ends_with("\r\n\r\nabc"), "seed {seed}: {received}");
        });
        ring.shutdown();
    }
}

/// A request that is rejected by its head gets its response before its body, and takes nothing of the budget.
#[test]
fn rejected_head_takes_no_body_budget() {
    on_both(async |ring| {
        let address = server_with(&ring, &BodyBudget::new(BODY_BYTES_MAX, 1));
        for framing in [
            "Content-Length: 900\r\n\r\npart",
            "Content-Length: 900\r\nExpect: 100-continue\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
        ] {
            let client = RingStream::connect(&ring, address).await.unwrap();
            client.send(format!("POST /secret HTTP/1.1\r\nHost: x\r\n{framing}").into_bytes()).await.unwrap();
            let answer = client.recv().await.unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 401 "), "{framing}: {}", String::from_utf8_lossy(&answer));
        }
        let client = UpstreamClient::new(&ring, &limits(), Arc::default());
        let whole = client.exchange(address, &post("/secret", b"x"), 99, None).await;
        assert_eq!(whole.unwrap().status, 200, "the handler decides about a body that has arrived");
    });
}

/// Incomplete bodies hold a bounded part of a core, and block others only while they last.
#[test]
fn all_bodies_together_have_a_limit() {
    on_both(async |ring| {
        let address = server_with(&ring, &BodyBudget::new(BODY_BYTES_MAX, BODY_BYTES_MAX + 99));
        let client = UpstreamClient::new(&ring, &limits(), Arc::default());
        let slow = RingStream::connect(&ring, address).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_BYTES_MAX}\r\n\r\n");
        slow.send([head.as_bytes(), &[b'x'; BODY_BYTES_MAX - 1]].concat()).await.unwrap();
        ring.sleep(Duration::from_millis(50)).await;
        let post_bytes =
            async |bytes: usize| client.exchange(address, &post("/", &vec![b'x'; bytes]), 2000, None).await.unwrap();
        let refused = post_bytes(500).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some(&b"1"[..])));
        assert_eq!(post_bytes(100).await.status, 200, "within the budget");
        slow.send(b"x").await.unwrap();
        assert!(slow.recv().await.unwrap().starts_with(b"HTTP/1.1 200 "));
        assert_eq!(post_bytes(500).await.status, 200);
    });
}

#[test]
fn stalled_body_is_a_408() {
    on_both(async |ring| {
        let address = server(&ring);
        let stream = RingStream::connect(&ring, address).await.unwrap();
        stream.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc").await.unwrap();
        assert!(stream.recv().await.unwrap().starts_with(b"HTTP/1.1 408 "));
    });
}

#[test]
fn every_exchange_failure_has_its_error() {
    on_both(async |ring| {
        let client = UpstreamClient::new(&ring, &limits(), Arc::default());
        let answers: [&'static [u8]; 4] = [
            b"",
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
            b"HTTP/1.1 ",
        ];
        for text in answers {
            let hangs = text.ends_with(b"1 ");
            let sleeper = ring.clone();
            let address = raw_instance(&ring, move |stream| {
                let ring = sleeper.clone();
                Box::pin(async move {
                    read_through(&stream, b"\r\n\r\nx").await;
                    let _ = stream.send(text).await;
                    if hangs {
                        ring.sleep(Duration::from_secs(5)).await;
                    }
                })
            });
            let due = Some(ring.now() + Duration::from_millis(300));
            let outcome = client.exchange(address, &post("/", b"x"), 99, due).await;
            match outcome {
                Err(ExchangeError::TimedOut) => assert!(hangs),
                Err(ExchangeError::Malformed(_)) => assert!(text.ends_with(b"c\r\n\r\n")),
                Err(ExchangeError::Failed) => assert!(text.is_empty() || text.ends_with(b"abc")),
                other => panic!("{other:?} for {text:?}"),
            }
        }
        let gone = unused_address(&ring).await;
        let outcome = client.exchange(gone, &post("/", b"x"), 99, None).await;
        assert!(matches!(outcome, Err(ExchangeError::Unreachable { .. })));
    });
}

const ACCEPTED: &[u8] = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";

/// DP-RETRY-16, AMB-28: a peer that has read a request may have acted on it, also on a pooled connection.
#[test]
fn request_that_was_read_is_not_sent_again() {
    on_both(async |ring| {
        let client = UpstreamClient::new(&ring, &limits(), Arc::default());
        let requests = Rc::new(Cell::new(0));
        let counted = Rc::clone(&requests);
        let address = raw_instance(&ring, move |stream| {
            let requests = Rc::clone(&counted);
            Box::pin(async move {
                for answer in [ACCEPTED, b""] {
                    read_through(&stream, b"\r\n\r\nx").await;
                    requests.set(requests.get() + 1);
                    let _ = stream.send(answer).await;
                }
            })
        });
        let post_bytes = async || client.exchange(address, &post("/", b"x"), 99, None).await;
        assert_eq!(post_bytes().await.unwrap().status, 202);
        assert!(matches!(post_bytes().await, Err(ExchangeError::Failed)));
        ring.sleep(Duration::from_millis(50)).await;
        assert_eq!(requests.get(), 2);
    });
}

/// A peer that closes its idle connections costs no attempt, once the close was received.
#[test]
fn closed_pooled_connection_is_not_used() {
    on_both(async |ring| {
        let client = UpstreamClient::new(&ring, &limits(), Arc::default());
        let address = raw_instance(&ring, move |stream| {
            Box::pin(async move {
                read_through(&stream, b"\r\n\r\nx").await;
                let _ = stream.send(ACCEPTED).await;
            })
        });
        for _ in 0..3 {
            let answer = client.exchange(address, &post("/", b"x"), 99, None).await.unwrap();
            assert_eq!((answer.status, client.pool().len()), (202, 1));
            ring.sleep(Duration::from_millis(50)).await;
        }
    });
}

/// The error names the limit, so that it is not taken for a malformed status line.
#[test]
fn too_many_interim_responses_are_reported_as_such() {
    on_both(async |ring| {
        let client = UpstreamClient::new(&ring, &limits(), Arc::default());
        for (count, too_many) in [(16, false), (17, true)] {
            let address = raw_instance(&ring, move |stream| {
                Box::pin(async move {
                    read_through(&stream, b"\r\n\r\nx").await;
                    let text = "HTTP/1.1 103 Hints\r\n\r\n".repeat(count) + "HTTP/1.1 202 Accepted\r\n\r\n";
                    let _ = stream.send(text.into_bytes()).await;
                })
            });
            let outcome = client.exchange(address, &post("/", b"x"), 99, None).await;
            let wanted = ExchangeError::Malformed(MalformedHttp::TooManyInterim);
            assert_eq!(outcome.map_err(|why| format!("{why:?}")).err(), too_many.then(|| format!("{wanted:?}")));
        }
    });
}

/// Interim responses are skipped; 101 ends the exchange.
#[test]
fn interim_responses_are_skipped_and_101_is_reported() {
    on_both(async |ring| {
        let client = UpstreamClient::new(&ring, &limits(), Arc::default());
        for (text, status) in [
            (&b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n"[..], 202),
            (&b"HTTP/1.1 101 Switching Protocols\r\n\r\n"[..], 101),
        ] {
            let address = raw_instance(&ring, move |stream| {
                Box::pin(async move {
                    read_through(&stream, b"\r\n\r\nx").await;
                    let _ = stream.send(text).await;
                })
            });
            let answer = client.exchange(address, &post("/", b"x"), 99, None).await.unwrap();
            assert_eq!(answer.status, status);
            assert!(client.pool().is_empty());
        }
    });
}
