//! Allocations of a warm proxied request and memory of an idle connection, counted on the kernel driver, with client
//! and instance on other threads that allocate nothing meanwhile.
//!
//! `WHERE=1 cargo test -p sluicegate-dataplane --test allocations` writes `dhat-heap.json`, which names every
//! allocation site (open it in dhat's viewer).
#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use sluicegate_dataplane::core::{CoreConfig, CoreLimits, StopSignal, run};
use sluicegate_dataplane::signal::SignalQueue;
use sluicegate_dataplane::table::{Route, RoutingTable};
use sluicegate_dataplane::table_publisher::TablePublisher;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Enough that occasional allocations (a list that grows) are a fraction of one per request.
const REQUESTS: u64 = 2_000;
/// First requests, which open the connection to the instance and size the buffers.
const WARM_UP: u64 = 200;
/// Allocations of a hundred requests: less than one each. Only ever lower it.
const PER_HUNDRED_MAX: u64 = 2;

const REQUEST: &[u8] =
    b"GET /orders/4711 HTTP/1.1\r\nHost: shop.example.com\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 128\r\n\r\n\
    ................................................................................................................................";

/// Kept open, each after one request.
const IDLE: usize = 1_000;
/// Total for an idle connection. The connection tracker and other lists have spare capacity.
const BYTES_PER_IDLE_MAX: usize = 4 * 1024;

/// The counts are per process: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn warm_request_allocates_almost_nothing() {
    let _lock = ONE_AT_A_TIME.lock();
    let where_from = std::env::var_os("WHERE").is_some();
    let profile = if where_from {
        dhat::Profiler::builder().trim_backtraces(Some(30)).build()
    } else {
        dhat::Profiler::builder().testing().build()
    };
    let fixture = AllocationFixture::open();
    let mut client = TcpStream::connect(fixture.address).unwrap();

    (0..WARM_UP).for_each(|_| ask(&mut client));
    let (blocks_before, bytes_before) = taken(where_from);
    (0..REQUESTS).for_each(|_| ask(&mut client));
    let (blocks, bytes) = taken(where_from);

    drop(client);
    fixture.close();
    drop(profile);
    let (blocks, bytes) = (blocks - blocks_before, bytes - bytes_before);
    println!(
        "{blocks} allocations, {bytes} bytes in {REQUESTS} requests: {:.2} and {} bytes each",
        blocks as f64 / REQUESTS as f64,
        bytes / REQUESTS,
    );
    assert!(blocks * 100 / REQUESTS <= PER_HUNDRED_MAX, "{blocks} allocations in {REQUESTS} requests");
}

#[test]
fn idle_connection_takes_little_more_than_4_kib() {
    let _lock = ONE_AT_A_TIME.lock();
    let _profile = dhat::Profiler::builder().testing().build();
    let fixture = AllocationFixture::open();
    let mut first = TcpStream::connect(fixture.address).unwrap();
    (0..WARM_UP).for_each(|_| ask(&mut first));

    let mut idle = Vec::with_capacity(IDLE);
    let before = dhat::HeapStats::get().curr_bytes;
    for _ in 0..IDLE {
        let mut client = TcpStream::connect(fixture.address).unwrap();
        ask(&mut client);
        idle.push(client);
    }
    ask(&mut first); // the core has made the last one idle
    let bytes = (dhat::HeapStats::get().curr_bytes - before) / IDLE;

    drop((first, idle));
    fixture.close();
    println!("{bytes} bytes an idle connection");
    assert!(bytes <= BYTES_PER_IDLE_MAX, "{bytes} bytes an idle connection");
}

/// A core on its own thread, with an instance behind it.
struct AllocationFixture {
    address: SocketAddr,
    stop: Arc<StopSignal>,
    tables: Arc<TablePublisher>,
    core: JoinHandle<()>,
}

impl AllocationFixture {
    fn open() -> Self {
        let http = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = http.local_addr().unwrap();
        let any_host = Some(Arc::new(Route::to_addresses("*", &[instance()])));
        let tables = TablePublisher::new(RoutingTable { any_host, ..RoutingTable::default() });
        let stop = Arc::new(StopSignal::default());
        let config = CoreConfig {
            queries: None,
            index: 0,
            http,
            events: None,
            events_tls: None,
            make_events: None,
            tables: Arc::clone(&tables),
            signals: SignalQueue::new(|| {}),
            stop: Arc::clone(&stop),
            counters: Arc::default(),
            limits: CoreLimits::default(),
            seed: 1,
            https: None,
            private: None,
            private_https: None,
            cluster_local: None,
            up: Box::new(|| ()),
        };
        let core = thread::spawn(move || run(config).unwrap());
        Self { address, stop, tables, core }
    }

    fn close(self) {
        self.stop.signal(&self.tables);
        self.core.join().unwrap();
    }
}

fn taken(where_from: bool) -> (u64, u64) {
    if where_from {
        return (0, 0); // in this mode dhat records the sites instead of counts
    }
    let stats = dhat::HeapStats::get();
    (stats.total_blocks, stats.total_bytes)
}

fn ask(client: &mut TcpStream) {
    client.write_all(REQUEST).unwrap();
    let mut answer = [0; 1024];
    let mut bytes = 0;
    while !answer[..bytes].ends_with(&[b'.'; 128]) {
        let more = client.read(&mut answer[bytes..]).unwrap();
        assert!(more > 0, "{}", String::from_utf8_lossy(&answer[..bytes]));
        bytes += more;
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

/// Answers each request of each connection, without a heap buffer.
fn instance() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let (mut held, mut bytes) = ([0; 4096], 0);
                while let Ok(more @ 1..) = stream.read(&mut held[bytes..]) {
                    bytes += more;
                    if held[..bytes].ends_with(b"\r\n\r\n") {
                        bytes = 0;
                        stream.write_all(ANSWER).unwrap();
                    }
                }
            });
        }
    });
    address
}
