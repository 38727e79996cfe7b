//! From the model to a table: only what changed is made anew, so that one change among 100,000 routes costs
//! some slots of the host map and not the map.

use std::mem::take;
use std::sync::Arc;

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
        let Model { routes, backends, table, fixed, .. } = model;
        for rule in routes.get(&*owner).into_iter().flatten() {
            let route = compiled(rule, backends).map(Arc::new);
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

type Backends = std::collections::BTreeMap<String, BackendEntry>;

/// `None` when all its backends are gone: then it answers like a host that nobody has.
fn compiled(rule: &HostRule, backends: &mut Backends) -> Option<Route> {
    let splits = shares(&rule.splits, backends);
    let branches: Vec<_> = rule
        .paths
        .iter()
        .map(|path| Branch {
            path: path.path.trim_end_matches('/').into(),
            headers: path.headers.iter().map(|(name, value)| ((**name).into(), (**value).into())).collect(),
            splits: shares(&path.splits, backends),
            by_any_scheme: path.by_any_scheme,
            inside_only: path.inside_only,
        })
        .filter(|branch| !branch.splits.is_empty())
        .collect();
    let mut route = Route::new(branches, splits);
    route.https_redirect = rule.https_redirect;
    route.inside_only = rule.inside_only;
    route.hash.clone_from(&rule.hash);
    route.manners.clone_from(&rule.manners);
    let leads_on = route.all_splits().any(|split| split.weight > 0);
    leads_on.then_some(route)
}

fn shares(shares: &[Share], backends: &mut Backends) -> Vec<Split> {
    let split = |share: &Share| {
        let entry = backends.get_mut(&share.backend)?;
        let edits = (!share.edits.is_empty()).then(|| Arc::new(share.edits.clone()));
        Some(Split { weight: share.weight, backend: made(&share.backend, entry), edits })
    };
    shares.iter().filter_map(split).collect()
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
    // Known to the fleet only: nobody has said yet that it may be started.
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
