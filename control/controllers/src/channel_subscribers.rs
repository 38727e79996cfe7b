//! The Subscriptions of a channel, and the entry of each in its list.

use std::sync::Arc;

use crate::context::ControllerContext;
use crate::dead_letter_sink;
use crate::destination_resolver::DestinationAddress;
use types::messaging::GROUP;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscribable::SubscriberSpec;
use types::messaging::subscription::{Subscription, SubscriptionStatus};
use types::shared::{DeliverySpec, Destination, KReference, controller, name, namespace};

/// Whether a reference names a channel of a kind that is served here.
#[must_use]
pub(crate) fn is_channel(reference: &KReference) -> bool {
    reference.group() == GROUP && ["Channel", "InMemoryChannel"].contains(&reference.kind.as_str())
}

/// Whether `subscription` reads `channel`: by its own name, or by that of the Channel that it backs.
#[must_use]
pub(crate) fn is_subscribed_to(subscription: &Subscription, channel: &InMemoryChannel) -> bool {
    let reference = &subscription.spec.channel;
    let of_channel = || controller(&channel.metadata).is_some_and(|owner| owner.kind == "Channel");
    is_channel(reference)
        && subscription.channel() == (namespace(&channel.metadata), name(&channel.metadata))
        && (reference.kind == "InMemoryChannel" || of_channel())
}

/// Whether the channel has the Subscription as its status says it is.
#[must_use]
pub(crate) fn has_subscription(
    channel: &InMemoryChannel,
    subscription: &Subscription,
    status: &SubscriptionStatus,
) -> bool {
    let uid = subscription.metadata.uid.as_deref().unwrap_or_default();
    channel.spec.subscribers.iter().filter(|entry| entry.uid == uid).any(|known| {
        let sink = if has_sink(&subscription.spec.delivery) {
            dead_letter_sink::address_of(&status.physical_subscription.delivery)
        } else {
            sink_of(known)
        };
        *known == subscriber_entry(subscription, status, channel, sink)
    })
}

/// The entry that a resolved Subscription should have, with the dead letter sink that is its own or its channel's.
pub(crate) fn subscriber_entry(
    subscription: &Subscription,
    status: &SubscriptionStatus,
    channel: &InMemoryChannel,
    sink: Option<DestinationAddress>,
) -> SubscriberSpec {
    let physical = &status.physical_subscription;
    // AMB-30: own options make the channel's void as a whole, but not its dead letter sink.
    let given = |spec: &Option<DeliverySpec>| spec.clone().filter(|spec| *spec != DeliverySpec::default());
    let mut delivery = given(&subscription.spec.delivery).or_else(|| given(&channel.spec.delivery));
    if let Some(DestinationAddress { url, audience, ca_certs }) = sink {
        let sink = Destination { uri: Some(url), audience, ca_certs, reference: None };
        delivery.get_or_insert_default().dead_letter_sink = Some(sink);
    } else if let Some(delivery) = &mut delivery {
        delivery.dead_letter_sink = None;
    }
    SubscriberSpec {
        name: subscription.metadata.name.clone(),
        uid: subscription.metadata.uid.clone().unwrap_or_default(),
        generation: subscription.metadata.generation,
        subscriber_uri: physical.subscriber_uri.clone(),
        subscriber_ca_certs: physical.subscriber_ca_certs.clone(),
        subscriber_audience: physical.subscriber_audience.clone(),
        reply_uri: physical.reply_uri.clone(),
        reply_ca_certs: physical.reply_ca_certs.clone(),
        reply_audience: physical.reply_audience.clone(),
        delivery,
        auth: status.auth.clone(),
    }
}

/// The dead letter sink of an entry.
pub(crate) fn sink_of(entry: &SubscriberSpec) -> Option<DestinationAddress> {
    let Destination { uri, audience, ca_certs, .. } = entry.delivery.as_ref()?.dead_letter_sink.clone()?;
    Some(DestinationAddress { url: uri?, audience, ca_certs })
}

pub(crate) fn has_sink(delivery: &Option<DeliverySpec>) -> bool {
    delivery.as_ref().is_some_and(|delivery| delivery.dead_letter_sink.is_some())
}

/// The Subscriptions that name the channel and are allowed to, of either kind.
pub(crate) fn subscribers_of_channel(context: &ControllerContext, ns: &str, channel: &str) -> Vec<Arc<Subscription>> {
    let mut all = context.caches.subscriptions.all_by_index(&format!("{ns}/{channel}"));
    all.retain(|subscription| context.can_read_namespace(namespace(&subscription.metadata), ns));
    all
}
