//! Promises of detached sends, on the kernel and in the simulation.
// also in the helpers of tests; the reader is a thread of its own
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use sluicegate_ring::sim::{FaultProfile, Simulation};
use sluicegate_ring::{Chunk, IdleReadiness, Ring, RingListener, RingOptions, RingStream};

/// Maximum size of a detached send.
const MOST: usize = 4096;

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| ((i * 31) >> 7) as u8).collect()
}

/// Uses detached sends as far as they are accepted; the owner of the stream yields after each.
async fn post_all(ring: &Ring, stream: &RingStream, bytes: &[u8]) -> (usize, usize) {
    let (mut posted, mut sent) = (0, 0);
    for part in bytes.chunks(MOST) {
        match stream.send_detached(Chunk::from(part.to_vec())) {
            Ok(()) => posted += 1,
            Err(part) => {
                stream.send(part).await.unwrap();
                sent += 1;
            }
        }
        ring.yield_now().await;
    }
    (posted, sent)
}

/// More than the kernel's buffers: some are sent in part, or not at all, and continue.
#[test]
fn detached_sends_reach_slow_reader_in_order() {
    let bytes = pattern(24 << 20);
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let expected = bytes.clone();
    let reader = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        got
    });
    let ring = crate::open(RingOptions::default());
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        let (posted, sent) = post_all(&ring, &stream, &bytes).await;
        assert!(posted > 0 && sent > 0, "{posted} posted, {sent} sent");
        stream.settled().await.unwrap();
    });
    assert!(reader.join().unwrap() == expected);
}

/// A fully successful send produces no kernel event: a task must not wait for one.
#[test]
fn detached_send_settles_without_other_events() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let ring = crate::open(RingOptions::default());
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        stream.send_detached(b"a".into()).unwrap();
        assert!(stream.send_detached(b"b".into()).is_err(), "one at a time");
        let settled = ring.timeout(Duration::from_secs(5), stream.settled());
        settled.await.unwrap().unwrap();
        stream.send_detached(b"b".into()).unwrap();
        ring.timeout(Duration::from_secs(5), stream.send(b"c")).await.unwrap().unwrap();
        assert!(stream.send_detached(Chunk::from(vec![0; MOST + 1])).is_err());
    });
    let (mut peer, _) = listener.accept().unwrap();
    let mut got = Vec::new();
    drop(ring);
    peer.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"abc");
}

#[test]
fn detached_send_before_shutdown_is_sent() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let ring = crate::open(RingOptions::default());
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        stream.send_detached(b"last words".into()).unwrap();
    });
    ring.shutdown();
    let mut got = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"last words");
}

#[test]
fn failed_detached_send_is_reported_by_next_send() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let ring = crate::open(RingOptions::default());
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        stream.send(b"never read").await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"x").unwrap();
        drop(peer); // with bytes unread: a reset
        while stream.ready() != IdleReadiness::Closed && stream.recv().await.is_ok_and(|got| !got.is_empty()) {}
        if stream.send_detached(b"a".into()).is_ok() {
            assert_eq!(stream.ready(), IdleReadiness::Closed);
            assert!(stream.send(b"b").await.is_err());
        }
        assert!(stream.settled().await.is_ok(), "reported once");
        assert!(stream.send(b"c").await.is_err(), "and nothing goes out any more");
        assert!(stream.send_detached(b"d".into()).is_err());
    });
}

#[test]
fn detached_sends_arrive_in_order_under_faults() {
    for seed in 0..50 {
        let simulation = Simulation::new(seed, FaultProfile { resets: 0, ..FaultProfile::severe() });
        let ring = simulation.ring();
        let bytes = pattern(200_000);
        let expected = bytes.clone();
        let mine = ring.clone();
        ring.block_on(async {
            let server = RingListener::bind(&ring, loopback()).unwrap();
            let address = server.local_addr().unwrap();
            mine.clone().spawn(async move {
                let stream = RingStream::connect(&mine, address).await.unwrap();
                post_all(&mine, &stream, &bytes).await;
                stream.shutdown_write().await.unwrap();
                while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
            });
            let stream = server.accept().await.unwrap();
            let mut got = Vec::new();
            loop {
                let chunk = stream.recv().await.unwrap();
                if chunk.is_empty() {
                    break;
                }
                got.extend_from_slice(&chunk);
            }
            assert!(got == expected, "seed {seed}");
        });
    }
}
