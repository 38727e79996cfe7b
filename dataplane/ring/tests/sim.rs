//! Promises of the simulated machine: its faults must be real ones.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use sluicegate_ring::sim::{FaultProfile, Simulation};
use sluicegate_ring::{Ring, RingFile, RingListener, RingOptions, RingStream};

const PAGE: usize = 4096;

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn simulated_night_passes_at_once() {
    let simulation = Simulation::new(1, FaultProfile::calm());
    let ring = simulation.ring();
    ring.block_on(ring.sleep(Duration::from_secs(8 * 3600)));
    assert!(ring.now().as_nanos() >= 8 * 3_600_000_000_000);
}

#[test]
fn self_waking_task_sees_time_pass() {
    let simulation = Simulation::new(1, FaultProfile::calm());
    let ring = simulation.ring();
    ring.block_on(async {
        let until = ring.now() + Duration::from_millis(1);
        while ring.now() < until {
            ring.yield_now().await;
        }
    });
}

/// Batched work runs after every task had its turn.
#[test]
fn idle_resolves_when_no_task_runs() {
    let simulation = Simulation::new(1, FaultProfile::calm());
    let ring = simulation.ring();
    let (turns, goes_on) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(true)));
    ring.block_on(async {
        let (other, count) = (ring.clone(), Rc::clone(&turns));
        ring.spawn(async move {
            for _ in 0..50 {
                other.yield_now().await;
                count.set(count.get() + 1);
            }
        });
        ring.idle().await;
        assert_eq!(turns.get(), 50);

        // It needs no time to pass, and one follows the other.
        ring.timeout(Duration::from_millis(1), async { (ring.idle().await, ring.idle().await) }).await.unwrap();

        let (other, busy) = (ring.clone(), Rc::clone(&goes_on));
        ring.spawn(async move {
            while busy.get() {
                other.yield_now().await;
            }
        });
        assert!(ring.timeout(Duration::from_millis(1), ring.idle()).await.is_err(), "a task always runs");
        goes_on.set(false);
        ring.idle().await;
    });
}

/// An adopted listener keeps the real machine's port, and ephemeral ports reach that number some day: a
/// second listener on it would take its connections.
#[test]
fn port_in_use_is_not_assigned_again() {
    let simulation = Simulation::new(1, FaultProfile::calm());
    let ring = simulation.ring();
    ring.block_on(async {
        let first = RingListener::bind(&ring, anywhere()).unwrap().local_addr().unwrap();
        let taken: Vec<_> = (1..=2)
            .map(|step| RingListener::bind(&ring, SocketAddr::new(first.ip(), first.port() + step)).unwrap())
            .collect();
        let next = RingListener::bind(&ring, anywhere()).unwrap().local_addr().unwrap();
        for listener in &taken {
            assert_ne!(next, listener.local_addr().unwrap());
        }

        // As many connections as make the port numbers wrap around.
        let server = RingListener::bind(&ring, anywhere()).unwrap();
        let mut kept = Vec::new();
        for _ in 0..40_000 {
            let client = RingStream::connect(&ring, server.local_addr().unwrap()).await.unwrap();
            let port = server.accept().await.unwrap().peer_addr().unwrap().port();
            assert!(taken.iter().all(|listener| listener.local_addr().unwrap().port() != port));
            if kept.is_empty() {
                kept.push((client, port));
            } else {
                assert_ne!(port, kept[0].1, "a connection has it");
            }
        }
    });
}

#[test]
fn broken_connection_is_reported_to_both_sides() {
    let simulation = Simulation::new(3, FaultProfile { resets: 1_000_000, ..FaultProfile::calm() });
    let ring = simulation.ring();
    ring.block_on(async {
        let listener = RingListener::bind(&ring, anywhere()).unwrap();
        let client = RingStream::connect(&ring, listener.local_addr().unwrap()).await.unwrap();
        let server = listener.accept().await.unwrap();
        assert!(client.send(b"lost").await.is_err());
        assert!(server.recv().await.is_err());
        assert!(client.recv().await.is_err());
    });
}

/// Same as with the kernel.
#[test]
fn peer_end_is_reported_before_bytes_are_read() {
    for (resets, seed) in [(0, 5), (1_000_000, 6)] {
        let simulation = Simulation::new(seed, FaultProfile::calm());
        let ring = simulation.ring();
        ring.block_on(async {
            let listener = RingListener::bind(&ring, anywhere()).unwrap();
            let peer = RingStream::connect(&ring, listener.local_addr().unwrap()).await.unwrap();
            let stream = listener.accept().await.unwrap();
            peer.send(b"unread").await.unwrap();
            assert!(ring.timeout(Duration::from_secs(1), stream.hung_up()).await.is_err(), "it is there");
            simulation.set_faults(FaultProfile { resets, ..FaultProfile::calm() });
            let _ = peer.send(b"more").await; // lost under faults
            drop(peer);
            stream.hung_up().await.unwrap();
            let mut came = Vec::new();
            while let Ok(chunk) = stream.recv().await
                && !chunk.is_empty()
            {
                came.extend_from_slice(&chunk);
            }
            assert!(resets > 0 || came == b"unreadmore", "{came:?}");
            stream.hung_up().await.unwrap();
        });
        ring.shutdown();
    }
}

/// Same as with the kernel: a second waiter, or one that gives up, takes it from no other.
#[test]
fn peer_end_is_reported_to_every_waiter() {
    let options = RingOptions::default();
    let kernel = [Ring::kernel(options.clone()).unwrap(), Ring::epoll(options).unwrap()];
    for ring in [Simulation::new(7, FaultProfile::calm()).ring()].into_iter().chain(kernel) {
        ring.block_on(async {
            let listener = RingListener::bind(&ring, anywhere()).unwrap();
            let peer = RingStream::connect(&ring, listener.local_addr().unwrap()).await.unwrap();
            let stream = Rc::new(listener.accept().await.unwrap());
            let notified = Rc::new(Cell::new(0));
            for _ in 0..3 {
                let (stream, notified) = (Rc::clone(&stream), Rc::clone(&notified));
                ring.spawn(async move {
                    stream.hung_up().await.unwrap();
                    notified.set(notified.get() + 1);
                });
            }
            assert!(ring.timeout(Duration::from_millis(5), stream.hung_up()).await.is_err(), "it is there");
            assert_eq!(notified.get(), 0);
            drop(peer);
            let all = async {
                while notified.get() < 3 {
                    ring.yield_now().await;
                }
            };
            ring.timeout(Duration::from_secs(10), all).await.expect("each is notified");
        });
        ring.shutdown();
    }
}

#[test]
fn sender_waits_for_receiver_that_does_not_read() {
    let simulation = Simulation::new(4, FaultProfile { window_bytes: 1000, ..FaultProfile::calm() });
    let ring = simulation.ring();
    ring.block_on(async {
        let listener = RingListener::bind(&ring, anywhere()).unwrap();
        let client = RingStream::connect(&ring, listener.local_addr().unwrap()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let sent = ring.timeout(Duration::from_secs(3600), client.send(vec![7; 1001])).await;
        assert!(sent.is_err(), "at most the window is accepted");
        assert!(!server.recv().await.unwrap().is_empty());
    });
}

#[test]
fn synced_pages_survive_and_unsynced_may_be_lost() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..20 {
        let file = tempfile::NamedTempFile::new().unwrap();
        let simulation = Simulation::new(seed, FaultProfile::moderate());
        let ring = simulation.ring();
        ring.block_on(async {
            let out = RingFile::from_std(&ring, file.reopen().unwrap());
            out.write_at(vec![1; 8 * PAGE], 0).await.unwrap();
            out.sync_data().await.unwrap();
            out.write_at_durable(vec![2; PAGE], 0).await.unwrap();
            out.write_at(vec![3; 6 * PAGE], PAGE as u64).await.unwrap();
            simulation.power_cut();
            assert!(out.sync_data().await.is_err(), "there is no power");
        });
        let left = fs::read(file.path()).unwrap();
        assert_eq!(left.len(), 8 * PAGE);
        for (number, page) in left.chunks(PAGE).enumerate() {
            assert!(page.iter().all(|byte| *byte == page[0]), "a page is written whole or not at all");
            match (number, page[0]) {
                (0, 2) | (7, 1) => {}
                (1..=6, 1) => lost += 1,
                (1..=6, 3) => kept += 1,
                found => panic!("seed {seed}: {found:?}"),
            }
        }
    }
    assert!(lost > 10 && kept > 10, "{lost} lost, {kept} kept");
}

#[test]
fn sync_covers_only_earlier_writes() {
    let mut undone = 0;
    for seed in 0..20 {
        let file = tempfile::NamedTempFile::new().unwrap();
        let simulation = Simulation::new(seed, FaultProfile::moderate());
        let ring = simulation.ring();
        ring.block_on(async {
            let out = Rc::new(RingFile::from_std(&ring, file.reopen().unwrap()));
            out.write_at(vec![1; PAGE], 0).await.unwrap();
            out.write_at(vec![2; PAGE], 0).await.unwrap();
            let later = Rc::clone(&out);
            // Written while the sync is in flight; it may be done before the sync or after.
            let mut sync = std::pin::pin!(out.sync_data());
            assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(sync.as_mut().poll(cx).is_pending())).await);
            later.write_at(vec![3; PAGE], 0).await.unwrap();
            sync.await.unwrap();
            simulation.power_cut();
        });
        match fs::read(file.path()).unwrap()[..] {
            [2, .., 2] => undone += 1,
            [3, .., 3] => {}
            [1, ..] => panic!("seed {seed}: what was synced is gone"),
            _ => panic!("seed {seed}: the page is torn"),
        }
    }
    assert!((1..20).contains(&undone), "{undone} of 20");
}

#[test]
fn failing_disk_returns_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let simulation = Simulation::new(5, FaultProfile { disk_errors: 1_000_000, ..FaultProfile::calm() });
    let ring = simulation.ring();
    ring.block_on(async {
        let out = RingFile::from_std(&ring, file.reopen().unwrap());
        assert_eq!(out.write_at(b"x", 0).await.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(out.sync_data().await.unwrap_err().raw_os_error(), Some(5));
    });
}

#[test]
#[should_panic(expected = "the simulation is stuck")]
fn wait_without_events_panics_and_does_not_hang() {
    let simulation = Simulation::new(6, FaultProfile::calm());
    let ring = simulation.ring();
    ring.block_on(std::future::pending::<()>());
}

#[test]
fn receiver_gets_bytes_while_others_hold_all_buffers() {
    let options = RingOptions { chunks: 4, chunk_bytes: 64, recv_chunks_max: 2, ..RingOptions::default() };
    let simulation = Simulation::with_options(7, FaultProfile::moderate(), options);
    let ring = simulation.ring();
    ring.block_on(async {
        let listener = RingListener::bind(&ring, anywhere()).unwrap();
        let client = RingStream::connect(&ring, listener.local_addr().unwrap()).await.unwrap();
        let server = listener.accept().await.unwrap();
        client.send(vec![1; 10_000]).await.unwrap();
        let (mut held, mut bytes) = (Vec::new(), 0);
        while bytes < 10_000 {
            held.push(server.recv().await.unwrap());
            bytes += held.last().unwrap().len();
        }
        assert_eq!(bytes, 10_000);
        assert!(held.iter().flat_map(|chunk| chunk.iter()).all(|byte| *byte == 1));
    });
}

#[test]
fn durable_write_falls_back_to_sync() {
    for seed in 0..10 {
        let file = tempfile::NamedTempFile::new().unwrap();
        let simulation = Simulation::new(seed, FaultProfile { durable_writes: false, ..FaultProfile::moderate() });
        let ring = simulation.ring();
        ring.block_on(async {
            let out = RingFile::from_std(&ring, file.reopen().unwrap());
            for page in 0..4 {
                out.write_at_durable(vec![9; PAGE], page * PAGE as u64).await.unwrap();
            }
            simulation.power_cut();
        });
        assert!(fs::read(file.path()).unwrap() == [9; 4 * PAGE]);
    }
}

#[test]
fn every_task_ends_under_severe_faults() {
    let (mut whole, mut broken) = (0, 0);
    for seed in 0..30 {
        let simulation = Simulation::new(seed, FaultProfile::severe());
        let ring = simulation.ring();
        let listener = RingListener::bind(&ring, anywhere()).unwrap();
        let address = listener.local_addr().unwrap();
        let own = ring.clone();
        ring.spawn(async move {
            while let Ok(stream) = listener.accept().await {
                own.spawn(async move {
                    while let Ok(chunk) = stream.recv().await {
                        if chunk.is_empty() || stream.send(chunk).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        // Nothing here has a deadline: a connection that just stopped would stop the simulation.
        ring.block_on(async {
            for _ in 0..4 {
                match round_trip(&ring, address).await {
                    Ok(back) => {
                        assert!(back == [5; 20_000], "what arrives is what was sent");
                        whole += 1;
                    }
                    Err(_) => broken += 1,
                }
            }
        });
        assert_eq!(ring.panicked(), 0);
        ring.shutdown();
    }
    assert!(whole > 10 && broken > 10, "{whole} whole, {broken} broken");
}

async fn round_trip(ring: &Ring, address: SocketAddr) -> std::io::Result<Vec<u8>> {
    let stream = Rc::new(RingStream::connect(ring, address).await?);
    let sender = Rc::clone(&stream);
    ring.spawn(async move {
        if sender.send(vec![5; 20_000]).await.is_ok() {
            let _ = sender.shutdown_write().await;
        }
    });
    let mut back = Vec::new();
    loop {
        let chunk = stream.recv().await?;
        if chunk.is_empty() {
            return Ok(back);
        }
        back.extend_from_slice(&chunk);
    }
}

#[test]
fn power_cut_ends_every_wait() {
    let simulation = Simulation::new(8, FaultProfile::calm());
    let ring = simulation.ring();
    ring.block_on(async {
        let listener = RingListener::bind(&ring, anywhere()).unwrap();
        let client = RingStream::connect(&ring, listener.local_addr().unwrap()).await.unwrap();
        let server = listener.accept().await.unwrap();
        assert!(ring.timeout(Duration::from_millis(1), server.recv()).await.is_err());
        assert!(ring.timeout(Duration::from_millis(1), listener.accept()).await.is_err());
        simulation.power_cut();
        assert!(server.recv().await.is_err());
        assert!(listener.accept().await.is_err());
        assert!(client.send(b"anybody?").await.is_err());
    });
}

/// A stream that is not read for a while holds no receive buffer, and loses nothing.
#[test]
fn suspended_stream_resumes_where_it_stopped() {
    for seed in 0..20 {
        let ring = Simulation::new(seed, FaultProfile::moderate()).ring();
        let listener = RingListener::bind(&ring, anywhere()).unwrap();
        let address = listener.local_addr().unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        let (sender, sent) = (ring.clone(), bytes.clone());
        ring.spawn(async move {
            let stream = RingStream::connect(&sender, address).await.unwrap();
            stream.send(sent).await.unwrap();
        });
        ring.block_on(async {
            let stream = listener.accept().await.unwrap();
            let mut received = Vec::new();
            loop {
                let chunk = stream.recv().await.unwrap();
                if chunk.is_empty() {
                    break;
                }
                received.extend_from_slice(&chunk);
                if received.len() % 3 == 0 {
                    stream.suspend();
                    ring.sleep(Duration::from_millis(5)).await;
                    stream.suspend(); // again, without effect
                }
            }
            assert_eq!(received, bytes);
        });
        ring.shutdown();
    }
}
