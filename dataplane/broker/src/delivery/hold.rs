//! Applies table changes to events that are being retried, and to those that are on hold until a change.

use std::cmp::Reverse;

use contract::table::HoldReason;

use super::delivery_attempt::{DeliveryAttempt, ScheduledRetry};
use super::send::EventSender;
use super::worker::{SubscriberConfig, SubscriptionWorker};

impl<P: EventSender> SubscriptionWorker<P> {
    /// Takes target, filter and delivery from a newer table.
    pub(super) fn reorder(&self, order: SubscriberConfig) {
        let before = self.order.replace(order);
        if !std::sync::Arc::ptr_eq(&before.subscriber, &self.order.borrow().subscriber) {
            self.release_dead_letters();
            self.notify.ring();
        }
    }

    pub(super) fn holds(&self, what: HoldReason) -> bool {
        self.order.borrow().subscriber.hold == what
    }

    /// Holds a dead letter whose sink is missing. It stays unfinished meanwhile, so their number is bounded
    /// by the subscriber's unfinished events; beyond, the backlog waits in the log.
    pub(super) fn hold_dead_letter(&self, attempt: DeliveryAttempt) {
        tracing::debug!(position = %attempt.position, "given up, and held until its dead letter sink exists");
        self.held_dead_letters.borrow_mut().push(attempt);
    }

    /// They are due at once; those that find no sink are held again.
    fn release_dead_letters(&self) {
        if !self.holds(HoldReason::DeadLetters) {
            let at = self.context.ring.now();
            let due = self.held_dead_letters.take().into_iter().map(|job| Reverse(ScheduledRetry { at, job }));
            self.retries.borrow_mut().extend(due);
        }
    }
}
