//! The wiring of messaging and flows, and of EventType: who is looked at when what changes, and what a start restores.

use crate::context::{ControllerContext, Error};
use crate::informer_cache::{ObjectChange, follow};
use crate::work_queue::{ControllerKind, WorkItem};
use crate::{
    ControllerTask, channel, event_type, fill_cache, flows, in_memory_channel, item_of, newest, sender_policy,
    subscription,
};
use types::messaging::channel::Channel;
use types::shared::{ConditionStatus, HasConditions};

pub async fn list_all(context: &ControllerContext) -> Result<(), Error> {
    fill_cache(context, &context.channels).await?;
    fill_cache(context, &context.in_memory_channels).await?;
    fill_cache(context, &context.subscriptions).await?;
    fill_cache(context, &context.event_types).await?;
    fill_cache(context, &context.event_policies).await?;
    fill_cache(context, &context.sequences).await?;
    fill_cache(context, &context.parallels).await
}

/// What is in an InMemoryChannel's spec flowed before the restart, so it flows again at once.
pub fn restore(context: &ControllerContext) {
    for channel in context.in_memory_channels.all() {
        in_memory_channel::publish_channel(context, &channel, &channel.spec.subscribers);
    }
}

pub fn watches(context: &ControllerContext) -> Vec<ControllerTask<'_>> {
    let look = |items: Vec<WorkItem>| items.into_iter().for_each(|item| context.enqueue(item));
    vec![
        Box::pin(follow(context.source(), &context.channels, move |change| {
            let item = item_of(ControllerKind::Channel, change);
            if !same_labels(change) {
                look(vec![WorkItem { kind: ControllerKind::InMemoryChannel, ..item.clone() }]);
            }
            if readiness_changed(change) {
                look(subscription::subscriptions_of_channel(context, &item.namespace, &item.name));
            }
            look(vec![item]);
        })),
        Box::pin(follow(context.source(), &context.in_memory_channels, move |change| {
            if let (Some(before), after) = change
                && after.is_none_or(|after| after.metadata.uid != before.metadata.uid)
            {
                in_memory_channel::unsubscribe_all(context, before);
            }
            look(subscription::affected_by_channel(context, change));
            if let Some(channel) = newest(change) {
                look(vec![channel::owner_of(&channel.metadata)]);
                look(flows::owner_of(&channel.metadata).into_iter().collect());
            }
            look(vec![item_of(ControllerKind::InMemoryChannel, change)]);
        })),
        Box::pin(follow(context.source(), &context.subscriptions, move |change| {
            if let (Some(before), after) = change
                && after.is_none_or(|after| after.metadata.uid != before.metadata.uid)
            {
                subscription::unsubscribe(context, before);
            }
            if let Some(subscription) = newest(change) {
                look(in_memory_channel::channel_of(subscription).into_iter().collect());
                look(flows::owner_of(&subscription.metadata).into_iter().collect());
            }
            look(vec![item_of(ControllerKind::Subscription, change)]);
        })),
        Box::pin(follow(context.source(), &context.event_types, move |change| {
            if let (Some(before), None) = change {
                event_type::auto_create::on_deleted(context, before);
            }
            look(vec![item_of(ControllerKind::EventType, change)]);
        })),
        Box::pin(follow(context.source(), &context.event_policies, move |change| {
            sender_policy::on_policy_change(context, change);
            look(vec![item_of(ControllerKind::EventPolicy, change)]);
        })),
        Box::pin(follow(context.source(), &context.sequences, move |change| {
            look(flows::channel_items(context, change));
            look(vec![item_of(ControllerKind::Sequence, change)]);
        })),
        Box::pin(follow(context.source(), &context.parallels, move |change| {
            look(flows::channel_items(context, change));
            look(vec![item_of(ControllerKind::Parallel, change)]);
        })),
    ]
}

/// Whether a Channel came, went, or became another one to its Subscriptions.
fn readiness_changed((before, after): ObjectChange<'_, Channel>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    let says =
        |channel: &Channel| channel.ready().map(|ready| (ready.status, ready.reason.clone(), ready.message.clone()));
    says(before) != says(after)
}

/// Whether labels are what they were: policies may select by them, and a backing channel has its owner's.
fn same_labels((before, after): ObjectChange<'_, Channel>) -> bool {
    let labels = |channel: Option<&std::sync::Arc<Channel>>| {
        channel.and_then(|channel| channel.metadata.labels.clone()).unwrap_or_default()
    };
    labels(before) == labels(after)
}

/// Why an object that others need is not ready; `None` if it is.
pub fn not_ready_reason<K: HasConditions>(object: &K) -> Option<String> {
    match object.ready() {
        Some(ready) if ready.status == ConditionStatus::True => None,
        Some(ready) if !ready.reason.is_empty() => Some(format!("{}: {}", ready.reason, ready.message)),
        _ => Some("it has not yet been reconciled".to_owned()),
    }
}
