//! Computes a Broker's status: values in, values out.

use jiff::Timestamp;

use crate::dead_letter_sink;
use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::last_address::DEAD_LETTER_SINK;
use crate::sender_policy::SenderPolicy;
use crate::stream_addresses::{AddressesResult, NO_LISTENER, StatusAddresses};
use types::eventing::broker::{
    ADDRESSABLE, Broker, BrokerStatus, CONDITIONS, DEAD_LETTER_SINK_RESOLVED, EVENT_POLICIES_READY, FILTER_READY,
    INGRESS_READY, TRIGGER_CHANNEL_READY,
};
use types::shared::Destination;

/// The dependencies of a Broker, as found.
#[derive(Debug, Clone)]
pub struct BrokerDependencies {
    /// The dead letter sink, if one is wanted.
    pub sink: Option<Result<DestinationAddress, ResolveError>>,
    /// Whether what `spec.config` names can be taken.
    pub config: Result<(), String>,
    /// It is deleted, and drains.
    pub is_draining: bool,
    /// The senders that it accepts.
    pub sender_policy: SenderPolicy,
}

/// Whether the cores serve what is in `reach`.
#[must_use]
pub fn status(broker: &Broker, reach: AddressesResult, found: BrokerDependencies, now: Timestamp) -> BrokerStatus {
    let mut status = broker.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    for part in [INGRESS_READY, TRIGGER_CHANNEL_READY, FILTER_READY, ADDRESSABLE] {
        conditions.mark_true(part);
    }
    if let Err(why) = &found.config {
        let why = format!("Error on setting up the ChannelTemplate: {why}");
        conditions.mark_false(TRIGGER_CHANNEL_READY, "ChannelTemplateFailed", &why);
    }
    if found.is_draining {
        let why =
            "The Broker is being deleted: it accepts no more events, and is removed when its backlog is delivered.";
        conditions.mark_false(INGRESS_READY, "Draining", why);
        conditions.mark_false(ADDRESSABLE, "Draining", why);
    }
    found.sender_policy.mark(&mut conditions, EVENT_POLICIES_READY);
    status.policies = found.sender_policy.applied_policies();
    let lost =
        found.sink.as_ref().is_some_and(Result::is_err).then(|| dead_letter_sink::last_broker_sink(broker)).flatten();
    let nowhere = Destination::default();
    DEAD_LETTER_SINK.record(&mut status.base, lost, dead_letter_sink::broker_sink(broker).unwrap_or(&nowhere));
    status.delivery = dead_letter_sink::mark(&mut conditions, DEAD_LETTER_SINK_RESOLVED, found.sink);
    if let Err(why) = &reach {
        conditions.mark_false(ADDRESSABLE, NO_LISTENER, why);
    }
    let reach = reach.unwrap_or_default().with_audience(found.sender_policy.audience().as_deref());
    let reach = if found.is_draining { StatusAddresses::default() } else { reach };
    (status.address, status.addresses) = (reach.primary, reach.all);
    conditions.finish_into(&mut status.base, broker.metadata.generation);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::eventing::broker::BrokerSpec;
    use types::shared::ConditionStatus;

    fn at(url: &str) -> AddressesResult {
        Ok(url.into())
    }

    fn ready(status: &BrokerStatus) -> ConditionStatus {
        status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap().status
    }

    /// EV-BRK-01, EV-BRK-12: ready with an address; a dead letter sink has to be resolved first.
    #[test]
    fn a_broker_is_ready_once_its_dead_letter_sink_is_found() {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        let now = Timestamp::from_second(1).unwrap();
        let found = |sink| BrokerDependencies {
            sink,
            config: Ok(()),
            is_draining: false,
            sender_policy: SenderPolicy::default(),
        };
        let plain = status(&broker, at("http://h/brokers/ns/b"), found(None), now);
        assert_eq!(ready(&plain), ConditionStatus::True);
        assert_eq!(plain.address.unwrap().url.unwrap(), "http://h/brokers/ns/b");
        assert_eq!(plain.delivery.dead_letter_sink_uri, None);

        let nowhere = Err(ResolveError("Service ns/s not found".into()));
        let lost = status(&broker, at("http://h"), found(Some(nowhere)), now);
        assert_eq!(ready(&lost), ConditionStatus::False);
        let whole = status(&broker, at("http://h"), found(Some(Ok("http://s/".into()))), now);
        assert_eq!(ready(&whole), ConditionStatus::True);
        assert_eq!(whole.delivery.dead_letter_sink_uri.as_deref(), Some("http://s/"));

        let cut_off = status(&broker, Err("no listener".into()), found(None), now);
        assert_eq!((ready(&cut_off), cut_off.address), (ConditionStatus::False, None));
    }

    /// EV-RTE-17: invalid options, and the deletion of a Broker, are reported with upstream's words where
    /// it has any.
    #[test]
    fn bad_options_and_a_drain_keep_a_broker_from_ready() {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        let found = BrokerDependencies {
            sink: None,
            config: Ok(()),
            is_draining: false,
            sender_policy: SenderPolicy::default(),
        };
        for (found, reason, has_address) in [
            (BrokerDependencies { config: Err("no such map".into()), ..found.clone() }, "ChannelTemplateFailed", true),
            (BrokerDependencies { is_draining: true, ..found }, "Draining", false),
        ] {
            let status = status(&broker, at("http://h"), found, Timestamp::from_second(1).unwrap());
            let ready = status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap();
            assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, reason));
            assert_eq!(status.address.is_some(), has_address);
            let addressable = status.base.conditions.iter().find(|c| c.kind == ADDRESSABLE).unwrap();
            assert_eq!(addressable.status == ConditionStatus::True, has_address, "EV-BRK-01");
        }
    }
}
