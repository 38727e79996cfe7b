//! The proxy of one core: from a client's request to an instance's response.
//!
//! `connection` reads a client's requests one after the other. `exchange` carries one of them: it uses [`pick`] to
//! choose a backend and an instance, or waits for one ([`pending_queue`], `permit`), then sends the request and streams
//! both directions. Responses of the proxy itself are in [`LocalReply`].
#![forbid(unsafe_code)]

pub mod access_log;
mod activity;
mod authentication;
mod cold_start_timing;
mod compression;
mod connect;
mod connection;
mod connection_stats;
mod deadlines;
mod disconnect_watcher;
mod exchange;
mod exchange_progress;
pub mod layer4;
mod local_reply;
mod local_response;
pub mod mirror;
mod outcome;
pub mod outliers;
mod passive_health;
pub mod pending_queue;
mod permit;
pub mod pick;
mod proxy_connection;
mod request_record;
mod request_stream;
mod response_stream;
mod retry;
mod route_filters;
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

pub use connect::{AcquireError, ConnectRequest, connect};
pub use connection::{AcceptedStream, serve, serve_accepted, serve_cluster_local};
pub use local_reply::LocalReply;
pub use permit::{AcquireRequest, Permit, SelectedEndpoint};
pub use upstream::{ConnectPlan, UpstreamLink};

use codec::http::{FieldName, PlatformProbe};
use contract::connection_query::ConnectionQuery;
use contract::counters::CoreCounters;
use contract::request_log::RequestLog;
use contract::signal::SignalQueue;
use contract::spans;
use contract::table::{Backend, HTTPS_PORT, NoEndpointPolicy, Route, RouteRequest, RoutingTable, host_name};
use contract::table_publisher::{TablePublisher, TableReader};
use contract::target_policy::TargetPolicy;
use protocol::http::buffer_cache::BufferCache;
use protocol::http::client::UpstreamClient;
use protocol::http::connection_tracker::ConnectionTracker;
use protocol::http::limits::HttpLimits;

use crate::access_log::AccessLog;
use authentication::AuthenticationCache;
use connection_stats::ConnectionRegistry;
use outliers::OutlierDetector;
use pending_queue::{PendingQueue, PendingQueueLimits};
use request_record::RequestRecord;

/// The state that all requests on a core share. Belongs to the core's thread.
pub struct Proxy {
    pub ring: Ring,
    pub client: UpstreamClient,
    /// The same for instances that speak HTTP/2.
    pub h2_client: protocol::h2::client::Http2Client,
    /// The addresses that users may send requests to.
    pub targets: Arc<TargetPolicy>,
    pub limits: Rc<HttpLimits>,
    pub tracker: Rc<ConnectionTracker>,
    pub counters: Arc<CoreCounters>,
    /// Unset when the access log is off.
    pub access: OnceCell<AccessLog>,
    /// The request log of the current table, written in addition to the access log.
    request_log: RefCell<Option<Arc<RequestLog>>>,
    /// Unset when no span collector is configured.
    pub spans: OnceCell<spans::SpanQueue>,
    /// Sends `Server-Timing` to clients of requests that waited.
    pub server_timing: Cell<bool>,
    connections: ConnectionRegistry,
    signals: SignalQueue,
    reader: RefCell<TableReader>,
    /// The index of this core among the table readers.
    number: usize,
    pending_queue: RefCell<PendingQueue>,
    /// The last table version that was passed to the pending queue.
    version_seen: Cell<u64>,
    rng: RefCell<Rng>,
    outliers: RefCell<OutlierDetector>,
    /// Credentials of clients that were verified or refused.
    credentials: RefCell<AuthenticationCache>,
    /// Mirrored requests in flight.
    mirrored: Cell<usize>,
    /// Responses that are being compressed.
    compressing: Rc<Cell<usize>>,
    /// For connections with a request, and for deliveries.
    pub buffers: BufferCache,
    /// When a TLS failure of an instance was last logged.
    tls_failure_logged: Cell<Option<Tick>>,
    /// When a failure of an authorization service was last logged.
    authorization_failure_logged: Cell<Option<Tick>>,
    /// When a refusal by the target policy was last logged.
    target_refusal_logged: Cell<Option<Tick>>,
    /// When a local reply of each reason was last logged.
    reply_logged: RefCell<[Option<Tick>; LocalReply::REASONS.len()]>,
}

/// The parts of a new proxy.
pub struct ProxyConfig {
    pub ring: Ring,
    pub tables: Arc<TablePublisher>,
    pub signals: SignalQueue,
    pub counters: Arc<CoreCounters>,
    pub limits: HttpLimits,
    pub targets: Arc<TargetPolicy>,
    pub pending_limits: PendingQueueLimits,
    /// Seed of this core's random numbers: the same seed picks the same way.
    pub seed: u64,
}

impl Proxy {
    #[must_use]
    pub fn new(parts: ProxyConfig) -> Rc<Self> {
        let number = parts.tables.add_waker(parts.ring.wake_handle());
        Rc::new(Self {
            client: UpstreamClient::new(&parts.ring, &parts.limits, Arc::clone(&parts.targets)),
            h2_client: protocol::h2::client::Http2Client::new(&parts.ring, &parts.limits, Arc::clone(&parts.targets)),
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
            credentials: RefCell::default(),
            tls_failure_logged: Cell::default(),
            authorization_failure_logged: Cell::default(),
            target_refusal_logged: Cell::default(),
            reply_logged: RefCell::new([None; LocalReply::REASONS.len()]),
            spans: OnceCell::new(),
            buffers: BufferCache::default(),
            version_seen: Cell::new(0),
            mirrored: Cell::new(0),
            compressing: Rc::default(),
            rng: RefCell::new(Rng::with_seed(parts.seed)),
        })
    }

    /// Reads the current table. `read` must not call back into the proxy.
    pub fn with_table<T>(&self, read: impl FnOnce(&RoutingTable) -> T) -> T {
        read(self.reader.borrow_mut().load())
    }

    /// Chooses a backend for one request, and counts the request.
    pub fn route(&self, route_request: &RouteRequest<'_>) -> Result<SelectedEndpoint, LocalReply> {
        self.choose(route_request).and_then(|choice| admit(route_request, choice))
    }

    /// The same, and records the backend and tag even if the request does not reach an instance.
    fn route_noted(
        &self,
        route_request: &RouteRequest<'_>,
        note: &mut RequestRecord,
    ) -> Result<SelectedEndpoint, LocalReply> {
        let choice = self.choose(route_request)?;
        note.set_backend(&choice.backend, choice.tag(route_request));
        admit(route_request, choice)
    }

    fn choose(&self, route_request: &RouteRequest<'_>) -> Result<SelectedEndpoint, LocalReply> {
        self.with_table(|table| {
            if is_misdirected(table, route_request) {
                return Err(LocalReply::MisdirectedRequest(name(route_request.host)));
            }
            let route = table.route_for(route_request).ok_or_else(|| unserved_host(table, route_request))?;
            let branch = route.branch(route_request);
            let splits = route.shares(branch);
            if splits.is_empty() {
                return Err(LocalReply::PathNotFound(name(route_request.host)));
            }
            if let Some(answer) = probe_reply(route, route_request) {
                return Err(answer);
            }
            if route_request.plain
                && !route_request.cluster_local
                && let Some(port) = route.redirect(branch)
                && route_request.path != "*"
                // Looked up per request: a table that stored this for each host would have to be rebuilt for every host
                // of a certificate that changes.
                && table.certificates.find(Some(host_name(route_request.host))).is_some()
            {
                return Err(https_redirect(route_request, port));
            }
            let rng = &mut self.rng.borrow_mut();
            let affinity = session_affinity::session_affinity(route, route_request, rng);
            let split = match affinity.key {
                Some(key) => pick::split_of(splits, key),
                None => pick::split(splits, rng),
            };
            let split = split.ok_or_else(|| LocalReply::NoTrafficTarget(name(route_request.host)))?;
            let selected = match &split.filters {
                None => SelectedEndpoint::from(split),
                Some(filters) => route_filters::apply_filters(split, filters, route_request, rng)?,
            };
            Ok(SelectedEndpoint { affinity, ..selected })
        })
    }

    /// Answers a query for the open connections.
    pub fn answer_query(&self, question: ConnectionQuery) {
        question.answer(|most| self.connections.list(self.ring.now(), most));
    }

    /// Called when the core is woken by a new table or by a permit that another core released. The first request of
    /// every queue checks again.
    pub fn on_wake(&self) {
        let version = self.with_table(|table| table.version);
        if self.version_seen.replace(version) != version {
            *self.request_log.borrow_mut() = self.with_table(|table| table.request_log.clone());
            self.pending_queue.borrow_mut().resend_demand();
        }
        let notified = self.pending_queue.borrow_mut().notify_all();
        for waker in notified {
            waker.wake();
        }
    }

    /// An instance of `backend` may have a free permit: notifies the request whose turn it is.
    fn permit_released(&self, backend: &Backend) {
        // Pairs with the fence of a request that enqueues: either it sees the free permit, or this thread sees the
        // waiting request.
        fence(SeqCst);
        if backend.load.waiting.load(Relaxed) == 0 {
            return;
        }
        let fair_queue = backend.load.queue();
        let is_own_turn =
            self.pending_queue.borrow().front(&backend.key).is_some_and(|front| fair_queue.may_proceed(front));
        if !is_own_turn {
            if let Some(first) = fair_queue.first() {
                first.wake_core();
            }
            return;
        }
        let notified = self.pending_queue.borrow_mut().notify_first(&backend.key);
        if let Some(waker) = notified {
            waker.wake();
        }
    }
}

/// Whether a request came over a TLS connection that was opened for another hostname of its listener.
fn is_misdirected(table: &RoutingTable, route_request: &RouteRequest<'_>) -> bool {
    let Some(connection) = route_request.listener() else { return false };
    let is_tls = route_request.peer.is_some_and(|peer| !peer.is_plain());
    let listener = if is_tls { table.listener(connection.id) } else { None };
    listener.is_some_and(|listener| listener.is_misdirected(connection.server_name.as_deref(), route_request.host))
}

/// The reply for a host without a route.
fn unserved_host(table: &RoutingTable, route_request: &RouteRequest<'_>) -> LocalReply {
    match table.not_ready(route_request) {
        Some(host) => LocalReply::NotReady(Arc::clone(&host.sentence)),
        None => LocalReply::HostNotFound(name(route_request.host)),
    }
}

/// The redirect for a client that came without TLS (X-KI-13).
fn https_redirect(route_request: &RouteRequest<'_>, port: u16) -> LocalReply {
    let (host, path) = (host_name(route_request.host), route_request.path);
    let location = match port {
        HTTPS_PORT => format!("https://{host}{path}"),
        port => format!("https://{host}:{port}{path}"),
    };
    LocalReply::HttpsRedirect { location: location.into() }
}

/// The reply to a network probe, if this is one: its own hash, or with `override` that of the route (X-KI-16).
fn probe_reply(route: &Route, route_request: &RouteRequest<'_>) -> Option<LocalReply> {
    let request = route_request.request.filter(|request| request.head.probe == PlatformProbe::Route)?;
    Some(match request.values(FieldName::NetworkHash).next() {
        None => LocalReply::NetworkProbeWithoutHash,
        Some(b"override") => LocalReply::NetworkProbe { hash: route.hash.as_deref().unwrap_or_default().into() },
        Some(own) => LocalReply::NetworkProbe { hash: String::from_utf8_lossy(own).into() },
    })
}

/// Counts a request that is routed; health probes are not counted.
fn admit(route_request: &RouteRequest<'_>, choice: SelectedEndpoint) -> Result<SelectedEndpoint, LocalReply> {
    if is_health_probe(route_request) && matches!(choice.backend.when_empty, NoEndpointPolicy::Wait { .. }) {
        return Err(LocalReply::HealthCheck);
    }
    choice.backend.load.requests.fetch_add(1, Relaxed);
    Ok(choice)
}

/// Whether the proxy answers in place of the instances: a health probe must not start one (X-QP-06). To external
/// backends it goes like any other request.
fn is_health_probe(route_request: &RouteRequest<'_>) -> bool {
    route_request.request.is_some_and(|request| request.head.probe == PlatformProbe::Health)
}

/// A host for a message, with bounded length.
fn name(host: &str) -> Box<str> {
    host_name(host).chars().take(255).collect::<String>().into()
}
