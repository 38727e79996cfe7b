//! The control thread: store, API, controllers, autoscaler and the admin listener, on one tokio-uring
//! runtime.
//!
//! Requests do not depend on it: should it end, the cores continue with the last table.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use axum::Router;
use control::api::{ApiServerConfig, SeedDefinition};
use control::autoscaler::Autoscaler;
use control::controllers::pods::instance_streams::RuntimeStreams;
use control::controllers::pods::runtime_usage::RuntimeUsage;
use control::controllers::workloads::pod_runner::PodRunner;
use control::controllers::{self, ControllerConfig};
use control::cross_origin::{CrossOriginProtection, GuardedListener, OwnHosts};
use control::dns::InstanceGateway;
use control::expiry::{self, Expiries};
use control::kind_registry::KindRegistry;
use control::manifests::ManifestApplier;
use control::publish::Publisher;
use control::request_memory::RequestMemory;
use control::runtime::{self, HostConfig, InitProgram, InstanceIds, ProcessRuntime};
use control::store::{ObjectStore, StoreError};
use control::{api, kinds, store};
use dataplane::core::IoDriver;
use dataplane::signal::{Signal, SignalQueue};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task;

use super::api::{self as entrance, ApiListeners, ApiTlsFiles, Reports};
use super::cluster;
use super::descriptors::Guarded;
use super::events_tls::EventsTls;
use super::hosts;
use super::idle_memory;
use super::instances;
use super::log_names::LogNames;
use crate::admin::{self, AdminServer, AutoscalerMetrics, Health};
use crate::config::RunConfig;
use crate::console::Console;

/// Maximum time for API requests in flight when another process takes over; watches are cut.
const API_DRAIN_MAX: Duration = Duration::from_secs(1);

/// Configuration of the control thread.
pub(super) struct ControlThreadConfig {
    pub(super) config: RunConfig,
    pub(super) control: ControllerConfig,
    pub(super) publisher: Arc<Publisher>,
    pub(super) signals: SignalQueue,
    /// Notified when a signal is queued.
    pub(super) wake: Arc<Notify>,
    /// `None` when the objects are a cluster's.
    pub(super) api: Option<TcpListener>,
    pub(super) api_socket: Option<UnixListener>,
    /// For the API.
    pub(super) given: ApiTlsFiles,
    pub(super) admin: TcpListener,
    /// `None` without `--console`.
    pub(super) console: Option<TcpListener>,
    pub(super) health: Arc<Health>,
    pub(super) steered: ControlReceivers,
    /// Its certificate is renewed here.
    pub(super) events_tls: Option<EventsTls>,
    /// The gateway for instances, or why it is missing.
    pub(super) gateway: Result<InstanceGateway, String>,
    /// Another process still runs instances here.
    pub(super) handover: bool,
    pub(super) log_names: LogNames,
    pub(super) io_driver: IoDriver,
}

/// The main thread's handle of the control thread.
pub(super) struct ControlHandle {
    /// Ends instances, and then all of it.
    pub(super) stop: watch::Sender<bool>,
    /// Ends API, controllers and store, because another process takes them over.
    pub(super) hand_over: watch::Sender<bool>,
    /// Receives when they have ended.
    pub(super) handed: mpsc::Receiver<()>,
    /// The state of this process's admin listener.
    pub(super) admin_port: watch::Sender<AdminPort>,
}

/// The receiving ends.
pub(super) struct ControlReceivers {
    stop: watch::Receiver<bool>,
    hand_over: watch::Receiver<bool>,
    handed: mpsc::Sender<()>,
    admin_port: watch::Receiver<AdminPort>,
}

/// The state of a process's admin listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdminPort {
    Served,
    /// A successor answers there, or is about to; should it fail, this process serves again.
    Lent,
    /// A successor owns it: a draining process must not prevent others from listening there.
    Closed,
}

pub(super) fn control_handle() -> (ControlHandle, ControlReceivers) {
    let (say_stop, stop) = watch::channel(false);
    let (request_handover, hand_over) = watch::channel(false);
    let (lend_admin, admin_port) = watch::channel(AdminPort::Served);
    let (handed, hear_handed) = mpsc::channel();
    let control_handle =
        ControlHandle { stop: say_stop, hand_over: request_handover, handed: hear_handed, admin_port: lend_admin };
    (control_handle, ControlReceivers { stop, hand_over, handed, admin_port })
}

/// The control thread as the main thread sees it.
pub(super) struct ControlThread {
    /// Receives once a first table contains all stored objects, and the API listens; or the error.
    pub(super) synced: oneshot::Receiver<Result<()>>,
    /// The state that the admin listener reports, known once the cores run.
    pub(super) admin: oneshot::Sender<Arc<AdminServer>>,
    pub(super) thread: JoinHandle<Result<()>>,
}

pub(super) fn start(parts: ControlThreadConfig) -> Result<ControlThread> {
    let (say_synced, synced) = oneshot::channel();
    let (admin, hear_admin) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || match parts.io_driver {
            IoDriver::IoUring => tokio_uring::start(live(parts, say_synced, hear_admin)),
            IoDriver::Epoll => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                task::LocalSet::new().block_on(&runtime, live(parts, say_synced, hear_admin))
            }
        })
        .context("no thread for control")?;
    Ok(ControlThread { synced, admin, thread })
}

async fn live(
    parts: ControlThreadConfig,
    say_synced: oneshot::Sender<Result<()>>,
    hear_admin: oneshot::Receiver<Arc<AdminServer>>,
) -> Result<()> {
    let (state, protection) = (furnish(&parts).await, protection(&parts));
    let reports = Reports { rejections: &parts.health.rejections, expiries: &parts.health.expiries };
    let sockets = (parts.api, parts.api_socket, parts.console);
    let opened = state.and_then(|state| Ok((state, ApiListeners::open(sockets, &parts.config, &reports)?)));
    let (state, entrances) = match opened {
        Ok(opened) => opened,
        Err(why) => {
            drop(say_synced.send(Err(why)));
            return Ok(());
        }
    };
    state.keep(entrances.authority());
    let leaving = || either(stopped(parts.steered.stop.clone()), stopped(parts.steered.hand_over.clone()));
    let (publisher, admin_port) = (Arc::clone(&parts.publisher), parts.steered.admin_port);
    let scaler = AutoscalerMetrics { autoscaler: state.autoscaler.clone(), signals: parts.signals.clone() };
    let console = Console::new(state.router.clone(), scaler);
    task::spawn_local(serve_admin(parts.admin, (hear_admin, console.clone(), protection), publisher, admin_port));
    task::spawn_local(check_certificates(Arc::clone(&parts.health.expiries)));
    let tally = Arc::clone(&parts.health.manifests);
    let mut manifests = ManifestApplier::new(state.outside.clone(), &parts.config.manifests, tally);
    task::spawn_local(receive_signals(parts.signals, parts.wake, state.autoscaler.clone(), parts.health));
    if let Some(events_tls) = parts.events_tls {
        task::spawn_local(either(events_tls.keep_fresh(), leaving()));
    }
    task::spawn_local(either(parts.log_names.keep(), leaving()));
    let (first_table, have_table) = oneshot::channel();
    let mut control = parts.control;
    control.context.store = state.store.as_ref().map(Arc::downgrade).unwrap_or_default();
    control.workloads = state.store.as_ref().map(|_| instances::workloads(&parts.config, &state.pods));
    let controllers = task::spawn_local(controllers::run(
        control,
        state.client.clone(),
        state.autoscaler.clone(),
        parts.publisher,
        first_table,
        leaving(),
    ));
    if !is_there(have_table, parts.steered.stop.clone()).await {
        drop(say_synced.send(Err(why_ended(controllers, &parts.config).await)));
        state.autoscaler.shutdown().await;
        return Ok(());
    }
    either(manifests.apply(), stopped(parts.steered.stop.clone())).await;
    task::spawn_local(either(manifests.run(), leaving()));
    let until = parts.steered.hand_over.clone();
    let api =
        task::spawn_local(entrances.serve(state.router.clone(), console.router(), move || stopped(until.clone())));
    drop(say_synced.send(Ok(())));
    state.clear_away();
    task::spawn_local(idle_memory::settle());

    match controllers.await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => tracing::error!(%why, "the controllers ended; traffic continues with the last table"),
        Err(_) => tracing::error!("the controllers were cut"),
    }
    leaving().await;
    if *parts.steered.hand_over.borrow() {
        state.give_up_objects(api).await;
        let _ = parts.steered.handed.send(()); // the receiver may be gone
    }
    stopped(parts.steered.stop).await;
    instances::end(&state.autoscaler, &state.pods).await;
    Ok(())
}

/// Waits for the first table, and not when stopped.
async fn is_there(table: oneshot::Receiver<()>, stop: watch::Receiver<bool>) -> bool {
    tokio::select! {
        current = table => current.is_ok(),
        () = stopped(stop) => false,
    }
}

/// Why there is no first table.
async fn why_ended<E: Into<anyhow::Error>>(
    controllers: task::JoinHandle<Result<(), E>>,
    config: &RunConfig,
) -> anyhow::Error {
    controllers.abort(); // if it has not ended, it may be waiting for a server that does not respond
    let why = match controllers.await {
        Ok(Ok(())) => anyhow!("it was stopped"),
        Ok(Err(why)) => why.into(),
        Err(why) => why.into(),
    };
    let why = why.context("the objects could not be read");
    match &config.kubeconfig {
        Some(file) => why.context(format!("--kubeconfig {}", file.display())),
        None => why,
    }
}

/// State of the control thread.
struct ControlState {
    /// `None` when the objects are a cluster's.
    store: Option<Arc<ObjectStore>>,
    registry: Arc<KindRegistry>,
    /// The stored definitions of our kinds are those of an earlier start.
    defined_before: bool,
    /// Issues the tokens of accounts, in an API of our own.
    signer: Option<Arc<api::TokenSigner>>,
    client: kube::Client,
    /// The API as external clients use it.
    outside: kube::Client,
    router: Router,
    autoscaler: Autoscaler,
    /// Runs Pods that clients wrote.
    pods: PodRunner,
}

impl ControlState {
    /// Maintains the default objects of every namespace, in an API of our own.
    fn keep(&self, authority: &str) {
        if let Some(store) = &self.store {
            task::spawn_local(api::run_namespace_defaults(Arc::clone(store), authority.into(), self.signer.clone()));
        }
    }

    /// Deletes objects without an owner, expired objects and definitions of an earlier program. It runs in
    /// the background, and scans all stored objects.
    fn clear_away(&self) {
        if let Some(store) = &self.store {
            if self.defined_before {
                task::spawn_local(refresh_definitions(Arc::clone(store), Arc::clone(&self.registry)));
            }
            task::spawn_local(api::run_garbage_collector(Arc::clone(store), Arc::clone(&self.registry)));
            task::spawn_local(store::event_retention::run(Arc::clone(store)));
        }
    }

    /// Releases the objects for another process.
    async fn give_up_objects<T>(&self, api: task::JoinHandle<T>) {
        let _ = tokio::time::timeout(API_DRAIN_MAX, api).await; // only watches remain, which end with the store
        if let Some(store) = &self.store {
            store.close();
        }
    }
}

async fn furnish(parts: &ControlThreadConfig) -> Result<ControlState> {
    let registry = Arc::new(kinds::registry_with(parts.config.workloads.kinds()));
    let mut defined_before = false;
    let streams = Arc::new(RuntimeStreams::new(instances::rules(&parts.config).processes));
    let usage = Arc::<RuntimeUsage>::default();
    let (store, signer, client, router) = match &parts.config.kubeconfig {
        None => {
            let store = Arc::new(ObjectStore::open(&parts.config.data)?);
            let _ = parts.health.store.set(Arc::downgrade(&store)); // it is set once
            defined_before = seed(&store, &registry).await?;
            task::spawn_local(api::aggregate(Arc::clone(&store)));
            task::spawn_local(api::run_crd_names(Arc::clone(&store)));
            task::spawn_local(store::run_history_expiry(Arc::clone(&store)));
            task::spawn_local(store::run_compaction(Arc::clone(&store)));
            let memory = Arc::<RequestMemory>::default();
            task::spawn_local(idle_memory::give_back(store.revision(), memory.returned()));
            let signer = entrance::signer(&parts.config)?;
            let client = api::client_with_signer(Arc::clone(&store), Arc::clone(&registry), Some(Arc::clone(&signer)));
            let server_config = ApiServerConfig {
                instance_streams: Some(Arc::clone(&streams) as _),
                usage: Some(Arc::clone(&usage) as _),
                memory,
                ..entrance::api_server_config(&parts.config, parts.given.clone(), &parts.health, Arc::clone(&signer))
            };
            (
                Some(Arc::clone(&store)),
                Some(signer),
                client,
                api::router_with(store, Arc::clone(&registry), server_config),
            )
        }
        Some(file) => (None, None, cluster::client(file).await?, Router::new()),
    };

    let data = &parts.config.data;
    let open = if parts.handover { ProcessRuntime::open_alongside } else { ProcessRuntime::open };
    let around = HostConfig {
        blocked_ports: control_ports(parts),
        gateway: parts.gateway.clone(),
        prefork_processes: runtime::limits::PREFORK_PROCESSES_MAX,
        host_devices: parts.config.host_devices,
        targets: Arc::clone(&parts.health.targets),
        output: Arc::clone(&parts.health.output),
        masked: instances::masked(&parts.config),
    };
    let processes =
        open(data, InitProgram::this_program(), around).context("instances of an earlier run cannot be removed")?;
    let sink = Arc::clone(&parts.publisher) as _;
    let ids = InstanceIds::starting_at(processes.first_id());
    streams.connect_runtime(processes.sessions());
    usage.connect_runtime(processes.sessions());
    let processes = Arc::new(processes);
    let (pods, pods_work) = PodRunner::new(Arc::clone(&processes) as _, ids.clone());
    task::spawn_local(pods_work);
    let (autoscaler, work) = Autoscaler::new(processes, sink, ids);
    task::spawn_local(work);
    let outside = match store {
        Some(_) => kube::Client::new(router.clone(), "default"),
        None => client.clone(),
    };
    Ok(ControlState { store, registry, defined_before, signer, client, outside, router, autoscaler, pods })
}

/// Creates the initial objects. Returns whether an earlier start's definitions of our kinds exist.
async fn seed(store: &Arc<ObjectStore>, registry: &Arc<KindRegistry>) -> Result<bool> {
    if api::has_definitions(store) {
        api::seed_objects(store, registry).await?;
        return Ok(true);
    }
    let definitions = definitions(registry);
    api::seed_objects(store, registry).await?;
    api::seed_definitions(store, definitions.await??).await?;
    Ok(false)
}

fn definitions(registry: &Arc<KindRegistry>) -> task::JoinHandle<Result<Vec<SeedDefinition>, StoreError>> {
    let registry = Arc::clone(registry);
    task::spawn_blocking(move || api::definitions(&registry))
}

/// Updates an earlier start's definitions to those of this program, while serving: that takes as long as
/// all the rest of a start.
async fn refresh_definitions(store: Arc<ObjectStore>, registry: Arc<KindRegistry>) {
    let define = async { anyhow::Ok(api::seed_definitions(&store, definitions(&registry).await??).await?) };
    if let Err(why) = define.await {
        tracing::error!(why = format!("{why:#}"), "the definitions of kinds are those of an earlier start");
    }
}

/// RT-LIFE-11: the ports through which a caller over loopback controls the appliance without
/// authentication.
fn control_ports(parts: &ControlThreadConfig) -> Vec<u16> {
    let listeners = parts.api.iter().chain([&parts.admin]).chain(&parts.console);
    let addresses = listeners.filter_map(|listener| listener.local_addr().ok());
    let trusting = |address: &SocketAddr| address.ip().is_loopback() || address.ip().is_unspecified();
    addresses.filter(trusting).map(|address| address.port()).collect()
}

/// What the admin listener accepts.
fn protection(parts: &ControlThreadConfig) -> CrossOriginProtection {
    let bound = parts.admin.local_addr().map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip());
    let hosts = OwnHosts::new(bound, hosts::own(&parts.config, bound));
    CrossOriginProtection::new(GuardedListener::Admin, false, hosts, Arc::clone(&parts.health.rejections))
}

/// Logs certificates that expire while they are in use.
async fn check_certificates(expiries: Arc<Expiries>) {
    loop {
        tokio::time::sleep(expiry::CHECK_INTERVAL).await;
        expiries.check(jiff::Timestamp::now());
    }
}

/// Serves until `until` resolves; requests in flight are still completed.
async fn serve(listener: TcpListener, router: Router, until: impl Future<Output = ()> + Send + 'static) {
    let served = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => axum::serve(Guarded::new(listener), router).with_graceful_shutdown(until).await,
        Err(why) => Err(why),
    };
    if let Err(why) = served {
        tracing::error!(%why, "a listener of the control thread ended");
    }
}

/// Serves the admin port, except while a successor does, or is about to.
async fn serve_admin(
    listener: TcpListener,
    (admin, console, protection): (oneshot::Receiver<Arc<AdminServer>>, Console, CrossOriginProtection),
    publisher: Arc<Publisher>,
    mut port: watch::Receiver<AdminPort>,
) {
    // An error: the start failed, and the process is about to end.
    let Ok(admin) = admin.await else { return };
    publisher.set_cores_running();
    console.connect(&admin);
    let router = admin::router(admin, console.scaler.clone(), protection);
    // An error of these: the main thread is gone.
    while let Ok(current) = port.wait_for(|port| *port != AdminPort::Lent).await.map(|current| *current) {
        if current == AdminPort::Closed {
            return;
        }
        let mut leaves = port.clone();
        let until = async move { drop(leaves.wait_for(|port| *port != AdminPort::Served).await) };
        match listener.try_clone() {
            Ok(ours) => drop(task::spawn_local(serve(ours, router.clone(), until))),
            Err(why) => tracing::error!(%why, "the admin port is not served"),
        }
        drop(port.wait_for(|port| *port != AdminPort::Served).await);
    }
}

/// Forwards the cores' signals to their receivers.
async fn receive_signals(signals: SignalQueue, notify: Arc<Notify>, autoscaler: Autoscaler, health: Arc<Health>) {
    loop {
        while let Some(signal) = signals.receive() {
            match signal {
                Signal::Demand { backend } => autoscaler.record_demand(&backend),
                Signal::Unreachable { backend, endpoint } => autoscaler.report_unreachable(&backend, endpoint),
                Signal::LogFailed { core, reason } => {
                    tracing::error!(core, %reason, "this core's log rejects events until a restart");
                    health.log_failed.store(true, Relaxed);
                }
            }
        }
        notify.notified().await;
    }
}

/// Ends with the first of them.
async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error: the main thread is gone, which is the same as a stop.
    drop(stop.wait_for(|said| *said).await);
}
