//! The cores' threads: one each, pinned, and none without the others.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use control::publish::Publisher;
use dataplane::broker::server::EventsConfig;
use dataplane::connection_query;
use dataplane::core::{ClusterLocalListeners, CoreConfig, CoreError, CoreLimits, HttpsListener, StopSignal};
use dataplane::core_relay::{CoreRelay, CoreSenders};
use dataplane::counters::CoreCounters;
use dataplane::signal::SignalQueue;
use dataplane::table_publisher::TablePublisher;
use rustix::thread::CpuSet;

use super::logs::{self, CoreLogs};
use crate::admin::{AdminServer, FiguresCache, Health};
use crate::config::RunConfig;

/// Shared by all cores.
pub(super) struct SharedCoreConfig {
    pub(super) tables: Arc<TablePublisher>,
    pub(super) signals: SignalQueue,
    pub(super) stop: Arc<StopSignal>,
}

impl SharedCoreConfig {
    /// `is_handover`: another process still accepts from the same sockets.
    pub(super) fn new(tables: &Arc<TablePublisher>, signals: &SignalQueue, is_handover: bool) -> Self {
        let stop = Arc::new(StopSignal::default());
        stop.set_handover(is_handover);
        Self { tables: Arc::clone(tables), signals: signals.clone(), stop }
    }
}

/// Owned by one core.
pub(super) struct PerCoreConfig {
    pub(super) http: TcpListener,
    pub(super) https: Option<HttpsListener>,
    pub(super) private: Option<TcpListener>,
    pub(super) private_https: Option<HttpsListener>,
    pub(super) cluster_local: Option<ClusterLocalListeners>,
    pub(super) events: TcpListener,
    pub(super) events_tls: Option<HttpsListener>,
    pub(super) logs: CoreLogs,
}

/// Running cores.
pub(super) struct RunningCores {
    pub(super) counters: Vec<Arc<CoreCounters>>,
    /// The channels to them.
    pub(super) queries: CoreSenders,
    /// The channels for debug queries.
    questions: connection_query::CoreQueries,
    /// The log folders, each at its number.
    logs: Vec<PathBuf>,
    /// The log folders of each core, its own first.
    pub(super) logs_of: Vec<Vec<PathBuf>>,
    threads: Vec<JoinHandle<Result<(), CoreError>>>,
}

impl RunningCores {
    /// Starts one thread for each core. `ended` is called when one ends for whatever reason: before the
    /// stop that is a failure, and the others would serve only their share of the port. Returns when all of
    /// them serve.
    pub(super) fn start(
        shared: &SharedCoreConfig,
        limits: &CoreLimits,
        configs: impl ExactSizeIterator<Item = PerCoreConfig>,
        ended: impl Fn() + Clone + Send + 'static,
    ) -> Result<Self> {
        let cpus = allowed_cpus();
        let (mut counters, mut logs_of, mut threads) = (Vec::new(), Vec::new(), Vec::new());
        let (say_up, hear_up) = mpsc::channel();
        let mut questions = connection_query::CoreQueries::default();
        let relays = CoreRelay::among(configs.len());
        let ways = relays.first().map(CoreRelay::senders).context("no core is wanted")?;
        for (index, (core_config, relay)) in configs.zip(relays).enumerate() {
            let PerCoreConfig {
                http,
                https,
                private,
                private_https,
                cluster_local: inside,
                events,
                events_tls,
                logs: open,
            } = core_config;
            let counted = Arc::new(CoreCounters::default());
            logs_of.push(open.folders.clone());
            let config = CoreConfig {
                index,
                http,
                https,
                private,
                private_https,
                cluster_local: inside,
                events: Some(events),
                events_tls,
                make_events: Some(dataplane::broker::server::make(events_config(index, shared, open, &counted, relay))),
                tables: Arc::clone(&shared.tables),
                signals: shared.signals.clone(),
                stop: Arc::clone(&shared.stop),
                counters: Arc::clone(&counted),
                queries: Some(questions.add()),
                limits: limits.clone(),
                seed: seed(index),
                up: up(say_up.clone()),
            };
            let processor = cpus.get(index % cpus.len().max(1)).copied();
            let call = CallOnDrop(ended.clone());
            let thread = std::thread::Builder::new()
                .name(format!("core-{index}"))
                .spawn(move || {
                    let _call = call;
                    pin(processor);
                    dataplane::core::run(config)
                })
                .context("no thread for a core")?;
            counters.push(counted);
            threads.push(thread);
        }
        drop(say_up);
        let logs = logs::by_number(logs_of.concat());
        let cores = Self { counters, queries: ways, questions, logs, logs_of, threads };
        // A core that fails before it serves drops its end without a message.
        let serving = hear_up.iter().take(cores.threads.len()).count();
        if serving == cores.threads.len() {
            return Ok(cores);
        }
        shared.stop.signal(&shared.tables);
        cores.join().and_then(|()| bail!("a core ended at its start"))
    }

    /// The channels through which other threads let cores send requests.
    pub(super) fn queries(&self) -> CoreSenders {
        self.queries.clone()
    }

    /// The state for the admin listener.
    pub(super) fn admin(
        &self,
        config: &RunConfig,
        tables: Arc<TablePublisher>,
        publisher: &Arc<Publisher>,
        health: &Arc<Health>,
    ) -> Arc<AdminServer> {
        let (cores, logs, ways) = (self.counters.clone(), self.logs.clone(), self.queries.clone());
        let questions = self.questions.clone();
        Arc::new(AdminServer {
            tables,
            publisher: Arc::clone(publisher),
            cores,
            health: Arc::clone(health),
            logs,
            senders: ways,
            questions,
            redrives: Arc::default(),
            figures: FiguresCache::default(),
            connections_max: config.http_limits.connections_max,
        })
    }

    /// Waits for all to end: the first failure, if any.
    pub(super) fn join(self) -> Result<()> {
        let mut outcome = Ok(());
        for thread in self.threads {
            let ended = match thread.join() {
                Ok(ended) => ended.map_err(anyhow::Error::from),
                Err(_) => Err(anyhow::anyhow!("a core panicked; see its message above")),
            };
            outcome = outcome.and(ended);
        }
        outcome
    }
}

fn events_config(
    core: usize,
    shared: &SharedCoreConfig,
    logs: CoreLogs,
    counters: &Arc<CoreCounters>,
    relay: CoreRelay,
) -> EventsConfig {
    EventsConfig {
        core,
        home_folder: logs.own,
        others: logs.others,
        tables: Arc::clone(&shared.tables),
        signals: shared.signals.clone(),
        counters: Arc::clone(counters),
        relay,
        seed: seed(core),
    }
}

fn up(say: mpsc::Sender<()>) -> Box<dyn FnOnce() + Send> {
    // An error: the receiver is gone, because another core failed.
    Box::new(move || {
        let _ = say.send(());
    })
}

/// Also runs when the thread unwinds.
struct CallOnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for CallOnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The processors that this process may use.
fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// A core that moves between processors loses its caches; without pinning it still works.
fn pin(processor: Option<usize>) {
    if let Some(cpu) = processor {
        let mut set = CpuSet::new();
        set.set(cpu);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// The seed only has to differ between cores and starts.
fn seed(index: usize) -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_usize(index);
    hasher.finish()
}
