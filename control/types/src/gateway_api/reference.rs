//! References from objects of Gateway API to others.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A reference to a Secret or a ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretObjectReference {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A backend of a route.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendObjectReference {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// A reference to an object with an implementation's own settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ParametersReference {
    pub group: String,
    pub kind: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl SecretObjectReference {
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.group.as_deref().unwrap_or_default().is_empty() && self.kind.as_deref().unwrap_or("Secret") == "Secret"
    }
}

impl BackendObjectReference {
    #[must_use]
    pub fn group(&self) -> &str {
        self.group.as_deref().unwrap_or_default()
    }

    #[must_use]
    pub fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("Service")
    }
}
