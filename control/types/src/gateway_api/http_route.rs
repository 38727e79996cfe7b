//! HTTPRoute: sends HTTP requests of a Gateway to backends.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::http_filter::HttpRouteFilter;
use super::parent::{ParentReference, ParentStatuses};
use super::reference::BackendObjectReference;
use super::{GATEWAY_API, same_fields, upstream_column};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy, VersionConversion};
use crate::printer_column::AGE;
use crate::resource;

resource! {
    /// `gateway.networking.k8s.io/v1` HTTPRoute.
    HttpRoute: k8s_openapi::NamespaceResourceScope { spec: HttpRouteSpec, status: ParentStatuses }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentReference>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hostnames: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<HttpRouteRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteRule {
    /// By which policies name the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<HttpRouteMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<HttpRouteFilter>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<HttpBackendRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<HttpRouteTimeouts>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteMatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<HttpPathMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HttpNamedMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub query_params: Vec<HttpNamedMatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HttpPathMatch {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// A match of a header or of a query parameter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HttpNamedMatch {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub name: String,
    pub value: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpBackendRef {
    #[serde(flatten)]
    pub backend: BackendObjectReference,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<HttpRouteFilter>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRouteTimeouts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<String>,
}

pub static BETA: KindMeta = KindMeta { version: "v1beta1", ..HttpRoute::META };
pub static FROM_BETA: VersionConversion = same_fields(&HttpRoute::META);

impl ResourceStrategy for HttpRoute {
    const META: KindMeta = KindMeta {
        kind: "HTTPRoute",
        plural: "httproutes",
        singular: "httproute",
        columns: &[upstream_column("Hostnames", ".spec.hostnames"), AGE],
        ..GATEWAY_API
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
