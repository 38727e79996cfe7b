//! `gateway.networking.k8s.io`: the kinds of Gateway API.
//!
//! Their schemas, limits, defaults and rules are upstream's own definitions ([`UpstreamDefinition`]). The types here are what
//! the controllers read of the objects.

pub mod gateway;
pub mod gateway_class;
pub mod grpc_route;
pub mod http_filter;
pub mod http_route;
pub mod parent;
pub mod reference;
pub mod reference_grant;

use serde_json::Value;

use crate::custom_kinds::UpstreamDefinition;
use crate::kind_registry::{CORE, KindEntry, KindMeta, VersionConversion};
use crate::printer_column::{CustomColumn, PrinterColumn, column};
use crate::role_rules::{EDIT, VIEW};

pub const GROUP: &str = "gateway.networking.k8s.io";
/// The release whose definitions these are, as upstream's CustomResourceDefinitions name it in their annotations.
pub const BUNDLE_ANNOTATIONS: [(&str, &str); 2] =
    [("gateway.networking.k8s.io/bundle-version", "v1.6.1"), ("gateway.networking.k8s.io/channel", "standard")];
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
    role_rules: &[VIEW, EDIT],
    ..CORE
};

static GATEWAY_CLASS: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/gateway_class.json"));
static GATEWAY: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/gateway.json"));
static HTTP_ROUTE: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/http_route.json"));
static GRPC_ROUTE: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/grpc_route.json"));
static REFERENCE_GRANT: UpstreamDefinition = UpstreamDefinition::new(include_str!("definitions/reference_grant.json"));

/// A column as upstream's definitions have it.
const fn upstream_column(name: &'static str, path: &'static str) -> PrinterColumn {
    PrinterColumn { custom: Some(CustomColumn { description: "", format: "" }), ..column(name, path) }
}

/// The rows of the kinds. The version v1beta1 of a kind has the fields of v1.
#[must_use]
pub fn entries() -> Vec<KindEntry> {
    let gateway_class = KindEntry::of::<gateway_class::GatewayClass>().defined_by(&GATEWAY_CLASS);
    let gateway = KindEntry::of::<gateway::Gateway>().defined_by(&GATEWAY);
    let http_route = KindEntry::of::<http_route::HttpRoute>().defined_by(&HTTP_ROUTE);
    let reference_grant = KindEntry::of::<reference_grant::ReferenceGrant>().defined_by(&REFERENCE_GRANT);
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
    ]
}

/// The conversion between versions with the same fields.
const fn same_fields(stored: &'static KindMeta) -> VersionConversion {
    VersionConversion { stored, to_stored: unchanged, complete: unchanged, from_stored: unchanged }
}

fn unchanged(_: &mut Value) {}

#[cfg(test)]
mod tests;
