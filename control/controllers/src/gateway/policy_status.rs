//! Computes the status of a policy: values in, values out.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::conditions::{ACCEPTED, ConditionList, ConditionRefusal, RESOLVED_REFS};
use types::gateway_api::parent::ParentReference;
use types::gateway_api::policy::{PolicyAncestorStatus, PolicyStatus};
use types::gateway_api::{CONTROLLER_NAME, GROUP};

/// Ancestors in a status; upstream's schema allows no more.
const ANCESTORS_MAX: usize = 16;

/// An object of Gateway API that a policy's status is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PolicyAncestor {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl PolicyAncestor {
    pub(super) fn gateway((namespace, name): (String, String)) -> Self {
        Self { kind: "Gateway".to_owned(), namespace, name }
    }
}

/// The ancestors, each with the reason why the policy does not hold there.
pub(super) type AncestorOutcomes = BTreeMap<PolicyAncestor, Option<ConditionRefusal>>;

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
    for (PolicyAncestor { kind, namespace, name }, not_accepted) in outcomes {
        let ancestor_ref = ParentReference {
            group: Some(GROUP.to_owned()),
            kind: Some(kind.clone()),
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
        let gateway = |name: &str| PolicyAncestor::gateway(("ns".to_owned(), name.to_owned()));
        let outcomes = [(gateway("g"), Some(conflict)), (gateway("h"), None)];
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
        let gateway = |n: u32| PolicyAncestor::gateway(("ns".to_owned(), format!("g{n:02}")));
        let outcomes = (0..20).map(|n| (gateway(n), None)).collect();
        let made = status(None, &outcomes, None, None, Timestamp::UNIX_EPOCH);
        assert_eq!(made.ancestors.len(), ANCESTORS_MAX);
    }
}
