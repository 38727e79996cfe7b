//! Events that are set aside for a subscriber, because a core stopped at them before the process was ended.

use std::collections::BTreeMap;

use wal::LogPosition;

use crate::stalled::{Phase, StalledEvent};

/// Why such an event is given up.
pub(super) const STALLED: &str = "stalled";

/// The events set aside for one subscriber: their positions, and the phase of each. Nearly always empty.
#[derive(Debug, Default)]
pub(super) struct SetAside(BTreeMap<LogPosition, Phase>);

impl SetAside {
    pub(super) fn of(events: &[StalledEvent], stream: &str, subscriber: &str) -> Self {
        let is_ours = |event: &&StalledEvent| {
            event.stream == stream && (event.subscriber.is_empty() || event.subscriber == subscriber)
        };
        let phase = |event: &StalledEvent| match event.phase {
            // Before any filter: it cannot even be decoded.
            Phase::Filter if event.subscriber.is_empty() => Phase::Request,
            phase => phase,
        };
        let all = events.iter().filter(is_ours);
        Self(all.map(|event| (LogPosition::new(event.position), phase(event))).collect())
    }

    pub(super) fn phase(&self, position: LogPosition) -> Option<Phase> {
        if self.0.is_empty() { None } else { self.0.get(&position).copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_set_aside_for_its_own_subscriber_only() {
        let event = |subscriber: &str, position, phase| StalledEvent {
            stream: "b".into(),
            subscriber: subscriber.into(),
            position,
            phase,
        };
        let all = [event("u", 1, Phase::Filter), event("", 2, Phase::Filter), event("other", 3, Phase::Request)];
        let aside = SetAside::of(&all, "b", "u");
        let phases = [1, 2, 3].map(|position| aside.phase(LogPosition::new(position)));
        assert_eq!(phases, [Some(Phase::Filter), Some(Phase::Request), None]);
        assert!(SetAside::of(&all, "c", "u").0.is_empty());
    }
}
