//! One workload, both drivers: what holds on the simulated machine holds on the real one.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use sluicegate_ring::sim::{FaultProfile, Simulation};
use sluicegate_ring::{Ring, RingListener, RingOptions, RingStream};

const CONNECTIONS: u64 = 12;

/// Several clients send messages of random sizes, end their side, and must get everything back, and then
/// the end. Returns what each got, in the order in which they finished.
fn echo(ring: &Ring, seed: u64) -> Vec<(u64, usize)> {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = RingListener::bind(ring, address).unwrap();
    let address = listener.local_addr().unwrap();
    let finished = Rc::new(RefCell::new(Vec::new()));

    for client in 0..CONNECTIONS {
        let (ring, finished) = (ring.clone(), Rc::clone(&finished));
        ring.clone().spawn(async move {
            let bytes = converse(&ring, address, seed + client).await;
            finished.borrow_mut().push((client, bytes));
        });
    }
    ring.block_on(async {
        let open = Rc::new(RefCell::new(0));
        for _ in 0..CONNECTIONS {
            let stream = listener.accept().await.unwrap();
            let open = Rc::clone(&open);
            *open.borrow_mut() += 1;
            ring.spawn(async move {
                serve(stream).await;
                *open.borrow_mut() -= 1;
            });
        }
        listener.close().await.unwrap();
        while *open.borrow() > 0 || finished.borrow().len() < CONNECTIONS as usize {
            ring.sleep(std::time::Duration::from_millis(10)).await;
            assert_eq!(ring.panicked(), 0);
        }
        assert!(RingStream::connect(ring, address).await.is_err(), "the listener is closed");
    });
    finished.take()
}

async fn serve(stream: RingStream) {
    loop {
        let chunk = stream.recv().await.unwrap();
        if chunk.is_empty() {
            return stream.shutdown_write().await.unwrap();
        }
        stream.send(chunk).await.unwrap();
    }
}

/// One task sends while the other receives, over the same stream.
async fn converse(ring: &Ring, address: SocketAddr, seed: u64) -> usize {
    let mut chance = fastrand::Rng::with_seed(seed);
    let sent: Vec<u8> = (0..chance.usize(1..60_000)).map(|_| chance.u8(..)).collect();
    let stream = Rc::new(RingStream::connect(ring, address).await.unwrap());

    let (sender, mut rest) = (Rc::clone(&stream), sent.clone());
    ring.spawn(async move {
        while !rest.is_empty() {
            let tail = rest.split_off(chance.usize(1..=rest.len().min(50_000)));
            sender.send(std::mem::replace(&mut rest, tail)).await.unwrap();
        }
        sender.shutdown_write().await.unwrap();
    });
    let mut back = Vec::new();
    loop {
        let chunk = stream.recv().await.unwrap();
        if chunk.is_empty() {
            break;
        }
        back.extend_from_slice(&chunk);
    }
    assert!(back == sent, "{} bytes came back of {}", back.len(), sent.len());
    back.len()
}

/// One of each driver of this machine's kernel.
fn rings(options: &RingOptions) -> [Ring; 2] {
    [Ring::kernel(options.clone()).unwrap(), Ring::epoll(options.clone()).unwrap()]
}

#[test]
fn kernel_echoes_every_byte() {
    for ring in rings(&RingOptions::default()) {
        assert_eq!(echo(&ring, 7).len(), CONNECTIONS as usize);
        ring.shutdown();
    }
}

#[test]
fn full_queues_lose_no_bytes() {
    let tiny = RingOptions {
        submissions_max: 2,
        completions_max: 4,
        chunks: 8,
        chunk_bytes: 1024,
        recv_chunks_max: 2,
        accepted_max: 1,
        ..RingOptions::default()
    };
    for ring in rings(&tiny) {
        assert_eq!(echo(&ring, 7).len(), CONNECTIONS as usize);
        ring.shutdown();
    }
}

#[test]
fn simulation_echoes_every_byte() {
    // `SEED=7 cargo test --test echo` replays one run.
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..8).collect(),
    };
    for seed in seeds {
        for faults in [FaultProfile::calm(), FaultProfile::moderate()] {
            let simulation = Simulation::new(seed, faults);
            assert_eq!(echo(&simulation.ring(), 7).len(), CONNECTIONS as usize);
            simulation.ring().shutdown();
        }
    }
}

#[test]
fn same_seed_gives_same_run() {
    let night = |seed| {
        let simulation = Simulation::new(seed, FaultProfile::moderate());
        let ring = simulation.ring();
        let finished = echo(&ring, 7);
        let end = ring.now();
        ring.shutdown();
        (finished, end)
    };
    assert_eq!(night(1), night(1));
    assert_ne!(night(1), night(2));
}
