//! What all policies have: the objects that they are about, and a status for each Gateway.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::parent::ParentReference;

/// An object of the policy's namespace, or a part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalPolicyTargetReference {
    pub group: String,
    pub kind: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

/// The status of a policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    pub ancestors: Vec<PolicyAncestorStatus>,
}

/// What becomes of the policy at one Gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyAncestorStatus {
    pub ancestor_ref: ParentReference,
    pub controller_name: String,
    pub conditions: Vec<Condition>,
}

impl LocalPolicyTargetReference {
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.group.is_empty() && self.kind == "Service"
    }

    /// The part that is meant. `None`: all.
    #[must_use]
    pub fn section(&self) -> Option<&str> {
        self.section_name.as_deref().filter(|section| !section.is_empty())
    }
}
