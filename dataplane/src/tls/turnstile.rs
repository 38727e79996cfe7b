//! Bounds what handshakes cost a core, in seats and in time, so that a storm of them does not stop
//! traffic.
//!
//! Seats: at most `inside_max` at a time. When all are taken, whoever has been silent longest gives way to
//! a newcomer; whoever has said hello has cost us work and stays. Time: a signature takes 50 µs (ECDSA) to
//! 1 ms (RSA) during which the core does nothing else, so they are made one by one, and between two of
//! them everything else that is runnable gets its turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

pub(super) struct Turnstile {
    inside_max: usize,
    /// Those who were turned out are not counted.
    inside: Cell<usize>,
    /// Said nothing yet, the longest here first.
    silent: RefCell<VecDeque<Rc<Guest>>>,
    /// Wait for their turn; the first has it.
    line: RefCell<VecDeque<Rc<Guest>>>,
}

#[derive(Default)]
struct Guest {
    turned_out: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A seat for one handshake.
pub(super) struct Pass<'a> {
    turnstile: &'a Turnstile,
    guest: Rc<Guest>,
}

/// The only one at a time that may do expensive work.
pub(super) struct Turn<'a> {
    turnstile: &'a Turnstile,
    guest: Rc<Guest>,
}

impl Turnstile {
    pub(super) fn new(inside_max: usize) -> Self {
        Self { inside_max, inside: Cell::new(0), silent: RefCell::default(), line: RefCell::default() }
    }

    /// A seat, if need be a silent guest's; `None` when there is no silent one.
    pub(super) fn enter(&self) -> Option<Pass<'_>> {
        if self.inside.get() >= self.inside_max {
            let longest = self.silent.borrow_mut().pop_front()?;
            longest.turned_out.set(true);
            longest.wake();
            self.inside.set(self.inside.get() - 1);
        }
        self.inside.set(self.inside.get() + 1);
        let guest = Rc::<Guest>::default();
        self.silent.borrow_mut().push_back(Rc::clone(&guest));
        Some(Pass { turnstile: self, guest })
    }

    /// Waits in line.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let guest = Rc::<Guest>::default();
        self.line.borrow_mut().push_back(Rc::clone(&guest));
        let turn = Turn { turnstile: self, guest }; // leaves the line if the wait is given up
        poll_fn(|cx| {
            if self.line.borrow().front().is_some_and(|first| Rc::ptr_eq(first, &turn.guest)) {
                return Poll::Ready(());
            }
            *turn.guest.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        turn
    }
}

impl Pass<'_> {
    /// The guest has said hello: from now on it is not turned out.
    pub(super) fn speaks(&self) {
        leave(&mut self.turnstile.silent.borrow_mut(), &self.guest);
    }

    /// Resolves when the seat went to somebody else.
    pub(super) async fn turned_out(&self) {
        poll_fn(|cx| {
            if self.guest.turned_out.get() {
                return Poll::Ready(());
            }
            *self.guest.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.guest.turned_out.get() {
            self.speaks();
            self.turnstile.inside.set(self.turnstile.inside.get() - 1);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut line = self.turnstile.line.borrow_mut();
        leave(&mut line, &self.guest);
        if let Some(first) = line.front() {
            first.wake();
        }
    }
}

impl Guest {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Looks through all: at most `inside_max`, and who leaves stands near the front.
fn leave(queue: &mut VecDeque<Rc<Guest>>, guest: &Rc<Guest>) {
    if let Some(at) = queue.iter().position(|one| Rc::ptr_eq(one, guest)) {
        queue.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_longest_silent_guest_gives_way_and_one_who_spoke_stays() {
        let turnstile = Turnstile::new(2);
        let (first, second) = (turnstile.enter().unwrap(), turnstile.enter().unwrap());
        first.speaks();
        let third = turnstile.enter().unwrap();
        assert!(poll(pin!(first.turned_out())).is_pending());
        assert!(poll(pin!(second.turned_out())).is_ready());
        third.speaks();
        assert!(turnstile.enter().is_none());
        drop(second); // it had no seat any more
        assert!(turnstile.enter().is_none());
        drop(first);
        assert!(turnstile.enter().is_some());
    }

    #[test]
    fn turns_are_taken_one_at_a_time_in_order_also_when_one_is_given_up() {
        let turnstile = Turnstile::new(8);
        let first = pin!(turnstile.turn());
        let mut third = pin!(turnstile.turn());
        let Poll::Ready(held) = poll(first) else { panic!("an empty line makes nobody wait") };
        {
            let mut second = pin!(turnstile.turn());
            assert!(poll(second.as_mut()).is_pending());
            assert!(poll(third.as_mut()).is_pending());
            drop(held);
            assert!(poll(third.as_mut()).is_pending());
        }
        assert!(poll(third).is_ready());
    }
}
