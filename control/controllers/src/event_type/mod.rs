//! EventType: shows whether what it refers to exists.

pub mod auto_create;

use jiff::Timestamp;

use crate::context::{ControllerContext, Error, now};
use crate::destination_resolver::ResolveError;
use crate::work_queue::WorkItem;
use types::eventing::event_type::{CONDITIONS, EventType, EventTypeStatus, REFERENCE_EXISTS};

/// The flag of ConfigMap `config-features` that has EventTypes made of what comes in.
pub const AUTO_CREATE: &str = "eventtype-auto-create";

pub async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    context.resolver.forget(item);
    let Some(event_type) = context.event_types.get(&item.namespace, &item.name) else { return Ok(()) };
    let found = match &event_type.spec.reference {
        Some(reference) => Some(context.resolver.read(item, reference).await?.map(|_| ())),
        None => None,
    };
    let mut after = (*event_type).clone();
    after.status = Some(status(&event_type, found, now()));
    context.set_status(&*event_type, &after).await
}

/// `found` is what became of the reference, if there is one.
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
