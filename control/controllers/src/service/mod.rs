//! Service: maintains a Configuration and a Route of the same name, and reports their state.

pub mod children;
pub mod reconcile;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::owned_child::{ChildAction, apply, decide};
use crate::work_queue::{ControllerKind, WorkItem};
use children::{desired_configuration, desired_route};
use reconcile::{conflicting_revision_name, status};
use types::serving::configuration::Configuration;
use types::serving::route::Route;
use types::serving::service::Service;
use types::shared::{controller, name, namespace};

const KIND: ControllerKind = ControllerKind::new("Service");

#[derive(Debug)]
pub struct ServiceController;

impl Controller for ServiceController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<Service>(KIND);
        watches.enqueue::<Configuration, _>(|change| newest(change).map(|child| owner_of(&child.metadata)));
        watches.enqueue::<Route, _>(|change| newest(change).map(|child| owner_of(&child.metadata)));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

/// The owner of a child, or the Service that waits for the name of an object with another owner.
fn owner_of(meta: &ObjectMeta) -> WorkItem {
    let owner = controller(meta).filter(|owner| owner.kind == "Service");
    WorkItem::new(KIND, namespace(meta), owner.map_or(name(meta), |owner| &owner.name))
}

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(service) = context.caches.services.get(&item.namespace, &item.name) else { return Ok(()) };
    if service.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let (ns, name, owner) = (&item.namespace, &item.name, &service.metadata);

    let existing = context.caches.configurations.get(ns, name);
    let wanted = desired_configuration(&service);
    let take = |to: &mut Configuration, from: Configuration| to.spec = from.spec;
    let configuration = apply(context, decide(owner, existing.as_deref(), wanted, take)).await?;

    let taken = configuration
        .as_ref()
        .and_then(|own| conflicting_revision_name(own, |name| context.caches.revisions.get(ns, name)));
    let existing = context.caches.routes.get(ns, name);
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
