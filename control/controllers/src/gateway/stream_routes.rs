//! TLSRoute, TCPRoute and UDPRoute as routes of a Gateway: one rule for all connections or datagrams.

use super::route_kind::{GatewayRoute, RouteTransport};
use crate::work_queue::ControllerKind;
use types::gateway_api::http_route::HttpRouteRule;
use types::gateway_api::parent::{ParentReference, ParentStatuses};
use types::gateway_api::stream_route::{StreamRouteRule, TcpRoute, TlsRoute, UdpRoute};

impl GatewayRoute for TlsRoute {
    const QUEUE: ControllerKind = ControllerKind::new("TLSRoute");
    const KIND: &'static str = "TLSRoute";
    const TRANSPORT: RouteTransport = RouteTransport::Tcp;

    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn hostnames(&self) -> &[String] {
        &self.spec.hostnames
    }

    fn rules(&self) -> Vec<HttpRouteRule> {
        http_rules(&self.spec.rules)
    }

    fn parent_statuses(&self) -> Option<&ParentStatuses> {
        self.status.as_ref()
    }

    fn set_parent_statuses(&mut self, statuses: ParentStatuses) {
        self.status = Some(statuses);
    }
}

impl GatewayRoute for TcpRoute {
    const QUEUE: ControllerKind = ControllerKind::new("TCPRoute");
    const KIND: &'static str = "TCPRoute";
    const TRANSPORT: RouteTransport = RouteTransport::Tcp;

    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn hostnames(&self) -> &[String] {
        &[]
    }

    fn rules(&self) -> Vec<HttpRouteRule> {
        http_rules(&self.spec.rules)
    }

    fn parent_statuses(&self) -> Option<&ParentStatuses> {
        self.status.as_ref()
    }

    fn set_parent_statuses(&mut self, statuses: ParentStatuses) {
        self.status = Some(statuses);
    }
}

impl GatewayRoute for UdpRoute {
    const QUEUE: ControllerKind = ControllerKind::new("UDPRoute");
    const KIND: &'static str = "UDPRoute";
    const TRANSPORT: RouteTransport = RouteTransport::Udp;

    fn parent_refs(&self) -> &[ParentReference] {
        &self.spec.parent_refs
    }

    fn hostnames(&self) -> &[String] {
        &[]
    }

    fn rules(&self) -> Vec<HttpRouteRule> {
        http_rules(&self.spec.rules)
    }

    fn parent_statuses(&self) -> Option<&ParentStatuses> {
        self.status.as_ref()
    }

    fn set_parent_statuses(&mut self, statuses: ParentStatuses) {
        self.status = Some(statuses);
    }
}

/// A rule without matches holds for all. Of several rules for one listener, the first one holds.
fn http_rules(rules: &[StreamRouteRule]) -> Vec<HttpRouteRule> {
    let rules =
        rules.iter().map(|rule| HttpRouteRule { backend_refs: rule.backend_refs.clone(), ..Default::default() });
    rules.collect()
}
