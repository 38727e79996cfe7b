//! One rule of a route.

use super::request::RouteRequest;
use super::request_match::RequestMatch;
use super::share::BackendShare;
use crate::client_address::{ClientAddress, ClientScheme};

/// A match on a part of a host's requests.
#[derive(Debug, Clone, Default)]
pub struct RouteMatch {
    pub matches: RequestMatch,
    pub splits: Vec<BackendShare>,
    /// Clients without TLS are served too, whatever `https_redirect` says.
    pub by_any_scheme: bool,
    /// Not public, though the route is.
    pub cluster_local_only: bool,
    /// Only for connections of this scheme, whatever a trusted proxy says of its clients.
    pub scheme: Option<ClientScheme>,
}

impl RouteMatch {
    /// Requests that match go to these shares.
    #[must_use]
    pub fn new(matches: RequestMatch, splits: Vec<BackendShare>) -> Self {
        Self { matches, splits, ..Self::default() }
    }

    #[inline]
    pub(super) fn matches(&self, request: &RouteRequest<'_>) -> bool {
        self.is_visible(request) && self.matches.matches(request)
    }

    /// The same, for a request whose path matches.
    #[inline]
    pub(super) fn matches_besides_path(&self, request: &RouteRequest<'_>) -> bool {
        self.is_visible(request) && self.matches.conditions_match(request)
    }

    fn is_visible(&self, request: &RouteRequest<'_>) -> bool {
        let is_other = |peer: &ClientAddress| self.scheme.is_some_and(|scheme| scheme != peer.scheme());
        (request.cluster_local || !self.cluster_local_only) && !request.peer.is_some_and(is_other)
    }
}
