//! EventType: shows whether what it refers to exists.

pub mod auto_create;

use jiff::Timestamp;

use super::queue::Item;
use super::resolve::Unresolved;
use super::world::{Error, World, now};
use crate::kinds::eventing::event_type::{CONDITIONS, EventType, EventTypeStatus, REFERENCE_EXISTS};

/// The flag of ConfigMap `config-features` that has EventTypes made of what comes in.
pub const AUTO_CREATE: &str = "eventtype-auto-create";

pub async fn reconcile(world: &World, item: &Item) -> Result<(), Error> {
    world.resolver.forget(item);
    let Some(event_type) = world.event_types.get(&item.namespace, &item.name) else { return Ok(()) };
    let found = match &event_type.spec.reference {
        Some(reference) => Some(world.resolver.read(item, reference).await?.map(|_| ())),
        None => None,
    };
    let mut after = (*event_type).clone();
    after.status = Some(status(&event_type, found, now()));
    world.set_status(&*event_type, &after).await
}

/// `found` is what became of the reference, if there is one.
fn status(event_type: &EventType, found: Option<Result<(), Unresolved>>, now: Timestamp) -> EventTypeStatus {
    let mut status = event_type.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    match found {
        None => conditions.mark_true_because(REFERENCE_EXISTS, "ReferenceNotSet", "Reference is not set."),
        Some(Ok(())) => conditions.mark_true(REFERENCE_EXISTS),
        Some(Err(Unresolved(why))) => {
            conditions.mark_false(REFERENCE_EXISTS, "ReferenceDoesNotExist", &why);
        }
    }
    conditions.conclude(&mut status.base, event_type.metadata.generation);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::eventing::event_type::EventTypeSpec;
    use crate::kinds::shared::Verdict;

    #[test]
    fn an_event_type_is_ready_unless_its_reference_leads_nowhere() {
        let event_type = EventType::new("ns", "e", EventTypeSpec::default());
        let lost = || Unresolved("Broker ns/b not found".to_owned());
        for (found, verdict, reason) in [
            (None, Verdict::True, ""),
            (Some(Ok(())), Verdict::True, ""),
            (Some(Err(lost())), Verdict::False, "ReferenceDoesNotExist"),
        ] {
            let status = status(&event_type, found, Timestamp::from_second(1).unwrap());
            let ready = status.base.conditions.iter().find(|c| c.kind == "Ready").unwrap();
            assert_eq!((ready.status, ready.reason.as_str()), (verdict, reason));
        }
    }
}
