//! Streams with one side that is silent, or does not read. On simulated machines, where minutes take no time.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Response};
use ring::sim::{FaultProfile, Simulation};
use ring::{Chunk, Ring, RingStream};
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::table::{Backend, OwnTimeout, Protocol, RequestTimeouts};

use crate::fixture::{ProxyFixture, backend, raw_instance, read_through, run_with_proxy};
use crate::http2_io::Http2Io;
use crate::streams::whole;

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::H2c];
/// Longer than each default.
const LONG: Duration = Duration::from_secs(400);

fn simulated<F: Future<Output = ()> + 'static>(script: impl FnOnce(ProxyFixture) -> F + 'static) {
    let faults = FaultProfile { window_bytes: 64 << 10, ..FaultProfile::calm() };
    run_with_proxy(&Simulation::new(7, faults).ring(), &CoreLimits::default(), script);
}

async fn seconds(ring: &Ring, count: u64) {
    ring.sleep(Duration::from_secs(count)).await;
}

/// An instance that begins its response at once, sends a byte after each `pause` for `ticks` times, and ends when the
/// request does.
fn ticking(ring: &Ring, protocol: Protocol, (ticks, pause): (u64, u64)) -> SocketAddr {
    let spawner = ring.clone();
    raw_instance(ring, move |stream| {
        let ring = spawner.clone();
        match protocol {
            Protocol::Http1 => Box::pin(tick_by_http1(ring, stream, (ticks, pause))),
            Protocol::H2c => Box::pin(tick_by_http2(ring, stream, (ticks, pause))),
        }
    })
}

async fn tick_by_http1(ring: Ring, stream: RingStream, (ticks, pause): (u64, u64)) {
    read_through(&stream, b"\r\n\r\n").await;
    let _ = stream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec()).await;
    for _ in 0..ticks {
        seconds(&ring, pause).await;
        if stream.send(b"1\r\nx\r\n".to_vec()).await.is_err() {
            return;
        }
    }
    let mut all = Vec::new();
    while !all.ends_with(b"0\r\n\r\n") {
        match stream.recv().await {
            Ok(bytes) if !bytes.is_empty() => all.extend_from_slice(&bytes),
            _ => return,
        }
    }
    let _ = stream.send(b"0\r\n\r\n".to_vec()).await;
}

async fn tick_by_http2(ring: Ring, stream: RingStream, (ticks, pause): (u64, u64)) {
    let io = Http2Io::new(&ring, stream, Chunk::empty(), LONG);
    let Ok(mut connection) = h2::server::handshake(io).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let ring = ring.clone();
        ring.clone().spawn(async move {
            let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
            for _ in 0..ticks {
                seconds(&ring, pause).await;
                if answer.send_data("x".into(), false).is_err() {
                    return;
                }
            }
            if whole(request.into_body()).await.is_ok() {
                let _ = answer.send_data(Bytes::new(), true);
            }
        });
    }
}

/// A client's connection without a send timeout.
async fn connect(fixture: &ProxyFixture) -> SendRequest<Bytes> {
    let stream = RingStream::connect(&fixture.ring, fixture.address).await.unwrap();
    let io = Http2Io::new(&fixture.ring, stream, Chunk::empty(), Duration::ZERO);
    let (sender, connection) = h2::client::handshake(io).await.unwrap();
    fixture.ring.spawn(async move { drop(connection.await) });
    sender
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://app{path}")).body(()).unwrap()
}

fn publish(fixture: &ProxyFixture, protocol: Protocol, address: SocketAddr, timeouts: RequestTimeouts) {
    fixture.publish("app", Backend { protocol, timeouts, ..backend(&[address], 0, None) });
}

const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";

/// A gRPC call whose client has sent one message and listens, with its side open.
#[test]
fn silent_client_keeps_its_stream_while_the_instance_sends() {
    for protocol in BOTH {
        simulated(move |fixture| async move {
            publish(&fixture, protocol, ticking(&fixture.ring, protocol, (20, 100)), RequestTimeouts::NONE);
            let mut client = fixture.client().await;
            client.send(CHUNKED).await;
            let (response, mut body) = connect(&fixture).await.send_request(post("/"), false).unwrap();
            body.send_data("a".into(), false).unwrap();
            let mut response = response.await.unwrap().into_body();
            for _ in 0..20 {
                assert_eq!(response.data().await.unwrap().unwrap(), "x", "{protocol:?}");
            }
            body.send_data(Bytes::new(), true).unwrap();
            assert!(whole(response).await.unwrap().is_empty());

            let ring = fixture.ring.clone();
            seconds(&ring, 10).await;
            client.send("0\r\n\r\n").await;
            assert_eq!(client.message().await.unwrap().body, b"x".repeat(20), "{protocol:?}");
        });
    }
}

/// The reverse: the instance has begun its response and listens.
#[test]
fn silent_instance_keeps_its_stream_while_the_client_sends() {
    for protocol in BOTH {
        simulated(move |fixture| async move {
            publish(&fixture, protocol, ticking(&fixture.ring, protocol, (1, 1)), RequestTimeouts::NONE);
            let mut client = fixture.client().await;
            client.send(CHUNKED).await;
            let (response, mut body) = connect(&fixture).await.send_request(post("/"), false).unwrap();
            for _ in 0..10 {
                seconds(&fixture.ring, 200).await;
                client.send("1\r\na\r\n").await;
                body.send_data("a".into(), false).unwrap();
            }
            client.send("0\r\n\r\n").await;
            body.send_data(Bytes::new(), true).unwrap();
            assert_eq!(client.message().await.unwrap().body, b"x", "{protocol:?}");
            assert_eq!(whole(response.await.unwrap().into_body()).await.unwrap(), b"x");
        });
    }
}

/// Neither sends: the stream is cut after the global or the route's timeout, and does not look complete.
#[test]
fn stream_without_bytes_is_cut_after_its_timeout() {
    for (protocol, own, lasts) in
        BOTH.into_iter().flat_map(|p| [(p, None, 300), (p, Some(Duration::from_secs(20)), 20)])
    {
        simulated(move |fixture| async move {
            let timeouts = RequestTimeouts { stream_idle: OwnTimeout::new(own), ..RequestTimeouts::NONE };
            publish(&fixture, protocol, ticking(&fixture.ring, protocol, (1, 1)), timeouts);
            let begun = fixture.ring.now();
            let mut client = fixture.client().await;
            client.send(CHUNKED).await;
            let (response, mut body) = connect(&fixture).await.send_request(post("/"), false).unwrap();
            body.send_data("a".into(), false).unwrap();
            let cut = whole(response.await.unwrap().into_body()).await.unwrap_err();
            assert!(cut.is_reset(), "{protocol:?}: {cut}");
            let all = client.rest().await;
            assert!(all.ends_with("1\r\nx\r\n"), "{protocol:?}: {all}");
            let lasted = (fixture.ring.now() - begun).as_secs();
            assert!((lasts..lasts + 10).contains(&lasted), "{protocol:?}: {lasted}, not {lasts}");
        });
    }
}

/// An upload with pauses, before the response begins: 408 after the global timeout, or that of its route.
#[test]
fn upload_may_pause_as_long_as_its_route_allows() {
    for (own, whole_upload) in [(None, false), (Some(Duration::from_secs(500)), true), (Some(Duration::ZERO), true)] {
        simulated(move |fixture| async move {
            let address = crate::fixture::instance(&fixture.ring, |_| crate::fixture::ok("fine"));
            publish(
                &fixture,
                Protocol::Http1,
                address,
                RequestTimeouts { request_body: OwnTimeout::new(own), ..RequestTimeouts::NONE },
            );
            let mut client = fixture.client().await;
            client.send(CHUNKED).await;
            let (response, mut body) = connect(&fixture).await.send_request(post("/"), false).unwrap();
            body.send_data("a".into(), false).unwrap();
            fixture.ring.sleep(LONG).await;
            let _ = client.stream.send(b"0\r\n\r\n".to_vec()).await;
            let _ = body.send_data(Bytes::new(), true);
            let status = client.message().await.unwrap().head[9..12].to_owned();
            let other = response.await.unwrap().status().as_u16();
            let wanted = if whole_upload { "200" } else { "408" };
            assert_eq!((status.as_str(), other.to_string().as_str()), (wanted, wanted), "{own:?}");
        });
    }
}

const LARGE: usize = 4 << 20;

fn large(ring: &Ring, protocol: Protocol) -> SocketAddr {
    let spawner = ring.clone();
    raw_instance(ring, move |stream| {
        let ring = spawner.clone();
        Box::pin(async move {
            if protocol == Protocol::Http1 {
                read_through(&stream, b"\r\n\r\n").await;
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
                let _ = stream.send(head.into_bytes()).await;
                let _ = stream.send(vec![b'y'; LARGE]).await;
                while stream.recv().await.is_ok_and(|bytes| !bytes.is_empty()) {}
                return;
            }
            let io = Http2Io::new(&ring, stream, Chunk::empty(), Duration::ZERO);
            let Ok(mut connection) = h2::server::handshake(io).await else { return };
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                answer.reserve_capacity(LARGE);
                let _ = answer.send_data(vec![b'y'; LARGE].into(), true);
            }
        })
    })
}

/// A download that its reader pauses for minutes, like a paused video.
#[test]
fn paused_reader_gets_its_whole_download() {
    for protocol in BOTH {
        simulated(move |fixture| async move {
            publish(&fixture, protocol, large(&fixture.ring, protocol), RequestTimeouts::NONE);
            let mut client = fixture.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
            let (response, _) = connect(&fixture).await.send_request(post("/"), true).unwrap();
            let response = response.await.unwrap().into_body();
            seconds(&fixture.ring, 240).await;
            assert_eq!(whole(response).await.unwrap().len(), LARGE, "{protocol:?}");
            assert_eq!(client.message().await.unwrap().body.len(), LARGE, "{protocol:?}");
        });
    }
}

/// A stream that is not read for longer is reset, without effect on its connection.
#[test]
fn stalled_stream_never_ends_its_connection() {
    for protocol in BOTH {
        simulated(move |fixture| async move {
            publish(&fixture, protocol, large(&fixture.ring, protocol), RequestTimeouts::NONE);
            let sender = connect(&fixture).await;
            let stalled: Vec<_> = (0..3).map(|_| sender.clone().send_request(post("/"), true).unwrap().0).collect();
            let mut bodies = Vec::new();
            for response in stalled {
                bodies.push(response.await.unwrap().into_body());
            }
            fixture.ring.sleep(LONG).await;
            for body in bodies {
                assert!(whole(body).await.unwrap_err().is_reset(), "{protocol:?}");
            }
            let (response, _) = sender.clone().send_request(post("/"), true).unwrap();
            let body = response.await.unwrap().into_body();
            assert_eq!(whole(body).await.unwrap().len(), LARGE, "{protocol:?}");
        });
    }
}
