//! One core's thread: opens its ring, takes connections in, serves, and drains when told to stop.

mod shutdown;

use std::future::{Future, poll_fn};
use std::io;
use std::net::TcpListener;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use ring::{Ring, RingListener, RingOptions, RingStream, Tick, Unsupported};
use tokio::sync::mpsc;

use crate::access_log::{self, AccessLog};
use crate::connection_query::ConnectionQuery;
use crate::counters::CoreCounters;
use crate::http::buffers::by;
use crate::http::connection_tracker::{ConnectionGuard, ConnectionTracker};
use crate::http::limits::HttpLimits;
use crate::proxy::pending_queue::PendingQueueLimits;
use crate::proxy::{Proxy, ProxyConfig, serve, serve_cluster_local};
use crate::service_names::SearchDomains;
use crate::signal::SignalQueue;
use crate::spans;
use crate::table_publisher::TablePublisher;
use crate::target_policy::TargetPolicy;
use crate::tls::{TlsAcceptor, TlsLimits, TlsServerConfig, Transport};

use shutdown::CoreShutdown;
pub use shutdown::{EVENTS_DRAIN_MAX, EVENTS_IDLE_MAX, StopSignal};

/// Between two looks through the idle connections: a fraction of `pool_idle_max`.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// How often an idle core turns within the time after which it counts as stalled.
const BEATS_PER_TIMEOUT: u32 = 4;

/// After a failed accept (no descriptor left, mostly): long enough not to spin, short enough that
/// nobody notices once descriptors are back.
const ACCEPT_RETRY: Duration = Duration::from_millis(20);
/// How often that is told: clients bring it about, by keeping as many connections as there are descriptors.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// While another process accepts on our sockets too: how long a connection may lie in the queue that only the other
/// one was told of.
const TABLE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// What a core is made from. Everything in here may come from another thread.
pub struct CoreConfig {
    /// Its number, in logs and signals.
    pub index: usize,
    /// Listens already; every core has its own socket on the same address (SO_REUSEPORT).
    pub http: TcpListener,
    /// ... and one for TLS.
    pub https: Option<HttpsListener>,
    /// ... and one for callers inside, who reach what is not for the public as well.
    pub private: Option<TcpListener>,
    /// ... and one for those who do so by TLS.
    pub private_https: Option<HttpsListener>,
    /// ... and some for instances of ours that call each other.
    pub cluster_local: Option<ClusterLocalListeners>,
    /// ... and one for events, served by what `make_events` makes.
    pub events: Option<TcpListener>,
    /// ... and one for events by TLS.
    pub events_tls: Option<HttpsListener>,
    pub make_events: Option<EventsServiceFactory>,
    pub tables: Arc<TablePublisher>,
    pub signals: SignalQueue,
    pub stop: Arc<StopSignal>,
    pub counters: Arc<CoreCounters>,
    /// What others want to know, if they may ask.
    pub questions: Option<mpsc::Receiver<ConnectionQuery>>,
    pub limits: CoreLimits,
    /// Where this core's chance comes from.
    pub seed: u64,
    /// Called once the core serves: its ring is open, its logs are recovered.
    pub up: Box<dyn FnOnce() + Send>,
}

/// Says whether this machine can run cores at all, before anything is made.
///
/// # Errors
/// The kernel, or what confines this process, lacks or forbids a feature of io_uring; it is named.
pub fn check_kernel() -> Result<(), Unsupported> {
    let ring = Ring::kernel(RingOptions { chunks: 8, ..RingOptions::default() })?;
    ring.shutdown();
    Ok(())
}

/// A listener for TLS, and what every core offers there.
pub struct HttpsListener {
    pub listener: TcpListener,
    pub server_config: TlsServerConfig,
}

/// Listeners for instances that call each other by names. They are closed last: what is still being answered may need
/// them.
pub struct ClusterLocalListeners {
    pub http: TcpListener,
    pub https: HttpsListener,
    /// What names without a dot are completed by.
    pub domains: Arc<SearchDomains>,
}

#[derive(Debug, Clone)]
pub struct CoreLimits {
    pub tls: TlsLimits,
    pub http: HttpLimits,
    /// Which addresses users may have requests sent to.
    pub targets: Arc<TargetPolicy>,
    pub pending: PendingQueueLimits,
    pub ring: RingOptions,
    /// Requests in flight may take this long after a stop, then they are cut.
    pub drain_max: Duration,
    /// Where answers are written down, if anywhere.
    pub access: Option<access_log::AccessLogConfig>,
    /// Clients are told what a request waited for.
    pub server_timing: bool,
    /// Where every request leaves a span, if anywhere.
    pub spans: Option<spans::SpanQueue>,
    /// A core that has not turned for this long counts as stalled; `None`: no watchdog looks.
    pub stall_timeout: Option<Duration>,
}

impl Default for CoreLimits {
    fn default() -> Self {
        Self {
            http: HttpLimits::default(),
            targets: Arc::default(),
            tls: TlsLimits::default(),
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

/// A future of this thread.
pub type LocalBoxFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// What serves events on a core: made on the core's thread, once the ring runs.
pub trait EventsService {
    /// Serves one connection to the events listener until it ends. `seat` is its place in the core's
    /// roster and tells it when the core stops.
    fn connection(self: Rc<Self>, stream: Transport, seat: ConnectionGuard) -> LocalBoxFuture<'static>;

    /// A bell was rung: there may be a new table.
    fn look(&self);

    /// The core stops: resolves once nothing is in flight. Has `drain_max` for it.
    fn drain(self: Rc<Self>) -> LocalBoxFuture<'static>;

    /// After [`EventsService::drain`]: gives what is on the disk to another process.
    fn release(self: Rc<Self>) -> LocalBoxFuture<'static>;
}

/// Makes the events' side of a core out of the proxy's, whose ring, client and waiting room it shares.
pub type EventsServiceFactory = Box<dyn FnOnce(&Rc<Proxy>) -> io::Result<Rc<dyn EventsService>> + Send>;

#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    #[error("core {index}: {why}")]
    Ring { index: usize, why: Unsupported },
    #[error("core {index}: {what}: {why}")]
    Io { index: usize, what: &'static str, why: io::Error },
}

/// The body of a core's thread. Returns when it was told to stop and has drained.
pub fn run(config: CoreConfig) -> Result<(), CoreError> {
    let index = config.index;
    let heartbeat = Arc::clone(&config.counters.heartbeat);
    let options = RingOptions { heartbeat: Arc::clone(&heartbeat), ..config.limits.ring.clone() };
    let ring = Ring::kernel(options).map_err(|why| CoreError::Ring { index, why })?;
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
        tables: config.tables,
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
    write_accesses_down(&proxy, config.limits.access);
    if let Some(questions) = config.questions {
        ring.spawn(notify_other_cores(Rc::clone(&proxy), questions));
    }
    let events = match config.make_events {
        Some(make) => Some(make(&proxy).map_err(failed("events"))?),
        None => None,
    };
    let take = |what, roster: &Rc<ConnectionTracker>, listener: TcpListener, serve: ConnectionHandler| {
        let listener = RingListener::from_std(ring, listener).map_err(failed(what))?;
        ring.spawn(take_in(Rc::clone(&proxy), Arc::clone(&config.stop), Rc::clone(roster), listener, serve));
        Ok(())
    };
    take("the http listener", &proxy.tracker, config.http, everybody(&proxy))?;
    let door = |terms| Rc::new(TlsAcceptor::new(ring, terms, config.limits.tls, Arc::clone(&proxy.counters)));
    if let Some(private) = config.private {
        take("the private listener", &proxy.tracker, private, those_inside(&proxy))?;
    }
    if let Some(HttpsListener { listener, server_config: terms }) = config.private_https {
        let serve = neighbours_by_tls(&proxy, door(terms), Arc::default());
        take("the private listener for TLS", &proxy.tracker, listener, serve)?;
    }
    let callees = Rc::<ConnectionTracker>::default();
    if let Some(ClusterLocalListeners { http, https, domains }) = config.cluster_local {
        take("the listener for instances", &callees, http, neighbours(&proxy, Arc::clone(&domains)))?;
        let serve = neighbours_by_tls(&proxy, door(https.server_config), domains);
        take("the listener for instances by TLS", &callees, https.listener, serve)?;
    }
    if let Some(HttpsListener { listener, server_config: terms }) = config.https {
        take("the https listener", &proxy.tracker, listener, behind_tls(&proxy, door(terms)))?;
    }
    let senders = Rc::<ConnectionTracker>::default();
    if let (Some(listener), Some(events)) = (config.events, &events) {
        take("the events listener", &senders, listener, senders_plain(events))?;
    }
    if let (Some(HttpsListener { listener, server_config: terms }), Some(events)) = (config.events_tls, &events) {
        take("the events listener for TLS", &senders, listener, senders_by_tls(events, door(terms)))?;
    }
    ring.spawn(sweep(Rc::clone(&proxy)));
    (config.up)();
    let (stop, drain_max) = (config.stop, config.limits.drain_max);
    let leaving = CoreShutdown { proxy, events, senders, callees, stop, drain_max };
    ring.block_on(leaving.run());
    Ok(())
}

/// What becomes of a connection. Called once for each, so a box costs nothing that counts.
type ConnectionHandler = Box<dyn Fn(RingStream, ConnectionGuard) -> LocalBoxFuture<'static>>;

fn everybody(proxy: &Rc<Proxy>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, seat| Box::pin(serve(Rc::clone(&proxy), stream, seat)))
}

fn those_inside(proxy: &Rc<Proxy>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, seat| Box::pin(serve_cluster_local(Rc::clone(&proxy), stream, seat, None)))
}

fn neighbours(proxy: &Rc<Proxy>, domains: Arc<SearchDomains>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, seat| {
        let domain = called(&stream, &domains);
        Box::pin(serve_cluster_local(Rc::clone(&proxy), stream, seat, domain))
    })
}

/// Also those who name a listener of their own: its address stands for no domain.
fn neighbours_by_tls(proxy: &Rc<Proxy>, door: Rc<TlsAcceptor>, domains: Arc<SearchDomains>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, seat| {
        let domain = called(&stream, &domains);
        let (proxy, door) = (Rc::clone(&proxy), Rc::clone(&door));
        Box::pin(async move {
            if let Some(stream) = door.open(stream).await {
                serve_cluster_local(proxy, stream, seat, domain).await;
            }
        })
    })
}

/// The domain that the address stands for which was called.
fn called(stream: &RingStream, domains: &SearchDomains) -> Option<Arc<str>> {
    stream.local_addr().ok().and_then(|address| domains.at(address.ip()))
}

fn behind_tls(proxy: &Rc<Proxy>, door: Rc<TlsAcceptor>) -> ConnectionHandler {
    let proxy = Rc::clone(proxy);
    Box::new(move |stream, seat| Box::pin(serve_tls(Rc::clone(&proxy), Rc::clone(&door), stream, seat)))
}

fn senders_plain(events: &Rc<dyn EventsService>) -> ConnectionHandler {
    let events = Rc::clone(events);
    Box::new(move |stream, seat| Rc::clone(&events).connection(stream.into(), seat))
}

fn senders_by_tls(events: &Rc<dyn EventsService>, door: Rc<TlsAcceptor>) -> ConnectionHandler {
    let events = Rc::clone(events);
    Box::new(move |stream, seat| Box::pin(take_by_tls(Rc::clone(&events), Rc::clone(&door), stream, seat)))
}

async fn take_by_tls(events: Rc<dyn EventsService>, door: Rc<TlsAcceptor>, stream: RingStream, seat: ConnectionGuard) {
    if let Some(stream) = door.open(stream).await {
        events.connection(stream.into(), seat).await;
    }
}

async fn serve_tls(proxy: Rc<Proxy>, door: Rc<TlsAcceptor>, stream: RingStream, seat: ConnectionGuard) {
    if let Some(stream) = door.open(stream).await {
        serve(proxy, stream, seat).await;
    }
}

/// Takes connections in until `roster` shuts its doors; then the listener is closed before anything else ends.
async fn take_in(
    proxy: Rc<Proxy>,
    stop: Arc<StopSignal>,
    roster: Rc<ConnectionTracker>,
    listener: RingListener,
    serve: ConnectionHandler,
) {
    // The doorman keeps a seat until the door is shut, so that a drained core refuses newcomers.
    let door = roster.enter(usize::MAX);
    let sit_down = |stream: RingStream| {
        let seat = if stream.is_beyond_limit() { None } else { roster.enter(proxy.limits.connections_max) };
        match seat {
            Some(seat) => proxy.ring.spawn_boxed(serve(stream, seat)),
            None => {
                proxy.counters.connections_refused.fetch_add(1, Relaxed);
            }
        }
    };
    let mut beside = stop.is_handover();
    let mut told: Option<Tick> = None;
    loop {
        let next = next_connection(&roster, &listener);
        let accepted = if beside {
            match by(&proxy.ring, Some(proxy.ring.now() + TABLE_CHECK_INTERVAL), next).await {
                Ok(accepted) => accepted,
                Err(_) => {
                    beside = stop.is_handover(); // once more after the other process has gone
                    listener.recheck();
                    continue;
                }
            }
        } else {
            next.await
        };
        let Some(accepted) = accepted else { break };
        match accepted {
            Ok(stream) => sit_down(stream),
            Err(why) => {
                let now = proxy.ring.now();
                if told.is_none_or(|told| now - told >= ACCEPT_LOG_INTERVAL) {
                    told = Some(now);
                    tracing::warn!(%why, "cannot take a connection in");
                }
                proxy.ring.sleep(ACCEPT_RETRY).await;
            }
        }
    }
    match listener.close().await {
        Ok(taken) => taken.into_iter().for_each(sit_down),
        Err(why) => tracing::warn!(%why, "cannot close a listener"),
    }
    drop(door);
}

/// `None` once the core stops.
async fn next_connection(roster: &ConnectionTracker, listener: &RingListener) -> Option<io::Result<RingStream>> {
    let mut accept = pin!(listener.accept());
    poll_fn(|cx| match roster.poll_closing(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => accept.as_mut().poll(cx).map(Some),
    })
    .await
}

fn write_accesses_down(proxy: &Rc<Proxy>, setup: Option<access_log::AccessLogConfig>) {
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

async fn notify_other_cores(proxy: Rc<Proxy>, mut questions: mpsc::Receiver<ConnectionQuery>) {
    while let Some(question) = questions.recv().await {
        proxy.tell(question);
    }
}

/// Lets an idle loop turn, so that a watchdog can tell it from one that is stuck.
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

/// A panic ends one task and leaves the core running, so nobody would notice a subscriber that stands still.
fn log_panics(proxy: &Proxy) {
    let panicked = proxy.ring.panicked();
    let told = proxy.counters.tasks_panicked.swap(panicked, Relaxed);
    if told < panicked {
        tracing::error!(panicked, "tasks of this core panicked; restart, and report the message on stderr");
    }
}

#[cfg(test)]
mod tests {
    use ring::sim::{FaultProfile, Simulation};

    use super::*;
    use crate::table::RoutingTable;

    /// A panic ends one task; whoever watches the metrics learns of it, once, and the core goes on.
    #[test]
    fn a_task_that_panics_is_counted_and_the_core_goes_on() {
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
