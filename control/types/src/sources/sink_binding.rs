//! SinkBinding: tells the programs of other objects where to send.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ping::OIDC_IDENTITY_CREATED;
use super::{BindingSubject, CloudEventOverrides, MISSING, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::kind_registry::{FieldErrors, KindMeta, RequestContext, ResourceStrategy};
use crate::kinds::eventing::delivery_validation;
use crate::kinds::kind;
use crate::kinds::serving;
use crate::kinds::settings::Settings;
use crate::kinds::shared::{Destination, SPEC_CHANGED, namespace};

pub const AVAILABLE: &str = "SinkBindingAvailable";
pub const OIDC_TOKEN_SECRET_CREATED: &str = "OIDCTokenSecretCreated";
pub const TRUST_BUNDLE_PROPAGATED: &str = "TrustBundlePropagated";
/// Why a binding changes nothing.
pub const NOT_BOUND: &str = "nothing here runs objects of the subject's kind: \
    Services and Configurations of serving.knative.dev can be bound";

/// What has programs here that can be told where to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindableKind {
    Service,
    Configuration,
}

kind! {
    /// `sources.knative.dev/v1` SinkBinding.
    SinkBinding { spec: SinkBindingSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SinkBindingSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// Who sends them.
    pub subject: BindingSubject,
}

impl BindingSubject {
    /// Which of the kinds with programs it is of, if any.
    #[must_use]
    pub fn bindable_kind(&self) -> Option<BindableKind> {
        let (group, _) = self.api_version.split_once('/')?;
        match &*self.kind {
            "Service" if group == serving::GROUP => Some(BindableKind::Service),
            "Configuration" if group == serving::GROUP => Some(BindableKind::Configuration),
            _ => None,
        }
    }
}

source! {
    SinkBinding {
        conditions: [
            AVAILABLE,
            SINK_PROVIDED,
            OIDC_IDENTITY_CREATED,
            OIDC_TOKEN_SECRET_CREATED,
            TRUST_BUNDLE_PROPAGATED
        ],
        not_run: None
    }
}

/// Who binds what nothing here runs is told so at once.
pub(super) fn warnings(object: &Value) -> Vec<String> {
    let subject =
        object.pointer("/spec/subject").cloned().and_then(|told| serde_json::from_value::<BindingSubject>(told).ok());
    let is_bound = subject.is_none_or(|subject| subject.bindable_kind().is_some());
    if is_bound { Vec::new() } else { vec![NOT_BOUND.to_owned()] }
}

impl ResourceStrategy for SinkBinding {
    const META: KindMeta = KindMeta {
        kind: "SinkBinding",
        plural: "sinkbindings",
        singular: "sinkbinding",
        categories: &["all", "knative", "sources", "bindings"],
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        delivery_validation::default_destination(&mut self.spec.sink, &home);
        let subject = &mut self.spec.subject;
        if subject.namespace.as_deref().unwrap_or_default().is_empty() {
            subject.namespace = Some(home);
        }
    }

    fn validate(&self, old: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        if old.is_some_and(|old| old.spec.subject != spec.subject) {
            problems.add("spec.subject", SPEC_CHANGED);
        }
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        for (field, value) in [("apiVersion", &spec.subject.api_version), ("kind", &spec.subject.kind)] {
            if value.is_empty() {
                problems.add(format!("spec.subject.{field}"), MISSING);
            }
        }
        if spec.subject.namespace.as_deref() != Some(namespace(&self.metadata)) {
            let told = spec.subject.namespace.as_deref().unwrap_or_default();
            problems.add("spec.subject.namespace", format!("invalid value: {told}"));
        }
        let named = spec.subject.name.as_deref().is_some_and(|name| !name.is_empty());
        match (named, spec.subject.selector.is_some()) {
            (true, true) => problems.add("spec.subject", "expected exactly one, got both: name, selector"),
            (false, false) => problems.add("spec.subject", "expected exactly one, got neither: name, selector"),
            _ => {}
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}
