//! The claims of a service account token.

use serde::{Deserialize, Serialize};

/// The claims of a service account token.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TokenClaims {
    #[serde(default)]
    pub(super) iss: String,
    pub(super) sub: String,
    #[serde(default)]
    pub(super) aud: Vec<String>,
    pub(super) exp: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) iat: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) nbf: Option<i64>,
    #[serde(rename = "kubernetes.io", default, skip_serializing_if = "Option::is_none")]
    pub(super) kubernetes: Option<KubernetesClaims>,
}

/// Kubernetes' private claim about the account.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KubernetesClaims {
    pub(super) namespace: String,
    /// With the account's uid, so that a token dies with it and not with its name.
    pub(super) serviceaccount: NamedObject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<NamedObject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<NamedObject>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NamedObject {
    pub(super) name: String,
    pub(super) uid: String,
}
