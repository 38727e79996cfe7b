//! CronJobs: Jobs by a schedule.

use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{job, not_negative, pod_rules, warnings_of};
use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindEntry, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, COUNT, PrinterColumn, column};
use crate::role_rules::{EDIT, VIEW};
use crate::schema;
use crate::sources::cron::CronSchedule;

/// Characters of a CronJob's name: its Jobs' names add eleven to it, and are DNS labels.
const NAME_CHARS_MAX: usize = 52;
/// Finished Jobs that stay; Kubernetes' figures.
const SUCCESSFUL_LIMIT: i32 = 3;
const FAILED_LIMIT: i32 = 1;
const POLICIES: [&str; 3] = ["Allow", "Forbid", "Replace"];

pub(super) fn entry() -> KindEntry {
    KindEntry { schema: narrow_schema, ..KindEntry::of::<CronJob>() }.with_warnings(|one| {
        warnings_of(&one["spec"]["jobTemplate"]["spec"]["template"]["spec"], "spec.jobTemplate.spec.template.spec")
    })
}

fn narrow_schema() -> Value {
    let mut schema = schema::of::<CronJob>();
    job::narrow_job_spec(&mut schema["properties"]["spec"]["properties"]["jobTemplate"]["properties"]["spec"]);
    schema
}

/// The zone that a CronJob's schedule is read in; an error: there is no such zone.
///
/// # Errors
/// The zone's name is unknown.
pub fn zone(name: Option<&str>) -> Result<TimeZone, String> {
    match name {
        None => Ok(TimeZone::UTC),
        Some(name) => TimeZone::get(name).map_err(|_| format!("unknown time zone {name}")),
    }
}

impl ResourceStrategy for CronJob {
    const META: KindMeta = KindMeta {
        group: "batch",
        kind: "CronJob",
        plural: "cronjobs",
        singular: "cronjob",
        short_names: &["cj"],
        categories: &["all"],
        has_status: true,
        columns: &[
            column("Schedule", ".spec.schedule"),
            column("Timezone", ".spec.timeZone|=<none>"),
            column("Suspend", ".spec.suspend"),
            PrinterColumn { format: COUNT, ..column("Active", ".status.active") },
            PrinterColumn { format: "date", ..column("Last Schedule", ".status.lastScheduleTime|=<none>") },
            AGE,
            PrinterColumn {
                priority: 1,
                ..column("Containers", ".spec.jobTemplate.spec.template.spec.containers[*].name")
            },
            PrinterColumn {
                priority: 1,
                ..column("Images", ".spec.jobTemplate.spec.template.spec.containers[*].image")
            },
            PrinterColumn { priority: 1, ..column("Selector", "=<none>") },
        ],
        role_rules: &[VIEW.on(&["", "status"]), EDIT],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        let spec = self.spec.get_or_insert_default();
        spec.concurrency_policy.get_or_insert_with(|| "Allow".into());
        spec.suspend.get_or_insert(false);
        spec.successful_jobs_history_limit.get_or_insert(SUCCESSFUL_LIMIT);
        spec.failed_jobs_history_limit.get_or_insert(FAILED_LIMIT);
        job::set_spec_defaults(spec.job_template.spec.get_or_insert_default());
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let Some(spec) = &self.spec else { return problems.add("spec", "Required value") };
        if before.is_none() && self.metadata.name.as_ref().is_some_and(|name| name.len() > NAME_CHARS_MAX) {
            let name = self.metadata.name.as_deref().unwrap_or_default();
            let why = format!("Invalid value: {name:?}: must be no more than {NAME_CHARS_MAX} characters");
            problems.add("metadata.name", why);
        }
        if spec.schedule.is_empty() {
            problems.add("spec.schedule", "Required value");
        } else if spec.schedule.contains("TZ") {
            let why = format!(
                "Invalid value: {:?}: cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
                spec.schedule
            );
            problems.add("spec.schedule", why);
        } else if let Err(why) = parse(&spec.schedule) {
            problems.add("spec.schedule", format!("Invalid value: {:?}: {why}", spec.schedule));
        }
        if let Err(why) = zone(spec.time_zone.as_deref()) {
            let name = spec.time_zone.as_deref().unwrap_or_default();
            problems.add("spec.timeZone", format!("Invalid value: {name:?}: {why}"));
        }
        pod_rules::unsupported(spec.concurrency_policy.as_deref(), &POLICIES, "spec.concurrencyPolicy", problems);
        not_negative(spec.successful_jobs_history_limit, "spec.successfulJobsHistoryLimit", problems);
        not_negative(spec.failed_jobs_history_limit, "spec.failedJobsHistoryLimit", problems);
        if let Some(seconds) = spec.starting_deadline_seconds.filter(|seconds| *seconds < 0) {
            let why = format!("Invalid value: {seconds}: must be greater than or equal to 0");
            problems.add("spec.startingDeadlineSeconds", why);
        }
        let job = spec.job_template.spec.clone().unwrap_or_default();
        job::validate_spec(&job, "spec.jobTemplate.spec", problems);
    }
}

/// Without seconds, which Kubernetes' schedules do not have.
fn parse(schedule: &str) -> Result<CronSchedule, String> {
    let fields = schedule.split_whitespace().count();
    if !schedule.starts_with('@') && fields != 5 {
        return Err(format!("expected exactly 5 fields, found {fields}: {schedule:?}"));
    }
    CronSchedule::parse(schedule)
}
