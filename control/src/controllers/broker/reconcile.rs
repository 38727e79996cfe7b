//! What a Broker's status says: values in, values out.

use jiff::Timestamp;

use crate::controllers::resolve::Unresolved;
use crate::kinds::eventing::broker::{
    ADDRESSABLE, Broker, BrokerStatus, CONDITIONS, DEAD_LETTER_SINK_RESOLVED, EVENT_POLICIES_READY,
    FILTER_READY, INGRESS_READY, TRIGGER_CHANNEL_READY,
};
use crate::kinds::shared::{Addressable, DeliveryStatus, Status};

/// `url` is served already; `sink` is the dead letter sink, if one is wanted.
#[must_use]
pub fn status(
    broker: &Broker,
    url: &str,
    sink: Option<Result<String, Unresolved>>,
    now: Timestamp,
) -> BrokerStatus {
    let mut status = broker.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    for part in [INGRESS_READY, TRIGGER_CHANNEL_READY, FILTER_READY, ADDRESSABLE] {
        conditions.mark_true(part);
    }
    conditions.mark_true_because(
        EVENT_POLICIES_READY,
        "DefaultAuthorizationMode",
        "Default authz mode is \"Allow-All\"",
    );
    status.delivery = DeliveryStatus::default();
    match sink {
        None => conditions.mark_true_because(
            DEAD_LETTER_SINK_RESOLVED,
            "DeadLetterSinkNotConfigured",
            "No dead letter sink is configured.",
        ),
        Some(Ok(uri)) => {
            conditions.mark_true(DEAD_LETTER_SINK_RESOLVED);
            status.delivery.dead_letter_sink_uri = Some(uri);
        }
        Some(Err(Unresolved(why))) => {
            conditions.mark_false(DEAD_LETTER_SINK_RESOLVED, "DeadLetterSinkResolveFailed", &why);
        }
    }
    status.address = Some(Addressable {
        name: Some("http".to_owned()),
        url: Some(url.to_owned()),
        ..Addressable::default()
    });
    status.base = Status {
        observed_generation: broker.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::eventing::broker::BrokerSpec;
    use crate::kinds::shared::Verdict;

    fn ready(status: &BrokerStatus) -> Verdict {
        status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap().status
    }

    /// EV-BRK-01, EV-BRK-12: ready with an address; a dead letter sink has to be resolved first.
    #[test]
    fn a_broker_is_ready_once_its_dead_letter_sink_is_found() {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        let now = Timestamp::from_second(1).unwrap();
        let plain = status(&broker, "http://h/brokers/ns/b", None, now);
        assert_eq!(ready(&plain), Verdict::True);
        assert_eq!(plain.address.unwrap().url.unwrap(), "http://h/brokers/ns/b");
        assert_eq!(plain.delivery.dead_letter_sink_uri, None);

        let lost = status(&broker, "http://h", Some(Err(Unresolved("Service ns/s not found".into()))), now);
        assert_eq!(ready(&lost), Verdict::False);
        let found = status(&broker, "http://h", Some(Ok("http://s/".into())), now);
        assert_eq!(ready(&found), Verdict::True);
        assert_eq!(found.delivery.dead_letter_sink_uri.as_deref(), Some("http://s/"));
    }
}
