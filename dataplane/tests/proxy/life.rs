//! Drain, several cores, network faults: properties over a core's life.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use ring::sim::{FaultProfile, Simulation};
use sluicegate_dataplane::core::{CoreConfig, CoreLimits, StopSignal, run};
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::signal::SignalQueue;
use sluicegate_dataplane::table::{Backend, BackendShare, Route, RoutingTable};
use sluicegate_dataplane::table_publisher::TablePublisher;

use crate::fixture::{
    ProxyFixture, Reply, backend, for_every_seed, instance, ok, on_every_driver, raw_instance, read_through,
    run_with_proxy,
};

/// A request in flight is finished, an idle connection closed, a new connection refused.
#[test]
fn draining_core_finishes_requests_and_refuses_new_ones() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        let began = Rc::new(Cell::new(false));
        let observed = Rc::clone(&began);
        let address = instance(&fixture.ring, move |_| {
            observed.set(true);
            let mut replies = vec![Reply::Wait(Duration::from_millis(30))];
            replies.extend(ok("late"));
            replies
        });
        fixture.publish("app", backend(&[address], 0, None));
        let mut idle = fixture.client().await;
        assert_eq!(idle.get("app", "/").await.body, b"late");
        began.set(false);
        let mut busy = fixture.client().await;
        busy.send("GET / HTTP/1.1\r\nHost: app\r\n\r\nGET /next HTTP/1.1\r\nHost: app\r\n\r\n").await;
        while !began.get() {
            fixture.pause(1).await;
        }

        fixture.stop();
        assert_eq!(idle.rest().await, "");
        let all = busy.rest().await;
        assert!(all.ends_with("late") && all.matches("HTTP/1.1 200 OK").count() >= 1, "{all}");
        assert!(all.contains("Connection: close"));
        assert!(ring::RingStream::connect(&fixture.ring, fixture.address).await.is_err());
    });
}

/// A process with several cores on one table, and its stop signal.
struct TestProcess {
    tables: Arc<TablePublisher>,
    addresses: Vec<SocketAddr>,
    stop: Arc<StopSignal>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl TestProcess {
    fn start(cores: usize) -> Self {
        let tables = TablePublisher::new(RoutingTable::default());
        let stop = Arc::new(StopSignal::default());
        let mut addresses = Vec::new();
        let mut threads = Vec::new();
        for index in 0..cores {
            let http = TcpListener::bind("127.0.0.1:0").unwrap();
            addresses.push(http.local_addr().unwrap());
            let (tables, stop) = (Arc::clone(&tables), Arc::clone(&stop));
            threads.push(thread::spawn(move || {
                run(CoreConfig {
                    queries: None,
                    index,
                    http,
                    events: None,
                    https: None,
                    private: None,
                    private_https: None,
                    events_tls: None,
                    cluster_local: None,
                    make_events: None,
                    tables,
                    signals: SignalQueue::new(|| {}),
                    stop,
                    counters: Arc::default(),
                    limits: CoreLimits::default(),
                    seed: index as u64,
                    up: Box::new(|| ()),
                })
                .unwrap();
            }));
        }
        Self { tables, addresses, stop, threads }
    }

    fn publish(&self, backend: Backend) {
        let mut table = RoutingTable::default();
        let route = Route::of(vec![BackendShare::new(1, Arc::new(backend))]);
        table.hosts.insert("app", Arc::new(route));
        self.tables.publish(table);
    }

    fn end(self) {
        self.stop.signal(&self.tables);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// A client on its own thread; returns the first line of the response.
fn get(address: SocketAddr) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n").unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        all.lines().next().unwrap_or_default().to_owned()
    })
}

/// APP-01, APP-08: a permit released on one core, and a new table, reach waiting requests on the others.
#[test]
fn released_permit_wakes_a_request_on_another_core() {
    let process = TestProcess::start(3);
    let instance = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = instance.local_addr().unwrap();
    let load = Arc::new(BackendLoad::default());
    let scaled_to_zero = || Backend { load: Arc::clone(&load), ..backend(&[], 1, Some(Duration::from_secs(20))) };
    process.publish(scaled_to_zero());
    let clients: Vec<_> = (0..9).map(|n| get(process.addresses[n % 3])).collect();
    while load.waiting.load(Relaxed) < 9 {
        thread::yield_now();
    }
    let ready = backend(&[address], 1, Some(Duration::from_secs(20)));
    process.publish(Backend { load: Arc::clone(&load), ..ready });

    // Concurrency 1 allows one connection at a time; the instance closes each.
    for _ in 0..9 {
        let (mut stream, _) = instance.accept().unwrap();
        let mut head = [0; 1024];
        assert!(stream.read(&mut head).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    }
    for client in clients {
        assert_eq!(client.join().unwrap(), "HTTP/1.1 200 OK");
    }
    process.end();
    assert_eq!(load.demand(), 0);
}

/// Connections break anywhere: whatever a client sees, no permit, guard or queue entry is leaked.
#[test]
fn faults_leak_no_permit_or_connection_guard() {
    for_every_seed(|seed| {
        let simulation = Simulation::new(seed, FaultProfile::calm());
        let faults = FaultProfile {
            resets: 20_000,
            segment_bytes_max: 40,
            latency: Duration::from_micros(10)..=Duration::from_micros(500),
            ..FaultProfile::calm()
        };
        let simulation = Rc::new(simulation);
        let machine = Rc::clone(&simulation);
        let mut limits = CoreLimits::default();
        limits.http.stall_max = Duration::from_secs(2);
        limits.http.idle_max = Duration::from_secs(2);
        run_with_proxy(&simulation.ring(), &limits, move |fixture| run_with_faults(fixture, machine, faults));
    });
}

async fn run_with_faults(fixture: ProxyFixture, simulation: Rc<Simulation>, faults: FaultProfile) {
    let instances: Vec<_> = (0..2).map(|_| instance(&fixture.ring, |seen| ok(&"x".repeat(seen.body.len())))).collect();
    let load = Arc::new(BackendLoad::default());
    let app = backend(&instances, 1, Some(Duration::from_secs(1)));
    fixture.publish("app", Backend { load: Arc::clone(&load), ..app });
    simulation.set_faults(faults);
    let open = Rc::new(Cell::new(0));
    for n in 0..40 {
        let Ok(stream) = ring::RingStream::connect(&fixture.ring, fixture.address).await else { continue };
        open.set(open.get() + 1);
        let open = Rc::clone(&open);
        fixture.ring.spawn(async move {
            let length = n * 37 % 400;
            let request = format!(
                "PUT / HTTP/1.1\r\nHost: app\r\nContent-Length: {length}\r\n\r\n{}GET / HTTP/1.1\r\nHost: app\r\n\r\n",
                "y".repeat(length)
            );
            let _ = stream.send(request.into_bytes()).await;
            let _ = stream.shutdown_write().await;
            while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
            open.set(open.get() - 1);
        });
    }
    while open.get() > 0 || load.demand() > 0 {
        fixture.pause(10).await;
    }
    simulation.set_faults(FaultProfile::calm());
    let table = fixture.tables.load();
    for endpoint in &table.hosts["app"].splits[0].backend.endpoints {
        assert_eq!(endpoint.load.in_flight(), 0);
    }
    // The core still serves.
    assert!(fixture.client().await.get("app", "/").await.head.starts_with("HTTP/1.1 200 "));
}

/// A client whose connection breaks leaves the queue before its timeout.
#[test]
fn broken_connection_leaves_the_queue_at_once() {
    for seed in 0..10 {
        let simulation = Rc::new(Simulation::new(seed, FaultProfile::calm()));
        let machine = Rc::clone(&simulation);
        run_with_proxy(&simulation.ring(), &CoreLimits::default(), move |fixture| async move {
            let load = Arc::new(BackendLoad::default());
            let scaled_to_zero = backend(&[], 0, Some(Duration::from_secs(3600)));
            fixture.publish("app", Backend { load: Arc::clone(&load), ..scaled_to_zero });
            let client = fixture.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
            while load.waiting.load(Relaxed) == 0 {
                fixture.pause(1).await;
            }
            let before = fixture.ring.now();
            machine.set_faults(FaultProfile { resets: 1_000_000, ..FaultProfile::calm() });
            let _ = client.stream.send(b"G".to_vec()).await;
            while load.waiting.load(Relaxed) > 0 {
                fixture.pause(1).await;
            }
            machine.set_faults(FaultProfile::calm());
            assert!(fixture.ring.now() - before < Duration::from_secs(60));
        });
    }
}

/// A client that closes must not hold a queue entry until its timeout. A half-closed connection looks the same; Go's
/// server, and so Knative's activator, treats it as gone as well. Unread bytes of a waiting request once hid its close.
#[test]
fn closed_client_leaves_the_queue_at_once() {
    on_every_driver(&CoreLimits::default(), async |fixture: ProxyFixture| {
        for behind in ["", "Content-Length: 9\r\n\r\nhalf", "\r\nGET /next HTTP/1.1\r\nHost: app\r\n\r\n"] {
            let load = Arc::new(BackendLoad::default());
            let scaled_to_zero = backend(&[], 0, Some(Duration::from_secs(3600)));
            fixture.publish("app", Backend { load: Arc::clone(&load), ..scaled_to_zero });
            let mut client = fixture.client().await;
            let end = if behind.is_empty() { "\r\n" } else { behind };
            client.send(format!("PUT / HTTP/1.1\r\nHost: app\r\n{end}")).await;
            while load.waiting.load(Relaxed) == 0 {
                fixture.pause(1).await;
            }
            client.stream.shutdown_write().await.unwrap();
            while load.waiting.load(Relaxed) > 0 {
                fixture.pause(1).await;
            }
            assert_eq!(client.rest().await, "", "{behind:?}");
        }
    });
}

/// How long the instances of these tests may be silent to a half-closed client.
fn short_silence() -> CoreLimits {
    let mut limits = CoreLimits::default();
    limits.http.half_closed_silence_max = Duration::from_millis(600);
    limits
}

/// The request of a client that had closed its connection once ended only when its instance answered, which an event
/// stream never does: the permit was leaked.
#[test]
fn closed_client_releases_its_permit_of_a_silent_instance() {
    on_every_driver(&short_silence(), async |fixture: ProxyFixture| {
        for begun in ["", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n"] {
            let closed = Rc::new(Cell::new(false));
            let observed = Rc::clone(&closed);
            let address = raw_instance(&fixture.ring, move |stream| {
                let observed = Rc::clone(&observed);
                Box::pin(async move {
                    read_through(&stream, b"\r\n\r\n").await;
                    stream.send(begun.as_bytes().to_vec()).await.unwrap();
                    while stream.recv().await.is_ok_and(|bytes| !bytes.is_empty()) {}
                    observed.set(true);
                })
            });
            let load = Arc::new(BackendLoad::default());
            fixture.publish("app", Backend { load: Arc::clone(&load), ..backend(&[address], 1, None) });
            let client = fixture.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
            while load.demand() == 0 {
                fixture.pause(1).await;
            }
            drop(client);
            let before = fixture.ring.now();
            while load.demand() > 0 || !closed.get() {
                fixture.pause(1).await;
            }
            assert!(fixture.ring.now() - before < Duration::from_secs(30), "{begun:?}");
        }
    });
}

/// A half-closed client may still read. It gets a slow response as long as bytes arrive.
#[test]
fn half_closed_client_is_served_while_its_instance_sends() {
    on_every_driver(&short_silence(), async |fixture: ProxyFixture| {
        let address = instance(&fixture.ring, |_| {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            let mut replies = vec![Reply::Wait(Duration::from_millis(200)), Reply::Send(head)];
            for _ in 0..5 {
                replies.push(Reply::Wait(Duration::from_millis(200)));
                replies.push(Reply::Send(b"1\r\nx\r\n".to_vec()));
            }
            replies.push(Reply::Send(b"0\r\n\r\n".to_vec()));
            replies
        });
        fixture.publish("app", backend(&[address], 1, None));
        let mut client = fixture.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        client.stream.shutdown_write().await.unwrap();
        let seen = client.message().await.expect("a whole answer");
        assert_eq!(seen.body, b"xxxxx");
    });
}

/// HTTP fragments in any order, with noise between them.
fn noise(rng: &mut fastrand::Rng) -> Vec<u8> {
    const WORDS: [&str; 18] = [
        "GET / HTTP/1.1\r\n",
        "POST /a HTTP/1.1\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "Host: app\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Expect: 100-continue\r\n",
        "X: y\n",
        "\r\n",
        "\r\n\r\n",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "hello",
        "ffffffffffffffff\r\n",
        "Connection: x, upgrade\r\nUpgrade: websocket\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n",
    ];
    let mut bytes = Vec::new();
    for _ in 0..rng.usize(1..12) {
        match rng.usize(..8) {
            0 => bytes.extend((0..rng.usize(1..20)).map(|_| rng.u8(..))),
            1..=3 => bytes.extend_from_slice(b"GET / HTTP/1.1\r\nHost: app\r\n\r\n"),
            _ => bytes.extend_from_slice(WORDS[rng.usize(..WORDS.len())].as_bytes()),
        }
    }
    bytes
}

/// No bytes of a client or an instance make a core panic, leak a permit, or stop serving.
#[test]
fn core_survives_noise_from_both_sides() {
    for seed in 0..20 {
        let mut limits = CoreLimits::default();
        limits.http.stall_max = Duration::from_secs(1);
        limits.http.head_max = Duration::from_secs(1);
        run_with_proxy(&Simulation::new(seed, FaultProfile::calm()).ring(), &limits, move |fixture| async move {
            let rng = std::cell::RefCell::new(fastrand::Rng::with_seed(seed));
            let address =
                instance(&fixture.ring, move |_| vec![Reply::Send(noise(&mut rng.borrow_mut())), Reply::Close]);
            let good = instance(&fixture.ring, |_| ok("fine"));
            let load = Arc::new(BackendLoad::default());
            let app = backend(&[address], 3, Some(Duration::from_secs(1)));
            fixture.publish("app", Backend { load: Arc::clone(&load), ..app });
            let mut rng = fastrand::Rng::with_seed(!seed);
            for _ in 0..50 {
                let stream = ring::RingStream::connect(&fixture.ring, fixture.address).await.unwrap();
                let _ = stream.send(noise(&mut rng)).await;
                let _ = stream.shutdown_write().await;
                while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
            }
            assert_eq!(load.demand(), 0);
            fixture.publish("app", backend(&[good], 0, None));
            assert_eq!(fixture.client().await.get("app", "/").await.body, b"fine");
        });
    }
}
