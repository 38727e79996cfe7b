//! Connections to instances that speak HTTP/2: what many requests share, and what they must not.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response};
use ring::sim::{Weather, World};
use ring::{Chunk, Options, Ring, Stream};
use sluicegate_dataplane::core::CoreLimits;
use sluicegate_dataplane::h2::io::Io;
use sluicegate_dataplane::table::{Backend, Protocol};

use crate::house::{House, backend, in_house, raw_instance};
use crate::streams::{STALL_MAX, connect, whole};

/// An instance that serves each stream by a task of `answer`, and counts the connections it takes.
fn serving<F: Future<Output = ()> + 'static>(
    ring: &Ring,
    opened: &Rc<Cell<usize>>,
    answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + 'static,
) -> SocketAddr {
    let (spawner, opened, answer) = (ring.clone(), Rc::clone(opened), Rc::new(answer));
    raw_instance(ring, move |stream| {
        opened.set(opened.get() + 1);
        let (ring, answer) = (spawner.clone(), Rc::clone(&answer));
        Box::pin(async move {
            let io = Io::new(&ring, stream, Chunk::empty(), STALL_MAX);
            let Ok(mut connection) = h2::server::handshake(io).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                ring.spawn(answer(request, respond));
            }
        })
    })
}

/// On the kernel's driver and on a simulated machine without wind: so many bytes would take their time in seven at a time.
fn in_calm<F: Future<Output = ()> + 'static>(script: impl Fn(House) -> F + Copy + 'static) {
    for ring in [Ring::kernel(Options::default()).unwrap(), World::new(1, Weather::calm()).ring()] {
        in_house(&ring, &CoreLimits::default(), script);
    }
}

fn publish(house: &House, instance: SocketAddr) {
    house.publish("app", Backend { protocol: Protocol::H2c, ..backend(&[instance], 0, None) });
}

fn ask(method: Method, path: &str) -> Request<()> {
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

/// A GET by a connection of its own.
async fn get(house: &House, path: &str) -> (u16, Vec<u8>) {
    let sender = connect(house).await.unwrap();
    let (answer, _) = sender.ready().await.unwrap().send_request(ask(Method::GET, path), true).unwrap();
    let answer = answer.await.unwrap();
    (answer.status().as_u16(), whole(answer.into_body()).await.unwrap())
}

/// A client's connection on which no answer's body may be sent.
async fn connect_without_room(house: &House) -> SendRequest<Bytes> {
    let stream = Stream::connect(&house.ring, house.address).await.unwrap();
    let io = Io::new(&house.ring, stream, Chunk::empty(), STALL_MAX);
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
        in_calm(move |house: House| async move {
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
