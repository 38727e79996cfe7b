//! Deployments: the number of instances of each Revision, for clients of Kubernetes. Written by a
//! controller of ours, like [Pods](super::pods).

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::pods;
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, LABELS, PAIR, PrinterColumn, column};
use crate::role_rules::VIEW;
use crate::schema;

/// The row of deployments.
#[must_use]
pub fn entry() -> KindEntry {
    KindEntry { schema: narrow_schema, ..KindEntry::of::<Deployment>().derived() }
}

fn narrow_schema() -> Value {
    let mut schema = schema::of::<Deployment>();
    pods::narrow_spec(&mut schema["properties"]["spec"]["properties"]["template"]["properties"]["spec"]);
    schema
}

impl ResourceStrategy for Deployment {
    const META: KindMeta = KindMeta {
        group: "apps",
        kind: "Deployment",
        plural: "deployments",
        singular: "deployment",
        short_names: &["deploy"],
        categories: &["all"],
        user_creatable: false,
        columns: &[
            PrinterColumn { format: PAIR, ..column("Ready", ".status.readyReplicas+.spec.replicas") },
            PrinterColumn { format: "integer", ..column("Up-to-date", ".status.updatedReplicas") },
            PrinterColumn { format: "integer", ..column("Available", ".status.availableReplicas") },
            AGE,
            PrinterColumn { priority: 1, ..column("Containers", ".spec.template.spec.containers[*].name") },
            PrinterColumn { priority: 1, ..column("Images", ".spec.template.spec.containers[*].image") },
            PrinterColumn { format: LABELS, priority: 1, ..column("Selector", ".spec.selector.matchLabels") },
        ],
        role_rules: &[VIEW],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}
