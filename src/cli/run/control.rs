//! The control thread: store, API, controllers, fleet and the admin listener, on one tokio-uring runtime.
//!
//! Never load-bearing for requests: should it end, the cores go on with the last table.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::Router;
use control::controllers::{self, ControlConfig};
use control::fleet::Fleet;
use control::publish::Publisher;
use control::runtime::{Init, ProcessRuntime};
use control::store::Store;
use control::{api, kinds, manifests, store};
use dataplane::signal::{Signal, Signals};
use tokio::sync::{Notify, oneshot, watch};

use super::api::{self as entrance, Entrance};
use crate::admin::{self, Admin, Health};
use crate::config::Config;

/// What the control thread is made from.
pub(super) struct Parts {
    pub(super) config: Config,
    pub(super) control: ControlConfig,
    pub(super) publisher: Arc<Publisher>,
    pub(super) signals: Signals,
    /// Rung when a signal waits.
    pub(super) bell: Arc<Notify>,
    /// `None` when the objects are a cluster's.
    pub(super) api: Option<TcpListener>,
    pub(super) admin: TcpListener,
    pub(super) health: Arc<Health>,
    /// Instances are to end.
    pub(super) stop: watch::Receiver<bool>,
}

/// The control thread as the main thread sees it.
pub(super) struct Control {
    /// Told once a first table holds everything that was stored, and the API listens; or why not.
    pub(super) synced: oneshot::Receiver<Result<()>>,
    /// What the admin listener is to report on, known once the cores run.
    pub(super) admin: oneshot::Sender<Arc<Admin>>,
    pub(super) thread: JoinHandle<Result<()>>,
}

pub(super) fn start(parts: Parts) -> Result<Control> {
    let (say_synced, synced) = oneshot::channel();
    let (admin, hear_admin) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || tokio_uring::start(live(parts, say_synced, hear_admin)))
        .context("no thread for control")?;
    Ok(Control { synced, admin, thread })
}

async fn live(
    parts: Parts,
    say_synced: oneshot::Sender<Result<()>>,
    hear_admin: oneshot::Receiver<Arc<Admin>>,
) -> Result<()> {
    let house = match furnish(&parts).await {
        Ok(house) => house,
        Err(why) => {
            drop(say_synced.send(Err(why)));
            return Ok(());
        }
    };
    let entrance = match parts.api.map(|listener| Entrance::open(listener, &parts.config)).transpose() {
        Ok(entrance) => entrance,
        Err(why) => {
            drop(say_synced.send(Err(why)));
            return Ok(());
        }
    };
    tokio::task::spawn_local(serve_admin(parts.admin, hear_admin));
    tokio::task::spawn_local(hear_cores(parts.signals, parts.bell, house.fleet.clone(), parts.health));

    let (first_table, have_table) = oneshot::channel();
    let stop = stopped(parts.stop.clone());
    let controllers = tokio::task::spawn_local(controllers::run(
        parts.control,
        house.client.clone(),
        house.fleet.clone(),
        parts.publisher,
        first_table,
        stop,
    ));
    let synced = match have_table.await {
        Ok(()) => apply_manifests(&house, &parts.config.manifests).await,
        Err(_) => Err(anyhow::anyhow!("the controllers ended before the first table")),
    };
    if synced.is_err() {
        controllers.abort();
    } else if let Some(entrance) = entrance {
        tokio::task::spawn_local(entrance.serve(house.router));
    }
    drop(say_synced.send(synced));

    match controllers.await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => tracing::error!(%why, "the controllers ended; traffic goes on by the last table"),
        Err(_) => tracing::error!("the controllers were cut"),
    }
    stopped(parts.stop).await;
    house.fleet.shutdown().await;
    Ok(())
}

/// What the control thread works with.
struct House {
    client: kube::Client,
    router: Router,
    fleet: Fleet,
}

async fn furnish(parts: &Parts) -> Result<House> {
    let registry = Arc::new(kinds::registry());
    let (client, router) = match &parts.config.kubeconfig {
        None => {
            let store = Arc::new(Store::open(&parts.config.data)?);
            api::seed(&store, &registry).await?;
            tokio::task::spawn_local(store::gc::run(Arc::clone(&store)));
            tokio::task::spawn_local(store::events::run(Arc::clone(&store)));
            let client = api::client(Arc::clone(&store), Arc::clone(&registry));
            (client, api::router_in(store, registry, entrance::surroundings(&parts.config)?))
        }
        Some(file) => (cluster(file).await?, Router::new()),
    };

    let runtime = ProcessRuntime::open(&parts.config.data, Init::this_program())
        .context("instances of an earlier run cannot be cleared away")?;
    let first_id = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
    let (fleet, work) = Fleet::new(Arc::new(runtime), Arc::clone(&parts.publisher) as _, first_id);
    tokio::task::spawn_local(work);
    Ok(House { client, router, fleet })
}

/// A client for somebody else's API.
async fn cluster(file: &PathBuf) -> Result<kube::Client> {
    let named = || format!("--kubeconfig {}", file.display());
    let read = kube::config::Kubeconfig::read_from(file).with_context(named)?;
    let config = kube::Config::from_custom_kubeconfig(read, &Default::default()).await.with_context(named)?;
    kube::Client::try_from(config).with_context(named)
}

async fn apply_manifests(house: &House, paths: &[PathBuf]) -> Result<()> {
    let registry = kinds::registry();
    for path in paths {
        let objects = manifests::apply(&house.client, &registry, path).await.context("--manifests")?;
        tracing::info!(path = %path.display(), objects, "manifests applied");
    }
    Ok(())
}

async fn serve(listener: TcpListener, router: Router) {
    let served = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => axum::serve(listener, router).await,
        Err(why) => Err(why),
    };
    if let Err(why) = served {
        tracing::error!(%why, "a listener of the control thread ended");
    }
}

async fn serve_admin(listener: TcpListener, admin: oneshot::Receiver<Arc<Admin>>) {
    // An error: the start failed, and the process is about to end.
    if let Ok(admin) = admin.await {
        serve(listener, admin::router(admin)).await;
    }
}

/// Carries the cores' reports to whom they concern.
async fn hear_cores(signals: Signals, bell: Arc<Notify>, fleet: Fleet, health: Arc<Health>) {
    loop {
        while let Some(signal) = signals.receive() {
            match signal {
                Signal::Demand { backend } => fleet.demand(&backend),
                Signal::Unreachable { backend, endpoint } => fleet.unreachable(&backend, endpoint),
                Signal::LogFailed { core, reason } => {
                    tracing::error!(core, %reason, "this core's log takes no more events until a restart");
                    health.log_failed.store(true, Relaxed);
                }
            }
        }
        bell.notified().await;
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error: the main thread is gone, which is as good as a stop.
    drop(stop.wait_for(|said| *said).await);
}
