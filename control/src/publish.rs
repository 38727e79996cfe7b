//! Publish: what the controllers decided, compiled into the table that the cores read.
//!
//! [`Publisher`] holds the model: backends, routes, streams and subscribers by identity. Every change marks
//! it; a compile makes a whole new [`Table`] and hands it down. Counters (loads, tallies) stay the same
//! `Arc`s across tables, because requests that began under an old table still count.
//! Deliberately absent: why something is routed (controllers) and how a core learns of a swap (data plane).

mod compile;
mod streams;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dataplane::load::{BackendLoad, EndpointLoad};
use dataplane::names::Names;
use dataplane::table::{
    Backend, Begin, Delivery, Endpoint, Filter, Protocol, Reply, Route, Split, Table, Target, Timeouts,
    WhenEmpty,
};
use dataplane::tls::Certificates;

use crate::fleet::EndpointSink;
use streams::Streams;

/// Weight of the only backend of a host.
const WEIGHT_WHOLE: u32 = 100;

/// What a new table costs a core for each subscriber, in round figures: tables that change streams follow
/// each other no faster, or ten thousand Triggers made one by one would cost the square of that.
const REST_FOR_EACH: Duration = Duration::from_micros(2);
/// A shorter rest is none.
const REST_MIN: Duration = Duration::from_millis(1);

/// The way down. Shared by controllers (same thread) and the fleet.
pub struct Publisher {
    model: Mutex<Model>,
    deliver: Arc<dyn Fn(Table) + Send + Sync>,
}

/// How a backend treats its requests; its instances come from the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendSpec {
    pub concurrency_max: u32,
    pub when_empty: WhenEmpty,
    pub protocol: Protocol,
    pub timeouts: Timeouts,
}

/// Hosts that share one division of their requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    /// Lower case, without port.
    pub hosts: Vec<String>,
    /// Backend keys with their weights.
    pub splits: Vec<(String, u32)>,
    /// Clients without TLS are sent to HTTPS.
    pub https_redirect: bool,
}

/// A host belongs to somebody else, who had it first (AMB-05).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTaken {
    pub host: String,
    /// `NAMESPACE/NAME` of the Route that has it.
    pub owner: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    pub name: String,
    pub event_bytes_max: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriberSpec {
    /// The path of the stream that it reads.
    pub path: String,
    /// `NAMESPACE/NAME`.
    pub label: String,
    pub filter: Filter,
    pub target: Target,
    pub reply: Reply,
    pub dead_letter: Option<Target>,
    pub delivery: Delivery,
    pub begin: Begin,
}

/// Events that were dropped for a subscriber since the process began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The subscriber's durable identity.
    pub uid: String,
    /// `NAMESPACE/NAME`.
    pub label: String,
    pub events: u64,
}

#[derive(Default)]
struct Model {
    backends: BTreeMap<String, BackendEntry>,
    /// The counters of backends that are gone while somebody still counts on them: instances that drain,
    /// requests under an old table. One that comes back under its name goes on with the same ones.
    loads: HashMap<String, Weak<BackendLoad>>,
    routes: BTreeMap<String, Vec<HostRule>>,
    /// Who has a host.
    owners: HashMap<String, String>,
    fixed: Vec<(String, Arc<Route>)>,
    certificates: Arc<Certificates>,
    streams: Streams,
    names: Arc<Names>,
    /// Counts changes; `published <= changes`.
    changes: u64,
    published: u64,
    /// When the last table was handed down.
    handed_down: Option<Instant>,
    /// Until the first table is complete none is handed down (APP-16).
    open: bool,
}

impl Model {
    /// How long the cores still rest from the last table.
    fn rest(&self, now: Instant) -> Duration {
        let readers = u32::try_from(self.streams.readers()).unwrap_or(u32::MAX);
        let since = self.handed_down.map_or(Duration::MAX, |then| now - then);
        REST_FOR_EACH.saturating_mul(readers).saturating_sub(since)
    }

    fn backend(&mut self, key: &str) -> &mut BackendEntry {
        let loads = &self.loads;
        self.backends.entry(key.to_owned()).or_insert_with(|| BackendEntry {
            load: loads.get(key).and_then(Weak::upgrade).unwrap_or_default(),
            ..BackendEntry::default()
        })
    }
}

#[derive(Default)]
struct BackendEntry {
    spec: Option<BackendSpec>,
    endpoints: Vec<Arc<Endpoint>>,
    load: Arc<BackendLoad>,
}

impl Publisher {
    /// `deliver` swaps the table for all cores before it returns, and does not block.
    #[must_use]
    pub fn new(deliver: Arc<dyn Fn(Table) + Send + Sync>) -> Self {
        Self { model: Mutex::default(), deliver }
    }

    /// `--route HOST=ADDR,…`: a host that goes straight to given addresses; `*` is any host.
    pub fn set_static_route(&self, host: &str, protocol: Protocol, addresses: &[SocketAddr]) {
        let mut model = self.lock();
        // Instances count from the clock's milliseconds, so small numbers are free for these.
        let first_id = 1 + model.fixed.iter().map(|(_, route)| endpoint_count(route)).sum::<u64>();
        let endpoints = (first_id..).zip(addresses);
        let backend = Backend {
            key: format!("static/{host}").into(),
            endpoints: endpoints
                .map(|(id, &address)| {
                    Arc::new(Endpoint { id, address, load: Arc::new(EndpointLoad::default()) })
                })
                .collect(),
            concurrency_max: 0,
            when_empty: WhenEmpty::Refuse,
            protocol,
            timeouts: Timeouts::NONE,
            load: Arc::new(BackendLoad::default()),
        };
        let route = Route {
            splits: vec![Split { weight: WEIGHT_WHOLE, backend: Arc::new(backend) }],
            https_redirect: false,
        };
        model.fixed.push((host.to_ascii_lowercase(), Arc::new(route)));
        model.changes += 1;
    }

    /// What TLS clients are shown from now on. Published at once, unless there is no table yet.
    pub fn set_certificates(&self, certificates: Certificates) {
        let mut model = self.lock();
        model.certificates = Arc::new(certificates);
        model.changes += 1;
        self.hand_down(&mut model);
    }

    pub fn set_backend(&self, key: &str, spec: BackendSpec) {
        self.change(|model| model.backend(key).spec.replace(spec) != Some(spec));
    }

    pub fn remove_backend(&self, key: &str) {
        self.change(|model| {
            model.loads.retain(|_, load| load.strong_count() > 0);
            match model.backends.remove(key) {
                Some(entry) => {
                    model.loads.insert(key.to_owned(), Arc::downgrade(&entry.load));
                    true
                }
                None => false,
            }
        });
    }

    /// Gives the Route `owner` (`NAMESPACE/NAME`) its hosts, all or none.
    pub fn set_route(&self, owner: &str, rules: Vec<HostRule>) -> Result<(), HostTaken> {
        let mut model = self.lock();
        for host in rules.iter().flat_map(|rule| &rule.hosts) {
            if let Some(other) = model.owners.get(host)
                && other != owner
            {
                return Err(HostTaken { host: host.clone(), owner: other.clone() });
            }
        }
        if model.routes.get(owner) == Some(&rules) {
            return Ok(());
        }
        model.owners.retain(|_, other| other != owner);
        for host in rules.iter().flat_map(|rule| &rule.hosts) {
            model.owners.insert(host.clone(), owner.to_owned());
        }
        model.routes.insert(owner.to_owned(), rules);
        model.changes += 1;
        Ok(())
    }

    pub fn remove_route(&self, owner: &str) {
        self.change(|model| {
            model.owners.retain(|_, other| other != owner);
            model.routes.remove(owner).is_some()
        });
    }

    pub fn set_stream(&self, path: &str, spec: StreamSpec) {
        self.change(|model| model.streams.set(path, spec));
    }

    pub fn remove_stream(&self, path: &str) {
        self.change(|model| model.streams.remove(path));
    }

    /// `name` is the subscriber's durable identity.
    pub fn set_subscriber(&self, name: &str, spec: SubscriberSpec) {
        self.change(|model| model.streams.set_reader(name, spec));
    }

    pub fn remove_subscriber(&self, name: &str) {
        self.change(|model| model.streams.remove_reader(name));
    }

    /// What core Services stand for, from now on. Published at once, unless there is no table yet.
    pub fn set_names(&self, names: Names) {
        let mut model = self.lock();
        if *model.names != names {
            model.names = Arc::new(names);
            model.changes += 1;
            self.hand_down(&mut model);
        }
    }

    /// The subscribers that events were dropped for.
    #[must_use]
    pub fn drops(&self) -> Vec<Dropped> {
        self.lock().streams.drops()
    }

    /// Hands down the first table; from now on changes follow.
    pub fn open(&self) {
        let mut model = self.lock();
        model.open = true;
        model.changes += 1;
        self.hand_down(&mut model);
    }

    /// Returns when everything set before is in a table that the cores have. Whoever else is about to
    /// change something gets to do it first, so a burst costs one table and not one each; with many
    /// subscribers tables follow each other more slowly ([`REST_FOR_EACH`]).
    pub async fn flow(&self) {
        let wanted = self.lock().changes;
        tokio::task::yield_now().await;
        loop {
            let rest = {
                let mut model = self.lock();
                if model.published >= wanted {
                    return;
                }
                let rest = model.rest(Instant::now());
                if rest < REST_MIN || !model.open {
                    return self.hand_down(&mut model);
                }
                rest
            };
            tokio::time::sleep(rest).await;
        }
    }

    fn change(&self, edit: impl FnOnce(&mut Model) -> bool) {
        let mut model = self.lock();
        if edit(&mut model) {
            model.changes += 1;
        }
    }

    /// Under the lock, so that tables leave in the order of their changes.
    fn hand_down(&self, model: &mut Model) {
        if model.open && model.published < model.changes {
            (self.deliver)(compile::table(model));
            model.published = model.changes;
            model.handed_down = Some(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Model> {
        // A panic elsewhere leaves the model as whole as before: every edit is a few map operations.
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EndpointSink for Publisher {
    /// Published at once: requests wait for exactly this.
    fn set_endpoints(&self, key: &str, endpoints: Vec<Arc<Endpoint>>) {
        let mut model = self.lock();
        // A backend that was removed says good-bye to its instances after that.
        let Some(entry) = model.backends.get_mut(key) else { return };
        entry.endpoints = endpoints;
        model.changes += 1;
        self.hand_down(&mut model);
    }

    fn load(&self, key: &str) -> Arc<BackendLoad> {
        Arc::clone(&self.lock().backend(key).load)
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = self.lock();
        f.debug_struct("Publisher")
            .field("routes", &model.routes.len())
            .field("streams", &model.streams.len())
            .field("changes", &model.changes)
            .field("published", &model.published)
            .finish()
    }
}

fn endpoint_count(route: &Route) -> u64 {
    route.splits.iter().map(|split| split.backend.endpoints.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Last = Arc<Mutex<Vec<Table>>>;

    fn publisher() -> (Publisher, Last) {
        let tables = Last::default();
        let seen = Arc::clone(&tables);
        (Publisher::new(Arc::new(move |table| seen.lock().unwrap().push(table))), tables)
    }

    fn spec() -> BackendSpec {
        BackendSpec {
            concurrency_max: 1,
            when_empty: WhenEmpty::Refuse,
            protocol: Protocol::Http1,
            timeouts: Timeouts::NONE,
        }
    }

    fn rule(host: &str, key: &str) -> Vec<HostRule> {
        vec![HostRule { hosts: vec![host.into()], splits: vec![(key.into(), 100)], https_redirect: false }]
    }

    /// APP-16: nothing leaves before everything stored is in.
    #[tokio::test]
    async fn no_table_leaves_before_the_first_complete_one() {
        let (publisher, tables) = publisher();
        publisher.set_backend("ns/r", spec());
        publisher.set_route("ns/a", rule("a.ns.test", "ns/r")).unwrap();
        publisher.flow().await;
        publisher.set_endpoints("ns/r", Vec::new());
        assert!(tables.lock().unwrap().is_empty());

        publisher.open();
        assert_eq!(tables.lock().unwrap().len(), 1);
        assert!(tables.lock().unwrap()[0].route("a.ns.test").is_some());
    }

    #[tokio::test]
    async fn a_burst_of_changes_costs_one_table_and_no_change_costs_none() {
        let (publisher, tables) = publisher();
        publisher.open();
        let change = |n: usize| {
            let publisher = &publisher;
            async move {
                publisher.set_backend(&format!("ns/r{n}"), spec());
                publisher.flow().await;
            }
        };
        futures_util::future::join_all((0..100).map(change)).await;
        assert_eq!(tables.lock().unwrap().len(), 2);

        publisher.set_backend("ns/r1", spec());
        publisher.flow().await;
        assert_eq!(tables.lock().unwrap().len(), 2);
    }

    /// SRV-REQ-04: the first owner keeps its host, and loses it only by letting go.
    #[test]
    fn a_host_has_one_owner_at_a_time() {
        let (publisher, _) = publisher();
        publisher.set_route("ns/a", rule("x", "ns/r")).unwrap();
        let taken = publisher.set_route("ns/b", rule("x", "ns/r")).unwrap_err();
        assert_eq!(taken, HostTaken { host: "x".into(), owner: "ns/a".into() });
        publisher.set_route("ns/a", rule("y", "ns/r")).unwrap();
        publisher.set_route("ns/b", rule("x", "ns/r")).unwrap();
    }

    #[test]
    fn certificates_stay_in_every_later_table() {
        let (publisher, tables) = publisher();
        publisher.set_certificates(Certificates::default());
        publisher.set_backend("ns/r", spec());
        publisher.open();
        publisher.set_certificates(Certificates::default());
        publisher.set_endpoints("ns/r", Vec::new());
        let tables = tables.lock().unwrap();
        let same = |a: usize, b: usize| Arc::ptr_eq(&tables[a].certificates, &tables[b].certificates);
        assert_eq!((tables.len(), same(0, 1), same(1, 2)), (3, false, true));
    }

    #[test]
    fn counters_outlive_tables() {
        let (publisher, tables) = publisher();
        publisher.set_backend("ns/r", spec());
        publisher.set_route("ns/a", rule("a", "ns/r")).unwrap();
        publisher.open();
        publisher.set_endpoints("ns/r", Vec::new());
        let tables = tables.lock().unwrap();
        let load = |table: &Table| Arc::clone(&table.route("a").unwrap().splits[0].backend.load);
        assert!(Arc::ptr_eq(&load(&tables[0]), &load(&tables[1])));
        assert!(Arc::ptr_eq(&load(&tables[0]), &publisher.load("ns/r")));
    }

    /// A Revision that is deleted and made again while its instances drain.
    #[test]
    fn a_backend_that_comes_back_counts_on() {
        let (publisher, tables) = publisher();
        publisher.open();
        let fleets = publisher.load("ns/r");
        publisher.remove_backend("ns/r");
        let before = tables.lock().unwrap().len();
        publisher.set_endpoints("ns/r", Vec::new());
        assert_eq!(tables.lock().unwrap().len(), before, "a good-bye is no news");

        publisher.set_backend("ns/r", spec());
        assert!(Arc::ptr_eq(&fleets, &publisher.load("ns/r")));
    }

    #[test]
    fn a_static_route_names_its_addresses_and_a_star_is_any_host() {
        let (publisher, tables) = publisher();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        publisher.set_static_route("App.Example", Protocol::Http1, &[address(1), address(2)]);
        publisher.set_static_route("*", Protocol::Http1, &[address(3)]);
        publisher.open();
        let tables = tables.lock().unwrap();
        let endpoints = |host: &str| tables[0].route(host).unwrap().splits[0].backend.endpoints.clone();
        assert_eq!(endpoints("app.example").len(), 2);
        assert_eq!(endpoints("else")[0].address, address(3));
        let mut ids: Vec<_> = endpoints("app.example").iter().chain(&endpoints("x")).map(|e| e.id).collect();
        ids.dedup();
        assert_eq!(ids.len(), 3);
    }
}
