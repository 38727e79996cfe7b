//! The routing model by identity, and which parts of it must be compiled again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use contract::allocator::{self, LongLivedScope};
use contract::listener_sockets::{ListenerId, ListenerSpec};
use contract::load::BackendLoad;
use contract::table::{
    Backend, Endpoint, EndpointAddress, InstanceStart, NotReadyHost, NotReadyHosts, Route, RoutingTable,
};
use contract::tls::{CertificateStore, TlsClientConfig, TlsIdentity};

use super::BackendSpec;
use super::challenge_route::ChallengeRoute;
use super::host_rule::{HostRule, ObjectCertificates, UnservedHosts};
use super::listener_state::{ListenerHostname, ListenerState};
use super::stream_model::StreamModel;

/// The approximate cost of a new table for a core per subscriber: tables that change streams follow
/// each other no faster, or ten thousand Triggers made one by one would cost the square of that.
pub(super) const PUBLISH_INTERVAL_PER_SUBSCRIBER: Duration = Duration::from_micros(2);
/// A shorter pause has no effect.
pub(super) const PUBLISH_INTERVAL_MIN: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct RoutingModel {
    pub(super) backends: BTreeMap<String, BackendEntry>,
    /// The counters of removed backends that are still in use: by instances that drain, or requests under an old
    /// table. A backend that comes back under its name continues with the same counters.
    pub(super) loads: HashMap<String, Weak<BackendLoad>>,
    pub(super) routes: BTreeMap<Arc<str>, Vec<HostRule>>,
    /// The owner of each host. Both share their strings with `routes`. A tree, because half of a large map's slots
    /// are empty.
    pub(super) owners: BTreeMap<Arc<str>, Arc<str>>,
    /// The owners of the rules that use a backend, by its key; in order. Mostly one, for which a set would allocate
    /// eleven slots.
    pub(super) backend_owners: HashMap<String, Vec<Box<str>>>,
    /// The only hosts of private routes, by their owners.
    pub(super) private_hosts: HashMap<String, String>,
    /// Hosts from the command line: objects cannot claim them.
    pub(super) static_routes: HashMap<String, Arc<Route>>,
    /// The last id given to an address that is not an instance's.
    pub(super) address_id: u64,
    /// From the operator's files.
    pub(super) operator_certificates: Arc<CertificateStore>,
    /// From objects, by their owners.
    pub(super) object_certificates: BTreeMap<String, ObjectCertificates>,
    /// Some of either have changed since the last table.
    pub(super) certificates_stale: bool,
    pub(super) streams: StreamModel,
    /// Counts changes; `published <= changes`.
    pub(super) changes: u64,
    pub(super) published: u64,
    /// When the last table was handed down.
    pub(super) published_at: Option<Instant>,
    /// Until the first table is complete none is handed down (APP-16).
    pub(super) is_started: bool,
    /// The last table, for what has not changed since.
    pub(super) table: RoutingTable,
    /// Owners whose rules have to be compiled again.
    pub(super) stale_owners: BTreeSet<String>,
    /// Hosts that are not served yet, by their owners.
    pub(super) not_ready: BTreeMap<String, UnservedHosts>,
    /// Some have changed since the last table.
    pub(super) not_ready_stale: bool,
    /// Hosts that their owners released, with their listeners if those are opened at run time.
    pub(super) released_hosts: Vec<(Option<Arc<ListenerHostname>>, Arc<str>)>,
    /// All listeners that were opened at run time, also those that are closed.
    pub(super) listener_ids: BTreeMap<ListenerSpec, ListenerId>,
    pub(super) listeners: BTreeMap<ListenerId, ListenerState>,
    pub(super) streams_stale: bool,
    /// They are in published tables, and not in `table`.
    pub(super) challenges: Vec<ChallengeRoute>,
}

/// The model, locked. Allocations made under the lock are mostly part of it or of a table, and long-lived.
pub(super) struct ModelGuard<'a> {
    model: MutexGuard<'a, RoutingModel>,
    _stays: LongLivedScope,
}

impl<'a> ModelGuard<'a> {
    pub(super) fn of(model: &'a Mutex<RoutingModel>) -> Self {
        // A panic elsewhere leaves the model as whole as before: every edit is a few map operations.
        let model = model.lock().unwrap_or_else(PoisonError::into_inner);
        Self { model, _stays: allocator::long_lived() }
    }
}

impl Deref for ModelGuard<'_> {
    type Target = RoutingModel;

    fn deref(&self) -> &RoutingModel {
        &self.model
    }
}

impl DerefMut for ModelGuard<'_> {
    fn deref_mut(&mut self) -> &mut RoutingModel {
        &mut self.model
    }
}

impl RoutingModel {
    /// How long the cores still rest from the last table.
    pub(super) fn publish_delay(&self, now: Instant) -> Duration {
        let readers = u32::try_from(self.streams.subscriber_count()).unwrap_or(u32::MAX);
        let since = self.published_at.map_or(Duration::MAX, |then| now - then);
        PUBLISH_INTERVAL_PER_SUBSCRIBER.saturating_mul(readers).saturating_sub(since)
    }

    pub(super) fn backend(&mut self, key: &str) -> &mut BackendEntry {
        let loads = &self.loads;
        self.backends.entry(key.to_owned()).or_insert_with(|| BackendEntry {
            load: loads.get(key).and_then(Weak::upgrade).unwrap_or_default(),
            ..BackendEntry::default()
        })
    }

    /// The endpoint of a new address. Instances count from the clock's milliseconds, so small numbers are free for
    /// these.
    pub(super) fn endpoint(&mut self, address: EndpointAddress, unrestricted: bool) -> Arc<Endpoint> {
        self.address_id += 1;
        let start = unrestricted.then(|| Box::new(InstanceStart { unrestricted, ..InstanceStart::default() }));
        Arc::new(Endpoint { id: self.address_id, address, load: Arc::default(), start })
    }

    /// The backend is another one now: so are the routes that lead to it.
    pub(super) fn mark_stale(&mut self, key: &str) {
        if let Some(entry) = self.backends.get_mut(key) {
            entry.compiled = None;
        }
        self.stale_owners.extend(self.backend_owners.get(key).into_iter().flatten().map(|owner| owner.to_string()));
    }

    /// `owner`'s rules name the backend `key`.
    pub(super) fn add_backend_owner(&mut self, key: &str, owner: &str) {
        if let Some(users) = self.backend_owners.get_mut(key) {
            if let Err(at) = users.binary_search_by(|user| (**user).cmp(owner)) {
                users.insert(at, owner.into());
            }
        } else {
            self.backend_owners.insert(key.to_owned(), vec![owner.into()]);
        }
    }

    /// Returns whether it was another.
    pub(super) fn set_private_host(&mut self, owner: &str, host: Option<String>) -> bool {
        let before = match &host {
            Some(host) => self.private_hosts.insert(owner.to_owned(), host.clone()),
            None => self.private_hosts.remove(owner),
        };
        if before == host {
            return false;
        }
        let shown = self.routes.get(owner).into_iter().flatten().flat_map(|rule| &rule.hosts);
        let all = shown.cloned().chain(before.map(Arc::from));
        self.released_hosts.extend(all.map(|host| (None, host)));
        self.stale_owners.insert(owner.to_owned());
        true
    }

    /// Takes the rules of `owner` away, with their hosts. What they led to stays until
    /// [`Model::drop_unused`], since the next rules may lead there too.
    pub(super) fn remove_rules(&mut self, owner: &str) -> Option<Vec<HostRule>> {
        let rules = self.routes.remove(owner)?;
        self.released_hosts.extend(self.private_hosts.get(owner).map(|host| (None, Arc::from(host.as_str()))));
        for rule in &rules {
            for host in &rule.hosts {
                if rule.listener.is_none() {
                    self.owners.remove(host);
                }
                self.released_hosts.push((rule.listener.clone(), Arc::clone(host)));
            }
        }
        for key in rules.iter().flat_map(HostRule::backends) {
            let Some(users) = self.backend_owners.get_mut(key) else { continue };
            if let Ok(at) = users.binary_search_by(|user| (**user).cmp(owner)) {
                users.remove(at);
            }
            if users.is_empty() {
                self.backend_owners.remove(key);
            }
        }
        Some(rules)
    }

    /// Forgets the addresses that `rules` led to and that no rule leads to any more.
    pub(super) fn remove_unused_backends(&mut self, rules: &[HostRule]) {
        for key in rules.iter().flat_map(HostRule::backends) {
            if !self.backend_owners.contains_key(key) && self.backends.get(key).is_some_and(|entry| entry.is_static) {
                self.backends.remove(key);
            }
        }
    }

    /// Its hosts are served, or gone. Returns whether they were not before.
    pub(super) fn forget_not_ready(&mut self, owner: &str) -> bool {
        let forgotten = self.not_ready.remove(owner).is_some();
        self.not_ready_stale |= forgotten;
        forgotten
    }

    pub(super) fn compile_not_ready(&self) -> NotReadyHosts {
        let mut compiled = NotReadyHosts::default();
        for unserved in self.not_ready.values() {
            for (host, cluster_local_only) in &unserved.hosts {
                let entry =
                    NotReadyHost { sentence: Arc::clone(&unserved.sentence), cluster_local_only: *cluster_local_only };
                compiled.insert(host.as_str().into(), entry);
            }
        }
        compiled
    }

    /// The certificates for all callers, the operator's and those of objects; and the additional ones for callers
    /// inside.
    pub(super) fn merged_certificates(&self) -> (CertificateStore, CertificateStore) {
        let (mut public, mut inside) = (CertificateStore::default(), CertificateStore::default());
        let (yielding, owning): (Vec<_>, Vec<_>) = self.object_certificates.values().partition(|shown| shown.yields);
        let insert = |merged: &mut CertificateStore, named: &[(String, TlsIdentity)]| {
            named.iter().for_each(|(host, identity)| merged.insert(host, identity.clone()));
        };
        yielding.iter().for_each(|shown| insert(&mut public, &shown.public));
        public.merge(&self.operator_certificates);
        for shown in owning {
            insert(&mut public, &shown.public);
            insert(&mut inside, &shown.cluster_local);
        }
        (public, inside)
    }
}

#[derive(Default)]
pub(super) struct BackendEntry {
    pub(super) spec: Option<BackendSpec>,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    /// How to verify their certificates, if they use TLS.
    pub(super) trust: Option<Arc<TlsClientConfig>>,
    pub(super) load: Arc<BackendLoad>,
    /// Its endpoints are given addresses; removed with the last rule that names it.
    pub(super) is_static: bool,
    /// As the cores have it, until it changes.
    pub(super) compiled: Option<Arc<Backend>>,
}
