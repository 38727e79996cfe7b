//! Conditions of Gateway API's objects: each has the generation that it is for.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub(super) const ACCEPTED: &str = "Accepted";
pub(super) const PROGRAMMED: &str = "Programmed";
pub(super) const RESOLVED_REFS: &str = "ResolvedRefs";
pub(super) const CONFLICTED: &str = "Conflicted";

/// Why a condition is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConditionRefusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl ConditionRefusal {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The conditions of one object or listener, as they are written.
#[derive(Debug)]
pub(super) struct ConditionList<'a> {
    before: &'a [Condition],
    generation: Option<i64>,
    now: Timestamp,
    list: Vec<Condition>,
}

impl<'a> ConditionList<'a> {
    pub(super) fn new(before: &'a [Condition], generation: Option<i64>, now: Timestamp) -> Self {
        Self { before, generation, now, list: Vec::new() }
    }

    /// Sets a condition that is normally true: `reason` if it is met, or the refusal's.
    pub(super) fn set(&mut self, kind: &str, reason: &str, refusal: Option<&ConditionRefusal>) {
        match refusal {
            None => self.push(kind, "True", reason, ""),
            Some(ConditionRefusal { reason, message }) => self.push(kind, "False", reason, message),
        }
    }

    /// Sets a condition that is normally false.
    pub(super) fn set_negative(&mut self, kind: &str, reason: &str, refusal: Option<&ConditionRefusal>) {
        match refusal {
            None => self.push(kind, "False", reason, ""),
            Some(ConditionRefusal { reason, message }) => self.push(kind, "True", reason, message),
        }
    }

    fn push(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let before = self.before.iter().find(|known| known.type_ == kind);
        let since = before.filter(|known| known.status == status).map(|known| known.last_transition_time.clone());
        self.list.push(Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: self.generation,
            last_transition_time: since.unwrap_or(Time(self.now)),
        });
    }

    pub(super) fn finish(self) -> Vec<Condition> {
        self.list
    }
}

/// Whether a condition is met.
pub(super) fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_changes_with_the_status_only() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let write = |before: &[Condition], second, refusal: Option<&ConditionRefusal>| {
            let mut list = ConditionList::new(before, Some(second), at(second));
            list.set(ACCEPTED, "Accepted", refusal);
            list.finish()
        };
        let first = write(&[], 1, None);
        let same = write(&first, 2, None);
        assert_eq!((same[0].last_transition_time.0, same[0].observed_generation), (at(1), Some(2)));
        let refused = write(&same, 3, Some(&ConditionRefusal::new("Invalid", "why")));
        assert_eq!((refused[0].last_transition_time.0, refused[0].reason.as_str()), (at(3), "Invalid"));
        assert!(is_true(&same, ACCEPTED) && !is_true(&refused, ACCEPTED));
    }
}
