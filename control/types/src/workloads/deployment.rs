//! Deployments: a number of Pods, and how they are replaced when their template changes. Those of Revisions say how many
//! instances each has; a controller writes them.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::replica_set::{set_template_defaults, validate_replicas, validate_template};
use super::{
    IMMUTABLE, is_of_revision, not_negative, pod, pod_rules, scale_subresource, validate_selector, warnings_of,
};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, LABELS, PAIR, PrinterColumn, column};
use crate::role_rules::{EDIT, VIEW};
use crate::schema;
use crate::shared::controller;
use crate::sink_injection::{BindableKind, inject_into_pods};

/// Replaced templates that stay for an undo; Kubernetes' figure.
const HISTORY_LIMIT: i32 = 10;
/// Seconds after which a rollout without progress has failed; Kubernetes' figure.
pub const PROGRESS_DEADLINE_SECONDS: i32 = 600;
pub const ROLLING_UPDATE: &str = "RollingUpdate";
pub const RECREATE: &str = "Recreate";

/// The row of deployments.
pub(super) fn entry() -> KindEntry {
    KindEntry { schema: narrow_schema, ..KindEntry::of::<Deployment>() }
        .with_scale(scale_subresource)
        .with_warnings(|one| warnings_of(&one["spec"]["template"]["spec"], "spec.template.spec"))
}

fn narrow_schema() -> Value {
    let mut schema = schema::of::<Deployment>();
    pod::narrow_spec(&mut schema["properties"]["spec"]["properties"]["template"]["properties"]["spec"]);
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
        has_status: true,
        columns: &[
            PrinterColumn { format: PAIR, ..column("Ready", ".status.readyReplicas+.spec.replicas") },
            PrinterColumn { format: "integer", ..column("Up-to-date", ".status.updatedReplicas|=0") },
            PrinterColumn { format: "integer", ..column("Available", ".status.availableReplicas|=0") },
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
        if requester.internal && is_of_revision(&self.metadata) {
            return;
        }
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(HISTORY_LIMIT);
        spec.progress_deadline_seconds.get_or_insert(PROGRESS_DEADLINE_SECONDS);
        set_template_defaults(&mut spec.template);
        set_strategy_defaults(spec.strategy.get_or_insert_default());
        if controller(&self.metadata).is_none() {
            let injections = &requester.injections;
            inject_into_pods(&mut spec.template, injections, BindableKind::Deployment, &self.metadata);
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        if is_of_revision(&self.metadata) {
            return;
        }
        let Some(spec) = &self.spec else { return problems.add("spec", "Required value") };
        validate_replicas(spec.replicas, problems);
        not_negative(spec.min_ready_seconds, "spec.minReadySeconds", problems);
        not_negative(spec.revision_history_limit, "spec.revisionHistoryLimit", problems);
        validate_deadline(spec, problems);
        validate_selector(&spec.selector, Some(&spec.template), problems);
        validate_template(&spec.template, problems);
        validate_strategy(&spec.strategy.clone().unwrap_or_default(), problems);
        if before.and_then(|before| before.spec.as_ref()).is_some_and(|before| before.selector != spec.selector) {
            let found = serde_json::to_string(&spec.selector).unwrap_or_default();
            problems.add("spec.selector", format!("Invalid value: {found}: {IMMUTABLE}"));
        }
    }
}

fn set_strategy_defaults(strategy: &mut DeploymentStrategy) {
    if strategy.type_.get_or_insert_with(|| ROLLING_UPDATE.into()) == ROLLING_UPDATE {
        let quarter = || IntOrString::String("25%".into());
        let bounds = strategy.rolling_update.get_or_insert_with(RollingUpdateDeployment::default);
        bounds.max_surge.get_or_insert_with(quarter);
        bounds.max_unavailable.get_or_insert_with(quarter);
    }
}

fn validate_deadline(spec: &DeploymentSpec, problems: &mut FieldErrors) {
    let Some(deadline) = spec.progress_deadline_seconds else { return };
    not_negative(Some(deadline), "spec.progressDeadlineSeconds", problems);
    if deadline <= spec.min_ready_seconds.unwrap_or(0) {
        let why = format!("Invalid value: {deadline}: must be greater than minReadySeconds");
        problems.add("spec.progressDeadlineSeconds", why);
    }
}

fn validate_strategy(strategy: &DeploymentStrategy, problems: &mut FieldErrors) {
    let kind = strategy.type_.as_deref();
    pod_rules::unsupported(kind, &[RECREATE, ROLLING_UPDATE], "spec.strategy.type", problems);
    let Some(bounds) = &strategy.rolling_update else { return };
    if kind == Some(RECREATE) {
        let why = "Forbidden: may not be specified when strategy `type` is 'Recreate'";
        return problems.add("spec.strategy.rollingUpdate", why);
    }
    let (surge, unavailable) = (bounds.max_surge.as_ref(), bounds.max_unavailable.as_ref());
    for (field, bound) in [("maxUnavailable", unavailable), ("maxSurge", surge)] {
        if let Some(bound) = bound
            && share(bound, 100).is_none()
        {
            let (shown, why) = match bound {
                IntOrString::Int(number) => (number.to_string(), "must be greater than or equal to 0"),
                IntOrString::String(text) => {
                    (format!("{text:?}"), "a valid percent string must be a numeric string followed by an ending '%'")
                }
            };
            problems.add(format!("spec.strategy.rollingUpdate.{field}"), format!("Invalid value: {shown}: {why}"));
        }
    }
    let is_zero = |bound: Option<&IntOrString>| bound.and_then(|bound| share(bound, 100)) == Some((0, 0));
    if is_zero(surge) && is_zero(unavailable) {
        let why = "Invalid value: 0: may not be 0 when `maxSurge` is 0";
        problems.add("spec.strategy.rollingUpdate.maxUnavailable", why);
    }
}

/// A number or a percentage of `total`, rounded down and rounded up; `None` if it is neither.
#[must_use]
pub fn share(bound: &IntOrString, total: i32) -> Option<(i32, i32)> {
    match bound {
        IntOrString::Int(number) => (*number >= 0).then_some((*number, *number)),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok().filter(|percent| *percent >= 0)?;
            let whole = percent.checked_mul(i64::from(total))?;
            let number = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
            Some((number(whole / 100), number(whole / 100 + i64::from(whole % 100 > 0))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_a_number_or_a_percentage() {
        let text = |text: &str| IntOrString::String(text.into());
        assert_eq!(share(&IntOrString::Int(2), 10), Some((2, 2)));
        assert_eq!(share(&text("25%"), 10), Some((2, 3)));
        assert_eq!(share(&text("0%"), 10), Some((0, 0)));
        assert_eq!((share(&text("x"), 10), share(&IntOrString::Int(-1), 10)), (None, None));
    }
}
