//! Tracks the open connections of one core: their number, which are idle, and the drain.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
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
    /// All connections close.
    Cut,
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
    /// Counts the connections of this tracker too, and ends them with its own.
    parent: Option<Rc<ConnectionTracker>>,
    children: RefCell<Vec<Weak<ConnectionTracker>>>,
}

#[derive(Default)]
struct TrackedConnections {
    /// The waker of a connection between two requests.
    idle: Vec<Option<Waker>>,
    /// The wakers of connections that wait for [`ConnectionTracker::cut`].
    cut: Vec<Option<Waker>>,
    free: Vec<usize>,
}

/// Registers one connection until it is dropped.
pub struct ConnectionGuard {
    tracker: Rc<ConnectionTracker>,
    number: usize,
}

/// Ready when a connection has to close at once.
pub struct CutSignal {
    tracker: Rc<ConnectionTracker>,
    number: usize,
}

impl ConnectionTracker {
    /// A tracker for the connections of one listener of several. `parent` counts them too, and they end with its own.
    #[must_use]
    pub fn child_of(parent: &Rc<Self>) -> Rc<Self> {
        let child = Rc::new(Self { stage: parent.stage.clone(), parent: Some(Rc::clone(parent)), ..Self::default() });
        let mut children = parent.children.borrow_mut();
        children.retain(|known| known.strong_count() > 0);
        children.push(Rc::downgrade(&child));
        child
    }

    /// Registers a connection, unless `open_max` are open: with those of the parent, if it has one.
    pub fn enter(self: &Rc<Self>, open_max: usize) -> Option<ConnectionGuard> {
        let all = self.parent.as_ref().unwrap_or(self);
        if all.open.get() >= open_max {
            return None;
        }
        all.open.set(all.open.get() + 1);
        if self.parent.is_some() {
            self.open.set(self.open.get() + 1);
        }
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

    /// From now on connections close, whatever they do. Those without a [`CutSignal`] only drain.
    pub fn cut(&self) {
        self.advance_to(DrainStage::Cut);
        let connections: Vec<_> = self.connections.borrow_mut().cut.iter_mut().filter_map(Option::take).collect();
        connections.into_iter().for_each(Waker::wake);
    }

    fn advance_to(&self, stage: DrainStage) {
        self.stage.set(self.stage.get().max(stage));
        let idle: Vec<_> = self.connections.borrow_mut().idle.iter_mut().filter_map(Option::take).collect();
        for waker in idle.into_iter().chain(self.acceptors.take()) {
            waker.wake();
        }
        let children: Vec<_> = self.children.borrow().iter().filter_map(Weak::upgrade).collect();
        children.iter().for_each(|child| child.advance_to(stage));
    }

    /// A connection ended.
    fn leave(&self) {
        self.open.set(self.open.get() - 1);
        if self.open.get() == 0
            && let Some(waker) = self.waits_for_empty.take()
        {
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

impl CutSignal {
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.tracker.stage.get() >= DrainStage::Cut {
            return Poll::Ready(());
        }
        let wakers = &mut self.tracker.connections.borrow_mut().cut;
        if wakers.len() <= self.number {
            wakers.resize(self.number + 1, None);
        }
        let waker = &mut wakers[self.number];
        if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl ConnectionGuard {
    /// Tells when the connection has to close at once. It must not outlive the guard's connection.
    #[must_use]
    pub fn cut_signal(&self) -> CutSignal {
        CutSignal { tracker: Rc::clone(&self.tracker), number: self.number }
    }

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
            if let Some(waker) = connections.cut.get_mut(self.number) {
                *waker = None;
            }
            connections.free.push(self.number);
        }
        tracker.leave();
        if let Some(parent) = &tracker.parent {
            parent.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn parent_counts_and_limits_connections_of_its_children() {
        let parent = Rc::<ConnectionTracker>::default();
        let (one, other) = (ConnectionTracker::child_of(&parent), ConnectionTracker::child_of(&parent));
        let first = one.enter(2).unwrap();
        let second = other.enter(2).unwrap();
        assert!(one.enter(2).is_none() && parent.enter(2).is_none(), "two are open in all");
        assert_eq!((parent.open(), one.open(), other.open()), (2, 1, 1));
        drop(first);
        assert!(one.poll_empty(&mut context()).is_ready() && parent.poll_empty(&mut context()).is_pending());
        drop(second);
        assert!(parent.poll_empty(&mut context()).is_ready());
    }

    #[test]
    fn children_drain_with_their_parent_and_alone() {
        let parent = Rc::<ConnectionTracker>::default();
        let (one, other) = (ConnectionTracker::child_of(&parent), ConnectionTracker::child_of(&parent));
        let (first, second) = (one.enter(9).unwrap(), other.enter(9).unwrap());
        one.drain();
        assert!(first.poll_draining(&mut context()).is_ready() && !second.is_draining());
        parent.close_acceptors();
        assert!(second.is_draining() && other.poll_closing(&mut context()).is_ready());
        assert!(ConnectionTracker::child_of(&parent).poll_closing(&mut context()).is_ready(), "it comes too late");
    }

    #[test]
    fn cut_reaches_connections_that_do_not_drain() {
        let tracker = Rc::<ConnectionTracker>::default();
        let guard = tracker.enter(9).unwrap();
        let cut = guard.cut_signal();
        tracker.drain();
        assert!(cut.poll(&mut context()).is_pending());
        tracker.cut();
        assert!(cut.poll(&mut context()).is_ready());
    }
}
