//! A core with an events listener, subscribers and senders on one ring, real or simulated.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ring::{Ring, RingListener, RingStream};
use sluicegate_dataplane::broker::server::{EventsConfig, OpenLog, make};
use sluicegate_dataplane::core::{CoreConfig, CoreLimits, StopSignal, run_on};
use sluicegate_dataplane::core_relay::CoreRelay;
use sluicegate_dataplane::signal::SignalQueue;
use sluicegate_dataplane::table::{
    BackoffPolicy, DeliveryPolicy, DeliveryTarget, EventFilter, EventStream as Broker, HoldReason, InitialOffset,
    ReplyTarget, RoutingTable, Subscriber,
};
use sluicegate_dataplane::table_publisher::TablePublisher;

pub(crate) const PATH: &str = "/brokers/ns/b";

/// What a test can use.
#[derive(Clone)]
pub(crate) struct EventsFixture {
    pub ring: Ring,
    pub tables: Arc<TablePublisher>,
    pub signals: SignalQueue,
    /// The core's events listener.
    pub events: SocketAddr,
}

struct StopEventsAtEnd(Arc<StopSignal>, Arc<TablePublisher>);

impl Drop for StopEventsAtEnd {
    fn drop(&mut self) {
        self.0.signal(&self.1);
    }
}

/// Runs `script` next to a core whose log is in `folder`; then the core is stopped and drains.
pub(crate) fn with_fixture<F: Future<Output = ()> + 'static>(
    ring: &Ring,
    folder: &Path,
    script: impl FnOnce(EventsFixture) -> F + 'static,
) {
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (tables, signals, stop) =
        (TablePublisher::new(RoutingTable::default()), SignalQueue::new(|| {}), Arc::new(StopSignal::default()));
    let options = wal::LogOptions { segment_bytes: 1 << 20, ..wal::LogOptions::default() };
    let events = EventsConfig {
        core: 0,
        home_folder: OpenLog::open(folder, options).unwrap(),
        others: Vec::new(),
        tables: Arc::clone(&tables),
        signals: signals.clone(),
        counters: Arc::default(),
        relay: CoreRelay::alone(),
        seed: 1,
    };
    let config = CoreConfig {
        queries: None,
        index: 0,
        http: listen(),
        events: Some(listen()),
        https: None,
        private: None,
        private_https: None,
        events_tls: None,
        cluster_local: None,
        make_events: Some(make(events)),
        tables: Arc::clone(&tables),
        signals: signals.clone(),
        stop: Arc::clone(&stop),
        counters: Arc::default(),
        limits: CoreLimits::default(),
        seed: 1,
        up: Box::new(|| ()),
    };
    let address = config.events.as_ref().unwrap().local_addr().unwrap();
    let fixture = EventsFixture { ring: ring.clone(), tables: Arc::clone(&tables), signals, events: address };
    let done = Rc::new(Cell::new(false));
    let received = Rc::clone(&done);
    ring.spawn(async move {
        let _stop = StopEventsAtEnd(stop, tables);
        script(fixture).await;
        received.set(true);
    });
    run_on(ring, config).unwrap();
    assert!(done.get(), "the script failed, see above");
    assert_eq!(ring.panicked(), 0, "a task panicked, see above");
    ring.shutdown();
}

impl EventsFixture {
    pub(crate) fn publish(&self, subscribers: Vec<Subscriber>, change: impl FnOnce(&mut RoutingTable)) -> Arc<Broker> {
        let broker = Arc::new(Broker {
            name: "broker/ns/b/1".into(),
            event_bytes_max: 1 << 20,
            keeping: Default::default(),
            quota: Arc::default(),
            in_order: false,
            is_closed: false,
            guards_loops: true,
            types: None,
            admission: None,
            external: None,
            subscribers: subscribers.into_iter().map(Arc::new).collect(),
            tally: Arc::default(),
        });
        let mut table = RoutingTable::default();
        table.streams.insert(PATH.into(), Arc::clone(&broker));
        change(&mut table);
        self.tables.publish(table);
        broker
    }

    /// Sends a request and returns the whole head of the response.
    pub(crate) async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
        let mut peer = EventPeer::new(RingStream::connect(&self.ring, self.events).await.unwrap());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
        peer.stream.send([head.as_bytes(), body].concat()).await.unwrap();
        peer.message().await.unwrap().head
    }

    /// Waits until `enough`, for at most a minute of the ring's time.
    pub(crate) async fn until(&self, enough: impl Fn() -> bool) {
        for _ in 0..6000 {
            if enough() {
                return;
            }
            self.ring.sleep(Duration::from_millis(10)).await;
        }
        panic!("it did not happen within a minute");
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub head: String,
    pub body: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A subscriber that answers each request with the result of `answer`, and records the requests.
pub(crate) struct Sink {
    pub address: SocketAddr,
    pub seen: Rc<RefCell<Vec<Message>>>,
    /// Requests in flight now, and the maximum.
    open: Rc<Cell<(usize, usize)>>,
}

impl Sink {
    pub(crate) fn new(ring: &Ring, answer: impl Fn(&Message) -> String + 'static) -> Self {
        Self::slow(ring, Duration::ZERO, answer)
    }

    /// Takes `delay` for each request.
    pub(crate) fn slow(ring: &Ring, delay: Duration, answer: impl Fn(&Message) -> String + 'static) -> Self {
        let listener = RingListener::bind(ring, "127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, answer, seen) =
            (listener.local_addr().unwrap(), Rc::new(answer), Rc::new(RefCell::new(Vec::new())));
        let open = Rc::new(Cell::new((0, 0)));
        let (on, kept, inside) = (ring.clone(), Rc::clone(&seen), Rc::clone(&open));
        ring.spawn(async move {
            while let Ok(stream) = listener.accept().await {
                let (answer, kept, inside) = (Rc::clone(&answer), Rc::clone(&kept), Rc::clone(&inside));
                let ring = on.clone();
                on.spawn(async move {
                    let mut peer = EventPeer::new(stream);
                    while let Some(message) = peer.message().await {
                        let (now, most) = inside.get();
                        inside.set((now + 1, most.max(now + 1)));
                        if !delay.is_zero() {
                            ring.sleep(delay).await;
                        }
                        let text = answer(&message);
                        kept.borrow_mut().push(message);
                        inside.set((inside.get().0 - 1, inside.get().1));
                        if peer.stream.send(text.into_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, seen, open }
    }

    pub(crate) fn most_open(&self) -> usize {
        self.open.get().1
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.borrow().len()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.seen.borrow().iter().map(|m| m.header("ce-id").unwrap_or_default().to_owned()).collect()
    }
}

pub(crate) const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";

/// One side of a connection, with its own message parser.
struct EventPeer {
    stream: RingStream,
    held: Vec<u8>,
}

impl EventPeer {
    fn new(stream: RingStream) -> Self {
        Self { stream, held: Vec::new() }
    }

    async fn message(&mut self) -> Option<Message> {
        let end = loop {
            if let Some(at) = self.held.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            self.more().await?;
        };
        let rest = self.held.split_off(end);
        let head = String::from_utf8(std::mem::replace(&mut self.held, rest)).unwrap();
        let mut message = Message { head, body: Vec::new() };
        let length: usize = message.header("content-length").map_or(0, |length| length.parse().unwrap());
        while self.held.len() < length {
            self.more().await?;
        }
        let rest = self.held.split_off(length);
        message.body = std::mem::replace(&mut self.held, rest);
        Some(message)
    }

    async fn more(&mut self) -> Option<()> {
        let chunk = self.stream.recv().await.ok().filter(|chunk| !chunk.is_empty())?;
        self.held.extend_from_slice(&chunk);
        Some(())
    }
}

pub(crate) fn trigger(name: &str, host: &str, port: u16) -> Subscriber {
    Subscriber {
        name: name.into(),
        label: format!("ns/{name}").into(),
        filter: EventFilter::Everything,
        target: DeliveryTarget {
            url: format!("http://{host}:{port}/in?x=1").into(),
            authority: format!("{host}:{port}").into(),
            host: host.into(),
            port,
            path: "/in?x=1".into(),
            is_stream: false,
            access_token: None,
            tls: None,
        },
        reply: ReplyTarget::Reenter,
        dead_letter: None,
        hold: HoldReason::Nothing,
        delivery: DeliveryPolicy {
            retries_max: 3,
            backoff: BackoffPolicy::Linear(Duration::from_millis(20)),
            window: 4,
            ..DeliveryPolicy::ONCE
        },
        initial_offset: InitialOffset::Now,
        tally: Arc::default(),
    }
}

pub(crate) fn event(id: &str) -> String {
    format!("ce-specversion: 1.0\r\nce-id: {id}\r\nce-source: /s\r\nce-type: t\r\n")
}
