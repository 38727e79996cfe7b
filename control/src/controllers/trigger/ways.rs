//! Where a Trigger's events go while some of what it names may not be there: values in, values out.

use dataplane::table::Hold;

use crate::controllers::last_known::{DEAD_LETTER_SINK, Known, SUBSCRIBER};
use crate::controllers::resolve::Address;
use crate::controllers::sink;
use crate::kinds::eventing::broker::Broker;
use crate::kinds::eventing::trigger::Trigger;
use crate::kinds::shared::Destination;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ways {
    pub subscriber: Address,
    pub sink: Option<Address>,
    pub hold: Hold,
}

/// What was not found is where it was last, for as long as the same is named. Another subscriber is waited for with all
/// events, another sink with dead letters (AMB-30: a lost event is the worse error). `None` for a Trigger that never had a
/// subscriber: it has no place to keep.
#[must_use]
pub fn ways(
    trigger: &Trigger,
    broker: Option<&Broker>,
    subscriber: Option<&Address>,
    sink: Option<&Address>,
) -> Option<Ways> {
    let is_now = |address: &Address| Known { address: address.clone(), is_same: true };
    let subscriber = subscriber.map(is_now).or_else(|| last_subscriber(trigger))?;
    let sink = sink.map(is_now).or_else(|| last_sink(trigger, broker)).filter(|known| known.is_same);
    let hold = if !subscriber.is_same {
        Hold::Everything
    } else if sink.is_none() && wants_sink(trigger, broker) {
        Hold::DeadLetters
    } else {
        Hold::Nothing
    };
    Some(Ways { subscriber: subscriber.address, sink: sink.map(|known| known.address), hold })
}

/// Where its subscriber was by its status.
pub fn last_subscriber(trigger: &Trigger) -> Option<Known> {
    let status = trigger.status.as_ref()?;
    let (audience, ca_certs) = (status.subscriber_audience.clone(), status.subscriber_ca_certs.clone());
    let shown = status.subscriber_uri.clone().map(|url| Address { url, audience, ca_certs });
    SUBSCRIBER.read(&status.base, shown, trigger.metadata.generation, &trigger.spec.subscriber)
}

/// Where its sink was, by its own status or, if it has none of its own, by the Broker's.
pub fn last_sink(trigger: &Trigger, broker: Option<&Broker>) -> Option<Known> {
    if let Some(named) = own_sink(trigger) {
        let status = trigger.status.as_ref()?;
        let shown = sink::named(&status.delivery);
        return DEAD_LETTER_SINK.read(&status.base, shown, trigger.metadata.generation, named);
    }
    sink::last_of_broker(broker?)
}

pub fn own_sink(trigger: &Trigger) -> Option<&Destination> {
    trigger.spec.delivery.as_ref()?.dead_letter_sink.as_ref()
}

fn wants_sink(trigger: &Trigger, broker: Option<&Broker>) -> bool {
    own_sink(trigger).or_else(|| broker.and_then(sink::of_broker)).is_some()
}
