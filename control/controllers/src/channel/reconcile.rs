//! Computes the backing channel and the status of a Channel: values in, values out.

use jiff::Timestamp;

use crate::backing_channel::{backing_of, subscribable};
use crate::owned_child::owner_references;
use crate::sender_policy::SenderPolicy;
use types::conditions::ConditionManager;
use types::eventing::stream_options::CHANNEL_KEYS;
use types::messaging::channel::{
    ADDRESSABLE, BACKING_CHANNEL_READY, CONDITIONS, Channel, ChannelStatus, DEAD_LETTER_SINK_RESOLVED,
    EVENT_POLICIES_READY,
};
use types::messaging::in_memory_channel::InMemoryChannel;
use types::shared::{ConditionStatus, HasConditions, KReference, annotation, name, namespace};

/// The backing channel of a Channel.
#[derive(Debug, Clone)]
pub enum BackingChannel {
    Owned(Box<InMemoryChannel>),
    /// There is one of that name with another owner.
    NotOwned,
    /// The template names something that cannot be made here.
    Invalid(String),
    /// The API does not take what the template makes.
    Rejected(String),
}

/// The backing channel as the Channel wants it; the error says why there can be none.
pub fn desired_backing(channel: &Channel) -> Result<InMemoryChannel, String> {
    let spec = backing_of(&channel.spec)?;
    let mut backing = InMemoryChannel::new(namespace(&channel.metadata), name(&channel.metadata), spec);
    backing.metadata.owner_references = owner_references(channel);
    backing.metadata.annotations = Some(subscribable());
    let kept =
        CHANNEL_KEYS.iter().filter_map(|key| Some(((*key).to_owned(), annotation(&channel.metadata, key)?.to_owned())));
    backing.metadata.annotations.get_or_insert_default().extend(kept);
    Ok(backing)
}

#[must_use]
pub fn status(channel: &Channel, backing: &BackingChannel, rules: &SenderPolicy, now: Timestamp) -> ChannelStatus {
    let mut status = channel.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match backing {
        BackingChannel::Owned(backing) => mirror(&mut conditions, &mut status, backing),
        BackingChannel::NotOwned => {
            let why =
                format!("There is an existing InMemoryChannel \"{}\" that we do not own.", name(&channel.metadata));
            mark_without_backing(&mut conditions, &mut status, "NotOwned", &why);
        }
        BackingChannel::Invalid(why) => {
            mark_without_backing(&mut conditions, &mut status, "ChannelTemplateNotServed", why)
        }
        BackingChannel::Rejected(why) => mark_without_backing(&mut conditions, &mut status, "ChildRejected", why),
    }
    rules.mark(&mut conditions, EVENT_POLICIES_READY);
    status.policies = rules.applied_policies();
    for address in status.address.iter_mut().chain(&mut status.addresses) {
        address.audience = rules.audience();
    }
    conditions.finish_into(&mut status.base, channel.metadata.generation);
    status
}

fn mirror(conditions: &mut ConditionManager<'_>, status: &mut ChannelStatus, backing: &InMemoryChannel) {
    let waits = "The backing channel has not yet been reconciled.";
    match backing.ready() {
        None => conditions.mark_unknown(BACKING_CHANNEL_READY, "BackingChannelNotConfigured", waits),
        Some(ready) => match ready.status {
            ConditionStatus::True => conditions.mark_true(BACKING_CHANNEL_READY),
            ConditionStatus::False => {
                conditions.mark_false(BACKING_CHANNEL_READY, reason(&ready.reason), &ready.message)
            }
            ConditionStatus::Unknown => conditions.mark_unknown(BACKING_CHANNEL_READY, &ready.reason, &ready.message),
        },
    }
    let from = backing.status.clone().unwrap_or_default();
    match &from.address {
        Some(address) if address.url.is_some() => conditions.mark_true(ADDRESSABLE),
        _ => conditions.mark_unknown(ADDRESSABLE, "EmptyAddress", "The backing channel has no address yet."),
    }
    match backing.ready().and_then(|_| backing.condition(DEAD_LETTER_SINK_RESOLVED)) {
        None => conditions.mark_unknown(DEAD_LETTER_SINK_RESOLVED, "BackingChannelNotConfigured", waits),
        Some(sink) => match sink.status {
            ConditionStatus::True => {
                conditions.mark_true_with_reason(DEAD_LETTER_SINK_RESOLVED, &sink.reason, &sink.message)
            }
            ConditionStatus::False => {
                conditions.mark_false(DEAD_LETTER_SINK_RESOLVED, reason(&sink.reason), &sink.message);
            }
            ConditionStatus::Unknown => conditions.mark_unknown(DEAD_LETTER_SINK_RESOLVED, &sink.reason, &sink.message),
        },
    }
    (status.address, status.addresses) = (from.address, from.addresses);
    (status.subscribers, status.delivery) = (from.subscribers, from.delivery);
    status.channel = Some(KReference {
        kind: backing.kind.clone(),
        api_version: backing.api_version.clone(),
        name: name(&backing.metadata).to_owned(),
        namespace: backing.metadata.namespace.clone(),
        ..KReference::default()
    });
}

fn mark_without_backing(conditions: &mut ConditionManager<'_>, status: &mut ChannelStatus, reason: &str, why: &str) {
    for condition in [BACKING_CHANNEL_READY, ADDRESSABLE, DEAD_LETTER_SINK_RESOLVED] {
        conditions.mark_false(condition, reason, why);
    }
    *status = ChannelStatus { base: std::mem::take(&mut status.base), ..ChannelStatus::default() };
}

fn reason(found: &str) -> &str {
    if found.is_empty() { "BackingChannelFailed" } else { found }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use types::messaging::channel::ChannelSpec;
    use types::messaging::channel::ChannelTemplate;

    use super::*;
    use types::messaging::in_memory_channel::InMemoryChannelStatus;
    use types::shared::{Addressable, Condition, DeliverySpec, Status};

    fn channel(template: ChannelTemplate) -> Channel {
        let spec = ChannelSpec { channel_template: Some(template), ..ChannelSpec::default() };
        Channel::new("ns", "c", spec)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ready(status: &ChannelStatus) -> &Condition {
        status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap()
    }

    fn backing(verdict: ConditionStatus) -> InMemoryChannel {
        let mut backing = desired_backing(&channel(ChannelTemplate::in_memory())).unwrap();
        let condition = |kind: &str, status| Condition { kind: kind.into(), status, ..Condition::default() };
        let url = Some("http://h/channels/ns/c".to_owned());
        backing.status = Some(InMemoryChannelStatus {
            base: Status {
                conditions: vec![
                    condition("Ready", verdict),
                    condition(DEAD_LETTER_SINK_RESOLVED, ConditionStatus::True),
                ],
                ..Status::default()
            },
            address: Some(Addressable { url, ..Addressable::default() }),
            ..InMemoryChannelStatus::default()
        });
        backing
    }

    #[test]
    fn the_channels_delivery_beats_the_templates() {
        let mut channel = channel(ChannelTemplate::in_memory());
        let template = channel.spec.channel_template.as_mut().unwrap();
        template.spec = Some(json!({"delivery": {"retry": 1}, "subscribers": [{"uid": "x"}]}));
        let made = desired_backing(&channel).unwrap();
        assert_eq!((made.spec.delivery.unwrap().retry, made.spec.subscribers.len()), (Some(1), 0));
        channel.spec.delivery = Some(DeliverySpec { retry: Some(2), ..DeliverySpec::default() });
        assert_eq!(desired_backing(&channel).unwrap().spec.delivery.unwrap().retry, Some(2));
    }

    #[test]
    fn how_events_are_kept_is_said_on_the_channel_and_done_by_what_carries_them() {
        let mut channel = channel(ChannelTemplate::in_memory());
        let said = [("sluicegate.dev/durability", "none"), ("other", "x")];
        let said = said.map(|(key, value)| (key.to_owned(), value.to_owned()));
        channel.metadata.annotations = Some(said.into());
        let made = desired_backing(&channel).unwrap().metadata;
        assert_eq!(annotation(&made, "sluicegate.dev/durability"), Some("none"));
        assert_eq!(annotation(&made, "other"), None);
    }

    #[test]
    fn invalid_backing_channel_is_reported_without_address() {
        let kafka = ChannelTemplate { kind: "KafkaChannel".into(), ..ChannelTemplate::in_memory() };
        let broken = ChannelTemplate { spec: Some(json!({"delivery": 1})), ..ChannelTemplate::in_memory() };
        for template in [kafka, broken] {
            let why = desired_backing(&channel(template)).unwrap_err();
            let mut served = channel(ChannelTemplate::in_memory());
            served.status = Some(status(
                &served,
                &BackingChannel::Owned(Box::new(backing(ConditionStatus::True))),
                &SenderPolicy::default(),
                at(1),
            ));
            assert!(served.status.as_ref().unwrap().address.is_some());
            let lost = status(&served, &BackingChannel::Invalid(why), &SenderPolicy::default(), at(2));
            assert_eq!((ready(&lost).status, lost.address), (ConditionStatus::False, None));
        }
    }

    /// EV-CH-01, EV-OBJ-23: address and readiness are the backing channel's.
    #[test]
    fn a_channel_is_as_its_backing_channel_is() {
        let channel = channel(ChannelTemplate::in_memory());
        for verdict in [ConditionStatus::True, ConditionStatus::False, ConditionStatus::Unknown] {
            let status =
                status(&channel, &BackingChannel::Owned(Box::new(backing(verdict))), &SenderPolicy::default(), at(1));
            assert_eq!(ready(&status).status, verdict);
            assert_eq!(status.address.unwrap().url.unwrap(), "http://h/channels/ns/c");
            assert_eq!(status.channel.unwrap().kind, "InMemoryChannel");
        }
        let fresh = desired_backing(&channel).unwrap();
        let status = status(&channel, &BackingChannel::Owned(Box::new(fresh)), &SenderPolicy::default(), at(1));
        assert_eq!(ready(&status).reason, "BackingChannelNotConfigured");
    }
}
