//! Trigger: subscribes to a Broker, and is ready when every future event will reach its subscriber.

pub mod delivery_options;
pub mod destinations;
pub mod filter;
pub mod reconcile;

use std::sync::Arc;

use dataplane::table::{DeliveryPolicy, DeliveryTarget, HoldReason, InitialOffset, ReplyTarget};

use crate::RESTORE_BATCH;
use crate::broker;
use crate::broker_injection;
use crate::context::{ControllerContext, Error, now};
use crate::dead_letter_sink;
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::oidc_identity::{self, OidcIdentity};
use crate::publish::StreamSubscriberSpec;
use crate::work_queue::{ControllerKind, WorkItem};
use delivery_options::{delivery, delivery_order};
use destinations::{TriggerDestinations, destinations};
use filter::filter;
use reconcile::{BrokerUnavailable, TriggerDependencies, status};
use types::eventing::broker::Broker;
use types::eventing::trigger::{StartPosition, Trigger};
use types::shared::{ConditionStatus, KReference};

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(trigger) = context.triggers.get(&item.namespace, &item.name) else {
        context.publisher.flush().await; // the watch has unsubscribed it
        return Ok(());
    };
    let broker = find_broker(context, &trigger);
    // EV-BRK-06: the controller of the Broker's class also reconciles its Triggers.
    if broker.as_ref().is_ok_and(|broker| !broker.is_ours()) {
        return Ok(());
    }
    // Whether one can be made or not, the Trigger says that it has none; it is tried again after that.
    let made = if broker.is_err() { broker_injection::ensure_for_trigger(context, &trigger).await } else { Ok(()) };
    let read = broker.as_ref();
    let broker = read.ok().map(Arc::as_ref);
    let subscriber = broker::resolve_deliverable(context, item, &trigger.spec.subscriber).await?;
    let sink = resolve_sink(context, item, &trigger, broker).await?;
    let dependency = match trigger.dependency() {
        Some(Ok(reference)) => Some(resolve_dependency(context, item, &reference).await?),
        Some(Err(why)) => Some(Err(ResolveError(why))),
        None => None,
    };
    // One that was deleted meanwhile has been unsubscribed by the watch, which reports it once. And the Broker's
    // previous state must not be reported: its current state triggers this reconcile again.
    if !is_current(context, &trigger) || !is_same_broker(read, find_broker(context, &trigger).as_ref()) {
        return Ok(());
    }
    // The subscription stays while the subscriber cannot be resolved: removing it would lose its position, and with
    // it the events that it has not had yet.
    let sink_found = sink.as_ref().and_then(|sink| sink.as_ref().ok());
    let is_served = match destinations(&trigger, broker, subscriber.as_ref().ok(), sink_found) {
        Some(ways) => subscribe(context, &trigger, broker, &ways),
        None => {
            unsubscribe(context, &trigger);
            false
        }
    };
    let subscribed = is_served && subscriber.is_ok();
    context.publisher.flush().await;
    if broker.is_some_and(|broker| destinations::own_sink(&trigger).is_none() && dead_letter_sink::is_outdated(broker))
    {
        return Ok(()); // its letters wait for a moment: the Broker's next status brings this look again
    }
    let had = trigger.status.as_ref().and_then(|status| status.auth.as_ref());
    let identity = oidc_identity::reconcile_account(context, item, &*trigger, had).await?;

    let mut after = (*trigger).clone();
    let subscribed = subscribed && broker.is_some();
    let read = read.map(Arc::as_ref).map_err(|why| *why);
    let found = TriggerDependencies { broker: read, subscriber, sink, dependency, subscribed, identity };
    after.status = Some(status(&trigger, found, now()));
    context.set_status(&*trigger, &after).await?;
    made
}

/// Whether the object is still the one that was read.
fn is_current(context: &ControllerContext, trigger: &Trigger) -> bool {
    let now = context.triggers.get(namespace(trigger), types::shared::name(&trigger.metadata));
    now.is_some_and(|now| now.metadata.uid == trigger.metadata.uid)
}

/// Whether it is still the Broker, and as it was.
fn is_same_broker(
    then: Result<&Arc<Broker>, &BrokerUnavailable>,
    now: Result<&Arc<Broker>, &BrokerUnavailable>,
) -> bool {
    match (then, now) {
        (Ok(then), Ok(now)) => {
            let version = |broker: &Broker| (broker.metadata.uid.clone(), broker.metadata.resource_version.clone());
            version(then) == version(now)
        }
        (Err(then), Err(now)) => then == now,
        _ => false,
    }
}

/// A Trigger that is gone reads no more.
pub fn unsubscribe(context: &ControllerContext, trigger: &Trigger) {
    context.publisher.remove_subscriber(trigger.metadata.uid.as_deref().unwrap_or_default());
}

/// Subscribes by what the last status says: how things were before a restart.
pub fn restore(context: &ControllerContext) {
    for some in context.triggers.keys().chunks(RESTORE_BATCH) {
        for trigger in context.triggers.get_many(some) {
            let broker = find_broker(context, &trigger).ok();
            if let Some(ways) = destinations(&trigger, broker.as_deref(), None, None) {
                subscribe(context, &trigger, broker.as_deref(), &ways);
            }
        }
    }
}

/// Serves the Triggers that leave something to their Broker by what it says now, so that a Broker which is Ready with
/// something means it for them too. Where their events go is as their last statuses say.
pub async fn resubscribe_inheriting(context: &ControllerContext, broker: &Broker) {
    let meta = &broker.metadata;
    let of_it = format!("{}/{}", types::shared::namespace(meta), types::shared::name(meta));
    for some in context.triggers.keys_by_index(&of_it).chunks(RESTORE_BATCH) {
        let triggers = context.triggers.get_many(some);
        // Options of its own win as a whole, and only the sink may be missing in them.
        for trigger in triggers.iter().filter(|trigger| destinations::own_sink(trigger).is_none()) {
            if let Some(ways) = destinations(trigger, Some(broker), None, None)
                && is_current(context, trigger)
            {
                subscribe(context, trigger, Some(broker), &ways);
            }
        }
        tokio::task::yield_now().await; // do not block other tasks for thousands of Triggers
    }
}

/// Its Broker, if it is there and may be read from there.
fn find_broker(context: &ControllerContext, trigger: &Trigger) -> Result<Arc<Broker>, BrokerUnavailable> {
    let (ns, name) = trigger.broker();
    if !context.can_read_namespace(namespace(trigger), ns) {
        return Err(BrokerUnavailable::OtherNamespace);
    }
    context.brokers.get(ns, name).ok_or(BrokerUnavailable::NotFound)
}

/// By what Triggers are found: namespace and name of the Broker; and their uid, by which the cores know them.
pub fn index_keys(trigger: &Trigger) -> Vec<String> {
    let (ns, name) = trigger.broker();
    std::iter::once(format!("{ns}/{name}")).chain(trigger.metadata.uid.clone()).collect()
}

/// The Broker's Triggers.
pub fn triggers_of_broker(context: &ControllerContext, ns: &str, broker: &str) -> Vec<WorkItem> {
    let triggers = context.triggers.keys_by_index(&format!("{ns}/{broker}"));
    triggers.iter().map(|(ns, name)| WorkItem::new(ControllerKind::Trigger, ns, name)).collect()
}

/// `true` when the cores know it with the next table.
fn subscribe(
    context: &ControllerContext,
    trigger: &Trigger,
    broker: Option<&Broker>,
    ways: &TriggerDestinations,
) -> bool {
    let Some(to) = target(context, trigger, &ways.subscriber) else { return false };
    let (brokers_ns, brokers_name) = trigger.broker();
    if !context.can_read_namespace(namespace(trigger), brokers_ns) {
        unsubscribe(context, trigger);
        return false;
    }
    let (ns, name) = (namespace(trigger), types::shared::name(&trigger.metadata));
    let brokers = broker.and_then(|broker| broker.spec.delivery.as_ref());
    let sink = ways.sink.as_ref().map(|sink| target(context, trigger, sink));
    let hold = match (ways.hold, &sink) {
        (HoldReason::Nothing, Some(None)) => HoldReason::DeadLetters, // named, and not to be spoken to
        (hold, _) => hold,
    };
    let spec = StreamSubscriberSpec {
        path: broker::path(brokers_ns, brokers_name),
        label: format!("{ns}/{name}"),
        filter: filter(&trigger.spec),
        target: to,
        reply: ReplyTarget::Reenter,
        dead_letter: sink.flatten(),
        hold,
        delivery: DeliveryPolicy {
            sequence: delivery_order(trigger),
            ..delivery(trigger.spec.delivery.as_ref(), brokers)
        },
        start_position: match trigger.start_position() {
            Some(Ok(StartPosition::Earliest)) => InitialOffset::Earliest,
            Some(Ok(StartPosition::Time(at))) => InitialOffset::At(u64::try_from(at.as_millisecond()).unwrap_or(0)),
            // Admission lets nothing else in; a cluster may.
            Some(Err(_)) | None => InitialOffset::Now,
        },
    };
    context.publisher.set_subscriber(trigger.metadata.uid.as_deref().unwrap_or_default(), spec);
    true
}

fn target(context: &ControllerContext, trigger: &Trigger, address: &DestinationAddress) -> Option<DeliveryTarget> {
    let parsed = context.trust_store.target(address);
    let mut target = parsed
        .inspect_err(|why| tracing::warn!(trigger = trigger.metadata.name, why, "not a URL to deliver to"))
        .ok()?;
    let identity = OidcIdentity::expected::<Trigger>(context, &trigger.metadata);
    context.access_tokens.attach(&mut target, namespace(trigger), identity.account(), address.audience.as_deref());
    Some(target)
}

/// AMB-30: its own sink, or else the Broker's.
async fn resolve_sink(
    context: &ControllerContext,
    item: &WorkItem,
    trigger: &Trigger,
    broker: Option<&Broker>,
) -> Result<Option<Result<DestinationAddress, ResolveError>>, Error> {
    if let Some(own) = trigger.spec.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref()) {
        return Ok(Some(broker::resolve_deliverable(context, item, own).await?));
    }
    let Some(broker) = broker else { return Ok(None) };
    if broker.spec.delivery.as_ref().is_none_or(|delivery| delivery.dead_letter_sink.is_none()) {
        return Ok(None);
    }
    let status = broker.status.as_ref().filter(|_| !dead_letter_sink::is_outdated(broker));
    let resolved = status.and_then(|status| dead_letter_sink::address_of(&status.delivery));
    Ok(Some(resolved.ok_or_else(|| ResolveError("The Broker's dead letter sink is not resolved.".to_owned()))))
}

async fn resolve_dependency(
    context: &ControllerContext,
    item: &WorkItem,
    reference: &KReference,
) -> Result<Result<(ConditionStatus, String), ResolveError>, Error> {
    let object = context.resolver.read(item, reference).await?;
    Ok(object.map(|object| {
        let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        let seen = object["status"]["observedGeneration"].as_i64();
        let verdict = match ready.and_then(|ready| ready["status"].as_str()) {
            // What it says is of an earlier spec.
            _ if seen.is_some() && seen != object["metadata"]["generation"].as_i64() => ConditionStatus::Unknown,
            Some("True") => ConditionStatus::True,
            Some("False") => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        };
        (verdict, format!("The dependency {} \"{}\" is not ready.", reference.kind, reference.name))
    }))
}

fn namespace(trigger: &Trigger) -> &str {
    types::shared::namespace(&trigger.metadata)
}
