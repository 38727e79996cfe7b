//! Jobs: runs Pods until as many have succeeded as are wanted.

use std::time::Duration;

use futures_util::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use kube::api::Patch;
use serde_json::json;

use super::job_progress::{COMPLETION_INDEX, COUNTED, JobOutcome, JobProgress, decide};
use super::limits::BURST_PODS_MAX;
use super::owned_pods::{delete, from_template, is_active, owned_with_labels, owner_item, tell, write_status};
use crate::api::{Error, is_not_found, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::event_recorder::EventSeverity;
use crate::field_managers;
use crate::informer_cache::InformerCache;
use crate::work_queue::{ControllerKind, WorkItem};
use types::shared::{name, namespace};

const KIND: ControllerKind = ControllerKind::new("Job");
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

#[derive(Debug, Default)]
pub struct JobController {
    cache: InformerCache<Job>,
}

impl Controller for JobController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.cache);
        watches.enqueue::<Pod, _>(|change| newest(change).and_then(|pod| owner_item(KIND, "Job", &pod.metadata)));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(&self.cache, context, item))
    }
}

async fn reconcile(cache: &InformerCache<Job>, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    if cache.get(&item.namespace, &item.name).is_none() {
        return Ok(());
    }
    // As the store has it: without the last counts in its status, Pods that are deleted would run again.
    let Some(job) = context.api::<Job>(&item.namespace).get_opt(&item.name).await? else { return Ok(()) };
    if job.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let labels = selector.and_then(|selector| selector.match_labels.as_ref());
    let pods: Vec<Pod> = owned_with_labels(context, &job.metadata, labels).await?;
    let progress = decide(&job, &pods, now());
    if let Some(delay) = progress.look_again {
        context.queue.add_after_unless_sooner(item, delay);
    }
    for pod in pods.iter().filter(|pod| is_active(pod)).take(progress.remove) {
        delete(context, pod, None).await?;
        let gone = ("SuccessfulDelete", format!("Deleted pod: {}", name(&pod.metadata)));
        tell(context, &job, EventSeverity::Normal, gone).await;
    }
    create_pods(context, &job, &progress).await?;
    if job.status.as_ref() != Some(&progress.status) {
        write_status(context, &Job { status: Some(progress.status.clone()), ..job.clone() }).await?;
        match progress.outcome {
            JobOutcome::Running => {}
            JobOutcome::Complete => {
                let done = ("Completed", "Job completed".to_owned());
                tell(context, &job, EventSeverity::Normal, done).await;
            }
            JobOutcome::Failed { reason, ref message } => {
                tell(context, &job, EventSeverity::Warning, (reason, message.clone())).await;
            }
        }
    }
    mark_counted(context, &pods, &progress).await?;
    expire(context, item, &job, &progress).await
}

/// Marks the finished Pods that the status counts, so that it need not name them any longer.
async fn mark_counted(context: &ControllerContext, pods: &[Pod], progress: &JobProgress) -> Result<(), Error> {
    let Some(unmarked) = &progress.status.uncounted_terminated_pods else { return Ok(()) };
    let uids: Vec<&String> = unmarked.failed.iter().chain(&unmarked.succeeded).flatten().collect();
    for pod in pods.iter().filter(|pod| pod.metadata.uid.as_ref().is_some_and(|uid| uids.contains(&uid))) {
        let patch = json!({ "metadata": { "annotations": { COUNTED: pod.metadata.uid } } });
        let api = context.api::<Pod>(namespace(&pod.metadata));
        match api.patch(name(&pod.metadata), &field_managers::patch_params(), &Patch::Merge(patch)).await {
            Err(why) if !is_not_found(&why) => return Err(why.into()),
            _ => {}
        }
    }
    Ok(())
}

async fn create_pods(context: &ControllerContext, job: &Job, progress: &JobProgress) -> Result<(), Error> {
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let made = progress.create.iter().take(BURST_PODS_MAX).map(|index| {
        let mut pod = from_template(job, &template);
        if let Some(index) = index {
            number(&mut pod, name(&job.metadata), *index);
        }
        async move { Ok::<_, Error>(name(&context.create(&pod).await?.metadata).to_owned()) }
    });
    let made = try_join_all(made).await;
    match &made {
        Ok(names) if names.is_empty() => {}
        Ok(names) => {
            let made = ("SuccessfulCreate", format!("Created pod: {}", names.join(", ")));
            tell(context, job, EventSeverity::Normal, made).await;
        }
        Err(why) => {
            let failed = ("FailedCreate", format!("Error creating: {why}"));
            tell(context, job, EventSeverity::Warning, failed).await;
        }
    }
    made.map(drop)
}

/// The Pod learns which of the numbered completions it is for.
fn number(pod: &mut Pod, job: &str, index: i32) {
    pod.metadata.generate_name = Some(format!("{job}-{index}-"));
    let text = index.to_string();
    let meta = &mut pod.metadata;
    meta.annotations.get_or_insert_default().insert(COMPLETION_INDEX.to_owned(), text.clone());
    meta.labels.get_or_insert_default().insert(COMPLETION_INDEX.to_owned(), text.clone());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{job}-{index}"));
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let env = container.env.get_or_insert_default();
        env.retain(|one| one.name != INDEX_VARIABLE);
        env.push(EnvVar { name: INDEX_VARIABLE.to_owned(), value: Some(text.clone()), value_from: None });
    }
}

/// A finished Job goes when its time is over.
async fn expire(context: &ControllerContext, item: &WorkItem, job: &Job, progress: &JobProgress) -> Result<(), Error> {
    let Some(seconds) = job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished) else { return Ok(()) };
    let Some(finished) = progress.finished_at else { return Ok(()) };
    let left = SignedDuration::from_secs(i64::from(seconds)) - Timestamp::now().duration_since(finished);
    match Duration::try_from(left) {
        Ok(left) if !left.is_zero() => {
            context.queue.add_after_unless_sooner(item, left);
            Ok(())
        }
        _ => delete(context, job, None).await,
    }
}
