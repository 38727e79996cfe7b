//! The rules of all routes by host, what the routes depend on, and how many a listener has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contract::listener_sockets::ListenerSpec;
use contract::table::{Protocol, RequestTimeouts};
use contract::tls::TlsClientConfig;
use jiff::Timestamp;

use crate::publish::{HostConflict, HostRule, ListenerHostname, PathRule, Publisher};
use crate::work_queue::WorkItem;

/// Routes whose rules match equally well come in this order: the oldest first, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RoutePrecedence {
    pub(super) created: Timestamp,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) kind: &'static str,
}

/// Something whose change concerns a route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Dependency {
    Gateway(String, String),
    /// Its labels.
    Namespace(String),
    Service(String, String),
    /// The Route of a Knative Service.
    KnativeRoute(String, String),
    /// The ReferenceGrants of a namespace.
    Grants(String),
}

/// How a core Service is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceAddresses {
    pub(super) protocol: Protocol,
    /// With it the addresses are reached by TLS.
    pub(super) trust: Option<Arc<TlsClientConfig>>,
    pub(super) addresses: Vec<SocketAddr>,
}

/// The addresses of core Services, by the keys of their backends.
pub(super) type BackendAddresses = BTreeMap<String, ServiceAddresses>;

/// The objects that a route refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RouteReferences {
    pub(super) dependencies: BTreeSet<Dependency>,
    pub(super) addresses: BackendAddresses,
}

impl RouteReferences {
    pub(super) fn extend(&mut self, other: Self) {
        self.dependencies.extend(other.dependencies);
        self.addresses.extend(other.addresses);
    }
}

/// A host with rules: of the appliance, or of a hostname of a listener that is opened at run time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleHost {
    pub(super) host: String,
    pub(super) listener: Option<(ListenerSpec, String)>,
}

impl fmt::Display for RuleHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.listener {
            None => write!(f, "{}", self.host),
            Some((spec, hostname)) => write!(f, "{} of {hostname} at {spec}", self.host),
        }
    }
}

/// What one route asks of the data plane.
#[derive(Debug)]
pub(super) struct RouteProgram {
    pub(super) precedence: RoutePrecedence,
    pub(super) rules: BTreeMap<RuleHost, Vec<PathRule>>,
    /// Namespace and name of a Gateway, and the listener.
    pub(super) listeners: BTreeSet<((String, String), String)>,
    pub(super) references: RouteReferences,
}

impl RouteProgram {
    /// The listeners that are opened at run time.
    pub(super) fn run_time_listeners(&self) -> BTreeSet<ListenerSpec> {
        self.rules.keys().filter_map(|host| host.listener.as_ref()).map(|(spec, _)| *spec).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct RouteStore {
    state: Mutex<RouteStoreState>,
}

#[derive(Debug, Default)]
struct RouteStoreState {
    hosts: BTreeMap<RuleHost, BTreeMap<RoutePrecedence, Vec<PathRule>>>,
    routes: HashMap<WorkItem, StoredRoute>,
    /// Routes by Gateway and listener.
    attached: BTreeMap<(String, String), BTreeMap<String, i32>>,
    dependents: HashMap<Dependency, BTreeSet<WorkItem>>,
    /// Hosts whose rules have changed since they were published.
    stale_hosts: BTreeSet<RuleHost>,
    /// Addresses for the publisher.
    new_addresses: BackendAddresses,
    /// Hosts that another object has.
    conflicts: BTreeMap<RuleHost, HostConflict>,
    /// Hosts that another object had, and that are published now.
    admitted_hosts: BTreeSet<RuleHost>,
    /// Namespace and name of Services that other Gateways may lead to now.
    moved_services: BTreeSet<(String, String)>,
}

/// What is stored elsewhere for one route.
#[derive(Debug)]
struct StoredRoute {
    precedence: RoutePrecedence,
    hosts: BTreeSet<RuleHost>,
    listeners: BTreeSet<((String, String), String)>,
    dependencies: BTreeSet<Dependency>,
}

impl RouteStore {
    /// Replaces what is stored for a route, and returns the Gateways that have more or fewer routes now.
    pub(super) fn set(&self, item: &WorkItem, program: RouteProgram) -> BTreeSet<(String, String)> {
        let mut state = self.lock();
        let RouteProgram { precedence, rules, listeners, references } = program;
        let RouteReferences { dependencies, addresses } = references;
        // Each write of a status is followed by a reconcile, and a host can have the rules of a thousand routes.
        let published = rules.iter().filter(|(host, rules)| state.is_published(item, &precedence, host, rules));
        let unchanged: Vec<RuleHost> = published.map(|(host, _)| host.clone()).collect();
        let before = state.remove(item);
        let hosts = rules.keys().cloned().collect();
        for (host, rules) in rules {
            state.stale_hosts.insert(host.clone());
            state.hosts.entry(host).or_default().insert(precedence.clone(), rules);
        }
        for host in &unchanged {
            state.stale_hosts.remove(host);
        }
        state.new_addresses.extend(addresses);
        for (gateway, listener) in &listeners {
            *state.attached.entry(gateway.clone()).or_default().entry(listener.clone()).or_default() += 1;
        }
        for dependency in &dependencies {
            state.dependents.entry(dependency.clone()).or_default().insert(item.clone());
        }
        let changed: BTreeSet<_> =
            listeners.symmetric_difference(&before.listeners).map(|(gateway, _)| gateway.clone()).collect();
        let services = services_in(&dependencies);
        if !changed.is_empty() || services != before.services {
            state.moved_services.extend(services.into_iter().chain(before.services));
        }
        state.routes.insert(item.clone(), StoredRoute { precedence, hosts, listeners, dependencies });
        changed
    }

    /// The Services that other Gateways may lead to since the last call.
    pub(super) fn take_moved_services(&self) -> BTreeSet<(String, String)> {
        std::mem::take(&mut self.lock().moved_services)
    }

    /// Namespace and name of each Gateway that leads to a Service.
    pub(super) fn gateways_of(&self, namespace: &str, service: &str) -> BTreeSet<(String, String)> {
        let state = self.lock();
        let dependency = Dependency::Service(namespace.to_owned(), service.to_owned());
        let routes = state.dependents.get(&dependency).into_iter().flatten().filter_map(|item| state.routes.get(item));
        routes.flat_map(|route| &route.listeners).map(|(gateway, _)| gateway.clone()).collect()
    }

    /// Namespace and name of each Gateway that has a route.
    pub(super) fn gateways_of_route(&self, item: &WorkItem) -> BTreeSet<(String, String)> {
        let state = self.lock();
        let listeners = state.routes.get(item).into_iter().flat_map(|route| &route.listeners);
        listeners.map(|(gateway, _)| gateway.clone()).collect()
    }

    /// Forgets a route, and returns the Gateways that had it.
    pub(super) fn remove(&self, item: &WorkItem) -> BTreeSet<(String, String)> {
        let mut state = self.lock();
        let RemovedRoute { listeners, services } = state.remove(item);
        state.moved_services.extend(services);
        listeners.into_iter().map(|(gateway, _)| gateway).collect()
    }

    /// The routes that a change concerns.
    pub(super) fn dependents(&self, dependency: &Dependency) -> Vec<WorkItem> {
        self.lock().dependents.get(dependency).into_iter().flatten().cloned().collect()
    }

    /// How many routes each listener of a Gateway has.
    pub(super) fn attached(&self, gateway: &(String, String)) -> BTreeMap<String, i32> {
        self.lock().attached.get(gateway).cloned().unwrap_or_default()
    }

    /// The first host of a route that another object has.
    pub(super) fn conflict(&self, item: &WorkItem) -> Option<HostConflict> {
        let state = self.lock();
        state.routes.get(item)?.hosts.iter().find_map(|host| state.conflicts.get(host).cloned())
    }

    /// The routes with a host that another object has.
    pub(super) fn conflicting(&self) -> Vec<WorkItem> {
        let mut state = self.lock();
        let conflicts = |route: &StoredRoute| route.hosts.iter().any(|host| state.conflicts.contains_key(host));
        let items = state.routes.iter().filter(|(_, route)| conflicts(route)).map(|(item, _)| item.clone()).collect();
        let refused: Vec<RuleHost> = state.conflicts.keys().cloned().collect();
        state.stale_hosts.extend(refused);
        items
    }

    /// Hands the changed hosts to the publisher, and then the addresses: a host that gives up a backend would remove the
    /// addresses that another host needs from now on. Returns whether another object can have a host now.
    pub(super) fn publish(&self, publisher: &Publisher) -> bool {
        let mut state = self.lock();
        let mut released = false;
        for host in std::mem::take(&mut state.stale_hosts) {
            let owner = format!("Gateway API host {host}");
            let paths: Vec<PathRule> =
                state.hosts.get(&host).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect();
            let was_refused = state.conflicts.remove(&host).is_some();
            if paths.is_empty() {
                // A host that was not published frees none: a report would enqueue the same routes without end.
                released |= publisher.remove_route(&owner);
                continue;
            }
            let listener = host.listener.as_ref().map(|(spec, hostname)| {
                let (id, spec, hostname) = (publisher.listener_id(*spec), *spec, hostname.clone());
                ListenerHostname { id, spec, hostname }.into()
            });
            let hosts = vec![host.host.as_str().into()];
            let rule = HostRule { hosts, paths, listener, matches_subdomains: true, ..HostRule::default() };
            match publisher.set_route(&owner, vec![rule]) {
                Ok(_) if was_refused => {
                    state.admitted_hosts.insert(host);
                }
                Ok(_) => {}
                Err(conflict) => {
                    state.conflicts.insert(host, conflict);
                }
            }
        }
        for (key, ServiceAddresses { protocol, trust, addresses }) in std::mem::take(&mut state.new_addresses) {
            // Of routes that are not attached: without a rule the addresses would never be removed.
            if publisher.is_backend_in_use(&key) {
                publisher.set_addresses(&key, (protocol, RequestTimeouts::EXTERNAL), trust, &addresses);
            }
        }
        released
    }

    /// The routes with a host that was another object's until it was published, whose statuses still say so.
    pub(super) fn take_admitted(&self) -> Vec<WorkItem> {
        let mut state = self.lock();
        let admitted = std::mem::take(&mut state.admitted_hosts);
        if admitted.is_empty() {
            return Vec::new();
        }
        let concerned = state.routes.iter().filter(|(_, route)| !route.hosts.is_disjoint(&admitted));
        concerned.map(|(item, _)| item.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, RouteStoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RouteStoreState {
    /// Whether the publisher has these rules of a route for a host.
    fn is_published(&self, item: &WorkItem, precedence: &RoutePrecedence, host: &RuleHost, rules: &[PathRule]) -> bool {
        let stored = || self.hosts.get(host).and_then(|routes| routes.get(precedence));
        !self.stale_hosts.contains(host)
            && !self.conflicts.contains_key(host)
            && self.routes.get(item).is_some_and(|route| route.precedence == *precedence)
            && stored().is_some_and(|stored| stored.as_slice() == rules)
    }

    fn remove(&mut self, item: &WorkItem) -> RemovedRoute {
        let Some(route) = self.routes.remove(item) else { return RemovedRoute::default() };
        let services = services_in(&route.dependencies);
        for host in route.hosts {
            if let Some(rules) = self.hosts.get_mut(&host) {
                rules.remove(&route.precedence);
                if rules.is_empty() {
                    self.hosts.remove(&host);
                }
            }
            self.stale_hosts.insert(host);
        }
        for (gateway, listener) in &route.listeners {
            let Some(listeners) = self.attached.get_mut(gateway) else { continue };
            if let Some(count) = listeners.get_mut(listener) {
                *count -= 1;
            }
            listeners.retain(|_, count| *count > 0);
            if listeners.is_empty() {
                self.attached.remove(gateway);
            }
        }
        for dependency in route.dependencies {
            if let Some(items) = self.dependents.get_mut(&dependency) {
                items.remove(item);
                if items.is_empty() {
                    self.dependents.remove(&dependency);
                }
            }
        }
        RemovedRoute { listeners: route.listeners, services }
    }
}

/// What a route had.
#[derive(Debug, Default)]
struct RemovedRoute {
    listeners: BTreeSet<((String, String), String)>,
    services: BTreeSet<(String, String)>,
}

/// Namespace and name of the core Services among what a route depends on.
fn services_in(dependencies: &BTreeSet<Dependency>) -> BTreeSet<(String, String)> {
    let services = dependencies.iter().filter_map(|dependency| match dependency {
        Dependency::Service(namespace, name) => Some((namespace.clone(), name.clone())),
        _ => None,
    });
    services.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contract::table::RequestMatch;

    use super::*;
    use crate::publish::WeightedBackend;
    use crate::work_queue::ControllerKind;

    fn of_appliance(host: &str) -> RuleHost {
        RuleHost { host: host.to_owned(), listener: None }
    }

    fn program(name: &str, second: i64, hosts: &[&str]) -> RouteProgram {
        let rule = PathRule { matches: RequestMatch::prefix(&format!("/{name}")), ..PathRule::default() };
        let gateway = ("ns".to_owned(), "g".to_owned());
        RouteProgram {
            precedence: RoutePrecedence {
                created: Timestamp::from_second(second).unwrap(),
                namespace: "ns".to_owned(),
                name: name.to_owned(),
                kind: "HTTPRoute",
            },
            rules: hosts.iter().map(|host| (of_appliance(host), vec![rule.clone()])).collect(),
            listeners: [(gateway.clone(), "http".to_owned())].into(),
            references: RouteReferences {
                dependencies: [Dependency::Gateway(gateway.0, gateway.1)].into(),
                ..RouteReferences::default()
            },
        }
    }

    #[test]
    fn rules_of_a_host_come_by_the_age_of_their_routes() {
        let (store, item) = (RouteStore::default(), |name: &str| WorkItem::new(ControllerKind::new("t"), "ns", name));
        let gateway = ("ns".to_owned(), "g".to_owned());
        assert_eq!(store.set(&item("new"), program("new", 2, &["a", "b"])), [gateway.clone()].into());
        store.set(&item("old"), program("old", 1, &["a"]));
        let paths = |host: &str| -> Vec<String> {
            let state = store.lock();
            state
                .hosts
                .get(&of_appliance(host))
                .into_iter()
                .flat_map(BTreeMap::values)
                .flatten()
                .map(|rule| rule.matches.path().text().to_owned())
                .collect()
        };
        assert_eq!((paths("a"), paths("b")), (vec!["/old".to_owned(), "/new".to_owned()], vec!["/new".to_owned()]));
        assert_eq!(store.attached(&gateway), [("http".to_owned(), 2)].into());
        assert!(store.set(&item("old"), program("old", 1, &["c"])).is_empty(), "it stays at its listener");
        assert_eq!(store.dependents(&Dependency::Gateway("ns".into(), "g".into())).len(), 2);
        store.remove(&item("old"));
        store.remove(&item("new"));
        let state = store.lock();
        assert!(state.hosts.is_empty() && state.attached.is_empty() && state.dependents.is_empty());
    }

    #[test]
    fn host_of_another_object_is_a_conflict_until_it_is_free() {
        let (store, item) = (RouteStore::default(), WorkItem::new(ControllerKind::new("t"), "ns", "r"));
        let publisher = Publisher::new(Arc::new(|_| {}));
        publisher.set_route("ns/other", vec![HostRule::new(["a"], Vec::new())]).unwrap();
        store.set(&item, program("r", 1, &["a", "b"]));
        store.publish(&publisher);
        assert_eq!(store.conflict(&item).map(|conflict| conflict.owner), Some("ns/other".to_owned()));
        publisher.remove_route("ns/other");
        assert_eq!(store.conflicting(), std::slice::from_ref(&item));
        store.publish(&publisher);
        assert_eq!(store.conflict(&item), None);
        assert_eq!(store.take_admitted(), std::slice::from_ref(&item));
        assert!(store.take_admitted().is_empty());
        assert!(publisher.owns_host("Gateway API host a", "a"));
    }

    #[test]
    fn addresses_stay_while_a_host_needs_them() {
        let (store, item) = (RouteStore::default(), WorkItem::new(ControllerKind::new("t"), "ns", "r"));
        let publisher = Publisher::new(Arc::new(|_| {}));
        let with_backend = |hosts: &[&str]| {
            let mut program = program("r", 1, hosts);
            for rule in program.rules.values_mut().flatten() {
                rule.splits = vec![WeightedBackend::new("k", 1)];
            }
            let address = SocketAddr::from(([127, 0, 0, 1], 9));
            let reached = ServiceAddresses { protocol: Protocol::Http1, trust: None, addresses: vec![address] };
            program.references.addresses.insert("k".to_owned(), reached);
            program
        };
        for (hosts, is_there) in [(&["a"][..], true), (&["b"], true), (&["a"], true), (&[], false)] {
            store.set(&item, with_backend(hosts));
            store.publish(&publisher);
            assert_eq!(publisher.has_endpoints("k"), is_there, "{hosts:?}");
        }
    }

    #[test]
    fn gateways_of_a_service_follow_its_routes() {
        let (store, item) = (RouteStore::default(), WorkItem::new(ControllerKind::new("t"), "ns", "r"));
        let with_service = || {
            let mut program = program("r", 1, &["a"]);
            program.references.dependencies.insert(Dependency::Service("ns".into(), "s".into()));
            program
        };
        let service = || BTreeSet::from([("ns".to_owned(), "s".to_owned())]);
        store.set(&item, with_service());
        assert_eq!(store.gateways_of("ns", "s"), [("ns".to_owned(), "g".to_owned())].into());
        assert_eq!((store.take_moved_services(), store.take_moved_services()), (service(), BTreeSet::new()));
        store.set(&item, with_service());
        assert!(store.take_moved_services().is_empty(), "nothing has changed");
        store.set(&item, program("r", 1, &["a"]));
        assert_eq!((store.take_moved_services(), store.gateways_of("ns", "s").len()), (service(), 0));
        store.set(&item, with_service());
        store.remove(&item);
        assert_eq!((store.take_moved_services(), store.gateways_of("ns", "s").len()), (service(), 0));
    }

    #[test]
    fn unchanged_or_unpublished_host_is_not_released() {
        let (store, item) = (RouteStore::default(), WorkItem::new(ControllerKind::new("t"), "ns", "r"));
        let publisher = Publisher::new(Arc::new(|_| {}));
        let mut empty = program("r", 1, &["a"]);
        empty.rules.values_mut().for_each(Vec::clear);
        store.set(&item, empty);
        assert!(!store.publish(&publisher));
        store.set(&item, program("r", 1, &["a"]));
        assert!(!store.publish(&publisher));
        store.set(&item, program("r", 1, &["a"]));
        assert!(store.lock().stale_hosts.is_empty());
        store.remove(&item);
        assert!(store.publish(&publisher));
    }
}
