//! Cost on one core: a task switch, a round trip over loopback, bytes through a stream.
//!
//! Client and server share one loop, so a round trip is two sends and two receives on one core.
#![allow(clippy::unwrap_used)] // a bench that cannot start should stop

use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sluicegate_ring::{Ring, RingListener, RingOptions, RingStream};

/// Concurrent connections in the round-trip bench, same as in the proxy's benchmark.
const CONNECTIONS: u64 = 64;
const REQUEST: &[u8] = &[b'x'; 128];

async fn echo(stream: RingStream) {
    while let Ok(chunk) = stream.recv().await {
        if chunk.is_empty() || stream.send(chunk).await.is_err() {
            return;
        }
    }
}

/// A loop with an echo server, and `count` connections to it.
fn connected(count: u64) -> (Ring, Vec<Rc<RingStream>>) {
    let ring = Ring::kernel(RingOptions::default()).unwrap();
    let listener = RingListener::bind(&ring, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let own = ring.clone();
    ring.spawn(async move {
        while let Ok(stream) = listener.accept().await {
            own.spawn(echo(stream));
        }
    });
    let streams = ring.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..count {
            streams.push(Rc::new(RingStream::connect(&ring, address).await.unwrap()));
        }
        streams
    });
    (ring, streams)
}

/// Makes `total` round trips, distributed over the connections.
fn round_trips(ring: &Ring, streams: &[Rc<RingStream>], total: u64) -> Duration {
    let begin = Instant::now();
    let left = Rc::new(std::cell::Cell::new(total));
    let running = Rc::new(std::cell::Cell::new(streams.len()));
    let done = Rc::new(std::cell::RefCell::new(None::<std::task::Waker>));
    for stream in streams {
        let (stream, left) = (Rc::clone(stream), Rc::clone(&left));
        let (running, done) = (Rc::clone(&running), Rc::clone(&done));
        ring.spawn(async move {
            while left.get() > 0 {
                left.set(left.get() - 1);
                stream.send(REQUEST).await.unwrap();
                let mut bytes = 0;
                while bytes < REQUEST.len() {
                    bytes += stream.recv().await.unwrap().len();
                }
            }
            running.set(running.get() - 1);
            if running.get() == 0
                && let Some(waker) = done.take()
            {
                waker.wake();
            }
        });
    }
    ring.block_on(std::future::poll_fn(|cx| {
        if running.get() == 0 {
            return std::task::Poll::Ready(());
        }
        done.replace(Some(cx.waker().clone()));
        std::task::Poll::Pending
    }));
    begin.elapsed()
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");

    group.bench_function("yield", |b| {
        let ring = Ring::kernel(RingOptions::default()).unwrap();
        b.iter_custom(|count| {
            let begin = Instant::now();
            ring.block_on(async {
                for _ in 0..count {
                    ring.yield_now().await;
                }
            });
            begin.elapsed()
        });
    });

    for count in [1, CONNECTIONS] {
        let (ring, streams) = connected(count);
        group.bench_function(format!("round trip of 128 bytes, {count} connections"), |b| {
            b.iter_custom(|total| round_trips(&ring, &streams, total));
        });
        ring.shutdown();
    }

    const BODY: usize = 1 << 20;
    let (ring, streams) = connected(1);
    let body = bytes::Bytes::from(vec![7; BODY]);
    group.throughput(Throughput::Bytes(BODY as u64));
    group.bench_function("1 MiB there and back", |b| {
        b.iter(|| {
            let (stream, body) = (Rc::clone(&streams[0]), body.clone());
            ring.spawn(async move { stream.send(body).await.unwrap() });
            ring.block_on(async {
                let mut bytes = 0;
                while bytes < BODY {
                    bytes += black_box(streams[0].recv().await.unwrap()).len();
                }
            });
        });
    });
    ring.shutdown();
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
