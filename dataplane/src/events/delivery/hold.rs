//! What a new word of the table means to events that are being tried, and those that wait until there is one.

use std::cmp::Reverse;

use super::post::Post;
use super::pump::{Job, Order, Pump, Retry};
use crate::table::Hold;

impl<P: Post> Pump<P> {
    /// Takes the table's newest word on target, filter and delivery.
    pub(super) fn reorder(&self, order: Order) {
        let before = self.order.replace(order);
        if !std::sync::Arc::ptr_eq(&before.subscriber, &self.order.borrow().subscriber) {
            self.let_letters_go();
            self.bell.ring();
        }
    }

    pub(super) fn holds(&self, what: Hold) -> bool {
        self.order.borrow().subscriber.hold == what
    }

    /// Keeps a letter whose sink is not there now. It is unfinished meanwhile, so there are no more of them than a subscriber
    /// may have of those; beyond, the backlog waits in the log.
    pub(super) fn keep_letter(&self, letter: Job) {
        tracing::debug!(position = %letter.position, "given up, and kept until its dead letter sink is there");
        self.letters.borrow_mut().push(letter);
    }

    /// They are due at once; what does not find a sink is kept again.
    fn let_letters_go(&self) {
        if !self.holds(Hold::DeadLetters) {
            let at = self.shop.ring.now();
            let due = self.letters.take().into_iter().map(|job| Reverse(Retry { at, job }));
            self.retries.borrow_mut().extend(due);
        }
    }
}
