//! `gateway.networking.k8s.io`: the kinds of Gateway API.
//!
//! Their schemas, limits, defaults and rules are upstream's own definitions ([`UpstreamDefinition`]). The types here are what
//! the controllers read of the objects.

pub mod backend_tls_policy;
pub mod gateway;
pub mod gateway_class;
pub mod grpc_route;
pub mod http_filter;
pub mod http_route;
pub mod parent;
pub mod policy;
pub mod reference;
pub mod reference_grant;
pub mod stream_route;

use backend_tls_policy::BackendTlsPolicy;
use serde_json::Value;
use stream_route::{TcpRoute, TlsRoute, UdpRoute};

use crate::custom_kinds::UpstreamDefinition;
use crate::kind_registry::{CORE, KindEntry, KindMeta, VersionConversion};
use crate::printer_column::{CustomColumn, PrinterColumn, column};
use crate::role_rules::{CONTROLLER_READS, CONTROLLER_REPORTS, EDIT, VIEW};

pub const GROUP: &str = "gateway.networking.k8s.io";
/// What a GatewayClass names to be ours.
pub const CONTROLLER_NAME: &str = "sluicegate.dev/gateway-controller";
/// The GatewayClass that is there from the start.
pub const DEFAULT_CLASS: &str = "sluicegate";

/// The properties of a namespaced kind of this group.
const GATEWAY_API: KindMeta = KindMeta {
    group: GROUP,
    version: "v1",
    categories: &["gateway-api"],
    has_status: true,
    role_rules: &[VIEW, EDIT, CONTROLLER_READS, CONTROLLER_REPORTS],
    ..CORE
};

static GATEWAY_CLASS: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/gateway_class.json"));
static GATEWAY: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/gateway.json"));
static HTTP_ROUTE: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/http_route.json"));
static GRPC_ROUTE: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/grpc_route.json"));
static REFERENCE_GRANT: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/reference_grant.json"));

static BACKEND_TLS_POLICY: UpstreamDefinition =
    UpstreamDefinition::new(include_str!("definitions/backend_tls_policy.json"));

static TLS_ROUTE: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/tls_route.json"));
static TCP_ROUTE: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/tcp_route.json"));
static UDP_ROUTE: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/udp_route.json"));

/// A column as upstream's definitions have it.
const fn upstream_column(name: &'static str, path: &'static str) -> PrinterColumn {
    PrinterColumn { custom: Some(CustomColumn { description: "", format: "" }), ..column(name, path) }
}

/// The rows of the kinds. The older versions of a kind have the fields of v1.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    let gateway_class = KindEntry::of::<gateway_class::GatewayClass>().defined_by(&GATEWAY_CLASS);
    let gateway = KindEntry::of::<gateway::Gateway>().defined_by(&GATEWAY);
    let http_route = KindEntry::of::<http_route::HttpRoute>().defined_by(&HTTP_ROUTE);
    let reference_grant = KindEntry::of::<reference_grant::ReferenceGrant>().defined_by(&REFERENCE_GRANT);
    let backend_tls_policy = KindEntry::of::<BackendTlsPolicy>().defined_by(&BACKEND_TLS_POLICY);
    let tls_route = KindEntry::of::<TlsRoute>().defined_by(&TLS_ROUTE);
    let tcp_route = KindEntry::of::<TcpRoute>().defined_by(&TCP_ROUTE);
    let udp_route = KindEntry::of::<UdpRoute>().defined_by(&UDP_ROUTE);
    vec![
        gateway_class,
        gateway_class.version::<gateway_class::GatewayClass>(&gateway_class::BETA, &gateway_class::FROM_BETA),
        gateway,
        gateway.version::<gateway::Gateway>(&gateway::BETA, &gateway::FROM_BETA),
        http_route,
        http_route.version::<http_route::HttpRoute>(&http_route::BETA, &http_route::FROM_BETA),
        KindEntry::of::<grpc_route::GrpcRoute>().defined_by(&GRPC_ROUTE),
        reference_grant,
        reference_grant.version::<reference_grant::ReferenceGrant>(&reference_grant::BETA, &reference_grant::FROM_BETA),
        backend_tls_policy,
        backend_tls_policy.version::<BackendTlsPolicy>(&backend_tls_policy::ALPHA, &backend_tls_policy::FROM_ALPHA),
        tls_route,
        tls_route.version::<TlsRoute>(&stream_route::TLS_ALPHA3, &stream_route::FROM_TLS_ALPHA),
        tls_route.version::<TlsRoute>(&stream_route::TLS_ALPHA2, &stream_route::FROM_TLS_ALPHA),
        tcp_route,
        tcp_route.version::<TcpRoute>(&stream_route::TCP_ALPHA, &stream_route::FROM_TCP_ALPHA),
        udp_route,
        udp_route.version::<UdpRoute>(&stream_route::UDP_ALPHA, &stream_route::FROM_UDP_ALPHA),
    ]
}

/// The conversion between versions with the same fields.
const fn same_fields(stored: &'static KindMeta) -> VersionConversion {
    VersionConversion { stored, to_stored: unchanged, complete: unchanged, from_stored: unchanged }
}

fn unchanged(_: &mut Value) {}

#[cfg(test)]
mod tests;
