//! Bounds what handshakes cost a core, in memory and in CPU time, so that a flood of them does not stop traffic.
//!
//! Memory: at most `handshakes_max` are active. When the limit is reached, the connection that has been silent longest
//! is evicted for a new one. A handshake whose ClientHello has arrived has cost work and stays, unless the client does
//! not answer the server's flight: clients that only send a ClientHello would block all others. CPU: a signature takes
//! 50 µs (ECDSA) to 1 ms (RSA) during which the core does nothing else, so they run one by one, and between two of them
//! all other runnable tasks get their turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use ring::Tick;

pub(super) struct HandshakeLimiter {
    handshakes_max: usize,
    /// Evicted ones are not counted.
    active: Cell<usize>,
    /// No ClientHello yet, the oldest first.
    silent: RefCell<VecDeque<Rc<WaitingHandshake>>>,
    /// Waiting for the client to answer the server's flight, with the time from which each may be evicted; the oldest first.
    awaiting_answer: RefCell<VecDeque<(Tick, Rc<WaitingHandshake>)>>,
    /// Waiting for the CPU turn; the first has it.
    waiting: RefCell<VecDeque<Rc<WaitingHandshake>>>,
}

#[derive(Default)]
struct WaitingHandshake {
    evicted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A permit for one handshake.
pub(super) struct HandshakePermit<'a> {
    limiter: &'a HandshakeLimiter,
    entry: Rc<WaitingHandshake>,
}

/// The turn for expensive work; one at a time.
pub(super) struct CpuTurn<'a> {
    limiter: &'a HandshakeLimiter,
    entry: Rc<WaitingHandshake>,
}

impl HandshakeLimiter {
    pub(super) fn new(handshakes_max: usize) -> Self {
        Self {
            handshakes_max,
            active: Cell::new(0),
            silent: RefCell::default(),
            awaiting_answer: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// A permit, if necessary that of a silent client or of one whose answer is overdue; `None` when there is no such
    /// one.
    pub(super) fn enter(&self, now: Tick) -> Option<HandshakePermit<'_>> {
        if self.active.get() >= self.handshakes_max {
            let silent = self.silent.borrow_mut().pop_front();
            let longest = silent.or_else(|| self.overdue(now))?;
            longest.evicted.set(true);
            longest.wake();
            self.active.set(self.active.get() - 1);
        }
        self.active.set(self.active.get() + 1);
        let entry = Rc::<WaitingHandshake>::default();
        self.silent.borrow_mut().push_back(Rc::clone(&entry));
        Some(HandshakePermit { limiter: self, entry })
    }

    fn overdue(&self, now: Tick) -> Option<Rc<WaitingHandshake>> {
        let mut awaiting_answer = self.awaiting_answer.borrow_mut();
        awaiting_answer.pop_front_if(|(due, _)| *due <= now).map(|(_, entry)| entry)
    }

    /// Waits in the queue.
    pub(super) async fn cpu_turn(&self) -> CpuTurn<'_> {
        let entry = Rc::<WaitingHandshake>::default();
        self.waiting.borrow_mut().push_back(Rc::clone(&entry));
        let turn = CpuTurn { limiter: self, entry }; // leaves the queue if the wait is cancelled
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
    /// The ClientHello has arrived: from now on the handshake is not evicted.
    pub(super) fn mark_active(&self) {
        remove(&mut self.limiter.silent.borrow_mut(), &self.entry);
    }

    /// The client has the server's flight: the handshake may be evicted from `due` on.
    pub(super) fn answer_due(&self, due: Tick) {
        self.limiter.awaiting_answer.borrow_mut().push_back((due, Rc::clone(&self.entry)));
    }

    /// Resolves when the permit was taken for another handshake.
    pub(super) async fn evicted(&self) {
        poll_fn(|cx| {
            if self.entry.evicted.get() {
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
        if !self.entry.evicted.get() {
            self.mark_active();
            self.limiter.awaiting_answer.borrow_mut().retain(|(_, entry)| !Rc::ptr_eq(entry, &self.entry));
            self.limiter.active.set(self.limiter.active.get() - 1);
        }
    }
}

impl Drop for CpuTurn<'_> {
    fn drop(&mut self) {
        let mut queue = self.limiter.waiting.borrow_mut();
        remove(&mut queue, &self.entry);
        if let Some(first) = queue.front() {
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

/// A linear scan over at most `handshakes_max`; the entry is usually near the front.
fn remove(queue: &mut VecDeque<Rc<WaitingHandshake>>, entry: &Rc<WaitingHandshake>) {
    if let Some(at) = queue.iter().position(|one| Rc::ptr_eq(one, entry)) {
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
    fn longest_silent_handshake_is_evicted_first() {
        let limiter = HandshakeLimiter::new(2);
        let (first, second) = (limiter.enter(NOW).unwrap(), limiter.enter(NOW).unwrap());
        first.mark_active();
        let third = limiter.enter(NOW).unwrap();
        assert!(poll(pin!(first.evicted())).is_pending());
        assert!(poll(pin!(second.evicted())).is_ready());
        third.mark_active();
        assert!(limiter.enter(NOW).is_none());
        drop(second); // it had no permit any more
        assert!(limiter.enter(NOW).is_none());
        drop(first);
        assert!(limiter.enter(NOW).is_some());
    }

    #[test]
    fn hello_only_clients_do_not_block_others() {
        let limiter = HandshakeLimiter::new(2);
        let permits = [limiter.enter(NOW).unwrap(), limiter.enter(NOW).unwrap()];
        let due = NOW + Duration::from_secs(1);
        for entry in &permits {
            entry.mark_active();
            entry.answer_due(due);
        }
        assert!(limiter.enter(NOW).is_none());
        let third = limiter.enter(due).unwrap();
        assert!(poll(pin!(permits[0].evicted())).is_ready());
        assert!(poll(pin!(permits[1].evicted())).is_pending());
        third.mark_active();
        let [first, second] = permits;
        drop(second); // done in time
        assert!(limiter.enter(due).is_some());
        drop((first, third));
        assert!(limiter.awaiting_answer.borrow().is_empty());
    }

    #[test]
    fn cpu_turns_are_in_order_even_after_a_cancelled_wait() {
        let limiter = HandshakeLimiter::new(8);
        let first = pin!(limiter.cpu_turn());
        let mut third = pin!(limiter.cpu_turn());
        let Poll::Ready(held) = poll(first) else { panic!("an empty queue must not wait") };
        {
            let mut second = pin!(limiter.cpu_turn());
            assert!(poll(second.as_mut()).is_pending());
            assert!(poll(third.as_mut()).is_pending());
            drop(held);
            assert!(poll(third.as_mut()).is_pending());
        }
        assert!(poll(third).is_ready());
    }
}
