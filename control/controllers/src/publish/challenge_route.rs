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
    let mut branches = vec![branch]; // of equal branches the first counts
    branches.extend_from_slice(route.branches());
    let mut made = Route::new(branches, route.splits.to_vec());
    made.https_redirect = route.https_redirect;
    made.cluster_local_only = route.cluster_local_only;
    made.hash.clone_from(&route.hash);
    made.traffic_policy.clone_from(&route.traffic_policy);
    made.matches_subdomains = route.matches_subdomains;
    made
}
