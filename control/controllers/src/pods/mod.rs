//! Pods and Deployments: the autoscaler's instances, shown to Kubernetes clients. One reconcile covers all instances
//! of a Revision.
//!
//! Only in our own API: in a cluster, Pods and Deployments are the cluster's.

mod deployment;
pub mod instance_streams;
pub(crate) mod pod;
pub mod runtime_usage;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;

use crate::api::Error;
use crate::autoscaler_changes;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, newest};
use crate::informer_cache::ObjectChange;
use crate::names::revision_key;
use crate::serverless_service;
use crate::work_queue::{ControllerKind, WorkItem};
use autoscaler::InstanceStatus;
use runtime::deployment_name;
use types::serving::annotations::REVISION;
use types::serving::revision::Revision;
use types::shared::{controller, label, name, namespace};

pub use pod::instance_id;

const KIND: ControllerKind = ControllerKind::of_statuses("Pods");

#[derive(Debug)]
pub struct PodsController;

impl Controller for PodsController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        if context.config.publishes_pods {
            watches.call::<Pod>(move |change| on_pod_change(context, change));
            watches.call::<Deployment>(move |change| on_deployment_change(context, change));
            watches.task(autoscaler_changes::follow(context, KIND));
        }
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async move {
            restore(context);
            publish_activator_slice(context).await;
        })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

/// Makes the Pods and the Deployment of one Revision what its instances are.
async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    if !context.config.publishes_pods {
        return Ok(());
    }
    let WorkItem { namespace: ns, name: revision, .. } = item;
    let owner = context.caches.revisions.get(ns, revision).filter(|owner| owner.metadata.deletion_timestamp.is_none());
    let seen = context.autoscaler.instances(&revision_key(ns, revision));
    let wanted: Vec<Pod> = owner.iter().flat_map(|owner| seen.iter().map(|one| pod::desired_pod(owner, one))).collect();
    let there: Vec<Arc<Pod>> = context.caches.pods.by_index(ns, revision);
    for pod in &there {
        if !wanted.iter().any(|one| name(&one.metadata) == name(&pod.metadata)) {
            context.api::<Pod>(ns).delete(name(&pod.metadata), &DeleteParams::default()).await?;
        }
    }
    for pod in wanted {
        match there.iter().find(|one| name(&one.metadata) == name(&pod.metadata)) {
            None => drop(context.create(&pod).await?),
            Some(before) if before.status != pod.status => drop(context.replace(&pod).await?),
            Some(_) => {}
        }
    }
    match owner {
        Some(owner) => {
            reconcile_deployment(context, item, &owner, &seen).await?;
            // Read again: writing took its time, and `show_ready` may have written more meanwhile.
            let seen = context.autoscaler.instances(&revision_key(ns, revision));
            serverless_service::reconcile(context, &owner, &seen).await
        }
        None => Ok(()), // the Deployment goes with its owner
    }
}

async fn reconcile_deployment(
    context: &ControllerContext,
    item: &WorkItem,
    owner: &Revision,
    seen: &[InstanceStatus],
) -> Result<(), Error> {
    let WorkItem { namespace: ns, name: revision, .. } = item;
    let before = context.caches.deployments.get(ns, &deployment_name(revision));
    let desired = context.autoscaler.status(&revision_key(ns, revision)).desired;
    let wanted = deployment::desired_deployment(owner, desired, seen, before.as_deref());
    match before {
        None => drop(context.create(&wanted).await?),
        Some(before) if *before != wanted => drop(context.replace(&wanted).await?),
        Some(_) => {}
    }
    Ok(())
}

/// A Pod was created, changed or deleted: reconciles its Revision's Pods. The instance of a deleted Pod is ended, and
/// the autoscaler starts another.
fn on_pod_change(context: &ControllerContext, change: ObjectChange<'_, Pod>) {
    let derived = newest(change).filter(|pod| is_derived(&pod.metadata));
    let Some(revision) = derived.and_then(|pod| label(&pod.metadata, REVISION)) else { return };
    let ns = newest(change).map(|pod| namespace(&pod.metadata)).unwrap_or_default();
    if let (Some(gone), None) = change
        && let Some(id) = instance_id(gone)
    {
        context.autoscaler.restart_instance(&revision_key(ns, revision), id);
    }
    context.enqueue(WorkItem::new(KIND, ns, revision));
}

/// A Deployment was deleted or changed: its Revision's is restored.
fn on_deployment_change(context: &ControllerContext, change: ObjectChange<'_, Deployment>) {
    let Some(deployment) = newest(change).filter(|one| is_derived(&one.metadata)) else { return };
    if let Some(revision) = label(&deployment.metadata, REVISION) {
        context.enqueue(WorkItem::new(KIND, namespace(&deployment.metadata), revision));
    }
}

/// It shows what a Revision runs; others are their authors'.
pub(crate) fn is_derived(meta: &ObjectMeta) -> bool {
    controller(meta).is_some_and(|owner| owner.kind == "Revision")
}

/// Publishes the gateway's address, for clients that ask for upstream's activator. A failure affects only them.
async fn publish_activator_slice(context: &ControllerContext) {
    if context.config.publishes_pods
        && let Err(why) = serverless_service::publish_activator_slice(context).await
    {
        tracing::warn!(%why, "the endpoints of activator-service are not written");
    }
}

/// Pods of an earlier run have no instances any more.
fn restore(context: &ControllerContext) {
    for pod in context.caches.pods.all() {
        if let Some(revision) = label(&pod.metadata, REVISION).filter(|_| is_derived(&pod.metadata)) {
            context.enqueue(WorkItem::new(KIND, namespace(&pod.metadata), revision));
        }
    }
}
