//! The proxy of one core: from a client's request to an instance's answer.
//!
//! `connection` takes a client's requests one after the other; `exchange` carries one of them:
//! [`pick`] a backend and an instance, or wait for one ([`pending_queue`], `place`), send, answer, streaming
//! both ways. Reasons for an answer of our own are in [`refusal`](LocalReply).

mod activity;
mod cold_start_timing;
mod connection;
mod connection_stats;
mod disconnect_watcher;
mod exchange;
mod local_reply;
pub mod mirror;
pub mod outliers;
pub mod pending_queue;
mod permit;
pub mod pick;
mod request_record;
mod request_stream;
mod response_stream;
mod retry;
mod select;
mod session_affinity;
mod streams;
mod tunnel;
mod upstream;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use fastrand::Rng;
use ring::{Ring, Tick};

pub use connection::{serve, serve_cluster_local};
pub use local_reply::LocalReply;
pub use permit::{AcquireRequest, Permit, SelectedEndpoint};

use crate::access_log::{AccessLog, RequestLog};
use crate::connection_query::ConnectionQuery;
use crate::counters::CoreCounters;
use crate::http::buffer_cache::BufferCache;
use crate::http::client::UpstreamClient;
use crate::http::codec::{FieldName, PlatformProbe};
use crate::http::connection_tracker::ConnectionTracker;
use crate::http::limits::HttpLimits;
use crate::signal::SignalQueue;
use crate::spans;
use crate::table::{Backend, HTTPS_PORT, NoEndpointPolicy, Route, RouteRequest, RoutingTable, host_name};
use crate::table_publisher::{TablePublisher, TableReader};
use crate::target_policy::TargetPolicy;
use connection_stats::ConnectionRegistry;
use outliers::OutlierDetector;
use pending_queue::{PendingQueue, PendingQueueLimits};
use request_record::RequestRecord;

/// What every request on a core shares. Belongs to the core's thread.
pub struct Proxy {
    pub ring: Ring,
    pub client: UpstreamClient,
    /// ... to instances that speak HTTP/2.
    pub h2_client: crate::h2::client::Http2Client,
    /// Which addresses users may have requests sent to.
    pub targets: Arc<TargetPolicy>,
    pub limits: Rc<HttpLimits>,
    pub tracker: Rc<ConnectionTracker>,
    pub counters: Arc<CoreCounters>,
    /// Unset when nobody wants it.
    pub access: OnceCell<AccessLog>,
    /// The lines that requests are to have beside those, as the table has them.
    request_log: RefCell<Option<Arc<RequestLog>>>,
    /// Unset when nobody collects spans.
    pub spans: OnceCell<spans::SpanQueue>,
    /// Clients are told what a request waited for (`Server-Timing`).
    pub server_timing: Cell<bool>,
    connections: ConnectionRegistry,
    signals: SignalQueue,
    reader: RefCell<TableReader>,
    /// This core among those that read the tables.
    number: usize,
    pending_queue: RefCell<PendingQueue>,
    /// The table whose arrival was last told to the waiting room.
    version_seen: Cell<u64>,
    rng: RefCell<Rng>,
    outliers: RefCell<OutlierDetector>,
    /// Copies under way.
    mirrored: Cell<usize>,
    /// For connections with a request, and for deliveries.
    pub(crate) buffers: BufferCache,
    /// When the log last had it that an instance is not trusted.
    tls_failure_logged: Cell<Option<Tick>>,
    /// ... and that the target policy refused one.
    refusal_told: Cell<Option<Tick>>,
}

/// What a proxy is made from.
pub struct ProxyConfig {
    pub ring: Ring,
    pub tables: Arc<TablePublisher>,
    pub signals: SignalQueue,
    pub counters: Arc<CoreCounters>,
    pub limits: HttpLimits,
    pub targets: Arc<TargetPolicy>,
    pub pending_limits: PendingQueueLimits,
    /// Where this core's chance comes from: the same seed picks the same way.
    pub seed: u64,
}

impl Proxy {
    #[must_use]
    pub fn new(parts: ProxyConfig) -> Rc<Self> {
        let number = parts.tables.add_waker(parts.ring.wake_handle());
        Rc::new(Self {
            client: UpstreamClient::new(&parts.ring, &parts.limits, Arc::clone(&parts.targets)),
            h2_client: crate::h2::client::Http2Client::new(&parts.ring, &parts.limits, Arc::clone(&parts.targets)),
            targets: parts.targets,
            ring: parts.ring,
            limits: Rc::new(parts.limits),
            tracker: Rc::default(),
            counters: parts.counters,
            access: OnceCell::new(),
            request_log: RefCell::new(parts.tables.load().request_log.clone()),
            server_timing: Cell::new(true),
            connections: ConnectionRegistry::default(),
            signals: parts.signals,
            reader: RefCell::new(parts.tables.reader()),
            number,
            pending_queue: RefCell::new(PendingQueue::new(parts.pending_limits)),
            outliers: RefCell::default(),
            tls_failure_logged: Cell::default(),
            refusal_told: Cell::default(),
            spans: OnceCell::new(),
            buffers: BufferCache::default(),
            version_seen: Cell::new(0),
            mirrored: Cell::new(0),
            rng: RefCell::new(Rng::with_seed(parts.seed)),
        })
    }

    /// Reads the current table; `read` must not call back into the proxy.
    pub fn with_table<T>(&self, read: impl FnOnce(&RoutingTable) -> T) -> T {
        read(self.reader.borrow_mut().load())
    }

    /// Chooses a backend for one request, and counts the request.
    pub fn route(&self, ask: &RouteRequest<'_>) -> Result<SelectedEndpoint, LocalReply> {
        self.choose(ask).and_then(|choice| set_out(ask, choice))
    }

    /// The same, and the note knows where it is to go and by which tag, even if it does not get there.
    fn route_noted(&self, ask: &RouteRequest<'_>, note: &mut RequestRecord) -> Result<SelectedEndpoint, LocalReply> {
        let choice = self.choose(ask)?;
        note.aim(&choice.backend, choice.tag(ask));
        set_out(ask, choice)
    }

    fn choose(&self, ask: &RouteRequest<'_>) -> Result<SelectedEndpoint, LocalReply> {
        self.with_table(|table| {
            let route = table.route_for(ask).ok_or_else(|| LocalReply::HostNotFound(name(ask.host)))?;
            let splits = route.select(ask);
            if splits.is_empty() {
                return Err(LocalReply::PathNotFound(name(ask.host)));
            }
            if let Some(answer) = probed(route, ask) {
                return Err(answer);
            }
            if ask.plain
                && !ask.cluster_local
                && let Some(port) = route.redirect(splits)
                && ask.path != "*"
                // Looked up by who is sent on, or would be: what is known for each host when a table is made would have to be
                // made anew for as many hosts as one certificate is for.
                && table.certificates.find(Some(host_name(ask.host))).is_some()
            {
                return Err(only_by_https(ask, port));
            }
            let rng = &mut self.rng.borrow_mut();
            let bond = session_affinity::session_affinity(route, splits, ask, rng);
            let split = match bond.key {
                Some(key) => pick::split_of(splits, key),
                None => pick::split(splits, rng),
            };
            let choice = split.map(|split| SelectedEndpoint { affinity: bond, ..SelectedEndpoint::from(split) });
            choice.ok_or_else(|| LocalReply::NoTrafficTarget(name(ask.host)))
        })
    }

    /// Tells of the connections that are open now.
    pub(crate) fn tell(&self, question: ConnectionQuery) {
        question.answer(|most| self.connections.list(self.ring.now(), most));
    }

    /// Somebody rang: a new table, or a place that another core gave back. Everybody who waits first
    /// in a queue looks again.
    pub fn look(&self) {
        let version = self.with_table(|table| table.version);
        if self.version_seen.replace(version) != version {
            *self.request_log.borrow_mut() = self.with_table(|table| table.request_log.clone());
            self.pending_queue.borrow_mut().resend_demand();
        }
        let called = self.pending_queue.borrow_mut().call_all();
        for waker in called {
            waker.wake();
        }
    }

    /// There may be a place in an instance of `backend`: calls whose turn it is.
    fn permit_released(&self, backend: &Backend) {
        // Pairs with the fence of a guest that sits down: either it sees the place, or we see it wait.
        fence(SeqCst);
        if backend.load.waiting.load(Relaxed) == 0 {
            return;
        }
        let line = backend.load.queue();
        let is_ours = self.pending_queue.borrow().front(&backend.key).is_some_and(|front| line.may_proceed(front));
        if !is_ours {
            if let Some(first) = line.first() {
                first.call();
            }
            return;
        }
        let called = self.pending_queue.borrow_mut().call(&backend.key);
        if let Some(waker) = called {
            waker.wake();
        }
    }
}

/// Where a client without TLS has to come again with it (X-KI-13).
fn only_by_https(ask: &RouteRequest<'_>, port: u16) -> LocalReply {
    let (host, path) = (host_name(ask.host), ask.path);
    let location = match port {
        HTTPS_PORT => format!("https://{host}{path}"),
        port => format!("https://{host}:{port}{path}"),
    };
    LocalReply::HttpsRedirect { location: location.into() }
}

/// What a probe is told, if this is one: the hash it brings, or `override` for that of the route
/// (X-KI-16).
fn probed(route: &Route, ask: &RouteRequest<'_>) -> Option<LocalReply> {
    let request = ask.request.filter(|request| request.head.probe == PlatformProbe::Route)?;
    Some(match request.values(FieldName::NetworkHash).next() {
        None => LocalReply::NetworkProbeWithoutHash,
        Some(b"override") => LocalReply::NetworkProbe { hash: route.hash.as_deref().unwrap_or_default().into() },
        Some(own) => LocalReply::NetworkProbe { hash: String::from_utf8_lossy(own).into() },
    })
}

/// Counts a request that is on its way; a probe is not.
fn set_out(ask: &RouteRequest<'_>, choice: SelectedEndpoint) -> Result<SelectedEndpoint, LocalReply> {
    if is_health_probe(ask) && matches!(choice.backend.when_empty, NoEndpointPolicy::Wait { .. }) {
        return Err(LocalReply::HealthCheck);
    }
    choice.backend.load.requests.fetch_add(1, Relaxed);
    Ok(choice)
}

/// Whether whoever stands before the instances answers in their place: a probe wakes nobody (X-QP-06). To backends
/// that are not ours it goes like any other request.
fn is_health_probe(ask: &RouteRequest<'_>) -> bool {
    ask.request.is_some_and(|request| request.head.probe == PlatformProbe::Health)
}

/// A host for a message, of bounded length.
fn name(host: &str) -> Box<str> {
    host_name(host).chars().take(255).collect::<String>().into()
}
