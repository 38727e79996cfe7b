//! Computes the status of a route: values in, values out.

use jiff::Timestamp;

use super::conditions::{ACCEPTED, ConditionList, ConditionRefusal, RESOLVED_REFS};
use types::gateway_api::CONTROLLER_NAME;
use types::gateway_api::parent::{ParentReference, ParentStatuses, RouteParentStatus};

/// How a route is attached to one parent of ours.
#[derive(Debug)]
pub(super) struct ParentOutcome {
    pub(super) parent: ParentReference,
    pub(super) not_accepted: Option<ConditionRefusal>,
}

/// The parents of other controllers stay as they are.
pub(super) fn statuses(
    before: Option<&ParentStatuses>,
    outcomes: &[ParentOutcome],
    unresolved: Option<&ConditionRefusal>,
    generation: Option<i64>,
    now: Timestamp,
) -> ParentStatuses {
    let known = before.map(|statuses| &statuses.parents[..]).unwrap_or_default();
    let mut parents: Vec<_> =
        known.iter().filter(|parent| parent.controller_name != CONTROLLER_NAME).cloned().collect();
    for ParentOutcome { parent, not_accepted } in outcomes {
        let same = known.iter().find(|known| known.controller_name == CONTROLLER_NAME && known.parent_ref == *parent);
        let before = same.map(|status| &status.conditions[..]).unwrap_or_default();
        let mut conditions = ConditionList::new(before, generation, now);
        conditions.set(ACCEPTED, "Accepted", not_accepted.as_ref());
        conditions.set(RESOLVED_REFS, "ResolvedRefs", unresolved);
        parents.push(RouteParentStatus {
            parent_ref: parent.clone(),
            controller_name: CONTROLLER_NAME.to_owned(),
            conditions: conditions.finish(),
        });
    }
    ParentStatuses { parents }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_of_other_controllers_stay() {
        let parent = |name: &str| ParentReference { name: name.to_owned(), ..ParentReference::default() };
        let other = RouteParentStatus {
            parent_ref: parent("other"),
            controller_name: "example.com/other".to_owned(),
            conditions: Vec::new(),
        };
        let before = ParentStatuses { parents: vec![other.clone()] };
        let refusal = ConditionRefusal::new("BackendNotFound", "Service \"ns/a\" not found.");
        let outcome = ParentOutcome { parent: parent("ours"), not_accepted: None };
        let after = statuses(Some(&before), &[outcome], Some(&refusal), Some(3), Timestamp::UNIX_EPOCH);
        assert_eq!((after.parents.len(), &after.parents[0]), (2, &other));
        let conditions: Vec<_> = after.parents[1]
            .conditions
            .iter()
            .map(|one| (one.type_.as_str(), one.status.as_str(), one.reason.as_str(), one.observed_generation))
            .collect();
        let expected =
            [("Accepted", "True", "Accepted", Some(3)), ("ResolvedRefs", "False", "BackendNotFound", Some(3))];
        assert_eq!(conditions, expected);
        assert_eq!(statuses(Some(&after), &[], None, Some(4), Timestamp::UNIX_EPOCH), before);
    }
}
