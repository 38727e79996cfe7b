//! InMemoryChannel: a stream of events and the list of its subscribers.
//!
//! Only this controller writes `spec.subscribers`, from the Subscriptions, and only after the cores have applied it: a reader of
//! an entry may rely on it, also after a restart.

mod channel_policy;
pub mod reconcile;

use std::collections::{HashMap, HashSet};

use contract::table::HoldReason;

use crate::api::{Error, now};
use crate::channel_subscribers::{is_channel, subscribers_of_channel};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches, item_of, newest, removed};
use crate::event_type_names::AUTO_CREATE;
use crate::informer_cache::ObjectChange;
use crate::names::channel_path as path;
use crate::publish::StreamSpec;
use crate::sender_policy;
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{status, stream_subscriber, subscriber_entries, suspension};
use types::eventing::stream_options::{BrokerConfigMap, stream_options};
use types::flows::parallel::Parallel;
use types::flows::sequence::Sequence;
use types::messaging::channel::Channel;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscribable::{SubscriberSpec, SubscriberStatus};
use types::messaging::subscription::Subscription;
use types::shared::{is_controlled_by, name, namespace};

const KIND: ControllerKind = ControllerKind::new("InMemoryChannel");

#[derive(Debug)]
pub struct InMemoryChannelController;

impl Controller for InMemoryChannelController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.call::<InMemoryChannel>(move |change| {
            if let Some(gone) = removed(change) {
                unsubscribe_all(context, gone);
            }
        });
        watches.primary::<InMemoryChannel>(KIND);
        watches.enqueue::<Channel, _>(|change| (!same_labels(change)).then(|| item_of(KIND, change)));
        watches.enqueue::<Subscription, _>(|change| newest(change).and_then(|reader| channel_of(reader)));
        watches.enqueue::<Sequence, _>(move |change| channels_of_flow(context, change));
        watches.enqueue::<Parallel, _>(move |change| channels_of_flow(context, change));
        sender_policy::watch::<InMemoryChannel>(context, watches, KIND);
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async move {
            // What is in a channel's spec flowed before the restart, so it flows again at once.
            for channel in context.caches.in_memory_channels.all() {
                publish_channel(context, &channel, &channel.spec.subscribers);
            }
        })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

/// Whether labels are what they were: policies may select by them, and a backing channel has its owner's.
fn same_labels((before, after): ObjectChange<'_, Channel>) -> bool {
    let labels = |channel: Option<&std::sync::Arc<Channel>>| {
        channel.and_then(|channel| channel.metadata.labels.clone()).unwrap_or_default()
    };
    labels(before) == labels(after)
}

/// The channels of a changed flow: it determines their senders.
fn channels_of_flow<K: kube::Resource>(
    context: &ControllerContext,
    (before, after): ObjectChange<'_, K>,
) -> Vec<WorkItem> {
    let Some(flow) = after.or(before).map(|flow| flow.meta()) else { return Vec::new() };
    let all = context.caches.in_memory_channels.list(namespace(flow));
    let of_it = all.iter().filter(|channel| is_controlled_by(&channel.metadata, flow));
    of_it.map(|c| WorkItem::new(KIND, namespace(flow), name(&c.metadata))).collect()
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let path = path(&item.namespace, &item.name);
    context.resolver.forget(item);
    let Some(channel) = context.caches.in_memory_channels.get(&item.namespace, &item.name) else {
        context.publisher.retain_subscribers(&path, |_| false);
        context.publisher.remove_stream(&path);
        context.publisher.flush().await;
        return Ok(());
    };
    let sink = channel.spec.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref());
    let sink = match sink {
        Some(destination) => Some(context.resolve_deliverable(item, destination).await?),
        None => None,
    };
    let now_there = context.caches.in_memory_channels.get(&item.namespace, &item.name);
    if now_there.is_none_or(|there| there.metadata.uid != channel.metadata.uid) {
        return Ok(()); // deleted meanwhile: the next reconcile, triggered by the watch, removes its subscribers
    }
    let readers = subscribers_of_channel(context, &item.namespace, &item.name);
    let subscribers = subscriber_entries(&channel, &readers, sink.as_ref());
    let rules = channel_policy::sender_policy(context, &channel);
    let statuses = publish_channel(context, &channel, &subscribers);
    context.publisher.flush().await;

    let mut written = (*channel).clone();
    written.spec.subscribers = subscribers;
    if written.spec.subscribers != channel.spec.subscribers {
        written = context.replace(&written).await?;
    }
    let mut after = written.clone();
    let reach = context.stream_addresses(&path);
    after.status = Some(status(&written, reach, sink, statuses, &rules, now()));
    context.set_status(&written, &after).await
}

/// Publishes the channel's stream and exactly these subscribers to the cores. Others are removed, including those
/// that no list ever named because the write failed. The statuses report the result for each subscriber.
fn publish_channel(
    context: &ControllerContext,
    channel: &InMemoryChannel,
    subscribers: &[SubscriberSpec],
) -> Vec<SubscriberStatus> {
    let (ns, name) = (namespace(&channel.metadata), name(&channel.metadata));
    let uid = channel.metadata.uid.as_deref().unwrap_or_default();
    // The uid makes a recreated channel start empty.
    let name_in_log = format!("channel/{ns}/{name}/{uid}");
    let path = path(ns, name);
    let options = stream_options(&channel.metadata, &BrokerConfigMap::new());
    let spec = StreamSpec {
        name: name_in_log,
        event_bytes_max: options.event_bytes_max,
        retention: options.retention,
        is_closed: false,
        admission: channel_policy::sender_policy(context, channel).admission(
            context,
            ns,
            &channel_policy::own_accounts(context, channel),
        ),
        reports_event_types: context.settings().event_features.is_enabled(AUTO_CREATE),
        external: None,
        quota: context.quotas.of(ns),
    };
    context.publisher.set_stream(&path, spec);
    let uids: HashSet<&str> = subscribers.iter().map(|entry| entry.uid.as_str()).collect();
    context.publisher.retain_subscribers(&path, |uid| uids.contains(uid));
    let readers = subscribers_of_channel(context, ns, name);
    let by_uid: HashMap<_, _> = readers.iter().filter_map(|one| Some((one.metadata.uid.as_deref()?, &**one))).collect();
    let reported = subscribers.iter().map(|entry| {
        let reader = by_uid.get(entry.uid.as_str());
        let home = reader.map_or(ns, |reader| namespace(&reader.metadata));
        let mut spec = match stream_subscriber(&context.trust_store, entry, &path, home) {
            Ok(spec) => spec,
            Err(why) => return SubscriberStatus::of(entry, Some(&why)),
        };
        spec.hold = reader.map_or(HoldReason::Nothing, |reader| suspension(channel, reader, entry));
        channel_policy::attach_token(context, home, entry, &mut spec);
        context.publisher.set_subscriber(&entry.uid, spec);
        SubscriberStatus::of(entry, None)
    });
    reported.collect()
}

/// Removes the subscribers of a deleted channel.
fn unsubscribe_all(context: &ControllerContext, channel: &InMemoryChannel) {
    let path = path(namespace(&channel.metadata), name(&channel.metadata));
    context.publisher.retain_subscribers(&path, |_| false);
}

/// The channel that a Subscription reads, if it is of a kind that is served here.
fn channel_of(subscription: &Subscription) -> Option<WorkItem> {
    let (ns, channel) = subscription.channel();
    is_channel(&subscription.spec.channel).then(|| WorkItem::new(KIND, ns, channel))
}
