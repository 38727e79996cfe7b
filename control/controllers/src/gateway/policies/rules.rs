//! Adds the filters of policies to the rules of a route. The policy of a rule comes before that of the route, and that before the
//! one of the Gateway.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::cache::{CompiledPolicy, PolicyCache};
use super::policy_kind::GatewayPolicy;
use super::targets::{oldest, policies_for};
use crate::context::ControllerContext;
use crate::gateway::route_kind::GatewayRoute;
use crate::gateway::route_store::RouteReferences;
use crate::gateway::rule_compiler::CompiledRules;
use crate::publish::{PathRule, RouteFilterRule, RuleTimeouts};
use types::gateway_policies::security_policy::GatewaySecurityPolicy;
use types::gateway_policies::traffic_policy::GatewayTrafficPolicy;
use types::shared::{name, namespace};

/// The policies of one route.
pub(in crate::gateway) struct RoutePolicies<'a> {
    context: &'a ControllerContext,
    cache: &'a PolicyCache,
    kind: &'static str,
    /// Connections and datagrams have no policies.
    is_http: bool,
    name: String,
    security: Vec<Arc<GatewaySecurityPolicy>>,
    traffic: Vec<Arc<GatewayTrafficPolicy>>,
    /// What the policies of the rules refer to.
    references: RefCell<RouteReferences>,
}

impl<'a> RoutePolicies<'a> {
    pub(in crate::gateway) fn of<R: GatewayRoute>(
        context: &'a ControllerContext,
        cache: &'a PolicyCache,
        route: &R,
    ) -> Self {
        let (home, name) = (namespace(route.meta()), name(route.meta()));
        Self {
            context,
            cache,
            kind: R::KIND,
            is_http: R::TRANSPORT.is_http(),
            name: name.to_owned(),
            security: policies_for(context, home, R::KIND, name),
            traffic: policies_for(context, home, R::KIND, name),
            references: RefCell::default(),
        }
    }

    /// What the rules that were made refer to because of policies.
    pub(in crate::gateway) fn into_references(self) -> RouteReferences {
        self.references.into_inner()
    }

    /// The rules of the route, for requests of these Gateways.
    pub(in crate::gateway) fn rules(
        &self,
        compiled: &CompiledRules,
        gateways: &BTreeSet<(String, String)>,
    ) -> Vec<PathRule> {
        if !self.is_http {
            return compiled.rules.clone();
        }
        let (security, traffic) = (self.of_gateways(gateways), self.of_gateways(gateways));
        let rules = compiled.rules.iter().zip(&compiled.names).map(|(rule, section)| {
            let traffic = self.of_rule(&self.traffic, section.as_deref(), traffic.as_ref());
            let security = self.of_rule(&self.security, section.as_deref(), security.as_ref());
            [traffic, security].into_iter().flatten().fold(rule.clone(), |rule, policy| {
                self.references.borrow_mut().extend(policy.references.clone());
                add(&policy.filters, rule)
            })
        });
        rules.collect()
    }

    /// The policy of the first Gateway that has one. Several Gateways may have listeners at one of the appliance's own ports.
    fn of_gateways<P: GatewayPolicy>(&self, gateways: &BTreeSet<(String, String)>) -> Option<Arc<P>> {
        gateways.iter().find_map(|(namespace, name)| {
            let policies = policies_for::<P>(self.context, namespace, "Gateway", name);
            oldest(&policies, "Gateway", name, None).cloned()
        })
    }

    fn of_rule<P: GatewayPolicy>(
        &self,
        policies: &[Arc<P>],
        section: Option<&str>,
        of_gateway: Option<&Arc<P>>,
    ) -> Option<Arc<CompiledPolicy>> {
        let own = section.and_then(|section| oldest(policies, self.kind, &self.name, Some(section)));
        let of_route = || oldest(policies, self.kind, &self.name, None);
        let policy = own.or_else(of_route).or(of_gateway)?;
        Some(policy.compiled(self.context, self.cache))
    }
}

/// Adds the filters of a policy. What the rule itself says about CORS and timeouts stays.
fn add(policy: &RouteFilterRule, rule: PathRule) -> PathRule {
    if policy.reply.is_some() {
        return PathRule { splits: Vec::new(), filters: Some(Arc::new(policy.clone())), ..rule };
    }
    if *policy == RouteFilterRule::default() {
        return rule;
    }
    let own = rule.filters.as_deref().cloned().unwrap_or_default();
    let filters = RouteFilterRule {
        access: if policy.access.is_empty() { own.access } else { policy.access.clone() },
        cors: own.cors.or_else(|| policy.cors.clone()),
        rate_limits: own.rate_limits.into_iter().chain(policy.rate_limits.iter().cloned()).collect(),
        body_bytes_max: policy.body_bytes_max.or(own.body_bytes_max),
        compression: policy.compression.clone().or(own.compression),
        authentication: policy.authentication.clone().or(own.authentication),
        external_authorization: policy.external_authorization.clone().or(own.external_authorization),
        timeouts: RuleTimeouts {
            request: own.timeouts.request.or(policy.timeouts.request),
            backend_request: own.timeouts.backend_request.or(policy.timeouts.backend_request),
        },
        ..own
    };
    PathRule { filters: Some(Arc::new(filters)), ..rule }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contract::table::RouteReply;

    use super::*;
    use crate::publish::WeightedBackend;

    fn rule() -> PathRule {
        let timeouts = RuleTimeouts { request: Some(Duration::from_secs(1)), backend_request: None };
        let filters = RouteFilterRule { timeouts, body_bytes_max: Some(1), ..RouteFilterRule::default() };
        let splits = vec![WeightedBackend::new("b", 1)];
        PathRule { splits, filters: Some(Arc::new(filters)), ..PathRule::default() }
    }

    #[test]
    fn own_timeouts_of_a_rule_stay() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let timeouts = RuleTimeouts { request: seconds(9), backend_request: seconds(9) };
        let policy = RouteFilterRule { timeouts, body_bytes_max: Some(2), ..RouteFilterRule::default() };
        let made = add(&policy, rule());
        let filters = made.filters.unwrap();
        assert_eq!((filters.timeouts.request, filters.timeouts.backend_request), (seconds(1), seconds(9)));
        assert_eq!((filters.body_bytes_max, made.splits.len()), (Some(2), 1));
    }

    #[test]
    fn closed_rule_has_no_backend() {
        let reply = Some(RouteReply::Status(503));
        let closed = RouteFilterRule { reply, ..RouteFilterRule::default() };
        let made = add(&closed, rule());
        assert!(made.splits.is_empty());
        assert_eq!(*made.filters.unwrap(), closed);
        assert_eq!(add(&RouteFilterRule::default(), rule()), rule());
    }
}
