//! What HTTPRoutes and GRPCRoutes have in common: both are rules of HTTP.

use crate::api::NamespacedObject;
use crate::caches::CachedKind;
use crate::work_queue::ControllerKind;
use contract::table::Protocol;
use types::gateway_api::grpc_route::{GrpcMethodMatch, GrpcRoute, GrpcRouteMatch};
use types::gateway_api::http_route::{HttpPathMatch, HttpRoute, HttpRouteMatch, HttpRouteRule};
use types::gateway_api::parent::{ParentReference, ParentStatuses};

/// Under which Gateways are queued.
pub(super) const GATEWAY_QUEUE: ControllerKind = ControllerKind::new("Gateway");

/// A kind of routes.
pub(super) trait GatewayRoute: CachedKind + NamespacedObject {
    const QUEUE: ControllerKind;
    /// The kind's name in references.
    const KIND: &'static str;
    /// What its backends speak, whatever their Services say.
    const PROTOCOL: Option<Protocol>;

    fn parent_refs(&self) -> &[ParentReference];
    fn hostnames(&self) -> &[String];
    /// Its rules as those of HTTP.
    fn rules(&self) -> Vec<HttpRouteRule>;
    fn parent_statuses(&self) -> Option<&ParentStatuses>;
    fn set_parent_statuses(&mut self, statuses: ParentStatuses);
}

impl GatewayRoute for HttpRoute {
    const QUEUE: ControllerKind = ControllerKind::new("HTTPRoute");
    const KIND: &'static str = "HTTPRoute";
    const PROTOCOL: Option<Protocol> = None;

    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn hostnames(&self) -> &[String] {
        &self.spec.hostnames
    }

    fn rules(&self) -> Vec<HttpRouteRule> {
        self.spec.rules.clone()
    }

    fn parent_statuses(&self) -> Option<&ParentStatuses> {
        self.status.as_ref()
    }

    fn set_parent_statuses(&mut self, statuses: ParentStatuses) {
        self.status = Some(statuses);
    }
}

impl GatewayRoute for GrpcRoute {
    const QUEUE: ControllerKind = ControllerKind::new("GRPCRoute");
    const KIND: &'static str = "GRPCRoute";
    const PROTOCOL: Option<Protocol> = Some(Protocol::H2c);

    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn hostnames(&self) -> &[String] {
        &self.spec.hostnames
    }

    fn rules(&self) -> Vec<HttpRouteRule> {
        let rules = self.spec.rules.iter().map(|rule| HttpRouteRule {
            matches: rule.matches.iter().map(http_match).collect(),
            filters: rule.filters.clone(),
            backend_refs: rule.backend_refs.clone(),
            timeouts: None,
        });
        rules.collect()
    }

    fn parent_statuses(&self) -> Option<&ParentStatuses> {
        self.status.as_ref()
    }

    fn set_parent_statuses(&mut self, statuses: ParentStatuses) {
        self.status = Some(statuses);
    }
}

/// A gRPC call is a request of the path `/SERVICE/METHOD`.
fn http_match(grpc: &GrpcRouteMatch) -> HttpRouteMatch {
    let path = grpc.method.as_ref().map(|method| {
        let (kind, value) = path_of(method);
        HttpPathMatch { kind: Some(kind.to_owned()), value: Some(value) }
    });
    HttpRouteMatch { path, headers: grpc.headers.clone(), ..HttpRouteMatch::default() }
}

fn path_of(method: &GrpcMethodMatch) -> (&'static str, String) {
    const ANY: &str = "[^/]+";
    let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    match (method.kind.as_deref(), named(&method.service), named(&method.method)) {
        (_, None, None) => ("PathPrefix", "/".to_owned()),
        (Some("RegularExpression"), service, method) => {
            let part = |name: Option<String>| name.unwrap_or_else(|| ANY.to_owned());
            ("RegularExpression", format!("/({})/({})", part(service), part(method)))
        }
        (_, Some(service), Some(method)) => ("Exact", format!("/{service}/{method}")),
        (_, Some(service), None) => ("PathPrefix", format!("/{service}")),
        (_, None, Some(method)) => ("RegularExpression", format!("/{ANY}/{method}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn grpc_method_is_matched_as_a_path() {
        for (method, kind, path) in [
            (json!({ "service": "a.B", "method": "C" }), "Exact", "/a.B/C"),
            (json!({ "service": "a.B", "type": "Exact" }), "PathPrefix", "/a.B"),
            (json!({ "method": "C" }), "RegularExpression", "/[^/]+/C"),
            (json!({ "service": "a.*", "type": "RegularExpression" }), "RegularExpression", "/(a.*)/([^/]+)"),
            (json!({}), "PathPrefix", "/"),
        ] {
            let found = path_of(&serde_json::from_value(method.clone()).unwrap());
            assert_eq!(found, (kind, path.to_owned()), "{method}");
        }
    }
}
