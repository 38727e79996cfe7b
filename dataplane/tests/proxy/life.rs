//! Drain, several cores, bad weather: what holds over a core's life.

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
    ProxyFixture, Reply, backend, in_every_storm, in_house, instance, ok, on_every_machine, raw_instance, read_through,
};

/// A request in flight is finished, an idle connection closed, a newcomer refused.
#[test]
fn a_stopping_core_finishes_what_it_began_and_takes_nothing_more() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        let began = Rc::new(Cell::new(false));
        let told = Rc::clone(&began);
        let address = instance(&house.ring, move |_| {
            told.set(true);
            let mut replies = vec![Reply::Wait(Duration::from_millis(30))];
            replies.extend(ok("late"));
            replies
        });
        house.publish("app", backend(&[address], 0, None));
        let mut idle = house.client().await;
        assert_eq!(idle.get("app", "/").await.body, b"late");
        began.set(false);
        let mut busy = house.client().await;
        busy.send("GET / HTTP/1.1\r\nHost: app\r\n\r\nGET /next HTTP/1.1\r\nHost: app\r\n\r\n").await;
        while !began.get() {
            house.pause(1).await;
        }

        house.say_stop();
        assert_eq!(idle.rest().await, "");
        let all = busy.rest().await;
        assert!(all.ends_with("late") && all.matches("HTTP/1.1 200 OK").count() >= 1, "{all}");
        assert!(all.contains("Connection: close"));
        assert!(ring::RingStream::connect(&house.ring, house.address).await.is_err());
    });
}

/// A process with `cores` cores on one table, and what tells them to stop.
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
                    questions: None,
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

/// A client of its own thread; the first line of the answer.
fn get(address: SocketAddr) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n").unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        all.lines().next().unwrap_or_default().to_owned()
    })
}

/// APP-01, APP-08: a place that one core gives back, and a table, reach guests on the others.
#[test]
fn a_place_given_back_on_one_core_wakes_a_guest_on_another() {
    let process = TestProcess::start(3);
    let instance = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = instance.local_addr().unwrap();
    let load = Arc::new(BackendLoad::default());
    let sleeping = || Backend { load: Arc::clone(&load), ..backend(&[], 1, Some(Duration::from_secs(20))) };
    process.publish(sleeping());
    let clients: Vec<_> = (0..9).map(|n| get(process.addresses[n % 3])).collect();
    while load.waiting.load(Relaxed) < 9 {
        thread::yield_now();
    }
    let ready = backend(&[address], 1, Some(Duration::from_secs(20)));
    process.publish(Backend { load: Arc::clone(&load), ..ready });

    // One connection at a time is all that concurrency 1 allows; the instance ends each.
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

/// Connections break anywhere: whatever a client sees, no place, seat or guest is lost.
#[test]
fn in_a_storm_every_place_and_seat_comes_back() {
    in_every_storm(|seed| {
        let world = Simulation::new(seed, FaultProfile::calm());
        let weather = FaultProfile {
            resets: 20_000,
            segment_bytes_max: 40,
            latency: Duration::from_micros(10)..=Duration::from_micros(500),
            ..FaultProfile::calm()
        };
        let world = Rc::new(world);
        let machine = Rc::clone(&world);
        let mut limits = CoreLimits::default();
        limits.http.stall_max = Duration::from_secs(2);
        limits.http.idle_max = Duration::from_secs(2);
        in_house(&world.ring(), &limits, move |house| storm(house, machine, weather));
    });
}

async fn storm(house: ProxyFixture, world: Rc<Simulation>, weather: FaultProfile) {
    let instances: Vec<_> = (0..2).map(|_| instance(&house.ring, |seen| ok(&"x".repeat(seen.body.len())))).collect();
    let load = Arc::new(BackendLoad::default());
    let app = backend(&instances, 1, Some(Duration::from_secs(1)));
    house.publish("app", Backend { load: Arc::clone(&load), ..app });
    world.set_faults(weather);
    let open = Rc::new(Cell::new(0));
    for n in 0..40 {
        let Ok(stream) = ring::RingStream::connect(&house.ring, house.address).await else { continue };
        open.set(open.get() + 1);
        let open = Rc::clone(&open);
        house.ring.spawn(async move {
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
        house.pause(10).await;
    }
    world.set_faults(FaultProfile::calm());
    let table = house.tables.load();
    for endpoint in &table.hosts["app"].splits[0].backend.endpoints {
        assert_eq!(endpoint.load.in_flight(), 0);
    }
    // ... and the core still serves.
    assert!(house.client().await.get("app", "/").await.head.starts_with("HTTP/1.1 200 "));
}

/// A client whose connection breaks gives its seat back before its patience ends.
#[test]
fn a_guest_whose_connection_breaks_leaves_at_once() {
    for seed in 0..10 {
        let world = Rc::new(Simulation::new(seed, FaultProfile::calm()));
        let machine = Rc::clone(&world);
        in_house(&world.ring(), &CoreLimits::default(), move |house| async move {
            let load = Arc::new(BackendLoad::default());
            let asleep = backend(&[], 0, Some(Duration::from_secs(3600)));
            house.publish("app", Backend { load: Arc::clone(&load), ..asleep });
            let client = house.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
            while load.waiting.load(Relaxed) == 0 {
                house.pause(1).await;
            }
            let before = house.ring.now();
            machine.set_faults(FaultProfile { resets: 1_000_000, ..FaultProfile::calm() });
            let _ = client.stream.send(b"G".to_vec()).await;
            while load.waiting.load(Relaxed) > 0 {
                house.pause(1).await;
            }
            machine.set_faults(FaultProfile::calm());
            assert!(house.ring.now() - before < Duration::from_secs(60));
        });
    }
}

/// A client that closes must not hold a seat for as long as its patience would have been. One that merely says
/// no more looks the same; Go's server, and so Knative's activator, takes it for gone as well. Bytes that nobody reads while
/// it waits once hid its end.
#[test]
fn a_guest_who_closes_its_side_leaves_at_once() {
    on_every_machine(&CoreLimits::default(), async |house: ProxyFixture| {
        for behind in ["", "Content-Length: 9\r\n\r\nhalf", "\r\nGET /next HTTP/1.1\r\nHost: app\r\n\r\n"] {
            let load = Arc::new(BackendLoad::default());
            let asleep = backend(&[], 0, Some(Duration::from_secs(3600)));
            house.publish("app", Backend { load: Arc::clone(&load), ..asleep });
            let mut client = house.client().await;
            let end = if behind.is_empty() { "\r\n" } else { behind };
            client.send(format!("PUT / HTTP/1.1\r\nHost: app\r\n{end}")).await;
            while load.waiting.load(Relaxed) == 0 {
                house.pause(1).await;
            }
            client.stream.shutdown_write().await.unwrap();
            while load.waiting.load(Relaxed) > 0 {
                house.pause(1).await;
            }
            assert_eq!(client.rest().await, "", "{behind:?}");
        }
    });
}

/// How long the instances of these tests may be silent to a client that has ended its side.
fn short_silence() -> CoreLimits {
    let mut limits = CoreLimits::default();
    limits.http.half_closed_silence_max = Duration::from_millis(600);
    limits
}

/// A client that closed its connection was once waited for until its instance had answered, which one that listens for
/// news never does: the place was nobody's for good.
#[test]
fn a_client_that_has_closed_holds_no_place_of_a_silent_instance() {
    on_every_machine(&short_silence(), async |house: ProxyFixture| {
        for begun in ["", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n"] {
            let closed = Rc::new(Cell::new(false));
            let told = Rc::clone(&closed);
            let address = raw_instance(&house.ring, move |stream| {
                let told = Rc::clone(&told);
                Box::pin(async move {
                    read_through(&stream, b"\r\n\r\n").await;
                    stream.send(begun.as_bytes().to_vec()).await.unwrap();
                    while stream.recv().await.is_ok_and(|bytes| !bytes.is_empty()) {}
                    told.set(true);
                })
            });
            let load = Arc::new(BackendLoad::default());
            house.publish("app", Backend { load: Arc::clone(&load), ..backend(&[address], 1, None) });
            let client = house.client().await;
            client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
            while load.demand() == 0 {
                house.pause(1).await;
            }
            drop(client);
            let before = house.ring.now();
            while load.demand() > 0 || !closed.get() {
                house.pause(1).await;
            }
            assert!(house.ring.now() - before < Duration::from_secs(30), "{begun:?}");
        }
    });
}

/// It may have said only that it sends no more. A slow answer is for it as long as something comes.
#[test]
fn a_client_that_has_ended_its_side_is_served_while_its_instance_speaks() {
    on_every_machine(&short_silence(), async |house: ProxyFixture| {
        let address = instance(&house.ring, |_| {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            let mut replies = vec![Reply::Wait(Duration::from_millis(200)), Reply::Send(head)];
            for _ in 0..5 {
                replies.push(Reply::Wait(Duration::from_millis(200)));
                replies.push(Reply::Send(b"1\r\nx\r\n".to_vec()));
            }
            replies.push(Reply::Send(b"0\r\n\r\n".to_vec()));
            replies
        });
        house.publish("app", backend(&[address], 1, None));
        let mut client = house.client().await;
        client.send("GET / HTTP/1.1\r\nHost: app\r\n\r\n").await;
        client.stream.shutdown_write().await.unwrap();
        let seen = client.message().await.expect("a whole answer");
        assert_eq!(seen.body, b"xxxxx");
    });
}

/// Words of HTTP in any order, with noise between them.
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

/// Neither a client's bytes nor an instance's make a core panic, hang on to a place, or stop serving.
#[test]
fn noise_from_both_sides_is_survived() {
    for seed in 0..20 {
        let mut limits = CoreLimits::default();
        limits.http.stall_max = Duration::from_secs(1);
        limits.http.head_max = Duration::from_secs(1);
        in_house(&Simulation::new(seed, FaultProfile::calm()).ring(), &limits, move |house| async move {
            let rng = std::cell::RefCell::new(fastrand::Rng::with_seed(seed));
            let address = instance(&house.ring, move |_| vec![Reply::Send(noise(&mut rng.borrow_mut())), Reply::Close]);
            let good = instance(&house.ring, |_| ok("fine"));
            let load = Arc::new(BackendLoad::default());
            let app = backend(&[address], 3, Some(Duration::from_secs(1)));
            house.publish("app", Backend { load: Arc::clone(&load), ..app });
            let mut rng = fastrand::Rng::with_seed(!seed);
            for _ in 0..50 {
                let stream = ring::RingStream::connect(&house.ring, house.address).await.unwrap();
                let _ = stream.send(noise(&mut rng)).await;
                let _ = stream.shutdown_write().await;
                while stream.recv().await.is_ok_and(|chunk| !chunk.is_empty()) {}
            }
            assert_eq!(load.demand(), 0);
            house.publish("app", backend(&[good], 0, None));
            assert_eq!(house.client().await.get("app", "/").await.body, b"fine");
        });
    }
}
