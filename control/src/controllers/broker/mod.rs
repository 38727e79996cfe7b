//! Broker: an address whose events the Triggers read.

pub mod reconcile;

use super::queue::{Item, Kind};
use super::reference;
use super::resolve::Unresolved;
use super::world::{Error, World, now};
use crate::kinds::eventing::broker::Broker;
use crate::kinds::eventing::keeping::keeping;
use crate::kinds::shared::{Destination, name};
use crate::publish::StreamSpec;
use reconcile::status;

/// Largest event taken in, in bytes: what upstream's receivers take as well.
pub const EVENT_BYTES_MAX: u32 = 1 << 20;

/// The path of a Broker on the events listener.
#[must_use]
pub fn path(namespace: &str, name: &str) -> String {
    format!("/brokers/{namespace}/{name}")
}

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    let path = path(&item.namespace, &item.name);
    world.resolver.forget(item);
    let Some(broker) = world.brokers.get(&item.namespace, &item.name).filter(|broker| broker.is_ours())
    else {
        world.publisher.remove_stream(&path);
        world.publisher.flow().await;
        return Ok(());
    };
    let sink = broker.spec.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref());
    let sink = match sink {
        Some(destination) => Some(deliverable(world, item, destination).await?),
        None => None,
    };
    serve(world, &broker);
    world.publisher.flow().await;

    let mut after = (*broker).clone();
    let url = format!("{}{path}", world.config.events_url_base.trim_end_matches('/'));
    after.status = Some(status(&broker, &url, sink, now()));
    world.set_status(&*broker, &after).await
}

/// Tells the cores of the Broker's stream.
pub fn serve(world: &World, broker: &Broker) {
    let (ns, name) = (crate::kinds::shared::namespace(&broker.metadata), name(&broker.metadata));
    let uid = broker.metadata.uid.as_deref().unwrap_or_default();
    // The uid makes a recreated Broker start empty.
    let name_in_log = format!("broker/{ns}/{name}/{uid}");
    let spec = StreamSpec {
        name: name_in_log,
        event_bytes_max: EVENT_BYTES_MAX,
        keeping: keeping(&broker.metadata),
        quota: world.quotas.of(ns),
    };
    world.publisher.set_stream(&path(ns, name), spec);
}

/// A destination's URL, if it exists and the data plane can speak to it.
pub async fn deliverable(
    world: &World,
    item: &Item,
    destination: &Destination,
) -> Result<Result<String, Unresolved>, Error> {
    let resolved = world.resolver.resolve(item, destination).await?;
    Ok(resolved.and_then(|url| match reference::target(&url) {
        Ok(_) => Ok(url),
        Err(why) => Err(Unresolved(why)),
    }))
}

/// The Broker's Triggers.
pub fn triggers(world: &World, ns: &str, broker: &str) -> Vec<Item> {
    let triggers = world.triggers.list(ns);
    let of_it = triggers.iter().filter(|trigger| trigger.spec.broker == broker);
    of_it.map(|trigger| Item::new(Kind::Trigger, ns, name(&trigger.metadata))).collect()
}
