//! Our event loop compared with others: the same echo handler on our ring, on monoio (io_uring) and on
//! Tokio (epoll), each on one thread, with the same client. The ratios decide whether an event loop of our
//! own is justified.
//!
//! The client is a thread with plain blocking sockets, one round after the other: it writes 128 bytes to
//! each of 64 connections, then reads all 64 answers. Its cost does not depend on the server, so besides
//! the time of a round we print the CPU time of the server's thread, which is what is compared. `cargo
//! bench -p sluicegate-ring --bench peers`
#![allow(clippy::unwrap_used)] // a bench that cannot start should stop

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sluicegate_ring::{Ring, RingListener, RingOptions, RingStream};

/// Same as in the proxy's benchmark.
const CONNECTIONS: usize = 64;
const MESSAGE_BYTES: usize = 128;
/// Buffer size of the other runtimes' handlers; our ring lends its own buffers.
const BUFFER_BYTES: usize = 4096;
/// Rounds of one comparison of CPU times: some seconds in all, far above the resolution of the kernel's
/// tick.
const ROUNDS: u32 = 4_000;
/// Comparisons, each with all peers in turn, so that a machine that slows down slows all of them.
const TRIALS: usize = 5;

/// Serves `CONNECTIONS` connections until they end.
type EchoServer = fn(TcpListener);

const PEERS: [(&str, EchoServer); 3] = [("ours", ours), ("monoio", on_monoio), ("tokio", on_tokio)];

fn ours(listener: TcpListener) {
    let ring = Ring::kernel(RingOptions::default()).unwrap();
    let (own, left) = (ring.clone(), Rc::new(Cell::new(CONNECTIONS)));
    let (counted, awake) = (Rc::clone(&left), ring.wake_handle());
    ring.spawn(async move {
        let listener = RingListener::from_std(&own, listener).unwrap();
        for _ in 0..CONNECTIONS {
            let stream = listener.accept().await.unwrap();
            let (left, awake) = (Rc::clone(&counted), awake.clone());
            own.spawn(async move {
                echo(&stream).await;
                left.set(left.get() - 1);
                awake.wake();
            });
        }
        listener.close().await.unwrap();
    });
    ring.block_on(async {
        while left.get() > 0 {
            ring.woken().await;
        }
    });
    ring.shutdown();
}

async fn echo(stream: &RingStream) {
    while let Ok(chunk) = stream.recv().await {
        if chunk.is_empty() || stream.send(chunk).await.is_err() {
            return;
        }
    }
}

fn on_monoio(listener: TcpListener) {
    use monoio::io::{AsyncReadRent, AsyncWriteRentExt};

    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().build().unwrap();
    runtime.block_on(async {
        let listener = monoio::net::TcpListener::from_std(listener).unwrap();
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let (mut stream, _) = listener.accept().await.unwrap();
            tasks.push(monoio::spawn(async move {
                let mut buffer = Vec::with_capacity(BUFFER_BYTES);
                loop {
                    let (read, filled) = stream.read(buffer).await;
                    if !read.is_ok_and(|bytes| bytes > 0) {
                        return;
                    }
                    let (written, emptied) = stream.write_all(filled).await;
                    if written.is_err() {
                        return;
                    }
                    buffer = emptied;
                    buffer.clear();
                }
            }));
        }
        for task in tasks {
            task.await;
        }
    });
}

fn on_tokio(listener: TcpListener) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            tasks.push(tokio::spawn(async move {
                let mut buffer = vec![0; BUFFER_BYTES];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..bytes]).await.is_err() {
                        return;
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// A server thread with all its connections.
struct RunningServer {
    clients: Vec<TcpStream>,
    server: thread::JoinHandle<()>,
    clock: ThreadCpuClock,
}

impl RunningServer {
    fn start(serve: EchoServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let (tell, received) = mpsc::channel();
        let server = thread::spawn(move || {
            tell.send(ThreadCpuClock::of_this_thread()).unwrap();
            serve(listener);
        });
        let clients = (0..CONNECTIONS)
            .map(|_| {
                let client = TcpStream::connect(address).unwrap();
                client.set_nodelay(true).unwrap();
                client
            })
            .collect();
        let mut running = Self { clients, server, clock: received.recv().unwrap() };
        running.round(); // every connection is open and warm
        running
    }

    fn round(&mut self) {
        let message = [b'x'; MESSAGE_BYTES];
        for client in &mut self.clients {
            client.write_all(&message).unwrap();
        }
        let mut answer = [0; MESSAGE_BYTES];
        for client in &mut self.clients {
            client.read_exact(&mut answer).unwrap();
            assert_eq!(answer, message);
        }
    }

    fn stop(self) {
        drop(self.clients);
        self.server.join().unwrap();
    }
}

/// The CPU time of one thread, as the kernel counts it, in nanoseconds.
struct ThreadCpuClock(PathBuf);

impl ThreadCpuClock {
    fn of_this_thread() -> Self {
        Self(Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap()).join("schedstat"))
    }

    /// Works only while the thread is alive.
    fn now(&self) -> Duration {
        let text = fs::read_to_string(&self.0).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }
}

fn rounds(c: &mut Criterion) {
    let mut group = c.benchmark_group("peers");
    group.throughput(Throughput::Elements(CONNECTIONS as u64));
    for (name, serve) in PEERS {
        let mut running = RunningServer::start(serve);
        group.bench_function(name, |b| b.iter(|| running.round()));
        running.stop();
    }
    group.finish();
    compare();
}

/// Prints CPU of the server's thread and wall time, per echo: medians of the trials, and our ratio to each
/// peer.
fn compare() {
    let mut cpu = [const { Vec::new() }; PEERS.len()];
    let mut wall = [const { Vec::new() }; PEERS.len()];
    for _ in 0..TRIALS {
        for (at, (_, serve)) in PEERS.into_iter().enumerate() {
            let mut running = RunningServer::start(serve);
            let (cpu_before, begin) = (running.clock.now(), Instant::now());
            (0..ROUNDS).for_each(|_| running.round());
            wall[at].push(begin.elapsed());
            cpu[at].push(running.clock.now() - cpu_before);
            running.stop();
        }
    }
    let per_echo = |times: &mut Vec<Duration>| {
        times.sort();
        times[TRIALS / 2].as_nanos() as f64 / f64::from(ROUNDS) / CONNECTIONS as f64
    };
    let (cpu, wall) = (cpu.each_mut().map(per_echo), wall.each_mut().map(per_echo));
    for (at, (name, _)) in PEERS.into_iter().enumerate() {
        println!(
            "{name:>7}: {:6.0} ns CPU, {:6.0} ns wall an echo; ours to it: CPU {:.2}, wall {:.2}",
            cpu[at],
            wall[at],
            cpu[0] / cpu[at],
            wall[0] / wall[at],
        );
    }
}

criterion_group!(benches, rounds);
criterion_main!(benches);
