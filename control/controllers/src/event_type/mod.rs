//! EventType: reports whether the object that it refers to exists.

pub mod auto_create;

use jiff::Timestamp;

use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches};
use crate::destination_resolver::ResolveError;
use crate::work_queue::{ControllerKind, WorkItem};
use types::eventing::event_type::{CONDITIONS, EventType, EventTypeStatus, REFERENCE_EXISTS};

const KIND: ControllerKind = ControllerKind::new("EventType");

#[derive(Debug)]
pub struct EventTypeController;

impl Controller for EventTypeController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.call::<EventType>(move |change| {
            if let (Some(before), None) = change {
                auto_create::on_deleted(context, before);
            }
        });
        watches.primary::<EventType>(KIND);
        watches.task(auto_create::run(context));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(event_type) = context.caches.event_types.get(&item.namespace, &item.name) else { return Ok(()) };
    let found = match &event_type.spec.reference {
        Some(reference) => Some(context.resolver.read(item, reference).await?.map(|_| ())),
        None => None,
    };
    let mut after = (*event_type).clone();
    after.status = Some(status(&event_type, found, now()));
    context.set_status(&*event_type, &after).await
}

/// `found` is what happened to the reference, if there is one.
fn status(event_type: &EventType, found: Option<Result<(), ResolveError>>, now: Timestamp) -> EventTypeStatus {
    let mut status = event_type.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match found {
        None => conditions.mark_true_with_reason(REFERENCE_EXISTS, "ReferenceNotSet", "Reference is not set."),
        Some(Ok(())) => conditions.mark_true(REFERENCE_EXISTS),
        Some(Err(ResolveError(why))) => {
            conditions.mark_false(REFERENCE_EXISTS, "ReferenceDoesNotExist", &why);
        }
    }
    conditions.finish_into(&mut status.base, event_type.metadata.generation);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::eventing::event_type::EventTypeSpec;
    use types::shared::ConditionStatus;

    #[test]
    fn an_event_type_is_ready_unless_its_reference_leads_nowhere() {
        let event_type = EventType::new("ns", "e", EventTypeSpec::default());
        let lost = || ResolveError("Broker ns/b not found".to_owned());
        for (found, verdict, reason) in [
            (None, ConditionStatus::True, ""),
            (Some(Ok(())), ConditionStatus::True, ""),
            (Some(Err(lost())), ConditionStatus::False, "ReferenceDoesNotExist"),
        ] {
            let status = status(&event_type, found, Timestamp::from_second(1).unwrap());
            let ready = status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap();
            assert_eq!((ready.status, ready.reason.as_str()), (verdict, reason));
        }
    }
}
