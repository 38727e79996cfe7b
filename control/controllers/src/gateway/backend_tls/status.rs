//! Computes the status of a policy: values in, values out.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::gateway::conditions::{ACCEPTED, ConditionList, ConditionRefusal, RESOLVED_REFS};
use types::gateway_api::parent::ParentReference;
use types::gateway_api::policy::{PolicyAncestorStatus, PolicyStatus};
use types::gateway_api::{CONTROLLER_NAME, GROUP};

/// Ancestors in a status; upstream's schema allows no more.
const ANCESTORS_MAX: usize = 16;

/// Namespace and name of each Gateway, with the reason why the policy does not hold there.
pub(super) type AncestorOutcomes = BTreeMap<(String, String), Option<ConditionRefusal>>;

/// The ancestors of other controllers stay as they are.
pub(super) fn status(
    before: Option<&PolicyStatus>,
    outcomes: &AncestorOutcomes,
    unresolved: Option<&ConditionRefusal>,
    generation: Option<i64>,
    now: Timestamp,
) -> PolicyStatus {
    let known = before.map(|status| &status.ancestors[..]).unwrap_or_default();
    let is_ours = |ancestor: &&PolicyAncestorStatus| ancestor.controller_name == CONTROLLER_NAME;
    let mut ancestors: Vec<_> = known.iter().filter(|ancestor| !is_ours(ancestor)).cloned().collect();
    for ((namespace, name), not_accepted) in outcomes {
        let ancestor_ref = ParentReference {
            group: Some(GROUP.to_owned()),
            kind: Some("Gateway".to_owned()),
            namespace: Some(namespace.clone()),
            name: name.clone(),
            ..ParentReference::default()
        };
        let same = known.iter().filter(is_ours).find(|ancestor| ancestor.ancestor_ref == ancestor_ref);
        let before = same.map(|ancestor| &ancestor.conditions[..]).unwrap_or_default();
        let mut conditions = ConditionList::new(before, generation, now);
        conditions.set(ACCEPTED, "Accepted", not_accepted.as_ref());
        conditions.set(RESOLVED_REFS, "ResolvedRefs", unresolved);
        ancestors.push(PolicyAncestorStatus {
            ancestor_ref,
            controller_name: CONTROLLER_NAME.to_owned(),
            conditions: conditions.finish(),
        });
    }
    ancestors.truncate(ANCESTORS_MAX);
    PolicyStatus { ancestors }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_of_other_controllers_stay() {
        let other = PolicyAncestorStatus { controller_name: "example.com/other".to_owned(), ..Default::default() };
        let before = PolicyStatus { ancestors: vec![other.clone()] };
        let conflict = ConditionRefusal::new("Conflicted", "why");
        let outcomes = [(("ns".to_owned(), "g".to_owned()), Some(conflict)), (("ns".to_owned(), "h".to_owned()), None)];
        let after = status(Some(&before), &outcomes.into(), None, Some(2), Timestamp::UNIX_EPOCH);
        assert_eq!((after.ancestors.len(), &after.ancestors[0]), (3, &other));
        let accepted: Vec<_> = after.ancestors[1..]
            .iter()
            .map(|one| (one.ancestor_ref.name.as_str(), one.conditions[0].reason.as_str()))
            .collect();
        assert_eq!(accepted, [("g", "Conflicted"), ("h", "Accepted")]);
        let again = status(Some(&after), &AncestorOutcomes::new(), None, Some(2), Timestamp::UNIX_EPOCH);
        assert_eq!(again, before);
    }

    #[test]
    fn status_has_at_most_sixteen_ancestors() {
        let outcomes = (0..20).map(|n| (("ns".to_owned(), format!("g{n:02}")), None)).collect();
        let made = status(None, &outcomes, None, None, Timestamp::UNIX_EPOCH);
        assert_eq!(made.ancestors.len(), ANCESTORS_MAX);
    }
}
