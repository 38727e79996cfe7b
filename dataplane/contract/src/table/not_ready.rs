//! Hosts whose object exists and cannot be served yet.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{RouteRequest, RoutingTable, host_name};

/// By host, as in [`RoutingTable::hosts`].
pub type NotReadyHosts = HashMap<Box<str>, NotReadyHost, RandomState>;

/// Why a host is not served yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReadyHost {
    /// Names the object and the reason.
    pub sentence: Arc<str>,
    /// Public clients must not learn that it exists.
    pub cluster_local_only: bool,
}

impl RoutingTable {
    /// Why the host of a request without a route is not served, if its object exists and the client may know of it.
    #[must_use]
    pub fn not_ready(&self, request: &RouteRequest<'_>) -> Option<&NotReadyHost> {
        if self.not_ready.is_empty() || request.listener().is_some() {
            return None;
        }
        let host = request.completed().unwrap_or_else(|| host_name(request.host).to_ascii_lowercase());
        self.not_ready.get(host.as_str()).filter(|host| request.cluster_local || !host.cluster_local_only)
    }
}
