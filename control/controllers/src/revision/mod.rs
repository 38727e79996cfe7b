//! Revision: declares its instances to the autoscaler, and reports their state.

pub mod data_sources;
mod devices;
mod downward_api;
pub mod image_puller;
pub mod images;
pub mod plan;
mod pod_autoscaler;
pub mod policy;
mod ports;
mod probes;
pub mod projected_tokens;
pub mod reconcile;
mod routing;
pub mod scale;
mod security_context;

use std::time::Duration;

use kube::Api;
use kube::api::Patch;

use crate::context::{ControllerContext, Error, now};
use crate::work_queue::{ControllerKind, WorkItem};
use crate::{field_managers, pods};
use images::ImageStates;
use plan::{PlanInputs, RevisionError, backend, plan};
use reconcile::status;
pub(crate) use routing::is_routed;
use runtime::may_mount;
use types::serving::annotations::CONFIGURATION;
use types::serving::revision::Revision;
use types::shared::{HasConditions, label, name, namespace};

/// A Revision whose service account lacks a policy is reconciled again after this: no watch reports a new role
/// binding.
const GRANT_LOOKED_FOR_AFTER: Duration = Duration::from_secs(5);

/// The name of a Revision's instances everywhere.
#[must_use]
pub fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let key = key(&item.namespace, &item.name);
    let Some(revision) = context.revisions.get(&item.namespace, &item.name) else {
        context.autoscaler.retire(&key);
        if let Some(images) = &context.config.containers {
            images.forget(&key);
        }
        context.publisher.remove_backend(&key);
        context.resolver.forget(item);
        context.projected_tokens.forget(item);
        context.publisher.flush().await;
        return Ok(());
    };
    let (unrunnable, images) = declare(context, item, &revision).await?;
    let mut after = (*revision).clone();
    let mut told = status(&revision, unrunnable.as_ref(), &context.autoscaler.status(&key), now());
    if let Some(images) = &images {
        images::tell_digests(&mut told, &revision, images);
    }
    told.log_url = context.settings().observability.log_url(revision.metadata.uid.as_deref().unwrap_or_default());
    after.status = Some(told);
    context.publisher.flush().await;
    if after.is_ready() && !revision.is_ready() {
        pods::publish_ready(context, &revision).await;
    }
    context.set_transient_status(item, &*revision, &after).await?;
    tell_events(context, &revision, &key).await;
    // Separate, because four writes would otherwise come between a new Revision's instance and its readiness.
    context.enqueue(WorkItem::new(ControllerKind::Scaling, &item.namespace, &item.name));
    if let Some(patch) = routing::patch(context, &revision).filter(|_| context.leadership.is_leader()) {
        let api: Api<Revision> = context.api(&item.namespace);
        api.patch(&item.name, &field_managers::patch_params(), &Patch::Merge(patch)).await?;
    }
    Ok(())
}

/// Maintains the Revision's PodAutoscaler and Metric. Reconciled after each reconcile of the Revision, so a status in
/// flight is shown when it arrives.
pub async fn reconcile_scaling(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(revision) = context.revisions.get(&item.namespace, &item.name) else { return Ok(()) };
    if revision.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let scale = scale::scale(&revision, &context.settings().autoscaler);
    pod_autoscaler::reconcile(context, &revision, &scale).await
}

/// Declares a Revision at a start, before requests arrive.
pub async fn restore(
    context: &ControllerContext,
    item: &WorkItem,
    revision: &Revision,
) -> Result<Option<RevisionError>, Error> {
    Ok(declare(context, item, revision).await?.0)
}

/// What happened to its images, for `kubectl describe`.
async fn tell_events(context: &ControllerContext, revision: &Revision, key: &str) {
    let Some(images) = context.config.containers.as_ref().filter(|_| context.leadership.is_leader()) else { return };
    for event in images.take_events(key) {
        context.recorder.record(revision, &event, now()).await;
    }
}

/// Declares the Revision to the autoscaler and to the cores; reports the reason if it cannot run.
async fn declare(
    context: &ControllerContext,
    item: &WorkItem,
    revision: &Revision,
) -> Result<(Option<RevisionError>, Option<ImageStates>), Error> {
    let key = key(namespace(&revision.metadata), name(&revision.metadata));
    let sources = data_sources::load(context, item, &revision.spec).await?;
    let (rules, is_root) = (context.config.instances, may_mount());
    let images = images::states(context, item, revision, is_root).await?;
    let allowed = policy::check(context, revision, is_root).await?;
    let planned = allowed.and_then(|()| {
        plan(
            revision,
            &PlanInputs {
                images: &context.config.images,
                containers: images.as_ref(),
                sources: &sources,
                reachable: routing::is_reachable(context, revision),
                can_mount: is_root,
                host_devices: context.config.host_devices,
                detect_http2: context.settings().features.is_enabled("autodetect-http2"),
                progress_deadline: context.settings().deployment.progress_deadline,
                default_user: rules.usual(namespace(&revision.metadata), is_root),
                guarded: rules.guarded,
                autoscaler: &context.settings().autoscaler,
            },
        )
    });
    let unrunnable = match planned {
        Ok(mut plan) => {
            context.publisher.set_backend(&key, backend(revision, None));
            // A Revision that was Ready needs no proof after a restart; it starts with the next request.
            if revision.is_ready() {
                plan.initial_scale = 0;
            } else {
                plan.inherited_scale = inherited_scale(context, revision);
            }
            context.autoscaler.declare(&key, plan);
            None
        }
        // A ConfigMap that was deleted does not end instances: those that run continue as they were started.
        Err(why) if data_sources::is_retryable(&why) && context.autoscaler.status(&key).actual > 0 => None,
        // Requests wait for the image as they would for an instance.
        Err(why) if why.reason == images::RESOLVING => {
            context.publisher.set_backend(&key, backend(revision, None));
            context.queue.add_after_unless_sooner(item, images::PULL_LOOKED_FOR_AFTER);
            Some(why)
        }
        Err(why) => {
            if images::is_image_error(&why) {
                context.queue.add_after_unless_sooner(item, images::FAILED_PULL_LOOKED_FOR_AFTER);
            }
            context.publisher.set_backend(&key, backend(revision, Some(&why)));
            context.autoscaler.retire(&key);
            if policy::may_be_granted(&why) {
                context.queue.add_after_unless_sooner(item, GRANT_LOOKED_FOR_AFTER);
            }
            Some(why)
        }
    };
    Ok((unrunnable, images))
}

/// The number of instances of the Revision that serves now and that `revision` is to replace: traffic moves at once,
/// and the successor must be able to carry it.
fn inherited_scale(context: &ControllerContext, revision: &Revision) -> u32 {
    let (ns, own) = (namespace(&revision.metadata), name(&revision.metadata));
    let parent = label(&revision.metadata, CONFIGURATION).and_then(|parent| context.configurations.get(ns, parent));
    let serving = parent.as_ref().and_then(|parent| parent.status.as_ref()?.latest_ready_revision_name.as_deref());
    match serving {
        Some(serving) if serving != own => context.autoscaler.status(&key(ns, serving)).actual,
        _ => 0,
    }
}
