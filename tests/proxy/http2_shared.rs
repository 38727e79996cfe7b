//! A connection to an instance that speaks HTTP/2 carries the requests of many clients: neither a client nor the instance's
//! response to one request ends it for the others.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use kit::http2::{H2Client, H2Server, frame, get_block, opening, run};
use kit::{Appliance, ApplianceSetup, HttpCall, TIMEOUT, TestUpstream};
use tokio::sync::mpsc;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const RST_STREAM: u8 = 0x3;
const SETTINGS: u8 = 0x4;
/// END_STREAM and END_HEADERS.
const WHOLE: u8 = 0x5;

/// What a stream's window towards an instance has room for.
const WINDOW_BYTES: u64 = 128 * 1024;

fn gateway(instance: SocketAddr) -> Appliance {
    let rule = format!("{HOST}=h2c://{instance}");
    ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1").flag("trusted-proxies", "127.0.0.0/8").start()
}

fn request(path: &str) -> Request<()> {
    Request::get(format!("http://{HOST}{path}")).body(()).unwrap()
}

/// A client that asks and never reads.
fn stalled_client(to: SocketAddr, path: &str, requests: u32) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    let heads = (0..requests).flat_map(|n| frame(HEADERS, WHOLE, 2 * n + 1, &get_block(HOST, path)));
    stream.write_all(&[opening(), heads.collect()].concat()).unwrap();
    stream
}

/// Clients that do not read small messages (a stream of events, of gRPC) hold back their own streams, however many frames that is.
#[test]
fn unread_crumbs_of_one_client_are_no_flood_for_the_others() {
    let instance = H2Server::start();
    let appliance = gateway(instance.address());
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let mirror = Request::post(format!("http://{HOST}/mirror")).body(()).unwrap();
        let (response, mut stream) = client.begin(mirror, false).await.unwrap();
        let mut received = response.await.unwrap().into_body();
        let _stalled = stalled_client(appliance.http(), "/crumbs", 3);
        while instance.crumbs() < 3 * WINDOW_BYTES {
            assert_eq!(client.call(request("/x")).await.unwrap().status, 200);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stream.send_data(Bytes::from_static(b"still here"), true).unwrap();
        assert_eq!(received.data().await.unwrap().unwrap(), "still here");
    });
    assert_eq!(instance.connections(), 1);
}

fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8, u32)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).ok()?;
    let [high, middle, low, kind, flags, id @ ..] = head;
    let mut payload = vec![0; usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low)];
    stream.read_exact(&mut payload).ok()?;
    Some((kind, flags, u32::from_be_bytes(id)))
}

/// Clients that go one after the other, with so many requests each.
const DISCONNECTING_CLIENTS: usize = 6;
const REQUESTS: usize = 250;

/// Hears one request, and then those of clients that go: tells when it has all of one's, waits until all were taken back, and
/// answers them as if the SETTINGS had not arrived yet. At the end it answers the first one.
fn late(listener: TcpListener, received: mpsc::UnboundedSender<()>) -> JoinHandle<()> {
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.read_exact(&mut [0; 24]).unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        let (mut open, mut gone, mut settled) = (Vec::new(), Vec::new(), false);
        let (mut notified, mut answered) = (0, 0);
        while gone.len() < DISCONNECTING_CLIENTS * REQUESTS {
            match read_frame(&mut stream).expect("the connection goes on") {
                (HEADERS, _, id) => open.push(id),
                (RST_STREAM, _, id) => gone.push(id),
                (SETTINGS, 0, _) => stream.write_all(&frame(SETTINGS, 1, 0, &[])).unwrap(),
                (SETTINGS, ..) => settled = true,
                _ => continue,
            }
            if settled && open.len() == 1 + notified * REQUESTS {
                received.send(()).unwrap();
                notified += 1;
            }
            if gone.len() == (answered + 1) * REQUESTS {
                let theirs = &gone[answered * REQUESTS..];
                answered += 1;
                let on_their_way = theirs
                    .iter()
                    .flat_map(|id| [frame(HEADERS, 0x4, *id, &[0x88]), frame(DATA, 0, *id, &[7; 100])].concat());
                stream.write_all(&on_their_way.collect::<Vec<_>>()).unwrap();
            }
        }
        stream.write_all(&frame(HEADERS, WHOLE, open[0], &[0x88])).unwrap();
        while read_frame(&mut stream).is_some() {}
    })
}

/// A client that goes takes all of its requests back at once. What the instance was sending for them is no fault of it.
#[test]
fn answers_to_requests_that_were_taken_back_end_nobodys_connection() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let appliance = gateway(listener.local_addr().unwrap());
    let (tell, mut received) = mpsc::unbounded_channel();
    let instance = late(listener, tell);
    let to = appliance.http();
    run(async {
        let (client, _ended) = H2Client::open(to).await;
        let (response, _) = client.begin(request("/first"), true).await.unwrap();
        received.recv().await.unwrap();
        for _ in 0..DISCONNECTING_CLIENTS {
            let leaver = stalled_client(to, "/others", REQUESTS as u32);
            received.recv().await.unwrap();
            drop(leaver);
        }
        assert_eq!(response.await.unwrap().status(), 200);
    });
    drop(appliance);
    instance.join().unwrap();
}

/// What is wrong with an instance's answer is said as well as it is known.
#[test]
fn malformed_response_is_reported_with_reason() {
    for (block, reason) in [
        (b"\x00\x04name\x05value".as_slice(), "sent an invalid HTTP/2 response: "), // without a status
        (b"\x88\x00\x01X\x01a", "sent an invalid HTTP/2 response: "),
        (b"\x88\x00\x01x\x02 a", "sent an invalid HTTP response: a header value has a forbidden byte"),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let appliance = gateway(listener.local_addr().unwrap());
        let block = block.to_vec();
        let instance = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 24]).unwrap();
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
            while let Some((kind, _, id)) = read_frame(&mut stream) {
                if kind == HEADERS {
                    stream.write_all(&frame(HEADERS, WHOLE, id, &block)).unwrap();
                }
            }
        });
        let answer = HttpCall::get("/").host(HOST).send(appliance.http());
        assert_eq!(answer.status, 502);
        assert!(answer.reason().contains(reason), "{answer}");
        drop(appliance);
        instance.join().unwrap();
    }
}

/// gRPC's small messages come in bursts, each in a frame of its own: all of a burst is there before anybody takes it.
#[test]
fn a_burst_of_small_messages_is_no_flood() {
    const MESSAGES: usize = 8_000;
    let upstream = TestUpstream::start("one");
    let appliance = ApplianceSetup::new(BIN).route(HOST, upstream.address()).flag("workers", "1").start();
    run(async {
        let (client, _ended) = H2Client::open(appliance.http()).await;
        let asked = Request::post(format!("http://{HOST}/")).body(()).unwrap();
        let (response, mut stream) = client.begin(asked, false).await.unwrap();
        for _ in 0..MESSAGES {
            stream.send_data(Bytes::from_static(b"\0\0\0\0\x03abc"), false).unwrap();
        }
        stream.send_data(Bytes::new(), true).unwrap();
        assert_eq!(response.await.unwrap().status(), 200);
    });
}
