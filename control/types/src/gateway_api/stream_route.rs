//! TLSRoute, TCPRoute and UDPRoute: send connections and datagrams of a Gateway to backends.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::http_route::HttpBackendRef;
use super::parent::{ParentReference, ParentStatuses};
use super::{GATEWAY_API, same_fields};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy, VersionConversion};
use crate::resource;

resource! {
    /// `gateway.networking.k8s.io/v1` TLSRoute.
    TlsRoute: k8s_openapi::NamespaceResourceScope { spec: TlsRouteSpec, status: ParentStatuses }
}

resource! {
    /// `gateway.networking.k8s.io/v1` TCPRoute.
    TcpRoute: k8s_openapi::NamespaceResourceScope { spec: StreamRouteSpec, status: ParentStatuses }
}

resource! {
    /// `gateway.networking.k8s.io/v1` UDPRoute.
    UdpRoute: k8s_openapi::NamespaceResourceScope { spec: StreamRouteSpec, status: ParentStatuses }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsRouteSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    pub hostnames: Vec<String>,
    pub rules: Vec<StreamRouteRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRouteSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    pub rules: Vec<StreamRouteRule>,
}

/// A backend has no filters here; upstream's schema drops them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRouteRule {
    pub backend_refs: Vec<HttpBackendRef>,
}

pub static TLS_ALPHA2: KindMeta = KindMeta { version: "v1alpha2", ..TlsRoute::META };
pub static TLS_ALPHA3: KindMeta = KindMeta { version: "v1alpha3", ..TlsRoute::META };
pub static FROM_TLS_ALPHA: VersionConversion = same_fields(&TlsRoute::META);
pub static TCP_ALPHA: KindMeta = KindMeta { version: "v1alpha2", ..TcpRoute::META };
pub static FROM_TCP_ALPHA: VersionConversion = same_fields(&TcpRoute::META);
pub static UDP_ALPHA: KindMeta = KindMeta { version: "v1alpha2", ..UdpRoute::META };
pub static FROM_UDP_ALPHA: VersionConversion = same_fields(&UdpRoute::META);

/// A kind without defaults and rules beside those of upstream's schema.
macro_rules! strategy {
    ($kind:ident, $name:literal, $plural:literal, $singular:literal) => {
        impl ResourceStrategy for $kind {
            const META: KindMeta = KindMeta { kind: $name, plural: $plural, singular: $singular, ..GATEWAY_API };

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }

            fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

            fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
        }
    };
}

strategy!(TlsRoute, "TLSRoute", "tlsroutes", "tlsroute");
strategy!(TcpRoute, "TCPRoute", "tcproutes", "tcproute");
strategy!(UdpRoute, "UDPRoute", "udproutes", "udproute");
