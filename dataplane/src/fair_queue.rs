//! Whose turn it is among those who wait for one backend on different cores.
//!
//! Each core has a queue of its own ([`crate::proxy::pending_queue`]) and shows here how long its first guest has waited. A
//! place that becomes free is offered to the one who has waited longest, wherever he is: a core that served its own
//! guests first would, under load, never come to the others'. They go before an older one of another core only if they
//! came little later ([`AHEAD_MAX`]): to make another core look takes longer than many a request does.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use arc_swap::ArcSwap;
use ring::WakeHandle;

/// Nobody waits there.
const EMPTY: u64 = u64::MAX;

/// How many guests may go before one who came earlier, at most: where cores take turns, one place in so many waits for a
/// core to wake up.
pub const AHEAD_MAX: u64 = 8;

/// The fronts of all cores' queues for one backend; a core is added when its first guest sits down.
#[derive(Debug, Default)]
pub struct FairQueue {
    /// Turns given out.
    tickets: AtomicU64,
    fronts: ArcSwap<Vec<Arc<QueueHead>>>,
}

/// The front of one core's queue.
pub struct QueueHead {
    core: usize,
    wake: WakeHandle,
    /// The turn of its first guest, or [`NOBODY`].
    ticket: AtomicU64,
}

impl fmt::Debug for QueueHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("core", &self.core).field("turn", &self.ticket).finish_non_exhaustive()
    }
}

impl FairQueue {
    /// The next guest's turn.
    pub fn next_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed)
    }

    /// The front of the core's own queue.
    pub fn front(&self, core: usize, bell: &WakeHandle) -> Arc<QueueHead> {
        let known = |fronts: &[Arc<QueueHead>]| fronts.iter().find(|front| front.core == core).cloned();
        if let Some(front) = known(&self.fronts.load()) {
            return front;
        }
        let front = Arc::new(QueueHead { core, wake: bell.clone(), ticket: AtomicU64::new(EMPTY) });
        self.fronts.rcu(|fronts| {
            let mut fronts = fronts.to_vec();
            fronts.push(Arc::clone(&front));
            fronts
        });
        front
    }

    /// Where somebody has waited longest.
    pub fn first(&self) -> Option<Arc<QueueHead>> {
        let fronts = self.fronts.load();
        let first = fronts.iter().min_by_key(|front| front.ticket.load(SeqCst))?;
        (first.ticket.load(SeqCst) != EMPTY).then(|| Arc::clone(first))
    }

    /// Whether the first guest of this front may take a place, as far as those of the others go.
    pub fn may_proceed(&self, front: &QueueHead) -> bool {
        let own = front.ticket.load(SeqCst);
        let first = self.fronts.load().iter().map(|front| front.ticket.load(SeqCst)).min();
        own != EMPTY && first.is_none_or(|first| own <= first.saturating_add(AHEAD_MAX))
    }
}

impl QueueHead {
    /// Its first guest is the one with this turn; `None`: there is none.
    pub fn show(&self, turn: Option<u64>) {
        self.ticket.store(turn.unwrap_or(EMPTY), SeqCst);
    }

    /// Makes its core look.
    pub fn call(&self) {
        self.wake.wake();
    }
}

#[cfg(test)]
mod tests {
    use ring::sim::{FaultProfile, Simulation};

    use super::*;

    #[test]
    fn the_first_is_who_came_first_wherever_he_waits() {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let line = FairQueue::default();
        assert!(line.first().is_none());
        let [one, two] = [0, 1].map(|core| line.front(core, &ring.wake_handle()));
        assert!(line.first().is_none());
        let turns: Vec<_> = (0..3).map(|_| line.next_ticket()).collect();
        two.show(Some(turns[0]));
        one.show(Some(turns[1]));
        assert!(Arc::ptr_eq(&line.first().unwrap(), &two));
        two.show(Some(turns[2]));
        assert!(Arc::ptr_eq(&line.first().unwrap(), &one));
        one.show(None);
        assert!(Arc::ptr_eq(&line.first().unwrap(), &two));
        assert!(Arc::ptr_eq(&line.front(1, &ring.wake_handle()), &two));
        assert!(line.may_proceed(&two) && !line.may_proceed(&one));
        one.show(Some(turns[2] + AHEAD_MAX));
        assert!(line.may_proceed(&two) && line.may_proceed(&one));
        one.show(Some(turns[2] + AHEAD_MAX + 1));
        assert!(line.may_proceed(&two) && !line.may_proceed(&one));
        ring.shutdown();
    }
}
