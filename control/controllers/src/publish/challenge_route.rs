//! Adds the routes of open ACME challenges to a table.

use std::sync::Arc;

use contract::table::{Backend, BackendShare, RequestMatch, Route, RouteMatch, RoutingTable};

/// A challenge with its endpoint.
pub(super) struct ChallengeRoute {
    /// An exact host in lower case.
    pub(super) host: String,
    pub(super) path: String,
    pub(super) backend: Arc<Backend>,
}

impl ChallengeRoute {
    /// Adds it to a table that is about to be published.
    pub(super) fn add_to(&self, table: &mut RoutingTable) {
        let route = with_challenge(table.hosts.get(&self.host).map(|route| &**route), self);
        table.hosts.insert(&self.host, Arc::new(route));
    }
}

/// The route with a branch for the challenge. Tokens are random, so no other branch is as specific.
fn with_challenge(route: Option<&Route>, challenge: &ChallengeRoute) -> Route {
    let splits = vec![BackendShare::new(1, Arc::clone(&challenge.backend))];
    let branch = RouteMatch { by_any_scheme: true, ..RouteMatch::new(RequestMatch::prefix(&challenge.path), splits) };
    let Some(route) = route else { return Route::new(vec![branch], Vec::new()) };
    let mut branches: Vec<_> = route.branches().iter().map(copy_branch).collect();
    branches.insert(0, branch); // of equal branches the first counts
    let mut made = Route::new(branches, route.splits.iter().map(copy_share).collect());
    made.https_redirect = route.https_redirect;
    made.cluster_local_only = route.cluster_local_only;
    made.hash.clone_from(&route.hash);
    made.traffic_policy.clone_from(&route.traffic_policy);
    made.matches_subdomains = route.matches_subdomains;
    made
}

fn copy_branch(branch: &RouteMatch) -> RouteMatch {
    RouteMatch {
        matches: branch.matches.clone(),
        splits: branch.splits.iter().map(copy_share).collect(),
        by_any_scheme: branch.by_any_scheme,
        cluster_local_only: branch.cluster_local_only,
        scheme: branch.scheme,
    }
}

fn copy_share(share: &BackendShare) -> BackendShare {
    BackendShare { weight: share.weight, backend: Arc::clone(&share.backend), filters: share.filters.clone() }
}
