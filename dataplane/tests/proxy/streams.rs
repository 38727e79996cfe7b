//! HTTP/2 on simulated machines: many streams on few connections, with and without faults. The client and the instances
//! use the crate `h2` themselves; the tests cover the code around it: streams, permits, guards, translation.

use std::borrow::BorrowMut;
use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Response, Uri};
use ring::sim::{FaultProfile, Simulation};
use ring::{Chunk, Ring, RingStream};
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::table::{Backend, Protocol, RequestTimeouts};

use crate::fixture::{
    ProxyFixture, Reply, backend, for_every_seed, instance, ok, on_every_driver, raw_instance, run_with_proxy,
};
use crate::http2_io::Http2Io;

pub(crate) const STALL_MAX: Duration = Duration::from_secs(2);
/// Streams of a connection in a test with faults.
const STREAMS: usize = 8;

/// An instance that answers with the number of body bytes, over HTTP/1 or HTTP/2.
fn counting(ring: &Ring, protocol: Protocol) -> SocketAddr {
    if protocol == Protocol::Http1 {
        return instance(ring, |seen| ok(&seen.body.len().to_string()));
    }
    let spawner = ring.clone();
    raw_instance(ring, move |stream| Box::pin(count_streams(spawner.clone(), stream)))
}

async fn count_streams(ring: Ring, stream: RingStream) {
    let io = Http2Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
    let Ok(mut connection) = h2::server::handshake(io).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        ring.spawn(async move {
            let Ok(body) = whole(request.into_body()).await else { return };
            let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
            let _ = answer.send_data(body.len().to_string().into(), true);
        });
    }
}

pub(crate) async fn whole(mut body: impl BorrowMut<h2::RecvStream>) -> Result<Vec<u8>, h2::Error> {
    let body = body.borrow_mut();
    let mut all = Vec::new();
    while let Some(bytes) = body.data().await {
        let bytes = bytes?;
        body.flow_control().release_capacity(bytes.len())?;
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

/// A client's connection. It lives as long as it has senders or streams.
pub(crate) async fn connect(fixture: &ProxyFixture) -> Option<SendRequest<Bytes>> {
    let stream = RingStream::connect(&fixture.ring, fixture.address).await.ok()?;
    let io = Http2Io::new(&fixture.ring, stream, Chunk::empty(), STALL_MAX);
    let (sender, connection) = h2::client::handshake(io).await.ok()?;
    fixture.ring.spawn(async move { drop(connection.await) });
    Some(sender)
}

fn put() -> Request<()> {
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from_static("http://app/");
    *request.method_mut() = http::Method::PUT;
    request
}

/// One exchange: status and body.
async fn exchange(sender: SendRequest<Bytes>, length: usize) -> Result<(u16, Vec<u8>), h2::Error> {
    let (answer, mut body) = sender.ready().await?.send_request(put(), false)?;
    body.send_data(vec![b'y'; length].into(), true)?;
    let answer = answer.await?;
    Ok((answer.status().as_u16(), whole(answer.into_body()).await?))
}

fn app(fixture: &ProxyFixture, protocol: Protocol, load: &Arc<BackendLoad>) -> Backend {
    let instances = [counting(&fixture.ring, protocol), counting(&fixture.ring, protocol)];
    let timeout = Some(Duration::from_secs(5));
    Backend { load: Arc::clone(load), protocol, ..backend(&instances, 2, timeout) }
}

/// Each stream gets its own response, whatever the other streams do and the instance speaks.
#[test]
fn streams_of_a_connection_are_answered_independently() {
    for protocol in [Protocol::Http1, Protocol::H2c] {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            let load = Arc::<BackendLoad>::default();
            fixture.publish("app", app(&fixture, protocol, &load));
            let sender = connect(&fixture).await.unwrap();
            let open = Rc::new(Cell::new(0));
            for length in (0..40).map(|n| n * 97) {
                let (sender, open) = (sender.clone(), Rc::clone(&open));
                open.set(open.get() + 1);
                fixture.ring.spawn(async move {
                    let (status, body) = exchange(sender, length).await.unwrap();
                    assert_eq!((status, body), (200, length.to_string().into_bytes()));
                    open.set(open.get() - 1);
                });
            }
            while open.get() > 0 {
                fixture.pause(1).await;
            }
            assert_eq!(load.demand(), 0);
        });
    }
}

/// Connections break anywhere and clients cancel: no permit, stream or guard is leaked, and the core still serves.
#[test]
fn stream_faults_leak_no_permit() {
    for_every_seed(|seed| {
        let protocol = if seed % 2 == 0 { Protocol::Http1 } else { Protocol::H2c };
        let simulation = Rc::new(Simulation::new(seed, FaultProfile::calm()));
        let machine = Rc::clone(&simulation);
        let mut limits = CoreLimits::default();
        limits.http.stall_max = STALL_MAX;
        limits.http.idle_max = Duration::from_secs(2);
        run_with_proxy(&simulation.ring(), &limits, move |fixture| run_with_faults(fixture, machine, protocol));
    });
}

async fn run_with_faults(fixture: ProxyFixture, simulation: Rc<Simulation>, protocol: Protocol) {
    let load = Arc::<BackendLoad>::default();
    fixture.publish("app", app(&fixture, protocol, &load));
    simulation.set_faults(FaultProfile {
        resets: 5_000,
        segment_bytes_max: 60,
        latency: Duration::from_micros(10)..=Duration::from_micros(500),
        ..FaultProfile::calm()
    });
    let (open, answered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for connection in 0..20 {
        let Some(sender) = connect(&fixture).await else { continue };
        for stream in 0..STREAMS {
            let (sender, open, answered) = (sender.clone(), Rc::clone(&open), Rc::clone(&answered));
            open.set(open.get() + 1);
            let (length, ring) = ((connection * STREAMS + stream) * 37 % 900, fixture.ring.clone());
            fixture.ring.spawn(async move {
                let one: Pin<Box<dyn Future<Output = _>>> = Box::pin(exchange(sender, length));
                // Each third one is dropped in flight, which resets its stream.
                let timeout = if stream % 3 == 0 { Duration::from_micros(800) } else { STALL_MAX };
                if let Ok(Ok((status, body))) = ring.timeout(timeout, one).await {
                    let whole = (200, length.to_string().into_bytes());
                    // The instance's connection may have broken instead.
                    assert!((status, body) == whole || matches!(status, 502..=504), "{status}");
                    answered.set(answered.get() + 1);
                }
                open.set(open.get() - 1);
            });
        }
    }
    while open.get() > 0 || load.demand() > 0 {
        fixture.pause(10).await;
    }
    simulation.set_faults(FaultProfile::calm());
    assert!(answered.get() > 0, "so much broke that nothing was tried");
    assert_eq!(load.waiting.load(Relaxed), 0);
    for endpoint in &fixture.tables.load().hosts["app"].splits[0].backend.endpoints {
        assert_eq!(endpoint.load.in_flight(), 0);
    }
    let sender = connect(&fixture).await.unwrap();
    assert_eq!(exchange(sender, 5).await.unwrap(), (200, b"5".to_vec()));
}

/// A draining core sends GOAWAY, finishes its open streams, and accepts no more.
#[test]
fn draining_core_finishes_its_streams() {
    on_every_driver(&CoreLimits::default(), |fixture: ProxyFixture| async move {
        let began = Rc::new(Cell::new(0));
        let expected = Rc::clone(&began);
        let address = instance(&fixture.ring, move |_| {
            expected.set(expected.get() + 1);
            let mut replies = vec![Reply::Wait(Duration::from_millis(30))];
            replies.extend(ok("late"));
            replies
        });
        fixture.publish("app", backend(&[address], 0, None));
        let sender = connect(&fixture).await.unwrap();
        let finished = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (sender, finished) = (sender.clone(), Rc::clone(&finished));
            fixture.ring.spawn(async move {
                assert_eq!(exchange(sender, 1).await.unwrap(), (200, b"late".to_vec()));
                finished.set(finished.get() + 1);
            });
        }
        while began.get() < 3 {
            fixture.pause(1).await;
        }
        fixture.stop();
        while finished.get() < 3 {
            fixture.pause(1).await;
        }
        assert!(exchange(sender, 1).await.is_err());
    });
}

/// An instance whose response pauses in the middle for 300 ms, over HTTP/1 or HTTP/2.
fn pausing_instance(ring: &Ring, protocol: Protocol, kind: &'static str) -> SocketAddr {
    let pause = Duration::from_millis(300);
    if protocol == Protocol::Http1 {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
        return instance(ring, move |_| {
            let rest = b"1\r\nb\r\n0\r\n\r\n".to_vec();
            vec![Reply::Send(head.clone().into_bytes()), Reply::Wait(pause), Reply::Send(rest)]
        });
    }
    let spawner = ring.clone();
    raw_instance(ring, move |stream| {
        let ring = spawner.clone();
        Box::pin(async move {
            let io = Http2Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
            let Ok(mut connection) = h2::server::handshake(io).await else { return };
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let sleeper = ring.clone();
                ring.spawn(async move {
                    let head = Response::builder().header("content-type", kind).body(()).unwrap();
                    let Ok(mut answer) = respond.send_response(head, false) else { return };
                    let _ = answer.send_data("a".into(), false);
                    sleeper.sleep(pause).await;
                    let _ = answer.send_data("b".into(), true);
                });
            }
        })
    })
}

/// X-QP-02: like [`late_response_in_chunks_has_no_last_chunk`] with HTTP/1 at both ends, but where either end speaks
/// HTTP/2: the stream is reset, and a gRPC client gets a status.
#[test]
fn late_response_is_cut_where_either_end_speaks_http2() {
    for (protocol, kind) in
        [(Protocol::Http1, "text/plain"), (Protocol::H2c, "text/plain"), (Protocol::H2c, "application/grpc")]
    {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            let load = Arc::<BackendLoad>::default();
            let mut app = backend(&[pausing_instance(&fixture.ring, protocol, kind)], 0, None);
            app.timeouts = RequestTimeouts { total: Duration::from_millis(60), ..RequestTimeouts::NONE };
            fixture.publish("app", Backend { protocol, load: Arc::clone(&load), ..app });

            let sender = connect(&fixture).await.unwrap();
            let (answer, _) = sender.ready().await.unwrap().send_request(put(), true).unwrap();
            let mut body = answer.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "a");
            let rest = whole(&mut body).await;
            if kind == "application/grpc" {
                assert!(rest.unwrap().is_empty());
                let fields = body.trailers().await.unwrap().unwrap();
                assert_eq!(fields["grpc-status"], "4");
            } else {
                assert!(rest.unwrap_err().is_reset(), "{protocol:?}");
            }

            if protocol == Protocol::H2c {
                let mut client = fixture.client().await;
                client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
                let all = client.rest_or(&fixture, 1_000).await;
                assert!(all.ends_with("\r\n\r\n1\r\na\r\n"), "{all}");
            }
            assert_eq!(load.demand(), 0);
        });
    }
}

/// RFC 9110 6.6.1, where either end speaks HTTP/2.
#[test]
fn every_http2_response_has_one_date() {
    for protocol in [Protocol::Http1, Protocol::H2c] {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            let app = backend(&[counting(&fixture.ring, protocol)], 0, None);
            fixture.publish("app", Backend { protocol, ..app });
            let sender = connect(&fixture).await.unwrap();
            for host in ["app", "nobody"] {
                let mut request = put();
                *request.uri_mut() = format!("http://{host}/").parse().unwrap();
                let (answer, _) = sender.clone().ready().await.unwrap().send_request(request, true).unwrap();
                assert_eq!(answer.await.unwrap().headers().get_all("date").iter().count(), 1, "{host}");
            }
            let head = fixture.client().await.get("app", "/").await.head.to_ascii_lowercase();
            assert_eq!(head.matches("\r\ndate: ").count(), 1, "{head}");
        });
    }
}

/// An HTTP/2 instance that sends `interim` before its response.
fn interim(ring: &Ring, interim: u16) -> SocketAddr {
    let served = ring.clone();
    raw_instance(ring, move |stream| {
        let ring = served.clone();
        Box::pin(async move {
            let io = Http2Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
            let Ok(mut connection) = h2::server::handshake(io).await else { return };
            while let Some(Ok((_request, mut respond))) = connection.accept().await {
                let first = Response::builder().status(interim).body(()).unwrap();
                respond.send_informational(first).unwrap();
                let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                let _ = answer.send_data("fine".into(), true);
            }
        })
    })
}

/// RFC 9113 8.6: such a 101 was once forwarded as an interim response, and an HTTP/1 client took the response after it
/// for another protocol.
#[test]
fn http2_instance_that_switches_protocols_has_failed() {
    for (status, wanted) in [(103, 200), (101, 502)] {
        on_every_driver(&CoreLimits::default(), move |fixture: ProxyFixture| async move {
            let app = backend(&[interim(&fixture.ring, status)], 0, None);
            fixture.publish("app", Backend { protocol: Protocol::H2c, ..app });

            let sender = connect(&fixture).await.unwrap();
            assert_eq!(exchange(sender, 1).await.unwrap().0, wanted);

            let mut client = fixture.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n").await;
            let all = client.rest().await;
            assert!(all.contains(&format!("HTTP/1.1 {wanted} ")), "{all}");
            assert!(!all.contains("HTTP/1.1 101 "), "{all}");
        });
    }
}

/// Like [`closed_client_releases_its_permit_of_a_silent_instance`] with HTTP/1 at both ends.
#[test]
fn closed_client_releases_its_stream_of_a_silent_instance() {
    let mut limits = CoreLimits::default();
    limits.http.half_closed_silence_max = Duration::from_millis(300);
    on_every_driver(&limits, async |fixture: ProxyFixture| {
        let load = Arc::<BackendLoad>::default();
        let spawner = fixture.ring.clone();
        let silent = raw_instance(&fixture.ring, move |stream| {
            let io = Http2Io::new(&spawner, stream, Chunk::empty(), STALL_MAX);
            Box::pin(async move {
                let Ok(mut connection) = h2::server::handshake(io).await else { return };
                let mut asked = Vec::new();
                while let Some(Ok(request)) = connection.accept().await {
                    asked.push(request);
                }
            })
        });
        let app = Backend { protocol: Protocol::H2c, ..backend(&[silent], 1, None) };
        fixture.publish("app", Backend { load: Arc::clone(&load), ..app });
        let client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        while load.demand() == 0 {
            fixture.pause(1).await;
        }
        drop(client);
        while load.demand() > 0 {
            fixture.pause(1).await;
        }
    });
}

/// A send that fails ends the writer of a connection, which was once polled again: that panicked.
#[test]
fn instance_that_reads_nothing_loses_its_connection() {
    const SETTINGS: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff";
    const WINDOW_UPDATE: &[u8] = b"\0\0\x04\x08\0\0\0\0\0\x7f\x00\0\0";
    let mut limits = CoreLimits::default();
    limits.http.stream_idle_timeout = Duration::from_millis(200);
    on_every_driver(&limits, async |fixture: ProxyFixture| {
        let ring = fixture.ring.clone();
        let address = raw_instance(&fixture.ring, move |stream| {
            let ring = ring.clone();
            Box::pin(async move {
                stream.send([SETTINGS, WINDOW_UPDATE].concat()).await.unwrap();
                ring.sleep(Duration::from_secs(600)).await;
            })
        });
        fixture.publish("app", Backend { protocol: Protocol::H2c, ..backend(&[address], 0, None) });
        let client = fixture.client().await;
        client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 268435456\r\n\r\n").await;
        let mut sent = 0;
        while client.stream.send(vec![b'x'; 1 << 18]).await.is_ok() {
            sent += 1 << 18;
            assert!(sent < 1 << 27, "the instance takes nothing");
        }
    });
}

/// RFC 8441 5: a 2xx response means that the tunnel is open, so that of an instance without WebSockets was once taken
/// for one. Other responses are forwarded with their bodies.
#[test]
fn only_a_101_turns_a_stream_into_a_websocket() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let address = instance(&fixture.ring, |seen| {
            let status = seen.head.split([' ', '/']).nth(2).unwrap();
            let text = format!("HTTP/1.1 {status} So\r\nContent-Length: 4\r\n\r\nword");
            vec![Reply::Send(text.into_bytes())]
        });
        fixture.publish("app", backend(&[address], 0, None));
        let sender = connect(&fixture).await.unwrap();
        while !sender.is_extended_connect_protocol_enabled() {
            fixture.pause(1).await;
        }
        for (asked, expected) in [(200, 502), (201, 502), (302, 302), (404, 404), (503, 503)] {
            let mut request = put();
            *request.method_mut() = http::Method::CONNECT;
            *request.uri_mut() = format!("http://app/{asked}").parse().unwrap();
            request.extensions_mut().insert(h2::ext::Protocol::from("websocket"));
            let (answer, _open) = sender.clone().ready().await.unwrap().send_request(request, false).unwrap();
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), expected, "{asked}");
            let body = whole(answer.into_body()).await.unwrap();
            assert_eq!(body == b"word", asked == expected, "{asked}: {}", String::from_utf8_lossy(&body));
        }
    });
}

/// X-QP-07: a stream that has become a WebSocket keeps its permit, but a drain does not wait for its end.
#[test]
fn websocket_stream_does_not_count_as_a_request() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let backend = backend(&[crate::tunnels::echo(&fixture)], 0, None);
        let instance = Arc::clone(&backend.endpoints[0].load);
        fixture.publish("app", backend);
        let sender = connect(&fixture).await.unwrap();
        while !sender.is_extended_connect_protocol_enabled() {
            fixture.pause(1).await;
        }
        let mut request = put();
        *request.method_mut() = http::Method::CONNECT;
        *request.uri_mut() = "http://app/".parse().unwrap();
        request.extensions_mut().insert(h2::ext::Protocol::from("websocket"));
        let (answer, open) = sender.ready().await.unwrap().send_request(request, false).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
        assert_eq!((instance.in_flight(), instance.requests()), (1, 0));
        drop(open);
        while instance.in_flight() > 0 {
            fixture.pause(1).await;
        }
    });
}

/// A connection does not notice that its machine has vanished, and in HTTP/2 all requests share it.
#[test]
fn connection_is_replaced_after_a_response_timeout() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let (spawner, connections) = (fixture.ring.clone(), Rc::new(Cell::new(0)));
        let address = raw_instance(&fixture.ring, move |stream| {
            let io = Http2Io::new(&spawner, stream, Chunk::empty(), STALL_MAX);
            connections.set(connections.get() + 1);
            let is_silent = connections.get() == 1;
            Box::pin(async move {
                let Ok(mut connection) = h2::server::handshake(io).await else { return };
                let mut asked = Vec::new();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    if !is_silent {
                        respond.send_response(Response::new(()), true).unwrap();
                    }
                    asked.push((request, respond));
                }
            })
        });
        let mut app = backend(&[address], 0, None);
        app.timeouts = RequestTimeouts { response_start: Duration::from_millis(200), ..RequestTimeouts::NONE };
        fixture.publish("app", Backend { protocol: Protocol::H2c, ..app });
        let sender = connect(&fixture).await.unwrap();
        for status in [504, 200, 200] {
            let (answer, _) = sender.clone().ready().await.unwrap().send_request(put(), true).unwrap();
            assert_eq!(answer.await.unwrap().status(), status);
        }
    });
}
