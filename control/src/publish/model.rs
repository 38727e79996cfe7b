//! What was said so far, by identity, and what of it has to be compiled anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dataplane::heap::{self, Stays};
use dataplane::load::BackendLoad;
use dataplane::table::{Backend, Endpoint, Route, Table};
use dataplane::tls::{Certificates, Trust};

use super::BackendSpec;
use super::rule::{HostRule, Shown};
use super::streams::Streams;

/// What a new table costs a core for each subscriber, in round figures: tables that change streams follow
/// each other no faster, or ten thousand Triggers made one by one would cost the square of that.
pub(super) const REST_FOR_EACH: Duration = Duration::from_micros(2);
/// A shorter rest is none.
pub(super) const REST_MIN: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(super) struct Model {
    pub(super) backends: BTreeMap<String, BackendEntry>,
    /// The counters of backends that are gone while somebody still counts on them: instances that drain,
    /// requests under an old table. One that comes back under its name goes on with the same ones.
    pub(super) loads: HashMap<String, Weak<BackendLoad>>,
    pub(super) routes: BTreeMap<Arc<str>, Vec<HostRule>>,
    /// Who has a host. Both share their letters with `routes`. A tree, because half of a large map's places are empty.
    pub(super) owners: BTreeMap<Arc<str>, Arc<str>>,
    /// Whose rules name a backend, by its key; in order. Mostly one's, for which a set would take room for eleven.
    pub(super) users: HashMap<String, Vec<Box<str>>>,
    /// Hosts from the command line: nobody takes them.
    pub(super) fixed: HashMap<String, Arc<Route>>,
    /// The last id given to an address that is not of the fleet.
    pub(super) address_id: u64,
    /// From the operator's files.
    pub(super) own_certificates: Arc<Certificates>,
    /// From objects, by their owners.
    pub(super) certificates_of: BTreeMap<String, Shown>,
    /// Some of either have changed since the last table.
    pub(super) certificates_stale: bool,
    pub(super) streams: Streams,
    /// Counts changes; `published <= changes`.
    pub(super) changes: u64,
    pub(super) published: u64,
    /// When the last table was handed down.
    pub(super) handed_down: Option<Instant>,
    /// Until the first table is complete none is handed down (APP-16).
    pub(super) open: bool,
    /// The last table, for what has not changed since.
    pub(super) table: Table,
    /// Whose rules have to be compiled anew.
    pub(super) stale: BTreeSet<String>,
    /// Hosts that their owners let go.
    pub(super) gone: Vec<Arc<str>>,
    pub(super) streams_stale: bool,
}

/// The model, locked. What is made meanwhile is mostly part of it or of a table, and stays.
pub(super) struct Held<'a> {
    model: MutexGuard<'a, Model>,
    _stays: Stays,
}

impl<'a> Held<'a> {
    pub(super) fn of(model: &'a Mutex<Model>) -> Self {
        // A panic elsewhere leaves the model as whole as before: every edit is a few map operations.
        let model = model.lock().unwrap_or_else(PoisonError::into_inner);
        Self { model, _stays: heap::stays() }
    }
}

impl Deref for Held<'_> {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.model
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Model {
        &mut self.model
    }
}

impl Model {
    /// How long the cores still rest from the last table.
    pub(super) fn rest(&self, now: Instant) -> Duration {
        let readers = u32::try_from(self.streams.readers()).unwrap_or(u32::MAX);
        let since = self.handed_down.map_or(Duration::MAX, |then| now - then);
        REST_FOR_EACH.saturating_mul(readers).saturating_sub(since)
    }

    pub(super) fn backend(&mut self, key: &str) -> &mut BackendEntry {
        let loads = &self.loads;
        self.backends.entry(key.to_owned()).or_insert_with(|| BackendEntry {
            load: loads.get(key).and_then(Weak::upgrade).unwrap_or_default(),
            ..BackendEntry::default()
        })
    }

    /// An address that nobody knew before. Instances count from the clock's milliseconds, so small numbers
    /// are free for these.
    pub(super) fn endpoint(&mut self, address: SocketAddr, unrestricted: bool) -> Arc<Endpoint> {
        self.address_id += 1;
        Arc::new(Endpoint { id: self.address_id, address, load: Arc::default(), born: None, unrestricted })
    }

    /// The backend is another one now: so are the routes that lead to it.
    pub(super) fn touch(&mut self, key: &str) {
        if let Some(entry) = self.backends.get_mut(key) {
            entry.made = None;
        }
        self.stale.extend(self.users.get(key).into_iter().flatten().map(|owner| owner.to_string()));
    }

    /// `owner`'s rules name the backend `key`.
    pub(super) fn note_user(&mut self, key: &str, owner: &str) {
        if let Some(users) = self.users.get_mut(key) {
            if let Err(at) = users.binary_search_by(|user| (**user).cmp(owner)) {
                users.insert(at, owner.into());
            }
        } else {
            self.users.insert(key.to_owned(), vec![owner.into()]);
        }
    }

    /// Takes the rules of `owner` away, with their hosts. What they led to stays until
    /// [`Model::drop_unused`], since the next rules may lead there too.
    pub(super) fn take_rules(&mut self, owner: &str) -> Option<Vec<HostRule>> {
        let rules = self.routes.remove(owner)?;
        for host in rules.iter().flat_map(|rule| &rule.hosts) {
            self.owners.remove(host);
            self.gone.push(Arc::clone(host));
        }
        for key in rules.iter().flat_map(HostRule::backends) {
            let Some(users) = self.users.get_mut(key) else { continue };
            if let Ok(at) = users.binary_search_by(|user| (**user).cmp(owner)) {
                users.remove(at);
            }
            if users.is_empty() {
                self.users.remove(key);
            }
        }
        Some(rules)
    }

    /// Forgets the addresses that `rules` led to and that no rule leads to any more.
    pub(super) fn drop_unused(&mut self, rules: &[HostRule]) {
        for key in rules.iter().flat_map(HostRule::backends) {
            if !self.users.contains_key(key) && self.backends.get(key).is_some_and(|entry| entry.attached) {
                self.backends.remove(key);
            }
        }
    }

    /// What everybody is shown, the operator's and that of objects; and what callers inside are shown besides.
    pub(super) fn merged_certificates(&self) -> (Certificates, Certificates) {
        let (mut everybody, mut inside) = ((*self.own_certificates).clone(), Certificates::default());
        for shown in self.certificates_of.values() {
            for (merged, named) in [(&mut everybody, &shown.everybody), (&mut inside, &shown.inside)] {
                named.iter().for_each(|(host, identity)| merged.insert(host, identity.clone()));
            }
        }
        (everybody, inside)
    }
}

#[derive(Default)]
pub(super) struct BackendEntry {
    pub(super) spec: Option<BackendSpec>,
    pub(super) endpoints: Vec<Arc<Endpoint>>,
    /// Whom they have to prove to be, if they speak TLS.
    pub(super) trust: Option<Arc<Trust>>,
    pub(super) load: Arc<BackendLoad>,
    /// Its endpoints are given addresses; goes with the last rule that names it.
    pub(super) attached: bool,
    /// As the cores have it, until it changes.
    pub(super) made: Option<Arc<Backend>>,
}
