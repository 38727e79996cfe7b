//! Publisher: compiles the controllers' decisions into the table that the cores read.
//!
//! [`Publisher`] holds the model: backends, routes, streams and subscribers by identity. Every change marks what it
//! affects; a compile rebuilds that and publishes a [`contract::table::RoutingTable`] that shares the rest. Counters
//! (loads, tallies) stay the same `Arc`s across tables, because requests that began under an old table still count.
//! Out of scope: why something is routed (controllers) and how a core learns of a new table (data plane).

mod acme;
mod addresses;
mod challenge_route;
mod compile;
mod host_rule;
mod listener_state;
mod listeners;
mod namespace_quotas;
mod not_ready;
mod private_hosts;
mod route_filters;
mod routing_model;
mod stream_model;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use contract::abandoned::AbandonedEvents;
use contract::event_store::ExternalStream;
use contract::event_types::EventTypeKey;
use contract::load::{BackendLoad, ByteQuota};
use contract::request_log::RequestLog;
use contract::service_names::ServiceNames;
use contract::stream_admission::StreamAdmission;
use contract::table::{
    DeliveryPolicy, DeliveryTarget, Endpoint, EndpointAddress, EventFilter, EventsTransport, GatewayOptions,
    HoldReason, InitialOffset, NoEndpointPolicy, Protocol, ReplyTarget, RequestTimeouts, RetentionPolicy, RoutingTable,
    SinkRoute,
};
use contract::tls::CertificateStore;
use tokio::sync::Notify;

pub use acme::AcmeChallenge;
pub use addresses::{AddressAuthorization, AddressBackend};
use autoscaler::EndpointSink;
pub use host_rule::{HostRule, ObjectCertificates, PathRule, UnservedHosts, WeightedBackend};
pub use listener_state::{ListenerHostname, ListenerState};
pub use namespace_quotas::{NamespaceQuotas, QuotaConfig};
pub use route_filters::{ExternalAuthorizationRule, FilterRuleDestination, MirrorRule, RouteFilterRule, RuleTimeouts};
use routing_model::{ModelGuard, PUBLISH_INTERVAL_MIN, RoutingModel};

/// Publishes tables to the cores. Shared by controllers (same thread) and the autoscaler.
pub struct Publisher {
    model: Mutex<RoutingModel>,
    /// All cores have opened their logs and follow the tables.
    cores_running: AtomicBool,
    /// Rung when the operator's certificates are others.
    certificates_changed: Notify,
    publish_table: Arc<dyn Fn(RoutingTable) + Send + Sync>,
    /// Shared with the tables.
    internal_key: Arc<str>,
    /// Part of the names of private Routes. Not `internal_key`: access logs and backends see Host.
    private_host_key: String,
}

/// How a backend treats its requests; its instances come from the autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSpec {
    pub concurrency_max: u32,
    pub when_empty: NoEndpointPolicy,
    pub protocol: Protocol,
    pub timeouts: RequestTimeouts,
}

/// A host belongs to another owner, which had it first (AMB-05).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConflict {
    pub host: String,
    /// Its owner, as given to [`Publisher::set_route`].
    pub owner: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    pub name: String,
    pub event_bytes_max: u32,
    pub retention: RetentionPolicy,
    pub quota: Arc<ByteQuota>,
    /// Its owner is being deleted: what is there is still delivered.
    pub is_closed: bool,
    /// Senders that are admitted from outside; `None`: all.
    pub admission: Option<Arc<StreamAdmission>>,
    pub reports_event_types: bool,
    pub external: Option<Arc<ExternalStream>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSubscriberSpec {
    /// The path of the stream that it reads.
    pub path: String,
    /// `NAMESPACE/NAME`.
    pub label: String,
    pub filter: EventFilter,
    pub target: DeliveryTarget,
    pub reply: ReplyTarget,
    pub dead_letter: Option<DeliveryTarget>,
    pub hold: HoldReason,
    pub delivery: DeliveryPolicy,
    pub start_position: InitialOffset,
}

/// Events that were dropped for a subscriber since the process began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedEvents {
    /// The subscriber's durable identity.
    pub uid: String,
    /// `NAMESPACE/NAME`.
    pub label: String,
    /// Counts by reason, as in [`contract::load::SubscriberCounters::DROP_REASONS`].
    pub events: [u64; 5],
    /// Events at which its filter used up its steps: not dropped, but withheld.
    pub over_budget: u64,
    /// Events that are set aside because a core stopped at them before a restart: dead-lettered or dropped.
    pub set_aside: u64,
    /// The position of the last of them in its log.
    pub set_aside_position: u64,
    pub stream: String,
}

impl Publisher {
    /// `deliver` swaps the table for all cores before it returns, and does not block.
    #[must_use]
    pub fn new(deliver: Arc<dyn Fn(RoutingTable) + Send + Sync>) -> Self {
        let random = || uuid::Uuid::new_v4().simple().to_string(); // a caller outside cannot guess it
        let internal_key: Arc<str> = random().into();
        let table = RoutingTable { internal_key: Arc::clone(&internal_key), ..RoutingTable::default() };
        Self {
            internal_key,
            private_host_key: random(),
            model: Mutex::new(RoutingModel { table, ..RoutingModel::default() }),
            cores_running: AtomicBool::new(false),
            certificates_changed: Notify::new(),
            publish_table: deliver,
        }
    }

    /// Whether a backend has an instance or address, or would get one.
    #[must_use]
    pub fn has_endpoints(&self, key: &str) -> bool {
        let model = self.lock();
        model.backends.get(key).is_some_and(|entry| {
            let wakes = entry.spec.as_ref().is_some_and(|spec| spec.when_empty.waits());
            wakes || !entry.endpoints.is_empty()
        })
    }

    /// The addresses of a backend's ready instances.
    #[must_use]
    pub fn endpoint_addresses(&self, key: &str) -> Vec<SocketAddr> {
        let model = self.lock();
        let endpoints = model.backends.get(key).into_iter().flat_map(|entry| &entry.endpoints);
        let ip = |endpoint: &Arc<Endpoint>| match endpoint.address {
            EndpointAddress::Ip(address) => Some(address),
            EndpointAddress::Unix(_) => None,
        };
        endpoints.filter_map(ip).collect()
    }

    /// Whether a rule names a backend.
    #[must_use]
    pub fn is_backend_in_use(&self, key: &str) -> bool {
        self.lock().backend_owners.contains_key(key)
    }

    /// The certificates for TLS clients from now on. Published at once, unless there is no table yet.
    pub fn set_certificates(&self, certificates: CertificateStore) {
        let mut model = self.lock();
        model.operator_certificates = Arc::new(certificates);
        model.certificates_stale = true;
        model.changes += 1;
        self.publish(&mut model);
        self.certificates_changed.notify_one();
    }

    /// Whether a host is `owner`'s.
    #[must_use]
    pub fn owns_host(&self, owner: &str, host: &str) -> bool {
        self.lock().owners.get(host).is_some_and(|known| **known == *owner)
    }

    /// Whether those vouch for a host.
    #[must_use]
    pub fn has_certificate_for(&self, host: &str) -> bool {
        self.lock().operator_certificates.covers(host)
    }

    /// Returns when others have been set since the last call.
    pub async fn certificates_changed(&self) {
        self.certificates_changed.notified().await;
    }

    /// The certificates that an object brings; none takes them away.
    pub fn set_object_certificates(&self, owner: &str, shown: ObjectCertificates) {
        self.update(|model| {
            let none = shown == ObjectCertificates::default();
            if model.object_certificates.get(owner).map_or(none, |known| *known == shown) {
                return false;
            }
            if none {
                model.object_certificates.remove(owner);
            } else {
                model.object_certificates.insert(owner.to_owned(), shown);
            }
            model.certificates_stale = true;
            true
        });
    }

    pub fn set_backend(&self, key: &str, spec: BackendSpec) {
        self.update(|model| {
            let changed = model.backend(key).spec.replace(spec.clone()) != Some(spec);
            if changed {
                model.mark_stale(key);
            }
            changed
        });
    }

    pub fn remove_backend(&self, key: &str) {
        self.update(|model| {
            model.loads.retain(|_, load| load.strong_count() > 0);
            match model.backends.remove(key) {
                Some(entry) => {
                    model.loads.insert(key.to_owned(), Arc::downgrade(&entry.load));
                    model.mark_stale(key);
                    true
                }
                None => false,
            }
        });
    }

    /// Gives the Route `owner` (`NAMESPACE/NAME`) its hosts, all or none. Returns whether hosts that it had before
    /// are free now.
    pub fn set_route(&self, owner: &str, rules: Vec<HostRule>) -> Result<bool, HostConflict> {
        let mut model = self.lock();
        let of_appliance = rules.iter().filter(|rule| rule.listener.is_none());
        for host in of_appliance.flat_map(|rule| &rule.hosts) {
            if let Some(other) = model.owners.get(host)
                && **other != *owner
            {
                return Err(HostConflict { host: host.to_string(), owner: other.to_string() });
            }
        }
        if model.forget_not_ready(owner) {
            model.changes += 1;
        }
        if model.routes.get(owner) == Some(&rules) {
            return Ok(false);
        }
        let before = model.remove_rules(owner).unwrap_or_default();
        let (rules, name) = (host_rule::deep_clone(&rules), Arc::<str>::from(owner));
        for rule in &rules {
            for host in rule.hosts.iter().filter(|_| rule.listener.is_none()) {
                model.owners.insert(Arc::clone(host), Arc::clone(&name));
            }
            for key in rule.backends() {
                model.add_backend_owner(key, owner);
            }
        }
        model.routes.insert(name, rules);
        model.stale_owners.insert(owner.to_owned());
        model.remove_unused_backends(&before);
        model.changes += 1;
        let is_free = |host: &Arc<str>| !model.owners.contains_key(host);
        let of_appliance = before.iter().filter(|rule| rule.listener.is_none());
        Ok(of_appliance.flat_map(|rule| &rule.hosts).any(is_free))
    }

    /// Returns whether it had hosts, which are free now.
    pub fn remove_route(&self, owner: &str) -> bool {
        let mut had_hosts = false;
        self.update(|model| {
            let was_not_ready = model.forget_not_ready(owner);
            let Some(gone) = model.remove_rules(owner) else { return was_not_ready };
            model.remove_unused_backends(&gone);
            had_hosts = true;
            true
        });
        had_hosts
    }

    /// Sets where requests for the sink at `path` on the events listener go; `None` removes it.
    pub fn set_event_sink(&self, path: &str, sink: Option<SinkRoute>) {
        self.update(|model| {
            if model.table.event_sinks.get(path) == sink.as_ref() {
                return false;
            }
            let sinks = Arc::make_mut(&mut model.table.event_sinks);
            match sink {
                Some(sink) => drop(sinks.insert(path.into(), sink)),
                None => drop(sinks.remove(path)),
            }
            true
        });
    }

    pub fn set_stream(&self, path: &str, spec: StreamSpec) {
        self.update_streams(|model| model.streams.set(path, spec));
    }

    pub fn remove_stream(&self, path: &str) {
        self.update_streams(|model| model.streams.remove(path));
    }

    /// `name` is the subscriber's durable identity.
    pub fn set_subscriber(&self, name: &str, spec: StreamSubscriberSpec) {
        self.update_streams(|model| model.streams.set_subscriber(name, spec));
    }

    pub fn remove_subscriber(&self, name: &str) {
        self.update_streams(|model| model.streams.remove_subscriber(name));
    }

    /// Removes the subscribers of a stream whose durable identities do not stay, including those that other objects
    /// set.
    pub fn retain_subscribers(&self, path: &str, stays: impl Fn(&str) -> bool) {
        self.update_streams(|model| model.streams.retain_subscribers(path, stays));
    }

    /// Sets what holds for all listeners for requests. Published at once, unless there is no table yet.
    pub fn set_gateway_options(&self, options: GatewayOptions) {
        let mut model = self.lock();
        if *model.table.gateway != options {
            model.table.gateway = Arc::new(options);
            model.changes += 1;
            self.publish(&mut model);
        }
    }

    /// Sets how events are admitted. Published at once, unless there is no table yet.
    pub fn set_event_schemes(&self, by: EventsTransport) {
        let mut model = self.lock();
        if model.table.events_by != by {
            model.table.events_by = by;
            model.changes += 1;
            self.publish(&mut model);
        }
    }

    /// The lines that requests have from now on. Published at once, unless there is no table yet.
    pub fn set_request_log(&self, log: Option<Arc<RequestLog>>) {
        let mut model = self.lock();
        if model.table.request_log != log {
            model.table.request_log = log;
            model.changes += 1;
            self.publish(&mut model);
        }
    }

    /// Sets the targets of core Services. Published at once, unless there is no table yet.
    pub fn set_service_names(&self, names: ServiceNames) {
        let mut model = self.lock();
        if *model.table.names != names {
            model.table.names = Arc::new(names);
            model.changes += 1;
            self.publish(&mut model);
        }
    }

    /// The subscribers that events were dropped for.
    #[must_use]
    pub fn dropped_events(&self) -> Vec<DroppedEvents> {
        self.lock().streams.dropped_events()
    }

    /// The types of events that have come since the last call, by the streams' paths.
    #[must_use]
    pub fn new_event_types(&self) -> Vec<(String, EventTypeKey)> {
        self.lock().streams.new_event_types()
    }

    /// Reports the types of this stream's events again.
    pub fn reset_event_types(&self, path: &str) {
        self.lock().streams.reset_event_types(path);
    }

    /// From now on the counters say what the cores do.
    pub fn set_cores_running(&self) {
        self.cores_running.store(true, Relaxed);
    }

    /// Whether they do: before, nothing pending means nothing.
    #[must_use]
    pub fn cores_running(&self) -> bool {
        self.cores_running.load(Relaxed)
    }

    /// Events that the readers of a stream have still to finish.
    #[must_use]
    pub fn pending_events(&self, path: &str) -> u64 {
        self.lock().streams.pending_events(path)
    }

    /// Deleted streams and readers that were forgotten with a backlog since the last call.
    #[must_use]
    pub fn abandoned_events(&self) -> Vec<AbandonedEvents> {
        self.lock().table.abandoned.take().collect()
    }

    /// Publishes the first table; from now on changes follow.
    pub fn start(&self) {
        let mut model = self.lock();
        model.is_started = true;
        model.changes += 1;
        self.publish(&mut model);
    }

    /// Returns when everything set before is in a table that the cores have. Yields first, so that other tasks apply
    /// their changes, and a burst costs one table and not one each; with many subscribers tables follow each other
    /// more slowly (`REST_FOR_EACH`).
    pub async fn flush(&self) {
        let wanted = self.lock().changes;
        tokio::task::yield_now().await;
        loop {
            let rest = {
                let mut model = self.lock();
                if model.published >= wanted {
                    return;
                }
                let rest = model.publish_delay(Instant::now());
                if rest < PUBLISH_INTERVAL_MIN || !model.is_started {
                    return self.publish(&mut model);
                }
                rest
            };
            tokio::time::sleep(rest).await;
        }
    }

    fn update(&self, edit: impl FnOnce(&mut RoutingModel) -> bool) {
        let mut model = self.lock();
        if edit(&mut model) {
            model.changes += 1;
        }
    }

    fn update_streams(&self, edit: impl FnOnce(&mut RoutingModel) -> bool) {
        self.update(|model| {
            let changed = edit(model);
            model.streams_stale |= changed;
            changed
        });
    }

    /// Under the lock, so that tables leave in the order of their changes.
    fn publish(&self, model: &mut RoutingModel) {
        if model.is_started && model.published < model.changes {
            (self.publish_table)(compile::compile(model));
            model.published = model.changes;
            model.published_at = Some(Instant::now());
        }
    }

    fn lock(&self) -> ModelGuard<'_> {
        ModelGuard::of(&self.model)
    }
}

impl EndpointSink for Publisher {
    /// Published at once: requests wait for exactly this.
    fn set_endpoints(&self, key: &str, endpoints: Vec<Arc<Endpoint>>) {
        let mut model = self.lock();
        // A backend that was removed says good-bye to its instances after that.
        let Some(entry) = model.backends.get_mut(key) else { return };
        entry.endpoints = endpoints;
        model.mark_stale(key);
        model.changes += 1;
        self.publish(&mut model);
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

#[cfg(test)]
mod tests;
