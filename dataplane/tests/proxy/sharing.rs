//! Shared HTTP/2 connections to instances: what requests share, and what they must not.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderValue, Method, Request, Response};
use ring::sim::{FaultProfile, Simulation};
use ring::{Chunk, Ring, RingOptions, RingStream};
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::table::{Backend, Protocol};

use crate::fixture::{ProxyFixture, backend, on_every_driver, raw_instance, run_with_proxy, unused_address};
use crate::http2_io::Http2Io;
use crate::streams::{STALL_MAX, connect, whole};

/// An instance that serves each stream in a task of `answer`, and counts its connections. A request for `/last` makes
/// it send GOAWAY and finish its open streams.
pub(crate) fn serving<F: Future<Output = ()> + 'static>(
    ring: &Ring,
    opened: &Rc<Cell<usize>>,
    answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + 'static,
) -> SocketAddr {
    let (spawner, opened, answer) = (ring.clone(), Rc::clone(opened), Rc::new(answer));
    raw_instance(ring, move |stream| {
        opened.set(opened.get() + 1);
        let (ring, answer) = (spawner.clone(), Rc::clone(&answer));
        Box::pin(async move {
            let io = Http2Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
            let Ok(mut connection) = h2::server::handshake(io).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                if request.uri().path() == "/last" {
                    connection.graceful_shutdown();
                }
                ring.spawn(answer(request, respond));
            }
        })
    })
}

/// On the kernel driver and on a simulated machine without faults: so many bytes would take long at seven a segment.
fn without_faults<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    for ring in [Ring::kernel(RingOptions::default()).unwrap(), Simulation::new(1, FaultProfile::calm()).ring()] {
        run_with_proxy(&ring, &CoreLimits::default(), script);
    }
}

pub(crate) fn publish(fixture: &ProxyFixture, instance: SocketAddr) {
    fixture.publish("app", Backend { protocol: Protocol::H2c, ..backend(&[instance], 0, None) });
}

pub(crate) fn request_for(method: Method, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("http://app{path}")).body(()).unwrap()
}

/// Sends as much as the window allows, in pieces of `piece`, and counts it.
async fn fill_window(answer: &mut SendStream<Bytes>, piece: usize, sent_bytes: &Cell<usize>) {
    loop {
        answer.reserve_capacity(piece);
        let capacity = poll_fn(|cx| match answer.capacity() {
            0 => answer.poll_capacity(cx),
            capacity => Poll::Ready(Some(Ok(capacity))),
        });
        let Some(Ok(capacity)) = capacity.await else { return };
        if answer.send_data(vec![b'z'; capacity.min(piece)].into(), false).is_err() {
            return;
        }
        sent_bytes.set(sent_bytes.get() + capacity.min(piece));
    }
}

/// A request on its own connection.
async fn get(fixture: &ProxyFixture, path: &str) -> (u16, Vec<u8>) {
    exchange(connect(fixture).await.unwrap(), request_for(Method::GET, path), "").await
}

/// One exchange: status and body.
async fn exchange(sender: SendRequest<Bytes>, request: Request<()>, body: &'static str) -> (u16, Vec<u8>) {
    let mut sender = sender.ready().await.unwrap();
    let (answer, mut sending) = sender.send_request(request, body.is_empty()).unwrap();
    if !body.is_empty() {
        sending.send_data(body.into(), true).unwrap();
    }
    let answer = answer.await.unwrap();
    (answer.status().as_u16(), whole(answer.into_body()).await.unwrap())
}

/// A client's connection with a zero window for response bodies.
async fn connect_with_zero_window(fixture: &ProxyFixture) -> SendRequest<Bytes> {
    let stream = RingStream::connect(&fixture.ring, fixture.address).await.unwrap();
    let io = Http2Io::new(&fixture.ring, stream, Chunk::empty(), STALL_MAX);
    let (sender, connection) = h2::client::Builder::new().initial_window_size(0).handshake(io).await.unwrap();
    fixture.ring.spawn(async move { drop(connection.await) });
    sender
}

/// RFC 9113 5.2.2, 10.5: the window of a connection to an instance was once that of four streams, so a client that
/// requested five long responses and read none of them blocked the responses of all others; and the frames of small
/// unread messages made h2 close the connection.
#[test]
fn unread_response_blocks_no_other_response() {
    for piece in [16 * 1024, 20] {
        without_faults(move |fixture: ProxyFixture| async move {
            let (sent_bytes, opened) = (Rc::new(Cell::new(0)), Rc::default());
            let counted = Rc::clone(&sent_bytes);
            let instance = serving(&fixture.ring, &opened, move |request, mut respond| {
                let sent_bytes = Rc::clone(&counted);
                async move {
                    let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                    match request.uri().path() {
                        "/long" => fill_window(&mut answer, piece, &sent_bytes).await,
                        _ => drop(answer.send_data("short".into(), true)),
                    }
                }
            });
            publish(&fixture, instance);

            let mut silent = connect_with_zero_window(&fixture).await;
            let mut held = Vec::new();
            for _ in 0..6 {
                silent = silent.ready().await.unwrap();
                let (answer, _) = silent.send_request(request_for(Method::GET, "/long"), true).unwrap();
                held.push(answer.await.unwrap());
            }
            let mut before = usize::MAX;
            while before != sent_bytes.get() {
                before = sent_bytes.get();
                fixture.pause(100).await;
            }
            let short = fixture.ring.timeout(Duration::from_secs(1), Box::pin(get(&fixture, "/")));
            let (status, body) = short.await.expect("other responses must not wait for the unread one");
            assert_eq!((status, body), (200, b"short".to_vec()));
            assert_eq!(opened.get(), 1);
            for answer in held {
                assert_eq!(answer.status(), 200);
            }
        });
    }
}

/// RFC 9113 6.8, RFC 9110 9.2.2: gRPC servers do this with old connections. Nothing of the next request was sent yet,
/// but one with a body was once refused anyway.
#[test]
fn connection_after_goaway_finishes_and_gets_no_new_streams() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let (opened, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (observed, ring) = (Rc::clone(&done), fixture.ring.clone());
        let instance = serving(&fixture.ring, &opened, move |request, mut respond| {
            let (done, ring) = (Rc::clone(&observed), ring.clone());
            async move {
                let last = request.uri().path() == "/last";
                let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                let _ = answer.send_data("be".into(), false);
                while last && !done.get() {
                    ring.sleep(Duration::from_millis(1)).await;
                }
                let _ = answer.send_data("gun".into(), true);
            }
        });
        publish(&fixture, instance);

        let sender = connect(&fixture).await.unwrap();
        let last = sender.clone().ready().await.unwrap().send_request(request_for(Method::GET, "/last"), true);
        let last = last.unwrap().0.await.unwrap();
        fixture.pause(20).await; // for the GOAWAY
        for _ in 0..3 {
            let posted = exchange(sender.clone(), request_for(Method::POST, "/"), "body").await;
            assert_eq!(posted, (200, b"begun".to_vec()));
            let mut client = fixture.client().await;
            client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 4\r\n\r\nbody").await;
            assert_eq!(client.message().await.unwrap().body, b"begun");
        }
        assert_eq!(opened.get(), 2);
        done.set(true);
        assert_eq!(whole(last.into_body()).await.unwrap(), b"begun");
    });
}

/// How an instance rejects a stream.
#[derive(Clone, Copy, PartialEq)]
enum StreamRejection {
    /// RFC 9113 8.7: it has not processed it.
    Refuses,
    /// RFC 9113 6.8: it will not process it.
    GoesAway,
}

/// An instance that processes no stream, on its first `moody` connections or for the first `moody` streams of each.
fn rejecting_instance(
    ring: &Ring,
    opened: &Rc<Cell<usize>>,
    rejection: StreamRejection,
    rejecting_instance: usize,
) -> SocketAddr {
    let (spawner, opened) = (ring.clone(), Rc::clone(opened));
    raw_instance(ring, move |stream| {
        opened.set(opened.get() + 1);
        let (ring, goes_away) =
            (spawner.clone(), rejection == StreamRejection::GoesAway && opened.get() <= rejecting_instance);
        Box::pin(async move {
            if goes_away {
                return send_goaway(&stream).await;
            }
            let io = Http2Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
            let Ok(mut connection) = h2::server::handshake(io).await else { return };
            let mut served = 0;
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                served += 1;
                let refuses = rejection == StreamRejection::Refuses && served <= rejecting_instance;
                ring.spawn(async move {
                    if request.uri().path() == "/late" {
                        let _ = request.into_body().data().await;
                    }
                    if refuses {
                        return respond.send_reset(Reason::REFUSED_STREAM);
                    }
                    let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                    let _ = answer.send_data("done".into(), true);
                });
            }
        })
    })
}

/// On the first request, sends GOAWAY with last stream id 0.
async fn send_goaway(stream: &RingStream) {
    let _ = stream.send(b"\0\0\0\x04\0\0\0\0\0".to_vec()).await; // SETTINGS, as the first frame must be
    let mut came = Vec::new();
    while !has_headers(&came) {
        match stream.recv().await {
            Ok(chunk) if !chunk.is_empty() => came.extend_from_slice(&chunk),
            _ => return,
        }
    }
    let goaway = b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let _ = stream.send(goaway.to_vec()).await;
    while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
}

fn has_headers(came: &[u8]) -> bool {
    let mut frames = came.get(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()..).unwrap_or_default();
    while let [a, b, c, kind, rest @ ..] = frames {
        if *kind == 1 {
            return true;
        }
        frames = rest.get(5 + u32::from_be_bytes([0, *a, *b, *c]) as usize..).unwrap_or_default();
    }
    false
}

/// RFC 9113 6.8, 8.7: a request that an instance has not processed is retried, whatever its method.
#[test]
fn unprocessed_request_is_retried() {
    for rejection in [StreamRejection::Refuses, StreamRejection::GoesAway] {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            publish(&fixture, rejecting_instance(&fixture.ring, &Rc::default(), rejection, 1));
            let sender = connect(&fixture).await.unwrap();
            assert_eq!(exchange(sender, request_for(Method::POST, "/"), "").await, (200, b"done".to_vec()));

            // Its body is still to come.
            publish(&fixture, rejecting_instance(&fixture.ring, &Rc::default(), rejection, 1));
            let mut client = fixture.client().await;
            client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 4\r\n\r\n").await;
            fixture.pause(100).await;
            client.send("body").await;
            assert_eq!(client.message().await.unwrap().body, b"done");
        });
    }
}

/// An instance that allows one stream per connection, keeps a request for `/held` open, and sends GOAWAY on all
/// connections when `leaving` is set.
fn one_stream_instance(ring: &Ring, opened: &Rc<Cell<usize>>, draining: &Rc<Cell<bool>>) -> SocketAddr {
    let (spawner, opened, draining) = (ring.clone(), Rc::clone(opened), Rc::clone(draining));
    raw_instance(ring, move |stream| {
        opened.set(opened.get() + 1);
        let (ring, draining, stays) = (spawner.clone(), Rc::clone(&draining), opened.get() > 4);
        Box::pin(async move {
            let io = Http2Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
            let mut builder = h2::server::Builder::new();
            let handshake = builder.max_concurrent_streams(1).handshake::<_, Bytes>(io);
            let Ok(mut connection) = handshake.await else { return };
            let (mut held, mut observed) = (Vec::new(), stays);
            loop {
                match ring.timeout(Duration::from_millis(1), Box::pin(connection.accept())).await {
                    Ok(Some(Ok((request, respond)))) if request.uri().path() == "/held" => {
                        held.push((request, respond));
                    }
                    Ok(Some(Ok((_, mut respond)))) => {
                        let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                        let _ = answer.send_data("done".into(), true);
                    }
                    Ok(_) => return,
                    Err(_) if draining.get() && !observed => {
                        observed = true;
                        connection.graceful_shutdown();
                    }
                    Err(_) => {}
                }
            }
        })
    })
}

/// A request that waits for a stream has sent nothing, so it can move when the connection gets GOAWAY.
#[test]
fn request_waiting_for_a_stream_moves_after_goaway() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let (opened, draining) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        publish(&fixture, one_stream_instance(&fixture.ring, &opened, &draining));
        let mut sender = connect(&fixture).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(sender.send_request(request_for(Method::GET, "/held"), true).unwrap());
            fixture.pause(20).await;
        }
        assert_eq!(opened.get(), 4);
        let (answer, mut body) = sender.send_request(request_for(Method::POST, "/"), false).unwrap();
        body.send_data("body".into(), true).unwrap();
        fixture.pause(20).await;
        draining.set(true);
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(whole(answer.into_body()).await.unwrap(), b"done");
        assert_eq!(opened.get(), 5);
        drop(held);
    });
}

/// Forwarded bytes of a body are not kept, so the request cannot be retried.
#[test]
fn request_whose_body_has_begun_is_not_retried() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        publish(&fixture, rejecting_instance(&fixture.ring, &Rc::default(), StreamRejection::Refuses, 1));
        let sender = connect(&fixture).await.unwrap();
        assert_eq!(exchange(sender.clone(), request_for(Method::PUT, "/late"), "body").await.0, 502);
        assert_eq!(exchange(sender, request_for(Method::PUT, "/late"), "body").await, (200, b"done".to_vec()));
    });
}

/// Retries are bounded.
#[test]
fn retries_of_an_unprocessed_request_are_bounded() {
    for rejection in [StreamRejection::Refuses, StreamRejection::GoesAway] {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            let opened = Rc::default();
            publish(&fixture, rejecting_instance(&fixture.ring, &opened, rejection, usize::MAX));
            let sender = connect(&fixture).await.unwrap();
            let (status, _) = exchange(sender, request_for(Method::POST, "/"), "").await;
            assert_eq!(status, 502);
            assert!(opened.get() <= 5, "{}", opened.get());
        });
    }
}

/// A burst to an instance without connections once opened half as many connections as there were requests: pending
/// connects were not counted, and no request waited for one.
#[test]
fn burst_of_requests_respects_the_connection_limit() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let (opened, answered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        publish(&fixture, rejecting_instance(&fixture.ring, &opened, StreamRejection::Refuses, 0));
        let sender = connect(&fixture).await.unwrap();
        for _ in 0..200 {
            let (sender, answered) = (sender.clone(), Rc::clone(&answered));
            fixture.ring.spawn(async move {
                let posted = exchange(sender, request_for(Method::POST, "/"), "body").await;
                assert_eq!(posted, (200, b"done".to_vec()));
                answered.set(answered.get() + 1);
            });
        }
        while answered.get() < 200 {
            fixture.pause(1).await;
        }
        assert!(opened.get() <= 4, "{}", opened.get());
        let counted = fixture.counters.upstream_opened.load(Relaxed) as usize;
        assert_eq!(counted, opened.get());
        assert_eq!(fixture.counters.upstream_reused.load(Relaxed) as usize, 200 - counted);
    });
}

/// High latency: a connect takes some time.
fn with_high_latency(script: impl AsyncFn(ProxyFixture) + Copy + 'static) {
    let far = Duration::from_millis(20);
    let simulation = Simulation::new(1, FaultProfile { latency: far..=far, ..FaultProfile::calm() });
    run_with_proxy(&simulation.ring(), &CoreLimits::default(), async move |fixture| script(fixture).await);
}

/// A request that waits for a connection which another request opened does not depend on that request.
#[test]
fn cancelled_client_does_not_cancel_a_shared_connect() {
    with_high_latency(async |fixture: ProxyFixture| {
        let opened = Rc::new(Cell::new(0));
        publish(&fixture, rejecting_instance(&fixture.ring, &opened, StreamRejection::Refuses, 0));
        let mut sender = connect(&fixture).await.unwrap();
        let first = sender.send_request(request_for(Method::GET, "/"), true).unwrap();
        let second = sender.send_request(request_for(Method::GET, "/"), true).unwrap();
        fixture.pause(10).await; // its reset arrives while the connection is being opened
        drop(first);
        assert_eq!(second.0.await.unwrap().status(), 200);
        assert_eq!(opened.get(), 1);
    });
}

/// All of them fail at once when the connect fails.
#[test]
fn all_waiting_requests_fail_with_the_connect() {
    with_high_latency(async |fixture: ProxyFixture| {
        publish(&fixture, unused_address(&fixture.ring).await);
        let mut sender = connect(&fixture).await.unwrap();
        let (begun, mut responses) = (fixture.ring.now(), Vec::new());
        for _ in 0..30 {
            responses.push(sender.send_request(request_for(Method::GET, "/"), true).unwrap().0);
        }
        for answer in responses {
            assert_eq!(answer.await.unwrap().status(), 502);
        }
        assert!(fixture.ring.now() - begun < Duration::from_millis(500));
    });
}

/// RFC 9110 10.1.1: an instance that does not implement the expectation waits for the body, and its client once waited
/// for the 100 until its timeout. After `continue_after` the proxy sends the 100; one from the instance is not
/// repeated.
#[test]
fn expecting_client_gets_100_continue_once_over_http2() {
    for knows in [false, true] {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            let instance = serving(&fixture.ring, &Rc::default(), move |request, mut respond| async move {
                assert_eq!(request.headers()["expect"], "100-continue");
                if knows {
                    let go_on = Response::builder().status(100).body(()).unwrap();
                    respond.send_informational(go_on).unwrap();
                }
                let Ok(body) = whole(request.into_body()).await else { return };
                let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                let _ = answer.send_data(body.into(), true);
            });
            publish(&fixture, instance);

            let mut client = fixture.client().await;
            let expects = "Host: app\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
            client.send(format!("POST / HTTP/1.1\r\n{expects}")).await;
            assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 100 "));
            client.send("body").await;
            let answer = client.message().await.unwrap();
            assert!(answer.head.starts_with("HTTP/1.1 200 "), "{}", answer.head);
            assert_eq!(answer.body, b"body");

            let mut request = request_for(Method::POST, "/");
            request.headers_mut().insert("expect", HeaderValue::from_static("100-continue"));
            let mut sender = connect(&fixture).await.unwrap();
            let (mut answer, mut body) = sender.send_request(request, false).unwrap();
            let interim = poll_fn(|cx| answer.poll_informational(cx)).await;
            assert_eq!(interim.unwrap().unwrap().status(), 100);
            body.send_data("body".into(), true).unwrap();
            let interim = poll_fn(|cx| answer.poll_informational(cx)).await;
            assert!(interim.is_none(), "{interim:?}");
            assert_eq!(whole(answer.await.unwrap().into_body()).await.unwrap(), b"body");
        });
    }
}
