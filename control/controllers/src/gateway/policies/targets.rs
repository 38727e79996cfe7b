//! What a policy is for: which policy of a target holds, and of what its status tells.

use std::sync::Arc;

use super::policy_kind::GatewayPolicy;
use crate::context::ControllerContext;
use crate::gateway::conditions::ConditionRefusal;
use crate::gateway::gateways;
use crate::gateway::policy_status::PolicyAncestor;
use crate::gateway::route_kind::GatewayRoute;
use crate::gateway::route_store::RouteStore;
use crate::indexes::policy_target_key;
use crate::work_queue::WorkItem;
use types::gateway_api::grpc_route::GrpcRoute;
use types::gateway_api::http_route::HttpRoute;
use types::gateway_api::policy::LocalPolicyTargetReference;
use types::shared::{name, namespace};

/// The policies that are for an object, or for a part of it.
pub(super) fn policies_for<P: GatewayPolicy>(
    context: &ControllerContext,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Vec<Arc<P>> {
    P::cache(&context.caches).by_index(namespace, &policy_target_key(kind, name))
}

/// The oldest of the policies with exactly this target.
pub(super) fn oldest<'a, P: GatewayPolicy>(
    policies: &'a [Arc<P>],
    kind: &str,
    target: &str,
    section: Option<&str>,
) -> Option<&'a Arc<P>> {
    let has_target = |policy: &&Arc<P>| {
        let mut targets = policy.target_refs().iter();
        targets.any(|one| one.kind == kind && one.name == target && one.section() == section)
    };
    policies.iter().filter(has_target).min_by_key(|policy| age(&***policy))
}

/// Policies of the same second come by name.
fn age<P: GatewayPolicy>(policy: &P) -> (Option<jiff::Timestamp>, &str) {
    (policy.meta().creation_timestamp.as_ref().map(|time| time.0), name(policy.meta()))
}

/// Why a policy does not hold for a target.
pub(super) fn refusal<P: GatewayPolicy>(
    context: &ControllerContext,
    policy: &P,
    target: &LocalPolicyTargetReference,
) -> Option<ConditionRefusal> {
    let home = namespace(policy.meta());
    let LocalPolicyTargetReference { kind, name: object, .. } = target;
    let rivals = policies_for::<P>(context, home, kind, object);
    let older = oldest(&rivals, kind, object, target.section()).filter(|oldest| age(&***oldest) < age(policy));
    if let Some(older) = older {
        let why = format!("{} {} is older and has the same target.", P::KIND, name(older.meta()));
        return Some(ConditionRefusal::new("Conflicted", why));
    }
    let not_found = |what: String| Some(ConditionRefusal::new("TargetNotFound", format!("{what}.")));
    let rules: Option<Vec<Option<String>>> = match kind.as_str() {
        "Gateway" => context.caches.gateways.get(home, object).map(|_| Vec::new()),
        "HTTPRoute" => {
            let route = context.caches.http_routes.get(home, object);
            route.map(|route| route.spec.rules.iter().map(|rule| rule.name.clone()).collect())
        }
        "GRPCRoute" => {
            let route = context.caches.grpc_routes.get(home, object);
            route.map(|route| route.spec.rules.iter().map(|rule| rule.name.clone()).collect())
        }
        _ => None,
    };
    let Some(rules) = rules else { return not_found(format!("{kind} \"{home}/{object}\" not found")) };
    match target.section() {
        Some(section) if !rules.iter().any(|rule| rule.as_deref() == Some(section)) => {
            not_found(format!("{kind} \"{home}/{object}\" has no rule of the name {section:?}"))
        }
        _ => None,
    }
}

/// The objects that the status tells of: the Gateways of a target, or the target itself if it has none. A Gateway of another
/// controller is none.
pub(super) fn ancestors(
    context: &ControllerContext,
    routes: &RouteStore,
    home: &str,
    target: &LocalPolicyTargetReference,
) -> Vec<PolicyAncestor> {
    let itself = || PolicyAncestor { kind: target.kind.clone(), namespace: home.to_owned(), name: target.name.clone() };
    let queue = match target.kind.as_str() {
        "HTTPRoute" => HttpRoute::QUEUE,
        "GRPCRoute" => GrpcRoute::QUEUE,
        _ => {
            let gateway = context.caches.gateways.get(home, &target.name);
            let is_foreign = gateway.is_some_and(|gateway| !gateways::is_ours(context, &gateway));
            return if is_foreign { Vec::new() } else { vec![itself()] };
        }
    };
    let gateways = routes.gateways_of_route(&WorkItem::new(queue, home, &target.name));
    if gateways.is_empty() {
        return vec![itself()];
    }
    gateways.into_iter().map(PolicyAncestor::gateway).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use types::gateway_policies::traffic_policy::GatewayTrafficPolicy;

    #[test]
    fn oldest_policy_of_a_target_holds() {
        let policy = |name: &str, second: i64, route: &str, section: Option<&str>| {
            let target = json!({ "group": "", "kind": "HTTPRoute", "name": route, "sectionName": section });
            let spec = serde_json::from_value(json!({ "targetRefs": [target] })).unwrap();
            let mut policy = GatewayTrafficPolicy::new("ns", name, spec);
            policy.metadata.creation_timestamp = Some(Time(jiff::Timestamp::from_second(second).unwrap()));
            Arc::new(policy)
        };
        let all = [
            policy("new", 9, "a", None),
            policy("c", 5, "a", None),
            policy("b", 5, "a", None),
            policy("rule", 1, "a", Some("r")),
            policy("other", 1, "b", None),
        ];
        let of = |route: &str, section: Option<&str>| {
            oldest(&all, "HTTPRoute", route, section).map(|policy| name(&policy.metadata))
        };
        assert_eq!(of("a", None), Some("b"));
        assert_eq!(of("a", Some("r")), Some("rule"));
        assert_eq!((of("a", Some("s")), of("c", None)), (None, None));
        assert!(oldest(&all, "GRPCRoute", "a", None).is_none());
    }
}
