//! The wiring of messaging and flows, and of EventType: who is looked at when what changes, and what a start restores.

use super::cache::{Change, follow};
use super::queue::{Item, Kind};
use super::world::{Error, World};
use super::{
    Task, channel, either, event_type, flows, in_memory_channel, itself, list, policies, subscription,
};
use crate::kinds::messaging::channel::Channel;
use crate::kinds::shared::{HasConditions, Verdict};

pub async fn list_all(world: &World) -> Result<(), Error> {
    list(world, &world.channels).await?;
    list(world, &world.in_memory_channels).await?;
    list(world, &world.subscriptions).await?;
    list(world, &world.event_types).await?;
    list(world, &world.event_policies).await?;
    list(world, &world.sequences).await?;
    list(world, &world.parallels).await
}

/// What is in an InMemoryChannel's spec flowed before the restart, so it flows again at once.
pub fn restore(world: &World) {
    for channel in world.in_memory_channels.all() {
        in_memory_channel::serve(world, &channel, &channel.spec.subscribers);
    }
}

pub fn watches(world: &World) -> Vec<Task<'_>> {
    let look = |items: Vec<Item>| items.into_iter().for_each(|item| world.look_at(item));
    vec![
        Box::pin(follow(world.all(), &world.channels, move |change| {
            let item = itself(Kind::Channel, change);
            if !same_labels(change) {
                look(vec![Item { kind: Kind::InMemoryChannel, ..item.clone() }]);
            }
            if readiness(change) {
                look(subscription::of_channel(world, &item.namespace, &item.name));
            }
            look(vec![item]);
        })),
        Box::pin(follow(world.all(), &world.in_memory_channels, move |change| {
            if let (Some(before), after) = change
                && after.is_none_or(|after| after.metadata.uid != before.metadata.uid)
            {
                in_memory_channel::unsubscribe_all(world, before);
            }
            look(subscription::concerned(world, change));
            if let Some(channel) = either(change) {
                look(vec![channel::owner_of(&channel.metadata)]);
                look(flows::owner_of(&channel.metadata).into_iter().collect());
            }
            look(vec![itself(Kind::InMemoryChannel, change)]);
        })),
        Box::pin(follow(world.all(), &world.subscriptions, move |change| {
            if let (Some(before), after) = change
                && after.is_none_or(|after| after.metadata.uid != before.metadata.uid)
            {
                subscription::unsubscribe(world, before);
            }
            if let Some(subscription) = either(change) {
                look(in_memory_channel::read_by(subscription).into_iter().collect());
                look(flows::owner_of(&subscription.metadata).into_iter().collect());
            }
            look(vec![itself(Kind::Subscription, change)]);
        })),
        Box::pin(follow(world.all(), &world.event_types, move |change| {
            if let (Some(before), None) = change {
                event_type::auto_create::forget(world, before);
            }
            look(vec![itself(Kind::EventType, change)]);
        })),
        Box::pin(follow(world.all(), &world.event_policies, move |change| {
            policies::concerned(world, change);
            look(vec![itself(Kind::EventPolicy, change)]);
        })),
        Box::pin(follow(world.all(), &world.sequences, move |change| {
            look(flows::channels(world, change));
            look(vec![itself(Kind::Sequence, change)]);
        })),
        Box::pin(follow(world.all(), &world.parallels, move |change| {
            look(flows::channels(world, change));
            look(vec![itself(Kind::Parallel, change)]);
        })),
    ]
}

/// Whether a Channel came, went, or became another one to its Subscriptions.
fn readiness((before, after): Change<'_, Channel>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    let says = |channel: &Channel| {
        channel.ready().map(|ready| (ready.status, ready.reason.clone(), ready.message.clone()))
    };
    says(before) != says(after)
}

/// Whether labels are what they were: policies may select by them, and a backing channel has its owner's.
fn same_labels((before, after): Change<'_, Channel>) -> bool {
    let labels = |channel: Option<&std::sync::Arc<Channel>>| {
        channel.and_then(|channel| channel.metadata.labels.clone()).unwrap_or_default()
    };
    labels(before) == labels(after)
}

/// Why an object that others need is not ready; `None` if it is.
pub fn unready<K: HasConditions>(object: &K) -> Option<String> {
    match object.ready() {
        Some(ready) if ready.status == Verdict::True => None,
        Some(ready) if !ready.reason.is_empty() => Some(format!("{}: {}", ready.reason, ready.message)),
        _ => Some("it has not yet been reconciled".to_owned()),
    }
}
