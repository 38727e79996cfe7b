//! Dead letter sinks, as statuses tell of them.

use super::resolve::{Address, Unresolved};
use crate::kinds::conditions::Conditions;
use crate::kinds::shared::DeliveryStatus;

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
