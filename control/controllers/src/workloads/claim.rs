//! PersistentVolumeClaims: each is bound to a folder of this host, which ends with it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimStatus, Pod};

use super::owned_pods::{tell, write_status};
use crate::api::Error;
use crate::claim_folders::{create, remove, root, volume_name};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::event_recorder::EventSeverity;
use crate::informer_cache::InformerCache;
use crate::work_queue::{ControllerKind, WorkItem};
use support::blocking;
use types::persistent_volume_claim::{BOUND, PROTECTION, capacity, requested_storage};
use types::shared::namespace;

const KIND: ControllerKind = ControllerKind::new("PersistentVolumeClaim");
/// How long after an error of the disk the next attempt follows.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Makes and removes the folders of claims.
#[derive(Debug, Default)]
pub struct ClaimController {
    cache: InformerCache<PersistentVolumeClaim>,
}

impl Controller for ClaimController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.cache);
        // The end of a Pod may let a claim end.
        watches.call::<Pod>(move |change| {
            let Some(pod) = newest(change) else { return };
            for name in claims(pod) {
                let known = self.cache.get(namespace(&pod.metadata), name);
                if known.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some()) {
                    context.enqueue(WorkItem::new(KIND, namespace(&pod.metadata), name));
                }
            }
        });
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(&self.cache, context, item))
    }
}

/// The claims that a Pod mounts.
fn claims(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

async fn reconcile(
    cache: &InformerCache<PersistentVolumeClaim>,
    context: &ControllerContext,
    item: &WorkItem,
) -> Result<(), Error> {
    let (Some(claim), Some(root)) = (cache.get(&item.namespace, &item.name), root(context)) else { return Ok(()) };
    let volume = volume_name(&claim);
    if claim.metadata.deletion_timestamp.is_some() {
        let is_used =
            context.caches.pods.list(&item.namespace).iter().any(|pod| claims(pod).any(|name| name == item.name));
        if is_used {
            return Ok(()); // the end of the Pod enqueues it
        }
        let folder = root.join(&volume);
        // A claim may have many files.
        let removed = blocking::run("claim-removal", move || remove(&root, &volume)).await;
        return match removed.and_then(|removed| removed) {
            Ok(()) => release(context, &claim).await,
            Err(why) => {
                let told = ("VolumeFailedDelete", format!("remove {}: {why}", folder.display()));
                tell(context, &*claim, EventSeverity::Warning, told).await;
                context.queue.add_after_unless_sooner(item, RETRY_AFTER);
                Ok(())
            }
        };
    }
    let is_bound = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.as_ref() == Some(&volume));
    if let Err(why) = create(&root, &volume, is_bound) {
        let told = ("ProvisioningFailed", format!("make {}: {why}", root.join(&volume).display()));
        tell(context, &*claim, EventSeverity::Warning, told).await;
        context.queue.add_after_unless_sooner(item, RETRY_AFTER);
        return Ok(());
    }
    let mut bound = (*claim).clone();
    if !is_bound {
        bound.spec.get_or_insert_default().volume_name = Some(volume.clone());
        bound = context.replace(&bound).await?;
        let told = ("ProvisioningSucceeded", format!("made the folder {volume}"));
        tell(context, &*claim, EventSeverity::Normal, told).await;
    }
    let status = PersistentVolumeClaimStatus {
        phase: Some(BOUND.to_owned()),
        access_modes: bound.spec.as_ref().and_then(|spec| spec.access_modes.clone()),
        capacity: requested_storage(&bound).map(capacity),
        ..PersistentVolumeClaimStatus::default()
    };
    if bound.status.as_ref() != Some(&status) {
        write_status(context, &PersistentVolumeClaim { status: Some(status), ..bound }).await?;
    }
    Ok(())
}

/// Lets a deleted claim end.
async fn release(context: &ControllerContext, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let mut free = claim.clone();
    let finalizers = free.metadata.finalizers.get_or_insert_default();
    let before = finalizers.len();
    finalizers.retain(|one| one != PROTECTION);
    if finalizers.len() < before {
        context.replace(&free).await?;
    }
    Ok(())
}
