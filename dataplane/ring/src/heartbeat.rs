//! What other threads see of a loop: that it turns, and what it works on.
//!
//! A loop that is stuck in a task can tell nobody, so it says before each piece of work what that is. All of it
//! is written by the loop's own thread with plain stores, and costs no clock, no lock and no system call. A loop that
//! may sleep for longer than its watcher waits needs a timer that wakes it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Words that say what is worked on; their meaning is the owner's.
pub type Work = [u64; 4];

/// Of one loop.
#[derive(Debug, Default)]
pub struct Heartbeat {
    turns: AtomicU64,
    work: [AtomicU64; 4],
    ended: AtomicBool,
}

impl Heartbeat {
    /// Turns of the loop so far. One that does not rise belongs to a loop that does not turn.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns.load(Relaxed)
    }

    /// What the loop works on; zeros if it said nothing. Exact only while the loop does not turn.
    #[must_use]
    pub fn work(&self) -> Work {
        self.work.each_ref().map(|word| word.load(Relaxed))
    }

    /// Whether there will be no more turns.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Says that there will be no more turns.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Says what is worked on, until the answer is dropped. Not to be held over an await: other tasks run there.
    #[must_use]
    pub fn begin(&self, work: Work) -> Working<'_> {
        self.set(work);
        Working(self)
    }

    /// Only the loop's thread calls it, so that a load and a store are as good as a locked addition.
    pub(crate) fn beat(&self) {
        self.turns.store(self.turns.load(Relaxed).wrapping_add(1), Relaxed);
    }

    fn set(&self, work: Work) {
        self.work.iter().zip(work).for_each(|(word, value)| word.store(value, Relaxed));
    }
}

/// See [`Heartbeat::begin`].
#[derive(Debug)]
pub struct Working<'h>(&'h Heartbeat);

impl Working<'_> {
    /// Goes on with this.
    pub fn on(&self, work: Work) {
        self.0.set(work);
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.set(Work::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_seen_until_it_ends() {
        let heartbeat = Heartbeat::default();
        let working = heartbeat.begin([1, 2, 3, 4]);
        assert_eq!(heartbeat.work(), [1, 2, 3, 4]);
        working.on([5, 6, 7, 8]);
        assert_eq!(heartbeat.work(), [5, 6, 7, 8]);
        drop(working);
        assert_eq!(heartbeat.work(), Work::default());
    }
}
