//! Trigger: subscribes to a Broker, and is ready when every future event will reach its subscriber.

pub mod reconcile;

use std::sync::Arc;

use crate::api::{Error, now};
use crate::broker_injection;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, removed};
use crate::dead_letter_sink;
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::oidc_identity;
use crate::trigger_subscription::destinations::{self, destinations};
use crate::trigger_subscription::{self, BrokerUnavailable, find_broker, is_current, subscribe, unsubscribe};
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{TriggerDependencies, status};
use types::eventing::broker::Broker;
use types::eventing::trigger::Trigger;
use types::shared::{ConditionStatus, KReference};

const KIND: ControllerKind = ControllerKind::new("Trigger");

#[derive(Debug)]
pub struct TriggerController;

impl Controller for TriggerController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.call::<Trigger>(move |change| {
            if let Some(gone) = removed(change) {
                unsubscribe(context, gone);
            }
        });
        watches.primary::<Trigger>(KIND);
        watches.enqueue_by_name::<Broker>(move |ns, broker| triggers_of_broker(context, ns, broker));
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async move { trigger_subscription::restore(context) })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(trigger) = context.caches.triggers.get(&item.namespace, &item.name) else {
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
    let subscriber = context.resolve_deliverable(item, &trigger.spec.subscriber).await?;
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
        Some(delivery_targets) => subscribe(context, &trigger, broker, &delivery_targets),
        None => {
            unsubscribe(context, &trigger);
            false
        }
    };
    let is_served = is_served && trigger_subscription::ensure_consumer(context, item, &trigger).await;
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

/// The Broker's Triggers.
fn triggers_of_broker(context: &ControllerContext, ns: &str, broker: &str) -> Vec<WorkItem> {
    let triggers = context.caches.triggers.keys_by_index(&format!("{ns}/{broker}"));
    triggers.iter().map(|(ns, name)| WorkItem::new(KIND, ns, name)).collect()
}

/// AMB-30: its own sink, or else the Broker's.
async fn resolve_sink(
    context: &ControllerContext,
    item: &WorkItem,
    trigger: &Trigger,
    broker: Option<&Broker>,
) -> Result<Option<Result<DestinationAddress, ResolveError>>, Error> {
    if let Some(own) = trigger.spec.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref()) {
        return Ok(Some(context.resolve_deliverable(item, own).await?));
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
