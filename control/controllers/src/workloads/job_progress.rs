//! What a Job does next: values in, values out.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::limits::{JOB_RETRY_DELAY_MAX, JOB_RETRY_DELAY_MIN};
use super::owned_pods::{is_active, phase, ready_since, restarts};
use types::shared::annotation;
use types::workloads::job::BACKOFF_LIMIT;

/// Which of a Job's numbered completions a Pod is for.
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// On a finished Pod that the Job's status counts, with the Pod's uid: the count stays when the Pod is deleted.
pub(super) const COUNTED: &str = "batch.sluicegate.dev/counted";
const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";
const SUSPENDED: &str = "Suspended";

/// How a Job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobOutcome {
    Running,
    Complete,
    Failed { reason: &'static str, message: String },
}

/// What to do, and how it stands then.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JobProgress {
    /// Pods to create, each with its index if completions are numbered.
    pub(super) create: Vec<Option<i32>>,
    /// Active Pods to delete.
    pub(super) remove: usize,
    pub(super) status: JobStatus,
    pub(super) outcome: JobOutcome,
    pub(super) finished_at: Option<Timestamp>,
    /// When the next reconcile is due without an event.
    pub(super) look_again: Option<Duration>,
}

/// The Pods of a Job, counted.
struct PodTally {
    active: i32,
    ready: i32,
    terminating: i32,
    succeeded: i32,
    failed: i32,
    /// Starts of active Pods after the first ones.
    restarts: i32,
    last_failure: Option<Timestamp>,
    /// Numbers of completions that have succeeded, and of those that a Pod is active for.
    done: BTreeSet<i32>,
    taken: BTreeSet<i32>,
    /// Finished Pods that are counted and do not have the annotation [`COUNTED`] yet.
    unmarked: UncountedTerminatedPods,
}

impl PodTally {
    /// With the Pods that were deleted since the status `before` counted them.
    fn of(pods: &[Pod], spec: &JobSpec, before: &JobStatus) -> Self {
        let count =
            |of: &dyn Fn(&Pod) -> bool| i32::try_from(pods.iter().filter(|pod| of(pod)).count()).unwrap_or(i32::MAX);
        let indexes = |of: &dyn Fn(&Pod) -> bool| pods.iter().filter(|pod| of(pod)).filter_map(index).collect();
        let failures = pods.iter().filter(|pod| phase(pod) == "Failed");
        let counted = before.uncounted_terminated_pods.clone().unwrap_or_default();
        let (failed, failed_unmarked) = count_finished(pods, "Failed", before.failed, counted.failed.as_deref());
        let (mut succeeded, mut succeeded_unmarked) =
            count_finished(pods, "Succeeded", before.succeeded, counted.succeeded.as_deref());
        let mut done: BTreeSet<i32> = indexes(&|pod| phase(pod) == "Succeeded");
        if is_indexed(spec) {
            let completions = spec.completions.unwrap_or(0);
            done.extend(parse_ranges(before.completed_indexes.as_deref().unwrap_or_default(), completions));
            done.retain(|index| (0..completions).contains(index));
            // The indexes are the count.
            (succeeded, succeeded_unmarked) = (i32::try_from(done.len()).unwrap_or(i32::MAX), None);
        }
        Self {
            active: count(&is_active),
            ready: count(&|pod| is_active(pod) && ready_since(pod).is_some()),
            terminating: count(&|pod| pod.metadata.deletion_timestamp.is_some() && phase(pod) == "Running"),
            succeeded,
            failed,
            restarts: pods.iter().filter(|pod| is_active(pod)).map(restarts).sum(),
            last_failure: failures.filter_map(finished_at).max(),
            done,
            taken: indexes(&is_active),
            unmarked: UncountedTerminatedPods { failed: failed_unmarked, succeeded: succeeded_unmarked },
        }
    }
}

/// How many Pods have ended in the phase `wanted` so far: `before`, and those that are neither marked with [`COUNTED`] nor
/// in `counted`. And the uids of those that are not marked, if there are some.
fn count_finished(
    pods: &[Pod],
    wanted: &str,
    before: Option<i32>,
    counted: Option<&[String]>,
) -> (i32, Option<Vec<String>>) {
    let ended = pods.iter().filter(|pod| phase(pod) == wanted);
    let unmarked = ended.filter(|pod| annotation(&pod.metadata, COUNTED) != pod.metadata.uid.as_deref());
    let unmarked: Vec<String> = unmarked.filter_map(|pod| pod.metadata.uid.clone()).collect();
    let new = unmarked.iter().filter(|uid| !counted.unwrap_or_default().contains(uid)).count();
    let total = before.unwrap_or(0).saturating_add(i32::try_from(new).unwrap_or(i32::MAX));
    (total, Some(unmarked).filter(|uids| !uids.is_empty()))
}

fn index(pod: &Pod) -> Option<i32> {
    annotation(&pod.metadata, COMPLETION_INDEX)?.parse().ok()
}

/// When the last of its containers ended.
fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ends = statuses.iter().filter_map(|one| one.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    ends.map(|at| at.0).max()
}

/// Decides by the Job and its Pods as they are.
pub(super) fn decide(job: &Job, pods: &[Pod], now: Timestamp) -> JobProgress {
    let spec = job.spec.clone().unwrap_or_default();
    let before = job.status.clone().unwrap_or_default();
    let tally = PodTally::of(pods, &spec, &before);
    let conditions = before.conditions.clone().unwrap_or_default();
    let ended = conditions.iter().find(|one| one.status == "True" && [COMPLETE, FAILED].contains(&one.type_.as_str()));
    if let Some(ended) = ended {
        let finished_at = ended.last_transition_time.as_ref().map(|at| at.0);
        // What is still running of a finished Job ends.
        let remove = usize::try_from(tally.active).unwrap_or(0);
        let status = JobStatus { active: Some(0), ready: Some(0), terminating: Some(tally.terminating), ..before };
        let outcome = if ended.type_ == COMPLETE { JobOutcome::Complete } else { failed("", String::new()) };
        return JobProgress { create: Vec::new(), remove, status, outcome, finished_at, look_again: None };
    }
    let is_suspended = spec.suspend == Some(true);
    let started = before.start_time.as_ref().map(|at| at.0).filter(|_| !is_suspended);
    let start_time = if is_suspended { None } else { Some(started.unwrap_or(now)) };
    let outcome = outcome(&spec, &tally, start_time, now);
    let mut progress = JobProgress {
        create: Vec::new(),
        remove: 0,
        status: JobStatus { start_time: start_time.map(Time), ..before },
        outcome,
        finished_at: None,
        look_again: None,
    };
    match progress.outcome {
        JobOutcome::Running if is_suspended => progress.remove = usize::try_from(tally.active).unwrap_or(0),
        JobOutcome::Running => run(&spec, &tally, start_time, now, &mut progress),
        JobOutcome::Complete | JobOutcome::Failed { .. } => {
            progress.remove = usize::try_from(tally.active).unwrap_or(0);
            progress.finished_at = Some(now);
        }
    }
    set_status(&mut progress, &spec, &tally, now);
    progress
}

fn failed(reason: &'static str, message: String) -> JobOutcome {
    JobOutcome::Failed { reason, message }
}

fn outcome(spec: &JobSpec, tally: &PodTally, started: Option<Timestamp>, now: Timestamp) -> JobOutcome {
    let is_complete = match spec.completions {
        Some(wanted) if is_indexed(spec) => i32::try_from(tally.done.len()).is_ok_and(|done| done >= wanted),
        Some(wanted) => tally.succeeded >= wanted,
        // As soon as one has succeeded, the others end by themselves.
        None => tally.succeeded > 0 && tally.active == 0,
    };
    if is_complete {
        return JobOutcome::Complete;
    }
    let limit = spec.backoff_limit.unwrap_or(BACKOFF_LIMIT);
    let restarts = if is_restarted_in_place(spec) { tally.restarts } else { 0 };
    if tally.failed > limit || (restarts > 0 && tally.failed.saturating_add(restarts) > limit) {
        return failed("BackoffLimitExceeded", "Job has reached the specified backoff limit".to_owned());
    }
    let deadline = spec.active_deadline_seconds.map(SignedDuration::from_secs);
    if deadline.zip(started).is_some_and(|(deadline, started)| now.duration_since(started) >= deadline) {
        return failed("DeadlineExceeded", "Job was active longer than specified deadline".to_owned());
    }
    JobOutcome::Running
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

fn is_restarted_in_place(spec: &JobSpec) -> bool {
    spec.template.spec.as_ref().and_then(|pod| pod.restart_policy.as_deref()) == Some("OnFailure")
}

/// As many Pods as may run at a time, and not before the last failure is long enough ago.
fn run(spec: &JobSpec, tally: &PodTally, started: Option<Timestamp>, now: Timestamp, progress: &mut JobProgress) {
    let parallelism = spec.parallelism.unwrap_or(1);
    let wanted = match spec.completions {
        Some(completions) => parallelism.min(completions - tally.succeeded).max(0),
        None if tally.succeeded > 0 => tally.active.min(parallelism),
        None => parallelism,
    };
    let until = |at: Timestamp| Duration::try_from(at.duration_since(now)).ok().filter(|left| !left.is_zero());
    let deadline = spec.active_deadline_seconds.zip(started);
    let deadline = deadline.and_then(|(seconds, at)| at.checked_add(SignedDuration::from_secs(seconds)).ok());
    progress.look_again = deadline.and_then(until);
    let missing = wanted - tally.active;
    if missing < 0 {
        progress.remove = usize::try_from(-missing).unwrap_or(0);
        return;
    }
    let retry = tally.last_failure.map(|at| at + retry_delay(tally.failed)).and_then(until);
    if let Some(left) = retry.filter(|_| missing > 0) {
        progress.look_again = Some(progress.look_again.map_or(left, |other| other.min(left)));
        return;
    }
    let missing = usize::try_from(missing).unwrap_or(0);
    progress.create = match spec.completions.filter(|_| is_indexed(spec)) {
        Some(completions) => {
            let free = (0..completions).filter(|index| !tally.done.contains(index) && !tally.taken.contains(index));
            free.take(missing).map(Some).collect()
        }
        None => vec![None; missing],
    };
}

/// After so many failed Pods.
fn retry_delay(failed: i32) -> Duration {
    let doublings = u32::try_from(failed.saturating_sub(1)).unwrap_or(0).min(16);
    JOB_RETRY_DELAY_MIN.saturating_mul(1 << doublings).min(JOB_RETRY_DELAY_MAX)
}

fn set_status(progress: &mut JobProgress, spec: &JobSpec, tally: &PodTally, now: Timestamp) {
    let change = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let active = tally.active + change(progress.create.len()) - change(progress.remove);
    let status = &mut progress.status;
    status.active = Some(active);
    status.ready = Some(tally.ready.min(active));
    status.terminating = Some(tally.terminating);
    status.succeeded = Some(tally.succeeded);
    status.failed = Some(tally.failed);
    // Of a finished Job nothing is counted any more.
    let is_running = progress.outcome == JobOutcome::Running;
    status.uncounted_terminated_pods =
        Some(if is_running { tally.unmarked.clone() } else { UncountedTerminatedPods::default() });
    if is_indexed(spec) {
        status.completed_indexes = Some(ranges(&tally.done)).filter(|text| !text.is_empty());
    }
    let mut conditions = status.conditions.take().unwrap_or_default();
    // A suspended Job keeps the time at which it was suspended.
    let is_suspended = spec.suspend == Some(true) && progress.outcome == JobOutcome::Running;
    conditions.retain(|one| one.type_ != SUSPENDED || is_suspended);
    let tells_suspension = is_suspended && conditions.iter().all(|one| one.type_ != SUSPENDED);
    let mut add = |kind: &str, reason: &str, message: &str| {
        conditions.push(JobCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
        });
    };
    match &progress.outcome {
        JobOutcome::Running if tells_suspension => add(SUSPENDED, "JobSuspended", "Job suspended"),
        JobOutcome::Running => {}
        JobOutcome::Complete => {
            let (reason, message) = ("CompletionsReached", "Reached expected number of succeeded pods");
            add("SuccessCriteriaMet", reason, message);
            add(COMPLETE, reason, message);
            status.completion_time = Some(Time(now));
        }
        JobOutcome::Failed { reason, message } => {
            add("FailureTarget", reason, message);
            add(FAILED, reason, message);
        }
    }
    status.conditions = Some(conditions).filter(|all| !all.is_empty());
}

/// Numbers as Kubernetes writes them: `0-3,5`.
fn ranges(numbers: &BTreeSet<i32>) -> String {
    let mut spans: Vec<(i32, i32)> = Vec::new();
    for &number in numbers {
        match spans.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => spans.push((number, number)),
        }
    }
    let text = |(from, to): (i32, i32)| match to - from {
        0 => from.to_string(),
        1 => format!("{from},{to}"),
        _ => format!("{from}-{to}"),
    };
    spans.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// Reads what [`ranges`] writes, up to the number before `end`.
fn parse_ranges(text: &str, end: i32) -> BTreeSet<i32> {
    let spans = text.split(',').filter_map(|span| {
        let (from, to) = span.split_once('-').unwrap_or((span, span));
        Some((from.parse::<i32>().ok()?, to.parse::<i32>().ok()?.min(end.saturating_sub(1))))
    });
    spans.flat_map(|(from, to)| from.max(0)..=to).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: &Value, status: &JobStatus) -> Job {
        let mut spec = spec.clone();
        spec["template"] = json!({ "spec": { "restartPolicy": "Never", "containers": [] } });
        serde_json::from_value(json!({ "metadata": { "name": "j" }, "spec": spec, "status": status })).unwrap()
    }

    fn pod(phase: &str, ended: i64) -> Pod {
        let at = Timestamp::from_second(ended).unwrap().to_string();
        let state = json!({ "terminated": { "exitCode": 1, "finishedAt": at } });
        let uid = format!("{phase}-{ended}");
        serde_json::from_value(json!({ "metadata": { "name": "p", "uid": uid }, "status": { "phase": phase,
            "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }] } }))
        .unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn job_runs_as_many_pods_as_it_lacks() {
        let spec = json!({ "completions": 5, "parallelism": 2 });
        let first = decide(&job(&spec, &JobStatus::default()), &[], at(100));
        assert_eq!((first.create.len(), first.status.active, first.remove), (2, Some(2), 0));
        let pods = [pod("Succeeded", 90), pod("Succeeded", 91), pod("Succeeded", 92), pod("Succeeded", 93)];
        let last = decide(&job(&spec, &first.status), &pods, at(110));
        assert_eq!((last.create.len(), last.status.succeeded), (1, Some(4)));
        let all = [&pods[..], &[pod("Succeeded", 94)]].concat();
        let done = decide(&job(&spec, &last.status), &all, at(120));
        assert_eq!(done.outcome, JobOutcome::Complete);
        assert_eq!(done.status.completion_time.as_ref().unwrap().0, at(120));
        let again = decide(&job(&spec, &done.status), &[], at(130));
        assert_eq!(
            (again.outcome, again.finished_at, again.status),
            (JobOutcome::Complete, Some(at(120)), done.status)
        );
    }

    #[test]
    fn failed_pods_are_replaced_later_each_time_up_to_the_limit() {
        let spec = json!({ "completions": 1, "parallelism": 1, "backoffLimit": 1 });
        let waits = decide(&job(&spec, &JobStatus::default()), &[pod("Failed", 100)], at(100));
        assert_eq!((waits.create.len(), waits.look_again), (0, Some(JOB_RETRY_DELAY_MIN)));
        let next = decide(&job(&spec, &waits.status), &[pod("Failed", 100)], at(101));
        assert_eq!(next.create.len(), 1);
        let over = decide(&job(&spec, &next.status), &[pod("Failed", 100), pod("Failed", 102)], at(103));
        assert!(matches!(over.outcome, JobOutcome::Failed { reason: "BackoffLimitExceeded", .. }));
        let kinds: Vec<_> = over.status.conditions.unwrap().into_iter().map(|one| one.type_).collect();
        assert_eq!(kinds, ["FailureTarget", "Failed"]);
    }

    #[test]
    fn deadline_and_suspension_end_active_pods() {
        let spec = json!({ "completions": 1, "parallelism": 1, "activeDeadlineSeconds": 5 });
        let first = decide(&job(&spec, &JobStatus::default()), &[], at(100));
        assert_eq!(first.look_again, Some(Duration::from_secs(5)));
        let late = decide(&job(&spec, &first.status), &[pod("Running", 0)], at(105));
        assert_eq!((late.remove, late.status.active), (1, Some(0)));
        assert!(matches!(late.outcome, JobOutcome::Failed { reason: "DeadlineExceeded", .. }));
        let spec = json!({ "completions": 1, "parallelism": 1, "suspend": true });
        let asleep = decide(&job(&spec, &first.status), &[pod("Running", 0)], at(105));
        assert_eq!((asleep.remove, asleep.outcome, asleep.status.start_time), (1, JobOutcome::Running, None));
    }

    fn marked(pod: &Pod) -> Pod {
        let mut marked = pod.clone();
        let uid = marked.metadata.uid.clone().unwrap();
        marked.metadata.annotations.get_or_insert_default().insert(COUNTED.to_owned(), uid);
        marked
    }

    #[test]
    fn deleted_finished_pods_are_counted_once() {
        let spec = json!({ "completions": 4, "parallelism": 1, "backoffLimit": 2 });
        let (good, bad) = (pod("Succeeded", 90), pod("Failed", 91));
        let first = decide(&job(&spec, &JobStatus::default()), &[good.clone(), bad.clone()], at(200));
        assert_eq!((first.status.succeeded, first.status.failed), (Some(1), Some(1)));
        // The Pods are marked, or not yet: they count once.
        for pods in [[good.clone(), bad.clone()], [marked(&good), bad.clone()], [marked(&good), marked(&bad)]] {
            let again = decide(&job(&spec, &first.status), &pods, at(200));
            assert_eq!((again.status.succeeded, again.status.failed), (Some(1), Some(1)));
        }
        let settled = decide(&job(&spec, &first.status), &[marked(&good), marked(&bad)], at(200));
        assert_eq!(settled.status.uncounted_terminated_pods, Some(UncountedTerminatedPods::default()));
        // One of each is deleted, and one of each is new.
        let next = decide(&job(&spec, &settled.status), &[pod("Succeeded", 95), pod("Failed", 96)], at(200));
        assert_eq!((next.status.succeeded, next.status.failed), (Some(2), Some(2)));
        let over = decide(&job(&spec, &next.status), &[pod("Failed", 97)], at(200));
        assert!(matches!(over.outcome, JobOutcome::Failed { reason: "BackoffLimitExceeded", .. }));
    }

    #[test]
    fn index_of_a_deleted_pod_stays_completed() {
        let spec = json!({ "completions": 3, "parallelism": 3, "completionMode": "Indexed" });
        let before = JobStatus {
            completed_indexes: Some("0,2".into()),
            succeeded: Some(2),
            start_time: Some(Time(at(90))),
            ..JobStatus::default()
        };
        let next = decide(&job(&spec, &before), &[], at(100));
        assert_eq!((next.create, next.status.succeeded), (vec![Some(1)], Some(2)));
        assert_eq!(next.status.completed_indexes.as_deref(), Some("0,2"));
    }

    #[test]
    fn indexes_are_written_as_ranges() {
        let indexes = BTreeSet::from([0, 1, 2, 5, 7, 8]);
        assert_eq!(ranges(&indexes), "0-2,5,7,8");
        assert_eq!(parse_ranges("0-2,5,7,8", 10), indexes);
        assert_eq!(parse_ranges("0-2147483647,x,-1,5-2", 3), BTreeSet::from([0, 1, 2]));
    }
}
