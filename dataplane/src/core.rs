//! One core's thread: opens its ring, accepts connections, serves, and drains on a stop.

mod proxy_header;
mod relayed_tls;
mod run_time_listeners;
mod shutdown;

use std::future::{Future, poll_fn};
use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

pub use ring::IoDriver;
use ring::{Ring, RingListener, RingOptions, RingStream, Tick, Unsupported};
use tokio::sync::mpsc;

use broker::events_service::{EventsService, EventsServiceFactory, LocalBoxFuture};
use contract::connection_query::ConnectionQuery;
use contract::counters::CoreCounters;
use contract::service_names::SearchDomains;
use contract::signal::SignalQueue;
use contract::spans;
use contract::table_publisher::TablePublisher;
use contract::target_policy::TargetPolicy;
use protocol::http::buffers::by;
use protocol::http::connection_tracker::{ConnectionGuard, ConnectionTracker};
use protocol::http::limits::HttpLimits;
use protocol::tls::{TlsAcceptor, TlsLimits, TlsServerConfig, TlsVersionMin};
use proxy::access_log::{self, AccessLog};
use proxy::pending_queue::PendingQueueLimits;
use proxy::{Proxy, ProxyConfig, serve, serve_cluster_local};

use shutdown::CoreShutdown;
pub use shutdown::{EVENTS_DRAIN_MAX, EVENTS_IDLE_MAX, StopSignal};

/// Between two sweeps of the idle connections: a fraction of `pool_idle_max`.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// How often an idle core turns within its stall timeout.
const BEATS_PER_TIMEOUT: u32 = 4;

/// After a failed accept (mostly because no descriptor is left): long enough not to spin, short enough to be
/// unnoticeable once descriptors are back.
const ACCEPT_RETRY: Duration = Duration::from_millis(20);
/// Between two log lines about it: clients can cause it by opening as many connections as there are descriptors.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// While another process accepts on the same sockets: how long a connection may wait in a queue whose wake-up only went
/// to the other process.
const TABLE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The configuration of a core. May be made on another thread.
pub struct CoreConfig {
    /// Its number, in logs and signals.
    pub index: usize,
    /// Listens already; every core has its own socket on the same address (SO_REUSEPORT).
    pub http: TcpListener,
    /// The TLS listener.
    pub https: Option<HttpsListener>,
    /// The cluster-local listener.
    pub private: Option<TcpListener>,
    /// The cluster-local TLS listener.
    pub private_https: Option<HttpsListener>,
    /// The listeners for instances that call each other.
    pub cluster_local: Option<ClusterLocalListeners>,
    /// The events listener, served by the service that `make_events` makes.
    pub events: Option<TcpListener>,
    /// The events TLS listener.
    pub events_tls: Option<HttpsListener>,
    pub make_events: Option<EventsServiceFactory>,
    pub tables: Arc<TablePublisher>,
    pub signals: SignalQueue,
    pub stop: Arc<StopSignal>,
    pub counters: Arc<CoreCounters>,
    /// Queries from other threads, if they are enabled.
    pub queries: Option<mpsc::Receiver<ConnectionQuery>>,
    pub limits: CoreLimits,
    /// The seed of this core's random numbers.
    pub seed: u64,
    /// Called once the core serves: its ring is open, its logs are recovered.
    pub up: Box<dyn FnOnce() + Send>,
}

/// Checks that cores of this machine can use io_uring, before anything is created.
///
/// # Errors
///
/// The kernel, or a sandbox around this process, lacks or forbids a feature of io_uring; the error names it.
pub fn check_kernel() -> Result<(), Unsupported> {
    let ring = Ring::kernel(RingOptions { chunks: 8, ..RingOptions::default() })?;
    ring.shutdown();
    Ok(())
}

/// A TLS listener with its server configuration.
pub struct HttpsListener {
    pub listener: TcpListener,
    pub server_config: TlsServerConfig,
}

/// Listeners for instances that call each other by name. They are closed last: requests in flight may need them.
pub struct ClusterLocalListeners {
    pub http: TcpListener,
    pub https: HttpsListener,
    /// Completes names without a dot.
    pub domains: Arc<SearchDomains>,
}

#[derive(Debug, Clone)]
pub struct CoreLimits {
    pub tls: TlsLimits,
    /// Of listeners that are opened at run time.
    pub tls_version_min: TlsVersionMin,
    pub http: HttpLimits,
    /// The addresses that users may send requests to.
    pub targets: Arc<TargetPolicy>,
    /// The listeners where trusted proxies begin each connection with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocolListeners,
    pub pending: PendingQueueLimits,
    pub ring: RingOptions,
    /// Requests in flight may take this long after a stop, then they are cut.
    pub drain_max: Duration,
    /// The access log, if enabled.
    pub access: Option<access_log::AccessLogConfig>,
    /// Sends `Server-Timing` to clients of requests that waited.
    pub server_timing: bool,
    /// The queue for spans, if enabled.
    pub spans: Option<spans::SpanQueue>,
    /// A core that has not turned for this long counts as stalled. `None`: no watchdog runs.
    pub stall_timeout: Option<Duration>,
}

/// Listeners that read the PROXY protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProxyProtocolListeners {
    pub http: bool,
    pub https: bool,
}

impl Default for CoreLimits {
    fn default() -> Self {
        Self {
            http: HttpLimits::default(),
            targets: Arc::default(),
            proxy_protocol: ProxyProtocolListeners::default(),
            tls: TlsLimits::default(),
            tls_version_min: TlsVersionMin::default(),
            pending: PendingQueueLimits::default(),
            ring: RingOptions::default(),
            drain_max: Duration::from_secs(30),
            access: None,
            server_timing: true,
            spans: None,
            stall_timeout: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    #[error("core {index}: {why}")]
    Ring { index: usize, why: Unsupported },
    #[error("core {index}: {what}: {why}")]
    Io { index: usize, what: &'static str, why: io::Error },
}

/// The body of a core's thread. Returns after a stop once it has drained.
pub fn run(config: CoreConfig) -> Result<(), CoreError> {
    let index = config.index;
    let heartbeat = Arc::clone(&config.counters.heartbeat);
    let options = RingOptions { heartbeat: Arc::clone(&heartbeat), ..config.limits.ring.clone() };
    let ring = Ring::open(options).map_err(|why| CoreError::Ring { index, why })?;
    if let Some(stall_timeout) = config.limits.stall_timeout {
        ring.spawn(wake_up(ring.clone(), stall_timeout / BEATS_PER_TIMEOUT));
    }
    let outcome = run_on(&ring, config);
    heartbeat.end();
    ring.shutdown();
    outcome
}

/// The same on a given ring.
pub fn run_on(ring: &Ring, config: CoreConfig) -> Result<(), CoreError> {
    let index = config.index;
    let failed = |what| move |why| CoreError::Io { index, what, why };
    let proxy = Proxy::new(ProxyConfig {
        ring: ring.clone(),
        tables: Arc::clone(&config.tables),
        signals: config.signals,
        counters: config.counters,
        limits: config.limits.http,
        targets: config.limits.targets,
        pending_limits: config.limits.pending,
        seed: config.seed,
    });
    proxy.server_timing.set(config.limits.server_timing);
    if let Some(spans) = config.limits.spans {
        let _ = proxy.spans.set(spans); // the proxy is new
    }
    start_access_log(&proxy, config.limits.access);
    if let Some(queries) = config.queries {
        ring.spawn(answer_queries(Rc::clone(&proxy), queries));
    }
    let events = match config.make_events {
        Some(make) => Some(make(&proxy).map_err(failed("events"))?),
        None => None,
    };
    let listen = |what, tracker: &Rc<ConnectionTracker>, listener: TcpListener, serve: ConnectionHandler| {
        let listener = RingListener::from_std(ring, listener).map_err(failed(what))?;
        ring.spawn(accept_loop(Rc::clone(&proxy), Arc::clone(&config.stop), Rc::clone(tracker), listener, serve));
        Ok(())
    };
    let headers = config.limits.proxy_protocol;
    let plain = if headers.http { proxy_header::serve_plain(&proxy) } else { serve_public(&proxy) };
    listen("the http listener", &proxy.tracker, config.http, plain)?;
    let acceptor =
        |server_config| Rc::new(TlsAcceptor::new(ring, server_config, config.limits.tls, Arc::clone(&proxy.counters)));
    if let Some(private) = config.private {
        listen("the private listener", &proxy.tracker, private, serve_cluster_local_client(&proxy))?;
    }
    if let Some(HttpsListener { listener, server_config }) = config.private_https {
        let serve = serve_instances_tls(&proxy, acceptor(server_config), Arc::default());
        listen("the private listener for TLS", &proxy.tracker, listener, serve)?;
    }
    let callers = Rc::<ConnectionTracker>::default();
    if let Some(ClusterLocalListeners { http, https, domains }) = config.cluster_local {
        listen("the listener for instances", &callers, http, serve_instances(&proxy, Arc::clone(&domains)))?;
        let serve = serve_instances_tls(&proxy, acceptor(https.server_config), domains);
        listen("the listener for instances by TLS", &callers, https.listener, serve)?;
    }
    if let Some(HttpsListener { listener, server_config }) = config.https {
        let acceptor = acceptor(server_config);
        let by_tls =
            if headers.https { proxy_header::serve_tls(&proxy, acceptor) } else { serve_public_tls(&proxy, acceptor) };
        listen("the https listener", &proxy.tracker, listener, by_tls)?;
    }
    let senders = Rc::<ConnectionTracker>::default();
    if let (Some(listener), Some(events)) = (config.events, &events) {
        listen("the events listener", &senders, listener, serve_events(events))?;
    }
    if let (Some(HttpsListener { listener, server_config }), Some(events)) = (config.events_tls, &events) {
        listen("the events listener for TLS", &senders, listener, serve_events_tls(events, acceptor(server_config)))?;
    }
    ring.spawn(sweep(Rc::clone(&proxy)));
    let (stop, drain_max) = (config.stop, config.limits.drain_max);
    let tls = (config.limits.tls, config.limits.tls_version_min);
    let follow_table = run_time_listeners::follow_table(&proxy, (index, config.tables), &stop, (tls, drain_max));
    (config.up)();
    let shutdown = CoreShutdown { proxy, events, senders, callers, follow_table, stop, drain_max };
    ring.block_on(shutdown.run());
    Ok(())
}

/// Serves an accepted connection. Called once for each, so the cost of a box is negligible.
type ConnectionHandler = Box<dyn Fn(RingStream, ConnectionGuard) -> LocalBoxFuture<'static>>;

fn serve_public(proxy: &Rc<Proxy>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, guard| Box::pin(serve(Rc::clone(&proxy), stream, guard)))
}

fn serve_cluster_local_client(proxy: &Rc<Proxy>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, guard| Box::pin(serve_cluster_local(Rc::clone(&proxy), stream, guard, None)))
}

fn serve_instances(proxy: &Rc<Proxy>, domains: Arc<SearchDomains>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, guard| {
        let domain = search_domain(&stream, &domains);
        Box::pin(serve_cluster_local(Rc::clone(&proxy), stream, guard, domain))
    })
}

/// Also for clients of the configured cluster-local TLS listener: its address has no domain.
fn serve_instances_tls(proxy: &Rc<Proxy>, acceptor: Rc<TlsAcceptor>, domains: Arc<SearchDomains>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, guard| {
        let domain = search_domain(&stream, &domains);
        let (proxy, acceptor) = (Rc::clone(&proxy), Rc::clone(&acceptor));
        Box::pin(async move {
            if let Some(stream) = acceptor.open(stream).await {
                serve_cluster_local(proxy, stream, guard, domain).await;
            }
        })
    })
}

/// The domain of the local address that the client connected to.
fn search_domain(stream: &RingStream, domains: &SearchDomains) -> Option<Arc<str>> {
    stream.local_addr().ok().and_then(|address| domains.at(address.ip()))
}

fn serve_public_tls(proxy: &Rc<Proxy>, acceptor: Rc<TlsAcceptor>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, guard| Box::pin(serve_tls(Rc::clone(&proxy), Rc::clone(&acceptor), stream, guard)))
}

fn serve_events(events: &Rc<dyn EventsService>) -> ConnectionHandler {
    let events = Rc::clone(events);
    Box::new(move |stream, guard| Rc::clone(&events).connection(stream.into(), guard))
}

fn serve_events_tls(events: &Rc<dyn EventsService>, acceptor: Rc<TlsAcceptor>) -> ConnectionHandler {
    let events = Rc::clone(events);
    Box::new(move |stream, guard| Box::pin(accept_events_tls(Rc::clone(&events), Rc::clone(&acceptor), stream, guard)))
}

async fn accept_events_tls(
    events: Rc<dyn EventsService>,
    acceptor: Rc<TlsAcceptor>,
    stream: RingStream,
    guard: ConnectionGuard,
) {
    if let Some(stream) = acceptor.open(stream).await {
        events.connection(stream.into(), guard).await;
    }
}

async fn serve_tls(proxy: Rc<Proxy>, acceptor: Rc<TlsAcceptor>, stream: RingStream, guard: ConnectionGuard) {
    if let Some(stream) = acceptor.open(stream).await {
        serve(proxy, stream, guard).await;
    }
}

/// Accepts connections until `tracker` closes its acceptors; then the listener is closed before anything else ends.
async fn accept_loop(
    proxy: Rc<Proxy>,
    stop: Arc<StopSignal>,
    tracker: Rc<ConnectionTracker>,
    listener: RingListener,
    serve: ConnectionHandler,
) {
    // The acceptor holds a guard until the listener is closed, so that a drained core refuses new connections.
    let acceptor = tracker.enter(usize::MAX);
    let register = |stream: RingStream| {
        let guard = if stream.is_beyond_limit() { None } else { tracker.enter(proxy.limits.connections_max) };
        match guard {
            Some(guard) => proxy.ring.spawn_boxed(serve(stream, guard)),
            None => {
                proxy.counters.connections_refused.fetch_add(1, Relaxed);
            }
        }
    };
    let mut is_handover = stop.is_handover();
    let mut last_logged: Option<Tick> = None;
    loop {
        let next = next_connection(&tracker, &listener);
        let accepted = if is_handover {
            match by(&proxy.ring, Some(proxy.ring.now() + TABLE_CHECK_INTERVAL), next).await {
                Ok(accepted) => accepted,
                Err(_) => {
                    is_handover = stop.is_handover(); // once more after the other process has ended
                    listener.recheck();
                    continue;
                }
            }
        } else {
            next.await
        };
        let Some(accepted) = accepted else { break };
        match accepted {
            Ok(stream) => register(stream),
            Err(why) => {
                let now = proxy.ring.now();
                if last_logged.is_none_or(|last_logged| now - last_logged >= ACCEPT_LOG_INTERVAL) {
                    last_logged = Some(now);
                    tracing::warn!(%why, "cannot accept a connection");
                }
                proxy.ring.sleep(ACCEPT_RETRY).await;
            }
        }
    }
    match listener.close().await {
        Ok(taken) => taken.into_iter().for_each(register),
        Err(why) => tracing::warn!(%why, "cannot close a listener"),
    }
    drop(acceptor);
}

/// `None` once the core stops.
async fn next_connection(tracker: &ConnectionTracker, listener: &RingListener) -> Option<io::Result<RingStream>> {
    let mut accept = pin!(listener.accept());
    poll_fn(|cx| match tracker.poll_closing(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => accept.as_mut().poll(cx).map(Some),
    })
    .await
}

fn start_access_log(proxy: &Rc<Proxy>, setup: Option<access_log::AccessLogConfig>) {
    let Some(setup) = setup else { return };
    let log = AccessLog::new(setup, Arc::clone(&proxy.counters));
    if proxy.access.set(log).is_ok() {
        proxy.ring.spawn(flush_access_log(Rc::clone(proxy)));
    }
}

async fn flush_access_log(proxy: Rc<Proxy>) {
    while let Some(log) = proxy.access.get() {
        log.filled().await;
        proxy.ring.sleep(access_log::FLUSH_EVERY).await;
        log.flush();
    }
}

async fn answer_queries(proxy: Rc<Proxy>, mut queries: mpsc::Receiver<ConnectionQuery>) {
    while let Some(query) = queries.recv().await {
        proxy.answer_query(query);
    }
}

/// Wakes an idle loop, so that a watchdog can tell it from a stuck one.
async fn wake_up(ring: Ring, every: Duration) {
    loop {
        ring.sleep(every).await;
    }
}

async fn sweep(proxy: Rc<Proxy>) {
    loop {
        proxy.ring.sleep(SWEEP_EVERY).await;
        proxy.client.pool().sweep(proxy.ring.now());
        log_panics(&proxy);
        proxy.h2_client.sweep(proxy.ring.now());
    }
}

/// A panic ends one task and leaves the core running, so a stopped subscriber would go unnoticed.
fn log_panics(proxy: &Proxy) {
    let panicked = proxy.ring.panicked();
    let last_logged = proxy.counters.tasks_panicked.swap(panicked, Relaxed);
    if last_logged < panicked {
        tracing::error!(panicked, "tasks of this core panicked; restart, and report the message on stderr");
    }
}

#[cfg(test)]
mod tests {
    use ring::sim::{FaultProfile, Simulation};

    use super::*;
    use contract::table::RoutingTable;

    /// A panic ends one task; it is counted once, and the core keeps running.
    #[test]
    fn panicking_task_is_counted_and_the_core_keeps_running() {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let proxy = Proxy::new(ProxyConfig {
            ring: ring.clone(),
            tables: TablePublisher::new(RoutingTable::default()),
            signals: SignalQueue::new(|| {}),
            counters: Arc::default(),
            limits: HttpLimits::default(),
            targets: Arc::default(),
            pending_limits: PendingQueueLimits::default(),
            seed: 1,
        });
        ring.spawn(sweep(Rc::clone(&proxy)));
        for panicked in 1..=2 {
            ring.spawn(async { panic!("on purpose") });
            ring.block_on(ring.sleep(2 * SWEEP_EVERY));
            assert_eq!(proxy.counters.tasks_panicked.load(Relaxed), panicked);
        }
    }
}
