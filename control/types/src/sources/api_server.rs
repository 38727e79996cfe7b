//! ApiServerSource: an event for each change of objects of the API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ping::OIDC_IDENTITY_CREATED;
use super::{CloudEventOverrides, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::delivery;
use crate::eventing::filters::{self, SubscriptionsApiFilter};
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{KindMeta, RequestContext, ResourceStrategy};
use crate::settings::Settings;
use crate::shared::{Destination, namespace};

pub const DEPLOYED: &str = "Deployed";
pub const SUFFICIENT_PERMISSIONS: &str = "SufficientPermissions";
/// An event has the whole object.
pub const RESOURCE: &str = "Resource";
/// An event names the object.
const REFERENCE: &str = "Reference";
/// Kinds of one source: each is a watch.
const RESOURCES_MAX: usize = 64;

/// The events that it sends.
const EVENT_TYPES: &str = r#"[{"type":"dev.knative.apiserver.resource.add","description":"An object was added, with the object"},{"type":"dev.knative.apiserver.resource.delete","description":"An object was deleted, with the object"},{"type":"dev.knative.apiserver.resource.update","description":"An object was changed, with the object"},{"type":"dev.knative.apiserver.ref.add","description":"An object was added, by reference"},{"type":"dev.knative.apiserver.ref.delete","description":"An object was deleted, by reference"},{"type":"dev.knative.apiserver.ref.update","description":"An object was changed, by reference"}]"#;

kind! {
    /// `sources.knative.dev/v1` ApiServerSource.
    ApiServerSource { spec: ApiServerSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiServerSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// The kinds whose objects are watched.
    pub resources: Vec<ApiVersionKindSelector>,
    /// Only objects that such an object owns.
    #[serde(rename = "owner", skip_serializing_if = "Option::is_none")]
    pub owner: Option<ApiVersionKind>,
    /// `Reference` or `Resource`: whether an event names the object or has it.
    pub mode: String,
    /// The account that reads the objects.
    #[serde(rename = "serviceAccountName")]
    pub account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Which events are sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<SubscriptionsApiFilter>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiVersionKindSelector {
    pub api_version: String,
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiVersionKind {
    pub api_version: String,
    pub kind: String,
}

source! {
    ApiServerSource {
        conditions: [SINK_PROVIDED, DEPLOYED, SUFFICIENT_PERMISSIONS, OIDC_IDENTITY_CREATED]
    }
}

impl ResourceStrategy for ApiServerSource {
    const META: KindMeta = KindMeta {
        kind: "ApiServerSource",
        plural: "apiserversources",
        singular: "apiserversource",
        event_types: Some(EVENT_TYPES),
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
        for (field, default) in [(&mut self.spec.mode, REFERENCE), (&mut self.spec.account, "default")] {
            if field.is_empty() {
                *field = default.to_owned();
            }
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        if ![REFERENCE, RESOURCE].contains(&spec.mode.as_str()) {
            problems.add("spec.mode", format!("invalid value: {}", spec.mode));
        }
        if spec.resources.is_empty() {
            problems.add("spec.resources", MISSING);
        }
        if spec.resources.len() > RESOURCES_MAX {
            problems.add("spec.resources", format!("too many: at most {RESOURCES_MAX} kinds"));
        }
        filters::validate(&spec.filters, "spec.filters", problems);
        for (index, watched) in spec.resources.iter().enumerate() {
            for (field, value) in [("apiVersion", &watched.api_version), ("kind", &watched.kind)] {
                if value.is_empty() {
                    problems.add(format!("spec.resources[{index}].{field}"), MISSING);
                }
            }
            if watched.api_version.matches('/').count() > 1 {
                let why = format!("invalid value: {}", watched.api_version);
                problems.add(format!("spec.resources[{index}].apiVersion"), why);
            }
        }
        for (field, value) in
            spec.owner.iter().flat_map(|owner| [("apiVersion", &owner.api_version), ("kind", &owner.kind)])
        {
            if value.is_empty() {
                problems.add(format!("spec.owner.{field}"), MISSING);
            }
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}
