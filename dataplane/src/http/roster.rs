//! The open connections of one core: how many, who is idle, and how all are told that the core stops.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Every open connection has a seat here.
#[derive(Default)]
pub struct Roster {
    draining: Cell<bool>,
    open: Cell<usize>,
    seats: RefCell<Seats>,
    /// Waits for the last connection to go.
    waits_for_empty: Cell<Option<Waker>>,
    /// Doormen, who stop taking connections in.
    doormen: RefCell<Vec<Waker>>,
}

#[derive(Default)]
struct Seats {
    /// The waker of a connection between two requests.
    idle: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// One connection's seat; dropped with it.
pub struct Seat {
    roster: Rc<Roster>,
    number: usize,
}

impl Roster {
    /// Sits a connection down, unless `open_max` are there.
    pub fn enter(self: &Rc<Self>, open_max: usize) -> Option<Seat> {
        if self.open.get() >= open_max {
            return None;
        }
        self.open.set(self.open.get() + 1);
        let mut seats = self.seats.borrow_mut();
        let number = seats.free.pop().unwrap_or_else(|| {
            seats.idle.push(None);
            seats.idle.len() - 1
        });
        Some(Seat { roster: Rc::clone(self), number })
    }

    pub fn open(&self) -> usize {
        self.open.get()
    }

    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// From now on connections end after their current request; idle ones at once.
    pub fn drain(&self) {
        self.draining.set(true);
        let idle: Vec<_> = self.seats.borrow_mut().idle.iter_mut().filter_map(Option::take).collect();
        for waker in idle.into_iter().chain(self.doormen.take()) {
            waker.wake();
        }
    }

    /// Ready when no connection should be taken in any more.
    pub fn poll_closing(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.draining.get() {
            return Poll::Ready(());
        }
        let mut doormen = self.doormen.borrow_mut();
        if !doormen.iter().any(|known| known.will_wake(cx.waker())) {
            doormen.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Ready when no connection is open.
    pub fn poll_empty(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.open.get() == 0 {
            return Poll::Ready(());
        }
        self.waits_for_empty.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Seat {
    pub fn is_draining(&self) -> bool {
        self.roster.draining.get()
    }

    /// Ready when an idle connection should go.
    pub fn poll_draining(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.roster.draining.get() {
            return Poll::Ready(());
        }
        let waker = &mut self.roster.seats.borrow_mut().idle[self.number];
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let roster = &self.roster;
        {
            let mut seats = roster.seats.borrow_mut();
            seats.idle[self.number] = None;
            seats.free.push(self.number);
        }
        roster.open.set(roster.open.get() - 1);
        if roster.open.get() == 0
            && let Some(waker) = roster.waits_for_empty.take()
        {
            waker.wake();
        }
    }
}
