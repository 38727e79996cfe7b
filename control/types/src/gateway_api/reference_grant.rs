//! ReferenceGrant: lets objects of other namespaces refer to objects in its own.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GATEWAY_API, same_fields};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy, VersionConversion};
use crate::resource;
use crate::role_rules::{CONTROLLER_READS, EDIT, VIEW};

resource! {
    /// `gateway.networking.k8s.io/v1` ReferenceGrant.
    ReferenceGrant: k8s_openapi::NamespaceResourceScope { spec: ReferenceGrantSpec, status: NoStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReferenceGrantSpec {
    pub from: Vec<ReferenceGrantFrom>,
    pub to: Vec<ReferenceGrantTo>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReferenceGrantFrom {
    pub group: String,
    pub kind: String,
    pub namespace: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReferenceGrantTo {
    pub group: String,
    pub kind: String,
    /// All objects of the kind, if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The kind has no status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NoStatus {}

pub static BETA: KindMeta = KindMeta { version: "v1beta1", ..ReferenceGrant::META };
pub static FROM_BETA: VersionConversion = same_fields(&ReferenceGrant::META);

impl ResourceStrategy for ReferenceGrant {
    const META: KindMeta = KindMeta {
        kind: "ReferenceGrant",
        plural: "referencegrants",
        singular: "referencegrant",
        short_names: &["refgrant"],
        has_status: false,
        role_rules: &[VIEW, EDIT, CONTROLLER_READS],
        ..GATEWAY_API
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
