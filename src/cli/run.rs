//! `sluicegate run`: the composition root. Composes the parts, prints `ready`, and drains.

mod access_log;
mod advertised_address;
mod api;
mod arrival;
mod certificates;
mod cluster;
mod cluster_local;
mod control;
mod control_config;
mod cores;
pub(super) mod data_folder;
mod descriptors;
mod events_tls;
mod hosts;
mod hot_restart;
mod image_pulls;
mod instances;
mod listeners;
pub(super) mod log_names;
mod logging;
mod logs;
mod otlp;
mod preflight;
mod routes;
mod signals;
mod sockets;
mod targets;
mod watchdog;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use ::control::expiry::Expiries;
use ::control::publish::Publisher;
use ::control::runtime::kill_leftovers;
use anyhow::{Context, Result, anyhow};
use dataplane::core::{CoreLimits, StopSignal};
use dataplane::signal::SignalQueue;
use dataplane::spans::SpanQueue;
use dataplane::table::RoutingTable;
use dataplane::table_publisher::TablePublisher;
use dataplane::target_policy::TargetPolicy;
use dataplane::tls::{CertificateStore, TlsClientConfig};
use tokio::sync::{Notify, oneshot};

use crate::admin::Health;
use crate::config::{RunConfig, ServerTiming, Settings};
use arrival::Arrival;
use cluster_local::ClusterLocalGateway;
use control::{AdminPort, ControlHandle, ControlThread, ControlThreadConfig};
use control_config::control_config;
use cores::{RunningCores, SharedCoreConfig};
use data_folder::DataFolder;
use events_tls::EventsTls;
use hot_restart::{HandoverListener, HandoverState, PendingHandover, Successor};
use listeners::CoreListeners;
use log_names::LogNames;
use logs::CoreLogs;
use otlp::OtlpExporter;
use preflight::Preflight;
use sockets::{BoundSockets, SocketDescriptors};

/// Interval of progress lines while a start waits.
const START_PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Serves until stopped; returns the exit status of the process.
pub(crate) fn run(settings: Settings) -> ExitCode {
    let (config, log) = match RunConfig::decide(settings).and_then(|config| Ok((config, logging::start()?))) {
        Ok(both) => both,
        Err(why) => {
            complain!("error: {why}");
            return super::USAGE.into();
        }
    };
    for warning in &config.deprecations {
        tracing::warn!("{warning}");
    }
    dataplane::allocator::set_bounds();
    let outcome = serve(config);
    if let Err(why) = &outcome {
        log.send(format!("error: {why:#}\n"));
    }
    log.finish();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Events for the main thread.
enum MainEvent {
    /// SIGTERM or SIGINT.
    Signal,
    /// SIGHUP.
    Reload,
    CoreEnded,
    /// Another process requests the handover.
    HandoverRequested(PendingHandover),
    /// The successor serves. Keep the connection until the end: the successor waits for it to close.
    Replaced(Successor),
    /// The successor got everything, and does not serve.
    Orphaned(anyhow::Error),
    /// The first table is published, or failed.
    Synced(Result<()>),
}

fn serve(config: RunConfig) -> Result<()> {
    let (say, hear) = mpsc::channel();
    let arrived = Arc::new(AtomicBool::new(false));
    signals::listen(say.clone(), Arc::clone(&arrived))?;
    descriptors::raise_limit(config.workers)?;
    let expiries = Arc::<Expiries>::default();
    let Preflight { certificates, trust, given, access, access_log: log_thread, api_socket } =
        preflight::run(&config, &expiries)?;
    let Arrival { folder, logs, sockets, predecessor } = arrival::arrive(&config, api_socket)?;
    arrived.store(true, Relaxed);
    let ready = sockets.ready_line()?;
    let events_tls = EventsTls::open(&config, &sockets)?;

    let tables = TablePublisher::new(RoutingTable::default());
    let log_names = LogNames::new(&config.data, &tables);
    let publisher = publisher(&config, &tables, (certificates, trust), log_names.clone())?;
    let ClusterLocalGateway { listeners: inside, gateway } = cluster_local::open(&config, &tables);
    let targets = targets::policy(&config, &sockets, gateway.as_ref().ok())?;
    let (health, ways) = (Arc::new(Health { targets, expiries, ..Health::default() }), Arc::default());
    let (spans, exporter) = otlp::start(&config, &health)?.unzip();
    let ((notify, signals), (control_handle, steered)) = (signals(), control::control_handle());
    let shared = SharedCoreConfig::new(&tables, &signals, predecessor.is_some());
    let mut state = state(&config, (sockets.keep()?, folder), &shared, control_handle, &health);
    let ControlThread { synced, admin, thread: control } = control::start(ControlThreadConfig {
        control: control_config(&config, &sockets, events_tls.as_ref(), &health, &ways)?,
        config: config.clone(),
        publisher: Arc::clone(&publisher),
        signals,
        wake: notify,
        api: sockets.api,
        api_socket: sockets.api_socket,
        given: given.clone(),
        admin: sockets.admin,
        health: Arc::clone(&health),
        steered,
        events_tls: events_tls.clone(),
        gateway,
        handover: predecessor.is_some(),
        log_names,
    })?;
    if !await_objects(synced, (&hear, &say))? {
        state.control_handle.stop.send_replace(true);
        return control.join().map_err(|_| panicked())?;
    }
    let BoundSockets { http, https, private, private_https, events, events_https, .. } = sockets;
    let core_listeners =
        CoreListeners { http, https, private, private_https, cluster_local: inside, events, events_https, events_tls };
    let targets = Arc::clone(&health.targets);
    let cores = start_cores(&config, &shared, core_listeners, logs.finish()?, (access, spans, targets), say.clone())?;
    watchdog::start(&config, &cores, &tables, &health)?;
    drop((ways.set(cores.queries()), admin.send(Arc::new(cores.admin(tables, &health)))));
    start_handover_listener(&config, say.clone());
    announce(&ready)?;
    if let Some(predecessor) = predecessor {
        predecessor.dismiss(clear_up(config.data.clone(), Arc::clone(&shared.stop)))?;
    }

    let event = live((&config, &publisher), &mut state, (&log_thread, &given), (&hear, &say))?;
    health.draining.store(true, Relaxed);
    if matches!(event, MainEvent::Replaced(_)) {
        state.control_handle.admin_port.send_replace(AdminPort::Closed);
    }
    let HandoverState { sockets, folder, control_handle, .. } = state;
    drop(sockets); // otherwise the kernel would continue to accept connections
    let (outcome, successor) = end(event, &shared, hear, cores, (log_thread, exporter));
    control_handle.stop.send_replace(true);
    let _ended = control.join().map_err(|_| panicked())?;
    drop((folder, successor));
    outcome
}

fn state(
    config: &RunConfig,
    (sockets, folder): (SocketDescriptors, DataFolder),
    shared: &SharedCoreConfig,
    control_handle: ControlHandle,
    health: &Arc<Health>,
) -> HandoverState {
    HandoverState {
        sockets,
        folder: Some(folder),
        cores: config.workers,
        stop: Arc::clone(&shared.stop),
        tables: Arc::clone(&shared.tables),
        successors: 0,
        control_handle,
        health: Arc::clone(health),
    }
}

fn panicked() -> anyhow::Error {
    anyhow!("the control thread panicked, see its message above")
}

/// Waits for the first table. `false`: the process is stopped before there is one. An API that does not
/// respond must not prevent that.
fn await_objects(
    synced: oneshot::Receiver<Result<()>>,
    (hear, say): (&mpsc::Receiver<MainEvent>, &mpsc::Sender<MainEvent>),
) -> Result<bool> {
    let tell = say.clone();
    let wait = move || {
        let outcome = synced.blocking_recv().context("the control thread ended at its start").flatten();
        drop(tell.send(MainEvent::Synced(outcome))); // fails only when this process is ending anyway
    };
    std::thread::Builder::new().name("start".to_owned()).spawn(wait).context("no thread")?;
    let mut reloads = false;
    loop {
        match hear.recv_timeout(START_PROGRESS_INTERVAL) {
            Ok(MainEvent::Synced(outcome)) => {
                if reloads {
                    // reload again: the files read before the signal may be out of date
                    drop(say.send(MainEvent::Reload));
                }
                return outcome.map(|()| true);
            }
            Ok(MainEvent::Signal) => return Ok(false),
            Ok(event) => reloads |= matches!(event, MainEvent::Reload),
            Err(_) => {
                tracing::info!("still waiting for the objects; serving starts when they are loaded")
            }
        }
    }
}

/// Runs until there is a reason to stop.
fn live(
    (config, publisher): (&RunConfig, &Publisher),
    state: &mut HandoverState,
    (access, given): (&access_log::AccessLogThread, &api::ApiTlsFiles),
    (hear, say): (&mpsc::Receiver<MainEvent>, &mpsc::Sender<MainEvent>),
) -> Result<MainEvent> {
    loop {
        match hear.recv().context("every event sender is gone")? {
            MainEvent::Reload => {
                certificates::reload(config, publisher, &state.health.expiries);
                access.reopen();
                given.reopen();
            }
            MainEvent::HandoverRequested(request) => match state.hand_over(request) {
                Ok(successor) => await_successor(successor, say.clone())?,
                Err(why) => state.keep(&why, || start_handover_listener(config, say.clone())),
            },
            MainEvent::Orphaned(why) => state.outlive(&why, || start_handover_listener(config, say.clone())),
            event => return Ok(event),
        }
    }
}

fn await_successor(successor: Successor, say: mpsc::Sender<MainEvent>) -> Result<()> {
    let wait = move || {
        let event = match successor.wait_until_up() {
            Ok(()) => MainEvent::Replaced(successor),
            Err(why) => MainEvent::Orphaned(why),
        };
        drop(say.send(event)); // fails only when this process is ending anyway
    };
    std::thread::Builder::new().name("successor".to_owned()).spawn(wait).context("no thread").map(drop)
}

/// Ends the cores, and what only they need. Keep `successor` alive as long as this process has resources.
fn end(
    event: MainEvent,
    shared: &SharedCoreConfig,
    hear: mpsc::Receiver<MainEvent>,
    cores: RunningCores,
    (access, exporter): (access_log::AccessLogThread, Option<OtlpExporter>),
) -> (Result<()>, Option<Successor>) {
    tracing::info!("draining: requests in flight finish, new ones are not accepted");
    let by_itself = matches!(event, MainEvent::CoreEnded);
    let successor = match event {
        MainEvent::Replaced(successor) => {
            shared.stop.signal_graceful(&shared.tables);
            let (stop, tables) = (Arc::clone(&shared.stop), Arc::clone(&shared.tables));
            std::thread::spawn(move || {
                if hear.iter().any(|event| matches!(event, MainEvent::Signal)) {
                    stop.signal(&tables); // a second signal: stop at once
                }
            });
            Some(successor)
        }
        _ => {
            shared.stop.signal(&shared.tables);
            None
        }
    };
    let mut outcome = cores.join();
    if by_itself && outcome.is_ok() {
        outcome = Err(anyhow!("a core ended by itself"));
    }
    access.finish();
    if let Some(exporter) = exporter {
        exporter.finish();
    }
    (outcome, successor)
}

/// Starts to listen for successors. Without it only `--hot-restart` does not work.
fn start_handover_listener(config: &RunConfig, say: mpsc::Sender<MainEvent>) {
    let opened = HandoverListener::open(&config.data).and_then(|listener| {
        // fails only when this process has ended
        listener.watch(move |request| drop(say.send(MainEvent::HandoverRequested(request))))
    });
    if let Err(why) = opened {
        tracing::warn!(why = format!("{why:#}"), "this process cannot be taken over");
    }
}

/// Cleans up when the previous process has ended.
fn clear_up(data: PathBuf, stop: Arc<StopSignal>) -> impl FnOnce() + Send + 'static {
    move || {
        stop.set_handover(false);
        match kill_leftovers(&data) {
            Ok(()) => tracing::info!("the process that was replaced has ended"),
            Err(why) => tracing::warn!(%why, "cannot search for instances of the previous process"),
        }
    }
}

fn start_cores(
    config: &RunConfig,
    shared: &SharedCoreConfig,
    core_listeners: CoreListeners,
    logs: Vec<CoreLogs>,
    (access, spans, targets): (dataplane::access_log::AccessLogConfig, Option<SpanQueue>, Arc<TargetPolicy>),
    say: mpsc::Sender<MainEvent>,
) -> Result<RunningCores> {
    let configs = core_listeners.addresses(&shared.tables, config.tls_min_version, logs)?;
    let tells_timing = config.server_timing == ServerTiming::Cold;
    let http = config.http_limits;
    let stall_timeout = config.stall_timeout();
    let mut limits = CoreLimits {
        http,
        access: Some(access),
        server_timing: tells_timing,
        spans,
        stall_timeout,
        targets,
        ..CoreLimits::default()
    };
    limits.ring.sockets_max = descriptors::sockets_max();
    RunningCores::start(shared, &limits, configs.into_iter(), move || {
        drop(say.send(MainEvent::CoreEnded)); // fails only when this process has ended
    })
}

fn signals() -> (Arc<Notify>, SignalQueue) {
    let notify = Arc::new(Notify::new());
    let notified = Arc::clone(&notify);
    (notify, SignalQueue::new(move || notified.notify_one()))
}

fn publisher(
    config: &RunConfig,
    tables: &Arc<TablePublisher>,
    (certificates, trust): (CertificateStore, Vec<Option<Arc<TlsClientConfig>>>),
    log_names: LogNames,
) -> Result<Arc<Publisher>> {
    let tables = Arc::clone(tables);
    let publisher = Publisher::new(Arc::new(move |table| {
        tables.publish(table);
        log_names.changed();
    }));
    publisher.set_certificates(certificates);
    let publisher = Arc::new(publisher);
    routes::publish(&config.routes, trust, &publisher)?;
    Ok(publisher)
}

/// Prints the line that tells a supervisor, a script or a test that everything listens, and where.
fn announce(ready: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{ready}").and_then(|()| out.flush()).context("stdout is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIGHUP also applies to files read during the start, which may take long.
    #[test]
    fn reload_during_start_runs_after_it() {
        let (say, hear) = mpsc::channel();
        let (synced, waits) = oneshot::channel();
        say.send(MainEvent::Reload).unwrap();
        synced.send(Ok(())).unwrap();
        assert!(await_objects(waits, (&hear, &say)).unwrap());
        assert!(matches!(hear.try_recv(), Ok(MainEvent::Reload)));
    }
}
