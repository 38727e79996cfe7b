//! The routes that depend on a policy, by its targets.

use crate::gateway::route_kind::GatewayRoute;
use crate::gateway::route_store::{Dependency, RouteStore};
use crate::work_queue::WorkItem;
use types::gateway_api::grpc_route::GrpcRoute;
use types::gateway_api::http_route::HttpRoute;
use types::gateway_api::policy::LocalPolicyTargetReference;

/// The routes of all kinds that a policy is for.
pub(super) fn all_routes_of(store: &RouteStore, home: &str, targets: &[LocalPolicyTargetReference]) -> Vec<WorkItem> {
    let http = routes_of::<HttpRoute>(store, home, targets);
    http.into_iter().chain(routes_of::<GrpcRoute>(store, home, targets)).collect()
}

/// Those of one kind.
pub(super) fn routes_of<R: GatewayRoute>(
    store: &RouteStore,
    home: &str,
    targets: &[LocalPolicyTargetReference],
) -> Vec<WorkItem> {
    let routes = targets.iter().flat_map(|target| {
        if target.kind == "Gateway" {
            let mut items = store.dependents(&Dependency::Gateway(home.to_owned(), target.name.clone()));
            items.retain(|item| item.kind == R::QUEUE);
            return items;
        }
        let is_own = target.kind == R::KIND;
        is_own.then(|| WorkItem::new(R::QUEUE, home, &target.name)).into_iter().collect()
    });
    routes.collect()
}
