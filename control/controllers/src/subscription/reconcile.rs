//! Computes a Subscription's status: values in, values out.

use jiff::Timestamp;

use crate::channel_subscribers::has_subscription;
use crate::dead_letter_sink;
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::oidc_identity::OidcIdentity;
use types::conditions::ConditionManager;
use types::messaging::in_memory_channel::InMemoryChannel;
use types::messaging::subscribable::SubscriberStatus;
use types::messaging::subscription::{
    ADDED_TO_CHANNEL, CHANNEL_READY, CONDITIONS, OIDC_IDENTITY_CREATED, PhysicalSubscription, REFERENCES_RESOLVED,
    Subscription, SubscriptionStatus,
};
use types::shared::ConditionStatus;

/// Why nothing comes from a channel that is not there, or not ready.
const NO_CHANNEL: &str = "ChannelReferenceFailed";

/// The references of a Subscription, as found; `None` for those that it does not have.
#[derive(Debug, Clone)]
pub struct SubscriptionDependencies<'a> {
    /// The channel as it is named: there and ready.
    pub channel: Result<(), ResolveError>,
    /// Its backing channel, ready or not.
    pub backing: Option<&'a InMemoryChannel>,
    pub subscriber: Option<Result<DestinationAddress, ResolveError>>,
    pub reply: Option<Result<DestinationAddress, ResolveError>>,
    /// Its own sink or else the channel's.
    pub sink: Option<Result<DestinationAddress, ResolveError>>,
    /// The account that sends its events.
    pub identity: OidcIdentity,
}

#[must_use]
pub fn status(subscription: &Subscription, found: SubscriptionDependencies<'_>, now: Timestamp) -> SubscriptionStatus {
    let mut status = subscription.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);

    mark_references(&mut conditions, &found);
    // EV-SUB-10: what does not resolve leaves no URI behind.
    let found_at = |resolved: Option<Result<DestinationAddress, ResolveError>>| match resolved {
        Some(Ok(DestinationAddress { url, audience, ca_certs })) => (Some(url), audience, ca_certs),
        _ => (None, None, None),
    };
    let (subscriber_uri, subscriber_audience, subscriber_ca_certs) = found_at(found.subscriber);
    let (reply_uri, reply_audience, reply_ca_certs) = found_at(found.reply);
    status.physical_subscription = PhysicalSubscription {
        subscriber_uri,
        subscriber_ca_certs,
        subscriber_audience,
        reply_uri,
        reply_ca_certs,
        reply_audience,
        delivery: found.sink.and_then(Result::ok).map(dead_letter_sink::delivery_status).unwrap_or_default(),
    };
    status.auth = found.identity.status();
    mark_channel(&mut conditions, subscription, &status, (found.backing, &found.channel));
    found.identity.mark(&mut conditions, OIDC_IDENTITY_CREATED);
    conditions.finish_into(&mut status.base, subscription.metadata.generation);
    status
}

/// A destination that is not found is a failure (EV-SUB-08); a channel that is not found is awaited
/// (AMB-20).
fn mark_references(conditions: &mut ConditionManager<'_>, found: &SubscriptionDependencies<'_>) {
    let destinations = [
        (&found.subscriber, "SubscriberResolveFailed", "spec.subscriber"),
        (&found.reply, "ReplyResolveFailed", "spec.reply"),
        (&found.sink, dead_letter_sink::NOT_RESOLVED, "the dead letter sink"),
    ];
    for (destination, reason, what) in destinations {
        if let Some(Err(ResolveError(why))) = destination {
            let why = format!("Failed to resolve {what}: {why}");
            conditions.mark_false(REFERENCES_RESOLVED, reason, &why);
            return;
        }
    }
    match &found.channel {
        Ok(()) => conditions.mark_true(REFERENCES_RESOLVED),
        Err(ResolveError(why)) => conditions.mark_unknown(REFERENCES_RESOLVED, NO_CHANNEL, why),
    }
}

/// EV-SUB-18: an entry is in the channel's spec only once the cores have it, so an entry that says
/// what is resolved now means that all future events come this way. While the channel itself is missing or not
/// ready, what waits for it says that: the newest transition speaks for Ready, and it shall be the cause.
fn mark_channel(
    conditions: &mut ConditionManager<'_>,
    subscription: &Subscription,
    status: &SubscriptionStatus,
    (backing, channel): (Option<&InMemoryChannel>, &Result<(), ResolveError>),
) {
    let missing = channel.as_ref().err().map(|ResolveError(why)| (NO_CHANNEL, why.as_str()));
    let uid = subscription.metadata.uid.as_deref().unwrap_or_default();
    let is_added = backing.is_some_and(|channel| has_subscription(channel, subscription, status));
    if is_added {
        conditions.mark_true(ADDED_TO_CHANNEL);
    } else {
        let own = ("Resolving", "The channel does not have the subscriber as it is now.");
        let (reason, why) = missing.unwrap_or(own);
        conditions.mark_unknown(ADDED_TO_CHANNEL, reason, why);
    }
    // A cluster's definition of the kind knows one of the two names, and drops the other.
    let generation = subscription.metadata.generation;
    let reported = backing.and_then(|channel| channel.status.as_ref()).and_then(|status| {
        let is_now = |reported: &&SubscriberStatus| reported.generation.or(reported.observed_generation) == generation;
        status.subscribers.iter().filter(is_now).find(|reported| reported.uid == uid)
    });
    let reason = "SubscriptionNotMarkedReadyByChannel";
    match reported {
        Some(reported) if reported.ready == ConditionStatus::True => conditions.mark_true(CHANNEL_READY),
        Some(reported) if reported.ready == ConditionStatus::False => {
            conditions.mark_false(CHANNEL_READY, reason, &reported.message);
        }
        _ => {
            let (reason, why) = missing.unwrap_or((reason, "Subscription not marked ready by channel"));
            conditions.mark_unknown(CHANNEL_READY, reason, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use types::shared::{Condition, HasConditions as _};

    fn object<K: serde::de::DeserializeOwned>(json: Value) -> K {
        serde_json::from_value(json).unwrap()
    }

    fn subscription() -> Subscription {
        object(json!({
            "metadata": {"name": "s", "namespace": "ns", "uid": "1", "generation": 2},
            "spec": {"subscriber": {"uri": "http://s/"}},
        }))
    }

    /// A channel that has a subscriber with a URL and a verdict on one of its generations.
    fn backing(url: &str, generation: i64, ready: &str) -> InMemoryChannel {
        object(json!({
            "metadata": {"name": "c", "namespace": "ns"},
            "spec": {"subscribers": [{"name": "s", "uid": "1", "generation": generation, "subscriberUri": url}]},
            "status": {"subscribers": [{"uid": "1", "generation": generation, "ready": ready, "message": "m"}]},
        }))
    }

    fn found(backing: Option<&InMemoryChannel>) -> SubscriptionDependencies<'_> {
        let subscriber = Some(Ok("http://s/".into()));
        SubscriptionDependencies {
            channel: Ok(()),
            backing,
            subscriber,
            reply: None,
            sink: None,
            identity: OidcIdentity::Disabled,
        }
    }

    fn of(found: SubscriptionDependencies<'_>, kind: &str) -> Condition {
        let status = status(&subscription(), found, Timestamp::from_second(1).unwrap());
        status.base.conditions.into_iter().find(|c| c.kind == kind).unwrap()
    }

    fn unresolved(why: &str) -> ResolveError {
        ResolveError(why.to_owned())
    }

    /// EV-SUB-08, EV-SUB-09, EV-SUB-10: each of the three fails by its own name and leaves no URI.
    #[test]
    fn a_destination_that_is_lost_is_a_failure() {
        let lost = || Some(Err(unresolved("Service ns/x not found")));
        let channel = backing("http://s/", 2, "True");
        let good = found(Some(&channel));
        for (found, reason) in [
            (SubscriptionDependencies { subscriber: lost(), ..good.clone() }, "SubscriberResolveFailed"),
            (SubscriptionDependencies { reply: lost(), ..good.clone() }, "ReplyResolveFailed"),
            (SubscriptionDependencies { sink: lost(), ..good.clone() }, "DeadLetterSinkResolveFailed"),
        ] {
            let condition = of(found.clone(), REFERENCES_RESOLVED);
            assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, reason));
            assert!(condition.message.contains("ns/x"));
            assert_eq!(of(found, "Ready").reason, reason);
        }
        let mut before = subscription();
        let all = SubscriptionDependencies { reply: Some(Ok("http://r/".into())), ..good.clone() };
        before.status = Some(status(&before, all, Timestamp::from_second(1).unwrap()));
        let after =
            status(&before, SubscriptionDependencies { reply: lost(), ..good }, Timestamp::from_second(2).unwrap());
        let uris = &after.physical_subscription;
        assert_eq!((uris.subscriber_uri.as_deref(), &uris.reply_uri), (Some("http://s/"), &None));
    }

    /// EV-SUB-05, EV-SUB-06, AMB-20: awaited, not failed, and the reason says what for.
    #[test]
    fn a_channel_that_is_not_ready_is_awaited() {
        let channel = Err(unresolved("Channel ns/c does not exist"));
        let backing = backing("http://s/", 2, "True");
        for backing in [None, Some(&backing)] {
            let ready = of(SubscriptionDependencies { channel: channel.clone(), ..found(backing) }, "Ready");
            assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::Unknown, "ChannelReferenceFailed"));
            assert!(ready.message.contains("ns/c"));
        }
    }

    /// COND-14: of a channel that goes, the parts may be seen to go in different seconds. The newest transition speaks for the
    /// whole, and it has to name the channel still.
    #[test]
    fn a_channel_that_went_is_the_reason_also_after_what_carried_it() {
        let mut subscription = subscription();
        let channel = backing("http://s/", 2, "True");
        let gone = Err(unresolved("Channel ns/c does not exist"));
        for (second, found) in [
            (1, found(Some(&channel))),
            (2, SubscriptionDependencies { channel: gone.clone(), ..found(Some(&channel)) }),
            (3, SubscriptionDependencies { channel: gone, ..found(None) }),
        ] {
            subscription.status = Some(status(&subscription, found, Timestamp::from_second(second).unwrap()));
        }
        let ready = subscription.ready().unwrap();
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::Unknown, "ChannelReferenceFailed"));
        assert!(ready.message.contains("ns/c"));
    }

    /// EV-SUB-18: Ready only for the very URL and generation that the channel has and has taken.
    #[test]
    fn the_channel_has_to_have_the_subscriber_as_it_is_now() {
        let ready = |backing: InMemoryChannel| of(found(Some(&backing)), "Ready").status;
        assert_eq!(ready(backing("http://s/", 2, "True")), ConditionStatus::True);
        let mut observed = backing("http://s/", 2, "True");
        for reported in observed.status.iter_mut().flat_map(|status| &mut status.subscribers) {
            (reported.generation, reported.observed_generation) = (None, reported.generation);
        }
        assert_eq!(ready(observed), ConditionStatus::True, "AMB-37");
        assert_eq!(ready(backing("http://s/", 1, "True")), ConditionStatus::Unknown);
        assert_eq!(ready(backing("http://other/", 2, "True")), ConditionStatus::Unknown);
        assert_eq!(ready(backing("http://s/", 2, "Unknown")), ConditionStatus::Unknown);
        let refused = of(found(Some(&backing("http://s/", 2, "False"))), "Ready");
        assert_eq!((refused.status, refused.message.as_str()), (ConditionStatus::False, "m"));
        assert_eq!(of(found(None), "Ready").status, ConditionStatus::Unknown);
    }
}
