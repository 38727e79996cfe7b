//! The open connections of one core: how many, who is idle, and how all are told that the core stops.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// How far the end has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum DrainStage {
    #[default]
    Open,
    /// Nobody is taken in any more, and every answer says that its connection ends.
    Closing,
    /// Idle connections go.
    Draining,
}

/// Every open connection has a seat here.
#[derive(Default)]
pub struct ConnectionTracker {
    stage: Cell<DrainStage>,
    open: Cell<usize>,
    connections: RefCell<TrackedConnections>,
    /// Waits for the last connection to go.
    waits_for_empty: Cell<Option<Waker>>,
    /// Doormen, who stop taking connections in.
    acceptors: RefCell<Vec<Waker>>,
}

#[derive(Default)]
struct TrackedConnections {
    /// The waker of a connection between two requests.
    idle: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// One connection's seat; dropped with it.
pub struct ConnectionGuard {
    tracker: Rc<ConnectionTracker>,
    number: usize,
}

impl ConnectionTracker {
    /// Sits a connection down, unless `open_max` are there.
    pub fn enter(self: &Rc<Self>, open_max: usize) -> Option<ConnectionGuard> {
        if self.open.get() >= open_max {
            return None;
        }
        self.open.set(self.open.get() + 1);
        let mut seats = self.connections.borrow_mut();
        let number = seats.free.pop().unwrap_or_else(|| {
            seats.idle.push(None);
            seats.idle.len() - 1
        });
        Some(ConnectionGuard { tracker: Rc::clone(self), number })
    }

    pub fn open(&self) -> usize {
        self.open.get()
    }

    /// From now on connections end after their next request. Idle ones may still bring it: who closes an idle
    /// connection of HTTP/1 may meet a request that is on its way, and the client cannot know what became of it.
    pub fn close_acceptors(&self) {
        self.advance_to(DrainStage::Closing);
    }

    /// From now on connections end after their current request; idle ones at once.
    pub fn drain(&self) {
        self.advance_to(DrainStage::Draining);
    }

    fn advance_to(&self, stage: DrainStage) {
        self.stage.set(self.stage.get().max(stage));
        let idle: Vec<_> = self.connections.borrow_mut().idle.iter_mut().filter_map(Option::take).collect();
        for waker in idle.into_iter().chain(self.acceptors.take()) {
            waker.wake();
        }
    }

    /// Ready when no connection should be taken in any more.
    pub fn poll_closing(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stage.get() >= DrainStage::Closing {
            return Poll::Ready(());
        }
        let mut doormen = self.acceptors.borrow_mut();
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

impl ConnectionGuard {
    /// Whether an answer has to say that its connection ends.
    pub fn is_draining(&self) -> bool {
        self.tracker.stage.get() >= DrainStage::Closing
    }

    /// Ready when an idle connection should go.
    pub fn poll_draining(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_stage(DrainStage::Draining, cx)
    }

    /// Ready when a connection that can say goodbye without losing anything should do so.
    pub fn poll_closing(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_stage(DrainStage::Closing, cx)
    }

    fn poll_stage(&self, stage: DrainStage, cx: &mut Context<'_>) -> Poll<()> {
        if self.tracker.stage.get() >= stage {
            return Poll::Ready(());
        }
        let waker = &mut self.tracker.connections.borrow_mut().idle[self.number];
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let roster = &self.tracker;
        {
            let mut seats = roster.connections.borrow_mut();
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
