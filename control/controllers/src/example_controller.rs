//! Tells the owners of Brokers that undelivered events are dropped: the controller that CONTRIBUTING.md adds.

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches};
use crate::event_recorder::{EventMessage, EventSeverity};
use crate::work_queue::{ControllerKind, WorkItem};
use types::eventing::broker::Broker;

const KIND: ControllerKind = ControllerKind::new("DeadLetterAdvice");

#[derive(Debug)]
pub(crate) struct DeadLetterAdviceController;

impl Controller for DeadLetterAdviceController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<Broker>(KIND);
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(broker) = context.caches.brokers.get(&item.namespace, &item.name) else { return Ok(()) };
    if let Some(advice) = advice(&broker) {
        context.recorder.record(&*broker, &advice, now()).await;
    }
    Ok(())
}

/// The decision: an object in, the event to record out.
fn advice(broker: &Broker) -> Option<EventMessage> {
    let has_sink = broker.spec.delivery.as_ref().is_some_and(|delivery| delivery.dead_letter_sink.is_some());
    (!has_sink).then(|| EventMessage {
        level: EventSeverity::Warning,
        reason: "NoDeadLetterSink".to_owned(),
        message: "Events that cannot be delivered are dropped; set spec.delivery.deadLetterSink.".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::eventing::broker::BrokerSpec;
    use types::shared::DeliverySpec;

    #[test]
    fn broker_without_dead_letter_sink_gets_advice() {
        let sink = Some(DeliverySpec { dead_letter_sink: Some(Default::default()), ..DeliverySpec::default() });
        for (delivery, has_advice) in [(None, true), (sink, false)] {
            let broker = Broker::new("ns", "b", BrokerSpec { delivery, ..BrokerSpec::default() });
            assert_eq!(advice(&broker).is_some(), has_advice);
        }
        let controller: &dyn Controller = &DeadLetterAdviceController;
        assert_eq!(controller.kind(), KIND);
    }
}
