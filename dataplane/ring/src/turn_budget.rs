//! The budget of one turn: how much expensive work the tasks of a loop do before it handles completions again.
//!
//! A task charges steps for work of which a peer chooses the size (a filter, an encoding). Once a turn's
//! budget is used up, a task with more such work waits in a queue of its own, and not among the runnable
//! tasks. So a hundred expensive tasks take a hundred turns, and every other task runs in each of them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::limits::TURN_STEPS_MAX;

#[derive(Debug)]
pub(crate) struct TurnBudget {
    /// Steps that this turn may still take.
    left: Cell<usize>,
    /// Tasks that wait for a later turn, in order.
    waiting: RefCell<VecDeque<Rc<BudgetWaiter>>>,
}

#[derive(Debug, Default)]
struct BudgetWaiter {
    is_granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Default for TurnBudget {
    fn default() -> Self {
        Self { left: Cell::new(TURN_STEPS_MAX), waiting: RefCell::default() }
    }
}

impl TurnBudget {
    /// Counts work that was done. The last piece of work in a turn may exceed the budget.
    pub(crate) fn charge(&self, steps: usize) {
        self.left.set(self.left.get().saturating_sub(steps));
    }

    /// Whether a task may begin more expensive work in this turn.
    pub(crate) fn has_remaining(&self) -> bool {
        self.left.get() > 0
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Resolves when the budget has steps left and all earlier waiters were served.
    pub(crate) async fn remaining(&self) {
        if self.has_remaining() && !self.is_waited_for() {
            return;
        }
        let waiter = Rc::new(BudgetWaiter::default()); // only after a turn's worth of expensive work
        self.waiting.borrow_mut().push_back(Rc::clone(&waiter));
        poll_fn(|cx| {
            if waiter.is_granted.get() {
                return Poll::Ready(());
            }
            waiter.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Begins a turn with a full budget, and wakes the first waiter.
    pub(crate) fn begin_turn(&self) {
        self.left.set(TURN_STEPS_MAX);
        self.grant();
    }

    /// Wakes the next waiter if the turn has budget left. Returns whether there was one.
    pub(crate) fn grant(&self) -> bool {
        while self.has_remaining() {
            let Some(next) = self.waiting.borrow_mut().pop_front() else { return false };
            if Rc::strong_count(&next) == 1 {
                continue; // its task was dropped
            }
            next.is_granted.set(true);
            if let Some(waker) = next.waker.take() {
                waker.wake();
            }
            return true;
        }
        false
    }
}
