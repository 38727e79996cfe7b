//! ReplicaSets: a number of Pods of one template. Deployments keep one for each of their templates.

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    IMMUTABLE, not_negative, pod, pod_defaults, pod_rules, scale_subresource, validate_selector,
    validate_template_metadata, warnings_of,
};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, LABELS, PrinterColumn, column};
use crate::role_rules::{EDIT, VIEW};
use crate::schema;
use crate::shared::controller;
use crate::sink_injection::{BindableKind, inject_into_pods};

/// Pods of one ReplicaSet; the node runs no more of all together.
pub const REPLICAS_MAX: i32 = 1000;

pub(super) fn entry() -> KindEntry {
    KindEntry { schema: narrow_schema, ..KindEntry::of::<ReplicaSet>() }
        .with_scale(scale_subresource)
        .with_warnings(|set| warnings_of(&set["spec"]["template"]["spec"], "spec.template.spec"))
}

fn narrow_schema() -> Value {
    let mut schema = schema::of::<ReplicaSet>();
    pod::narrow_spec(&mut schema["properties"]["spec"]["properties"]["template"]["properties"]["spec"]);
    schema
}

/// Fills what a template for Pods left out.
pub(super) fn set_template_defaults(template: &mut PodTemplateSpec) {
    pod_defaults::set_spec_defaults(template.spec.get_or_insert_default());
}

/// The rules of a template whose Pods always start again.
pub(super) fn validate_template(template: &PodTemplateSpec, problems: &mut FieldErrors) {
    validate_template_metadata(template, "spec.template", problems);
    let spec = template.spec.clone().unwrap_or_default();
    pod_rules::validate(&spec, "spec.template.spec", problems);
    pod_rules::unsupported(spec.restart_policy.as_deref(), &["Always"], "spec.template.spec.restartPolicy", problems);
    if spec.active_deadline_seconds.is_some() {
        problems.add(
            "spec.template.spec.activeDeadlineSeconds",
            "Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
        );
    }
}

/// A number of Pods.
pub(super) fn validate_replicas(replicas: Option<i32>, problems: &mut FieldErrors) {
    not_negative(replicas, "spec.replicas", problems);
    if let Some(replicas) = replicas.filter(|replicas| *replicas > REPLICAS_MAX) {
        let why = format!("Invalid value: {replicas}: must be less than or equal to {REPLICAS_MAX}");
        problems.add("spec.replicas", why);
    }
}

impl ResourceStrategy for ReplicaSet {
    const META: KindMeta = KindMeta {
        group: "apps",
        kind: "ReplicaSet",
        plural: "replicasets",
        singular: "replicaset",
        short_names: &["rs"],
        categories: &["all"],
        has_status: true,
        columns: &[
            PrinterColumn { format: "integer", ..column("Desired", ".spec.replicas|=0") },
            PrinterColumn { format: "integer", ..column("Current", ".status.replicas|=0") },
            PrinterColumn { format: "integer", ..column("Ready", ".status.readyReplicas|=0") },
            AGE,
            PrinterColumn { priority: 1, ..column("Containers", ".spec.template.spec.containers[*].name") },
            PrinterColumn { priority: 1, ..column("Images", ".spec.template.spec.containers[*].image") },
            PrinterColumn { format: LABELS, priority: 1, ..column("Selector", ".spec.selector.matchLabels") },
        ],
        role_rules: &[VIEW.on(&["", "scale", "status"]), EDIT.on(&["", "scale"])],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, requester: &RequestContext) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        if let Some(template) = &mut spec.template {
            set_template_defaults(template);
            if controller(&self.metadata).is_none() {
                inject_into_pods(template, &requester.injections, BindableKind::ReplicaSet, &self.metadata);
            }
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let Some(spec) = &self.spec else { return problems.add("spec", "Required value") };
        validate_replicas(spec.replicas, problems);
        not_negative(spec.min_ready_seconds, "spec.minReadySeconds", problems);
        validate_selector(&spec.selector, spec.template.as_ref(), problems);
        match &spec.template {
            Some(template) => validate_template(template, problems),
            None => problems.add("spec.template", "Required value"),
        }
        if before.and_then(|before| before.spec.as_ref()).is_some_and(|before| before.selector != spec.selector) {
            let found = serde_json::to_string(&spec.selector).unwrap_or_default();
            problems.add("spec.selector", format!("Invalid value: {found}: {IMMUTABLE}"));
        }
    }
}
