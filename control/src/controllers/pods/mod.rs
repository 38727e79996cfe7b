//! Pods and Deployments: what the fleet runs, shown to Kubernetes' clients. One look is about all instances of
//! a Revision.
//!
//! Only in an API of our own: in a cluster, they are the cluster's.

mod deployment;
mod make;
mod serverless;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;

use super::cache::Change;
use super::either;
use super::queue::{Item, Kind};
use super::world::{Error, World};
use crate::fleet::Seen;
use crate::kinds::serving::annotations::REVISION;
use crate::kinds::serving::revision::Revision;
use crate::kinds::shared::{label, name, namespace};
use crate::runtime::deployment_name;

pub use make::instance_of;

/// Makes the Pods and the Deployment of one Revision what its instances are.
pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    if !world.config.shows_pods {
        return Ok(());
    }
    let Item { namespace: ns, name: revision, .. } = item;
    let owner = world.revisions.get(ns, revision).filter(|owner| owner.metadata.deletion_timestamp.is_none());
    let seen = world.fleet.instances(&format!("{ns}/{revision}"));
    let wanted: Vec<Pod> =
        owner.iter().flat_map(|owner| seen.iter().map(|one| make::pod(owner, one))).collect();
    let there: Vec<Arc<Pod>> = world.pods.having(ns, revision);
    for pod in &there {
        if !wanted.iter().any(|one| name(&one.metadata) == name(&pod.metadata)) {
            world.api::<Pod>(ns).delete(name(&pod.metadata), &DeleteParams::default()).await?;
        }
    }
    for pod in wanted {
        match there.iter().find(|one| name(&one.metadata) == name(&pod.metadata)) {
            None => drop(world.create(&pod).await?),
            Some(before) if before.status != pod.status => drop(world.replace(&pod).await?),
            Some(_) => {}
        }
    }
    match owner {
        Some(owner) => {
            keep_deployment(world, item, &owner, &seen).await?;
            // Asked again: writing took its time, and `show_ready` may have told of more meanwhile.
            let seen = world.fleet.instances(&format!("{ns}/{revision}"));
            serverless::keep(world, &owner, &seen).await
        }
        None => Ok(()), // the Deployment goes with its owner
    }
}

async fn keep_deployment(world: &World, item: &Item, owner: &Revision, seen: &[Seen]) -> Result<(), Error> {
    let Item { namespace: ns, name: revision, .. } = item;
    let before = world.deployments.get(ns, &deployment_name(revision));
    let desired = world.fleet.observe(&format!("{ns}/{revision}")).desired;
    let wanted = deployment::deployment(owner, desired, seen, before.as_deref());
    match before {
        None => drop(world.create(&wanted).await?),
        Some(before) if *before != wanted => drop(world.replace(&wanted).await?),
        Some(_) => {}
    }
    Ok(())
}

/// A Pod that came, changed or went: its Revision's instances are looked at. One that somebody deleted is
/// ended, and the fleet starts another.
pub fn changed(world: &World, change: Change<'_, Pod>) {
    let Some(revision) = either(change).and_then(|pod| label(&pod.metadata, REVISION)) else { return };
    let ns = either(change).map(|pod| namespace(&pod.metadata)).unwrap_or_default();
    if let (Some(gone), None) = change
        && let Some(id) = instance_of(gone)
    {
        world.fleet.restart(&format!("{ns}/{revision}"), id);
    }
    world.look_at(Item::new(Kind::Pods, ns, revision));
}

/// A Deployment that somebody deleted or changed: its Revision's is made again.
pub fn deployment_changed(world: &World, change: Change<'_, Deployment>) {
    let Some(deployment) = either(change) else { return };
    if let Some(revision) = label(&deployment.metadata, REVISION) {
        world.look_at(Item::new(Kind::Pods, namespace(&deployment.metadata), revision));
    }
}

/// Shows who is ready of a Revision that is about to say that it is, because who waited for that looks there next. What does
/// not succeed is done by the next look at its Pods.
pub async fn show_ready(world: &World, revision: &Revision) {
    if world.config.shows_pods && world.duty.is_ours() {
        let seen =
            world.fleet.instances(&format!("{}/{}", namespace(&revision.metadata), name(&revision.metadata)));
        let _ = serverless::keep_ready(world, revision, &seen).await;
    }
}

/// Says where requests are taken in, for clients that ask for upstream's activator. Only they miss it if it fails.
pub async fn announce(world: &World) {
    if world.config.shows_pods
        && let Err(why) = serverless::announce(world).await
    {
        tracing::warn!(%why, "the endpoints of activator-service are not written");
    }
}

/// Pods of an earlier run stand for nothing any more.
pub fn restore(world: &World) {
    for pod in world.pods.all() {
        if let Some(revision) = label(&pod.metadata, REVISION) {
            world.look_at(Item::new(Kind::Pods, namespace(&pod.metadata), revision));
        }
    }
}

/// Pods are found by the Revision that they run.
pub fn words(pod: &Pod) -> Vec<String> {
    label(&pod.metadata, REVISION).map(str::to_owned).into_iter().collect()
}
