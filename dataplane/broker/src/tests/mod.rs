//! The whole broker engine on the simulated machine, with a scripted sender in place of HTTP.

mod deduplication;
mod flow;
mod hold;
mod ingress;
mod matching;
mod order;
mod outcome;
mod rejected;
mod reply;
mod restart;
mod retention;
mod store;
mod topology;
mod turn_budget;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use codec::encode::EncodedEvent;
use codec::http::LocalResponse;
use codec::stored_request::StoredMethod;
use contract::abandoned::AbandonedEvents;
use contract::counters::CoreCounters;
use contract::event_store::ExternalStream;
use contract::event_types::EventTypeRegistry;
use contract::load::ByteQuota;
use contract::post_error::PostError;
use contract::signal::SignalQueue;
use contract::stream_admission::StreamAdmission;
use contract::table::{
    BackoffPolicy, DeliveryPolicy, DeliveryTarget, EventFilter, EventStream, HoldReason, InitialOffset, ReplyTarget,
    RetentionPolicy, RoutingTable, Subscriber,
};
use ring::sim::{FaultProfile, Simulation};
use ring::{Ring, Tick};
use tempfile::TempDir;
use wal::{LogOptions, WriteAheadLog};

use super::delivery::EventSender;
use super::delivery_log;
use super::engine::BrokerEngine;

pub(super) const PATH: &str = "/brokers/ns/b";
/// A broker without subscribers.
pub(super) const QUIET_PATH: &str = "/brokers/ns/quiet";

/// The key that our own streams send to each other.
pub(super) const INSIDE_KEY: &str = "an unguessable key";

/// Answer of the scripted sender.
pub(super) enum ScriptedAnswer {
    Status(u16),
    Answer(LocalResponse),
    Refuse,
    /// Takes this long, then answers with the status.
    After(Duration, u16),
}

/// One request that was made.
#[derive(Clone)]
pub(super) struct RecordedCall {
    pub(super) url: String,
    pub(super) id: String,
    pub(super) ty: String,
    pub(super) at: Tick,
    pub(super) request: EncodedEvent,
}

impl RecordedCall {
    pub(super) fn header(&self, name: &str) -> Option<String> {
        self.request.header(name).map(|value| String::from_utf8(value.to_vec()).unwrap())
    }
}

#[derive(Clone)]
pub(super) struct ScriptedTransport(Rc<ScriptState>);

type Rule = Box<dyn FnMut(&RecordedCall) -> ScriptedAnswer>;

struct ScriptState {
    ring: Ring,
    calls: RefCell<Vec<RecordedCall>>,
    rule: RefCell<Rule>,
    /// Requests in flight at a time, by URL, and the maximum.
    open: RefCell<BTreeMap<String, (u32, u32)>>,
    /// Of every target.
    capacity: Cell<usize>,
}

impl EventSender for ScriptedTransport {
    async fn send(
        &self,
        target: &DeliveryTarget,
        request: EncodedEvent,
        timeout: Duration,
    ) -> Result<LocalResponse, PostError> {
        let answered = self.0.ring.timeout(timeout, self.answer(target, request)).await;
        answered.unwrap_or(Err(PostError::Timeout(timeout)))
    }

    async fn send_stored(
        &self,
        target: &DeliveryTarget,
        _: StoredMethod,
        request: EncodedEvent,
        timeout: Duration,
    ) -> Result<LocalResponse, PostError> {
        self.send(target, request, timeout).await
    }

    fn capacity(&self, _: &DeliveryTarget) -> usize {
        self.0.capacity.get()
    }
}

impl ScriptedTransport {
    async fn answer(&self, target: &DeliveryTarget, request: EncodedEvent) -> Result<LocalResponse, PostError> {
        let text = |name| String::from_utf8(request.header(name).unwrap_or_default().to_vec()).unwrap();
        let call = RecordedCall {
            url: target.url.to_string(),
            id: text("ce-id"),
            ty: text("ce-type"),
            at: self.0.ring.now(),
            request,
        };
        let step = (self.0.rule.borrow_mut())(&call);
        self.0.calls.borrow_mut().push(call);
        let _open = OpenBroker::new(&self.0, &target.url);
        match step {
            ScriptedAnswer::Status(status) => Ok(LocalResponse { status, headers: Vec::new(), body: Bytes::new() }),
            ScriptedAnswer::Answer(answer) => Ok(answer),
            ScriptedAnswer::Refuse => Err(PostError::Transport("connection refused".into())),
            ScriptedAnswer::After(wait, status) => {
                self.0.ring.sleep(wait).await;
                Ok(LocalResponse { status, headers: Vec::new(), body: Bytes::new() })
            }
        }
    }
}

struct OpenBroker<'a>(&'a ScriptState, String);

impl<'a> OpenBroker<'a> {
    fn new(inner: &'a ScriptState, url: &str) -> Self {
        let mut open = inner.open.borrow_mut();
        let (now, most) = open.entry(url.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Self(inner, url.to_owned())
    }
}

impl Drop for OpenBroker<'_> {
    fn drop(&mut self) {
        self.0.open.borrow_mut().get_mut(&self.1).unwrap().0 -= 1;
    }
}

/// One process lifetime of a core's events on one machine.
pub(super) struct BrokerFixture {
    pub(super) simulation: Simulation,
    pub(super) ring: Ring,
    pub(super) events: Rc<BrokerEngine<ScriptedTransport>>,
    pub(super) signals: SignalQueue,
    pub(super) counters: Arc<CoreCounters>,
    script: ScriptedTransport,
    table: RefCell<Arc<RoutingTable>>,
    version: Cell<u64>,
    /// Retention of the stream that is published next.
    pub(super) keeping: Cell<RetentionPolicy>,
    pub(super) quota: RefCell<Arc<ByteQuota>>,
    pub(super) closed: Cell<bool>,
    pub(super) in_order: Cell<bool>,
    pub(super) types: RefCell<Option<Arc<EventTypeRegistry>>>,
    pub(super) admission: RefCell<Option<Arc<StreamAdmission>>>,
    pub(super) external: RefCell<Option<Arc<ExternalStream>>>,
}

pub(super) fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 1 << 20,
        record_bytes_max: 1 << 18,
        log_bytes_max: 16 << 20,
        seed: 5,
        ..LogOptions::default()
    }
}

impl BrokerFixture {
    pub(super) fn new(folder: &Path) -> Self {
        Self::with(folder, &[], 1, FaultProfile::calm(), options())
    }

    pub(super) fn with(folder: &Path, others: &[&Path], seed: u64, faults: FaultProfile, options: LogOptions) -> Self {
        let simulation = Simulation::new(seed, faults);
        let ring = simulation.ring();
        let open = |folder: &Path| WriteAheadLog::open(folder, options.clone()).unwrap().0;
        let script = ScriptedTransport(Rc::new(ScriptState {
            ring: ring.clone(),
            calls: RefCell::default(),
            rule: RefCell::new(Box::new(|_| ScriptedAnswer::Status(202))),
            open: RefCell::default(),
            capacity: Cell::new(0),
        }));
        let others = others.iter().map(|folder| open(folder)).collect();
        let events = BrokerEngine::open(&ring, open(folder), others, &script, (seed, |_: &str| true));
        let (signals, counters) = (SignalQueue::new(|| {}), Arc::<CoreCounters>::default());
        events.start(0, &signals, &counters);
        let (table, version, keeping) = (RefCell::default(), Cell::new(0), Cell::default());
        Self {
            simulation,
            ring,
            events,
            signals,
            counters,
            script,
            table,
            version,
            keeping,
            quota: RefCell::default(),
            closed: Cell::default(),
            in_order: Cell::default(),
            types: RefCell::default(),
            admission: RefCell::default(),
            external: RefCell::default(),
        }
    }

    pub(super) fn rule(&self, rule: impl FnMut(&RecordedCall) -> ScriptedAnswer + 'static) {
        *self.script.0.rule.borrow_mut() = Box::new(rule);
    }

    /// Sets the concurrency of our own instances.
    pub(super) fn capacity(&self, count: usize) {
        self.script.0.capacity.set(count);
    }

    /// Publishes a table with one broker; the core is not woken, as in the moment after a publish.
    pub(super) fn publish(&self, subscribers: Vec<Subscriber>) -> Arc<EventStream> {
        self.publish_as("broker/ns/b/1", subscribers)
    }

    pub(super) fn publish_as(&self, name: &str, subscribers: Vec<Subscriber>) -> Arc<EventStream> {
        let stream = Arc::new(EventStream {
            name: name.into(),
            event_bytes_max: 100_000,
            keeping: self.keeping.get(),
            quota: Arc::clone(&self.quota.borrow()),
            in_order: self.in_order.get(),
            is_closed: self.closed.get(),
            guards_loops: true,
            types: self.types.borrow().clone(),
            admission: self.admission.borrow().clone(),
            subscribers: subscribers.into_iter().map(Arc::new).collect(),
            external: self.external.borrow().clone(),
            tally: Arc::default(),
        });
        self.version.set(self.version.get() + 1);
        let left_behind = Arc::clone(&self.table.borrow().abandoned);
        let inside_key = INSIDE_KEY.into();
        let mut table = RoutingTable {
            version: self.version.get(),
            abandoned: left_behind,
            internal_key: inside_key,
            ..RoutingTable::default()
        };
        table.streams.insert(PATH.into(), Arc::clone(&stream));
        let quiet = EventStream {
            name: "broker/ns/quiet/1".into(),
            event_bytes_max: 100_000,
            keeping: RetentionPolicy::default(),
            quota: Arc::default(),
            in_order: false,
            is_closed: false,
            guards_loops: true,
            types: None,
            admission: None,
            subscribers: Vec::new(),
            external: None,
            tally: Arc::default(),
        };
        table.streams.insert(QUIET_PATH.into(), Arc::new(quiet));
        self.table.replace(Arc::new(table));
        stream
    }

    /// Abandoned backlogs since the last call, and the total number of their events.
    pub(super) fn left_behind(&self) -> (Vec<AbandonedEvents>, u64) {
        let table = self.table.borrow();
        (table.abandoned.take().collect(), table.abandoned.events())
    }

    pub(super) fn sync(&self) {
        self.events.sync(&self.table.borrow()).unwrap();
    }

    pub(super) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> LocalResponse {
        let table = Arc::clone(&self.table.borrow());
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        self.events.answer(&table, method, path, &headers, body).await
    }

    /// Appends a replay and returns the status.
    pub(super) async fn copy(&self, record: &[u8]) -> u16 {
        let table = Arc::clone(&self.table.borrow());
        self.events.copy(&table, PATH, record).await.status
    }

    /// Posts an event and returns the status.
    pub(super) async fn post(&self, id: &str, ty: &str) -> u16 {
        let headers = [("ce-specversion", "1.0"), ("ce-id", id), ("ce-source", "/s"), ("ce-type", ty)];
        self.request("POST", PATH, &headers, b"data").await.status
    }

    pub(super) async fn rest(&self, wait: Duration) {
        self.ring.sleep(wait).await;
    }

    pub(super) fn run<F: Future>(&self, future: F) -> F::Output {
        self.ring.block_on(future)
    }

    pub(super) fn calls(&self, url: &str) -> Vec<RecordedCall> {
        self.script.0.calls.borrow().iter().filter(|call| call.url == url).cloned().collect()
    }

    pub(super) fn ids(&self, url: &str) -> Vec<String> {
        self.calls(url).into_iter().map(|call| call.id).collect()
    }

    pub(super) fn most_open(&self, url: &str) -> u32 {
        self.script.0.open.borrow().get(url).map_or(0, |(_, most)| *most)
    }

    /// accepted = delivered + filtered + dead-lettered + dropped + pending: the pending counter equals the
    /// open events of the cursors in the log, at any moment a simulation ends.
    fn check_conservation(&self) {
        let table = self.table.borrow();
        for stream in table.streams.values() {
            for subscriber in &stream.subscribers {
                for (open, pending) in self.events.outstanding(stream, &subscriber.name) {
                    assert_eq!(open, pending, "{}: {:?}", subscriber.label, subscriber.tally);
                }
            }
        }
    }

    /// Ends this lifetime, gracefully or not: durable data stays in the folder.
    pub(super) fn end(self) {
        self.ring.shutdown();
    }
}

impl Drop for BrokerFixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.ring.panicked(), 0, "a task panicked");
            self.check_conservation();
        }
    }
}

/// Calls `take` for every delivery log entry of this log.
pub(super) fn each_note(folder: &Path, mut take: impl FnMut(delivery_log::DeliveryLogEntry<'_>)) -> wal::LogInspection {
    let mut look = |entry: &wal::InspectedRecord<'_>| {
        if entry.stream == Some(delivery_log::STREAM) && entry.kind == "event" {
            delivery_log::read(entry.payload, &mut take);
        }
        Ok(())
    };
    wal::dump(folder, &mut |_, _| {}, &mut look).unwrap()
}

pub(super) fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub(super) fn target(url: &str) -> DeliveryTarget {
    DeliveryTarget {
        url: url.into(),
        authority: "s".into(),
        host: "s".into(),
        port: 80,
        path: "/".into(),
        is_stream: false,
        access_token: None,
        tls: None,
    }
}

/// A Trigger that matches everything, with two retries a second apart.
pub(super) fn trigger(name: &str, url: &str) -> Subscriber {
    Subscriber {
        name: name.into(),
        label: format!("ns/{name}").into(),
        filter: EventFilter::Everything,
        target: target(url),
        reply: ReplyTarget::Reenter,
        dead_letter: None,
        hold: HoldReason::Nothing,
        delivery: DeliveryPolicy {
            retries_max: 2,
            backoff: BackoffPolicy::Linear(Duration::from_secs(1)),
            window: 8,
            ..DeliveryPolicy::ONCE
        },
        initial_offset: InitialOffset::Now,
        tally: Arc::default(),
    }
}

pub(super) fn of_type(mut subscriber: Subscriber, ty: &str) -> Subscriber {
    subscriber.filter = EventFilter::Exact(vec![("type".into(), ty.into())]);
    subscriber
}

pub(super) fn reply(id: &str, ty: &str) -> ScriptedAnswer {
    let headers = [("ce-specversion", "1.0"), ("ce-id", id), ("ce-source", "/r"), ("ce-type", ty)];
    let headers = headers.iter().map(|(n, v)| ((*n).into(), Bytes::copy_from_slice(v.as_bytes()))).collect();
    ScriptedAnswer::Answer(LocalResponse { status: 200, headers, body: Bytes::from_static(b"reply data") })
}

/// delivered, filtered, dead-lettered, dropped, pending; their sum is what was offered. Each of the dropped
/// has a reason.
pub(super) fn ends(stream: &EventStream, at: usize) -> [u64; 5] {
    let tally = &stream.subscribers[at].tally;
    let settled = [&tally.delivered, &tally.filtered, &tally.dead_lettered, &tally.dropped].map(|n| n.load(Relaxed));
    assert_eq!(tally.dropped_by_reason().iter().sum::<u64>(), settled[3]);
    let pending = tally.offered.load(Relaxed).checked_sub(settled.iter().sum()).expect("offered is the largest");
    [settled[0], settled[1], settled[2], settled[3], pending]
}

pub(super) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
