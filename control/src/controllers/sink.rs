//! Dead letter sinks, as statuses tell of them.

use super::last_known::{DEAD_LETTER_SINK, Known};
use super::resolve::{Address, Unresolved};
use crate::kinds::conditions::Conditions;
use crate::kinds::eventing::broker::Broker;
use crate::kinds::shared::{DeliveryStatus, Destination};

/// Marks the condition `kind` by what became of the sink, if one is wanted, and says where it is.
pub fn mark(
    conditions: &mut Conditions<'_>,
    kind: &str,
    sink: Option<Result<Address, Unresolved>>,
) -> DeliveryStatus {
    match sink {
        None => {
            let why = "No dead letter sink is configured.";
            conditions.mark_true_because(kind, "DeadLetterSinkNotConfigured", why);
        }
        Some(Err(Unresolved(why))) => conditions.mark_false(kind, "DeadLetterSinkResolveFailed", &why),
        Some(Ok(found)) => {
            conditions.mark_true(kind);
            return told(found);
        }
    }
    DeliveryStatus::default()
}

/// The sink that a Broker gives to Triggers without one of their own.
#[must_use]
pub fn of_broker(broker: &Broker) -> Option<&Destination> {
    broker.spec.delivery.as_ref()?.dead_letter_sink.as_ref()
}

/// Whether its status is of an earlier spec, so that the sink it tells of may be another one.
#[must_use]
pub fn is_to_be_found(broker: &Broker) -> bool {
    let seen = broker.status.as_ref().and_then(|status| status.base.observed_generation);
    of_broker(broker).is_some() && seen.is_some() && seen != broker.metadata.generation
}

/// Where that was, by the Broker's status.
#[must_use]
pub fn last_of_broker(broker: &Broker) -> Option<Known> {
    let (named, status) = (of_broker(broker)?, broker.status.as_ref()?);
    DEAD_LETTER_SINK.read(&status.base, self::named(&status.delivery), broker.metadata.generation, named)
}

/// What a status says of a sink that was found.
#[must_use]
pub fn told(found: Address) -> DeliveryStatus {
    DeliveryStatus {
        dead_letter_sink_uri: Some(found.url),
        dead_letter_sink_audience: found.audience,
        dead_letter_sink_ca_certs: found.ca_certs,
    }
}

/// The sink that another object's status names, for who shares it.
#[must_use]
pub fn named(found: &DeliveryStatus) -> Option<Address> {
    let (audience, ca_certs) = (&found.dead_letter_sink_audience, &found.dead_letter_sink_ca_certs);
    let url = found.dead_letter_sink_uri.clone()?;
    Some(Address { url, audience: audience.clone(), ca_certs: ca_certs.clone() })
}
