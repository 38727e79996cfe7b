//! What a Broker's status says: values in, values out.

use jiff::Timestamp;

use crate::controllers::addresses::{Addresses, NO_LISTENER, Reach};
use crate::controllers::last_known::DEAD_LETTER_SINK;
use crate::controllers::policies::Rules;
use crate::controllers::resolve::{Address, Unresolved};
use crate::controllers::sink;
use crate::kinds::eventing::broker::{
    ADDRESSABLE, Broker, BrokerStatus, CONDITIONS, DEAD_LETTER_SINK_RESOLVED, EVENT_POLICIES_READY,
    FILTER_READY, INGRESS_READY, TRIGGER_CHANNEL_READY,
};
use crate::kinds::shared::Destination;

/// What a Broker depends on, as found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The dead letter sink, if one is wanted.
    pub sink: Option<Result<Address, Unresolved>>,
    /// Whether what `spec.config` names can be taken.
    pub config: Result<(), String>,
    /// It is deleted, and drains.
    pub is_leaving: bool,
    /// Who may send to it.
    pub rules: Rules,
}

/// What is in `reach` is served already.
#[must_use]
pub fn status(broker: &Broker, reach: Reach, found: Found, now: Timestamp) -> BrokerStatus {
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
    if found.is_leaving {
        let why = "The Broker is deleted: it takes no more events, and goes when those it has are delivered.";
        conditions.mark_false(INGRESS_READY, "Draining", why);
        conditions.mark_false(ADDRESSABLE, "Draining", why);
    }
    found.rules.mark(&mut conditions, EVENT_POLICIES_READY);
    status.policies = found.rules.listed();
    let lost =
        found.sink.as_ref().is_some_and(Result::is_err).then(|| sink::last_of_broker(broker)).flatten();
    let nowhere = Destination::default();
    DEAD_LETTER_SINK.note(&mut status.base, lost, sink::of_broker(broker).unwrap_or(&nowhere));
    status.delivery = sink::mark(&mut conditions, DEAD_LETTER_SINK_RESOLVED, found.sink);
    if let Err(why) = &reach {
        conditions.mark_false(ADDRESSABLE, NO_LISTENER, why);
    }
    let reach = reach.unwrap_or_default().for_audience(found.rules.audience().as_deref());
    let reach = if found.is_leaving { Addresses::default() } else { reach };
    (status.address, status.addresses) = (reach.first, reach.all);
    conditions.conclude(&mut status.base, broker.metadata.generation);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::eventing::broker::BrokerSpec;
    use crate::kinds::shared::Verdict;

    fn at(url: &str) -> Reach {
        Ok(url.into())
    }

    fn ready(status: &BrokerStatus) -> Verdict {
        status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap().status
    }

    /// EV-BRK-01, EV-BRK-12: ready with an address; a dead letter sink has to be resolved first.
    #[test]
    fn a_broker_is_ready_once_its_dead_letter_sink_is_found() {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        let now = Timestamp::from_second(1).unwrap();
        let found = |sink| Found { sink, config: Ok(()), is_leaving: false, rules: Rules::default() };
        let plain = status(&broker, at("http://h/brokers/ns/b"), found(None), now);
        assert_eq!(ready(&plain), Verdict::True);
        assert_eq!(plain.address.unwrap().url.unwrap(), "http://h/brokers/ns/b");
        assert_eq!(plain.delivery.dead_letter_sink_uri, None);

        let nowhere = Err(Unresolved("Service ns/s not found".into()));
        let lost = status(&broker, at("http://h"), found(Some(nowhere)), now);
        assert_eq!(ready(&lost), Verdict::False);
        let whole = status(&broker, at("http://h"), found(Some(Ok("http://s/".into()))), now);
        assert_eq!(ready(&whole), Verdict::True);
        assert_eq!(whole.delivery.dead_letter_sink_uri.as_deref(), Some("http://s/"));

        let cut_off = status(&broker, Err("no listener".into()), found(None), now);
        assert_eq!((ready(&cut_off), cut_off.address), (Verdict::False, None));
    }

    /// EV-RTE-17: options that cannot be taken, and the end of a Broker, are told with upstream's words where
    /// it has any.
    #[test]
    fn bad_options_and_a_drain_keep_a_broker_from_ready() {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        let found = Found { sink: None, config: Ok(()), is_leaving: false, rules: Rules::default() };
        for (found, reason, has_address) in [
            (Found { config: Err("no such map".into()), ..found.clone() }, "ChannelTemplateFailed", true),
            (Found { is_leaving: true, ..found }, "Draining", false),
        ] {
            let status = status(&broker, at("http://h"), found, Timestamp::from_second(1).unwrap());
            let ready = status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap();
            assert_eq!((ready.status, ready.reason.as_str()), (Verdict::False, reason));
            assert_eq!(status.address.is_some(), has_address);
            let addressable = status.base.conditions.iter().find(|c| c.kind == ADDRESSABLE).unwrap();
            assert_eq!(addressable.status == Verdict::True, has_address, "EV-BRK-01");
        }
    }
}
