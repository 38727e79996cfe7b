//! The subscribers of a channel, the published entry of each, and the status: values in, values out.

use std::sync::Arc;

use contract::table::{EventFilter, HoldReason, InitialOffset, ReplyTarget};
use jiff::Timestamp;

use crate::channel_subscribers::{has_sink, is_subscribed_to, sink_of, subscriber_entry};
use crate::dead_letter_sink;
use crate::delivery_options::delivery;
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::publish;
use crate::sender_policy::SenderPolicy;
use crate::stream_addresses::{AddressesResult, NO_LISTENER};
use crate::trust_store::TrustStore;
use types::eventing::broker::default_delivery;
use types::messaging::in_memory_channel::{
    ADDRESSABLE, CHANNEL_SERVICE_READY, CONDITIONS, DEAD_LETTER_SINK_RESOLVED, DISPATCHER_READY, ENDPOINTS_READY,
    EVENT_POLICIES_READY, InMemoryChannel, InMemoryChannelStatus, SERVICE_READY,
};
use types::messaging::subscribable::{SubscriberSpec, SubscriberStatus};
use types::messaging::subscription::{REFERENCES_RESOLVED, Subscription, SubscriptionStatus};
use types::shared::{Condition, ConditionStatus, HasConditions};

/// The list of the channel's subscribers, from the namespace's Subscriptions; `sink` is the channel's dead letter
/// sink as it was just resolved, if it has one.
///
/// A Subscription that cannot be resolved now keeps its entry: removing it would lose its position in the stream, and
/// with it the events that it has not had yet.
#[must_use]
pub fn subscriber_entries(
    channel: &InMemoryChannel,
    subscriptions: &[Arc<Subscription>],
    sink: Option<&Result<DestinationAddress, ResolveError>>,
) -> Vec<SubscriberSpec> {
    let readers = subscriptions.iter().filter(|subscription| is_subscribed_to(subscription, channel));
    let entry_of = |subscription: &Arc<Subscription>| {
        let uid = subscription.metadata.uid.as_deref().unwrap_or_default();
        let before = channel.spec.subscribers.iter().find(|entry| entry.uid == uid);
        let is_stale = before.is_some_and(|before| is_stale(before, subscription));
        // A changed one whose sink alone cannot be resolved continues without it: its dead letters wait. One that still waits
        // for the channel's sink gets it here: its options are published before the channel is Ready with them.
        let has_sink_here = lacks_channel_sink(subscription) && matches!(sink, Some(Ok(_)));
        let found =
            resolved(subscription).or_else(|| resolved_addresses(subscription).filter(|_| is_stale || has_sink_here));
        let entry = |status: &SubscriptionStatus| {
            let sink = if has_sink(&subscription.spec.delivery) {
                dead_letter_sink::address_of(&status.physical_subscription.delivery)
            } else {
                inherited_sink(channel, before, sink)
            };
            subscriber_entry(subscription, status, channel, sink)
        };
        found.map(entry).or_else(|| before.cloned())
    };
    readers.filter_map(entry_of).collect()
}

/// The channel's dead letter sink for subscribers without their own. It is in the entry before the channel is Ready
/// with it, so it is not taken from the subscriber's status, which follows. A sink that cannot be resolved now keeps
/// its address, unless the channel names another since.
fn inherited_sink(
    channel: &InMemoryChannel,
    before: Option<&SubscriberSpec>,
    sink: Option<&Result<DestinationAddress, ResolveError>>,
) -> Option<DestinationAddress> {
    match sink? {
        Ok(found) => Some(found.clone()),
        Err(_) => {
            let seen = channel.status.as_ref().and_then(|status| status.base.observed_generation);
            before.filter(|_| seen == channel.metadata.generation).and_then(sink_of)
        }
    }
}

/// Whether all that the Subscription waits for is the address of its channel's dead letter sink.
fn lacks_channel_sink(subscription: &Subscription) -> bool {
    let is_unresolved =
        |c: &Condition| c.status == ConditionStatus::False && c.reason == dead_letter_sink::NOT_RESOLVED;
    !has_sink(&subscription.spec.delivery) && subscription.condition(REFERENCES_RESOLVED).is_some_and(is_unresolved)
}

/// The address of the Subscription, if its status is for its present spec and everything was resolved.
fn resolved(subscription: &Subscription) -> Option<&SubscriptionStatus> {
    let failed = subscription.condition(REFERENCES_RESOLVED).is_some_and(|c| c.status == ConditionStatus::False);
    resolved_addresses(subscription).filter(|_| !failed)
}

/// The same, whatever happened to its dead letter sink.
fn resolved_addresses(subscription: &Subscription) -> Option<&SubscriptionStatus> {
    let (status, spec) = (subscription.status.as_ref()?, &subscription.spec);
    let physical = &status.physical_subscription;
    let is_current = status.base.observed_generation == subscription.metadata.generation;
    let leads = physical.subscriber_uri.is_some() || physical.reply_uri.is_some();
    let is_whole = (spec.subscriber.is_none() || physical.subscriber_uri.is_some())
        && (spec.reply.is_none() || physical.reply_uri.is_some());
    (is_current && leads && is_whole).then_some(status)
}

/// Whether the entry is of an earlier spec. One without a generation is of none: a cluster's definition may drop the field.
fn is_stale(entry: &SubscriberSpec, reader: &Subscription) -> bool {
    entry.generation.is_some() && entry.generation != reader.metadata.generation
}

/// Which of the subscriber's events wait, depending on the destinations in its entry.
#[must_use]
pub fn suspension(channel: &InMemoryChannel, reader: &Subscription, entry: &SubscriberSpec) -> HoldReason {
    // An entry of an earlier spec keeps the place, and does not specify where events are to go now.
    if is_stale(entry, reader) {
        HoldReason::Everything
    } else if !has_sink(&entry.delivery) && (has_sink(&reader.spec.delivery) || has_sink(&channel.spec.delivery)) {
        HoldReason::DeadLetters
    } else {
        HoldReason::Nothing
    }
}

/// An entry as the cores know it; the error says why they cannot.
pub fn stream_subscriber(
    trusts: &TrustStore,
    entry: &SubscriberSpec,
    path: &str,
    ns: &str,
) -> Result<publish::StreamSubscriberSpec, String> {
    let target = |uri: &Option<String>, ca_certs: &Option<String>| {
        let address =
            |url: &String| DestinationAddress { url: url.clone(), audience: None, ca_certs: ca_certs.clone() };
        uri.as_ref().map(|url| trusts.target(&address(url))).transpose()
    };
    let (to, reply) = match (
        target(&entry.subscriber_uri, &entry.subscriber_ca_certs)?,
        target(&entry.reply_uri, &entry.reply_ca_certs)?,
    ) {
        (Some(subscriber), Some(reply)) => (subscriber, ReplyTarget::Send(reply)),
        (Some(subscriber), None) => (subscriber, ReplyTarget::Discard),
        // AMB-21: the reply target in the subscriber's place.
        (None, Some(reply)) => (reply, ReplyTarget::Unasked),
        (None, None) => return Err("neither subscriberUri nor replyUri is set".to_owned()),
    };
    let sink = entry.delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref());
    Ok(publish::StreamSubscriberSpec {
        path: path.to_owned(),
        label: format!("{ns}/{}", entry.name.as_deref().unwrap_or(&entry.uid)),
        filter: EventFilter::Everything,
        target: to,
        reply,
        dead_letter: sink.map(|sink| target(&sink.uri, &sink.ca_certs)).transpose()?.flatten(),
        hold: HoldReason::Nothing,
        delivery: delivery(entry.delivery.as_ref(), Some(&default_delivery())),
        start_position: InitialOffset::Now,
    })
}

/// Entries in `reach` are served already; `sink` is the dead letter sink, if one is wanted.
#[must_use]
pub fn status(
    channel: &InMemoryChannel,
    reach: AddressesResult,
    sink: Option<Result<DestinationAddress, ResolveError>>,
    subscribers: Vec<SubscriberStatus>,
    rules: &SenderPolicy,
    now: Timestamp,
) -> InMemoryChannelStatus {
    let mut status = channel.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    // One program is dispatcher, service and endpoints.
    for part in [SERVICE_READY, ENDPOINTS_READY, CHANNEL_SERVICE_READY, ADDRESSABLE, DISPATCHER_READY] {
        conditions.mark_true(part);
    }
    rules.mark(&mut conditions, EVENT_POLICIES_READY);
    status.policies = rules.applied_policies();
    status.delivery = dead_letter_sink::mark(&mut conditions, DEAD_LETTER_SINK_RESOLVED, sink);
    if let Err(why) = &reach {
        conditions.mark_false(ADDRESSABLE, NO_LISTENER, why);
    }
    let reach = reach.unwrap_or_default().with_audience(rules.audience().as_deref());
    (status.address, status.addresses) = (reach.primary, reach.all);
    status.subscribers = subscribers;
    conditions.finish_into(&mut status.base, channel.metadata.generation);
    status
}

#[cfg(test)]
mod tests {
    use contract::table::BackoffPolicy;
    use serde_json::{Value, json};

    use super::*;

    fn object<K: serde::de::DeserializeOwned>(json: Value) -> K {
        serde_json::from_value(json).unwrap()
    }

    /// A Channel's backing channel with some delivery options.
    fn channel(delivery: Value) -> InMemoryChannel {
        object(json!({
            "metadata": {"name": "c", "namespace": "ns", "ownerReferences": [{
                "apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c", "uid": "u", "controller": true,
            }]},
            "spec": {"delivery": delivery, "subscribers": [{"uid": "1", "subscriberUri": "http://old/"}]},
        }))
    }

    /// A Subscription with some delivery options of its own, that found its subscriber or not.
    fn subscription(uid: &str, delivery: Value, found: &str) -> Subscription {
        let channel = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c"});
        object(json!({
            "metadata": {"name": "s", "namespace": "ns", "uid": uid, "generation": 3},
            "spec": {"channel": channel, "delivery": delivery},
            "status": {
                "observedGeneration": 3,
                "conditions": [{"type": REFERENCES_RESOLVED, "status": found}],
                "physicalSubscription": {"subscriberUri": "http://new/"},
            },
        }))
    }

    fn table_of(own: Value, channels: Value, sink: Option<&str>) -> publish::StreamSubscriberSpec {
        let mut subscription = subscription("1", own, "True");
        let physical = &mut subscription.status.as_mut().unwrap().physical_subscription;
        physical.delivery.dead_letter_sink_uri = sink.map(str::to_owned);
        let found = sink.map(|url| Ok(url.into()));
        let entries = subscriber_entries(&channel(channels), &[Arc::new(subscription)], found.as_ref());
        stream_subscriber(&TrustStore::default(), &entries[0], "/channels/ns/c", "ns").unwrap()
    }

    /// EV-OBJ-19, EV-OBJ-20, EV-OBJ-29, AMB-29, AMB-30: own options, else the channel's, else the default; the sink
    /// is kept from any of them.
    #[test]
    fn delivery_options_are_taken_whole_from_the_nearest_who_gives_any() {
        let none = Value::Null;
        let linear = json!({"retry": 4, "backoffPolicy": "linear", "backoffDelay": "PT1S"});
        let second = std::time::Duration::from_secs(1);

        let default = table_of(none.clone(), none.clone(), None);
        let first = BackoffPolicy::Exponential(second / 5);
        assert_eq!((default.delivery.retries_max, default.delivery.backoff), (10, first));
        let channels = table_of(json!({}), linear.clone(), Some("http://dls/"));
        assert_eq!((channels.delivery.retries_max, channels.delivery.backoff), (4, BackoffPolicy::Linear(second)));
        assert_eq!(&*channels.dead_letter.unwrap().url, "http://dls/");
        let own = table_of(json!({"retry": 0}), linear, Some("http://dls/"));
        assert_eq!((own.delivery.retries_max, own.delivery.backoff), (0, first));
        assert_eq!(&*own.dead_letter.unwrap().url, "http://dls/");
    }

    /// EV-SUB-13, EV-SUB-15, AMB-21.
    #[test]
    fn what_happens_to_replies_depends_on_which_urls_there_are() {
        let replies = |subscriber_uri: Option<&str>, reply_uri: Option<&str>| {
            let uri = |uri: Option<&str>| uri.map(str::to_owned);
            let entry = SubscriberSpec {
                subscriber_uri: uri(subscriber_uri),
                reply_uri: uri(reply_uri),
                ..SubscriberSpec::default()
            };
            let spec = stream_subscriber(&TrustStore::default(), &entry, "/channels/ns/c", "ns")?;
            Ok::<_, String>((spec.target.host.to_string(), spec.reply))
        };
        assert_eq!(replies(Some("http://s/"), None), Ok(("s".into(), ReplyTarget::Discard)));
        let both = replies(Some("http://s/"), Some("http://r/"));
        let to = TrustStore::default().target(&"http://r/".into()).unwrap();
        assert_eq!(both, Ok(("s".into(), ReplyTarget::Send(to))));
        assert_eq!(replies(None, Some("http://r/")), Ok(("r".into(), ReplyTarget::Unasked)));
        assert!(replies(None, None).is_err());
        assert!(replies(Some("/nowhere"), None).unwrap_err().contains("/nowhere"));
    }

    /// EV-SUB-21: an unresolvable subscriber keeps its entry; one that was never resolved gets none.
    #[test]
    fn a_subscriber_that_is_lost_keeps_its_place() {
        let channel = channel(Value::Null);
        let uris = |subscriptions: Vec<Subscription>| {
            let subscriptions: Vec<_> = subscriptions.into_iter().map(Arc::new).collect();
            let entries = subscriber_entries(&channel, &subscriptions, None).into_iter();
            entries.filter_map(|entry| entry.subscriber_uri).collect::<Vec<_>>()
        };
        assert_eq!(uris(vec![subscription("1", Value::Null, "True")]), ["http://new/"]);
        assert_eq!(uris(vec![subscription("1", Value::Null, "False")]), ["http://old/"]);
        let mut stale = subscription("1", Value::Null, "True");
        stale.metadata.generation = Some(4);
        assert_eq!(uris(vec![stale]), ["http://old/"]);
        assert!(uris(vec![subscription("2", Value::Null, "False")]).is_empty());
        assert!(uris(vec![]).is_empty());
        let mut other = subscription("1", Value::Null, "True");
        other.spec.channel.name = "other".into();
        assert!(uris(vec![other]).is_empty());
    }

    /// EV-OBJ-20: the channel is Ready with its sink before the Subscription has seen that.
    #[test]
    fn subscriber_that_waits_for_the_sink_of_its_channel_has_the_new_options() {
        let options = json!({"retry": 7, "deadLetterSink": {"uri": "http://dls/"}});
        let waiting = |reason: &str, own: Value| {
            let mut waiting = subscription("1", own, "False");
            let status = waiting.status.as_mut().unwrap();
            status.base.conditions[0].reason = reason.to_owned();
            let sink = Ok("http://dls/".into());
            let entries = subscriber_entries(&channel(options.clone()), &[Arc::new(waiting)], Some(&sink));
            let delivery = entries[0].delivery.clone();
            let uri = delivery.as_ref().and_then(|delivery| delivery.dead_letter_sink.as_ref()?.uri.clone());
            (entries[0].subscriber_uri.clone().unwrap(), delivery.and_then(|delivery| delivery.retry), uri)
        };
        let new = ("http://new/".to_owned(), Some(7), Some("http://dls/".to_owned()));
        assert_eq!(waiting(dead_letter_sink::NOT_RESOLVED, Value::Null), new);
        let old = ("http://old/".to_owned(), None, None);
        assert_eq!(waiting("SubscriberResolveFailed", Value::Null), old);
        let own = json!({"deadLetterSink": {"uri": "http://gone/"}});
        assert_eq!(waiting(dead_letter_sink::NOT_RESOLVED, own), old, "the sink is its own");
    }

    /// EV-CH-09: the dead letter sink counts for Ready; the dispatcher is for information (COND-16).
    #[test]
    fn a_channel_is_ready_once_its_dead_letter_sink_is_found() {
        let now = Timestamp::from_second(1).unwrap();
        let ready = |sink| {
            let status = status(
                &channel(Value::Null),
                Ok("http://h/channels/ns/c".into()),
                sink,
                Vec::new(),
                &SenderPolicy::default(),
                now,
            );
            let of = |kind: &str| status.base.conditions.iter().find(|c| c.kind == kind).unwrap().clone();
            assert_eq!(of(DISPATCHER_READY).severity, "Info");
            (of("Ready").status, status.delivery.dead_letter_sink_uri)
        };
        assert_eq!(ready(None), (ConditionStatus::True, None));
        assert_eq!(ready(Some(Err(ResolveError("gone".into())))), (ConditionStatus::False, None));
        assert_eq!(ready(Some(Ok("http://d/".into()))), (ConditionStatus::True, Some("http://d/".into())));
    }
}
