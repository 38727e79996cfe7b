//! Configuration: the current template, and its Revisions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::template::RevisionTemplate;
use super::{GROUP, VERSION, annotations};
use crate::conditions::ConditionSet;
use crate::duck_types::DuckType;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::settings::Settings;
use crate::shared::Status;
use crate::sink_injection::BindableKind;

/// Ready is set directly: it is that of the newest Revision.
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[] };

kind! {
    /// `serving.knative.dev/v1` Configuration.
    Configuration { spec: ConfigurationSpec, status: ConfigurationStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConfigurationSpec {
    /// The next Revision; each change makes a new one.
    pub template: RevisionTemplate,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationStatus {
    #[serde(flatten)]
    pub base: Status,
    /// The newest Revision that is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_ready_revision_name: Option<String>,
    /// The newest Revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_created_revision_name: Option<String>,
}

impl ResourceStrategy for Configuration {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Configuration",
        plural: "configurations",
        singular: "configuration",
        short_names: &["config", "cfg"],
        categories: &["all", "knative", "serving"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[
            column("LatestCreated", ".status.latestCreatedRevisionName"),
            column("LatestReady", ".status.latestReadyRevisionName"),
            READY,
            REASON,
        ],
        duck_types: &[DuckType::Podspecable],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        self.spec.template.set_defaults(&requester.settings);
        let was = before.map(|before| &before.spec.template);
        let bound = (BindableKind::Configuration, &self.metadata);
        self.spec.template.inject_sink(&requester.injections, bound, was);
        let changed = before.is_some_and(|b| b.spec != self.spec);
        annotations::set_user(&mut self.metadata, before.map(|b| &b.metadata), changed, requester);
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        annotations::validate_name(&self.metadata, problems);
        annotations::validate_owner_label(&self.metadata, annotations::SERVICE, "Service", problems);
        let changed = before.is_some_and(|b| b.spec != self.spec);
        annotations::validate_user(&self.metadata, before.map(|b| &b.metadata), changed, problems);
        self.spec.template.validate(&self.metadata, before.map(|b| &b.spec.template), problems);
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        self.spec.template.validate_settings(settings, problems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_label_without_that_owner_is_refused() {
        let mut configuration: Configuration = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "labels": {"serving.knative.dev/service": "a"}},
            "spec": {"template": {"spec": {"containers": [{"image": "a", "name": "x"}]}}}
        }))
        .unwrap();
        let mut problems = FieldErrors::default();
        configuration.validate(None, &mut problems);
        assert_eq!(problems.list.len(), 1);

        configuration.metadata.owner_references =
            Some(vec![k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
                kind: "Service".into(),
                name: "a".into(),
                ..Default::default()
            }]);
        let mut problems = FieldErrors::default();
        configuration.validate(None, &mut problems);
        assert!(problems.list.is_empty());
    }
}
