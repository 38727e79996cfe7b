//! Connections to instances that speak HTTP/2: what many requests share, and what they must not.

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
use sluicegate_dataplane::h2::io::Http2Io;
use sluicegate_dataplane::table::{Backend, Protocol};

use crate::fixture::{ProxyFixture, backend, in_house, nobody, on_every_machine, raw_instance};
use crate::streams::{STALL_MAX, connect, whole};

/// An instance that serves each stream by a task of `answer`, and counts the connections it takes. With a request for
/// `/last` it says GOAWAY, and serves on what it has.
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

/// On the kernel's driver and on a simulated machine without wind: so many bytes would take their time in seven at a time.
fn in_calm<F: Future<Output = ()> + 'static>(script: impl Fn(ProxyFixture) -> F + Copy + 'static) {
    for ring in [Ring::kernel(RingOptions::default()).unwrap(), Simulation::new(1, FaultProfile::calm()).ring()] {
        in_house(&ring, &CoreLimits::default(), script);
    }
}

pub(crate) fn publish(house: &ProxyFixture, instance: SocketAddr) {
    house.publish("app", Backend { protocol: Protocol::H2c, ..backend(&[instance], 0, None) });
}

pub(crate) fn ask(method: Method, path: &str) -> Request<()> {
    Request::builder().method(method).uri(format!("http://app{path}")).body(()).unwrap()
}

/// Sends as much as there is room for, in pieces of `piece`, and counts it.
async fn pour(answer: &mut SendStream<Bytes>, piece: usize, poured: &Cell<usize>) {
    loop {
        answer.reserve_capacity(piece);
        let room = poll_fn(|cx| match answer.capacity() {
            0 => answer.poll_capacity(cx),
            room => Poll::Ready(Some(Ok(room))),
        });
        let Some(Ok(room)) = room.await else { return };
        if answer.send_data(vec![b'z'; room.min(piece)].into(), false).is_err() {
            return;
        }
        poured.set(poured.get() + room.min(piece));
    }
}

/// A request by a connection of its own.
async fn get(house: &ProxyFixture, path: &str) -> (u16, Vec<u8>) {
    exchange(connect(house).await.unwrap(), ask(Method::GET, path), "").await
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

/// A client's connection on which no answer's body may be sent.
async fn connect_without_room(house: &ProxyFixture) -> SendRequest<Bytes> {
    let stream = RingStream::connect(&house.ring, house.address).await.unwrap();
    let io = Http2Io::new(&house.ring, stream, Chunk::empty(), STALL_MAX);
    let (sender, connection) = h2::client::Builder::new().initial_window_size(0).handshake(io).await.unwrap();
    house.ring.spawn(async move { drop(connection.await) });
    sender
}

/// RFC 9113 5.2.2, 10.5: the room of a connection to an instance was once that of four streams, so that whoever asked for
/// five long answers and read none of them kept everybody else's from coming; and the frames of small messages that nobody
/// took made h2 give the connection up.
#[test]
fn who_reads_nothing_holds_back_no_answer_but_its_own() {
    for piece in [16 * 1024, 20] {
        in_calm(move |house: ProxyFixture| async move {
            let (poured, opened) = (Rc::new(Cell::new(0)), Rc::default());
            let counted = Rc::clone(&poured);
            let instance = serving(&house.ring, &opened, move |request, mut respond| {
                let poured = Rc::clone(&counted);
                async move {
                    let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                    match request.uri().path() {
                        "/long" => pour(&mut answer, piece, &poured).await,
                        _ => drop(answer.send_data("short".into(), true)),
                    }
                }
            });
            publish(&house, instance);

            let mut silent = connect_without_room(&house).await;
            let mut held = Vec::new();
            for _ in 0..6 {
                silent = silent.ready().await.unwrap();
                let (answer, _) = silent.send_request(ask(Method::GET, "/long"), true).unwrap();
                held.push(answer.await.unwrap());
            }
            let mut before = usize::MAX;
            while before != poured.get() {
                before = poured.get();
                house.pause(100).await;
            }
            let short = house.ring.timeout(Duration::from_secs(1), Box::pin(get(&house, "/")));
            let (status, body) = short.await.expect("others wait for the one who does not read");
            assert_eq!((status, body), (200, b"short".to_vec()));
            assert_eq!(opened.get(), 1);
            for answer in held {
                assert_eq!(answer.status(), 200);
            }
        });
    }
}

/// RFC 9113 6.8, RFC 9110 9.2.2: what gRPC's servers do when a connection has become old. Of the next request nothing was
/// sent yet, and one with a body was refused all the same.
#[test]
fn a_connection_that_says_goaway_finishes_its_streams_and_gets_no_more() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        let (opened, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (told, ring) = (Rc::clone(&done), house.ring.clone());
        let instance = serving(&house.ring, &opened, move |request, mut respond| {
            let (done, ring) = (Rc::clone(&told), ring.clone());
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
        publish(&house, instance);

        let sender = connect(&house).await.unwrap();
        let last = sender.clone().ready().await.unwrap().send_request(ask(Method::GET, "/last"), true);
        let last = last.unwrap().0.await.unwrap();
        house.pause(20).await; // for the GOAWAY
        for _ in 0..3 {
            let posted = exchange(sender.clone(), ask(Method::POST, "/"), "body").await;
            assert_eq!(posted, (200, b"begun".to_vec()));
            let mut client = house.client().await;
            client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 4\r\n\r\nbody").await;
            assert_eq!(client.message().await.unwrap().body, b"begun");
        }
        assert_eq!(opened.get(), 2);
        done.set(true);
        assert_eq!(whole(last.into_body()).await.unwrap(), b"begun");
    });
}

/// What an instance does with a stream.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    /// RFC 9113 8.7: it has done nothing about it.
    Refuses,
    /// RFC 9113 6.8: it will do nothing about it.
    Leaves,
}

/// An instance that looks at no stream, on its first `moody` connections or of the first `moody` on each.
fn moody(ring: &Ring, opened: &Rc<Cell<usize>>, mood: Mood, moody: usize) -> SocketAddr {
    let (spawner, opened) = (ring.clone(), Rc::clone(opened));
    raw_instance(ring, move |stream| {
        opened.set(opened.get() + 1);
        let (ring, leaves) = (spawner.clone(), mood == Mood::Leaves && opened.get() <= moody);
        Box::pin(async move {
            if leaves {
                return leave(&stream).await;
            }
            let io = Http2Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
            let Ok(mut connection) = h2::server::handshake(io).await else { return };
            let mut served = 0;
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                served += 1;
                let refuses = mood == Mood::Refuses && served <= moody;
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

/// Says, when the first request has come, that the last stream which will be served is none.
async fn leave(stream: &RingStream) {
    let _ = stream.send(b"\0\0\0\x04\0\0\0\0\0".to_vec()).await; // SETTINGS, as the first frame has to be
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

/// RFC 9113 6.8, 8.7: whatever its method, a request that an instance has not looked at is nobody's yet.
#[test]
fn a_request_that_an_instance_did_not_look_at_is_asked_again() {
    for mood in [Mood::Refuses, Mood::Leaves] {
        on_every_machine(&CoreLimits::default(), move |house: ProxyFixture| async move {
            publish(&house, moody(&house.ring, &Rc::default(), mood, 1));
            let sender = connect(&house).await.unwrap();
            assert_eq!(exchange(sender, ask(Method::POST, "/"), "").await, (200, b"done".to_vec()));

            // Its body is yet to come.
            publish(&house, moody(&house.ring, &Rc::default(), mood, 1));
            let mut client = house.client().await;
            client.send("POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 4\r\n\r\n").await;
            house.pause(100).await;
            client.send("body").await;
            assert_eq!(client.message().await.unwrap().body, b"done");
        });
    }
}

/// An instance that allows one stream on a connection, holds it if asked for `/held`, and says GOAWAY on all when `leaving`
/// is set.
fn narrow(ring: &Ring, opened: &Rc<Cell<usize>>, leaving: &Rc<Cell<bool>>) -> SocketAddr {
    let (spawner, opened, leaving) = (ring.clone(), Rc::clone(opened), Rc::clone(leaving));
    raw_instance(ring, move |stream| {
        opened.set(opened.get() + 1);
        let (ring, leaving, stays) = (spawner.clone(), Rc::clone(&leaving), opened.get() > 4);
        Box::pin(async move {
            let io = Http2Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
            let mut builder = h2::server::Builder::new();
            let handshake = builder.max_concurrent_streams(1).handshake::<_, Bytes>(io);
            let Ok(mut connection) = handshake.await else { return };
            let (mut held, mut told) = (Vec::new(), stays);
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
                    Err(_) if leaving.get() && !told => {
                        told = true;
                        connection.graceful_shutdown();
                    }
                    Err(_) => {}
                }
            }
        })
    })
}

/// While it waits for room on a connection nothing of it is touched, so that it can go elsewhere when the connection leaves.
#[test]
fn a_request_that_waits_for_room_leaves_a_connection_that_says_goaway() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        let (opened, leaving) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        publish(&house, narrow(&house.ring, &opened, &leaving));
        let mut sender = connect(&house).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(sender.send_request(ask(Method::GET, "/held"), true).unwrap());
            house.pause(20).await;
        }
        assert_eq!(opened.get(), 4);
        let (answer, mut body) = sender.send_request(ask(Method::POST, "/"), false).unwrap();
        body.send_data("body".into(), true).unwrap();
        house.pause(20).await;
        leaving.set(true);
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(whole(answer.into_body()).await.unwrap(), b"done");
        assert_eq!(opened.get(), 5);
        drop(held);
    });
}

/// What of its body has been passed on is not kept.
#[test]
fn a_request_whose_body_has_begun_is_asked_once() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        publish(&house, moody(&house.ring, &Rc::default(), Mood::Refuses, 1));
        let sender = connect(&house).await.unwrap();
        assert_eq!(exchange(sender.clone(), ask(Method::PUT, "/late"), "body").await.0, 502);
        assert_eq!(exchange(sender, ask(Method::PUT, "/late"), "body").await, (200, b"done".to_vec()));
    });
}

/// ... and not for ever.
#[test]
fn an_instance_that_looks_at_nothing_is_given_up() {
    for mood in [Mood::Refuses, Mood::Leaves] {
        on_every_machine(&CoreLimits::default(), move |house: ProxyFixture| async move {
            let opened = Rc::default();
            publish(&house, moody(&house.ring, &opened, mood, usize::MAX));
            let sender = connect(&house).await.unwrap();
            let (status, _) = exchange(sender, ask(Method::POST, "/"), "").await;
            assert_eq!(status, 502);
            assert!(opened.get() <= 5, "{}", opened.get());
        });
    }
}

/// A burst to an instance that nobody was connected to once opened half as many connections as there were requests: those
/// on their way to be opened were not counted, and nobody waited for one.
#[test]
fn a_burst_of_requests_opens_no_more_connections_than_may_be() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        let (opened, answered) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        publish(&house, moody(&house.ring, &opened, Mood::Refuses, 0));
        let sender = connect(&house).await.unwrap();
        for _ in 0..200 {
            let (sender, answered) = (sender.clone(), Rc::clone(&answered));
            house.ring.spawn(async move {
                let posted = exchange(sender, ask(Method::POST, "/"), "body").await;
                assert_eq!(posted, (200, b"done".to_vec()));
                answered.set(answered.get() + 1);
            });
        }
        while answered.get() < 200 {
            house.pause(1).await;
        }
        assert!(opened.get() <= 4, "{}", opened.get());
        let counted = house.counters.upstream_opened.load(Relaxed) as usize;
        assert_eq!(counted, opened.get());
        assert_eq!(house.counters.upstream_reused.load(Relaxed) as usize, 200 - counted);
    });
}

/// Far away: a connection takes its time.
fn far_away(script: impl AsyncFn(ProxyFixture) + Copy + 'static) {
    let far = Duration::from_millis(20);
    let world = Simulation::new(1, FaultProfile { latency: far..=far, ..FaultProfile::calm() });
    in_house(&world.ring(), &CoreLimits::default(), async move |house| script(house).await);
}

/// Who waits for a connection that others opened waits for nobody who is gone.
#[test]
fn a_client_that_leaves_takes_no_connection_with_it() {
    far_away(async |house: ProxyFixture| {
        let opened = Rc::new(Cell::new(0));
        publish(&house, moody(&house.ring, &opened, Mood::Refuses, 0));
        let mut sender = connect(&house).await.unwrap();
        let first = sender.send_request(ask(Method::GET, "/"), true).unwrap();
        let second = sender.send_request(ask(Method::GET, "/"), true).unwrap();
        house.pause(10).await; // its end comes while the connection is being opened
        drop(first);
        assert_eq!(second.0.await.unwrap().status(), 200);
        assert_eq!(opened.get(), 1);
    });
}

/// ... and hears it at once when there is none to be had.
#[test]
fn all_who_wait_for_a_connection_hear_that_there_is_none() {
    far_away(async |house: ProxyFixture| {
        publish(&house, nobody(&house.ring).await);
        let mut sender = connect(&house).await.unwrap();
        let (begun, mut asked) = (house.ring.now(), Vec::new());
        for _ in 0..30 {
            asked.push(sender.send_request(ask(Method::GET, "/"), true).unwrap().0);
        }
        for answer in asked {
            assert_eq!(answer.await.unwrap().status(), 502);
        }
        assert!(house.ring.now() - begun < Duration::from_millis(500));
    });
}

/// RFC 9110 10.1.1: an instance that knows no expectation waits for the body, and its client waited for a word until its
/// patience was up. After `continue_after` the word is ours; one that the instance says is not said twice.
#[test]
fn a_client_that_waits_for_100_continue_gets_it_once_whatever_an_http2_instance_knows() {
    for knows in [false, true] {
        on_every_machine(&CoreLimits::default(), move |house: ProxyFixture| async move {
            let instance = serving(&house.ring, &Rc::default(), move |request, mut respond| async move {
                assert_eq!(request.headers()["expect"], "100-continue");
                if knows {
                    let go_on = Response::builder().status(100).body(()).unwrap();
                    respond.send_informational(go_on).unwrap();
                }
                let Ok(body) = whole(request.into_body()).await else { return };
                let Ok(mut answer) = respond.send_response(Response::new(()), false) else { return };
                let _ = answer.send_data(body.into(), true);
            });
            publish(&house, instance);

            let mut client = house.client().await;
            let expects = "Host: app\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
            client.send(format!("POST / HTTP/1.1\r\n{expects}")).await;
            assert!(client.message().await.unwrap().head.starts_with("HTTP/1.1 100 "));
            client.send("body").await;
            let answer = client.message().await.unwrap();
            assert!(answer.head.starts_with("HTTP/1.1 200 "), "{}", answer.head);
            assert_eq!(answer.body, b"body");

            let mut request = ask(Method::POST, "/");
            request.headers_mut().insert("expect", HeaderValue::from_static("100-continue"));
            let mut sender = connect(&house).await.unwrap();
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
