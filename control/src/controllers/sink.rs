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
        Some(Ok(Address { url, audience })) => {
            conditions.mark_true(kind);
            return DeliveryStatus::to(url, audience);
        }
    }
    DeliveryStatus::default()
}

/// The sink that another object's status names, for who shares it.
#[must_use]
pub fn named(found: &DeliveryStatus) -> Option<Address> {
    let audience = found.dead_letter_sink_audience.clone();
    found.dead_letter_sink_uri.clone().map(|url| Address { url, audience })
}
