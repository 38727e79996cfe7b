//! Pods that clients wrote: starts what their manifests say, shows how it is, and ends it with its object.

mod instance;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, Pod, PodStatus};
use tokio::sync::broadcast::error::RecvError;

use super::WorkloadConfig;
use super::limits::PODS_MAX;
use super::owned_pods::{delete, phase, tell, write_status};
use super::pod_runner::{PodLaunch, PodRun, RunPhase};
use crate::api::Error;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest, removed};
use crate::event_recorder::EventSeverity;
use crate::pods::{instance_id, is_derived};
use crate::revision::RevisionConfig;
use crate::revision::instance_plan::{NotRunnable, plan_instance};
use crate::revision::projected_tokens::ProjectedTokenCache;
use crate::work_queue::{ControllerKind, WorkItem};
use runtime::{InstanceSpec, RestartPolicy};
use support::instance_logs::pod_folder;
use types::shared::{name, namespace};

const KIND: ControllerKind = ControllerKind::new("Pod");
/// A Pod that found no place is tried again after this: no event tells that another has ended.
const PLACE_LOOKED_FOR_AFTER: Duration = Duration::from_secs(5);

/// Runs Pods.
#[derive(Debug)]
pub struct PodController {
    config: RevisionConfig,
    workloads: WorkloadConfig,
    tokens: ProjectedTokenCache,
}

impl PodController {
    #[must_use]
    pub fn new(config: RevisionConfig, workloads: WorkloadConfig) -> Self {
        Self { config, workloads, tokens: ProjectedTokenCache::default() }
    }

    /// The Pod is not started again: its images may go, and pulls for it end.
    fn release_images(&self, pod: &Pod) {
        if let Some(images) = &self.config.containers {
            let (ns, name) = (namespace(&pod.metadata), name(&pod.metadata));
            images.forget(&format!("{ns}/{}", pod_folder(name, uid(pod))));
        }
    }
}

impl Controller for PodController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.call::<Pod>(move |change| {
            if let Some(gone) = removed(change).filter(|pod| !is_derived(&pod.metadata)) {
                let (ns, name) = (namespace(&gone.metadata), name(&gone.metadata));
                self.workloads.runner.forget(uid(gone), ns, &pod_folder(name, uid(gone)));
                self.release_images(gone);
            }
            if let Some(pod) = newest(change).filter(|pod| !is_derived(&pod.metadata)) {
                context.enqueue(item(pod));
            }
        });
        watches.task(follow_runs(self, context));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

fn item(pod: &Pod) -> WorkItem {
    WorkItem::new(KIND, namespace(&pod.metadata), name(&pod.metadata))
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Enqueues each Pod whose instance has changed, until the controllers end.
async fn follow_runs(controller: &PodController, context: &ControllerContext) {
    let mut changes = controller.workloads.runner.changes();
    loop {
        match changes.recv().await {
            Ok(uid) => {
                if let Some(run) = controller.workloads.runner.run(&uid) {
                    context.enqueue(WorkItem::new(KIND, &run.namespace, &run.name));
                }
            }
            Err(RecvError::Lagged(_)) => {
                context.caches.pods.all().iter().for_each(|pod| context.enqueue(item(pod)));
            }
            // The runner has ended; the controllers end soon.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

async fn reconcile(controller: &PodController, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let found = context.caches.pods.get(&item.namespace, &item.name).filter(|pod| !is_derived(&pod.metadata));
    let Some(pod) = found else {
        context.resolver.forget(item);
        controller.tokens.forget(item);
        return Ok(());
    };
    let runner = &controller.workloads.runner;
    let run = runner.run(uid(&pod));
    if pod.metadata.deletion_timestamp.is_some() {
        return end(controller, context, &pod, run).await;
    }
    if has_ended(&pod) {
        controller.release_images(&pod);
        return Ok(());
    }
    if let Some(left) = time_left(&pod) {
        if left.is_zero() {
            return exceed_deadline(controller, context, &pod, run).await;
        }
        context.queue.add_after_unless_sooner(item, left);
    }
    match run {
        Some(run) => {
            refresh_volumes(controller, context, item, &pod).await?;
            show(context, &pod, status::status(&pod, Some(&run), None)).await
        }
        None if !controller.workloads.enabled => {
            let why = "the appliance runs with --workloads services-only".to_owned();
            show(context, &pod, status::status(&pod, None, Some(&not_runnable("WorkloadsDisabled", why)))).await
        }
        // It ran before this start of the appliance, and its programs ended with the last one.
        None if instance_id(&pod).is_some() && instance::restart_policy(&pod) == RestartPolicy::Never => {
            show(context, &pod, status::lost(&pod)).await
        }
        None => start(controller, context, item, &pod).await,
    }
}

fn not_runnable(reason: &'static str, message: String) -> NotRunnable {
    NotRunnable { reason, message, is_pulling: false, retry_after: None }
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Until its `activeDeadlineSeconds` are over, if it has a deadline and has started.
fn time_left(pod: &Pod) -> Option<Duration> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let started = pod.status.as_ref()?.start_time.as_ref()?.0;
    let ran = Timestamp::now().duration_since(started);
    Some(Duration::try_from(jiff::SignedDuration::from_secs(seconds) - ran).unwrap_or_default())
}

/// Starts it, or shows why it cannot be started yet.
async fn start(
    controller: &PodController,
    context: &ControllerContext,
    item: &WorkItem,
    pod: &Arc<Pod>,
) -> Result<(), Error> {
    let runner = &controller.workloads.runner;
    if runner.count() >= PODS_MAX {
        context.queue.add_after_unless_sooner(item, PLACE_LOOKED_FOR_AFTER);
        let why = format!("0/1 nodes are available: 1 Too many pods. This host runs {PODS_MAX} at most.");
        return show(context, pod, status::status(pod, None, Some(&not_runnable(status::UNSCHEDULABLE, why)))).await;
    }
    match plan(controller, context, item, pod).await? {
        Ok((spec, images)) => {
            // It may have been deleted meanwhile, and nothing would end what is started for it now.
            let newest = context.caches.pods.get(&item.namespace, &item.name);
            if newest.is_none_or(|newest| newest.metadata.uid != pod.metadata.uid) {
                return Ok(());
            }
            let (main, restarts) = (instance::main_container(pod).to_owned(), status::restarts(pod));
            runner.start(uid(pod), PodLaunch { spec: Arc::new(spec), main, restarts, images: Arc::new(images) });
            let started = ("Started", format!("Started container {}", instance::main_container(pod)));
            tell(context, &**pod, EventSeverity::Normal, started).await;
            Ok(())
        }
        Err(why) => {
            if let Some(after) = why.retry_after {
                context.queue.add_after_unless_sooner(item, after);
            }
            if !why.is_pulling {
                tell(context, &**pod, EventSeverity::Warning, (why.reason, why.message.clone())).await;
            }
            show(context, pod, status::status(pod, None, Some(&why))).await
        }
    }
}

async fn plan(
    controller: &PodController,
    context: &ControllerContext,
    item: &WorkItem,
    pod: &Pod,
) -> Result<Result<(InstanceSpec, BTreeMap<String, String>), NotRunnable>, Error> {
    let revision = instance::as_revision(pod);
    let planned = plan_instance(context, &controller.config, &controller.tokens, item, &revision).await?;
    if let Some(images) = &controller.config.containers {
        for event in images.take_events(&format!("{}/{}", item.namespace, name(&revision.metadata))) {
            context.recorder.record(pod, &event, crate::api::now()).await;
        }
    }
    Ok(planned.map(|(spec, states)| {
        let images = instance::image_ids(&revision, &states.unwrap_or_default());
        (instance::of_pod((*spec).clone(), pod), images)
    }))
}

/// Files of ConfigMaps and Secrets that have changed since it started.
async fn refresh_volumes(
    controller: &PodController,
    context: &ControllerContext,
    item: &WorkItem,
    pod: &Pod,
) -> Result<(), Error> {
    let has_volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).is_some_and(|all| !all.is_empty());
    if has_volumes && let Ok((spec, _)) = plan(controller, context, item, pod).await? {
        controller.workloads.runner.refresh(Arc::new(spec));
    }
    Ok(())
}

/// It is deleted: its containers end first, each within the grace period that its deletion says.
async fn end(
    controller: &PodController,
    context: &ControllerContext,
    pod: &Pod,
    run: Option<PodRun>,
) -> Result<(), Error> {
    let runner = &controller.workloads.runner;
    match run {
        Some(run) if run.phase != RunPhase::Ended => {
            // Also while it ends: another deletion may have shortened its grace period.
            let seconds = pod.metadata.deletion_grace_period_seconds.and_then(|some| u64::try_from(some).ok());
            runner.stop(uid(pod), Duration::from_secs(seconds.unwrap_or_default().max(1)));
            if run.phase != RunPhase::Stopping {
                let killing = ("Killing", format!("Stopping container {}", instance::main_container(pod)));
                tell(context, pod, EventSeverity::Normal, killing).await;
            }
            show(context, pod, status::status(pod, Some(&run), None)).await
        }
        _ => delete(context, pod, Some(0)).await,
    }
}

async fn exceed_deadline(
    controller: &PodController,
    context: &ControllerContext,
    pod: &Pod,
    run: Option<PodRun>,
) -> Result<(), Error> {
    match run {
        Some(run) if run.phase == RunPhase::Stopping => Ok(()),
        Some(run) if run.phase != RunPhase::Ended => {
            let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
            let grace = grace.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or_default();
            controller.workloads.runner.stop(uid(pod), Duration::from_secs(grace));
            Ok(())
        }
        run => show(context, pod, status::deadline_exceeded(pod, run.as_ref())).await,
    }
}

/// Writes a status that is another one.
async fn show(context: &ControllerContext, pod: &Pod, status: PodStatus) -> Result<(), Error> {
    if pod.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let waits = |state: Option<&ContainerState>| {
        state.and_then(|state| state.waiting.as_ref()?.reason.as_deref()) == Some(crate::pods::pod::BACK_OFF)
    };
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let now_waits = all.into_iter().find(|one| waits(one.state.as_ref())).map(|one| one.name.clone());
    let shown = Pod { status: Some(status), ..pod.clone() };
    write_status(context, &shown).await?;
    if let Some(container) = now_waits {
        let why = format!("Back-off restarting failed container {container} in pod {}", name(&pod.metadata));
        tell(context, pod, EventSeverity::Warning, ("BackOff", why)).await;
    }
    Ok(())
}
