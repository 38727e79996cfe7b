//! Events that are set aside for a subscriber, because a core stopped at them before the process was ended.

use std::collections::BTreeMap;

use wal::LogPosition;

use crate::stalled::{Phase, StalledEvent};

/// Why such an event is given up.
pub(super) const STALLED: &str = "stalled";

/// What happens to an event that is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetAsideAction {
    /// It is dropped before it is decoded.
    Drop,
    /// It is dropped if the filter matches: encoding a request of it stopped the core for another subscriber.
    DropIfMatched,
    /// It becomes a dead letter, and its filter is not evaluated.
    DeadLetter,
}

/// The events set aside for one subscriber, by position. Nearly always empty.
#[derive(Debug, Default)]
pub(super) struct SetAside(BTreeMap<LogPosition, SetAsideAction>);

impl SetAside {
    pub(super) fn of(events: &[StalledEvent], stream: &str, subscriber: &str) -> Self {
        let all = events.iter().filter(|event| event.stream == stream);
        Self(all.filter_map(|event| Some((LogPosition::new(event.position), action(event, subscriber)?))).collect())
    }

    pub(super) fn action(&self, position: LogPosition) -> Option<SetAsideAction> {
        if self.0.is_empty() { None } else { self.0.get(&position).copied() }
    }
}

fn action(event: &StalledEvent, subscriber: &str) -> Option<SetAsideAction> {
    let is_of_stream = event.subscriber.is_empty();
    if is_of_stream || event.subscriber == subscriber {
        return Some(match event.phase {
            Phase::Request => SetAsideAction::Drop,
            // Before any filter: it cannot even be decoded.
            Phase::Filter if is_of_stream => SetAsideAction::Drop,
            Phase::Filter | Phase::Reply | Phase::Intake => SetAsideAction::DeadLetter,
        });
    }
    let is_at_risk = event.other_subscribers.iter().any(|other| other == subscriber);
    is_at_risk.then_some(match event.phase {
        Phase::Request => SetAsideAction::DropIfMatched,
        Phase::Filter | Phase::Reply | Phase::Intake => SetAsideAction::DeadLetter,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_set_aside_for_the_recorded_subscribers() {
        let event = |subscriber: &str, position, phase| StalledEvent {
            stream: "b".into(),
            subscriber: subscriber.into(),
            position,
            phase,
            other_subscribers: vec!["v".into()],
        };
        let all = [
            event("u", 1, Phase::Filter),
            event("", 2, Phase::Filter),
            event("u", 3, Phase::Request),
            event("other", 4, Phase::Reply),
        ];
        let actions = |subscriber| {
            let aside = SetAside::of(&all[..], "b", subscriber);
            [1, 2, 3, 4].map(|position| aside.action(LogPosition::new(position)))
        };
        let [dead_letter, dropped, if_matched] =
            [SetAsideAction::DeadLetter, SetAsideAction::Drop, SetAsideAction::DropIfMatched].map(Some);
        assert_eq!(actions("u"), [dead_letter, dropped, dropped, None]);
        assert_eq!(actions("v"), [dead_letter, dropped, if_matched, dead_letter]);
        assert_eq!(actions("w"), [None, dropped, None, None]);
        assert!(SetAside::of(&all, "c", "u").0.is_empty());
    }
}
