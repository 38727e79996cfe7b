//! What routes have in common: all are rules of HTTP. Those of connections and datagrams are rules for all requests.

use crate::api::NamespacedObject;
use crate::caches::CachedKind;
use crate::work_queue::ControllerKind;
use contract::table::Protocol;
use contract::tls::ApplicationProtocol;
use types::gateway_api::grpc_route::{GrpcMethodMatch, GrpcRoute, GrpcRouteMatch};
use types::gateway_api::http_route::{HttpPathMatch, HttpRoute, HttpRouteMatch, HttpRouteRule};
use types::gateway_api::parent::{ParentReference, ParentStatuses};

/// Protocols of ports that are reached by TLS, and so need a BackendTLSPolicy.
const TLS_PROTOCOLS: [&str; 2] = ["https", "kubernetes.io/wss"];

/// Under which Gateways are queued.
pub(super) const GATEWAY_QUEUE: ControllerKind = ControllerKind::new("Gateway");

/// What routes of a kind carry to their backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteTransport {
    /// In the protocol that the port of the Service says.
    Http,
    /// In HTTP/2, whatever the Service says.
    Http2,
    /// Connections.
    Tcp,
    /// Connections of TLS that are not read: a policy for TLS to the backend has no effect.
    TlsPassthrough,
    /// Datagrams.
    Udp,
}

impl RouteTransport {
    pub(super) fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::Http2)
    }

    /// The protocol of a backend whose Service says `of_service`.
    pub(super) fn protocol(self, of_service: Protocol) -> Protocol {
        match self {
            Self::Http => of_service,
            Self::Http2 => Protocol::H2c,
            Self::Tcp | Self::TlsPassthrough | Self::Udp => Protocol::Http1, // it has no meaning for them
        }
    }

    /// What is agreed on with a backend that is reached by TLS.
    pub(super) fn application_protocol(self, protocol: Protocol) -> ApplicationProtocol {
        match protocol {
            _ if !self.is_http() => ApplicationProtocol::Unnamed,
            Protocol::H2c => ApplicationProtocol::Http2,
            Protocol::Http1 => ApplicationProtocol::Http1,
        }
    }

    /// The beginning of the keys of backends: one Service may be reached in several ways.
    pub(super) fn key_prefix(self, protocol: Protocol) -> &'static str {
        match self {
            Self::Tcp => "gateway-tcp",
            Self::TlsPassthrough => "gateway-tls-passthrough",
            Self::Udp => "gateway-udp",
            Self::Http | Self::Http2 if protocol == Protocol::H2c => "gateway-h2c",
            Self::Http | Self::Http2 => "gateway",
        }
    }

    /// Whether BackendTLSPolicies hold.
    pub(super) fn may_use_tls(self) -> bool {
        !matches!(self, Self::TlsPassthrough | Self::Udp)
    }

    /// Whether a port of a Service with this protocol (`TCP`) and application protocol can be a backend.
    pub(super) fn admits(self, transport: &str, application: &str, by_tls: bool) -> bool {
        let wanted = if self == Self::Udp { "UDP" } else { "TCP" };
        let needs_tls = TLS_PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(application));
        transport == wanted && (by_tls || !needs_tls || !self.is_http())
    }
}

/// A kind of routes.
pub(super) trait GatewayRoute: CachedKind + NamespacedObject {
    const QUEUE: ControllerKind;
    /// The kind's name in references.
    const KIND: &'static str;
    const TRANSPORT: RouteTransport;

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
    const TRANSPORT: RouteTransport = RouteTransport::Http;

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
    const TRANSPORT: RouteTransport = RouteTransport::Http2;

    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn hostnames(&self) -> &[String] {
        &self.spec.hostnames
    }

    fn rules(&self) -> Vec<HttpRouteRule> {
        let rules = self.spec.rules.iter().map(|rule| HttpRouteRule {
            name: rule.name.clone(),
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
    fn ports_are_admitted_by_their_protocols() {
        use RouteTransport::{Http, Http2, Tcp, TlsPassthrough, Udp};
        for (route, transport, application, by_tls, admitted) in [
            (Http, "TCP", "", false, true),
            (Http, "UDP", "", false, false),
            (Http, "TCP", "HTTPS", false, false),
            (Http, "TCP", "https", true, true),
            (Http2, "TCP", "kubernetes.io/wss", false, false),
            (Tcp, "TCP", "https", false, true),
            (Tcp, "UDP", "", false, false),
            (TlsPassthrough, "TCP", "https", false, true),
            (Udp, "UDP", "", false, true),
            (Udp, "TCP", "", false, false),
        ] {
            assert_eq!(route.admits(transport, application, by_tls), admitted, "{route:?} {transport} {application}");
        }
        assert_eq!(Tcp.application_protocol(Protocol::H2c), ApplicationProtocol::Unnamed);
        assert_eq!(Http.application_protocol(Http.protocol(Protocol::H2c)), ApplicationProtocol::Http2);
        let prefixes = [Http, Tcp, TlsPassthrough, Udp].map(|route| route.key_prefix(Protocol::Http1));
        assert_eq!(prefixes, ["gateway", "gateway-tcp", "gateway-tls-passthrough", "gateway-udp"]);
    }

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
