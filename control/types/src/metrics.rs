//! PodMetrics and NodeMetrics: what `kubectl top` reads. They are computed for each request.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::role_rules::{DefaultRole, RoleRule};

/// What was used per second, and of memory.
pub type Usage = BTreeMap<String, Quantity>;

const METRICS: KindMeta = KindMeta {
    group: "metrics.k8s.io",
    version: "v1beta1",
    role_rules: &[RoleRule::new(DefaultRole::View, &["get", "list"])],
    ..CORE
};

/// The use of processor and memory by one Pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodMetrics {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    /// When it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    /// Over how long, such as `15.2s`.
    pub window: String,
    /// All containers of a Pod are measured together, under the name of the main one.
    pub containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ContainerMetrics {
    pub name: String,
    pub usage: Usage,
}

/// The use of processor and memory of this host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeMetrics {
    pub api_version: String,
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Time>,
    pub window: String,
    pub usage: Usage,
}

/// The rows of the kinds.
#[must_use]
pub(crate) fn entries() -> Vec<KindEntry> {
    vec![KindEntry::of::<PodMetrics>().read_only(), KindEntry::of::<NodeMetrics>().read_only()]
}

impl ResourceStrategy for PodMetrics {
    const META: KindMeta = KindMeta { kind: "PodMetrics", plural: "pods", ..METRICS };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}

impl ResourceStrategy for NodeMetrics {
    const META: KindMeta = KindMeta { kind: "NodeMetrics", plural: "nodes", namespaced: false, ..METRICS };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
