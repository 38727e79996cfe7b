//! What the watches of one ApiServerSource rest on.

use contract::table::EventFilter;
use kube::api::ApiResource;

use crate::destination_resolver::DestinationAddress;
use types::eventing::filters::SubscriptionsApiFilter;
use types::sources::CloudEventOverrides;
use types::sources::api_server::ApiVersionKind;

/// What a source watches, and what becomes of it.
#[derive(Debug, Clone)]
pub(super) struct WatchPlan {
    pub(super) kinds: Vec<WatchedKind>,
    pub(super) scope: NamespaceScope,
    /// Events have the whole object.
    pub(super) has_objects: bool,
    pub(super) owner: Option<ApiVersionKind>,
    pub(super) overrides: CloudEventOverrides,
    /// Compiled from the next.
    pub(super) filter: EventFilter,
    pub(super) filters: Vec<SubscriptionsApiFilter>,
    pub(super) sink: DestinationAddress,
    pub(super) account: Option<String>,
}

impl PartialEq for WatchPlan {
    fn eq(&self, other: &Self) -> bool {
        let parts = |plan: &Self| {
            (plan.kinds.clone(), plan.scope.clone(), plan.has_objects, plan.owner.clone(), plan.overrides.clone())
        };
        let ends = |plan: &Self| (plan.filters.clone(), plan.sink.clone(), plan.account.clone());
        parts(self) == parts(other) && ends(self) == ends(other)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct WatchedKind {
    pub(super) resource: ApiResource,
    pub(super) namespaced: bool,
    /// Of labels.
    pub(super) selector: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NamespaceScope {
    All,
    Namespaces(Vec<String>),
}
