//! GRPCRoute: sends gRPC calls of a Gateway to backends.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::http_filter::HttpRouteFilter;
use super::http_route::{HttpBackendRef, HttpNamedMatch};
use super::parent::{ParentReference, ParentStatuses};
use super::{GATEWAY_API, upstream_column};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::AGE;
use crate::resource;

resource! {
    /// `gateway.networking.k8s.io/v1` GRPCRoute.
    GrpcRoute: k8s_openapi::NamespaceResourceScope { spec: GrpcRouteSpec, status: ParentStatuses }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<GrpcRouteRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRouteRule {
    /// By which policies name the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<GrpcRouteMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<HttpRouteFilter>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<HttpBackendRef>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GrpcRouteMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<GrpcMethodMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HttpNamedMatch>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GrpcMethodMatch {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

impl ResourceStrategy for GrpcRoute {
    const META: KindMeta = KindMeta {
        kind: "GRPCRoute",
        plural: "grpcroutes",
        singular: "grpcroute",
        columns: &[upstream_column("Hostnames", ".spec.hostnames"), AGE],
        ..GATEWAY_API
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
