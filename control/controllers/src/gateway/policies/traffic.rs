//! Compiles a TrafficPolicy: values in, values out.

use super::cache::CompiledPolicy;
use crate::gateway::conditions::ConditionRefusal;
use crate::publish::{RouteFilterRule, RuleTimeouts};
use types::gateway_api::http_route::HttpRouteTimeouts;
use types::gateway_policies::traffic_policy::{PolicyCompression, TrafficPolicySpec};

/// A policy with a value that cannot be used changes nothing.
pub(super) fn compile(spec: &TrafficPolicySpec) -> CompiledPolicy {
    match filters(spec) {
        Ok(filters) => CompiledPolicy { filters, ..CompiledPolicy::default() },
        Err(why) => {
            let not_accepted = Some(ConditionRefusal::new("Invalid", why));
            CompiledPolicy { not_accepted, ..CompiledPolicy::default() }
        }
    }
}

fn filters(spec: &TrafficPolicySpec) -> Result<RouteFilterRule, String> {
    let durations = spec.timeouts.as_ref().map(HttpRouteTimeouts::durations).transpose()?;
    let [request, backend_request] = durations.unwrap_or_default();
    Ok(RouteFilterRule {
        timeouts: RuleTimeouts { request, backend_request },
        compression: spec.compression.as_ref().map(PolicyCompression::policy).transpose()?,
        body_bytes_max: spec.request_body.as_ref().and_then(|body| body.max_bytes),
        ..RouteFilterRule::default()
    })
}
