//! How a core runs its events: opens the logs, serves the events listener, follows the table.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use ring::{Ring, Stream};
use wal::{Hole, Log, Options};

use super::Answer;
use super::house::Events;
use super::limits::BODY_BYTES_MAX;
use super::resolve::{Resolver, system};
use super::sender::Sender;
use crate::core::{self, Local, MakeEvents};
use crate::counters::CoreCounters;
use crate::http::codec::RequestView;
use crate::http::limits::HttpLimits;
use crate::http::roster::Seat;
use crate::http::server::{Downstream, serve_buffered};
use crate::proxy::Proxy;
use crate::publish::{Reader, Tables};
use crate::signal::Signals;
use crate::table::Table;

/// What a core's events are made from.
#[derive(Clone)]
pub struct EventsConfig {
    /// The core's number, for logs and signals.
    pub core: usize,
    /// Where the core's own log is, or will be.
    pub folder: PathBuf,
    /// Logs of cores that are no more: delivered until they are empty.
    pub others: Vec<PathBuf>,
    pub log: Options,
    pub tables: Arc<Tables>,
    pub signals: Signals,
    pub counters: Arc<CoreCounters>,
    pub seed: u64,
}

/// Makes the events' side of a core, for [`core::CoreConfig::make_events`].
#[must_use]
pub fn make(config: EventsConfig) -> MakeEvents {
    Box::new(move |proxy| Ok(Service::open(config, proxy)? as Rc<dyn core::Events>))
}

struct Service {
    ring: Ring,
    limits: HttpLimits,
    events: Rc<Events<Sender>>,
    resolver: Rc<Resolver>,
    reader: RefCell<Reader>,
}

impl Service {
    fn open(config: EventsConfig, proxy: &Rc<Proxy>) -> io::Result<Rc<Self>> {
        let EventsConfig { core, folder, others, log, tables, signals, counters, seed } = config;
        let open = |folder: &Path| open_log(core, folder, &log, &counters);
        let home = open(&folder)?;
        let others = others.iter().map(|folder| open(folder)).collect::<io::Result<_>>()?;
        let resolver = Rc::new(Resolver::new(&proxy.ring, system));
        let sender =
            Sender { proxy: Rc::clone(proxy), resolver: Rc::clone(&resolver), signals: signals.clone() };
        let events = Events::open(&proxy.ring, home, others, &sender, seed);
        events.start(core, &signals, &counters);
        let service = Rc::new(Self {
            ring: proxy.ring.clone(),
            limits: proxy.limits,
            events,
            resolver,
            reader: RefCell::new(tables.reader()),
        });
        service.follow();
        Ok(service)
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

    async fn answer(&self, request: RequestView<'_>, body: &Bytes) -> Answer {
        let headers: Vec<_> = request.fields().collect(); // views; one allocation a request
        let table = self.table();
        self.events.answer(&table, request.method(), request.path(), &headers, body).await
    }
}

impl core::Events for Service {
    fn connection(self: Rc<Self>, stream: Stream, seat: Seat) -> Local<'static> {
        Box::pin(async move {
            let connection = Downstream::new(&self.ring, stream, seat, &self.limits);
            let handler = async |request: RequestView<'_>, body: Bytes| self.answer(request, &body).await;
            serve_buffered(connection, BODY_BYTES_MAX, &handler).await;
        })
    }

    fn look(&self) {
        self.resolver.look();
        self.follow();
    }

    fn drain(self: Rc<Self>) -> Local<'static> {
        Box::pin(async move { self.events.drain().await })
    }
}

fn open_log(core: usize, folder: &Path, options: &Options, counters: &CoreCounters) -> io::Result<Log> {
    let (log, recovery) = Log::open(folder, options.clone()).map_err(io::Error::other)?;
    for Hole { file, from, to } in &recovery.holes {
        let file =
            file.as_ref().map_or_else(|| "a file that is missing".into(), |file| file.display().to_string());
        tracing::error!(core, %file, %from, %to, "acknowledged events are gone: see the disk's log and wal verify");
    }
    counters.log.holes.fetch_add(recovery.holes.len() as u64, Relaxed);
    tracing::info!(core, folder = %folder.display(), ?recovery, "log open");
    for wal::Hole { file, from, to } in &recovery.holes {
        tracing::error!(core, ?file, %from, %to, "acknowledged events are gone: the disk lost what it had confirmed");
    }
    Ok(log)
}
