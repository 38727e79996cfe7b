//! The routing of one host: rules by path, method, header and query, shares by weight, and filters.

mod access_list;
pub mod authentication;
mod compression_policy;
mod cors;
mod external_authorization;
mod filter_destination;
mod filters;
mod header_edits;
mod match_regex;
mod mirror_policy;
mod path_index;
mod path_rewrite;
mod rate_limit;
mod redirect;
mod request;
mod request_match;
mod route_match;
mod share;

use std::net::SocketAddr;
use std::sync::Arc;

pub use access_list::AccessList;
pub use compression_policy::{COMPRESSED_BYTES_MIN, CompressionPolicy, ContentCoding, is_compressible};
pub use cors::{CORS_ITEMS_MAX, CorsPolicy, CorsPolicyError};
pub use external_authorization::{
    AuthorizationFailureMode, AuthorizationService, AuthorizationServiceError, ExternalAuthorization,
};
pub use filter_destination::FilterDestination;
pub use filters::{FilterOutcome, FilterRefusal, RouteFilters, RouteReply};
pub use header_edits::{HeaderChanges, HeaderEditError, HeaderEdits};
pub use match_regex::{MatchRegex, MatchRegexError};
pub use mirror_policy::{MirrorFraction, MirrorPolicy, MirrorSet};
pub use path_rewrite::{PathRewrite, PathRewriteError};
pub use rate_limit::{RATE_PERIOD_MAX, RATE_REQUESTS_MAX, RateLimit, RateLimitKey, RateLimiter};
pub use redirect::Redirect;
pub use request::RouteRequest;
pub use request_match::{PathMatch, RequestConditions, RequestMatch, ValueMatch};
pub use route_match::RouteMatch;
pub use share::BackendShare;

use super::{Backend, Endpoint, NoEndpointPolicy, Protocol, RequestTimeouts, TrafficPolicy};
use path_index::PathIndex;

/// The routing of one host.
#[derive(Debug, Default)]
pub struct Route {
    /// The shares of requests that no branch matches. Empty: such requests get a 404.
    pub splits: Box<[BackendShare]>,
    branches: Box<[RouteMatch]>,
    /// For many branches.
    index: Option<Box<PathIndex>>,
    /// Public clients without TLS are redirected to the same host and path over HTTPS at this port, if the table has a
    /// certificate for the host.
    pub https_redirect: Option<u16>,
    /// Not public: only cluster-local listeners and internal deliveries reach it.
    pub cluster_local_only: bool,
    /// The reply to a network probe: identifies the version of the object that this route was made of.
    pub hash: Option<Arc<str>>,
    /// Settings beyond the traffic split.
    pub traffic_policy: Option<Arc<TrafficPolicy>>,
    /// If the host is a wildcard, it matches names with any number of labels more.
    pub matches_subdomains: bool,
}

impl Route {
    /// All requests to these shares.
    #[must_use]
    pub fn of(splits: Vec<BackendShare>) -> Self {
        Self { splits: splits.into(), ..Self::default() }
    }

    /// Sorts `branches` into match order: see [`RequestMatch`]. Those that are equal stay in the given order.
    #[must_use]
    pub fn new(branches: Vec<RouteMatch>, splits: Vec<BackendShare>) -> Self {
        Self::indexed(branches, splits, PathIndex::RULES_MIN)
    }

    /// The same, with an index from `indexed_min` branches on.
    fn indexed(mut branches: Vec<RouteMatch>, splits: Vec<BackendShare>, indexed_min: usize) -> Self {
        branches.sort_by_cached_key(|branch| branch.matches.order());
        let index = (branches.len() >= indexed_min).then(|| Box::new(PathIndex::new(&branches)));
        Self { branches: branches.into(), index, ..Self::of(splits) }
    }

    /// All requests of `host` to fixed addresses without autoscaling (`--route`).
    #[must_use]
    pub fn to_addresses(host: &str, addresses: &[SocketAddr]) -> Self {
        let backend = Backend {
            key: format!("static/{host}").into(),
            endpoints: addresses.iter().map(|address| Arc::new(Endpoint::new(*address))).collect(),
            concurrency_max: 0,
            when_empty: NoEndpointPolicy::Refuse,
            protocol: Protocol::Http1,
            tls: None,
            timeouts: RequestTimeouts::EXTERNAL,
            proxy_protocol: None,
            load: Arc::default(),
        };
        Self::of(vec![BackendShare::new(1, Arc::new(backend))])
    }

    /// The branches, in the order in which they are tried.
    #[must_use]
    pub fn branches(&self) -> &[RouteMatch] {
        &self.branches
    }

    /// The branch that a request takes, if one matches.
    #[inline]
    #[must_use]
    pub fn branch(&self, request: &RouteRequest<'_>) -> Option<&RouteMatch> {
        match &self.index {
            None => self.branches.iter().find(|branch| branch.matches(request)),
            Some(index) => index.find(&self.branches, request),
        }
    }

    /// The shares of the requests that take a branch, or none.
    #[inline]
    #[must_use]
    pub fn shares<'a>(&'a self, branch: Option<&'a RouteMatch>) -> &'a [BackendShare] {
        branch.map_or(&self.splits, |branch| &branch.splits)
    }

    /// The shares that a request is split over. Empty: its path has no backend.
    #[inline]
    #[must_use]
    pub fn select(&self, request: &RouteRequest<'_>) -> &[BackendShare] {
        self.shares(self.branch(request))
    }

    /// The shares of a connection or a UDP session, which no request describes.
    #[must_use]
    pub fn connection_shares(&self) -> &[BackendShare] {
        self.branches.first().map_or(&self.splits, |branch| &branch.splits)
    }

    /// The HTTPS port to redirect clients without TLS to, for requests that take this branch, or none.
    #[inline]
    #[must_use]
    pub fn redirect(&self, branch: Option<&RouteMatch>) -> Option<u16> {
        self.https_redirect.filter(|_| branch.is_none_or(|branch| !branch.by_any_scheme))
    }

    /// Concurrent requests of all ready instances, whatever the weights.
    #[must_use]
    pub fn capacity(&self, request: &RouteRequest<'_>) -> usize {
        let shares = self.select(request).iter().filter(|split| split.weight > 0);
        shares.map(|split| split.backend.capacity()).fold(0, usize::saturating_add)
    }

    /// The shares of all branches.
    pub fn all_splits(&self) -> impl Iterator<Item = &BackendShare> {
        self.branches.iter().flat_map(|branch| &branch.splits).chain(&self.splits)
    }
}

#[cfg(test)]
mod tests;
