//! The kinds that policies depend on, and the routes that depend on policies.

use k8s_openapi::api::core::v1::Secret;

use super::dependents::routes_of;
use super::policy_kind::GatewayPolicy;
use super::targets::policies_for;
use crate::context::ControllerContext;
use crate::controller::Watches;
use crate::gateway::route_kind::GatewayRoute;
use crate::gateway::route_store::RouteStore;
use crate::indexes::policy_secret_key;
use crate::informer_cache::ObjectChange;
use crate::work_queue::WorkItem;
use types::gateway_api::gateway::Gateway;
use types::gateway_api::grpc_route::GrpcRoute;
use types::gateway_api::http_route::HttpRoute;
use types::gateway_policies::security_policy::GatewaySecurityPolicy;
use types::gateway_policies::traffic_policy::GatewayTrafficPolicy;
use types::shared::{name, namespace};

/// What the statuses of policies depend on.
pub(super) fn register_policies<'a, P: GatewayPolicy>(context: &'a ControllerContext, watches: &mut Watches<'a>) {
    watches.primary::<P>(P::QUEUE);
    // Another policy may have, or have had, the same target.
    watches.enqueue::<P, _>(move |change| {
        let both = [change.0, change.1].into_iter().flatten();
        let rivals = both.flat_map(|policy| {
            let home = namespace(policy.meta());
            policy.target_refs().iter().flat_map(|target| items::<P>(context, home, &target.kind, &target.name))
        });
        rivals.collect::<Vec<_>>()
    });
    watches.enqueue_by_name::<Gateway>(move |home, object| items::<P>(context, home, "Gateway", object));
    watches.enqueue_by_name::<HttpRoute>(move |home, object| items::<P>(context, home, HttpRoute::KIND, object));
    watches.enqueue_by_name::<GrpcRoute>(move |home, object| items::<P>(context, home, GrpcRoute::KIND, object));
    watches.enqueue_by_name::<Secret>(move |home, secret| {
        let policies = P::cache(&context.caches).by_index(home, &policy_secret_key(secret));
        policies.iter().map(|policy| item_of_policy::<P>(policy)).collect()
    });
}

/// What the rules of routes of a kind depend on.
pub(in crate::gateway) fn register_routes<'a, R: GatewayRoute>(
    store: &'a RouteStore,
    context: &'a ControllerContext,
    watches: &mut Watches<'a>,
) {
    if !R::TRANSPORT.is_http() {
        return;
    }
    watches.enqueue::<GatewaySecurityPolicy, _>(move |change| routes_of_change::<R, _>(store, change));
    watches.enqueue::<GatewayTrafficPolicy, _>(move |change| routes_of_change::<R, _>(store, change));
    watches.enqueue_by_name::<Secret>(move |home, secret| {
        let policies = context.caches.security_policies.by_index(home, &policy_secret_key(secret));
        policies.iter().flat_map(|policy| routes_of::<R>(store, home, policy.target_refs())).collect()
    });
}

/// The policies that are for a route, or for a rule of it.
pub(in crate::gateway) fn policies_of_route(
    context: &ControllerContext,
    kind: &str,
    route: &WorkItem,
) -> Vec<WorkItem> {
    let security = items::<GatewaySecurityPolicy>(context, &route.namespace, kind, &route.name);
    let traffic = items::<GatewayTrafficPolicy>(context, &route.namespace, kind, &route.name);
    security.into_iter().chain(traffic).collect()
}

/// A status that is written changes no rule.
fn routes_of_change<R: GatewayRoute, P: GatewayPolicy>(
    store: &RouteStore,
    (before, after): ObjectChange<'_, P>,
) -> Vec<WorkItem> {
    if before.zip(after).is_some_and(|(before, after)| before.has_same_spec(after)) {
        return Vec::new();
    }
    let both = [before, after].into_iter().flatten();
    both.flat_map(|policy| routes_of::<R>(store, namespace(policy.meta()), policy.target_refs())).collect()
}

fn items<P: GatewayPolicy>(context: &ControllerContext, home: &str, kind: &str, object: &str) -> Vec<WorkItem> {
    policies_for::<P>(context, home, kind, object).iter().map(|policy| item_of_policy::<P>(policy)).collect()
}

fn item_of_policy<P: GatewayPolicy>(policy: &P) -> WorkItem {
    WorkItem::new(P::QUEUE, namespace(policy.meta()), name(policy.meta()))
}
