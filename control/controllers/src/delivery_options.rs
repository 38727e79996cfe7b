//! The delivery options of a Trigger: its own, or its Broker's, never a mixture.

use std::time::Duration;

use codec::cloudevent::ContentMode;
use contract::table::{BackoffPolicy, DeliveryOrder, DeliveryPolicy};

use types::duration;
use types::eventing::trigger::{ORDERED, STRICT, Trigger};
use types::shared::DeliverySpec;

/// Requests in flight to one subscriber from one core: enough to hide a round trip of some
/// milliseconds, and few enough that a dead subscriber costs next to nothing.
const WINDOW_DEFAULT: u32 = 64;
/// Back-off when retries are wanted and none is given (upstream's default for Brokers).
const BACKOFF_DEFAULT: Duration = Duration::from_millis(200);

/// EV-OBJ-04, AMB-30: own options, if there are any, make the Broker's void as a whole.
#[must_use]
pub fn delivery(own: Option<&DeliverySpec>, brokers: Option<&DeliverySpec>) -> DeliveryPolicy {
    let nothing = DeliverySpec::default();
    let spec = own.filter(|own| **own != nothing).or(brokers).unwrap_or(&nothing);
    let delay = spec.backoff_delay.as_deref().and_then(duration::parse).unwrap_or(BACKOFF_DEFAULT);
    DeliveryPolicy {
        retries_max: spec.retry.and_then(|retry| u32::try_from(retry).ok()).unwrap_or(0),
        backoff: match spec.backoff_policy.as_deref() {
            Some("linear") => BackoffPolicy::Linear(delay),
            _ => BackoffPolicy::Exponential(delay),
        },
        timeout: spec.timeout.as_deref().and_then(duration::parse).unwrap_or(Duration::ZERO),
        window: WINDOW_DEFAULT,
        sequence: DeliveryOrder::Free,
        mode: match spec.format.as_deref() {
            Some("json") => Some(ContentMode::Structured),
            Some("binary") => Some(ContentMode::Binary),
            _ => None,
        },
        retry_after_max: spec.retry_after_max.as_deref().and_then(duration::parse).unwrap_or(Duration::ZERO),
    }
}

/// Whether a Trigger wants its events in order. Admission lets no other word in; from a cluster it may
/// come, and means what no annotation means.
#[must_use]
pub fn delivery_order(trigger: &Trigger) -> DeliveryOrder {
    match trigger.delivery_order() {
        Some(ORDERED) => DeliveryOrder::ByKey,
        Some(STRICT) => DeliveryOrder::Strict,
        _ => DeliveryOrder::Free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(retry: Option<i32>, policy: Option<&str>, delay: Option<&str>) -> DeliverySpec {
        DeliverySpec {
            retry,
            backoff_policy: policy.map(str::to_owned),
            backoff_delay: delay.map(str::to_owned),
            ..DeliverySpec::default()
        }
    }

    /// EV-OBJ-03, EV-OBJ-04, AMB-30: one own option is enough to ignore all of the Broker's, and none is not.
    #[test]
    fn own_options_replace_the_brokers_as_a_whole() {
        let brokers = spec(Some(10), Some("linear"), Some("PT1S"));
        let inherited = delivery(None, Some(&brokers));
        assert_eq!((inherited.retries_max, inherited.backoff), (10, BackoffPolicy::Linear(Duration::from_secs(1))));

        let formatted = DeliverySpec {
            format: Some("json".to_owned()),
            retry_after_max: Some("PT1M".to_owned()),
            ..DeliverySpec::default()
        };
        let formatted = delivery(Some(&formatted), None);
        assert_eq!((formatted.mode, formatted.retry_after_max.as_secs()), (Some(ContentMode::Structured), 60));

        let none = delivery(Some(&DeliverySpec::default()), Some(&brokers));
        assert_eq!((none.retries_max, none.backoff), (10, BackoffPolicy::Linear(Duration::from_secs(1))));

        let own = delivery(Some(&spec(Some(0), None, None)), Some(&brokers));
        assert_eq!((own.retries_max, own.backoff), (0, BackoffPolicy::Exponential(BACKOFF_DEFAULT)));
    }
}
