//! Configuration: makes one Revision per template, and follows the newest that is ready.

pub mod children;
mod gc;
pub mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};

use crate::context::{ControllerContext, Error, now};
use crate::informer_cache::ObjectChange;
use crate::revision;
use crate::route;
use crate::work_queue::{ControllerKind, WorkItem};
use children::{desired_revision, revision_name};
use gc::collectable;
use reconcile::{LatestRevision, adopt, status};
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::shared::{HasConditions as _, controller, name, namespace};

pub fn owner_of(meta: &ObjectMeta) -> Option<WorkItem> {
    let owner = controller(meta).filter(|owner| owner.kind == "Configuration")?;
    Some(WorkItem::new(ControllerKind::Configuration, namespace(meta), &owner.name))
}

/// The Revisions whose routing may change with their Configuration: the latest created and the latest ready one,
/// before and after the change, and those that are not ready.
pub fn routed_anew(context: &ControllerContext, (before, after): ObjectChange<'_, Configuration>) -> Vec<WorkItem> {
    let either = [before, after].into_iter().flatten();
    let standing = |one: &Arc<Configuration>| (one.metadata.generation, newest(one).map(|n| n.map(str::to_owned)));
    if before.map(standing) == after.map(standing) {
        return Vec::new();
    }
    let mut items = Vec::new();
    for one in either {
        let ns = namespace(&one.metadata);
        let named = newest(one).into_iter().flatten().map(str::to_owned);
        let owned = one.metadata.uid.as_deref().map(|uid| context.revisions.by_index(ns, uid)).unwrap_or_default();
        let unready = owned.iter().filter(|revision| !revision.is_ready()).map(|one| name(&one.metadata).to_owned());
        items.extend(named.chain(unready).map(|name| WorkItem::new(ControllerKind::Revision, ns, &name)));
    }
    items.sort_unstable();
    items.dedup();
    items
}

/// The newest Revision of a Configuration, and the newest that is ready.
pub fn newest(configuration: &Configuration) -> [Option<&str>; 2] {
    let status = configuration.status.as_ref();
    [
        status.and_then(|status| status.latest_created_revision_name.as_deref()),
        status.and_then(|status| status.latest_ready_revision_name.as_deref()),
    ]
}

/// Configurations that may have waited for the name of a deleted Revision: names that authors give begin with the
/// Configuration's.
pub fn waiting_for_name(context: &ControllerContext, gone: &ObjectMeta) -> Vec<WorkItem> {
    let (ns, name) = (namespace(gone), name(gone));
    let parents = name.match_indices('-').map(|(end, _)| &name[..end]);
    let waiting = parents.filter(|parent| {
        let parent = context.configurations.get(ns, parent);
        parent.is_some_and(|parent| parent.spec.template.explicit_name() == Some(name))
    });
    waiting.map(|parent| WorkItem::new(ControllerKind::Configuration, ns, parent)).collect()
}

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(configuration) = context.configurations.get(&item.namespace, &item.name) else { return Ok(()) };
    if configuration.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let latest = ensure_latest(context, item, &configuration).await?;
    let uid = configuration.metadata.uid.as_deref();
    let owned = uid.map(|uid| context.revisions.by_index(&item.namespace, uid)).unwrap_or_default();

    let mut after = (*configuration).clone();
    after.status = Some(status(&configuration, &latest, &owned, now()));
    context.set_transient_status(item, &*configuration, &after).await?;
    collect_garbage(context, &after, owned).await
}

/// Revisions are indexed by the uid of their controller.
pub fn index_keys(revision: &Revision) -> Vec<String> {
    controller(&revision.metadata).map(|owner| owner.uid.clone()).into_iter().collect()
}

/// Interval of the garbage collection of Revisions, which depends on time alone.
const GC_INTERVAL: Duration = Duration::from_secs(60);

/// Age alone makes a Revision collectable, and nothing happens when it does.
pub async fn run_gc(context: &ControllerContext) {
    loop {
        tokio::time::sleep(GC_INTERVAL).await;
        // A Configuration with a single Revision has none to delete.
        let crowds = context.revisions.one_per_shared_key();
        crowds.iter().filter_map(|one| owner_of(&one.metadata)).for_each(|owner| context.enqueue(owner));
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
    let newest = newest(configuration);
    owned.retain(|revision| {
        !newest.contains(&revision.metadata.name.as_deref()) && !revision::is_routed(context, revision)
    });
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
    if let Some(found) = context.revisions.get(&item.namespace, &wanted) {
        return Ok(adopt(configuration, found));
    }
    // The annotation of the Configuration also lists Routes that name its Revisions one by one.
    let parent = Some(name(&configuration.metadata));
    let is_routed = !route::routes_sending_to(context, &item.namespace, &wanted, parent).is_empty();
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
