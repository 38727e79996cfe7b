//! Virtual time and the scheduled events.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::tick::Tick;

/// A clock with a schedule. Events of the same time happen in the order in which they were scheduled.
pub(super) struct EventSchedule<E> {
    now: Tick,
    planned: BTreeMap<(Tick, u64), E>,
    plans: u64,
}

impl<E> Default for EventSchedule<E> {
    fn default() -> Self {
        Self { now: Tick::ZERO, planned: BTreeMap::new(), plans: 0 }
    }
}

impl<E> EventSchedule<E> {
    pub(super) fn now(&self) -> Tick {
        self.now
    }

    pub(super) fn plan(&mut self, wait: Duration, event: E) {
        self.plan_at(self.now + wait, event);
    }

    pub(super) fn plan_at(&mut self, at: Tick, event: E) {
        self.plans += 1;
        self.planned.insert((at, self.plans), event);
    }

    pub(super) fn next(&self) -> Option<Tick> {
        self.planned.first_key_value().map(|((at, _), _)| *at)
    }

    /// Moves the clock; never backwards.
    pub(super) fn jump(&mut self, to: Tick) {
        self.now = self.now.max(to);
    }

    pub(super) fn pop_due(&mut self) -> Option<E> {
        let entry = self.planned.first_entry()?;
        (entry.key().0 <= self.now).then(|| entry.remove())
    }

    pub(super) fn clear(&mut self) {
        self.planned.clear();
    }
}
