//! A core with instances and clients on one ring, real or simulated. Parses HTTP by itself, so that a bug in the codec
//! cannot hide itself.

use std::cell::Cell;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ring::sim::{FaultProfile, Simulation};
use ring::{Ring, RingListener, RingOptions, RingStream};
use sluicegate_dataplane::core::{CoreConfig, CoreLimits, HttpsListener, StopSignal, run_on};
use sluicegate_dataplane::counters::CoreCounters;
use sluicegate_dataplane::load::BackendLoad;
use sluicegate_dataplane::signal::SignalQueue;
use sluicegate_dataplane::table::{
    Backend, BackendShare, Endpoint, NoEndpointPolicy, Protocol, RequestTimeouts, Route, RoutingTable,
};
use sluicegate_dataplane::table_publisher::TablePublisher;
use sluicegate_dataplane::tls::TlsServerConfig;

/// Limit for the script to end after its core has ended.
const SCRIPT_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The handles of a test.
#[derive(Clone)]
pub(crate) struct ProxyFixture {
    pub ring: Ring,
    pub tables: Arc<TablePublisher>,
    pub signals: SignalQueue,
    pub counters: Arc<CoreCounters>,
    /// The http listener.
    pub address: SocketAddr,
    /// The https listener.
    pub https: SocketAddr,
    /// The cluster-local listener.
    pub private: SocketAddr,
    stop: Arc<StopSignal>,
}

struct StopProxyAtEnd(Arc<StopSignal>, Arc<TablePublisher>);

impl Drop for StopProxyAtEnd {
    fn drop(&mut self) {
        self.0.signal(&self.1);
    }
}

/// Runs `script` against a core, on the kernel driver and on simulated machines with and without network faults.
pub(crate) fn on_every_driver<F: Future<Output = ()> + 'static>(
    limits: &CoreLimits,
    script: impl Fn(ProxyFixture) -> F + Copy + 'static,
) {
    let seeds = seeds(5);
    if std::env::var_os("SEED").is_none() {
        run_with_proxy(&Ring::kernel(RingOptions::default()).unwrap(), limits, script);
    }
    for seed in seeds {
        let _seed = Seed(seed);
        run_with_proxy(&Simulation::new(seed, FaultProfile::calm()).ring(), limits, script);
        run_with_proxy(&Simulation::new(seed, slow_network()).ring(), limits, script);
    }
}

/// `SEED=7 cargo test -p sluicegate-dataplane --test proxy` replays one run, `SEEDS=500` tries more than `usual`.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(usual),
    }
}

/// Runs `test` for each seed: 40 by default.
pub(crate) fn for_every_seed(test: impl Fn(u64)) {
    for seed in seeds(40) {
        let _seed = Seed(seed);
        test(seed);
    }
}

/// Prints the seed when a test fails with it.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with SEED={}", self.0);
        }
    }
}

/// Delays and small segments, but no resets.
fn slow_network() -> FaultProfile {
    FaultProfile {
        segment_bytes_max: 7,
        latency: Duration::from_micros(10)..=Duration::from_micros(300),
        slow_peers: 0,
        resets: 0,
        ..FaultProfile::moderate()
    }
}

pub(crate) fn run_with_proxy<F: Future<Output = ()> + 'static>(
    ring: &Ring,
    limits: &CoreLimits,
    script: impl FnOnce(ProxyFixture) -> F + 'static,
) {
    let http = TcpListener::bind("127.0.0.1:0").unwrap();
    let https = TcpListener::bind("127.0.0.1:0").unwrap();
    let private = TcpListener::bind("127.0.0.1:0").unwrap();
    let private_address = private.local_addr().unwrap();
    let tables = TablePublisher::new(RoutingTable::default());
    let stop = Arc::new(StopSignal::default());
    let https_address = https.local_addr().unwrap();
    let config = CoreConfig {
        queries: None,
        index: 0,
        events: None,
        https: Some(HttpsListener { listener: https, server_config: TlsServerConfig::new(&tables).unwrap() }),
        private: Some(private),
        private_https: None,
        events_tls: None,
        cluster_local: None,
        make_events: None,
        tables: Arc::clone(&tables),
        signals: SignalQueue::new(|| {}),
        stop: Arc::clone(&stop),
        counters: Arc::default(),
        limits: limits.clone(),
        seed: 1,
        up: Box::new(|| ()),
        http,
    };
    let fixture = ProxyFixture {
        ring: ring.clone(),
        tables: Arc::clone(&tables),
        signals: config.signals.clone(),
        counters: Arc::clone(&config.counters),
        address: config.http.local_addr().unwrap(),
        https: https_address,
        private: private_address,
        stop: Arc::clone(&stop),
    };
    let done = Rc::new(Cell::new(false));
    let observed = Rc::clone(&done);
    let counters = Arc::clone(&fixture.counters);
    ring.spawn(async move {
        let _stop = StopProxyAtEnd(stop, tables);
        script(fixture).await;
        observed.set(true);
    });
    run_on(ring, config).unwrap();
    // The last bytes of the core may still be in flight to a client of the script.
    let _ = ring.block_on(ring.timeout(SCRIPT_ENDS_WITHIN, async {
        while !done.get() {
            ring.sleep(Duration::from_millis(1)).await;
        }
    }));
    assert!(done.get(), "the script failed, see above");
    assert_eq!(ring.panicked(), 0, "a task panicked, see above");
    ring.shutdown();
    assert_eq!(counters.connections_open.load(std::sync::atomic::Ordering::Relaxed), 0);
}

impl ProxyFixture {
    pub(crate) fn stop(&self) {
        self.stop.signal(&self.tables);
    }

    /// One host, one backend.
    pub(crate) fn publish(&self, host: &str, backend: Backend) {
        let mut table = RoutingTable::default();
        let route = Route::of(vec![BackendShare::new(1, Arc::new(backend))]);
        table.hosts.insert(host, Arc::new(route));
        self.tables.publish(table);
    }

    pub(crate) async fn client(&self) -> ProxyTestClient {
        self.client_of(self.address).await
    }

    /// A client of another listener of the core.
    pub(crate) async fn client_of(&self, address: SocketAddr) -> ProxyTestClient {
        ProxyTestClient { stream: RingStream::connect(&self.ring, address).await.unwrap(), held: Vec::new() }
    }

    pub(crate) async fn pause(&self, millis: u64) {
        self.ring.sleep(Duration::from_millis(millis)).await;
    }
}

/// A backend of these instances; `waits`: how long requests may wait for one.
pub(crate) fn backend(instances: &[SocketAddr], concurrency_max: u32, waits: Option<Duration>) -> Backend {
    Backend {
        key: "default/app".into(),
        endpoints: instances.iter().map(|address| Arc::new(Endpoint::new(*address))).collect(),
        concurrency_max,
        when_empty: waits.map_or(NoEndpointPolicy::Refuse, |timeout| NoEndpointPolicy::Wait { timeout }),
        protocol: Protocol::Http1,
        tls: None,
        timeouts: RequestTimeouts::NONE,
        proxy_protocol: None,
        load: Arc::new(BackendLoad::default()),
    }
}

/// A listener on its own port. Not `RingListener::bind`: a simulated machine assigns ports in order, and does not know
/// that the core's listener uses a port number of the real machine.
pub(crate) fn listener(ring: &Ring) -> RingListener {
    loop {
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        // A simulated machine only takes the number, so the same one may come again and is rejected.
        if let Ok(listener) = RingListener::from_std(ring, own) {
            return listener;
        }
    }
}

/// An address without a listener.
pub(crate) async fn unused_address(ring: &Ring) -> SocketAddr {
    let listener = listener(ring);
    let address = listener.local_addr().unwrap();
    listener.close().await.unwrap();
    address
}

/// A request as received by an instance.
#[derive(Debug)]
pub(crate) struct Seen {
    pub head: String,
    pub body: Vec<u8>,
}

/// The next action of an instance.
pub(crate) enum Reply {
    Send(Vec<u8>),
    Wait(Duration),
    Do(Box<dyn Fn()>),
    /// Closes the connection.
    Close,
}

pub(crate) type Behaviour = Rc<dyn Fn(&Seen) -> Vec<Reply>>;

/// An instance that reads whole requests and acts as `behaviour` says. It keeps connections open.
pub(crate) fn instance(ring: &Ring, behaviour: impl Fn(&Seen) -> Vec<Reply> + 'static) -> SocketAddr {
    let behaviour: Behaviour = Rc::new(behaviour);
    let task_ring = ring.clone();
    raw_instance(ring, move |stream| {
        let (ring, behaviour) = (task_ring.clone(), Rc::clone(&behaviour));
        Box::pin(async move {
            let mut peer = ProxyTestClient { stream, held: Vec::new() };
            while let Some(seen) = peer.message().await {
                for reply in behaviour(&seen) {
                    match reply {
                        Reply::Send(bytes) => drop(peer.stream.send(bytes).await),
                        Reply::Wait(wait) => ring.sleep(wait).await,
                        Reply::Do(act) => act(),
                        Reply::Close => return,
                    }
                }
            }
        })
    })
}

/// An instance that handles raw connections.
pub(crate) fn raw_instance(
    ring: &Ring,
    serve: impl Fn(RingStream) -> Pin<Box<dyn Future<Output = ()>>> + 'static,
) -> SocketAddr {
    let listener = listener(ring);
    let address = listener.local_addr().unwrap();
    let accepting = ring.clone();
    ring.spawn(async move {
        while let Ok(stream) = listener.accept().await {
            accepting.spawn(serve(stream));
        }
    });
    address
}

pub(crate) fn ok(body: &str) -> Vec<Reply> {
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    vec![Reply::Send(text.into_bytes())]
}

/// Reads up to and including `end`.
pub(crate) async fn read_through(stream: &RingStream, end: &[u8]) -> String {
    let mut read = Vec::new();
    while !read.windows(end.len()).any(|window| window == end) {
        let chunk = stream.recv().await.unwrap();
        assert!(!chunk.is_empty(), "ended after {:?}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&chunk);
    }
    String::from_utf8(read).unwrap()
}

/// One side of a connection, byte by byte.
pub(crate) struct ProxyTestClient {
    pub stream: RingStream,
    held: Vec<u8>,
}

impl ProxyTestClient {
    pub(crate) async fn send(&self, text: impl Into<Vec<u8>>) {
        self.stream.send(text.into()).await.unwrap();
    }

    pub(crate) async fn get(&mut self, host: &str, path: &str) -> Seen {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        self.message().await.unwrap()
    }

    /// The next message; `None` at the end.
    pub(crate) async fn message(&mut self) -> Option<Seen> {
        self.message_of("").await
    }

    /// The next response to a request with this method.
    pub(crate) async fn message_of(&mut self, method: &str) -> Option<Seen> {
        let mut head = String::from_utf8(self.take_through(b"\r\n\r\n").await?).unwrap();
        let fields = head.clone();
        let value = |name: &str| {
            let mut lines = fields.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
        };
        let mut body = Vec::new();
        if method != "HEAD" && value("transfer-encoding").is_some() {
            loop {
                let line = String::from_utf8(self.take_through(b"\r\n").await?).unwrap();
                let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
                if size == 0 {
                    let mut line = self.take_through(b"\r\n").await?;
                    while line != b"\r\n" {
                        head.push_str(std::str::from_utf8(&line).unwrap()); // trailers are appended
                        line = self.take_through(b"\r\n").await?;
                    }
                    break;
                }
                body.extend_from_slice(&self.take(size).await?);
                assert_eq!(self.take(2).await?, b"\r\n");
            }
        } else if method != "HEAD"
            && let Some(length) = value("content-length")
        {
            body = self.take(length.parse().unwrap()).await?;
        }
        Some(Seen { head, body })
    }

    /// Everything up to the end of the connection, or its failure.
    pub(crate) async fn rest(&mut self) -> String {
        while self.more().await {}
        String::from_utf8(std::mem::take(&mut self.held)).unwrap()
    }

    /// The same, or until `millis` have passed.
    pub(crate) async fn rest_or(&mut self, fixture: &ProxyFixture, millis: u64) -> String {
        let _ = fixture.ring.timeout(Duration::from_millis(millis), async { while self.more().await {} }).await;
        String::from_utf8(std::mem::take(&mut self.held)).unwrap()
    }

    pub(crate) async fn take_through(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.held.windows(end.len()).position(|window| window == end) {
                let rest = self.held.split_off(at + end.len());
                return Some(std::mem::replace(&mut self.held, rest));
            }
            if !self.more().await {
                return None;
            }
        }
    }

    async fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.held.len() < count {
            if !self.more().await {
                return None;
            }
        }
        let rest = self.held.split_off(count);
        Some(std::mem::replace(&mut self.held, rest))
    }

    async fn more(&mut self) -> bool {
        match self.stream.recv().await {
            Ok(chunk) => {
                self.held.extend_from_slice(&chunk);
                !chunk.is_empty()
            }
            Err(_) => false,
        }
    }
}
