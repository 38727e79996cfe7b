//! Channel: keeps a backing channel of the same name, and shows how that one is.

pub mod reconcile;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::policies::Rules;
use super::queue::{Item, Kind};
use super::service::reconcile::decide;
use super::service::settle;
use super::world::{Error, World, now};
use crate::kinds::eventing::event_policy::Protected;
use crate::kinds::messaging::channel::Channel;
use crate::kinds::messaging::in_memory_channel::InMemoryChannel;
use crate::kinds::shared::{controller, namespace};
use reconcile::{Backing, make_backing, status};

/// The Channel that a backing channel belongs to.
pub fn owner_of(meta: &ObjectMeta) -> Option<Item> {
    let owner = controller(meta).filter(|owner| owner.kind == "Channel")?;
    Some(Item::new(Kind::Channel, namespace(meta), &owner.name))
}

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let Some(channel) = world.channels.get(&item.namespace, &item.name) else { return Ok(()) };
    if channel.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let backing = match make_backing(&channel) {
        Ok(wanted) => {
            let existing = world.in_memory_channels.get(&item.namespace, &item.name);
            // The subscribers in the spec belong to the backing channel's own controller.
            let take =
                |to: &mut InMemoryChannel, from: InMemoryChannel| to.spec.delivery = from.spec.delivery;
            match settle(world, decide(&channel.metadata, existing.as_deref(), wanted, take)).await? {
                Some(backing) => Backing::Ours(Box::new(backing)),
                None => Backing::NotOwned,
            }
        }
        Err(why) => Backing::Impossible(why),
    };
    let rules = Rules::of(world, &[Protected::of::<Channel>(&channel.metadata)]);
    let mut after = (*channel).clone();
    after.status = Some(status(&channel, &backing, &rules, now()));
    world.set_status(&*channel, &after).await
}
