//! Revision: one immutable version.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, VERSION, annotations};
use crate::conditions::ConditionSet;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{PrinterColumn, READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::serving::revision_spec::RevisionSpec;
use crate::shared::{SPEC_CHANGED, Status};

pub const RESOURCES_AVAILABLE: &str = "ResourcesAvailable";
pub const CONTAINER_HEALTHY: &str = "ContainerHealthy";
/// Whether instances run; informational, because a Revision at zero is a healthy one.
pub const ACTIVE: &str = "Active";
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[RESOURCES_AVAILABLE, CONTAINER_HEALTHY] };

kind! {
    /// `serving.knative.dev/v1` Revision.
    Revision { spec: RevisionSpec, status: RevisionStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where the logs are found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_url: Option<String>,
    /// The resolved images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    /// ... of those that run before the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Instances that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual_replicas: Option<i32>,
    /// Instances that should run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// The image, if it is named by a digest. Empty when it names no registry artifact (a program of this host).
    pub image_digest: String,
}

impl ResourceStrategy for Revision {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Revision",
        plural: "revisions",
        singular: "revision",
        short_names: &["rev"],
        categories: &["all", "knative", "serving"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: false,
        columns: &[
            column("Config Name", r".metadata.labels['serving\.knative\.dev/configuration']"),
            column("Generation", r".metadata.labels['serving\.knative\.dev/configurationGeneration']"),
            READY,
            REASON,
            PrinterColumn {
                name: "Actual Replicas",
                path: ".status.actualReplicas",
                format: "integer",
                priority: 0,
                custom: None,
            },
            PrinterColumn {
                name: "Desired Replicas",
                path: ".status.desiredReplicas",
                format: "integer",
                priority: 0,
                custom: None,
            },
        ],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        if before.is_none() {
            self.spec.set_feature_defaults(&requester.settings);
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        annotations::validate_name(&self.metadata, problems);
        annotations::validate_template(&self.metadata, "metadata", problems);
        annotations::validate_owner_label(&self.metadata, annotations::CONFIGURATION, "Configuration", problems);
        match before {
            Some(before) if before.spec != self.spec => {
                problems.add("spec", SPEC_CHANGED);
            }
            Some(_) => {}
            None => self.spec.validate("spec", problems),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::field_errors::AdmissionError;
    use crate::kind_registry::KindEntry;

    /// SRV-API-10, SRV-API-11, SRV-REV-02: labels may change, the spec may not.
    #[test]
    fn only_the_metadata_of_a_revision_changes() {
        let admit = KindEntry::of::<Revision>().admit;
        let requester = RequestContext { user: "alice".into(), ..RequestContext::default() };
        let new = json!({"metadata": {"name": "a-1"}, "spec": {"containers": [{"image": "a"}]}});
        let stored = admit(new, None, &requester).unwrap();

        let mut labelled = stored.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert!(admit(labelled, Some(&stored), &requester).is_ok());

        for (pointer, value) in [("/spec/containers/0/image", json!("b")), ("/spec/timeoutSeconds", json!(10))] {
            let mut changed = stored.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            let Err(AdmissionError::Invalid(problems)) = admit(changed, Some(&stored), &requester) else {
                panic!("{pointer} was changed")
            };
            assert!(problems[0].message.contains("Immutable fields changed"));
        }
    }
}
