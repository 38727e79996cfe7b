//! Reports of a core to control. The queue belongs to this contract; control drains it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_queue::ArrayQueue;

/// Reports that may wait for control. When the queue is full a report is dropped, and the sender repeats it while the
/// need lasts (see [`SignalQueue::send`]).
pub const SIGNALS_MAX: usize = 4096;

/// One report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// A request or delivery waits and no instance of `backend` has free capacity. Sent for the first waiting request,
    /// not for each.
    Demand { backend: Box<str> },
    /// An instance refused a connection: control should check whether it is alive.
    Unreachable { backend: Box<str>, endpoint: u64 },
    /// The core's log failed and accepts nothing more until the process is restarted.
    LogFailed { core: usize, reason: Box<str> },
}

/// Many cores send, control receives; lock-free.
#[derive(Clone)]
pub struct SignalQueue {
    queue: Arc<ArrayQueue<Signal>>,
    dropped: Arc<AtomicU64>,
    /// Wakes the control thread. Called after a push, from a core's thread, so it must not block.
    wake_control: Arc<dyn Fn() + Send + Sync>,
}

impl SignalQueue {
    pub fn new(wake_control: impl Fn() + Send + Sync + 'static) -> Self {
        let queue = Arc::new(ArrayQueue::new(SIGNALS_MAX));
        Self { queue, dropped: Arc::default(), wake_control: Arc::new(wake_control) }
    }

    /// Sends a report; `false` when the queue is full, so that the caller retries later.
    #[must_use]
    pub fn send(&self, signal: Signal) -> bool {
        let taken = self.queue.push(signal).is_ok();
        if !taken {
            self.dropped.fetch_add(1, Relaxed);
        }
        (self.wake_control)();
        taken
    }

    /// Reports dropped because the queue was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// The oldest report, if any.
    #[must_use]
    pub fn receive(&self) -> Option<Signal> {
        self.queue.pop()
    }
}

impl fmt::Debug for SignalQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("waiting", &self.queue.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_beyond_the_limit_are_dropped_and_counted() {
        let signals = SignalQueue::new(|| {});
        let demand = || Signal::Demand { backend: "ns/r".into() };
        assert!((0..SIGNALS_MAX).all(|_| signals.send(demand())));
        assert_eq!((signals.send(demand()), signals.dropped()), (false, 1));
        assert!(signals.receive().is_some() && signals.send(demand()));
        assert_eq!(signals.dropped(), 1);
    }
}
