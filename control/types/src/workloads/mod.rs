//! Workloads that clients write: Pods, and what keeps a number of them or runs them to their end.
//!
//! Field names, defaults, rules and columns are Kubernetes'. What a Pod's manifest may ask for is what an instance of a
//! Revision may ask for.

pub mod cron_job;
pub mod deployment;
pub mod job;
mod pod;
mod pod_defaults;
mod pod_rules;
mod pod_volume_rules;
mod probe_rules;
pub mod replica_set;

use std::sync::LazyLock;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::Value;

use crate::custom_kinds::ScaleSubresource;
use crate::field_errors::FieldErrors;
use crate::kind_registry::{KindEntry, KindMeta, ResourceStrategy as _};
use crate::selector;
use crate::shared::controller;
use support::labels;

/// Which workloads clients may write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WorkloadKinds {
    /// Pods, ReplicaSets, Deployments, Jobs and CronJobs beside Services.
    #[default]
    All,
    /// Services alone: Pods and Deployments show what they run.
    ServicesOnly,
}

/// Containers of one Pod, each of which costs the host a process and a log at least.
pub const CONTAINERS_MAX: usize = 32;

static POD_OF_SERVICES: KindMeta = KindMeta { user_creatable: false, ..Pod::META };
static DEPLOYMENT_OF_SERVICES: KindMeta = KindMeta { user_creatable: false, ..Deployment::META };

/// The rows of workloads.
#[must_use]
pub(crate) fn entries(kinds: WorkloadKinds) -> Vec<KindEntry> {
    let (pods, deployments) = (pod::entry(), deployment::entry());
    match kinds {
        WorkloadKinds::All => {
            vec![pods, deployments, replica_set::entry(), job::entry(), cron_job::entry()]
        }
        WorkloadKinds::ServicesOnly => vec![
            KindEntry { meta: &POD_OF_SERVICES, ..pods.derived() },
            KindEntry { meta: &DEPLOYMENT_OF_SERVICES, scale: None, ..deployments.derived() },
        ],
    }
}

/// Whether a kind has Pods of its own.
#[must_use]
pub fn is_workload(kind: &str) -> bool {
    [Pod::META.kind, Deployment::META.kind, ReplicaSet::META.kind, Job::META.kind, CronJob::META.kind].contains(&kind)
}

/// What the author of a Pod's spec should know of fields that are taken and have no effect.
fn warnings_of(spec: &Value, at: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            if container["lifecycle"].as_object().is_some_and(|hooks| !hooks.is_empty()) {
                warnings.push(format!("{at}.{list}[{index}].lifecycle: hooks are not run here"));
            }
        }
    }
    for field in ["affinity", "nodeSelector", "topologySpreadConstraints"] {
        if spec[field].as_object().is_some_and(|some| !some.is_empty())
            || spec[field].as_array().is_some_and(|some| !some.is_empty())
        {
            warnings.push(format!("{at}.{field}: this host is the only node, so the field has no effect"));
        }
    }
    warnings
}

/// Whether an object shows what a Revision runs: our controllers write it, and clients may not. The group of the owner does
/// not count, so that the API server and the controllers decide alike.
fn is_of_revision(meta: &ObjectMeta) -> bool {
    controller(meta).is_some_and(|owner| owner.kind == "Revision")
}

/// The labels and annotations of a template: without this rule its Pods would be refused one by one, for ever.
fn validate_template_metadata(template: &PodTemplateSpec, at: &str, problems: &mut FieldErrors) {
    let Some(meta) = &template.metadata else { return };
    let mut check = |field: &str, text: &str, why: Option<String>| {
        if let Some(why) = why {
            problems.add(format!("{at}.{field}"), format!("Invalid value: {text:?}: {why}"));
        }
    };
    for (key, value) in meta.labels.iter().flatten() {
        check("labels", key, labels::label_key_error(key));
        check("labels", value, labels::label_value_error(value));
    }
    for key in meta.annotations.iter().flatten().map(|(key, _)| key) {
        // Kubernetes takes annotation keys in any case.
        check("annotations", key, labels::label_key_error(&key.to_ascii_lowercase()));
    }
}

/// Validates a selector, which has to match the labels of the template.
fn validate_selector(selector: &LabelSelector, template: Option<&PodTemplateSpec>, problems: &mut FieldErrors) {
    let wanted = selector.match_labels.clone().unwrap_or_default();
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    if wanted.is_empty() && expressions.is_empty() {
        let why = "Invalid value: {}: empty selector is invalid for deployment";
        return problems.add("spec.selector", why);
    }
    selector::validate(expressions, "spec.selector", problems);
    let none = ObjectMeta::default();
    let meta = template.and_then(|template| template.metadata.as_ref()).unwrap_or(&none);
    if !selector::matches(&wanted, expressions, meta) {
        let found = serde_json::to_string(&meta.labels.clone().unwrap_or_default()).unwrap_or_default();
        let why = format!("Invalid value: {found}: `selector` does not match template `labels`");
        problems.add("spec.template.metadata.labels", why);
    }
}

/// A number that may not be negative.
fn not_negative(value: Option<i32>, field: &str, problems: &mut FieldErrors) {
    if let Some(value) = value.filter(|value| *value < 0) {
        problems.add(field, format!("Invalid value: {value}: must be greater than or equal to 0"));
    }
}

/// Where Deployments and ReplicaSets say how many Pods they want and have.
fn scale_subresource() -> &'static ScaleSubresource {
    static SCALE: LazyLock<ScaleSubresource> = LazyLock::new(ScaleSubresource::of_workloads);
    &SCALE
}

/// Kubernetes' words for a field that stays as it was.
const IMMUTABLE: &str = "field is immutable";
