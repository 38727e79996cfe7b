//! Service: keeps a Configuration and a Route of the same name, and shows how they are.

pub mod children;
pub mod reconcile;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::context::{ControllerContext, Error, NamespacedObject, now};
use crate::work_queue::{ControllerKind, WorkItem};
use children::{desired_configuration, desired_route};
use reconcile::{ChildAction, conflicting_revision_name, decide, status};
use types::serving::configuration::Configuration;
use types::serving::route::Route;
use types::shared::{controller, name, namespace};

/// Reconciles a changed Service, the owner of a changed child, and the Service that waits for the name of an object
/// with another owner.
pub fn owner_of(meta: &ObjectMeta) -> WorkItem {
    let owner = controller(meta).filter(|owner| owner.kind == "Service");
    WorkItem::new(ControllerKind::Service, namespace(meta), owner.map_or(name(meta), |owner| &owner.name))
}

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(service) = context.services.get(&item.namespace, &item.name) else { return Ok(()) };
    if service.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let (ns, name, owner) = (&item.namespace, &item.name, &service.metadata);

    let existing = context.configurations.get(ns, name);
    let wanted = desired_configuration(&service);
    let take = |to: &mut Configuration, from: Configuration| to.spec = from.spec;
    let configuration = apply(context, decide(owner, existing.as_deref(), wanted, take)).await?;

    let taken =
        configuration.as_ref().and_then(|own| conflicting_revision_name(own, |name| context.revisions.get(ns, name)));
    let existing = context.routes.get(ns, name);
    let take = |to: &mut Route, from: Route| to.spec = from.spec;
    let mut decided = decide(owner, existing.as_deref(), desired_route(&service), take);
    // Traffic to the name is meant for the Revision that does not exist yet, and would reach the one of another
    // owner.
    if let (ChildAction::Replace(_), Some(_), Some(left)) = (&decided, &taken, existing) {
        decided = ChildAction::Keep((*left).clone());
    }
    let route = apply(context, decided).await?;

    let mut after = (*service).clone();
    after.status = Some(status(&service, configuration.as_ref(), route.as_ref(), taken.as_deref(), now()));
    context.set_transient_status(item, &*service, &after).await
}

/// Carries out the decision; `None` for a child that has another owner.
pub async fn apply<K: NamespacedObject>(
    context: &ControllerContext,
    child: ChildAction<K>,
) -> Result<Option<K>, Error> {
    Ok(match child {
        ChildAction::Create(wanted) => Some(context.create(&wanted).await?),
        ChildAction::Replace(wanted) => Some(context.replace(&wanted).await?),
        ChildAction::Keep(existing) => Some(existing),
        ChildAction::NotOwned => None,
    })
}
