//! A slot in a subscriber's window, and the task that holds it.

use std::rc::Rc;

use super::delivery_attempt::DeliveryTask;
use super::send::EventSender;
use super::worker::SubscriptionWorker;
use crate::limits::RECORDS_PER_TURN_MAX;

/// Released when its task ends in whatever way.
struct WindowSlot<P: EventSender> {
    worker: Rc<SubscriptionWorker<P>>,
}

impl<P: EventSender> WindowSlot<P> {
    fn take(worker: Rc<SubscriptionWorker<P>>) -> Self {
        worker.in_flight.set(worker.in_flight.get() + 1);
        Self { worker }
    }
}

impl<P: EventSender> Drop for WindowSlot<P> {
    fn drop(&mut self) {
        self.worker.in_flight.set(self.worker.in_flight.get() - 1);
        self.worker.notify.ring();
    }
}

impl<P: EventSender> SubscriptionWorker<P> {
    pub(super) fn spawn_attempt(self: &Rc<Self>, task: DeliveryTask) {
        let slot = WindowSlot::take(Rc::clone(self));
        self.context.ring.spawn(async move { slot.worker.run_tasks(task).await });
    }

    /// Runs one attempt after the other while there are any: a new task for each is 3 KiB that are
    /// allocated and written, and a wake of the worker. With this the allocator takes 4 % of a fan-out's
    /// time, instead of 7.
    async fn run_tasks(self: &Rc<Self>, first: DeliveryTask) {
        let mut task = Some(first);
        while let Some((job, read)) = task {
            self.turn_budget().await;
            if self.stopped.get() {
                return;
            }
            let began = self.context.ring.now();
            self.attempt(job, read).await;
            if began == self.context.ring.now() {
                self.context.ring.yield_now().await; // nothing was waited for: others run first
            }
            self.turn_budget().await; // for its filter
            task = self.successor();
        }
    }

    /// The next task for the slot of an attempt that has just ended.
    fn successor(self: &Rc<Self>) -> Option<DeliveryTask> {
        if self.stopped.get() || self.on_hold.get() {
            return None;
        }
        self.catch_up();
        // If more events follow, the worker continues, notified by the slot.
        self.next_task(&self.order(), self.in_flight.get() - 1, &mut { RECORDS_PER_TURN_MAX })
    }
}
