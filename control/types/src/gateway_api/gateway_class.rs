//! GatewayClass: which controller serves the Gateways that name it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reference::ParametersReference;
use super::{CONTROLLER_NAME, GATEWAY_API, same_fields, upstream_column};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy, VersionConversion};
use crate::printer_column::{AGE, PrinterColumn};
use crate::resource;
use crate::role_rules::{CONTROLLER_READS, CONTROLLER_REPORTS, VIEW};

resource! {
    /// `gateway.networking.k8s.io/v1` GatewayClass. Lives in no namespace.
    GatewayClass: k8s_openapi::ClusterResourceScope { spec: GatewayClassSpec, status: GatewayClassStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassSpec {
    pub controller_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters_ref: Option<ParametersReference>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayClassStatus {
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub supported_features: Vec<SupportedFeature>,
}

/// A feature by the name that the conformance suite gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SupportedFeature {
    pub name: String,
}

impl GatewayClass {
    /// Whether this appliance serves its Gateways.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.spec.controller_name == CONTROLLER_NAME
    }
}

pub static BETA: KindMeta = KindMeta { version: "v1beta1", ..GatewayClass::META };
pub static FROM_BETA: VersionConversion = same_fields(&GatewayClass::META);

impl ResourceStrategy for GatewayClass {
    const META: KindMeta = KindMeta {
        kind: "GatewayClass",
        plural: "gatewayclasses",
        singular: "gatewayclass",
        short_names: &["gc"],
        namespaced: false,
        columns: &[
            upstream_column("Controller", ".spec.controllerName"),
            upstream_column("Accepted", ".status.conditions[?(@.type==\"Accepted\")].status"),
            AGE,
            PrinterColumn { priority: 1, ..upstream_column("Description", ".spec.description") },
        ],
        role_rules: &[VIEW, CONTROLLER_READS, CONTROLLER_REPORTS],
        ..GATEWAY_API
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
