//! From the model to a table: only what changed is made anew, so that one change among 100,000 routes costs
//! some slots of the host map and not the map.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;
use std::sync::{Arc, Weak};

use dataplane::load::BackendLoad;
use dataplane::table::{Backend, Branch, Protocol, Route, Split, Table, Timeouts, WhenEmpty};

use super::BackendSpec;
use super::model::{BackendEntry, Model};
use super::rule::{HostRule, Share};

/// The host that stands for all others.
const ANY: &str = "*";

/// The table as the model has it now.
pub(super) fn refresh(model: &mut Model) -> Table {
    for host in take(&mut model.gone) {
        if !model.fixed.contains_key(&*host) {
            put(&mut model.table, &host, None);
        }
    }
    for owner in take(&mut model.stale) {
        let Model { routes, backends, loads, table, fixed, .. } = model;
        let mut known = Known { backends, loads };
        for rule in routes.get(&*owner).into_iter().flatten() {
            let route = compiled(rule, &mut known).map(Arc::new);
            for host in rule.hosts.iter().filter(|host| !fixed.contains_key(&***host)) {
                put(table, host, route.clone());
            }
        }
    }
    if take(&mut model.streams_stale) {
        model.streams.fill(&mut model.table);
    }
    if take(&mut model.certificates_stale) {
        let (everybody, inside) = model.merged_certificates();
        model.table.certificates = Arc::new(everybody);
        model.table.inner_certificates = Arc::new(inside);
    }
    model.table.clone()
}

/// Puts a route at its host, or takes away what is there.
pub(super) fn put(table: &mut Table, host: &str, route: Option<Arc<Route>>) {
    match route {
        route if host == ANY => table.any_host = route,
        Some(route) => table.hosts.insert(host, route),
        None => table.hosts.remove(host),
    }
}

/// What shares lead to, by its key.
struct Known<'a> {
    backends: &'a mut BTreeMap<String, BackendEntry>,
    /// ... and the counters of what is gone.
    loads: &'a HashMap<String, Weak<BackendLoad>>,
}

/// `None` when no share of it gets traffic: then it answers like a host that nobody has.
fn compiled(rule: &HostRule, known: &mut Known<'_>) -> Option<Route> {
    let splits = shares(&rule.splits, known);
    let branches: Vec<_> = rule
        .paths
        .iter()
        .map(|path| Branch {
            path: path.path.trim_end_matches('/').into(),
            headers: path.headers.iter().map(|(name, value)| ((**name).into(), (**value).into())).collect(),
            splits: shares(&path.splits, known),
            by_any_scheme: path.by_any_scheme,
            inside_only: path.inside_only,
        })
        .collect();
    let mut route = Route::new(branches, splits);
    route.https_redirect = rule.https_redirect;
    route.inside_only = rule.inside_only;
    route.hash.clone_from(&rule.hash);
    route.manners.clone_from(&rule.manners);
    let leads_on = route.all_splits().any(|split| split.weight > 0);
    leads_on.then_some(route)
}

fn shares(shares: &[Share], known: &mut Known<'_>) -> Vec<Split> {
    let split = |share: &Share| {
        let edits = (!share.edits.is_empty()).then(|| Arc::new(share.edits.clone()));
        Split { weight: share.weight, backend: known.backend(&share.backend), edits }
    };
    shares.iter().map(split).collect()
}

impl Known<'_> {
    /// What is gone keeps its share and refuses it: were the share taken away, its requests would be answered by another's
    /// program.
    fn backend(&mut self, key: &str) -> Arc<Backend> {
        if let Some(entry) = self.backends.get_mut(key) {
            return made(key, entry);
        }
        let load = self.loads.get(key).and_then(Weak::upgrade).unwrap_or_default();
        Arc::new(backend(key, &BackendEntry { load, ..BackendEntry::default() }))
    }
}

/// The backend as the cores see it; the same for all who share it.
fn made(key: &str, entry: &mut BackendEntry) -> Arc<Backend> {
    if let Some(made) = &entry.made {
        return Arc::clone(made);
    }
    let made = Arc::new(backend(key, entry));
    entry.made = Some(Arc::clone(&made));
    made
}

fn backend(key: &str, entry: &BackendEntry) -> Backend {
    // Known to the fleet only, or to nobody any more: nothing says that it may be started.
    let spec = entry.spec.unwrap_or(BackendSpec {
        concurrency_max: 0,
        when_empty: WhenEmpty::Refuse,
        protocol: Protocol::Http1,
        timeouts: Timeouts::NONE,
    });
    Backend {
        key: key.into(),
        endpoints: entry.endpoints.clone(),
        concurrency_max: spec.concurrency_max,
        when_empty: spec.when_empty,
        protocol: spec.protocol,
        trust: entry.trust.clone(),
        timeouts: spec.timeouts,
        load: Arc::clone(&entry.load),
    }
}
