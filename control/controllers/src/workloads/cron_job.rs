//! CronJobs: creates a Job at each time of a schedule, and deletes finished ones beyond the history.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::owned_pods::{delete, owned, owner_item, tell, write_status};
use crate::api::Error;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::event_recorder::EventSeverity;
use crate::informer_cache::InformerCache;
use crate::owned_child::owner_references;
use crate::work_queue::{ControllerKind, WorkItem};
use types::shared::name;
use types::sources::cron::CronSchedule;
use types::workloads::cron_job::zone;

const KIND: ControllerKind = ControllerKind::new("CronJob");
/// At which time of the schedule a Job was to start.
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// A wait for the next time ends at the latest after this: the clock may be set.
const WAIT_MAX: Duration = Duration::from_secs(60);
const SECONDS_PER_MINUTE: i64 = 60;

#[derive(Debug, Default)]
pub struct CronJobController {
    cache: InformerCache<CronJob>,
    jobs: InformerCache<Job>,
}

impl Controller for CronJobController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.cache);
        watches.own::<Job>(context.source(), &self.jobs, move |change| {
            if let Some(item) = newest(change).and_then(|job| owner_item(KIND, "CronJob", &job.metadata)) {
                context.enqueue(item);
            }
        });
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(&self.cache, context, item))
    }
}

async fn reconcile(cache: &InformerCache<CronJob>, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(cron) = cache.get(&item.namespace, &item.name) else { return Ok(()) };
    if cron.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let spec = cron.spec.clone().unwrap_or_default();
    let mut jobs: Vec<Job> = owned(context, &cron.metadata).await?;
    clean_up(context, &spec, &jobs).await?;
    let mut status = cron.status.clone().unwrap_or_default();
    let (schedule, zone) = match (CronSchedule::parse(&spec.schedule), zone(spec.time_zone.as_deref())) {
        (Ok(schedule), Ok(zone)) => (schedule, zone),
        (Err(why), _) | (_, Err(why)) => {
            tell(context, &*cron, EventSeverity::Warning, ("UnparseableSchedule", why)).await;
            return show(context, &cron, &jobs, status).await;
        }
    };
    let now_exact = Timestamp::now();
    let since = status.last_schedule_time.as_ref().or(cron.metadata.creation_timestamp.as_ref()).map(|at| at.0);
    let (due, next) = times(&spec, since.unwrap_or(now_exact), now_exact, |after| schedule.next(after, &zone));
    if spec.suspend != Some(true)
        && let Some(due) = due
    {
        let active: Vec<Job> = jobs.iter().filter(|job| finished(job).is_none()).cloned().collect();
        let policy = spec.concurrency_policy.as_deref();
        if policy == Some("Forbid") && !active.is_empty() {
            let why = "Not starting job because prior execution is running and concurrency policy is Forbid";
            tell(context, &*cron, EventSeverity::Normal, ("JobAlreadyActive", why.to_owned())).await;
        } else {
            if policy == Some("Replace") {
                for job in &active {
                    delete(context, job, None).await?;
                }
                jobs.retain(|job| finished(job).is_some());
            }
            jobs.push(start(context, &cron, &spec, due).await?);
            status.last_schedule_time = Some(Time(due));
        }
    }
    if let Some(next) = next.filter(|_| spec.suspend != Some(true)) {
        let left = Duration::try_from(next.duration_since(Timestamp::now())).unwrap_or_default();
        context.queue.add_after_unless_sooner(item, left.min(WAIT_MAX));
    }
    show(context, &cron, &jobs, status).await
}

/// The last time of the schedule at which a Job should have been started and was not, if it is not too late, and the next
/// time to come.
fn times(
    spec: &CronJobSpec,
    since: Timestamp,
    now: Timestamp,
    next: impl Fn(Timestamp) -> Option<Timestamp>,
) -> (Option<Timestamp>, Option<Timestamp>) {
    // A second before the earliest, because a schedule names times after the one that it is asked for.
    let second = SignedDuration::from_secs(1);
    let deadline =
        spec.starting_deadline_seconds.map(|seconds| SignedDuration::from_secs(seconds).saturating_add(second));
    let earliest = deadline.and_then(|deadline| now.checked_sub(deadline).ok());
    let mut at = earliest.map_or(since, |earliest| since.max(earliest));
    let is_missed = |after| next(after).is_some_and(|time| time <= now);
    if !is_missed(at) {
        return (None, next(at));
    }
    // However many were missed, only the newest counts. The schedule is monotone, so some thirty looks find it.
    let mut later = now;
    while later.duration_since(at) > second {
        let middle = at + later.duration_since(at) / 2;
        if is_missed(middle) { at = middle } else { later = middle }
    }
    let due = next(at);
    (due, due.and_then(next))
}

async fn start(context: &ControllerContext, cron: &CronJob, spec: &CronJobSpec, due: Timestamp) -> Result<Job, Error> {
    let job = new_job(cron, spec, due);
    match context.create(&job).await {
        Ok(made) => {
            let created = ("SuccessfulCreate", format!("Created job {}", name(&made.metadata)));
            tell(context, cron, EventSeverity::Normal, created).await;
            Ok(made)
        }
        // It was started before its time was noted.
        Err(why) if why.is_conflict() => Ok(context
            .api::<Job>(cron.metadata.namespace.as_deref().unwrap_or_default())
            .get(name(&job.metadata))
            .await?),
        Err(why) => {
            let failed = ("FailedCreate", format!("Error creating job: {why}"));
            tell(context, cron, EventSeverity::Warning, failed).await;
            Err(why)
        }
    }
}

fn new_job(cron: &CronJob, spec: &CronJobSpec, due: Timestamp) -> Job {
    let template = spec.job_template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED_AT.to_owned(), due.to_string());
    // The time names it, so that no time has two.
    let minutes = due.as_second() / SECONDS_PER_MINUTE;
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{}-{minutes}", name(&cron.metadata))),
            namespace: cron.metadata.namespace.clone(),
            labels: template.labels,
            annotations: Some(annotations),
            owner_references: owner_references(cron),
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    }
}

/// Whether it succeeded, and when, if it has finished.
fn finished(job: &Job) -> Option<(bool, Timestamp)> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ended =
        conditions.iter().find(|one| one.status == "True" && ["Complete", "Failed"].contains(&one.type_.as_str()))?;
    let at = ended.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0);
    Some((ended.type_ == "Complete", at))
}

/// Deletes the oldest finished Jobs beyond the history.
async fn clean_up(context: &ControllerContext, spec: &CronJobSpec, jobs: &[Job]) -> Result<(), Error> {
    for (succeeded, kept) in
        [(true, spec.successful_jobs_history_limit.unwrap_or(3)), (false, spec.failed_jobs_history_limit.unwrap_or(1))]
    {
        let mut old: Vec<(&Job, Timestamp)> = jobs
            .iter()
            .filter(|job| job.metadata.deletion_timestamp.is_none())
            .filter_map(|job| finished(job).filter(|(good, _)| *good == succeeded).map(|(_, at)| (job, at)))
            .collect();
        old.sort_by_key(|(job, at)| (*at, job.metadata.name.clone()));
        let surplus = old.len().saturating_sub(usize::try_from(kept).unwrap_or(0));
        for (job, _) in old.into_iter().take(surplus) {
            delete(context, job, None).await?;
        }
    }
    Ok(())
}

async fn show(
    context: &ControllerContext,
    cron: &CronJob,
    jobs: &[Job],
    mut status: CronJobStatus,
) -> Result<(), Error> {
    let active = jobs.iter().filter(|job| finished(job).is_none() && job.metadata.deletion_timestamp.is_none());
    let reference = |job: &Job| ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        ..ObjectReference::default()
    };
    status.active = Some(active.map(reference).collect()).filter(|all: &Vec<_>| !all.is_empty());
    let succeeded = jobs.iter().filter_map(finished).filter(|(good, _)| *good).map(|(_, at)| at).max();
    let before = status.last_successful_time.as_ref().map(|at| at.0);
    status.last_successful_time = succeeded.max(before).map(Time);
    if cron.status.clone().unwrap_or_default() != status {
        write_status(context, &CronJob { status: Some(status), ..cron.clone() }).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Each full minute.
    fn next(after: Timestamp) -> Option<Timestamp> {
        Timestamp::from_second((after.as_second() / 60 + 1) * 60).ok()
    }

    #[test]
    fn last_missed_time_is_due_within_the_starting_deadline() {
        let spec = CronJobSpec::default();
        assert_eq!(times(&spec, at(0), at(59), next), (None, Some(at(60))));
        assert_eq!(times(&spec, at(0), at(200), next), (Some(at(180)), Some(at(240))));
        let strict = CronJobSpec { starting_deadline_seconds: Some(10), ..CronJobSpec::default() };
        assert_eq!(times(&strict, at(0), at(200), next), (None, Some(at(240))));
        assert_eq!(times(&strict, at(0), at(185), next), (Some(at(180)), Some(at(240))));
        // Years in which nothing could start cost a bounded number of looks.
        let looks = Cell::new(0);
        let counted = |after| {
            looks.set(looks.get() + 1);
            next(after)
        };
        assert_eq!(times(&spec, at(0), at(1_000_000_000), counted), (Some(at(999_999_960)), Some(at(1_000_000_020))));
        assert!(looks.get() < 50, "{} looks", looks.get());
        let never = times(&spec, at(0), at(1_000), |_| None);
        assert_eq!(never, (None, None));
    }

    #[test]
    fn job_is_named_by_the_minute_of_its_time() {
        let mut cron = CronJob::default();
        cron.metadata.name = Some("report".into());
        let job = new_job(&cron, &CronJobSpec::default(), at(120));
        assert_eq!(job.metadata.name.as_deref(), Some("report-2"));
    }
}
