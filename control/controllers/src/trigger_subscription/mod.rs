//! The published subscription of a Trigger: where its events go, and how they are delivered.
//!
//! Both the Trigger's controller and that of its Broker publish it: when a Broker with new delivery options is Ready,
//! they apply to its Triggers.

pub(crate) mod destinations;

use std::sync::Arc;
use std::time::Duration;

use contract::event_store::ConsumerSpec;
use contract::table::{DeliveryOrder, DeliveryPolicy, DeliveryTarget, HoldReason, InitialOffset, ReplyTarget};

use crate::context::ControllerContext;
use crate::delivery_options::{delivery, delivery_order};
use crate::destination_resolver::DestinationAddress;
use crate::event_filters::filter;
use crate::informer_cache::RESTORE_BATCH;
use crate::names::broker_path;
use crate::oidc_identity::OidcIdentity;
use crate::publish::StreamSubscriberSpec;
use crate::work_queue::WorkItem;
use destinations::{TriggerDestinations, destinations};
use types::eventing::broker::Broker;
use types::eventing::trigger::{StartPosition, Trigger};
use types::shared::{name, namespace};

/// A consumer that could not be made is tried again after this.
const CONSUMER_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Why a Trigger has no Broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BrokerUnavailable {
    NotFound,
    /// It is in another namespace, and the operator does not let anybody read from there.
    OtherNamespace,
}

/// `true` when the cores know it with the next table.
pub(crate) fn subscribe(
    context: &ControllerContext,
    trigger: &Trigger,
    broker: Option<&Broker>,
    to_all: &TriggerDestinations,
) -> bool {
    let Some(to) = target(context, trigger, &to_all.subscriber) else { return false };
    let (brokers_ns, brokers_name) = trigger.broker();
    if !context.can_read_namespace(namespace(&trigger.metadata), brokers_ns) {
        unsubscribe(context, trigger);
        return false;
    }
    let (ns, own) = (namespace(&trigger.metadata), name(&trigger.metadata));
    let brokers = broker.and_then(|broker| broker.spec.delivery.as_ref());
    let sink = to_all.sink.as_ref().map(|sink| target(context, trigger, sink));
    let hold = match (to_all.hold, &sink) {
        (HoldReason::Nothing, Some(None)) => HoldReason::DeadLetters, // named, and not to be spoken to
        (hold, _) => hold,
    };
    let spec = StreamSubscriberSpec {
        path: broker_path(brokers_ns, brokers_name),
        label: format!("{ns}/{own}"),
        filter: filter(&trigger.spec),
        target: to,
        reply: ReplyTarget::Reenter,
        dead_letter: sink.flatten(),
        hold,
        delivery: DeliveryPolicy {
            sequence: delivery_order(trigger),
            ..delivery(trigger.spec.delivery.as_ref(), brokers)
        },
        start_position: start_position(trigger),
    };
    context.publisher.set_subscriber(trigger.metadata.uid.as_deref().unwrap_or_default(), spec);
    true
}

/// Makes the consumer of a Trigger whose Broker's events are in an external store, so that it gets every event from now on.
/// `false` if that is not possible now: it is tried again, or when the Broker is ready.
pub(crate) async fn ensure_consumer(context: &ControllerContext, item: &WorkItem, trigger: &Trigger) -> bool {
    let (ns, broker) = trigger.broker();
    let Some((stream, state)) = context.external_streams.get(&broker_path(ns, broker)) else { return true };
    if !matches!(state, Some(Ok(_))) {
        return false;
    }
    let uid = trigger.metadata.uid.as_deref().unwrap_or_default();
    let is_ordered = delivery_order(trigger) != DeliveryOrder::Free;
    match stream.ensure_consumer(ConsumerSpec::of(uid, start_position(trigger), is_ordered)).await {
        Ok(()) => true,
        Err(why) => {
            tracing::warn!(%item, %why, "no consumer of its Broker's stream; tried again");
            context.queue.add_after(item.clone(), CONSUMER_RETRY_INTERVAL);
            false
        }
    }
}

fn start_position(trigger: &Trigger) -> InitialOffset {
    match trigger.start_position() {
        Some(Ok(StartPosition::Earliest)) => InitialOffset::Earliest,
        Some(Ok(StartPosition::Time(at))) => InitialOffset::At(u64::try_from(at.as_millisecond()).unwrap_or(0)),
        // Admission lets nothing else in; a cluster may.
        Some(Err(_)) | None => InitialOffset::Now,
    }
}

/// A Trigger that is gone reads no more.
pub(crate) fn unsubscribe(context: &ControllerContext, trigger: &Trigger) {
    context.publisher.remove_subscriber(trigger.metadata.uid.as_deref().unwrap_or_default());
}

/// Serves the Triggers that leave something to their Broker by what it says now, so that a Broker which is Ready with
/// something means it for them too. Where their events go is as their last statuses say.
pub(crate) async fn resubscribe_inheriting(context: &ControllerContext, broker: &Broker) {
    let meta = &broker.metadata;
    let of_it = format!("{}/{}", namespace(meta), name(meta));
    for some in context.caches.triggers.keys_by_index(&of_it).chunks(RESTORE_BATCH) {
        let triggers = context.caches.triggers.get_many(some);
        // Options of its own win as a whole, and only the sink may be missing in them.
        for trigger in triggers.iter().filter(|trigger| destinations::own_sink(trigger).is_none()) {
            if let Some(to_all) = destinations(trigger, Some(broker), None, None)
                && is_current(context, trigger)
            {
                subscribe(context, trigger, Some(broker), &to_all);
            }
        }
        tokio::task::yield_now().await; // do not block other tasks for thousands of Triggers
    }
}

/// Subscribes by what the last status says: how things were before a restart.
pub(crate) fn restore(context: &ControllerContext) {
    for some in context.caches.triggers.keys().chunks(RESTORE_BATCH) {
        for trigger in context.caches.triggers.get_many(some) {
            let broker = find_broker(context, &trigger).ok();
            if let Some(to_all) = destinations(&trigger, broker.as_deref(), None, None) {
                subscribe(context, &trigger, broker.as_deref(), &to_all);
            }
        }
    }
}

/// Its Broker, if it is there and may be read from there.
pub(crate) fn find_broker(context: &ControllerContext, trigger: &Trigger) -> Result<Arc<Broker>, BrokerUnavailable> {
    let (ns, name) = trigger.broker();
    if !context.can_read_namespace(namespace(&trigger.metadata), ns) {
        return Err(BrokerUnavailable::OtherNamespace);
    }
    context.caches.brokers.get(ns, name).ok_or(BrokerUnavailable::NotFound)
}

/// Whether the object is still the one that was read.
pub(crate) fn is_current(context: &ControllerContext, trigger: &Trigger) -> bool {
    let now = context.caches.triggers.get(namespace(&trigger.metadata), name(&trigger.metadata));
    now.is_some_and(|now| now.metadata.uid == trigger.metadata.uid)
}

pub(crate) fn target(
    context: &ControllerContext,
    trigger: &Trigger,
    address: &DestinationAddress,
) -> Option<DeliveryTarget> {
    let parsed = context.trust_store.target(address);
    let mut target = parsed
        .inspect_err(|why| tracing::warn!(trigger = trigger.metadata.name, why, "not a URL to deliver to"))
        .ok()?;
    let identity = OidcIdentity::expected::<Trigger>(context, &trigger.metadata);
    context.access_tokens.attach(
        &mut target,
        namespace(&trigger.metadata),
        identity.account(),
        address.audience.as_deref(),
    );
    Some(target)
}
