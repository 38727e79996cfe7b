//! The appliance: its parts, in the order of their start, and its shutdown.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use ::control::controllers::EventStoreConfig;
use ::control::expiry::Expiries;
use ::control::publish::Publisher;
use ::control::runtime::kill_leftovers;
use anyhow::{Context, Result, anyhow};
use dataplane::access_log::AccessLogConfig;
use dataplane::core::{CoreLimits, IoDriver, StopSignal};
use dataplane::signal::SignalQueue;
use dataplane::spans::SpanQueue;
use dataplane::table::RoutingTable;
use dataplane::table_publisher::TablePublisher;
use jetstream::JetStreamThread;
use tokio::sync::Notify;

use super::MainEvent;
use super::access_log::AccessLogThread;
use super::acme::{self, AcmeThread};
use super::api::ApiTlsFiles;
use super::arrival::{self, Arrival};
use super::banner::StartBanner;
use super::cluster_local::{self, ClusterLocalGateway};
use super::control::{self, AdminPort, ControlHandle, ControlThread, ControlThreadConfig};
use super::control_config::control_config;
use super::cores::{RunningCores, SharedCoreConfig};
use super::data_folder::DataFolder;
use super::events_tls::EventsTls;
use super::first_table::await_objects;
use super::gateway_sockets::GatewaySockets;
use super::hot_restart::{HandoverListener, HandoverState, OwnCommand, Predecessor, Successor};
use super::listeners::CoreListeners;
use super::log_names::LogNames;
use super::logs::CoreLogs;
use super::otlp::{self, OtlpExporter};
use super::preflight::{self, GatewayFiles, Preflight};
use super::reload::Reloader;
use super::routes::StaticRoutes;
use super::sockets::{BoundSockets, SocketDescriptors};
use super::{certificates, descriptors, event_store, listeners, service_manager, signals, targets, watchdog};
use crate::admin::Health;
use crate::config::{RunConfig, ServerTiming, Settings};

/// How often the certificate for hosts of `--route` is checked, which expires weeks after it is due for renewal.
const RENEWAL_EVERY: Duration = Duration::from_secs(3600);

/// A running appliance.
pub(super) struct App {
    config: RunConfig,
    shared: SharedCoreConfig,
    state: HandoverState,
    cores: RunningCores,
    control: JoinHandle<Result<()>>,
    access_log: AccessLogThread,
    acme: Option<AcmeThread>,
    api_files: ApiTlsFiles,
    reloader: Reloader,
    background: BackgroundThreads,
    command: OwnCommand,
    events: mpsc::Receiver<MainEvent>,
    sender: mpsc::Sender<MainEvent>,
}

impl App {
    /// Starts everything, in this order: what can fail without a trace, the data folder and the sockets, the control thread, and
    /// with the first table the cores. `None`: the process was stopped before that.
    pub(super) fn start(config: RunConfig, settings: Settings) -> Result<Option<Self>> {
        let (command, expiries) = (OwnCommand::read()?, Arc::<Expiries>::default());
        let ((say, hear), arrived) = (mpsc::channel(), Arc::new(AtomicBool::new(false)));
        signals::listen(say.clone(), Arc::clone(&arrived))?;
        descriptors::raise_limit(config.workers)?;
        let Preflight { files, given, access, access_log: log_thread, api_socket, io_driver } =
            preflight::run(&config, &expiries)?;
        let Arrival { folder, logs, sockets, gateway_sockets: opened, predecessor } =
            arrival::arrive(&config, api_socket)?;
        arrived.store(true, Relaxed);
        let (ready, banner) = (sockets.ready_line()?, StartBanner::new(&config, &sockets)?);
        let events_tls = EventsTls::open(&config, &sockets)?;

        let (tables, publisher, routes, log_names) = publisher(&config, files)?;
        let ClusterLocalGateway { listeners: cluster_local, gateway, services } = cluster_local::open(&config, &tables);
        let targets = targets::policy(&config, &sockets, gateway.as_ref().ok())?;
        let (health, ways) = (Arc::new(Health { targets, expiries, ..Health::default() }), Arc::default());
        let (spans, store, background) = BackgroundThreads::start(&config, &health)?;
        let ((notify, signals), (control_handle, steered)) = (signal_queue(), control::control_handle());
        let shared = SharedCoreConfig::new(&tables, &signals, predecessor.is_some());
        let state = handover_state(&config, (sockets.keep()?, &opened, folder), &shared, control_handle, &health);
        let ControlThread { synced, admin, thread: control } = control::start(ControlThreadConfig {
            control: control_config(&config, (&sockets, &opened, services), (&events_tls, store), &health, &ways)?,
            config: config.clone(),
            publisher: Arc::clone(&publisher),
            signals,
            wake: notify,
            api: sockets.api,
            api_socket: sockets.api_socket,
            given: given.clone(),
            admin: sockets.admin,
            console: sockets.console,
            health: Arc::clone(&health),
            steered,
            events_tls: events_tls.clone(),
            gateway,
            handover: predecessor.is_some(),
            log_names,
            io_driver,
        })?;
        if !await_objects(synced, (&hear, &say))? {
            return stop_control(&state, control).map(|()| None);
        }
        let BoundSockets { http, https, private, private_https, events, events_https, .. } = sockets;
        let listeners =
            CoreListeners { http, https, private, private_https, cluster_local, events, events_https, events_tls };
        let access = (access, spans, &health, io_driver);
        let cores = start_cores(&config, &shared, listeners, logs.finish()?, access, say.clone())?;
        drop((ways.set(cores.queries()), admin.send(cores.admin(&config, tables, &publisher, &health))));
        start_handover_listener(&config, say.clone());
        let acme = acme::start(&config, &publisher, &health.acme)?;
        let reloader = Reloader::start(settings, &config, (publisher, routes), say.clone());
        announce(&ready, &banner)?;
        report_ready(predecessor, clear_up(config.data.clone(), Arc::clone(&shared.stop), opened))?;
        Ok(Some(Self {
            config,
            shared,
            state,
            cores,
            control,
            access_log: log_thread,
            acme,
            api_files: given,
            reloader,
            background,
            command,
            events: hear,
            sender: say,
        }))
    }

    /// Serves until there is a reason to stop.
    pub(super) fn run(mut self) -> Result<()> {
        let event = self.next_stop()?;
        self.shutdown(event)
    }

    /// Reloads and hands over as it is asked, until an event ends this process.
    fn next_stop(&mut self) -> Result<MainEvent> {
        let Self { config, sender, state, command, .. } = self;
        loop {
            let event = match self.events.recv_timeout(RENEWAL_EVERY) {
                Err(mpsc::RecvTimeoutError::Timeout) => MainEvent::Renewal,
                event => event.context("every sender of this channel has ended")?,
            };
            match event {
                MainEvent::Renewal => certificates::renew_own(config, &self.reloader.publisher, &state.health.expiries),
                MainEvent::Reload => {
                    self.reloader.reload(config, &state.health);
                    self.access_log.reopen();
                    self.api_files.reopen();
                }
                MainEvent::SuccessorRequested => command.start_successor(),
                MainEvent::HandoverRequested(request) => match state.hand_over(request) {
                    Ok(successor) => await_successor(successor, sender.clone())?,
                    Err(why) => state.keep(&why, || start_handover_listener(config, sender.clone())),
                },
                MainEvent::Orphaned(why) => state.outlive(&why, || start_handover_listener(config, sender.clone())),
                event => return Ok(event),
            }
        }
    }

    /// Ends everything because of `event`: listeners, cores, logs, and with the last request the control thread.
    fn shutdown(self, event: MainEvent) -> Result<()> {
        let Self { shared, state, cores, control, access_log, acme, background, events, .. } = self;
        if let Some(acme) = acme {
            acme.finish();
        }
        state.health.draining.store(true, Relaxed);
        if let MainEvent::Replaced(successor) = &event {
            service_manager::replaced_by(successor);
            state.control_handle.admin_port.send_replace(AdminPort::Closed);
        } else {
            service_manager::stopping();
        }
        let HandoverState { sockets, gateway_sockets, folder, control_handle, .. } = state;
        // Otherwise the kernel would continue to accept connections.
        drop(sockets);
        gateway_sockets.close();
        let (outcome, successor) = end_cores(event, &shared, events, cores);
        access_log.finish();
        background.finish();
        control_handle.stop.send_replace(true);
        let _ended = control.join().map_err(|_| panicked())?;
        drop((folder, successor));
        outcome
    }
}

/// Threads that the cores send to, and that end after them.
struct BackgroundThreads {
    exporter: Option<OtlpExporter>,
    jetstream: JetStreamThread,
}

impl BackgroundThreads {
    fn start(config: &RunConfig, health: &Health) -> Result<(Option<SpanQueue>, EventStoreConfig, Self)> {
        let (spans, exporter) = otlp::start(config, health)?.unzip();
        let (store, jetstream) = event_store::start(config, &health.targets)?;
        Ok((spans, store, Self { exporter, jetstream }))
    }

    fn finish(self) {
        self.jetstream.finish();
        if let Some(exporter) = self.exporter {
            exporter.finish();
        }
    }
}

/// What a successor gets of this process, or takes over from it.
fn handover_state(
    config: &RunConfig,
    (sockets, gateway_sockets, folder): (SocketDescriptors, &Arc<GatewaySockets>, DataFolder),
    shared: &SharedCoreConfig,
    control_handle: ControlHandle,
    health: &Arc<Health>,
) -> HandoverState {
    HandoverState {
        sockets,
        gateway_sockets: Arc::clone(gateway_sockets),
        folder: Some(folder),
        cores: config.workers,
        stop: Arc::clone(&shared.stop),
        tables: Arc::clone(&shared.tables),
        successors: 0,
        control_handle,
        health: Arc::clone(health),
    }
}

/// Ends the control thread of a process that was stopped before its first table.
fn stop_control(state: &HandoverState, control: JoinHandle<Result<()>>) -> Result<()> {
    state.control_handle.stop.send_replace(true);
    control.join().map_err(|_| panicked())?
}

fn panicked() -> anyhow::Error {
    anyhow!("the control thread panicked, see its message above")
}

/// Ends the cores. Keep `successor` alive as long as this process has resources.
fn end_cores(
    event: MainEvent,
    shared: &SharedCoreConfig,
    hear: mpsc::Receiver<MainEvent>,
    cores: RunningCores,
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
    (outcome, successor)
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

/// Closes listeners of Gateways that nothing uses, and cleans up when the previous process has ended.
fn clear_up(
    data: PathBuf,
    stop: Arc<StopSignal>,
    gateway_sockets: Arc<GatewaySockets>,
) -> impl FnOnce() + Send + 'static {
    gateway_sockets.started();
    move || {
        stop.set_handover(false);
        gateway_sockets.predecessor_ended();
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
    (access, spans, health, io_driver): (AccessLogConfig, Option<SpanQueue>, &Arc<Health>, IoDriver),
    say: mpsc::Sender<MainEvent>,
) -> Result<RunningCores> {
    let tls_version_min = listeners::tls_version_min(config.tls_min_version);
    let configs = core_listeners.addresses(&shared.tables, tls_version_min, logs)?;
    let tells_timing = config.server_timing == ServerTiming::Cold;
    let http = config.http_limits;
    let stall_timeout = config.stall_timeout();
    let mut limits = CoreLimits {
        http,
        access: Some(access),
        server_timing: tells_timing,
        spans,
        stall_timeout,
        targets: Arc::clone(&health.targets),
        proxy_protocol: config.gateway.proxy_protocol,
        tls_version_min,
        ..CoreLimits::default()
    };
    limits.ring.sockets_max = descriptors::sockets_max();
    limits.ring.driver = io_driver;
    let cores = RunningCores::start(shared, &limits, configs.into_iter(), move || {
        drop(say.send(MainEvent::CoreEnded)); // fails only when this process has ended
    })?;
    watchdog::start(config, &cores, &shared.tables, health)?;
    Ok(cores)
}

fn signal_queue() -> (Arc<Notify>, SignalQueue) {
    let notify = Arc::new(Notify::new());
    let notified = Arc::clone(&notify);
    (notify, SignalQueue::new(move || notified.notify_one()))
}

/// The publisher, with what the operator's files give it before any object.
fn publisher(
    config: &RunConfig,
    files: GatewayFiles,
) -> Result<(Arc<TablePublisher>, Arc<Publisher>, StaticRoutes, LogNames)> {
    let tables = TablePublisher::new(RoutingTable::default());
    let GatewayFiles { mut certificates, trust, options, routes: rules } = files;
    certificates::add_own(&mut certificates, config)?;
    let log_names = LogNames::new(&config.data, &tables);
    let (changed, published) = (log_names.clone(), Arc::clone(&tables));
    let publisher = Arc::new(Publisher::new(Arc::new(move |table| {
        published.publish(table);
        changed.changed();
    })));
    publisher.set_certificates(certificates);
    publisher.set_gateway_options(options);
    let mut routes = StaticRoutes::new(&publisher, config.http_limits.stream_idle_timeout);
    routes.set(&rules, trust)?;
    Ok((tables, publisher, routes, log_names))
}

/// Tells the predecessor and the service manager that this process serves.
fn report_ready(predecessor: Option<Predecessor>, clear_up: impl FnOnce() + Send + 'static) -> Result<()> {
    // A parent names its successor to the service manager, which does not know this process yet.
    if !predecessor.as_ref().is_some_and(Predecessor::is_parent) {
        service_manager::ready();
    }
    predecessor.map_or(Ok(()), |predecessor| predecessor.dismiss(clear_up))
}

/// Prints the line that tells a supervisor, a script or a test that everything listens, and where.
fn announce(ready: &str, banner: &StartBanner) -> Result<()> {
    banner.show();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{ready}").and_then(|()| out.flush()).context("stdout is closed")
}
