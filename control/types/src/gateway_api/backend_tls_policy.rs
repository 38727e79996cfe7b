//! BackendTLSPolicy: how Services are reached by TLS, and which certificates are accepted from them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::policy::{LocalPolicyTargetReference, PolicyStatus};
use super::{GATEWAY_API, same_fields};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy, VersionConversion};
use crate::resource;

/// The value of `wellKnownCACertificates` for the authorities of this host.
pub const SYSTEM_CERTIFICATES: &str = "System";

resource! {
    /// `gateway.networking.k8s.io/v1` BackendTLSPolicy.
    BackendTlsPolicy: k8s_openapi::NamespaceResourceScope { spec: BackendTlsPolicySpec, status: PolicyStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    pub target_refs: Vec<LocalPolicyTargetReference>,
    pub validation: BackendTlsValidation,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsValidation {
    #[serde(rename = "caCertificateRefs", skip_serializing_if = "Vec::is_empty")]
    pub ca_certificate_refs: Vec<LocalObjectReference>,
    #[serde(rename = "wellKnownCACertificates", skip_serializing_if = "Option::is_none")]
    pub well_known_ca_certificates: Option<String>,
    pub hostname: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subject_alt_names: Vec<BackendSubjectAltName>,
}

/// An object of the same namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LocalObjectReference {
    pub group: String,
    pub kind: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BackendSubjectAltName {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

impl BackendTlsPolicySpec {
    /// The Services that it is about.
    pub fn services(&self) -> impl Iterator<Item = &LocalPolicyTargetReference> {
        self.target_refs.iter().filter(|target| target.is_service())
    }
}

pub static ALPHA: KindMeta = KindMeta { version: "v1alpha3", ..BackendTlsPolicy::META };
pub static FROM_ALPHA: VersionConversion = same_fields(&BackendTlsPolicy::META);

impl ResourceStrategy for BackendTlsPolicy {
    const META: KindMeta = KindMeta {
        kind: "BackendTLSPolicy",
        plural: "backendtlspolicies",
        singular: "backendtlspolicy",
        short_names: &["btlspolicy"],
        ..GATEWAY_API
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
