//! Publish: what the controllers decided, compiled into the table that the cores read.
//!
//! [`Publisher`] holds the model: backends, routes, streams and subscribers by identity. Every change marks
//! what it touches; a compile makes that anew and hands down a [`Table`] that shares the rest. Counters (loads, tallies) stay the same
//! `Arc`s across tables, because requests that began under an old table still count.
//! Deliberately absent: why something is routed (controllers) and how a core learns of a swap (data plane).

mod addresses;
mod compile;
mod model;
mod quotas;
mod rule;
mod streams;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use dataplane::access::RequestLog;
use dataplane::events::admission::Admission;
use dataplane::events::left_behind::Left;
use dataplane::events::types::Seen;
use dataplane::load::{BackendLoad, Quota};
use dataplane::names::Names;
use dataplane::table::{
    Begin, Delivery, Endpoint, EventsBy, Filter, Hold, Keeping, Protocol, Reply, Table, Target, Timeouts,
    WhenEmpty,
};
use dataplane::tls::Certificates;
use tokio::sync::Notify;

use crate::fleet::EndpointSink;
use model::{Held, Model, REST_MIN};
pub use quotas::{QuotaRules, Quotas};
pub use rule::{HostRule, PathRule, Share, Shown};

/// The way down. Shared by controllers (same thread) and the fleet.
pub struct Publisher {
    model: Mutex<Model>,
    /// All cores have opened their logs and follow the tables.
    has_cores: AtomicBool,
    /// Rung when the operator's certificates are others.
    has_certificates: Notify,
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

/// A host belongs to somebody else, who had it first (AMB-05).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTaken {
    pub host: String,
    /// Whose it is, as [`Publisher::set_route`] was told.
    pub owner: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    pub name: String,
    pub event_bytes_max: u32,
    pub keeping: Keeping,
    pub quota: Arc<Quota>,
    /// Its owner is being deleted: what is there is still delivered.
    pub is_closed: bool,
    /// Who may send from outside; `None`: everybody.
    pub admission: Option<Arc<Admission>>,
    /// Somebody wants to know which types of events come.
    pub tells_types: bool,
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
    pub hold: Hold,
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
    /// By reason, as in [`dataplane::load::SubscriberTally::DROP_REASONS`].
    pub events: [u64; 5],
    /// Events at which its filter used up its steps: not dropped, but withheld.
    pub over_budget: u64,
}

impl Publisher {
    /// `deliver` swaps the table for all cores before it returns, and does not block.
    #[must_use]
    pub fn new(deliver: Arc<dyn Fn(Table) + Send + Sync>) -> Self {
        let inside_key = uuid::Uuid::new_v4().simple().to_string().into(); // what nobody outside can guess
        let table = Table { inside_key, ..Table::default() };
        Self {
            model: Mutex::new(Model { table, ..Model::default() }),
            has_cores: AtomicBool::new(false),
            has_certificates: Notify::new(),
            deliver,
        }
    }

    /// Whether a backend has an instance or address, or would get one.
    #[must_use]
    pub fn answers(&self, key: &str) -> bool {
        let model = self.lock();
        model.backends.get(key).is_some_and(|entry| {
            let wakes = entry.spec.is_some_and(|spec| spec.when_empty != WhenEmpty::Refuse);
            wakes || !entry.endpoints.is_empty()
        })
    }

    /// What TLS clients are shown from now on. Published at once, unless there is no table yet.
    pub fn set_certificates(&self, certificates: Certificates) {
        let mut model = self.lock();
        model.own_certificates = Arc::new(certificates);
        model.certificates_stale = true;
        model.changes += 1;
        self.hand_down(&mut model);
        self.has_certificates.notify_one();
    }

    /// Whether a host is `owner`'s.
    #[must_use]
    pub fn has_host(&self, owner: &str, host: &str) -> bool {
        self.lock().owners.get(host).is_some_and(|known| **known == *owner)
    }

    /// Whether those vouch for a host.
    #[must_use]
    pub fn vouches_for(&self, host: &str) -> bool {
        self.lock().own_certificates.vouch_for(host)
    }

    /// Returns when others have been set since the last call.
    pub async fn certificates_set(&self) {
        self.has_certificates.notified().await;
    }

    /// The certificates that an object brings; none takes them away.
    pub fn set_certificates_of(&self, owner: &str, shown: Shown) {
        self.change(|model| {
            let none = shown == Shown::default();
            if model.certificates_of.get(owner).map_or(none, |known| *known == shown) {
                return false;
            }
            if none {
                model.certificates_of.remove(owner);
            } else {
                model.certificates_of.insert(owner.to_owned(), shown);
            }
            model.certificates_stale = true;
            true
        });
    }

    pub fn set_backend(&self, key: &str, spec: BackendSpec) {
        self.change(|model| {
            let changed = model.backend(key).spec.replace(spec) != Some(spec);
            if changed {
                model.touch(key);
            }
            changed
        });
    }

    pub fn remove_backend(&self, key: &str) {
        self.change(|model| {
            model.loads.retain(|_, load| load.strong_count() > 0);
            match model.backends.remove(key) {
                Some(entry) => {
                    model.loads.insert(key.to_owned(), Arc::downgrade(&entry.load));
                    model.touch(key);
                    true
                }
                None => false,
            }
        });
    }

    /// Gives the Route `owner` (`NAMESPACE/NAME`) its hosts, all or none. Whether others are free that it had before.
    pub fn set_route(&self, owner: &str, rules: Vec<HostRule>) -> Result<bool, HostTaken> {
        let mut model = self.lock();
        for host in rules.iter().flat_map(|rule| &rule.hosts) {
            if let Some(other) = model.owners.get(host)
                && **other != *owner
            {
                return Err(HostTaken { host: host.to_string(), owner: other.to_string() });
            }
        }
        if model.routes.get(owner) == Some(&rules) {
            return Ok(false);
        }
        let before = model.take_rules(owner).unwrap_or_default();
        let (rules, name) = (rule::anew(&rules), Arc::<str>::from(owner));
        for rule in &rules {
            for host in &rule.hosts {
                model.owners.insert(Arc::clone(host), Arc::clone(&name));
            }
            for key in rule.backends() {
                model.note_user(key, owner);
            }
        }
        model.routes.insert(name, rules);
        model.stale.insert(owner.to_owned());
        model.drop_unused(&before);
        model.changes += 1;
        let is_free = |host: &Arc<str>| !model.owners.contains_key(host);
        Ok(before.iter().flat_map(|rule| &rule.hosts).any(is_free))
    }

    pub fn remove_route(&self, owner: &str) {
        self.change(|model| {
            let Some(gone) = model.take_rules(owner) else { return false };
            model.drop_unused(&gone);
            true
        });
    }

    pub fn set_stream(&self, path: &str, spec: StreamSpec) {
        self.change_streams(|model| model.streams.set(path, spec));
    }

    pub fn remove_stream(&self, path: &str) {
        self.change_streams(|model| model.streams.remove(path));
    }

    /// `name` is the subscriber's durable identity.
    pub fn set_subscriber(&self, name: &str, spec: SubscriberSpec) {
        self.change_streams(|model| model.streams.set_reader(name, spec));
    }

    pub fn remove_subscriber(&self, name: &str) {
        self.change_streams(|model| model.streams.remove_reader(name));
    }

    /// Takes away the subscribers of a stream whose durable identities do not stay, whoever set them.
    pub fn retain_subscribers(&self, path: &str, stays: impl Fn(&str) -> bool) {
        self.change_streams(|model| model.streams.retain_readers(path, stays));
    }

    /// How events come in, from now on. Published at once, unless there is no table yet.
    pub fn take_events_by(&self, by: EventsBy) {
        let mut model = self.lock();
        if model.table.events_by != by {
            model.table.events_by = by;
            model.changes += 1;
            self.hand_down(&mut model);
        }
    }

    /// The lines that requests have from now on. Published at once, unless there is no table yet.
    pub fn set_request_log(&self, log: Option<Arc<RequestLog>>) {
        let mut model = self.lock();
        if model.table.request_log != log {
            model.table.request_log = log;
            model.changes += 1;
            self.hand_down(&mut model);
        }
    }

    /// What core Services stand for, from now on. Published at once, unless there is no table yet.
    pub fn set_names(&self, names: Names) {
        let mut model = self.lock();
        if *model.table.names != names {
            model.table.names = Arc::new(names);
            model.changes += 1;
            self.hand_down(&mut model);
        }
    }

    /// The subscribers that events were dropped for.
    #[must_use]
    pub fn drops(&self) -> Vec<Dropped> {
        self.lock().streams.drops()
    }

    /// The types of events that have come since the last call, by the streams' paths.
    #[must_use]
    pub fn new_types(&self) -> Vec<(String, Seen)> {
        self.lock().streams.new_types()
    }

    /// The types of this stream's events are told again.
    pub fn forget_types(&self, path: &str) {
        self.lock().streams.forget_types(path);
    }

    /// From now on the counters say what the cores do.
    pub fn cores_run(&self) {
        self.has_cores.store(true, Relaxed);
    }

    /// Whether they do: before, nothing pending means nothing.
    #[must_use]
    pub fn has_cores(&self) -> bool {
        self.has_cores.load(Relaxed)
    }

    /// Events that the readers of a stream have still to come to an end with.
    #[must_use]
    pub fn pending(&self, path: &str) -> u64 {
        self.lock().streams.pending(path)
    }

    /// Deleted streams and readers that were forgotten with a backlog since the last call.
    #[must_use]
    pub fn left_behind(&self) -> Vec<Left> {
        self.lock().table.left_behind.take().collect()
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
    /// subscribers tables follow each other more slowly (`REST_FOR_EACH`).
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

    fn change_streams(&self, edit: impl FnOnce(&mut Model) -> bool) {
        self.change(|model| {
            let changed = edit(model);
            model.streams_stale |= changed;
            changed
        });
    }

    /// Under the lock, so that tables leave in the order of their changes.
    fn hand_down(&self, model: &mut Model) {
        if model.open && model.published < model.changes {
            (self.deliver)(compile::refresh(model));
            model.published = model.changes;
            model.handed_down = Some(Instant::now());
        }
    }

    fn lock(&self) -> Held<'_> {
        Held::of(&self.model)
    }
}

impl EndpointSink for Publisher {
    /// Published at once: requests wait for exactly this.
    fn set_endpoints(&self, key: &str, endpoints: Vec<Arc<Endpoint>>) {
        let mut model = self.lock();
        // A backend that was removed says good-bye to its instances after that.
        let Some(entry) = model.backends.get_mut(key) else { return };
        entry.endpoints = endpoints;
        model.touch(key);
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

#[cfg(test)]
mod tests;
