//! Service: keeps a Configuration and a Route of the same name, and shows how they are.

pub mod children;
pub mod reconcile;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::queue::{Item, Kind};
use super::world::{Error, Object, World, now};
use crate::kinds::serving::configuration::Configuration;
use crate::kinds::serving::route::Route;
use crate::kinds::shared::{controller, name, namespace};
use children::{make_configuration, make_route};
use reconcile::{Child, decide, status, taken_name};

/// A changed Service is looked at; so is the owner of a changed child, and who waits for the name of a stranger.
pub fn owner_of(meta: &ObjectMeta) -> Item {
    let owner = controller(meta).filter(|owner| owner.kind == "Service");
    Item::new(Kind::Service, namespace(meta), owner.map_or(name(meta), |owner| &owner.name))
}

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let Some(service) = world.services.get(&item.namespace, &item.name) else { return Ok(()) };
    if service.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let (ns, name, owner) = (&item.namespace, &item.name, &service.metadata);

    let existing = world.configurations.get(ns, name);
    let wanted = make_configuration(&service);
    let take = |to: &mut Configuration, from: Configuration| to.spec = from.spec;
    let configuration = settle(world, decide(owner, existing.as_deref(), wanted, take)).await?;

    let taken = configuration.as_ref().and_then(|own| taken_name(own, |name| world.revisions.get(ns, name)));
    let existing = world.routes.get(ns, name);
    let take = |to: &mut Route, from: Route| to.spec = from.spec;
    let mut decided = decide(owner, existing.as_deref(), make_route(&service), take);
    // Traffic to the name means the Revision that is not there yet, and would reach the stranger.
    if let (Child::Replace(_), Some(_), Some(left)) = (&decided, &taken, existing) {
        decided = Child::Keep((*left).clone());
    }
    let route = settle(world, decided).await?;

    let mut after = (*service).clone();
    after.status = Some(status(&service, configuration.as_ref(), route.as_ref(), taken.as_deref(), now()));
    world.set_status_of(item, &*service, &after).await
}

/// Carries out what was decided; `None` for a child that belongs to somebody else.
pub async fn settle<K: Object>(world: &World, child: Child<K>) -> Result<Option<K>, Error> {
    Ok(match child {
        Child::Create(wanted) => Some(world.create(&wanted).await?),
        Child::Replace(wanted) => Some(world.replace(&wanted).await?),
        Child::Keep(existing) => Some(existing),
        Child::NotOwned => None,
    })
}
