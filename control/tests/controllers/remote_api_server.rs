//! A remote API server over a real socket: followed, lost, and reconnected.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Config};
use serde_json::json;
use sluicegate_control::access::CONTROLLER_USER;
use sluicegate_control::controllers::roles::{LEASE, LEASE_NAMESPACE};
use sluicegate_control::kind_registry::KindRegistry;
use sluicegate_control::kinds::serving::route::Route;
use sluicegate_control::kinds::serving::service::Service;
use sluicegate_control::kinds::shared::HasConditions as _;
use sluicegate_control::store::{HISTORY_BYTES_MAX, ObjectStore};
use sluicegate_control::{api, kinds};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::control_plane::{NS, TestControlPlane, eventually, on_one_thread};
use crate::serving::hello;

/// The header that identifies a follower in a test.
const WHO: &str = "x-test-follower";

/// An API server on a thread of its own, so that all of its connections end with it.
struct RemoteApiServer {
    address: SocketAddr,
    store: Arc<ObjectStore>,
    /// Follower, method and path of every write.
    writes: Arc<Mutex<Vec<String>>>,
    /// Paths of the watches that got a 410 Gone, once each; `None`: no watch gets one.
    gone: Arc<Mutex<Option<HashSet<String>>>>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// Continues while the server is away.
    collector: AbortHandle,
}

impl Drop for RemoteApiServer {
    fn drop(&mut self) {
        self.collector.abort();
    }
}

impl RemoteApiServer {
    async fn open(dir: &Path) -> Self {
        let store = Arc::new(ObjectStore::open(dir).unwrap());
        api::seed(&store, &registry()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let collector =
            tokio::task::spawn_local(api::run_garbage_collector(Arc::clone(&store), registry())).abort_handle();
        let (writes, gone) = (Arc::default(), Arc::default());
        let mut cluster = Self { address, store, writes, gone, running: None, collector };
        cluster.serve(listener);
        cluster
    }

    fn serve(&mut self, listener: TcpListener) {
        listener.set_nonblocking(true).unwrap();
        let (writes, gone) = (Arc::clone(&self.writes), Arc::clone(&self.gone));
        let note = move |request: Request, next: Next| {
            if !request.method().is_safe() {
                let who = request.headers().get(WHO).and_then(|who| who.to_str().ok()).unwrap_or("");
                let write = format!("{who} {} {}", request.method(), request.uri().path());
                writes.lock().unwrap().push(write);
            }
            let query = request.uri().query().unwrap_or("");
            let goes_on = query.contains("watch=") && query.contains("resourceVersion=");
            let path = request.uri().path().to_owned();
            let is_gone = goes_on && gone.lock().unwrap().as_mut().is_some_and(|reported| reported.insert(path));
            async move { if is_gone { expired() } else { next.run(request).await } }
        };
        let router: Router = api::router(Arc::clone(&self.store), registry());
        let router = router.layer(middleware::from_fn(note));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    served = axum::serve(listener, router).into_future() => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        self.running = Some((stop, thread));
    }

    /// Cuts every connection and refuses new ones.
    fn go_away(&mut self) {
        let (stop, thread) = self.running.take().unwrap();
        stop.send(()).unwrap();
        thread.join().unwrap();
    }

    fn come_back(&mut self) {
        self.serve(TcpListener::bind(self.address).unwrap());
    }

    /// The developer's own client, which works while the server is away.
    fn developer(&self) -> Client {
        api::client(Arc::clone(&self.store), registry())
    }

    /// A follower with the rights of the account that is there for followers.
    async fn control_plane(&self, who: &'static str) -> TestControlPlane {
        let mut config = Config::new(format!("http://{}", self.address).parse().unwrap());
        for (name, value) in [("impersonate-user", CONTROLLER_USER), (WHO, who)] {
            config.headers.push((HeaderName::from_static(name), HeaderValue::from_static(value)));
        }
        TestControlPlane::over(Client::try_from(config).unwrap(), Weak::new(), false).await
    }

    /// What this one wrote.
    fn written_by(&self, who: &str) -> Vec<String> {
        let writes = self.writes.lock().unwrap();
        writes.iter().filter(|write| write.starts_with(&format!("{who} "))).cloned().collect()
    }

    /// The holder of the Lease.
    async fn holder(&self) -> Option<String> {
        let leases: Api<Lease> = Api::namespaced(self.developer(), LEASE_NAMESPACE);
        leases.get_opt(LEASE).await.unwrap()?.spec?.holder_identity.filter(|holder| !holder.is_empty())
    }

    async fn until_held_by_another(&self, than: Option<String>) -> String {
        let found = eventually(async || self.holder().await.filter(|holder| Some(holder) != than.as_ref()));
        found.await.expect("somebody else takes the Lease")
    }
}

/// How a watch from a version that is no longer known begins and ends.
fn expired() -> Response {
    let why = "too old resource version";
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": why, "reason": "Expired", "code": 410 });
    let line = format!("{}\n", json!({ "type": "ERROR", "object": status }));
    ([(CONTENT_TYPE, "application/json")], line).into_response()
}

fn registry() -> Arc<KindRegistry> {
    Arc::new(kinds::registry())
}

fn serves(host: &'static str) -> impl Fn(&dataplane::table::RoutingTable) -> bool {
    move |table| table.route(host).is_some_and(|route| !route.splits.is_empty())
}

async fn until_ready(client: &Client, name: &str) {
    let api: Api<Service> = Api::namespaced(client.clone(), NS);
    let ready = eventually(async || api.get(name).await.unwrap().is_ready().then_some(()));
    ready.await.expect("it gets ready");
}

async fn create(client: &Client, name: &str) {
    let mut service = hello("v1");
    service["apiVersion"] = "serving.knative.dev/v1".into();
    service["kind"] = "Service".into();
    service["metadata"]["name"] = name.into();
    let api: Api<Service> = Api::namespaced(client.clone(), NS);
    api.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
}

/// What a Service made goes after it.
async fn until_collected(client: &Client, name: &str) {
    let routes: Api<Route> = Api::namespaced(client.clone(), NS);
    let gone = eventually(async || routes.get_opt(name).await.unwrap().is_none().then_some(()));
    gone.await.expect("its Route is collected");
}

/// Bytes of one change, well below what an object may have.
const CHANGE_BYTES: usize = 512 * 1024;

/// Writes so many bytes of changes that no watch can resume from before.
async fn forget_history(client: &Client) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NS);
    let metadata = kube::api::ObjectMeta { name: Some("busy".into()), ..Default::default() };
    let first = api.create(&PostParams::default(), &ConfigMap { metadata, ..Default::default() }).await.unwrap();
    for n in 0..=HISTORY_BYTES_MAX / CHANGE_BYTES {
        let text = format!("{n:04}").repeat(CHANGE_BYTES / 4);
        let patch = Patch::Merge(json!({ "data": { "text": text } }));
        api.patch("busy", &PatchParams::default(), &patch).await.unwrap();
    }
    let since = first.metadata.resource_version.unwrap();
    let mut watch = api.watch(&WatchParams::default(), &since).await.unwrap().boxed();
    let event = watch.next().await.unwrap().unwrap();
    assert!(matches!(&event, WatchEvent::Error(why) if why.code == 410), "{event:?}");
}

/// APP-13, APP-15: list, then watch; cut connections, a server that comes back and expired versions (410) only delay,
/// and while it is away the last table stays in use.
#[test]
fn a_server_that_goes_and_forgets_is_followed_again() {
    on_one_thread(async {
        let dir = TempDir::new().unwrap();
        let mut cluster = RemoteApiServer::open(dir.path()).await;
        let developer = cluster.developer();
        create(&developer, "before").await;
        create(&developer, "doomed").await;
        let control_plane = cluster.control_plane("a").await;
        control_plane.until_table("of what was there", serves("before.default.test")).await;
        control_plane.until_table("of what was there", serves("doomed.default.test")).await;

        cluster.go_away();
        *cluster.gone.lock().unwrap() = Some(HashSet::new());
        create(&developer, "after").await;
        let api: Api<Service> = Api::namespaced(developer.clone(), NS);
        api.delete("doomed", &Default::default()).await.unwrap();
        until_collected(&developer, "doomed").await;
        assert!(control_plane.table(serves("before.default.test")), "the last table stands");
        cluster.come_back();
        control_plane.until_table("of what came meanwhile", serves("after.default.test")).await;
        control_plane.until_table("without what went", |table| table.route("doomed.default.test").is_none()).await;
        assert!(control_plane.table(serves("before.default.test")));
        let reported = cluster.gone.lock().unwrap().clone().unwrap();
        assert!(reported.iter().any(|path| path.ends_with("/services")), "{reported:?}");
    });
}

/// The same with a history that is really lost.
#[test]
#[ignore = "takes up to a minute on two cores, longer when they are busy"]
fn another_api_server_is_followed_over_cuts_restarts_and_lost_history() {
    on_one_thread(async {
        let dir = TempDir::new().unwrap();
        let mut cluster = RemoteApiServer::open(dir.path()).await;
        let developer = cluster.developer();
        create(&developer, "before").await;
        let control_plane = cluster.control_plane("a").await;
        control_plane.until_table("of what was there", serves("before.default.test")).await;
        create(&developer, "live").await;
        control_plane.until_table("of what came", serves("live.default.test")).await;

        cluster.go_away();
        create(&developer, "after").await;
        let api: Api<Service> = Api::namespaced(developer.clone(), NS);
        api.delete("live", &Default::default()).await.unwrap();
        until_collected(&developer, "live").await;
        forget_history(&developer).await;
        assert!(control_plane.table(serves("before.default.test")), "the last table stands");
        cluster.come_back();
        control_plane.until_table("after the history was lost", serves("after.default.test")).await;
        control_plane.until_table("without what was deleted", |table| table.route("live.default.test").is_none()).await;
        assert!(control_plane.table(serves("before.default.test")));
    });
}

/// APP-14: controllers write only the status of a developer's objects, through the subresource.
#[test]
fn only_status_of_developers_object_is_written() {
    on_one_thread(async {
        let dir = TempDir::new().unwrap();
        let cluster = RemoteApiServer::open(dir.path()).await;
        create(&cluster.developer(), "hello").await;
        let control_plane = cluster.control_plane("a").await;
        control_plane.until_ready::<Service>("hello").await;
        let writes = cluster.writes.lock().unwrap().clone();
        let about: Vec<_> = writes.iter().filter(|write| write.contains("/services/hello")).collect();
        assert!(!about.is_empty() && about.iter().all(|write| write.ends_with("/services/hello/status")), "{writes:?}");
        let pods = writes.iter().find(|write| write.contains("/pods"));
        assert_eq!(pods, None, "Pods are the cluster's");
    });
}

/// APP-14, AMB-62: of several followers all serve and one writes, with the rights of the account that is there
/// for them; when that one dies or leaves, another writes.
#[test]
fn of_several_followers_one_writes_and_another_takes_over() {
    on_one_thread(async {
        let dir = TempDir::new().unwrap();
        let cluster = RemoteApiServer::open(dir.path()).await;
        let developer = cluster.developer();
        let first = cluster.control_plane("first").await;
        let holder = cluster.until_held_by_another(None).await;
        let second = cluster.control_plane("second").await;
        create(&developer, "one").await;
        until_ready(&developer, "one").await;
        first.until_table("of the first", serves("one.default.test")).await;
        second.until_table("of the second", serves("one.default.test")).await;
        let mut written = cluster.written_by("second");
        written.retain(|write| !write.contains("/leases"));
        assert_eq!(written, [""; 0], "the second only serves, and reports what in a Lease of its own");

        first.die().await;
        create(&developer, "two").await;
        let holder = cluster.until_held_by_another(Some(holder)).await;
        until_ready(&developer, "two").await;
        second.until_table("of the second, which writes now", serves("two.default.test")).await;

        let third = cluster.control_plane("third").await;
        second.close().await;
        cluster.until_held_by_another(Some(holder)).await;
        create(&developer, "three").await;
        until_ready(&developer, "three").await;
        third.until_table("of the third", serves("one.default.test")).await;
        third.until_table("of the third", serves("three.default.test")).await;
    });
}

/// An appliance with an API writes by itself: its followers serve, and write nothing.
#[test]
fn a_follower_of_an_appliance_leaves_the_writing_to_it() {
    on_one_thread(async {
        let dir = TempDir::new().unwrap();
        let cluster = RemoteApiServer::open(dir.path()).await;
        let developer = cluster.developer();
        let appliance = TestControlPlane::over(developer.clone(), Weak::new(), true).await;
        let follower = cluster.control_plane("follower").await;
        create(&developer, "hello").await;
        appliance.until_ready::<Service>("hello").await;
        follower.until_table("of what was made there", serves("hello.default.test")).await;
        assert_eq!(cluster.holder().await.as_deref(), Some("embedded"));
        assert_eq!(cluster.written_by("follower"), [""; 0]);
    });
}
