//! Fair queueing of requests that wait for one backend on different cores.
//!
//! Each core has a queue of its own (`proxy::pending_queue`) and publishes here the ticket of its first
//! request. A free permit is offered to the oldest request on any core: a core that served its own requests first
//! would, under load, never release permits to the others. A younger request of the same core goes first only if its
//! ticket is at most [`AHEAD_MAX`] later, because waking another core takes longer than many a request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use arc_swap::ArcSwap;
use ring::WakeHandle;

/// The core has no waiting request.
const EMPTY: u64 = u64::MAX;

/// How many younger requests may overtake one on another core: under contention one permit in so many waits for a core
/// to wake up.
pub const AHEAD_MAX: u64 = 8;

/// The queue heads of all cores for one backend; a core is added with its first waiting request.
#[derive(Debug, Default)]
pub struct FairQueue {
    /// The next ticket.
    tickets: AtomicU64,
    fronts: ArcSwap<Vec<Arc<QueueHead>>>,
}

/// The head of one core's queue.
pub struct QueueHead {
    core: usize,
    wake: WakeHandle,
    /// The ticket of its first request, or [`EMPTY`].
    ticket: AtomicU64,
}

impl fmt::Debug for QueueHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueHead").field("core", &self.core).field("turn", &self.ticket).finish_non_exhaustive()
    }
}

impl FairQueue {
    /// The ticket of the next request.
    #[inline]
    pub fn next_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed)
    }

    /// The head of the core's own queue.
    pub fn front(&self, core: usize, wake: &WakeHandle) -> Arc<QueueHead> {
        let known = |fronts: &[Arc<QueueHead>]| fronts.iter().find(|front| front.core == core).cloned();
        if let Some(front) = known(&self.fronts.load()) {
            return front;
        }
        let front = Arc::new(QueueHead { core, wake: wake.clone(), ticket: AtomicU64::new(EMPTY) });
        self.fronts.rcu(|fronts| {
            let mut fronts = fronts.to_vec();
            fronts.push(Arc::clone(&front));
            fronts
        });
        front
    }

    /// The queue head with the oldest request.
    #[inline]
    pub fn first(&self) -> Option<Arc<QueueHead>> {
        let fronts = self.fronts.load();
        let first = fronts.iter().min_by_key(|front| front.ticket.load(SeqCst))?;
        (first.ticket.load(SeqCst) != EMPTY).then(|| Arc::clone(first))
    }

    /// Whether the first request of this head may take a permit, compared with the other heads.
    #[inline]
    pub fn may_proceed(&self, front: &QueueHead) -> bool {
        let own = front.ticket.load(SeqCst);
        let first = self.fronts.load().iter().map(|front| front.ticket.load(SeqCst)).min();
        own != EMPTY && first.is_none_or(|first| own <= first.saturating_add(AHEAD_MAX))
    }
}

impl QueueHead {
    /// Publishes the ticket of its first request; `None` if its queue is empty.
    #[inline]
    pub fn show(&self, ticket: Option<u64>) {
        self.ticket.store(ticket.unwrap_or(EMPTY), SeqCst);
    }

    /// Wakes its core.
    pub fn wake_core(&self) {
        self.wake.wake();
    }
}

#[cfg(test)]
mod tests {
    use ring::sim::{FaultProfile, Simulation};

    use super::*;

    #[test]
    fn oldest_request_is_first_on_any_core() {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let queue = FairQueue::default();
        assert!(queue.first().is_none());
        let [one, two] = [0, 1].map(|core| queue.front(core, &ring.wake_handle()));
        assert!(queue.first().is_none());
        let tickets: Vec<_> = (0..3).map(|_| queue.next_ticket()).collect();
        two.show(Some(tickets[0]));
        one.show(Some(tickets[1]));
        assert!(Arc::ptr_eq(&queue.first().unwrap(), &two));
        two.show(Some(tickets[2]));
        assert!(Arc::ptr_eq(&queue.first().unwrap(), &one));
        one.show(None);
        assert!(Arc::ptr_eq(&queue.first().unwrap(), &two));
        assert!(Arc::ptr_eq(&queue.front(1, &ring.wake_handle()), &two));
        assert!(queue.may_proceed(&two) && !queue.may_proceed(&one));
        one.show(Some(tickets[2] + AHEAD_MAX));
        assert!(queue.may_proceed(&two) && queue.may_proceed(&one));
        one.show(Some(tickets[2] + AHEAD_MAX + 1));
        assert!(queue.may_proceed(&two) && !queue.may_proceed(&one));
        ring.shutdown();
    }
}
