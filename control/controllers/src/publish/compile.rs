//! Compiles the model to a table: only what changed is rebuilt, so that one change among 100,000 routes costs
//! some slots of the host map and not the map.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;
use std::sync::{Arc, Weak};

use contract::load::BackendLoad;
use contract::table::{
    Backend, BackendShare, ExternalAuthorization, FilterDestination, HeaderChanges, HeaderEdits, MirrorPolicy,
    MirrorSet, NoEndpointPolicy, Protocol, RequestTimeouts, Route, RouteFilters, RouteMatch, RoutingTable,
};

use super::BackendSpec;
use super::host_rule::{HostRule, WeightedBackend};
use super::listener_state;
use super::route_filters::{
    ExternalAuthorizationRule, FilterRuleDestination, MirrorRule, RouteFilterRule, RuleTimeouts,
};
use super::routing_model::{BackendEntry, RoutingModel};

/// The wildcard host.
const ANY: &str = "*";

/// The table as the model has it now.
pub(super) fn compile(model: &mut RoutingModel) -> RoutingTable {
    for (listener, host) in take(&mut model.released_hosts) {
        match listener {
            Some(listener) => listener_state::set_route(&mut model.table, &listener, &host, None),
            None if !model.static_routes.contains_key(&*host) => set_route(&mut model.table, &host, None),
            None => {}
        }
    }
    for owner in take(&mut model.stale_owners) {
        let RoutingModel { routes, backends, loads, table, static_routes: fixed, private_hosts, .. } = model;
        let mut known = BackendTable { backends, loads };
        for rule in routes.get(&*owner).into_iter().flatten() {
            let route = compile_route(rule, &mut known).map(Arc::new);
            if let Some(listener) = &rule.listener {
                rule.hosts.iter().for_each(|host| listener_state::set_route(table, listener, host, route.clone()));
                continue;
            }
            if let Some(host) = private_hosts.get(&*owner) {
                set_route(table, host, route);
                continue;
            }
            for host in rule.hosts.iter().filter(|host| !fixed.contains_key(&***host)) {
                set_route(table, host, route.clone());
            }
        }
    }
    if take(&mut model.not_ready_stale) {
        model.table.not_ready = Arc::new(model.compile_not_ready());
    }
    if take(&mut model.streams_stale) {
        model.streams.write_to(&mut model.table);
    }
    if take(&mut model.certificates_stale) {
        let (public, inside) = model.merged_certificates();
        model.table.certificates = Arc::new(public);
        model.table.inner_certificates = Arc::new(inside);
    }
    let mut table = model.table.clone();
    model.challenges.iter().for_each(|challenge| challenge.add_to(&mut table));
    table
}

/// Puts a route at its host, or removes what is there.
pub(super) fn set_route(table: &mut RoutingTable, host: &str, route: Option<Arc<Route>>) {
    match route {
        route if host == ANY => table.any_host = route,
        Some(route) => table.hosts.insert(host, route),
        None => table.hosts.remove(host),
    }
}

/// The backends of shares, by their key.
struct BackendTable<'a> {
    backends: &'a mut BTreeMap<String, BackendEntry>,
    /// ... and the counters of what is gone.
    loads: &'a HashMap<String, Weak<BackendLoad>>,
}

/// `None` when no share of it gets traffic: then it answers like an unknown host.
fn compile_route(rule: &HostRule, known: &mut BackendTable<'_>) -> Option<Route> {
    let splits = known.compile_shares(&rule.splits, rule.filters.as_deref());
    let branches: Vec<_> = rule
        .paths
        .iter()
        .map(|path| RouteMatch {
            matches: path.matches.clone(),
            splits: known.compile_shares(&path.splits, path.filters.as_deref()),
            by_any_scheme: path.skip_https_redirect,
            cluster_local_only: path.cluster_local,
            scheme: path.scheme,
        })
        .collect();
    let mut route = Route::new(branches, splits);
    route.https_redirect = rule.https_redirect;
    route.cluster_local_only = rule.cluster_local;
    route.hash.clone_from(&rule.hash);
    route.matches_subdomains = rule.matches_subdomains;
    route.traffic_policy.clone_from(&rule.traffic_policy);
    let leads_on = route.all_splits().any(|split| split.weight > 0);
    leads_on.then_some(route)
}

impl BackendTable<'_> {
    /// The shares of a rule with these filters.
    fn compile_shares(&mut self, shares: &[WeightedBackend], rule: Option<&RouteFilterRule>) -> Vec<BackendShare> {
        if let (true, Some((rule, reply))) =
            (shares.is_empty(), rule.and_then(|rule| Some((rule, rule.reply.as_ref()?))))
        {
            let share = BackendShare::of_reply(1, reply.clone());
            let filters = compile_filters(&[rule], &HeaderEdits::default(), Vec::new(), None, &share.backend);
            return vec![BackendShare { filters, ..share }];
        }
        let split = |share: &WeightedBackend| {
            let backend = self.compile_backend(&share.backend);
            let all: Vec<_> = rule.into_iter().chain(share.filters.as_deref()).collect();
            let mirrors = all.iter().flat_map(|filters| &filters.mirrors).map(|mirror| self.compile_mirror(mirror));
            let mirrors = mirrors.collect();
            let authorization = all.iter().rev().find_map(|filters| filters.external_authorization.as_ref());
            let authorization = authorization.map(|rule| self.compile_authorization(rule));
            let filters = compile_filters(&all, &share.edits, mirrors, authorization, &backend);
            BackendShare { weight: share.weight, backend, filters }
        };
        shares.iter().map(split).collect()
    }

    fn compile_mirror(&mut self, mirror: &MirrorRule) -> MirrorPolicy {
        MirrorPolicy { destination: self.compile_destination(&mirror.destination), fraction: mirror.fraction }
    }

    fn compile_authorization(&mut self, rule: &ExternalAuthorizationRule) -> ExternalAuthorization {
        let destination = self.compile_destination(&rule.destination);
        ExternalAuthorization { destination, service: Arc::clone(&rule.service) }
    }

    fn compile_destination(&mut self, destination: &FilterRuleDestination) -> FilterDestination {
        match destination {
            FilterRuleDestination::Host(host) => FilterDestination::Host(host.as_str().into()),
            FilterRuleDestination::Backend(key) => FilterDestination::Backend(self.compile_backend(key)),
        }
    }

    /// A deleted backend keeps its share and rejects it: were the share removed, its requests would be answered by another's
    /// program.
    fn compile_backend(&mut self, key: &str) -> Arc<Backend> {
        if let Some(entry) = self.backends.get_mut(key) {
            return compiled_backend(key, entry);
        }
        let load = self.loads.get(key).and_then(Weak::upgrade).unwrap_or_default();
        Arc::new(backend(key, &BackendEntry { load, ..BackendEntry::default() }))
    }
}

/// The filters of a share: `all` in order, and then its own edits. `None`: its requests pass unchanged.
pub(super) fn compile_filters(
    all: &[&RouteFilterRule],
    edits: &HeaderEdits,
    mut mirrors: Vec<MirrorPolicy>,
    authorization: Option<ExternalAuthorization>,
    backend: &Backend,
) -> Option<Arc<RouteFilters>> {
    let (mut request, mut response) = (HeaderEdits::default(), HeaderChanges::default());
    let (mut access, mut reply, mut timeouts) = (None, None, RuleTimeouts::default());
    let (mut cors, mut rate_limits, mut body_bytes_max, mut compression) = (None, Vec::new(), None, None);
    let mut authentication = None;
    for filters in all {
        request.append(&filters.request);
        response.append(&filters.response);
        access = Some(&filters.access).filter(|access| !access.is_empty()).or(access);
        authentication = filters.authentication.as_ref().or(authentication);
        reply = filters.reply.as_ref().or(reply);
        timeouts = timeouts.overridden_by(filters.timeouts);
        cors = filters.cors.as_ref().or(cors);
        rate_limits.extend(filters.rate_limits.iter().cloned());
        body_bytes_max = filters.body_bytes_max.or(body_bytes_max);
        compression = filters.compression.as_ref().or(compression);
    }
    request.append(edits);
    mirrors.truncate(MirrorSet::MIRRORS_MAX);
    let filters = RouteFilters {
        request,
        response,
        access: access.cloned().map(Box::new),
        cors: cors.cloned().map(Box::new),
        rate_limits: rate_limits.into(),
        body_bytes_max,
        compression: compression.cloned().map(Box::new),
        authentication: authentication.cloned(),
        external_authorization: authorization.map(Box::new),
        reply: reply.cloned().map(Box::new),
        mirrors: mirrors.into(),
        timeouts: timeouts.applied_to(&backend.timeouts).map(Box::new),
        backend_request: timeouts.backend_request.unwrap_or_default(),
    };
    (!filters.is_empty()).then(|| Arc::new(filters))
}

/// The backend as the cores see it; shared by all rules that use it.
fn compiled_backend(key: &str, entry: &mut BackendEntry) -> Arc<Backend> {
    if let Some(made) = &entry.compiled {
        return Arc::clone(made);
    }
    let made = Arc::new(backend(key, entry));
    entry.compiled = Some(Arc::clone(&made));
    made
}

fn backend(key: &str, entry: &BackendEntry) -> Backend {
    // Known to the autoscaler only, or no longer used: no spec says that it may be started.
    let spec = entry.spec.clone().unwrap_or(BackendSpec {
        concurrency_max: 0,
        when_empty: NoEndpointPolicy::Refuse,
        protocol: Protocol::Http1,
        timeouts: RequestTimeouts::NONE,
    });
    Backend {
        key: key.into(),
        endpoints: entry.endpoints.as_slice().into(),
        concurrency_max: spec.concurrency_max,
        when_empty: spec.when_empty.clone(),
        protocol: spec.protocol,
        tls: entry.trust.clone(),
        timeouts: spec.timeouts,
        proxy_protocol: None,
        load: Arc::clone(&entry.load),
    }
}
