//! Tracks the open connections of one core: their number, which are idle, and the drain.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The progress of a drain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum DrainStage {
    #[default]
    Open,
    /// New connections are refused, and every response announces that its connection closes.
    Closing,
    /// Idle connections close.
    Draining,
}

/// Holds a guard for every open connection.
#[derive(Default)]
pub struct ConnectionTracker {
    stage: Cell<DrainStage>,
    open: Cell<usize>,
    connections: RefCell<TrackedConnections>,
    /// Woken when the last connection is gone.
    waits_for_empty: Cell<Option<Waker>>,
    /// The tasks that accept connections.
    acceptors: RefCell<Vec<Waker>>,
}

#[derive(Default)]
struct TrackedConnections {
    /// The waker of a connection between two requests.
    idle: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// Registers one connection until it is dropped.
pub struct ConnectionGuard {
    tracker: Rc<ConnectionTracker>,
    number: usize,
}

impl ConnectionTracker {
    /// Registers a connection, unless `open_max` are open.
    pub fn enter(self: &Rc<Self>, open_max: usize) -> Option<ConnectionGuard> {
        if self.open.get() >= open_max {
            return None;
        }
        self.open.set(self.open.get() + 1);
        let mut connections = self.connections.borrow_mut();
        let number = connections.free.pop().unwrap_or_else(|| {
            connections.idle.push(None);
            connections.idle.len() - 1
        });
        Some(ConnectionGuard { tracker: Rc::clone(self), number })
    }

    #[inline]
    pub fn open(&self) -> usize {
        self.open.get()
    }

    /// From now on connections close after their next request. Idle ones may still send it: a server that closes an
    /// idle HTTP/1 connection may meet a request in flight, and the client cannot know whether it was processed.
    pub fn close_acceptors(&self) {
        self.advance_to(DrainStage::Closing);
    }

    /// From now on connections close after their current request; idle ones at once.
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

    /// Ready when no new connection should be accepted.
    pub fn poll_closing(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stage.get() >= DrainStage::Closing {
            return Poll::Ready(());
        }
        let mut acceptors = self.acceptors.borrow_mut();
        if !acceptors.iter().any(|known| known.will_wake(cx.waker())) {
            acceptors.push(cx.waker().clone());
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
    /// Whether a response has to announce that its connection closes.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.tracker.stage.get() >= DrainStage::Closing
    }

    /// Ready when an idle connection should close.
    pub fn poll_draining(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_stage(DrainStage::Draining, cx)
    }

    /// Ready when a connection that can close without losing a request should do so.
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
        let tracker = &self.tracker;
        {
            let mut connections = tracker.connections.borrow_mut();
            connections.idle[self.number] = None;
            connections.free.push(self.number);
        }
        tracker.open.set(tracker.open.get() - 1);
        if tracker.open.get() == 0
            && let Some(waker) = tracker.waits_for_empty.take()
        {
            waker.wake();
        }
    }
}
