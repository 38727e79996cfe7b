//! Bounds what handshakes cost a core, in seats and in time, so that a storm of them does not stop
//! traffic.
//!
//! Seats: at most `inside_max` at a time. When all are taken, whoever has been silent longest gives way to
//! a newcomer. Whoever has said hello has cost us work and stays, unless he has our answer and says nothing to it: those
//! who only say hello would keep everybody else out. Time: a signature takes 50 µs (ECDSA) to
//! 1 ms (RSA) during which the core does nothing else, so they are made one by one, and between two of
//! them everything else that is runnable gets its turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ring::Tick;

pub(super) struct HandshakeLimiter {
    handshakes_max: usize,
    /// Those who were turned out are not counted.
    active: Cell<usize>,
    /// Said nothing yet, the longest here first.
    silent: RefCell<VecDeque<Rc<WaitingHandshake>>>,
    /// Have our answer to their hello, with the time from which each may be turned out; the longest first.
    owing: RefCell<VecDeque<(Tick, Rc<WaitingHandshake>)>>,
    /// Wait for their turn; the first has it.
    waiting: RefCell<VecDeque<Rc<WaitingHandshake>>>,
}

#[derive(Default)]
struct WaitingHandshake {
    turned_out: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A seat for one handshake.
pub(super) struct HandshakePermit<'a> {
    limiter: &'a HandshakeLimiter,
    entry: Rc<WaitingHandshake>,
}

/// The only one at a time that may do expensive work.
pub(super) struct CpuTurn<'a> {
    limiter: &'a HandshakeLimiter,
    entry: Rc<WaitingHandshake>,
}

impl HandshakeLimiter {
    pub(super) fn new(inside_max: usize) -> Self {
        Self {
            handshakes_max: inside_max,
            active: Cell::new(0),
            silent: RefCell::default(),
            owing: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// A seat, if need be that of a guest who is silent, or owes us a word for too long; `None` when there is no such one.
    pub(super) fn enter(&self, now: Tick) -> Option<HandshakePermit<'_>> {
        if self.active.get() >= self.handshakes_max {
            let silent = self.silent.borrow_mut().pop_front();
            let longest = silent.or_else(|| self.overdue(now))?;
            longest.turned_out.set(true);
            longest.wake();
            self.active.set(self.active.get() - 1);
        }
        self.active.set(self.active.get() + 1);
        let guest = Rc::<WaitingHandshake>::default();
        self.silent.borrow_mut().push_back(Rc::clone(&guest));
        Some(HandshakePermit { limiter: self, entry: guest })
    }

    fn overdue(&self, now: Tick) -> Option<Rc<WaitingHandshake>> {
        let mut owing = self.owing.borrow_mut();
        owing.pop_front_if(|(due, _)| *due <= now).map(|(_, guest)| guest)
    }

    /// Waits in line.
    pub(super) async fn cpu_turn(&self) -> CpuTurn<'_> {
        let guest = Rc::<WaitingHandshake>::default();
        self.waiting.borrow_mut().push_back(Rc::clone(&guest));
        let turn = CpuTurn { limiter: self, entry: guest }; // leaves the line if the wait is given up
        poll_fn(|cx| {
            if self.waiting.borrow().front().is_some_and(|first| Rc::ptr_eq(first, &turn.entry)) {
                return Poll::Ready(());
            }
            *turn.entry.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        turn
    }
}

impl HandshakePermit<'_> {
    /// The guest has said hello: from now on it is not turned out.
    pub(super) fn mark_active(&self) {
        leave(&mut self.limiter.silent.borrow_mut(), &self.entry);
    }

    /// The guest has our answer: it may be turned out from `due` on.
    pub(super) fn owes(&self, due: Tick) {
        self.limiter.owing.borrow_mut().push_back((due, Rc::clone(&self.entry)));
    }

    /// Resolves when the seat went to somebody else.
    pub(super) async fn turned_out(&self) {
        poll_fn(|cx| {
            if self.entry.turned_out.get() {
                return Poll::Ready(());
            }
            *self.entry.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for HandshakePermit<'_> {
    fn drop(&mut self) {
        if !self.entry.turned_out.get() {
            self.mark_active();
            self.limiter.owing.borrow_mut().retain(|(_, guest)| !Rc::ptr_eq(guest, &self.entry));
            self.limiter.active.set(self.limiter.active.get() - 1);
        }
    }
}

impl Drop for CpuTurn<'_> {
    fn drop(&mut self) {
        let mut line = self.limiter.waiting.borrow_mut();
        leave(&mut line, &self.entry);
        if let Some(first) = line.front() {
            first.wake();
        }
    }
}

impl WaitingHandshake {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Looks through all: at most `inside_max`, and who leaves stands near the front.
fn leave(queue: &mut VecDeque<Rc<WaitingHandshake>>, guest: &Rc<WaitingHandshake>) {
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
    use std::time::Duration;

    const NOW: Tick = Tick::ZERO;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_longest_silent_guest_gives_way_and_one_who_spoke_stays() {
        let turnstile = HandshakeLimiter::new(2);
        let (first, second) = (turnstile.enter(NOW).unwrap(), turnstile.enter(NOW).unwrap());
        first.mark_active();
        let third = turnstile.enter(NOW).unwrap();
        assert!(poll(pin!(first.turned_out())).is_pending());
        assert!(poll(pin!(second.turned_out())).is_ready());
        third.mark_active();
        assert!(turnstile.enter(NOW).is_none());
        drop(second); // it had no seat any more
        assert!(turnstile.enter(NOW).is_none());
        drop(first);
        assert!(turnstile.enter(NOW).is_some());
    }

    #[test]
    fn those_who_only_say_hello_do_not_keep_others_out() {
        let turnstile = HandshakeLimiter::new(2);
        let guests = [turnstile.enter(NOW).unwrap(), turnstile.enter(NOW).unwrap()];
        let due = NOW + Duration::from_secs(1);
        for guest in &guests {
            guest.mark_active();
            guest.owes(due);
        }
        assert!(turnstile.enter(NOW).is_none());
        let third = turnstile.enter(due).unwrap();
        assert!(poll(pin!(guests[0].turned_out())).is_ready());
        assert!(poll(pin!(guests[1].turned_out())).is_pending());
        third.mark_active();
        let [first, second] = guests;
        drop(second); // done in time
        assert!(turnstile.enter(due).is_some());
        drop((first, third));
        assert!(turnstile.owing.borrow().is_empty());
    }

    #[test]
    fn turns_are_taken_one_at_a_time_in_order_also_when_one_is_given_up() {
        let turnstile = HandshakeLimiter::new(8);
        let first = pin!(turnstile.cpu_turn());
        let mut third = pin!(turnstile.cpu_turn());
        let Poll::Ready(held) = poll(first) else { panic!("an empty line makes nobody wait") };
        {
            let mut second = pin!(turnstile.cpu_turn());
            assert!(poll(second.as_mut()).is_pending());
            assert!(poll(third.as_mut()).is_pending());
            drop(held);
            assert!(poll(third.as_mut()).is_pending());
        }
        assert!(poll(third).is_ready());
    }
}
