//! Runs the events of a core: opens the logs, serves the events listener, follows the table.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use codec::http::LocalResponse;
use codec::http::RequestView;
use contract::core_relay::{CoreMessage, CoreRelay, CoreSenders, ForwardedDeadLetter};
use contract::counters::CoreCounters;
use contract::signal::SignalQueue;
use contract::table::RoutingTable;
use contract::table_publisher::{TablePublisher, TableReader};
use protocol::h2::buffered;
use protocol::h2::server::DetectedHttp2;
use protocol::http::body_budget::BodyBudget;
use protocol::http::connection_tracker::ConnectionGuard;
use protocol::http::limits::HttpLimits;
use protocol::http::server::{ClientConnection, ClientProtocol, RequestReadError, serve_buffered};
use protocol::tls::Transport;
use proxy::Proxy;
use ring::Ring;
use tokio::sync::mpsc;
use wal::{LogOptions, Recovery, WriteAheadLog};

use super::delivery::EventSender as _;
use super::delivery_log;
use super::dns::{DnsResolver, system};
use super::durable_requests::{self, PassedRequest};
use super::engine::BrokerEngine;
use super::event_sinks::{self, SinkRequest};
use super::events_service::{EventsService, EventsServiceFactory, LocalBoxFuture};
use super::ingress::{self, IngressRejection, with_methods};
use super::limits::{BODIES_BYTES_MAX, BODY_BYTES_MAX};
use super::sender::HttpSender;

/// Configuration of a core's events.
pub struct EventsConfig {
    /// The core's number, for logs and signals.
    pub core: usize,
    /// The core's own log.
    pub home_folder: OpenLog,
    /// Logs of cores that no longer exist: delivered until they are empty.
    pub others: Vec<OpenLog>,
    pub tables: Arc<TablePublisher>,
    pub signals: SignalQueue,
    pub counters: Arc<CoreCounters>,
    /// The channels to the other cores.
    pub relay: CoreRelay,
    pub seed: u64,
}

/// A log, and what its recovery found. Opening one waits for the disk, so do it before the core starts.
pub struct OpenLog {
    folder: PathBuf,
    log: WriteAheadLog,
    recovery: Recovery,
}

impl OpenLog {
    /// Opens the log in `folder`, or creates one there.
    ///
    /// # Errors Those of the log: its files cannot be read, or another process has them open.
    pub fn open(folder: &Path, options: LogOptions) -> Result<Self, wal::Error> {
        let (log, recovery) = WriteAheadLog::open(folder, options)?;
        Ok(Self { folder: folder.into(), log, recovery })
    }

    /// Number of brokers and channels with data in it.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.log.streams().filter(|(_, name)| *name != delivery_log::STREAM).count()
    }

    /// Logs what was found, as an error if data is missing.
    fn log_recovery(self, core: usize, counters: &CoreCounters) -> WriteAheadLog {
        let Self { folder, log, recovery } = self;
        for gap in &recovery.gaps {
            let (from, to) = (gap.from, gap.to);
            tracing::error!(core, file = %gap, %from, %to, "acknowledged events are lost: see the disk's log and wal verify");
        }
        for cut in &recovery.cut {
            tracing::error!(core, %cut, "a segment's file was truncated: records behind its end are lost, if there were any");
        }
        counters.log.gaps.fetch_add(recovery.gaps.len() as u64, Relaxed);
        let Recovery { segments, events, torn_bytes, .. } = recovery;
        tracing::info!(core, folder = %folder.display(), segments, events, torn_bytes, "event log is open");
        log
    }
}

/// Creates the events service of a core, for a core's configuration.
#[must_use]
pub fn make(config: EventsConfig) -> EventsServiceFactory {
    Box::new(move |proxy| Ok(EventsServer::open(config, proxy) as Rc<dyn EventsService>))
}

struct EventsServer {
    ring: Ring,
    limits: Rc<HttpLimits>,
    counters: Arc<CoreCounters>,
    /// Memory budget of the request bodies.
    bodies: BodyBudget,
    events: Rc<BrokerEngine<HttpSender>>,
    sender: HttpSender,
    resolver: Rc<DnsResolver>,
    reader: RefCell<TableReader>,
    senders: CoreSenders,
}

impl EventsServer {
    fn open(config: EventsConfig, proxy: &Rc<Proxy>) -> Rc<Self> {
        let EventsConfig { core, home_folder: home, others, tables, signals, counters, relay, seed } = config;
        let home = home.log_recovery(core, &counters);
        let others = others.into_iter().map(|other| other.log_recovery(core, &counters)).collect();
        let resolver = Rc::new(DnsResolver::new(&proxy.ring, system));
        let sender = HttpSender { proxy: Rc::clone(proxy), resolver: Rc::clone(&resolver) };
        let (ways, inbox) = relay.split();
        let owners = ways.clone();
        let owns = move |subscriber: &str| !owners.is_remote(subscriber);
        let events = BrokerEngine::open(&proxy.ring, home, others, &sender, (seed, owns));
        events.start(core, &signals, &counters);
        let service = Rc::new(Self {
            ring: proxy.ring.clone(),
            limits: Rc::clone(&proxy.limits),
            counters,
            bodies: BodyBudget::new(BODY_BYTES_MAX, BODIES_BYTES_MAX),
            events,
            sender,
            resolver,
            reader: RefCell::new(tables.reader()),
            senders: ways,
        });
        service.follow();
        proxy.ring.spawn(Rc::clone(&service).receive_from_cores(inbox));
        service
    }

    fn table(&self) -> Arc<RoutingTable> {
        Arc::clone(self.reader.borrow_mut().load())
    }

    fn follow(&self) {
        if let Err(why) = self.events.sync(&self.table()) {
            // The next request or wake tries again; until then the new subscribers are not served.
            tracing::warn!(%why, "the log rejects the table's subscribers");
        }
    }

    /// Rejects a request by its head if its sender is not authenticated.
    fn reject(&self, by_tls: bool, request: RequestView<'_>) -> Option<LocalResponse> {
        let table = self.table();
        if !table.events_by.accepts(by_tls) {
            return None;
        }
        let headers = || request.fields().collect::<Vec<_>>(); // views; rare: a large event, or HTTP/2
        if let Some(stream) = ingress::find(&table, request.path()) {
            stream.admission.as_ref()?;
            return self.events.reject_unauthenticated(stream, request.method(), &headers());
        }
        let (sink, _) = event_sinks::find(&table, request.path())?;
        let admission = sink.admission.as_ref().filter(|_| request.method() != "OPTIONS")?;
        let why = self.events.identify(admission, &headers()).err()?;
        Some(ingress::refused(&why.into()))
    }

    async fn answer(&self, by_tls: bool, request: RequestView<'_>, body: &Bytes) -> LocalResponse {
        let table = self.table();
        let (method, path) = (request.method(), request.path());
        let headers: Vec<_> = request.fields().collect(); // views; one allocation a request
        if let Some(to) = durable_requests::find(&table, path) {
            let passed = PassedRequest { method, headers: &headers, body };
            return durable_requests::answer(&self.events, &self.senders, &table, to, passed).await;
        }
        if !table.events_by.accepts(by_tls) {
            return ingress::refused(&IngressRejection::WrongListener { by_tls });
        }
        match ingress::find(&table, path) {
            Some(stream) if stream.in_order && method == "POST" && self.senders.is_remote(&stream.name) => {
                self.senders.send(&stream.name, path, &headers, body).await
            }
            None => match event_sinks::find(&table, path) {
                Some((sink, rest)) => {
                    let request = SinkRequest { method, rest, headers: &headers, body };
                    event_sinks::answer(&self.events, &self.sender, sink, request).await
                }
                None => self.events.answer(&table, method, path, &headers, body).await,
            },
            _ => self.events.answer(&table, method, path, &headers, body).await,
        }
    }

    /// Handles requests that other cores received. They are started in the order of arrival, and each is
    /// appended before it waits for anything.
    async fn receive_from_cores(self: Rc<Self>, mut inbox: mpsc::Receiver<CoreMessage>) {
        while let Some(message) = inbox.recv().await {
            let service = Rc::clone(&self);
            self.ring.spawn(async move {
                let table = service.table();
                match message {
                    CoreMessage::Request { path, headers, body, answer } => {
                        let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
                        let said = service.events.answer(&table, "POST", &path, &headers, &body).await;
                        drop(answer.send(said));
                    }
                    CoreMessage::Copy { path, record, answer } => {
                        drop(answer.send(service.events.copy(&table, &path, &record).await));
                    }
                    CoreMessage::Result { path, id, answer } => {
                        let found = match table.streams.get(&path) {
                            Some(stream) => durable_requests::result(&service.events, stream, id).await,
                            None => None,
                        };
                        drop(answer.send(found));
                    }
                    CoreMessage::DeadLetter(forwarded) => {
                        let ForwardedDeadLetter { target, request, timeout, answer } = *forwarded;
                        drop(answer.send(service.sender.send(&target, request, timeout).await));
                    }
                }
            });
        }
    }
}

impl EventsService for EventsServer {
    fn connection(self: Rc<Self>, stream: Transport, guard: ConnectionGuard) -> LocalBoxFuture<'static> {
        Box::pin(async move {
            let (ring, limits, counters) = (self.ring.clone(), Rc::clone(&self.limits), Arc::clone(&self.counters));
            let by_tls = stream.is_tls();
            let bodies = self.bodies.clone();
            let mut connection = ClientConnection::new(&ring, stream, guard, &limits);
            let service = Rc::clone(&self);
            let reject = move |request: RequestView<'_>| service.reject(by_tls, request);
            let handler = async move |request: RequestView<'_>, body: Bytes| self.answer(by_tls, request, &body).await;
            match connection.opening().await {
                Ok(ClientProtocol::Http2) => {
                    let ClientConnection { stream, read_buffer, guard, .. } = connection;
                    let (held, facts) = (read_buffer.unread, Rc::default());
                    let opened =
                        DetectedHttp2 { ring, limits: *limits, counters, stream, held, guard, io_state: facts };
                    buffered::serve_buffered(opened, &bodies, with_methods, Rc::new(reject), Rc::new(handler)).await;
                }
                Ok(ClientProtocol::Http1) => {
                    serve_buffered(connection, &bodies, with_methods, &reject, &handler).await;
                }
                Err(RequestReadError::Stalled) => {
                    let answer =
                        with_methods(LocalResponse::text(408, "request timeout: the request head is incomplete"));
                    if connection.answer(&answer, true).await.is_ok() {
                        connection.linger().await;
                    }
                }
                Err(_) => connection.close().await,
            }
        })
    }

    fn on_wake(&self) {
        self.resolver.get();
        self.follow();
    }

    fn drain(self: Rc<Self>) -> LocalBoxFuture<'static> {
        Box::pin(async move { self.events.drain().await })
    }

    fn release(self: Rc<Self>) -> LocalBoxFuture<'static> {
        Box::pin(async move { self.events.release().await })
    }
}
