//! Revision: declares its instances to the autoscaler, and reports their state.

pub mod data_sources;
pub mod deferred_store;
mod devices;
mod downward_api;
mod error;
pub mod image_puller;
pub mod images;
pub(crate) mod instance_plan;
pub mod plan;
mod plan_inputs;
mod pod_autoscaler;
pub mod policy;
mod ports;
mod probes;
pub mod projected_tokens;
pub mod reconcile;
mod routing;
pub mod scale;
mod security_context;
mod shared_images;
pub(crate) mod state_directory;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::Patch;

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches};
use crate::field_managers;
use crate::informer_cache::RESTORE_BATCH;
use crate::names::revision_key;
use crate::serverless_service::publish_ready;
use crate::work_queue::{ControllerKind, WorkItem};
use error::RevisionError;
use images::{ImageProvider, ImageStates};
use plan::{backend, plan};
use plan_inputs::PlanInputs;
use policy::InstanceRules;
use projected_tokens::ProjectedTokenCache;
use reconcile::status;
use runtime::may_mount;
use types::serving::annotations::CONFIGURATION;
use types::serving::revision::Revision;
use types::shared::{HasConditions, label, name, namespace};

/// A Revision whose service account lacks a policy is reconciled again after this: no watch reports a new role
/// binding.
const GRANT_LOOKED_FOR_AFTER: Duration = Duration::from_secs(5);

const KIND: ControllerKind = ControllerKind::new("Revision");
/// How a Revision is scaled, as its objects show it.
const SCALING: ControllerKind = ControllerKind::of_statuses("Scaling");

/// The configuration of the Revision controller.
#[derive(Debug, Clone)]
pub struct RevisionConfig {
    /// Image references and the commands that they run here.
    pub images: Vec<(String, Vec<String>)>,
    /// Where the images of containers come from; `None`: only mapped images and processes run.
    pub containers: Option<Arc<dyn ImageProvider>>,
    pub instances: InstanceRules,
    /// Instances see the host's `/dev`, and have none of their own.
    pub host_devices: bool,
}

#[derive(Debug)]
pub struct RevisionController {
    config: RevisionConfig,
    /// Tokens that instances read.
    projected_tokens: ProjectedTokenCache,
}

impl RevisionController {
    #[must_use]
    pub fn new(config: RevisionConfig) -> Self {
        Self { config, projected_tokens: ProjectedTokenCache::default() }
    }
}

impl Controller for RevisionController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches::register(self, context, watches);
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(restore(self, context))
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(self, context, item))
    }
}

#[derive(Debug)]
pub struct ScalingController;

impl Controller for ScalingController {
    fn kind(&self) -> ControllerKind {
        SCALING
    }

    /// Nothing: the controller of Revisions enqueues it.
    fn watches<'a>(&'a self, _: &'a ControllerContext, _: &mut Watches<'a>) {}

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile_scaling(context, item))
    }
}

async fn reconcile(controller: &RevisionController, context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let key = revision_key(&item.namespace, &item.name);
    let Some(revision) = context.caches.revisions.get(&item.namespace, &item.name) else {
        context.autoscaler.retire(&key);
        if let Some(images) = &controller.config.containers {
            images.forget(&key);
        }
        context.publisher.remove_backend(&key);
        context.resolver.forget(item);
        controller.projected_tokens.forget(item);
        context.publisher.flush().await;
        return Ok(());
    };
    let (unrunnable, images) = declare(controller, context, item, &revision).await?;
    let mut after = (*revision).clone();
    let mut new_status = status(&revision, unrunnable.as_ref(), &context.autoscaler.status(&key), now());
    if let Some(images) = &images {
        images::set_image_digests(&mut new_status, &revision, images);
    }
    new_status.log_url = context.settings().observability.log_url(revision.metadata.uid.as_deref().unwrap_or_default());
    after.status = Some(new_status);
    context.publisher.flush().await;
    if after.is_ready() && !revision.is_ready() {
        publish_ready(context, &revision).await;
    }
    context.set_transient_status(item, &*revision, &after).await?;
    tell_events(controller, context, &revision, &key).await;
    // Separate, because four writes would otherwise come between a new Revision's instance and its readiness.
    context.enqueue(WorkItem::new(SCALING, &item.namespace, &item.name));
    if let Some(patch) = routing::patch(context, &revision).filter(|_| context.leadership.is_leader()) {
        let api: Api<Revision> = context.api(&item.namespace);
        api.patch(&item.name, &field_managers::patch_params(), &Patch::Merge(patch)).await?;
    }
    Ok(())
}

/// Maintains the Revision's PodAutoscaler and Metric. Reconciled after each reconcile of the Revision, so a status in
/// flight is shown when it arrives.
async fn reconcile_scaling(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(revision) = context.caches.revisions.get(&item.namespace, &item.name) else { return Ok(()) };
    if revision.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let scale = scale::scale(&revision, &context.settings().autoscaler);
    pod_autoscaler::reconcile(context, &revision, &scale).await
}

/// Declares all Revisions at a start, before requests arrive.
async fn restore(controller: &RevisionController, context: &ControllerContext) {
    for some in context.caches.revisions.keys().chunks(RESTORE_BATCH) {
        for revision in context.caches.revisions.get_many(some) {
            let meta = &revision.metadata;
            let item = WorkItem::new(KIND, namespace(meta), name(meta));
            // An object that cannot be restored must not keep the others down; it is reconciled again.
            if let Err(why) = declare(controller, context, &item, &revision).await {
                tracing::warn!(%item, %why, "a Revision cannot be restored yet");
            }
        }
    }
}

/// Records Events about its images, for `kubectl describe`.
async fn tell_events(controller: &RevisionController, context: &ControllerContext, revision: &Revision, key: &str) {
    let Some(images) = controller.config.containers.as_ref().filter(|_| context.leadership.is_leader()) else { return };
    for event in images.take_events(key) {
        context.recorder.record(revision, &event, now()).await;
    }
}

/// Declares the Revision to the autoscaler and to the cores; reports the reason if it cannot run.
async fn declare(
    controller: &RevisionController,
    context: &ControllerContext,
    item: &WorkItem,
    revision: &Revision,
) -> Result<(Option<RevisionError>, Option<ImageStates>), Error> {
    let key = revision_key(namespace(&revision.metadata), name(&revision.metadata));
    let sources = data_sources::load(context, &controller.projected_tokens, item, &revision.spec).await?;
    let (config, is_root) = (&controller.config, may_mount());
    let images =
        images::states(context, config.containers.as_deref().filter(|_| is_root), &config.images, item, revision)
            .await?;
    let allowed = policy::check(context, config.instances, &config.images, revision, is_root).await?;
    let planned = allowed.and_then(|()| {
        plan(
            revision,
            &PlanInputs {
                images: &config.images,
                containers: images.as_ref(),
                sources: &sources,
                reachable: routing::is_reachable(context, revision),
                can_mount: is_root,
                state_root: context.config.state_root.as_deref(),
                host_devices: config.host_devices,
                detect_http2: context.settings().features.is_enabled("autodetect-http2"),
                progress_deadline: context.settings().deployment.progress_deadline,
                default_user: config.instances.usual(namespace(&revision.metadata), is_root),
                guarded: config.instances.guarded,
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
    let parent =
        label(&revision.metadata, CONFIGURATION).and_then(|parent| context.caches.configurations.get(ns, parent));
    let serving = parent.as_ref().and_then(|parent| parent.status.as_ref()?.latest_ready_revision_name.as_deref());
    match serving {
        Some(serving) if serving != own => context.autoscaler.status(&revision_key(ns, serving)).actual,
        _ => 0,
    }
}
