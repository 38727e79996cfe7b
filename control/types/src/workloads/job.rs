//! Jobs: Pods that run to their end, as many as are to succeed.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::Value;

use super::{
    IMMUTABLE, not_negative, pod, pod_defaults, pod_rules, validate_selector, validate_template_metadata, warnings_of,
};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, LABELS, PAIR, PrinterColumn, column};
use crate::role_rules::{EDIT, VIEW};
use crate::schema;
use crate::sink_injection::{BindableKind, inject_into_pods};

/// Failed Pods that a Job takes before it has failed; Kubernetes' figure.
pub const BACKOFF_LIMIT: i32 = 6;
/// Pods that one Job runs at a time at most; the node runs no more of all together.
pub const PARALLELISM_MAX: i32 = 1000;
/// Completions of a Job; what its Pods' indexes and counts are kept for.
pub const COMPLETIONS_MAX: i32 = 100_000;
/// Labels by which the Pods of a Job are found.
pub const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// The same as older clients know them.
const OLD_CONTROLLER_UID: &str = "controller-uid";
const OLD_JOB_NAME: &str = "job-name";
const RESTART_POLICIES: [&str; 2] = ["OnFailure", "Never"];

pub(super) fn entry() -> KindEntry {
    KindEntry { schema: narrow_schema, ..KindEntry::of::<Job>() }
        .with_warnings(|job| warnings_of(&job["spec"]["template"]["spec"], "spec.template.spec"))
}

fn narrow_schema() -> Value {
    let mut schema = schema::of::<Job>();
    narrow_job_spec(&mut schema["properties"]["spec"]);
    schema
}

pub(crate) fn narrow_job_spec(spec: &mut Value) {
    pod::narrow_spec(&mut spec["properties"]["template"]["properties"]["spec"]);
}

/// Fills what the author of a Job, or of a template for Jobs, left out.
pub(super) fn set_spec_defaults(spec: &mut JobSpec) {
    if spec.completions.is_none() && spec.parallelism.is_none() {
        spec.completions = Some(1);
    }
    spec.parallelism.get_or_insert(1);
    spec.backoff_limit.get_or_insert(BACKOFF_LIMIT);
    spec.completion_mode.get_or_insert_with(|| "NonIndexed".into());
    spec.suspend.get_or_insert(false);
    spec.pod_replacement_policy.get_or_insert_with(|| "TerminatingOrFailed".into());
    let pod = spec.template.spec.get_or_insert_default();
    // Unlike those of others, these Pods do not start again unless their author says so.
    let policy = pod.restart_policy.clone();
    pod_defaults::set_spec_defaults(pod);
    pod.restart_policy = policy;
}

/// Says what is wrong with a Job's spec.
pub(super) fn validate_spec(spec: &JobSpec, at: &str, problems: &mut FieldErrors) {
    for (field, value) in [
        ("parallelism", spec.parallelism),
        ("completions", spec.completions),
        ("backoffLimit", spec.backoff_limit),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished),
    ] {
        not_negative(value, &format!("{at}.{field}"), problems);
    }
    for (field, value, max) in
        [("parallelism", spec.parallelism, PARALLELISM_MAX), ("completions", spec.completions, COMPLETIONS_MAX)]
    {
        if let Some(value) = value.filter(|value| *value > max) {
            let why = format!("Invalid value: {value}: must be less than or equal to {max}");
            problems.add(format!("{at}.{field}"), why);
        }
    }
    if let Some(seconds) = spec.active_deadline_seconds.filter(|seconds| !(0..=i64::from(i32::MAX)).contains(seconds)) {
        let why = format!("Invalid value: {seconds}: must be between 0 and 2147483647, inclusive");
        problems.add(format!("{at}.activeDeadlineSeconds"), why);
    }
    let mode = spec.completion_mode.as_deref();
    pod_rules::unsupported(mode, &["NonIndexed", "Indexed"], &format!("{at}.completionMode"), problems);
    if mode == Some("Indexed") && spec.completions.is_none() {
        problems.add(format!("{at}.completions"), "Required value: when completion mode is Indexed");
    }
    validate_template_metadata(&spec.template, &format!("{at}.template"), problems);
    let pod = spec.template.spec.clone().unwrap_or_default();
    let field = format!("{at}.template.spec.restartPolicy");
    match pod.restart_policy.as_deref() {
        None | Some("") => problems.add(field, "Required value: valid values: \"OnFailure\", \"Never\""),
        policy => pod_rules::unsupported(policy, &RESTART_POLICIES, &field, problems),
    }
    pod_rules::validate(&pod, &format!("{at}.template.spec"), problems);
}

impl ResourceStrategy for Job {
    const META: KindMeta = KindMeta {
        group: "batch",
        kind: "Job",
        plural: "jobs",
        singular: "job",
        categories: &["all"],
        has_status: true,
        columns: &[
            column(
                "Status",
                ".status.conditions[?(@.type==\"Complete\")].type|.status.conditions[?(@.type==\"Failed\")].type\
                 |.status.conditions[?(@.type==\"Suspended\")].type|=Running",
            ),
            PrinterColumn { format: PAIR, ..column("Completions", ".status.succeeded+.spec.completions") },
            AGE,
            PrinterColumn { priority: 1, ..column("Containers", ".spec.template.spec.containers[*].name") },
            PrinterColumn { priority: 1, ..column("Images", ".spec.template.spec.containers[*].image") },
            PrinterColumn { format: LABELS, priority: 1, ..column("Selector", ".spec.selector.matchLabels") },
        ],
        role_rules: &[VIEW.on(&["", "status"]), EDIT],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        let spec = self.spec.get_or_insert_default();
        set_spec_defaults(spec);
        // That of a CronJob, too: it is told with each of its Jobs.
        if before.is_none() {
            inject_into_pods(&mut spec.template, &requester.injections, BindableKind::Job, &self.metadata);
        }
        if spec.manual_selector == Some(true) {
            return;
        }
        if before.is_none() {
            let uid = self.metadata.uid.clone().unwrap_or_default();
            let name = self.metadata.name.clone().unwrap_or_default();
            let labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
            for (key, value) in
                [(CONTROLLER_UID, &uid), (OLD_CONTROLLER_UID, &uid), (JOB_NAME, &name), (OLD_JOB_NAME, &name)]
            {
                labels.insert(key.into(), value.clone());
            }
            let labels = BTreeMap::from([(CONTROLLER_UID.to_owned(), uid)]);
            spec.selector = Some(LabelSelector { match_labels: Some(labels), ..LabelSelector::default() });
        } else if let Some(was) = before.and_then(|before| before.spec.as_ref()) {
            // A client that applies its manifest again knows neither.
            let kept = was.template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
            let labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
            for key in [CONTROLLER_UID, OLD_CONTROLLER_UID, JOB_NAME, OLD_JOB_NAME] {
                if let Some(value) = kept.get(key) {
                    labels.entry(key.into()).or_insert_with(|| value.clone());
                }
            }
            if spec.selector.is_none() {
                spec.selector.clone_from(&was.selector);
            }
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let Some(spec) = &self.spec else { return problems.add("spec", "Required value") };
        validate_spec(spec, "spec", problems);
        // Pods that the selector does not find would be created without end.
        match &spec.selector {
            Some(selector) => validate_selector(selector, Some(&spec.template), problems),
            None => problems.add("spec.selector", "Required value"),
        }
        let Some(was) = before.and_then(|before| before.spec.as_ref()) else { return };
        let is_suspended = was.suspend == Some(true);
        for (field, same) in [
            ("completions", was.completions == spec.completions),
            ("selector", was.selector == spec.selector),
            ("template", was.template == spec.template || is_suspended),
            ("completionMode", was.completion_mode == spec.completion_mode),
        ] {
            if !same {
                let value = serde_json::to_value(spec).unwrap_or_default();
                problems.add(format!("spec.{field}"), format!("Invalid value: {}: {IMMUTABLE}", value[field]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The fields that admission refuses, with the messages.
    fn refused(more: Value) -> Vec<String> {
        let template = json!({ "metadata": { "labels": { "app": "a" } },
            "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] } });
        let mut spec = json!({ "template": template });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let job = json!({ "metadata": { "name": "j", "uid": "u" }, "spec": spec });
        let mut job: Job = serde_json::from_value(job).unwrap();
        job.set_defaults(None, &RequestContext::default());
        let mut problems = FieldErrors::default();
        job.validate(None, &mut problems);
        problems.into_list().into_iter().map(|one| format!("{}: {}", one.field, one.message)).collect()
    }

    #[test]
    fn job_needs_a_selector_that_matches_its_template() {
        let manual = |selector: Value| refused(json!({ "manualSelector": true, "selector": selector }));
        assert_eq!(refused(json!({})), [""; 0]);
        assert_eq!(manual(json!({ "matchLabels": { "app": "a" } })), [""; 0]);
        assert_eq!(manual(Value::Null), ["spec.selector: Required value"]);
        let why = r#"Invalid value: {"app":"a"}: `selector` does not match template `labels`"#;
        let other = json!({ "matchLabels": { "app": "b" } });
        assert_eq!(manual(other), [format!("spec.template.metadata.labels: {why}")]);
        let unknown = manual(json!({ "matchExpressions": [{ "key": "app", "operator": "Is" }] }));
        assert_eq!(unknown[0], "spec.selector.matchExpressions[0].operator: invalid value: Is");
    }

    #[test]
    fn numbers_of_a_job_beyond_their_limits_are_refused() {
        for (field, max) in [
            ("activeDeadlineSeconds", i64::from(i32::MAX)),
            ("parallelism", i64::from(PARALLELISM_MAX)),
            ("completions", i64::from(COMPLETIONS_MAX)),
        ] {
            assert_eq!(refused(json!({ field: max })), [""; 0]);
            for wrong in [max + 1, -1] {
                let found = refused(json!({ field: wrong }));
                assert!(found[0].starts_with(&format!("spec.{field}: Invalid value: {wrong}: must be ")), "{found:?}");
            }
        }
    }

    #[test]
    fn label_that_no_pod_can_have_is_refused() {
        let labels = json!({ "labels": { "app": "a b" }, "annotations": { "a b": "c" } });
        let spec = json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] });
        let found = refused(json!({ "template": { "metadata": labels, "spec": spec } }));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with(r#"spec.template.labels: Invalid value: "a b": "#), "{found:?}");
        assert!(found[1].starts_with(r#"spec.template.annotations: Invalid value: "a b": "#), "{found:?}");
    }
}
