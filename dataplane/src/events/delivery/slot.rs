//! A place in a subscriber's window, and the task that has it.

use std::rc::Rc;

use super::post::Post;
use super::pump::{Job, Pump};
use super::sight::Sight;
use crate::events::limits::RECORDS_PER_TURN_MAX;

/// An attempt to be made, and its event if it was read just now: what is tried at once is not read and decoded again.
pub(super) type Errand = (Job, Option<Rc<Sight>>);

/// Given back when its task ends in whatever way.
struct Slot<P: Post> {
    pump: Rc<Pump<P>>,
}

impl<P: Post> Slot<P> {
    fn take(pump: Rc<Pump<P>>) -> Self {
        pump.in_flight.set(pump.in_flight.get() + 1);
        Self { pump }
    }
}

impl<P: Post> Drop for Slot<P> {
    fn drop(&mut self) {
        self.pump.in_flight.set(self.pump.in_flight.get() - 1);
        self.pump.bell.ring();
    }
}

impl<P: Post> Pump<P> {
    pub(super) fn begin(self: &Rc<Self>, errand: Errand) {
        let slot = Slot::take(Rc::clone(self));
        self.shop.ring.spawn(async move { slot.pump.run_errands(errand).await });
    }

    /// One attempt after the other while there is one to be made: a task for each is 3 KiB that are allocated and written anew, and a
    /// wake of the pump. With it the allocator has 4 % of a fan-out's time, and had 7.
    async fn run_errands(self: &Rc<Self>, first: Errand) {
        let mut errand = Some(first);
        while let Some((job, read)) = errand {
            let began = self.shop.ring.now();
            self.attempt(job, read).await;
            if began == self.shop.ring.now() {
                self.shop.ring.yield_now().await; // nothing was waited for: others come first
            }
            errand = self.successor();
        }
    }

    /// What the slot of an attempt that has just ended may go on with.
    fn successor(self: &Rc<Self>) -> Option<Errand> {
        if self.stopped.get() || self.held.get() {
            return None;
        }
        self.catch_up();
        // If there is more behind so many, the pump goes on, rung by the slot.
        self.errand(&self.order(), self.in_flight.get() - 1, &mut { RECORDS_PER_TURN_MAX })
    }
}
