//! Streams, listeners, files, wakes and tasks.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use sluicegate_ring::{Chunk, Elapsed, IdleReadiness, Ring, RingFile, RingListener, RingOptions, RingStream};

fn ring() -> Ring {
    crate::open(RingOptions::default())
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn bytes_are_echoed_unchanged() {
    let ring = ring();
    let listener = RingListener::bind(&ring, loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    ring.spawn(async move {
        let stream = listener.accept().await.unwrap();
        loop {
            let chunk = stream.recv().await.unwrap();
            if chunk.is_empty() {
                break;
            }
            stream.send(chunk).await.unwrap();
        }
    });
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        stream.send(b"hello").await.unwrap();
        stream.shutdown_write().await.unwrap();
        let mut back = Vec::new();
        loop {
            let chunk = stream.recv().await.unwrap();
            if chunk.is_empty() {
                break;
            }
            back.extend_from_slice(&chunk);
        }
        assert_eq!(back, b"hello");
    });
    ring.shutdown();
}

#[test]
fn dropped_recv_loses_no_bytes() {
    let ring = ring();
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        assert!(ring.timeout(Duration::from_millis(1), stream.recv()).await.is_err());
        peer.write_all(b"kept").unwrap();
        // The receive is armed: the bytes arrive while no task waits for them.
        while stream.ready() == IdleReadiness::Idle {
            ring.yield_now().await;
        }
        assert_eq!(&*stream.recv().await.unwrap(), b"kept");
        drop(peer);
        while stream.ready() == IdleReadiness::Idle {
            ring.yield_now().await;
        }
        assert_eq!(stream.ready(), IdleReadiness::Closed);
        assert!(stream.recv().await.unwrap().is_empty());
    });
}

/// A peer's end is reported even with unread bytes, and to a task that waits for nothing else; the wait
/// loses no bytes.
#[test]
fn peer_end_is_reported_before_bytes_are_read() {
    let ring = ring();
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"unread").unwrap();
        let early = ring.timeout(Duration::from_millis(20), stream.hung_up()).await;
        assert!(early.is_err(), "it is there");
        drop(peer);
        stream.hung_up().await.unwrap();
        assert_eq!(&*stream.recv().await.unwrap(), b"unread");
        assert!(stream.recv().await.unwrap().is_empty());
        stream.hung_up().await.unwrap();
    });
    ring.shutdown();
}

#[test]
fn slow_reader_receives_eight_mebibytes() {
    const BYTES: usize = 8 << 20;
    let ring = ring();
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..BYTES).map(|i| ((i * 31) >> 7) as u8).collect();
    let expected = sent.clone();
    let reader = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        let mut part = [0; 10_000];
        loop {
            std::thread::yield_now();
            match peer.read(&mut part).unwrap() {
                0 => return got,
                count => got.extend_from_slice(&part[..count]),
            }
        }
    });
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        stream.send(sent).await.unwrap();
    });
    assert!(reader.join().unwrap() == expected);
}

#[test]
fn closed_listener_refuses_connections() {
    let ring = ring();
    ring.block_on(async {
        let listener = RingListener::bind(&ring, loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let _first = TcpStream::connect(address).unwrap();
        listener.accept().await.unwrap();
        listener.close().await.unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn self_waking_task_does_not_starve_socket() {
    let ring = ring();
    let done = Rc::new(Cell::new(false));
    let (spinner, stop) = (ring.clone(), Rc::clone(&done));
    ring.spawn(async move {
        while !stop.get() {
            spinner.yield_now().await;
        }
    });
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"through").unwrap();
        assert_eq!(&*stream.recv().await.unwrap(), b"through");
        ring.sleep(Duration::from_millis(1)).await;
        done.set(true);
    });
    ring.shutdown();
}

#[test]
fn wake_from_other_thread_wakes_loop() {
    let ring = ring();
    let wake_handle = ring.wake_handle();
    let caller = std::thread::spawn(move || wake_handle.wake());
    ring.block_on(ring.woken());
    caller.join().unwrap();
}

/// Everything that wakes a sleeping loop is seen by one that polls: a timer, a file's worker, another
/// thread, bytes.
#[test]
fn busy_polling_loop_misses_no_event() {
    let ring = ring();
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let file = RingFile::from_std(&ring, tempfile::tempfile().unwrap());
    ring.busy_poll_until(ring.now() + Duration::from_secs(3600));
    ring.block_on(async {
        ring.sleep(Duration::from_millis(2)).await;
        file.write_at_durable(b"kept".to_vec(), 0).await.unwrap();
        let wake_handle = ring.wake_handle();
        let peer = std::thread::spawn(move || {
            let (mut accepted, _) = listener.accept().unwrap();
            wake_handle.wake();
            accepted.write_all(b"x").unwrap();
        });
        let stream = RingStream::connect(&ring, address).await.unwrap();
        ring.woken().await;
        assert_eq!(&*stream.recv().await.unwrap(), b"x");
        peer.join().unwrap();
    });
    ring.shutdown();
}

/// What a peer has already sent is handled first.
#[test]
fn loop_is_not_idle_while_kernel_has_completions() {
    let ring = ring();
    let listener = TcpListener::bind(loopback()).unwrap();
    ring.block_on(async {
        let stream = RingStream::connect(&ring, listener.local_addr().unwrap()).await.unwrap();
        listener.accept().unwrap().0.write_all(b"x").unwrap();
        let seen = Rc::new(Cell::new(false));
        let sees = Rc::clone(&seen);
        ring.spawn(async move { sees.set(&*stream.recv().await.unwrap() == b"x") });
        ring.idle().await;
        assert!(seen.get());
    });
    ring.shutdown();
}

#[test]
fn burst_of_wakes_counts_once() {
    let ring = ring();
    let wake_handle = ring.wake_handle();
    let burst = || (0..100).for_each(|_| wake_handle.wake());
    for _ in 0..3 {
        burst();
        ring.block_on(async {
            ring.woken().await;
            let second = ring.timeout(Duration::from_millis(1), ring.woken()).await;
            assert!(second.is_err(), "no wake since");
        });
    }
}

#[test]
fn ten_thousand_timers_fire_in_order() {
    let ring = ring();
    let fired = Rc::new(RefCell::new(Vec::new()));
    let start = ring.now();
    for i in 0..10_000_u64 {
        let wait = Duration::from_micros(i * 7919 % 10_007);
        let (own, fired) = (ring.clone(), Rc::clone(&fired));
        ring.spawn(async move {
            own.sleep_until(start + wait).await;
            assert!(own.now() >= start + wait);
            fired.borrow_mut().push(wait);
        });
    }
    ring.block_on(ring.sleep_until(start + Duration::from_micros(10_008)));
    // Those due when polled first never waited; the others come in order.
    while fired.borrow().len() < 10_000 {
        ring.block_on(ring.yield_now());
    }
    assert_eq!(ring.panicked(), 0);
    ring.shutdown();
}

#[test]
fn file_contains_written_bytes() {
    let ring = ring();
    let file = tempfile::NamedTempFile::new().unwrap();
    ring.block_on(async {
        let out = RingFile::from_std(&ring, file.reopen().unwrap());
        out.write_at(b"world", 6).await.unwrap();
        out.write_at_durable(Chunk::from(b"hello "), 0).await.unwrap();
        out.sync_data().await.unwrap();
    });
    assert_eq!(std::fs::read(file.path()).unwrap(), b"hello world");
}

#[test]
fn exhausted_buffers_block_no_stream() {
    let options = RingOptions { chunks: 4, chunk_bytes: 64, recv_chunks_max: 2, ..RingOptions::default() };
    let ring = crate::open(options);
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
    ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let outgoing = sent.clone();
        let writer = std::thread::spawn(move || {
            peer.write_all(&outgoing).unwrap();
            peer.write_all(&outgoing).unwrap();
        });
        // Held to the end: four are buffers of the ring, the others must be allocated elsewhere.
        let mut held = Vec::new();
        while held.iter().map(|chunk: &Chunk| chunk.len()).sum::<usize>() < sent.len() {
            held.push(stream.recv().await.unwrap());
        }
        assert!(held.iter().any(|chunk| chunk.len() > 64), "more than a ring buffer holds");
        let mut bytes: Vec<u8> = held.iter().flat_map(|chunk| chunk.iter().copied()).collect();
        drop(held);
        while bytes.len() < 2 * sent.len() {
            bytes.extend_from_slice(&stream.recv().await.unwrap());
        }
        assert!(bytes[..sent.len()] == sent && bytes[sent.len()..] == sent);
        writer.join().unwrap();
    });
}

#[test]
fn calm_traffic_reuses_few_buffers() {
    let ring = ring();
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    ring.block_on(async {
        let mut pairs = Vec::new();
        for _ in 0..300 {
            let stream = RingStream::connect(&ring, address).await.unwrap();
            assert_eq!(stream.ready(), IdleReadiness::Idle); // arms the receive
            pairs.push((stream, listener.accept().unwrap().0));
        }
        let mut addresses = HashSet::new();
        let (stream, peer) = &mut pairs[0];
        for nth in 0..1000_u32 {
            peer.write_all(&nth.to_ne_bytes()).unwrap();
            let chunk = stream.recv().await.unwrap();
            assert_eq!(*chunk, nth.to_ne_bytes());
            addresses.insert(chunk.as_ptr());
        }
        assert!(addresses.len() <= 64, "{} of 1,024 buffers were touched", addresses.len());

        for round in 0..3_u32 {
            for (nth, (_, peer)) in (0..).zip(&mut pairs) {
                peer.write_all(&(nth + round).to_ne_bytes()).unwrap(); // all, before the ring polls
            }
            for (nth, (stream, _)) in (0_u32..).zip(&pairs) {
                assert_eq!(*stream.recv().await.unwrap(), (nth + round).to_ne_bytes());
            }
        }
    });
}

#[test]
fn unread_peer_does_not_take_all_buffers() {
    let ring = crate::open(RingOptions { chunks: 256, chunk_bytes: 64, ..RingOptions::default() });
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    ring.block_on(async {
        let stuck = RingStream::connect(&ring, address).await.unwrap();
        let (mut flood, _) = listener.accept().unwrap();
        assert_eq!(stuck.ready(), IdleReadiness::Idle); // arms the receive
        flood.write_all(&[7; 64 * 1024]).unwrap();
        while stuck.ready() != IdleReadiness::Data {
            ring.yield_now().await;
        }
        for _ in 0..100 {
            ring.yield_now().await;
        }
        let other = RingStream::connect(&ring, address).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        assert_eq!(other.ready(), IdleReadiness::Idle);
        peer.write_all(&[1; 100]).unwrap();
        let first = other.recv().await.unwrap();
        assert!(first.len() <= 64, "a buffer of the ring was free");
        // A paused receive continues on demand, and nothing is missing.
        let mut bytes = 0;
        while bytes < 64 * 1024 {
            bytes += stuck.recv().await.unwrap().len();
        }
        assert_eq!(bytes, 64 * 1024);
    });
}

#[test]
fn dropped_accept_loses_no_connection() {
    let ring = ring();
    ring.block_on(async {
        let listener = RingListener::bind(&ring, loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(ring.timeout(Duration::from_millis(1), listener.accept()).await.is_err());
        let peer = TcpStream::connect(address).unwrap();
        let stream = listener.accept().await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), peer.local_addr().unwrap());
    });
}

#[test]
fn dropped_stream_with_operations_is_closed() {
    let ring = ring();
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut peer = ring.block_on(async {
        let stream = RingStream::connect(&ring, address).await.unwrap();
        let (peer, _) = listener.accept().unwrap();
        // Too much for the socket buffers, so the send is in flight, and so is a receive.
        let send = stream.send(vec![1; 32 << 20]);
        assert!(ring.timeout(Duration::from_millis(1), send).await.is_err());
        assert_eq!(stream.ready(), IdleReadiness::Idle);
        let again = ring.timeout(Duration::from_secs(1), stream.send(b"into the middle")).await;
        assert_eq!(again.unwrap().unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        drop(stream);
        peer
    });
    ring.block_on(async {
        let ended = Rc::new(Cell::new(false));
        let reader = std::thread::spawn(move || peer.read_to_end(&mut Vec::new()).is_ok());
        while !reader.is_finished() {
            ring.sleep(Duration::from_millis(1)).await;
        }
        ended.set(reader.join().unwrap());
        assert!(ended.get(), "the peer sees the end");
    });
}

#[test]
fn panic_in_task_leaves_others_running() {
    let ring = ring();
    ring.spawn(async { panic!("this task is meant to fail") });
    let other = Rc::new(Cell::new(false));
    let done = Rc::clone(&other);
    ring.spawn(async move { done.set(true) });
    ring.block_on(ring.sleep(Duration::from_millis(1)));
    assert!(other.get());
    assert_eq!(ring.panicked(), 1);
}

#[test]
fn waker_works_on_other_thread() {
    let ring = ring();
    let mut caller = None;
    ring.block_on(std::future::poll_fn(|cx| match caller.take() {
        None => {
            let waker = cx.waker().clone();
            caller = Some(std::thread::spawn(move || waker.wake()));
            std::task::Poll::Pending
        }
        Some(thread) => {
            thread.join().unwrap();
            std::task::Poll::Ready(())
        }
    }));
}

#[test]
fn timeout_passes_result_in_time() {
    let ring = ring();
    ring.block_on(async {
        assert_eq!(ring.timeout(Duration::from_secs(60), async { 7 }).await, Ok(7));
        let late = ring.timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
        assert_eq!(late, Err(Elapsed));
    });
}

#[test]
fn shutdown_drops_waiting_tasks() {
    let ring = ring();
    let token = Rc::new(());
    let listener = RingListener::bind(&ring, loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let (own, held) = (ring.clone(), Rc::clone(&token));
    ring.spawn(async move {
        let _held = held;
        while let Ok(stream) = listener.accept().await {
            own.spawn(async move {
                let _ = stream.recv().await;
            });
        }
    });
    let mut peer = TcpStream::connect(address).unwrap();
    ring.block_on(ring.sleep(Duration::from_millis(1)));
    ring.shutdown();
    assert_eq!(Rc::strong_count(&token), 1);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the connection was closed");
    assert!(TcpStream::connect(address).is_err(), "the listener was closed");
}
