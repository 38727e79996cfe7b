//! Subscription: resolved here, added to its channel by the channel's controller, ready when the channel reports it ready.

pub mod reconcile;

use std::sync::Arc;

use crate::api::{Error, now};
use crate::channel_subscribers::{is_channel, is_subscribed_to, subscribers_of_channel};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest, removed};
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::informer_cache::ObjectChange;
use crate::oidc_identity;
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{SubscriptionDependencies, status};
use types::messaging::channel::Channel;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscription::Subscription;
use types::settings::{CROSS_NAMESPACE, REFERENCE_BY_GROUP};
use types::shared::{ConditionStatus, Destination, HasConditions, name, namespace};

const KIND: ControllerKind = ControllerKind::new("Subscription");

#[derive(Debug)]
pub struct SubscriptionController;

impl Controller for SubscriptionController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.call::<Subscription>(move |change| {
            if let Some(gone) = removed(change) {
                unsubscribe(context, gone);
            }
        });
        watches.primary::<Subscription>(KIND);
        watches.enqueue::<Channel, _>(move |change| {
            let meta = newest(change).filter(|_| readiness_changed(change)).map(|channel| &channel.metadata);
            meta.map(|meta| subscriptions_of_channel(context, namespace(meta), name(meta))).unwrap_or_default()
        });
        watches.enqueue::<InMemoryChannel, _>(move |change| affected_by_channel(context, change));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(subscription) = context.caches.subscriptions.get(&item.namespace, &item.name) else {
        context.publisher.flush().await; // the watch has unsubscribed it; the look at its channel takes it off the list
        return Ok(());
    };
    let spec = &subscription.spec;
    let (ns, named) = subscription.channel();
    let backing = context.caches.in_memory_channels.get(ns, named);
    let backing = backing
        .filter(|channel| context.can_read_namespace(&item.namespace, ns) && is_subscribed_to(&subscription, channel));
    let own = spec.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref());
    let had = subscription.status.as_ref().and_then(|status| status.auth.as_ref());
    let found = SubscriptionDependencies {
        channel: check_channel(context, &subscription, backing.as_deref()),
        backing: backing.as_deref(),
        subscriber: resolve(context, item, spec.subscriber.as_ref()).await?,
        reply: resolve(context, item, spec.reply.as_ref()).await?,
        // AMB-30: its own sink, or else the channel's.
        sink: match own {
            Some(own) => Some(context.resolve_deliverable(item, own).await?),
            None => backing.as_deref().and_then(channel_sink),
        },
        identity: oidc_identity::reconcile_account(context, item, &*subscription, had).await?,
    };
    let mut after = (*subscription).clone();
    after.status = Some(status(&subscription, found, now()));
    context.set_status(&*subscription, &after).await
}

/// A Subscription that is gone reads no more.
fn unsubscribe(context: &ControllerContext, subscription: &Subscription) {
    context.publisher.remove_subscriber(subscription.metadata.uid.as_deref().unwrap_or_default());
}

async fn resolve(
    context: &ControllerContext,
    item: &WorkItem,
    destination: Option<&Destination>,
) -> Result<Option<Result<DestinationAddress, ResolveError>>, Error> {
    Ok(match destination {
        Some(destination) => Some(context.resolve_deliverable(item, destination).await?),
        None => None,
    })
}

/// EV-SUB-05, EV-SUB-06: the channel has to exist and to be ready; the text names it.
fn check_channel(
    context: &ControllerContext,
    subscription: &Subscription,
    backing: Option<&InMemoryChannel>,
) -> Result<(), ResolveError> {
    let (reference, (ns, named)) = (&subscription.spec.channel, subscription.channel());
    let what = format!("{} {ns}/{named}", reference.kind);
    if !context.can_read_namespace(namespace(&subscription.metadata), ns) {
        return Err(ResolveError(format!("{what} is in another namespace: feature {CROSS_NAMESPACE} is off")));
    }
    if reference.explicit_group().is_some() && !context.settings().event_features.is_enabled(REFERENCE_BY_GROUP) {
        return Err(ResolveError(format!("{what}: feature {REFERENCE_BY_GROUP} is off")));
    }
    if !is_channel(reference) {
        return Err(ResolveError(format!("{what} ({}) is not a channel that is served here", reference.api_version)));
    }
    let problem = if reference.kind == "Channel" {
        context.caches.channels.get(ns, named).map(|channel| not_ready_reason(&*channel))
    } else {
        context.caches.in_memory_channels.get(ns, named).map(|channel| not_ready_reason(&*channel))
    };
    match problem {
        None => Err(ResolveError(format!("{what} does not exist"))),
        Some(Some(why)) => Err(ResolveError(format!("{what} is not ready: {why}"))),
        Some(None) if backing.is_none() => Err(ResolveError(format!("{what} has no backing channel"))),
        Some(None) => Ok(()),
    }
}

/// The channel's dead letter sink, if it wants one.
fn channel_sink(channel: &InMemoryChannel) -> Option<Result<DestinationAddress, ResolveError>> {
    channel.spec.delivery.as_ref()?.dead_letter_sink.as_ref()?;
    let found = channel.status.as_ref().and_then(|status| crate::dead_letter_sink::address_of(&status.delivery));
    Some(found.ok_or_else(|| ResolveError("The channel's dead letter sink is not resolved.".to_owned())))
}

/// The Subscriptions that name the channel, of whichever kind it is.
fn subscriptions_of_channel(context: &ControllerContext, ns: &str, channel: &str) -> Vec<WorkItem> {
    subscribers_of_channel(context, ns, channel).iter().map(item).collect()
}

fn item(subscription: &Arc<Subscription>) -> WorkItem {
    WorkItem::new(KIND, namespace(&subscription.metadata), name(&subscription.metadata))
}

/// The Subscriptions to which a change of an InMemoryChannel means something: all of them, or only those
/// whose own entries changed.
fn affected_by_channel(
    context: &ControllerContext,
    (before, after): ObjectChange<'_, InMemoryChannel>,
) -> Vec<WorkItem> {
    let Some(channel) = after.or(before) else { return Vec::new() };
    let ns = namespace(&channel.metadata);
    let all = || subscriptions_of_channel(context, ns, name(&channel.metadata));
    let (Some(before), Some(after)) = (before, after) else { return all() };
    let common = |channel: &InMemoryChannel| {
        let sink = channel.status.as_ref().map(|status| status.delivery.clone());
        let delivery = channel.spec.delivery.clone();
        (channel.metadata.uid.clone(), not_ready_reason(channel), sink, delivery)
    };
    if common(before) != common(after) {
        return all();
    }
    let subscriptions = subscribers_of_channel(context, ns, name(&channel.metadata));
    let changed = |subscription: &&Arc<Subscription>| {
        let uid = subscription.metadata.uid.as_deref().unwrap_or_default();
        entry_and_status(before, uid) != entry_and_status(after, uid)
    };
    subscriptions.iter().filter(changed).map(item).collect()
}

fn entry_and_status<'a>(channel: &'a InMemoryChannel, uid: &str) -> impl PartialEq + use<'a> {
    let entry = channel.spec.subscribers.iter().find(|entry| entry.uid == uid);
    let statuses = channel.status.iter().flat_map(|status| &status.subscribers);
    (entry, statuses.into_iter().find(|status| status.uid == uid))
}

/// Whether a Channel came, went, or became another one to its Subscriptions.
fn readiness_changed((before, after): ObjectChange<'_, Channel>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    let says =
        |channel: &Channel| channel.ready().map(|ready| (ready.status, ready.reason.clone(), ready.message.clone()));
    says(before) != says(after)
}

/// Why an object that others need is not ready; `None` if it is.
fn not_ready_reason<K: HasConditions>(object: &K) -> Option<String> {
    match object.ready() {
        Some(ready) if ready.status == ConditionStatus::True => None,
        Some(ready) if !ready.reason.is_empty() => Some(format!("{}: {}", ready.reason, ready.message)),
        _ => Some("it has not yet been reconciled".to_owned()),
    }
}
