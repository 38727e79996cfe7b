//! Promises that hold on a kernel ring with minimal limits: its queues overflow, its buffers run out, and
//! calls are dropped midway.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use sluicegate_ring::{Chunk, Ring, RingListener, RingOptions, RingStream};

/// Two submissions, four completions and four buffers of 64 bytes for all connections.
fn narrow() -> Ring {
    let options = RingOptions {
        submissions_max: 2,
        completions_max: 4,
        chunk_bytes: 64,
        chunks: 4,
        recv_chunks_max: 2,
        accepted_max: 2,
        ..RingOptions::default()
    };
    crate::open(options)
}

fn byte(at: usize) -> u8 {
    ((at * 31) >> 3) as u8
}

/// Uses detached and normal sends of any length; each detached one is dropped or waited for.
async fn talk(ring: Ring, stream: Rc<RingStream>, bytes: usize, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut sent = 0;
    while sent < bytes {
        let count = rng.usize(1..=3000).min(bytes - sent);
        let part: Vec<u8> = (sent..sent + count).map(byte).collect();
        if let Err(part) = stream.send_detached(Chunk::from(part)) {
            stream.send(part).await.unwrap();
        } else if rng.bool() {
            stream.settled().await.unwrap();
        }
        sent += count;
        if rng.u8(..4) == 0 {
            ring.yield_now().await;
        }
    }
    stream.shutdown_write().await.unwrap();
}

/// Receives everything, though calls are dropped and chunks are held for a while.
async fn listen(ring: Ring, stream: Rc<RingStream>, bytes: usize, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut got, mut held) = (0, Vec::new());
    loop {
        if rng.u8(..8) == 0 {
            held.clear();
        }
        if rng.u8(..8) == 0 {
            let _ = ring.timeout(Duration::from_micros(rng.u64(..50)), stream.hung_up()).await;
        }
        let wait = Duration::from_micros(rng.u64(..200));
        let Ok(chunk) = ring.timeout(wait, stream.recv()).await else { continue };
        let chunk = chunk.unwrap();
        if chunk.is_empty() {
            break;
        }
        assert!(chunk.iter().zip(got..).all(|(is, at)| *is == byte(at)), "seed {seed} after {got}");
        got += chunk.len();
        if held.len() < 3 {
            held.push(chunk);
        }
    }
    assert_eq!(got, bytes, "seed {seed}");
    stream.hung_up().await.unwrap();
}

#[test]
fn minimal_ring_delivers_every_byte_in_order() {
    const PAIRS: u64 = 24;
    const BYTES: usize = 60_000;
    let ring = narrow();
    let done = Rc::new(Cell::new(0));
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    ring.block_on(async {
        let listener = RingListener::bind(&ring, address).unwrap();
        let address = listener.local_addr().unwrap();
        for seed in 0..PAIRS {
            let near = Rc::new(RingStream::connect(&ring, address).await.unwrap());
            let far = Rc::new(listener.accept().await.unwrap());
            for (from, to, seed) in [(&near, &far, seed), (&far, &near, seed + PAIRS)] {
                ring.spawn(talk(ring.clone(), Rc::clone(from), BYTES, seed));
                let (server, done) = (listen(ring.clone(), Rc::clone(to), BYTES, seed), Rc::clone(&done));
                ring.spawn(async move {
                    server.await;
                    done.set(done.get() + 1);
                });
            }
            // A stream that is dropped with operations in flight.
            let lost = RingStream::connect(&ring, address).await.unwrap();
            let found = Rc::new(listener.accept().await.unwrap());
            ring.spawn(async move {
                let _ = lost.send_detached(Chunk::from(vec![1; 2000]));
                let _ = lost.ready();
            });
            let own = ring.clone();
            ring.spawn(async move {
                let wait = Duration::from_micros(seed * 10);
                let _ = own.timeout(wait, async { found.send(vec![2; 1 << 20]).await }).await;
            });
        }
        while done.get() < 2 * PAIRS && ring.panicked() == 0 {
            ring.sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!((done.get(), ring.panicked()), (2 * PAIRS, 0));
    ring.shutdown();
}
