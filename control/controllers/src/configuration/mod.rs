//! Configuration: creates one Revision per template, and tracks the newest that is ready.

pub mod children;
mod gc;
pub mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::latest_revision::{LatestRevision, adopt};
use crate::route_reachability::{is_routed, newest_revisions, routes_sending_to};
use crate::work_queue::{ControllerKind, WorkItem};
use children::{desired_revision, revision_name};
use gc::collectable;
use reconcile::status;
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::shared::{controller, name, namespace};

const KIND: ControllerKind = ControllerKind::new("Configuration");

#[derive(Debug)]
pub struct ConfigurationController;

impl Controller for ConfigurationController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<Configuration>(KIND);
        watches.enqueue::<Revision, _>(move |change| {
            let owner = newest(change).and_then(|revision| owner_of(&revision.metadata));
            let waiting = match change {
                (Some(gone), None) => waiting_for_name(context, &gone.metadata),
                _ => Vec::new(),
            };
            owner.into_iter().chain(waiting).collect::<Vec<_>>()
        });
        watches.task(run_gc(context));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

fn owner_of(meta: &ObjectMeta) -> Option<WorkItem> {
    let owner = controller(meta).filter(|owner| owner.kind == "Configuration")?;
    Some(WorkItem::new(KIND, namespace(meta), &owner.name))
}

/// Configurations that may have waited for the name of a deleted Revision: names that authors give begin with the
/// Configuration's.
fn waiting_for_name(context: &ControllerContext, gone: &ObjectMeta) -> Vec<WorkItem> {
    let (ns, name) = (namespace(gone), name(gone));
    let parents = name.match_indices('-').map(|(end, _)| &name[..end]);
    let waiting = parents.filter(|parent| {
        let parent = context.caches.configurations.get(ns, parent);
        parent.is_some_and(|parent| parent.spec.template.explicit_name() == Some(name))
    });
    waiting.map(|parent| WorkItem::new(KIND, ns, parent)).collect()
}

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(configuration) = context.caches.configurations.get(&item.namespace, &item.name) else { return Ok(()) };
    if configuration.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let latest = ensure_latest(context, item, &configuration).await?;
    let uid = configuration.metadata.uid.as_deref();
    let owned = uid.map(|uid| context.caches.revisions.by_index(&item.namespace, uid)).unwrap_or_default();

    let mut after = (*configuration).clone();
    after.status = Some(status(&configuration, &latest, &owned, now()));
    context.set_transient_status(item, &*configuration, &after).await?;
    collect_garbage(context, &after, owned).await
}

/// Interval of the garbage collection of Revisions, which depends on time alone.
const GC_INTERVAL: Duration = Duration::from_secs(60);

/// Age alone makes a Revision collectable, and nothing happens when it does.
async fn run_gc(context: &ControllerContext) {
    loop {
        tokio::time::sleep(GC_INTERVAL).await;
        // A Configuration with a single Revision has none to delete.
        let owners = context.caches.revisions.one_per_shared_key();
        owners.iter().filter_map(|one| owner_of(&one.metadata)).for_each(|owner| context.enqueue(owner));
    }
}

/// Deletes Revisions that have been unused for long; done at each reconcile, because each new Revision causes one.
async fn collect_garbage(
    context: &ControllerContext,
    configuration: &Configuration,
    mut owned: Vec<Arc<Revision>>,
) -> Result<(), Error> {
    if !context.leadership.is_leader() {
        return Ok(());
    }
    let newest = newest_revisions(configuration);
    owned.retain(|revision| !newest.contains(&revision.metadata.name.as_deref()) && !is_routed(context, revision));
    for gone in collectable(owned, &context.settings().gc, now()) {
        let api: Api<Revision> = context.api(namespace(&gone.metadata));
        let same = Preconditions { uid: gone.metadata.uid.clone(), resource_version: None };
        let how = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
        tracing::info!(revision = name(&gone.metadata), "unused for long enough; it is deleted");
        api.delete(name(&gone.metadata), &how).await?;
    }
    Ok(())
}

async fn ensure_latest(
    context: &ControllerContext,
    item: &WorkItem,
    configuration: &Configuration,
) -> Result<LatestRevision, Error> {
    let wanted = revision_name(configuration);
    if let Some(found) = context.caches.revisions.get(&item.namespace, &wanted) {
        return Ok(adopt(configuration, found));
    }
    // The annotation of the Configuration also lists Routes that name its Revisions one by one.
    let parent = Some(name(&configuration.metadata));
    let is_routed = !routes_sending_to(context, &item.namespace, &wanted, parent).is_empty();
    match context.create(&desired_revision(configuration, is_routed, now())).await {
        Ok(made) => Ok(LatestRevision::Revision(Arc::new(made))),
        Err(Error::Api(kube::Error::Api(refused))) if refused.is_already_exists() => {
            // The cache was behind.
            let found = context.api(&item.namespace).get(&wanted).await?;
            Ok(adopt(configuration, Arc::new(found)))
        }
        Err(Error::Api(kube::Error::Api(refused))) if refused.is_invalid() || refused.is_forbidden() => {
            Ok(LatestRevision::Failed(refused.message.clone()))
        }
        Err(why) => Err(why),
    }
}
