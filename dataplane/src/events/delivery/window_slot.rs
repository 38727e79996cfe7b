//! A place in a subscriber's window, and the task that has it.

use std::rc::Rc;

use super::loaded_event::LoadedEvent;
use super::send::EventSender;
use super::worker::{DeliveryAttempt, SubscriptionWorker};
use crate::events::limits::RECORDS_PER_TURN_MAX;

/// An attempt to be made, and its event if it was read just now: what is tried at once is not read and decoded again.
pub(super) type DeliveryTask = (DeliveryAttempt, Option<Rc<LoadedEvent>>);

/// Given back when its task ends in whatever way.
struct WindowSlot<P: EventSender> {
    worker: Rc<SubscriptionWorker<P>>,
}

impl<P: EventSender> WindowSlot<P> {
    fn take(pump: Rc<SubscriptionWorker<P>>) -> Self {
        pump.in_flight.set(pump.in_flight.get() + 1);
        Self { worker: pump }
    }
}

impl<P: EventSender> Drop for WindowSlot<P> {
    fn drop(&mut self) {
        self.worker.in_flight.set(self.worker.in_flight.get() - 1);
        self.worker.notify.ring();
    }
}

impl<P: EventSender> SubscriptionWorker<P> {
    pub(super) fn spawn_attempt(self: &Rc<Self>, errand: DeliveryTask) {
        let slot = WindowSlot::take(Rc::clone(self));
        self.context.ring.spawn(async move { slot.worker.run_errands(errand).await });
    }

    /// One attempt after the other while there is one to be made: a task for each is 3 KiB that are allocated and written anew, and a
    /// wake of the pump. With it the allocator has 4 % of a fan-out's time, and had 7.
    async fn run_errands(self: &Rc<Self>, first: DeliveryTask) {
        let mut errand = Some(first);
        while let Some((job, read)) = errand {
            let began = self.context.ring.now();
            self.attempt(job, read).await;
            if began == self.context.ring.now() {
                self.context.ring.yield_now().await; // nothing was waited for: others come first
            }
            errand = self.successor();
        }
    }

    /// What the slot of an attempt that has just ended may go on with.
    fn successor(self: &Rc<Self>) -> Option<DeliveryTask> {
        if self.stopped.get() || self.on_hold.get() {
            return None;
        }
        self.catch_up();
        // If there is more behind so many, the pump goes on, rung by the slot.
        self.next_task(&self.order(), self.in_flight.get() - 1, &mut { RECORDS_PER_TURN_MAX })
    }
}
