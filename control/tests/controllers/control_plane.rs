//! A complete control plane without sockets: store, API, garbage collector, scripted instances, controllers.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use dataplane::table::RoutingTable;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sluicegate_control::autoscaler::Autoscaler;
use sluicegate_control::clock::WallClock;
use sluicegate_control::controllers::roles::RoleSet;
use sluicegate_control::controllers::{self, ControllerConfig};
use sluicegate_control::kinds::shared::{ConditionStatus, HasConditions};
use sluicegate_control::publish::{Publisher, QuotaConfig};
use sluicegate_control::runtime::{ExitCause, InstanceExit, InstanceHandle, InstanceReporter, InstanceSpec, Runtime};
use sluicegate_control::store::ObjectStore;
use sluicegate_control::{api, kinds};
use tempfile::TempDir;
use tokio::sync::oneshot;

pub(crate) const NS: &str = "default";
/// How long a test waits for what must happen: far more than it takes, so that only "never" fails.
const TIMEOUT: Duration = Duration::from_secs(90);

pub(crate) struct TestControlPlane {
    pub(crate) client: Client,
    pub(crate) autoscaler: Autoscaler,
    tables: Arc<Mutex<Vec<RoutingTable>>>,
    stop: Option<oneshot::Sender<()>>,
    work: tokio::task::JoinHandle<()>,
    collector: Option<tokio::task::JoinHandle<()>>,
}

/// Programs that are ready at once, unless they are called `broken`, which exit with 3, or `slow`, which
/// never get ready.
struct TestRuntime;

struct TestInstanceHandle {
    reporter: InstanceReporter,
}

impl Runtime for TestRuntime {
    fn start(&self, id: u64, _: u64, spec: Arc<InstanceSpec>, reporter: InstanceReporter) -> Box<dyn InstanceHandle> {
        match spec.command.first().map(String::as_str) {
            Some("broken") => {
                reporter.exited(InstanceExit {
                    cause: ExitCause::Exited(3),
                    message: "exited with 3: bad flag".to_owned(),
                });
            }
            Some("slow") => {}
            _ => reporter.ready(SocketAddr::from(([127, 0, 0, 1], 20_000 + (id % 10_000) as u16)), None),
        }
        Box::new(TestInstanceHandle { reporter })
    }

    fn refresh(&self, _: Arc<InstanceSpec>) {}

    fn remove_revision(&self, _: &str, _: &str) {}
}

impl InstanceHandle for TestInstanceHandle {
    fn stop(&self) {
        self.reporter.exited(InstanceExit { cause: ExitCause::Exited(0), message: "stopped".to_owned() });
    }

    fn verify(&self) {}

    fn freeze(&self) {}

    fn thaw(&self) {}
}

impl TestControlPlane {
    /// Opens the store in `dir` and returns when the first table is out.
    pub(crate) async fn open(dir: &Path) -> Self {
        let store = Arc::new(ObjectStore::open(dir).unwrap());
        let registry = Arc::new(kinds::registry());
        api::seed(&store, &registry).await.unwrap();
        let client = api::client(Arc::clone(&store), Arc::clone(&registry));
        let objects = Arc::downgrade(&store);
        let collector = tokio::task::spawn_local(api::run_garbage_collector(store, registry));
        let mut control_plane = Self::over(client, objects, true).await;
        control_plane.collector = Some(collector);
        control_plane
    }

    /// Follows the API behind `client`, which is a cluster's unless it `shows_pods`.
    pub(crate) async fn over(client: Client, store: Weak<ObjectStore>, shows_pods: bool) -> Self {
        let tables: Arc<Mutex<Vec<RoutingTable>>> = Arc::default();
        let seen = Arc::clone(&tables);
        let publisher = Arc::new(Publisher::new(Arc::new(move |table| seen.lock().unwrap().push(table))));
        let (autoscaler, autoscaler_work) = Autoscaler::new(Arc::new(TestRuntime), Arc::clone(&publisher) as _, 1_000);
        let (stop, stopped) = oneshot::channel();
        let (synced, sync) = oneshot::channel();
        let cores = Arc::clone(&publisher);
        let context = controllers::ContextConfig {
            domain: "test".to_owned(),
            http_port: 8080,
            events_url_base: "http://127.0.0.1:8081".to_owned(),
            events_tls: None,
            listeners: controllers::listeners::ListenerAddresses::default(),
            gateway_listeners: controllers::listeners::GatewayListenerConfig::default(),
            service_listeners: None,
            publishes_pods: shows_pods,
            roles: if shows_pods { RoleSet::all() } else { RoleSet::of_followers() },
            leader_identity: (!shows_pods).then(controllers::leader_election::new_identity),
            quotas: QuotaConfig::default(),
            targets: Arc::default(),
            clock: WallClock::default(),
            event_store: controllers::EventStoreConfig {
                client: dataplane::contract::event_store::EventStoreClient::new().0,
                servers: Vec::new(),
            },
            store,
            state_root: None,
            expiries: Arc::default(),
        };
        let revisions = controllers::revision::RevisionConfig {
            images: ["v1", "v2", "broken", "slow"].map(|i| (i.to_owned(), vec![i.to_owned()])).to_vec(),
            instances: controllers::revision::policy::InstanceRules::default(),
            containers: None,
            host_devices: false,
        };
        let pings = controllers::sources::ping::PingConfig { outcomes: Arc::default(), relay: Arc::default() };
        let config = ControllerConfig { context, revisions, workloads: None, pings };
        let (client_inside, autoscaler_inside) = (client.clone(), autoscaler.clone());
        let work = tokio::task::spawn_local(async move {
            let stopped = async { drop(stopped.await) };
            tokio::select! {
                result = controllers::run(config, client_inside, autoscaler_inside, publisher, synced, stopped) => result.unwrap(),
                () = autoscaler_work => panic!("the autoscaler ended"),
            }
        });
        sync.await.unwrap();
        cores.set_cores_running();
        Self { client, autoscaler, tables, stop: Some(stop), work, collector: None }
    }

    pub(crate) fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NS)
    }

    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let mut object = object;
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        self.api().create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
    }

    pub(crate) async fn patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    pub(crate) async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        self.api::<K>().delete(name, &Default::default()).await.unwrap();
    }

    /// The object once `wanted` holds.
    pub(crate) async fn until<K>(&self, name: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let last = Mutex::new(None);
        let found = eventually(async || {
            let object = self.api::<K>().get_opt(name).await.unwrap();
            let found = object.clone().filter(|object| wanted(object));
            *last.lock().unwrap() = object;
            found
        });
        found.await.unwrap_or_else(|| panic!("{name} never got there: {:#?}", last.lock().unwrap()))
    }

    pub(crate) async fn until_ready<K>(&self, name: &str) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + HasConditions
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        self.until(name, HasConditions::is_ready).await
    }

    /// Waits for Ready to be False for `reason`.
    pub(crate) async fn until_not_ready<K>(&self, name: &str, reason: &str) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + HasConditions
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let wanted =
            |object: &K| object.ready().is_some_and(|c| c.status == ConditionStatus::False && c.reason == reason);
        self.until(name, wanted).await
    }

    pub(crate) async fn until_gone<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let gone = eventually(async || self.api::<K>().get_opt(name).await.unwrap().is_none().then_some(()));
        gone.await.unwrap_or_else(|| panic!("{name} is still there"));
    }

    /// Reads the last published table.
    pub(crate) fn table<T>(&self, look: impl FnOnce(&RoutingTable) -> T) -> T {
        look(self.tables.lock().unwrap().last().unwrap())
    }

    pub(crate) fn first_table<T>(&self, look: impl FnOnce(&RoutingTable) -> T) -> T {
        look(self.tables.lock().unwrap().first().unwrap())
    }

    /// Whether `wanted` held for every published table.
    pub(crate) fn always(&self, wanted: impl Fn(&RoutingTable) -> bool) -> bool {
        self.tables.lock().unwrap().iter().all(wanted)
    }

    pub(crate) async fn until_table(&self, what: &str, wanted: impl Fn(&RoutingTable) -> bool) {
        let found = eventually(async || self.table(&wanted).then_some(()));
        found.await.unwrap_or_else(|| panic!("no table {what}"));
    }

    pub(crate) async fn until_nobody_runs(&self, key: &str) {
        let gone = eventually(async || (self.autoscaler.status(key).actual == 0).then_some(()));
        gone.await.unwrap_or_else(|| panic!("{key} still runs"));
    }

    /// Backend keys and weights of a host.
    pub(crate) fn splits(&self, host: &str) -> Vec<(String, u32)> {
        self.table(|table| splits(table, host))
    }

    /// Ends as if killed: no connection is closed cleanly.
    pub(crate) async fn die(self) {
        self.work.abort();
        assert!(self.work.await.unwrap_err().is_cancelled(), "it had ended before");
    }

    pub(crate) async fn close(mut self) {
        drop(self.stop.take());
        self.work.await.unwrap();
        if let Some(collector) = self.collector {
            collector.abort();
            assert!(collector.await.unwrap_err().is_cancelled(), "the collector ended");
        }
    }
}

pub(crate) fn splits(table: &RoutingTable, host: &str) -> Vec<(String, u32)> {
    let route = table.route(host).into_iter();
    let mut splits: Vec<_> =
        route.flat_map(|route| &route.splits).map(|s| (s.backend.key.to_string(), s.weight)).collect();
    splits.sort();
    splits
}

pub(crate) async fn eventually<T>(mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while tokio::time::Instant::now() < deadline {
        if let Some(found) = look().await {
            return Some(found);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    None
}

/// Yields this many times, so that the other tasks are at a different point each time.
pub(crate) async fn turn_over(turns: u32) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// Runs a test on one thread, as the control side does.
pub(crate) fn on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// A control plane in a fresh folder.
pub(crate) fn in_a_control_plane<F: Future<Output = ()>>(test: impl FnOnce(TestControlPlane) -> F) {
    on_one_thread(async {
        let dir = TempDir::new().unwrap();
        test(TestControlPlane::open(dir.path()).await).await;
    });
}
