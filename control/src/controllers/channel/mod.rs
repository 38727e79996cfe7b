//! Channel: keeps a backing channel of the same name, and shows how that one is.

pub mod reconcile;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::lacks_kind;
use super::policies::Rules;
use super::queue::{Item, Kind};
use super::service::reconcile::{decide, leave_others};
use super::service::settle;
use super::world::{Error, World, now};
use crate::kinds::eventing::event_policy::Protected;
use crate::kinds::eventing::keeping::KEYS;
use crate::kinds::messaging::channel::Channel;
use crate::kinds::messaging::in_memory_channel::InMemoryChannel;
use crate::kinds::shared::{controller, name, namespace};
use reconcile::{Backing, make_backing, status};

/// What is said where a cluster that is followed has no kind for what stands behind a Channel.
pub(super) const NO_BACKING: &str = "The cluster does not have the kind InMemoryChannel of messaging.knative.dev/v1: \
    install its CustomResourceDefinition; it needs no controller of its own.";

/// The Channel that a backing channel belongs to, or that may wait for its name.
pub fn owner_of(meta: &ObjectMeta) -> Item {
    let owner = controller(meta).filter(|owner| owner.kind == "Channel");
    Item::new(Kind::Channel, namespace(meta), owner.map_or(name(meta), |owner| &owner.name))
}

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let Some(channel) = world.channels.get(&item.namespace, &item.name) else { return Ok(()) };
    if channel.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    // Said in the status, and tried again until the cluster has the kind.
    let mut missing = None;
    let backing = match make_backing(&channel) {
        Ok(mut wanted) => {
            let existing = world.in_memory_channels.get(&item.namespace, &item.name);
            leave_others(&mut wanted.metadata, existing.as_ref().map(|existing| &existing.metadata), &KEYS);
            // The subscribers in the spec belong to the backing channel's own controller.
            let take =
                |to: &mut InMemoryChannel, from: InMemoryChannel| to.spec.delivery = from.spec.delivery;
            match settle(world, decide(&channel.metadata, existing.as_deref(), wanted, take)).await {
                Ok(Some(backing)) => Backing::Ours(Box::new(backing)),
                Ok(None) => Backing::NotOwned,
                // It stays so for as long as the Channel stays as it is: that is told, and no failure to try again.
                Err(Error::Api(kube::Error::Api(refused))) if refused.is_invalid() => {
                    Backing::Refused(refused.message)
                }
                Err(Error::Api(why)) if lacks_kind(&why) => {
                    missing = Some(why);
                    Backing::Impossible(NO_BACKING.into())
                }
                Err(why) => return Err(why),
            }
        }
        Err(why) => Backing::Impossible(why),
    };
    let rules = Rules::of(world, &[Protected::of::<Channel>(&channel.metadata)]);
    let mut after = (*channel).clone();
    after.status = Some(status(&channel, &backing, &rules, now()));
    world.set_status(&*channel, &after).await?;
    missing.map_or(Ok(()), |why| Err(why.into()))
}
