//! What a worker does with a record that it has read: load it, match it, or set it aside.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use codec::cloudevent::ContentMode;
use codec::record::CorruptRecord;
use contract::filter::{self, steps::Steps};
use contract::table::Subscriber;
use ring::Working;
use wal::LogPosition;

use super::delivery_attempt::{AttemptTarget, DeliveryAttempt};
use super::loaded_event::LoadedEvent;
use super::request::DeliveryFailure;
use super::send::EventSender;
use super::set_aside::{STALLED, SetAsideAction};
use super::worker::{SubscriberConfig, SubscriptionWorker};
use crate::limits::{ENCODED_BYTES_PER_STEP, LOADED_BYTES_PER_STEP};
use crate::stalled::{CoreActivity, Phase};

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
        if self.aside.action(position) == Some(SetAsideAction::Drop) {
            return (position, Err(CorruptRecord::Stalled));
        }
        let arrives = self.order.borrow().stream.guards_loops;
        let _working = self.working(Phase::Filter, position);
        self.context.ring.charge(record.payload.len() / LOADED_BYTES_PER_STEP);
        (position, LoadedEvent::of(record, arrives).map(Rc::new))
    }

    /// Whether the subscriber's filter matches. A replay is for its addressee alone, whose filter was
    /// checked when it was chosen.
    pub(super) fn wants(&self, subscriber: &Subscriber, loaded: &LoadedEvent) -> bool {
        let event = &loaded.record;
        if event.is_addressed {
            return event.addressee().is_some_and(|addressee| *addressee == *subscriber.name);
        }
        let steps = Steps::default();
        let working = self.working(Phase::Filter, loaded.position);
        let wants = filter::matches(&subscriber.filter, event, &steps);
        drop(working);
        self.context.ring.charge(steps.used());
        if steps.is_over() {
            subscriber.tally.filter_over_budget.fetch_add(1, Relaxed);
        }
        wants
    }

    /// Waits until the turn has budget for one more filter or request. Many subscribers get the same event at
    /// the same time, and together they must not take the core from all others.
    pub(super) async fn turn_budget(&self) {
        if !self.context.ring.has_budget_remaining() {
            self.context.ring.budget_remaining().await;
        }
    }

    /// Charges the parsing or the encoding of an event with this size.
    pub(super) fn charge_encoding(&self, bytes: usize) {
        self.context.ring.charge(bytes / ENCODED_BYTES_PER_STEP);
    }

    /// Charges a request of this event: less if another subscriber had it encoded already.
    pub(super) fn charge_request(&self, loaded: &LoadedEvent, mode: ContentMode) {
        if loaded.is_written(mode) {
            self.context.ring.charge(loaded.bytes() / LOADED_BYTES_PER_STEP);
        } else {
            self.charge_encoding(loaded.bytes());
        }
    }

    /// Counts and logs an event that is set aside.
    pub(super) fn note_set_aside(&self, order: &SubscriberConfig, position: LogPosition) {
        let tally = &order.subscriber.tally;
        tally.stalled_position.store(position.get(), Relaxed);
        tally.stalled.fetch_add(1, Relaxed);
        tracing::error!(
            stream = %order.stream.name,
            subscriber = %order.subscriber.label,
            %position,
            log = %self.context.writer.log().folder().display(),
            "event set aside: a core stopped at it before the restart"
        );
    }

    /// The dead letter of an event whose filter, or whose response, stopped a core.
    pub(super) fn set_aside(&self, order: &SubscriberConfig, position: LogPosition) -> DeliveryAttempt {
        self.note_set_aside(order, position);
        let failure =
            DeliveryFailure::unanswered(&order.subscriber.target.url, "a core stopped at this event", STALLED);
        DeliveryAttempt { leg: AttemptTarget::DeadLetter(Rc::new(failure)), ..DeliveryAttempt::first(position) }
    }
}
