//! Events that are set aside for a subscriber, because a core stopped at them before the process was ended.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ring::Working;
use wal::LogPosition;

use super::loaded_event::LoadedEvent;
use super::request::DeliveryFailure;
use super::send::EventSender;
use super::worker::{AttemptTarget, DeliveryAttempt, SubscriberConfig, SubscriptionWorker};
use crate::events::limits::{RECORDS_PER_TURN_MAX, TURN_STEPS_MAX};
use crate::events::stalled::{CoreActivity, Phase, StalledEvent};
use codec::record::CorruptRecord;
use contract::filter::{self, steps::Steps};
use contract::table::Subscriber;

/// Filter steps that count as one more record read.
const STEPS_PER_LOOK: usize = TURN_STEPS_MAX / RECORDS_PER_TURN_MAX;

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

    fn phase(&self, position: LogPosition) -> Option<Phase> {
        if self.0.is_empty() { None } else { self.0.get(&position).copied() }
    }
}

impl<P: EventSender> SubscriptionWorker<P> {
    /// Records the work of this core until the guard is dropped.
    pub(super) fn working(&self, phase: Phase, position: LogPosition) -> Working<'_> {
        let order = self.order.borrow();
        let activity = CoreActivity {
            phase,
            log: self.context.writer.number(),
            stream: Arc::as_ptr(&order.stream).addr(),
            subscriber: Arc::as_ptr(&order.subscriber).addr(),
            position,
        };
        self.context.ring.heartbeat().begin(activity.encode())
    }

    /// Loads an event that was read; does not decode it if that, or the request encoded from it, stopped a
    /// core.
    pub(super) fn see(&self, record: wal::LogRecord) -> (LogPosition, Result<Rc<LoadedEvent>, CorruptRecord>) {
        let position = record.position;
        if self.aside.phase(position) == Some(Phase::Request) {
            return (position, Err(CorruptRecord::Stalled));
        }
        let arrives = self.order.borrow().stream.guards_loops;
        let _working = self.working(Phase::Filter, position);
        (position, LoadedEvent::of(record, arrives).map(Rc::new))
    }

    /// Whether the subscriber's filter matches. A replay is for its addressee alone, whose filter was
    /// checked when it was chosen.
    pub(super) fn wants(&self, subscriber: &Subscriber, loaded: &LoadedEvent, looks: &mut usize) -> bool {
        let event = &loaded.record;
        if event.is_addressed {
            return event.addressee().is_some_and(|addressee| *addressee == *subscriber.name);
        }
        let steps = Steps::default();
        let working = self.working(Phase::Filter, loaded.position);
        let wants = filter::matches(&subscriber.filter, event, &steps);
        drop(working);
        *looks = looks.saturating_sub(steps.used() / STEPS_PER_LOOK);
        if steps.is_over() {
            subscriber.tally.filter_over_budget.fetch_add(1, Relaxed);
        }
        wants
    }

    /// The dead letter of an event whose filter, or whose response, stopped a core.
    pub(super) fn set_aside(&self, order: &SubscriberConfig, position: LogPosition) -> Option<DeliveryAttempt> {
        self.aside.phase(position)?;
        order.subscriber.tally.stalled.fetch_add(1, Relaxed);
        let (url, why) = (&order.subscriber.target.url, "a core stopped at this event");
        tracing::error!(subscriber = %order.subscriber.label, %position, "event set aside: {why} before the restart");
        let failure = DeliveryFailure::unanswered(url, why, STALLED);
        Some(DeliveryAttempt { leg: AttemptTarget::DeadLetter(Rc::new(failure)), ..DeliveryAttempt::first(position) })
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
