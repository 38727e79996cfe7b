//! The destinations of a Trigger while some objects that it names may be missing: values in, values out.

use contract::table::HoldReason;

use crate::dead_letter_sink;
use crate::destination_resolver::DestinationAddress;
use crate::last_address::{DEAD_LETTER_SINK, LastAddress, SUBSCRIBER};
use types::eventing::broker::Broker;
use types::eventing::trigger::Trigger;
use types::shared::Destination;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TriggerDestinations {
    pub subscriber: DestinationAddress,
    pub sink: Option<DestinationAddress>,
    pub hold: HoldReason,
}

/// What was not found is where it was last, for as long as the same is named. Another subscriber is waited for with all
/// events, another sink with dead letters (AMB-30: a lost event is the worse error). `None` for a Trigger that never had a
/// subscriber: it has no place to keep.
#[must_use]
pub(crate) fn destinations(
    trigger: &Trigger,
    broker: Option<&Broker>,
    subscriber: Option<&DestinationAddress>,
    sink: Option<&DestinationAddress>,
) -> Option<TriggerDestinations> {
    let is_now = |address: &DestinationAddress| LastAddress { address: address.clone(), is_current: true };
    let subscriber = subscriber.map(is_now).or_else(|| last_subscriber(trigger))?;
    let sink = sink.map(is_now).or_else(|| last_sink(trigger, broker)).filter(|known| known.is_current);
    let hold = if !subscriber.is_current {
        HoldReason::Everything
    } else if sink.is_none() && needs_sink(trigger, broker) {
        HoldReason::DeadLetters
    } else {
        HoldReason::Nothing
    };
    Some(TriggerDestinations { subscriber: subscriber.address, sink: sink.map(|known| known.address), hold })
}

/// Where its subscriber was by its status.
pub(crate) fn last_subscriber(trigger: &Trigger) -> Option<LastAddress> {
    let status = trigger.status.as_ref()?;
    let (audience, ca_certs) = (status.subscriber_audience.clone(), status.subscriber_ca_certs.clone());
    let shown = status.subscriber_uri.clone().map(|url| DestinationAddress { url, audience, ca_certs });
    SUBSCRIBER.read(&status.base, shown, trigger.metadata.generation, &trigger.spec.subscriber)
}

/// Where its sink was, by its own status or, if it has none of its own, by the Broker's.
pub(crate) fn last_sink(trigger: &Trigger, broker: Option<&Broker>) -> Option<LastAddress> {
    if let Some(named) = own_sink(trigger) {
        let status = trigger.status.as_ref()?;
        let shown = dead_letter_sink::address_of(&status.delivery);
        return DEAD_LETTER_SINK.read(&status.base, shown, trigger.metadata.generation, named);
    }
    dead_letter_sink::last_broker_sink(broker?)
}

pub(crate) fn own_sink(trigger: &Trigger) -> Option<&Destination> {
    trigger.spec.delivery.as_ref()?.dead_letter_sink.as_ref()
}

fn needs_sink(trigger: &Trigger, broker: Option<&Broker>) -> bool {
    own_sink(trigger).or_else(|| broker.and_then(dead_letter_sink::broker_sink)).is_some()
}
