//! The condition manager: controllers mark the dependent conditions, and Ready is derived from them.
//!
//! Ready is False with the reason of a False dependent, else Unknown with that of an Unknown one, else
//! True. Of several equally bad ones the newest transition decides.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::shared::{Condition, ConditionStatus, Status};

/// The conditions that a kind's Ready depends on.
#[derive(Debug, Clone, Copy)]
pub struct ConditionSet {
    pub dependents: &'static [&'static str],
}

/// One pass over an object's conditions.
#[derive(Debug)]
pub struct ConditionManager<'a> {
    set: ConditionSet,
    before: &'a [Condition],
    marked: Vec<Condition>,
    now: Timestamp,
}

impl ConditionSet {
    /// Starts a pass: dependents keep their earlier status, and are Unknown if they had none.
    #[must_use]
    pub fn manage(self, before: &[Condition], now: Timestamp) -> ConditionManager<'_> {
        let mut marked: Vec<Condition> = before.iter().filter(|c| c.kind != "Ready").cloned().collect();
        for kind in self.dependents {
            if !marked.iter().any(|c| c.kind == *kind) {
                marked.push(Condition { kind: (*kind).to_owned(), ..Condition::default() });
            }
        }
        ConditionManager { set: self, before, marked, now }
    }
}

impl ConditionManager<'_> {
    pub fn mark_true(&mut self, kind: &str) {
        self.mark(kind, ConditionStatus::True, "", "");
    }

    /// True with a message (`DeadLetterSinkNotConfigured`).
    pub fn mark_true_with_reason(&mut self, kind: &str, reason: &str, message: &str) {
        self.mark(kind, ConditionStatus::True, reason, message);
    }

    pub fn mark_false(&mut self, kind: &str, reason: &str, message: &str) {
        assert!(!reason.is_empty(), "a False condition has a reason");
        self.mark(kind, ConditionStatus::False, reason, message);
    }

    /// False, without an effect on Ready.
    pub fn mark_warning(&mut self, kind: &str, reason: &str, message: &str) {
        assert!(!self.is_dependent(kind), "what Ready depends on is no mere warning");
        self.mark(kind, ConditionStatus::False, reason, message);
        if let Some(condition) = self.marked.last_mut() {
            condition.severity = "Warning".to_owned();
        }
    }

    pub fn mark_unknown(&mut self, kind: &str, reason: &str, message: &str) {
        self.mark(kind, ConditionStatus::Unknown, reason, message);
    }

    /// Drops a condition that no longer applies.
    pub fn clear(&mut self, kind: &str) {
        self.marked.retain(|c| c.kind != kind);
    }

    #[must_use]
    pub fn status_of(&self, kind: &str) -> ConditionStatus {
        self.marked.iter().find(|c| c.kind == kind).map(|c| c.status).unwrap_or_default()
    }

    fn mark(&mut self, kind: &str, status: ConditionStatus, reason: &str, message: &str) {
        let severity = if self.is_dependent(kind) { "" } else { "Info" };
        let fresh = Condition {
            kind: kind.to_owned(),
            status,
            severity: severity.to_owned(),
            last_transition_time: None,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        self.marked.retain(|c| c.kind != kind);
        self.marked.push(fresh);
    }

    fn is_dependent(&self, kind: &str) -> bool {
        kind == "Ready" || self.set.dependents.contains(&kind)
    }

    /// The list to store: Ready added, sorted, times moved only where something changed.
    #[must_use]
    pub fn finish(mut self) -> Vec<Condition> {
        for condition in &mut self.marked {
            condition.last_transition_time = Some(last_transition_time(condition, self.before, self.now));
        }
        // Kinds without dependents (Configuration) mark Ready themselves.
        if !self.set.dependents.is_empty() {
            let mut ready = self.ready_condition();
            ready.last_transition_time = Some(last_transition_time(&ready, self.before, self.now));
            self.marked.push(ready);
        }
        self.marked.sort_by(|a, b| a.kind.cmp(&b.kind));
        self.marked
    }

    /// Ends the pass in `status`, which is for this generation from now on.
    pub fn finish_into(self, status: &mut Status, generation: Option<i64>) {
        status.observed_generation = generation;
        status.conditions = self.finish();
    }

    fn ready_condition(&self) -> Condition {
        let worst = self
            .marked
            .iter()
            .filter(|c| self.is_dependent(&c.kind))
            .filter(|c| c.status != ConditionStatus::True)
            .max_by(|a, b| {
                let rank = |c: &Condition| (c.status == ConditionStatus::False, c.last_transition_time.clone());
                // `max_by` takes the last of equals; the set's order should decide, so the first one wins.
                rank(a).cmp(&rank(b)).then_with(|| self.position(&b.kind).cmp(&self.position(&a.kind)))
            });
        match worst {
            Some(c) => Condition {
                kind: "Ready".to_owned(),
                status: c.status,
                reason: c.reason.clone(),
                message: c.message.clone(),
                ..Condition::default()
            },
            None => Condition { kind: "Ready".to_owned(), status: ConditionStatus::True, ..Condition::default() },
        }
    }

    fn position(&self, kind: &str) -> usize {
        self.set.dependents.iter().position(|d| *d == kind).unwrap_or(usize::MAX)
    }
}

fn last_transition_time(condition: &Condition, before: &[Condition], now: Timestamp) -> Time {
    let same = before.iter().find(|old| {
        old.kind == condition.kind
            && old.status == condition.status
            && old.severity == condition.severity
            && old.reason == condition.reason
            && old.message == condition.message
    });
    same.and_then(|old| old.last_transition_time.clone()).unwrap_or(Time(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: ConditionSet = ConditionSet { dependents: &["Beta", "Alpha"] };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn find<'a>(list: &'a [Condition], kind: &str) -> &'a Condition {
        list.iter().find(|c| c.kind == kind).unwrap()
    }

    /// COND-11: not reconciled yet means Unknown, for the parts and for the whole.
    #[test]
    fn a_new_object_is_unknown_throughout() {
        let list = SET.manage(&[], at(1)).finish();
        let kinds: Vec<_> = list.iter().map(|c| (c.kind.as_str(), c.status)).collect();
        let unknown = ConditionStatus::Unknown;
        assert_eq!(kinds, [("Alpha", unknown), ("Beta", unknown), ("Ready", unknown)]);
    }

    /// COND-13, COND-14: False beats Unknown beats True.
    #[test]
    fn ready_takes_the_worst_dependent_with_its_reason() {
        let mut pass = SET.manage(&[], at(1));
        pass.mark_unknown("Beta", "Deploying", "soon");
        pass.mark_false("Alpha", "Broken", "because");
        let list = pass.finish();
        let ready = find(&list, "Ready");
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "Broken"));

        let mut pass = SET.manage(&list, at(2));
        pass.mark_true("Alpha");
        let list = pass.finish();
        assert_eq!(find(&list, "Ready").reason, "Deploying");

        let mut pass = SET.manage(&list, at(3));
        pass.mark_true("Beta");
        assert_eq!(find(&pass.finish(), "Ready").status, ConditionStatus::True);
    }

    #[test]
    fn of_two_failures_the_newest_speaks() {
        let mut pass = SET.manage(&[], at(1));
        pass.mark_false("Beta", "Old", "");
        let first = pass.finish();
        let mut pass = SET.manage(&first, at(2));
        pass.mark_false("Alpha", "New", "");
        assert_eq!(find(&pass.finish(), "Ready").reason, "New");
    }

    /// COND-08: a pass that changes nothing moves no time; a new message does.
    #[test]
    fn the_transition_time_moves_only_with_a_change() {
        let mut pass = SET.manage(&[], at(1));
        pass.mark_false("Alpha", "Broken", "one");
        let first = pass.finish();

        let mut pass = SET.manage(&first, at(9));
        pass.mark_false("Alpha", "Broken", "one");
        assert_eq!(pass.finish(), first);

        let mut pass = SET.manage(&first, at(9));
        pass.mark_false("Alpha", "Broken", "two");
        let third = pass.finish();
        assert_eq!(find(&third, "Alpha").last_transition_time, Some(Time(at(9))));
        assert_eq!(find(&third, "Beta").last_transition_time, Some(Time(at(1))));
    }

    /// COND-16, COND-20: a condition outside the set is for information and never breaks Ready.
    #[test]
    fn an_informing_condition_does_not_count() {
        let mut pass = SET.manage(&[], at(1));
        pass.mark_true("Alpha");
        pass.mark_true("Beta");
        pass.mark_false("Active", "NoTraffic", "asleep");
        let list = pass.finish();
        assert_eq!(find(&list, "Active").severity, "Info");
        assert_eq!(find(&list, "Ready").status, ConditionStatus::True);
    }
}
