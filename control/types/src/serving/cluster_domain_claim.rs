//! ClusterDomainClaim: which namespace may map a domain. The object's name is the domain.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field_errors::{FieldErrors, MISSING};
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::AGE;
use crate::role_rules::{DefaultRole, MANAGE, RoleRule};

/// `networking.internal.knative.dev/v1alpha1` ClusterDomainClaim. Lives in no namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterDomainClaim {
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The desired state.
    #[serde(default)]
    pub spec: ClusterDomainClaimSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClusterDomainClaimSpec {
    /// The namespace whose DomainMappings may use the domain.
    pub namespace: String,
}

impl ClusterDomainClaim {
    #[must_use]
    pub fn new(domain: &str, namespace: &str) -> Self {
        Self {
            api_version: format!("{}/{}", Self::META.group, Self::META.version),
            kind: Self::META.kind.to_owned(),
            metadata: ObjectMeta { name: Some(domain.to_owned()), ..ObjectMeta::default() },
            spec: ClusterDomainClaimSpec { namespace: namespace.to_owned() },
        }
    }
}

impl kube::Resource for ClusterDomainClaim {
    type DynamicType = ();
    type Scope = k8s_openapi::ClusterResourceScope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        Self::META.kind.into()
    }
    fn group((): &()) -> std::borrow::Cow<'_, str> {
        Self::META.group.into()
    }
    fn version((): &()) -> std::borrow::Cow<'_, str> {
        Self::META.version.into()
    }
    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        Self::META.plural.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl ResourceStrategy for ClusterDomainClaim {
    const META: KindMeta = KindMeta {
        group: "networking.internal.knative.dev",
        version: "v1alpha1",
        kind: "ClusterDomainClaim",
        plural: "clusterdomainclaims",
        singular: "clusterdomainclaim",
        short_names: &["cdc"],
        categories: &["knative-internal", "networking"],
        namespaced: false,
        has_status: false,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[AGE],
        role_rules: &[RoleRule::new(DefaultRole::Controller, MANAGE)],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        if self.spec.namespace.is_empty() {
            problems.add("spec.namespace", MISSING);
        }
    }
}
