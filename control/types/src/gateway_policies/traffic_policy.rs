//! TrafficPolicy: how requests of a Gateway, a route or a rule are carried.

use std::time::Duration;

use contract::table::CompressionPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GATEWAY_POLICY, validate_targets};
use crate::duration;
use crate::field_errors::FieldErrors;
use crate::gateway_api::http_route::HttpRouteTimeouts;
use crate::gateway_api::policy::{LocalPolicyTargetReference, PolicyStatus};
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::resource;

resource! {
    /// `gateway.sluicegate.dev/v1alpha1` TrafficPolicy.
    GatewayTrafficPolicy: k8s_openapi::NamespaceResourceScope { spec: TrafficPolicySpec, status: PolicyStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficPolicySpec {
    /// The objects that the policy is for: Gateways, HTTPRoutes, GRPCRoutes, and with `sectionName` rules of those routes.
    pub target_refs: Vec<LocalPolicyTargetReference>,
    /// As of an HTTPRoute's rule, whose own timeouts come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<HttpRouteTimeouts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<PolicyCompression>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_body: Option<PolicyRequestBody>,
}

/// Responses are compressed for clients that accept it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PolicyCompression {
    /// Some of `zstd`, `br` and `gzip`, best first. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub codings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRequestBody {
    /// Requests with more bytes are answered 413.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

impl PolicyCompression {
    /// # Errors
    ///
    /// A coding is not known.
    pub fn policy(&self) -> Result<CompressionPolicy, String> {
        if self.codings.is_empty() {
            return Ok(CompressionPolicy::all());
        }
        CompressionPolicy::of(self.codings.iter().map(String::as_str))
    }
}

impl HttpRouteTimeouts {
    /// `request` and `backendRequest`. `None`: not set.
    ///
    /// # Errors
    ///
    /// One of them is not a duration.
    pub fn durations(&self) -> Result<[Option<Duration>; 2], String> {
        let read = |text: &Option<String>| -> Result<Option<Duration>, String> {
            let Some(text) = text else { return Ok(None) };
            duration::parse_go(text).map(Some).ok_or_else(|| format!("The timeout {text:?} is not a duration."))
        };
        Ok([read(&self.request)?, read(&self.backend_request)?])
    }
}

impl ResourceStrategy for GatewayTrafficPolicy {
    const META: KindMeta =
        KindMeta { kind: "TrafficPolicy", plural: "trafficpolicies", singular: "trafficpolicy", ..GATEWAY_POLICY };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        validate_targets(&self.spec.target_refs, problems);
        if let Some(Err(why)) = self.spec.timeouts.as_ref().map(HttpRouteTimeouts::durations) {
            problems.add("spec.timeouts", why);
        }
        if let Some(Err(why)) = self.spec.compression.as_ref().map(PolicyCompression::policy) {
            problems.add("spec.compression.codings", why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn value_that_cannot_be_used_is_refused_with_its_field() {
        let problems = |mut spec: Value| {
            let target = json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "a" });
            spec["targetRefs"] = json!([target]);
            let mut found = FieldErrors::default();
            GatewayTrafficPolicy::new("ns", "p", serde_json::from_value(spec).unwrap()).validate(None, &mut found);
            found.list.into_iter().map(|problem| problem.field).collect::<Vec<_>>()
        };
        assert_eq!(problems(json!({ "timeouts": { "request": "5" } })), ["spec.timeouts"]);
        assert_eq!(problems(json!({ "compression": { "codings": ["lz4"] } })), ["spec.compression.codings"]);
        let valid = json!({ "timeouts": { "request": "5s" }, "compression": {}, "requestBody": { "maxBytes": 1 } });
        assert!(problems(valid).is_empty());
    }
}
