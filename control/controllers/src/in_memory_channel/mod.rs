//! InMemoryChannel: a stream of events and the list of its subscribers.
//!
//! Its `spec.subscribers` is written only here, from the Subscriptions, and only after the cores have it: a reader of
//! an entry there may rely on it, also after a restart.

pub mod reconcile;
mod sender_policy;

use std::collections::{HashMap, HashSet};

use dataplane::table::HoldReason;

use crate::broker::resolve_deliverable;
use crate::context::{ControllerContext, Error, now};
use crate::event_type::AUTO_CREATE;
use crate::publish::StreamSpec;
use crate::stream_addresses;
use crate::subscription;
use crate::work_queue::{ControllerKind, WorkItem};
use reconcile::{is_channel, status, stream_subscriber, subscriber_entries, suspension};
use types::eventing::stream_options::{BrokerConfigMap, stream_options};
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscribable::{SubscriberSpec, SubscriberStatus};
use types::messaging::subscription::Subscription;
use types::shared::{name, namespace};

/// The path of a channel on the events listener.
#[must_use]
pub fn path(namespace: &str, name: &str) -> String {
    format!("/channels/{namespace}/{name}")
}

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let path = path(&item.namespace, &item.name);
    context.resolver.forget(item);
    let Some(channel) = context.in_memory_channels.get(&item.namespace, &item.name) else {
        context.publisher.retain_subscribers(&path, |_| false);
        context.publisher.remove_stream(&path);
        context.publisher.flush().await;
        return Ok(());
    };
    let sink = channel.spec.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref());
    let sink = match sink {
        Some(destination) => Some(resolve_deliverable(context, item, destination).await?),
        None => None,
    };
    let now_there = context.in_memory_channels.get(&item.namespace, &item.name);
    if now_there.is_none_or(|there| there.metadata.uid != channel.metadata.uid) {
        return Ok(()); // deleted meanwhile: the next reconcile, triggered by the watch, removes its subscribers
    }
    let readers = subscription::subscribers_of_channel(context, &item.namespace, &item.name);
    let subscribers = subscriber_entries(&channel, &readers, sink.as_ref());
    let rules = sender_policy::sender_policy(context, &channel);
    let statuses = publish_channel(context, &channel, &subscribers);
    context.publisher.flush().await;

    let mut written = (*channel).clone();
    written.spec.subscribers = subscribers;
    if written.spec.subscribers != channel.spec.subscribers {
        written = context.replace(&written).await?;
    }
    let mut after = written.clone();
    let reach = stream_addresses::stream_addresses(context, &path);
    after.status = Some(status(&written, reach, sink, statuses, &rules, now()));
    context.set_status(&written, &after).await
}

/// Publishes the channel's stream and exactly these subscribers to the cores. Others are removed, including those
/// that no list ever named because the write failed. The statuses report the result for each subscriber.
pub fn publish_channel(
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
        admission: sender_policy::sender_policy(context, channel).admission(
            context,
            ns,
            &sender_policy::own_accounts(context, channel),
        ),
        reports_event_types: context.settings().event_features.is_enabled(AUTO_CREATE),
        quota: context.quotas.of(ns),
    };
    context.publisher.set_stream(&path, spec);
    let uids: HashSet<&str> = subscribers.iter().map(|entry| entry.uid.as_str()).collect();
    context.publisher.retain_subscribers(&path, |uid| uids.contains(uid));
    let readers = subscription::subscribers_of_channel(context, ns, name);
    let by_uid: HashMap<_, _> = readers.iter().filter_map(|one| Some((one.metadata.uid.as_deref()?, &**one))).collect();
    let told = subscribers.iter().map(|entry| {
        let reader = by_uid.get(entry.uid.as_str());
        let home = reader.map_or(ns, |reader| namespace(&reader.metadata));
        let mut spec = match stream_subscriber(&context.trust_store, entry, &path, home) {
            Ok(spec) => spec,
            Err(why) => return SubscriberStatus::of(entry, Some(&why)),
        };
        spec.hold = reader.map_or(HoldReason::Nothing, |reader| suspension(channel, reader, entry));
        sender_policy::attach_token(context, home, entry, &mut spec);
        context.publisher.set_subscriber(&entry.uid, spec);
        SubscriberStatus::of(entry, None)
    });
    told.collect()
}

/// Removes the subscribers of a deleted channel.
pub fn unsubscribe_all(context: &ControllerContext, channel: &InMemoryChannel) {
    let path = path(namespace(&channel.metadata), name(&channel.metadata));
    context.publisher.retain_subscribers(&path, |_| false);
}

/// The channel that a Subscription reads, if it is of a kind that is served here.
pub fn channel_of(subscription: &Subscription) -> Option<WorkItem> {
    let (ns, channel) = subscription.channel();
    is_channel(&subscription.spec.channel).then(|| WorkItem::new(ControllerKind::InMemoryChannel, ns, channel))
}
