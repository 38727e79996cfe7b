//! How a core runs its events: opens the logs, serves the events listener, follows the table.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use ring::Ring;
use tokio::sync::mpsc;
use wal::{Hole, Log, Options, Recovery};

use super::Answer;
use super::delivery::Post as _;
use super::house::Events;
use super::ingress::{self, Refusal, with_methods};
use super::journal;
use super::limits::{BODIES_BYTES_MAX, BODY_BYTES_MAX};
use super::relay::{Letter, Parcel, Relay, Ways};
use super::resolve::{Resolver, system};
use super::sender::Sender;
use crate::core::{self, Local, MakeEvents};
use crate::counters::CoreCounters;
use crate::h2::buffered;
use crate::h2::server::Opened;
use crate::http::bodies::Bodies;
use crate::http::codec::RequestView;
use crate::http::limits::HttpLimits;
use crate::http::roster::Seat;
use crate::http::server::{Downstream, NoRequest, Spoken, serve_buffered};
use crate::proxy::Proxy;
use crate::publish::{Reader, Tables};
use crate::signal::Signals;
use crate::table::Table;
use crate::tls::Wire;

/// What a core's events are made from.
pub struct EventsConfig {
    /// The core's number, for logs and signals.
    pub core: usize,
    /// The core's own log.
    pub home: OpenLog,
    /// Logs of cores that are no more: delivered until they are empty.
    pub others: Vec<OpenLog>,
    pub tables: Arc<Tables>,
    pub signals: Signals,
    pub counters: Arc<CoreCounters>,
    /// The way to the other cores.
    pub relay: Relay,
    pub seed: u64,
}

/// A log, and what its recovery found. Opening one waits for the disk, so it is best done before the core begins.
pub struct OpenLog {
    folder: PathBuf,
    log: Log,
    recovery: Recovery,
}

impl OpenLog {
    /// Opens the log in `folder`, or makes one there.
    ///
    /// # Errors
    /// The log's: what is there cannot be read, or is somebody else's.
    pub fn open(folder: &Path, options: Options) -> Result<Self, wal::Error> {
        let (log, recovery) = Log::open(folder, options)?;
        Ok(Self { folder: folder.into(), log, recovery })
    }

    /// Brokers and channels of which it has something.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.log.streams().filter(|(_, name)| *name != journal::STREAM).count()
    }

    /// Says what was found, loudly if something is missing.
    fn tell(self, core: usize, counters: &CoreCounters) -> Log {
        let Self { folder, log, recovery } = self;
        for Hole { file, from, to } in &recovery.holes {
            let file = file
                .as_ref()
                .map_or_else(|| "a file that is missing".into(), |file| file.display().to_string());
            tracing::error!(core, %file, %from, %to, "acknowledged events are gone: see the disk's log and wal verify");
        }
        for cut in &recovery.cut {
            tracing::error!(core, %cut, "a segment's file was short: what stood behind is gone, if anything did");
        }
        counters.log.holes.fetch_add(recovery.holes.len() as u64, Relaxed);
        let Recovery { segments, events, torn_bytes, .. } = recovery;
        tracing::info!(core, folder = %folder.display(), segments, events, torn_bytes, "event log is open");
        log
    }
}

/// Makes the events' side of a core, for [`core::CoreConfig::make_events`].
#[must_use]
pub fn make(config: EventsConfig) -> MakeEvents {
    Box::new(move |proxy| Ok(Service::open(config, proxy) as Rc<dyn core::Events>))
}

struct Service {
    ring: Ring,
    limits: Rc<HttpLimits>,
    counters: Arc<CoreCounters>,
    /// Room for what is being taken in.
    bodies: Bodies,
    events: Rc<Events<Sender>>,
    sender: Sender,
    resolver: Rc<Resolver>,
    reader: RefCell<Reader>,
    ways: Ways,
}

impl Service {
    fn open(config: EventsConfig, proxy: &Rc<Proxy>) -> Rc<Self> {
        let EventsConfig { core, home, others, tables, signals, counters, relay, seed } = config;
        let home = home.tell(core, &counters);
        let others = others.into_iter().map(|other| other.tell(core, &counters)).collect();
        let resolver = Rc::new(Resolver::new(&proxy.ring, system));
        let sender =
            Sender { proxy: Rc::clone(proxy), resolver: Rc::clone(&resolver), signals: signals.clone() };
        let events = Events::open(&proxy.ring, home, others, &sender, seed);
        events.start(core, &signals, &counters);
        let (ways, inbox) = relay.split();
        let service = Rc::new(Self {
            ring: proxy.ring.clone(),
            limits: Rc::clone(&proxy.limits),
            counters,
            bodies: Bodies::new(BODY_BYTES_MAX, BODIES_BYTES_MAX),
            events,
            sender,
            resolver,
            reader: RefCell::new(tables.reader()),
            ways,
        });
        service.follow();
        proxy.ring.spawn(Rc::clone(&service).hear_others(inbox));
        service
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(self.reader.borrow_mut().load())
    }

    fn follow(&self) {
        if let Err(why) = self.events.sync(&self.table()) {
            // The next request or bell tries again; until then the new subscribers are not served.
            tracing::warn!(%why, "the log does not take the table's subscribers");
        }
    }

    async fn answer(&self, by_tls: bool, request: RequestView<'_>, body: &Bytes) -> Answer {
        let table = self.table();
        if !table.events_by.takes(by_tls) {
            return ingress::refused(&Refusal::WrongDoor { by_tls });
        }
        let headers: Vec<_> = request.fields().collect(); // views; one allocation a request
        let (method, path) = (request.method(), request.path());
        match ingress::find(&table, path) {
            Some(stream) if stream.in_order && method == "POST" && self.ways.leads_away(&stream.name) => {
                self.ways.send(&stream.name, path, &headers, body).await
            }
            _ => self.events.answer(&table, method, path, &headers, body).await,
        }
    }

    /// Takes in what came to other cores. Requests are begun in the order in which they come, and each is
    /// appended before it waits for anything.
    async fn hear_others(self: Rc<Self>, mut inbox: mpsc::Receiver<Parcel>) {
        while let Some(parcel) = inbox.recv().await {
            let service = Rc::clone(&self);
            self.ring.spawn(async move {
                let table = service.table();
                match parcel {
                    Parcel::Request { path, headers, body, answer } => {
                        let headers: Vec<_> =
                            headers.iter().map(|(name, value)| (&**name, &**value)).collect();
                        let said = service.events.answer(&table, "POST", &path, &headers, &body).await;
                        drop(answer.send(said));
                    }
                    Parcel::Copy { path, record, answer } => {
                        drop(answer.send(service.events.copy(&table, &path, &record).await));
                    }
                    Parcel::Letter(letter) => {
                        let Letter { target, request, timeout, answer } = *letter;
                        drop(answer.send(service.sender.post(&target, request, timeout).await));
                    }
                }
            });
        }
    }
}

impl core::Events for Service {
    fn connection(self: Rc<Self>, stream: Wire, seat: Seat) -> Local<'static> {
        Box::pin(async move {
            let (ring, limits, counters) =
                (self.ring.clone(), Rc::clone(&self.limits), Arc::clone(&self.counters));
            let by_tls = stream.is_tls();
            let bodies = self.bodies.clone();
            let mut connection = Downstream::new(&ring, stream, seat, &limits);
            let handler =
                async move |request: RequestView<'_>, body: Bytes| self.answer(by_tls, request, &body).await;
            match connection.opening().await {
                Ok(Spoken::Http2) => {
                    let Downstream { stream, inflow, seat, .. } = connection;
                    let (held, facts) = (inflow.held, Rc::default());
                    let opened = Opened { ring, limits: *limits, counters, stream, held, seat, facts };
                    buffered::serve_buffered(opened, &bodies, with_methods, Rc::new(handler)).await;
                }
                Ok(Spoken::Http1) => serve_buffered(connection, &bodies, with_methods, &handler).await,
                Err(NoRequest::Stalled) => {
                    let answer = with_methods(Answer::text(408, "request timeout: the head did not come"));
                    if connection.answer(&answer, true).await.is_ok() {
                        connection.linger().await;
                    }
                }
                Err(_) => connection.close().await,
            }
        })
    }

    fn look(&self) {
        self.resolver.look();
        self.follow();
    }

    fn drain(self: Rc<Self>) -> Local<'static> {
        Box::pin(async move { self.events.drain().await })
    }

    fn release(self: Rc<Self>) -> Local<'static> {
        Box::pin(async move { self.events.release().await })
    }
}
