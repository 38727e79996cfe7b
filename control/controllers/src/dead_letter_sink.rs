//! Dead letter sinks, as statuses report them.

use crate::destination_resolver::{DestinationAddress, ResolveError};
use crate::last_address::{DEAD_LETTER_SINK, LastAddress};
use types::conditions::ConditionManager;
use types::eventing::broker::Broker;
use types::shared::{DeliveryStatus, Destination};

/// The reason of a condition whose dead letter sink has no address.
pub const NOT_RESOLVED: &str = "DeadLetterSinkResolveFailed";

/// Marks the condition `kind` by what happened to the sink, if one is wanted, and says where it is.
pub fn mark(
    conditions: &mut ConditionManager<'_>,
    kind: &str,
    sink: Option<Result<DestinationAddress, ResolveError>>,
) -> DeliveryStatus {
    match sink {
        None => {
            let why = "No dead letter sink is configured.";
            conditions.mark_true_with_reason(kind, "DeadLetterSinkNotConfigured", why);
        }
        Some(Err(ResolveError(why))) => conditions.mark_false(kind, NOT_RESOLVED, &why),
        Some(Ok(found)) => {
            conditions.mark_true(kind);
            return delivery_status(found);
        }
    }
    DeliveryStatus::default()
}

/// The sink that a Broker gives to Triggers without one of their own.
#[must_use]
pub fn broker_sink(broker: &Broker) -> Option<&Destination> {
    broker.spec.delivery.as_ref()?.dead_letter_sink.as_ref()
}

/// Whether its status is of an earlier spec, so that the sink it tells of may be another one.
#[must_use]
pub fn is_outdated(broker: &Broker) -> bool {
    let seen = broker.status.as_ref().and_then(|status| status.base.observed_generation);
    broker_sink(broker).is_some() && seen.is_some() && seen != broker.metadata.generation
}

/// Where that was, by the Broker's status.
#[must_use]
pub fn last_broker_sink(broker: &Broker) -> Option<LastAddress> {
    let (named, status) = (broker_sink(broker)?, broker.status.as_ref()?);
    DEAD_LETTER_SINK.read(&status.base, self::address_of(&status.delivery), broker.metadata.generation, named)
}

/// The status of a resolved sink.
#[must_use]
pub fn delivery_status(found: DestinationAddress) -> DeliveryStatus {
    DeliveryStatus {
        dead_letter_sink_uri: Some(found.url),
        dead_letter_sink_audience: found.audience,
        dead_letter_sink_ca_certs: found.ca_certs,
    }
}

/// The sink in another object's status, for objects that share it.
#[must_use]
pub fn address_of(found: &DeliveryStatus) -> Option<DestinationAddress> {
    let (audience, ca_certs) = (&found.dead_letter_sink_audience, &found.dead_letter_sink_ca_certs);
    let url = found.dead_letter_sink_uri.clone()?;
    Some(DestinationAddress { url, audience: audience.clone(), ca_certs: ca_certs.clone() })
}
