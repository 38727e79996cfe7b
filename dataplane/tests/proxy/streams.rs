//! HTTP/2 on simulated machines: many streams on few connections, in calm and in storm. The client and the instances
//! speak by the crate `h2` themselves; what is tested is all around it: streams, places, seats, translation.

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
use sluicegate_dataplane::h2::io::Http2Io;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::table::{Backend, Protocol, RequestTimeouts};

use crate::fixture::{
    ProxyFixture, Reply, backend, in_every_storm, in_house, instance, ok, on_every_machine, raw_instance,
};

pub(crate) const STALL_MAX: Duration = Duration::from_secs(2);
/// Streams of a connection in a storm.
const STREAMS: usize = 8;

/// An instance that says how many bytes came, by HTTP/1 or by HTTP/2.
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

/// A client's connection. It lives as long as there are senders or streams.
pub(crate) async fn connect(house: &ProxyFixture) -> Option<SendRequest<Bytes>> {
    let stream = RingStream::connect(&house.ring, house.address).await.ok()?;
    let io = Http2Io::new(&house.ring, stream, Chunk::empty(), STALL_MAX);
    let (sender, connection) = h2::client::handshake(io).await.ok()?;
    house.ring.spawn(async move { drop(connection.await) });
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

fn app(house: &ProxyFixture, protocol: Protocol, load: &Arc<BackendLoad>) -> Backend {
    let instances = [counting(&house.ring, protocol), counting(&house.ring, protocol)];
    let patience = Some(Duration::from_secs(5));
    Backend { load: Arc::clone(load), protocol, ..backend(&instances, 2, patience) }
}

/// Each stream gets its own answer, whatever its neighbours do and whatever the instance speaks.
#[test]
fn streams_of_one_connection_are_answered_each_by_itself() {
    for protocol in [Protocol::Http1, Protocol::H2c] {
        on_every_machine(&CoreLimits::default(), move |house: ProxyFixture| async move {
            let load = Arc::<BackendLoad>::default();
            house.publish("app", app(&house, protocol, &load));
            let sender = connect(&house).await.unwrap();
            let open = Rc::new(Cell::new(0));
            for length in (0..40).map(|n| n * 97) {
                let (sender, open) = (sender.clone(), Rc::clone(&open));
                open.set(open.get() + 1);
                house.ring.spawn(async move {
                    let (status, body) = exchange(sender, length).await.unwrap();
                    assert_eq!((status, body), (200, length.to_string().into_bytes()));
                    open.set(open.get() - 1);
                });
            }
            while open.get() > 0 {
                house.pause(1).await;
            }
            assert_eq!(load.demand(), 0);
        });
    }
}

/// Connections break anywhere and clients change their minds: no place, stream or seat is lost, and the core serves on.
#[test]
fn in_a_storm_of_streams_every_place_comes_back() {
    in_every_storm(|seed| {
        let protocol = if seed % 2 == 0 { Protocol::Http1 } else { Protocol::H2c };
        let world = Rc::new(Simulation::new(seed, FaultProfile::calm()));
        let machine = Rc::clone(&world);
        let mut limits = CoreLimits::default();
        limits.http.stall_max = STALL_MAX;
        limits.http.idle_max = Duration::from_secs(2);
        in_house(&world.ring(), &limits, move |house| storm(house, machine, protocol));
    });
}

async fn storm(house: ProxyFixture, world: Rc<Simulation>, protocol: Protocol) {
    let load = Arc::<BackendLoad>::default();
    house.publish("app", app(&house, protocol, &load));
    world.set_faults(FaultProfile {
        resets: 5_000,
        segment_bytes_max: 60,
        latency: Duration::from_micros(10)..=Duration::from_micros(500),
        ..FaultProfile::calm()
    });
    let (open, answered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for connection in 0..20 {
        let Some(sender) = connect(&house).await else { continue };
        for stream in 0..STREAMS {
            let (sender, open, answered) = (sender.clone(), Rc::clone(&open), Rc::clone(&answered));
            open.set(open.get() + 1);
            let (length, ring) = ((connection * STREAMS + stream) * 37 % 900, house.ring.clone());
            house.ring.spawn(async move {
                let one: Pin<Box<dyn Future<Output = _>>> = Box::pin(exchange(sender, length));
                // Each third one is dropped under way, which resets its stream.
                let patience = if stream % 3 == 0 { Duration::from_micros(800) } else { STALL_MAX };
                if let Ok(Ok((status, body))) = ring.timeout(patience, one).await {
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
        house.pause(10).await;
    }
    world.set_faults(FaultProfile::calm());
    assert!(answered.get() > 0, "so much broke that nothing was tried");
    assert_eq!(load.waiting.load(Relaxed), 0);
    for endpoint in &house.tables.load().hosts["app"].splits[0].backend.endpoints {
        assert_eq!(endpoint.load.in_flight(), 0);
    }
    let sender = connect(&house).await.unwrap();
    assert_eq!(exchange(sender, 5).await.unwrap(), (200, b"5".to_vec()));
}

/// A core that stops says so, finishes the streams it has, and takes no more.
#[test]
fn a_stopping_core_finishes_its_streams() {
    on_every_machine(&CoreLimits::default(), |house: ProxyFixture| async move {
        let began = Rc::new(Cell::new(0));
        let told = Rc::clone(&began);
        let address = instance(&house.ring, move |_| {
            told.set(told.get() + 1);
            let mut replies = vec![Reply::Wait(Duration::from_millis(30))];
            replies.extend(ok("late"));
            replies
        });
        house.publish("app", backend(&[address], 0, None));
        let sender = connect(&house).await.unwrap();
        let finished = Rc::new(Cell::new(0));
        for _ in 0..3 {
            let (sender, finished) = (sender.clone(), Rc::clone(&finished));
            house.ring.spawn(async move {
                assert_eq!(exchange(sender, 1).await.unwrap(), (200, b"late".to_vec()));
                finished.set(finished.get() + 1);
            });
        }
        while began.get() < 3 {
            house.pause(1).await;
        }
        house.say_stop();
        while finished.get() < 3 {
            house.pause(1).await;
        }
        assert!(exchange(sender, 1).await.is_err());
    });
}

/// An instance whose answer stops in its middle for 300 ms, by HTTP/1 or by HTTP/2.
fn dawdling(ring: &Ring, protocol: Protocol, kind: &'static str) -> SocketAddr {
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

/// X-QP-02: what [`late_response_in_chunks_has_no_last_chunk`] shows for HTTP/1 at both ends holds where either end speaks
/// HTTP/2: the stream is reset; a client of gRPC is told why by a status.
#[test]
fn late_response_is_cut_where_either_end_speaks_http2() {
    for (protocol, kind) in
        [(Protocol::Http1, "text/plain"), (Protocol::H2c, "text/plain"), (Protocol::H2c, "application/grpc")]
    {
        on_every_machine(&CoreLimits::default(), move |house: ProxyFixture| async move {
            let load = Arc::<BackendLoad>::default();
            let mut app = backend(&[dawdling(&house.ring, protocol, kind)], 0, None);
            app.timeouts = RequestTimeouts { total: Duration::from_millis(60), ..RequestTimeouts::NONE };
            house.publish("app", Backend { protocol, load: Arc::clone(&load), ..app });

            let sender = connect(&house).await.unwrap();
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
                let mut client = house.client().await;
                client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
                let all = client.rest_or(&house, 1_000).await;
                assert!(all.ends_with("\r\n\r\n1\r\na\r\n"), "{all}");
            }
            assert_eq!(load.demand(), 0);
        });
    }
}

/// RFC 9110 6.6.1, where either end speaks HTTP/2.
#[test]
fn every_answer_of_a_stream_says_when_it_was_given() {
    for protocol in [Protocol::Http1, Protocol::H2c] {
        on_every_machine(&CoreLimits::default(), move |house: ProxyFixture| async move {
            let app = backend(&[counting(&house.ring, protocol)], 0, None);
            house.publish("app", Backend { protocol, ..app });
            let sender = connect(&house).await.unwrap();
            for host in ["app", "nobody"] {
                let mut request = put();
                *request.uri_mut() = format!("http://{host}/").parse().unwrap();
                let (answer, _) = sender.clone().ready().await.unwrap().send_request(request, true).unwrap();
                assert_eq!(answer.await.unwrap().headers().get_all("date").iter().count(), 1, "{host}");
            }
            let head = house.client().await.get("app", "/").await.head.to_ascii_lowercase();
            assert_eq!(head.matches("\r\ndate: ").count(), 1, "{head}");
        });
    }
}

/// An HTTP/2 instance that sends `interim` before its answer.
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

/// RFC 9113 8.6: such a 101 was once passed on as if it were news, and an HTTP/1 client took the answer behind it for
/// another protocol.
#[test]
fn an_http2_instance_that_switches_protocols_has_failed() {
    for (status, wanted) in [(103, 200), (101, 502)] {
        on_every_machine(&CoreLimits::default(), move |house: ProxyFixture| async move {
            let app = backend(&[interim(&house.ring, status)], 0, None);
            house.publish("app", Backend { protocol: Protocol::H2c, ..app });

            let sender = connect(&house).await.unwrap();
            assert_eq!(exchange(sender, 1).await.unwrap().0, wanted);

            let mut client = house.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n").await;
            let all = client.rest().await;
            assert!(all.contains(&format!("HTTP/1.1 {wanted} ")), "{all}");
            assert!(!all.contains("HTTP/1.1 101 "), "{all}");
        });
    }
}

/// What [`a_client_that_has_closed_holds_no_place_of_a_silent_instance`] shows for HTTP/1 at both ends.
#[test]
fn a_client_that_has_closed_holds_no_stream_of_a_silent_instance() {
    let mut limits = CoreLimits::default();
    limits.http.half_closed_silence_max = Duration::from_millis(300);
    on_every_machine(&limits, async |house: ProxyFixture| {
        let load = Arc::<BackendLoad>::default();
        let spawner = house.ring.clone();
        let silent = raw_instance(&house.ring, move |stream| {
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
        house.publish("app", Backend { load: Arc::clone(&load), ..app });
        let client = house.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        while load.demand() == 0 {
            house.pause(1).await;
        }
        drop(client);
        while load.demand() > 0 {
            house.pause(1).await;
        }
    });
}

/// RFC 8441 5: an answer of 2xx says that the tunnel is there, so that of an instance which knows no WebSockets was
/// once taken for one. What it answers else is for the client, with its body.
#[test]
fn a_stream_becomes_a_websocket_by_a_101_alone() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        let address = instance(&house.ring, |seen| {
            let status = seen.head.split([' ', '/']).nth(2).unwrap();
            let text = format!("HTTP/1.1 {status} So\r\nContent-Length: 4\r\n\r\nword");
            vec![Reply::Send(text.into_bytes())]
        });
        house.publish("app", backend(&[address], 0, None));
        let sender = connect(&house).await.unwrap();
        while !sender.is_extended_connect_protocol_enabled() {
            house.pause(1).await;
        }
        for (asked, told) in [(200, 502), (201, 502), (302, 302), (404, 404), (503, 503)] {
            let mut request = put();
            *request.method_mut() = http::Method::CONNECT;
            *request.uri_mut() = format!("http://app/{asked}").parse().unwrap();
            request.extensions_mut().insert(h2::ext::Protocol::from("websocket"));
            let (answer, _open) = sender.clone().ready().await.unwrap().send_request(request, false).unwrap();
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), told, "{asked}");
            let body = whole(answer.into_body()).await.unwrap();
            assert_eq!(body == b"word", asked == told, "{asked}: {}", String::from_utf8_lossy(&body));
        }
    });
}

/// X-QP-07: a stream that has become a WebSocket keeps its place, and is no request whose end is waited for.
#[test]
fn a_websocket_in_a_stream_is_no_request() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        let backend = backend(&[crate::tunnels::echo(&house)], 0, None);
        let instance = Arc::clone(&backend.endpoints[0].load);
        house.publish("app", backend);
        let sender = connect(&house).await.unwrap();
        while !sender.is_extended_connect_protocol_enabled() {
            house.pause(1).await;
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
            house.pause(1).await;
        }
    });
}

/// A machine that is gone without a word is not noticed by its connection, and in HTTP/2 all requests share that.
#[test]
fn after_an_answer_that_did_not_come_the_next_request_takes_another_connection() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        let (spawner, connections) = (house.ring.clone(), Rc::new(Cell::new(0)));
        let address = raw_instance(&house.ring, move |stream| {
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
        house.publish("app", Backend { protocol: Protocol::H2c, ..app });
        let sender = connect(&house).await.unwrap();
        for status in [504, 200, 200] {
            let (answer, _) = sender.clone().ready().await.unwrap().send_request(put(), true).unwrap();
            assert_eq!(answer.await.unwrap().status(), status);
        }
    });
}
