//! What other threads see of a loop: that it makes progress, and its current work.
//!
//! A loop that is stuck in a task cannot report it, so it records its work before each piece of it. The
//! loop's own thread writes all of this with plain stores; it costs no clock, no lock and no system call. A
//! loop that may sleep for longer than its watchdog waits needs a timer that wakes it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Describes the current work; the owner defines the meaning.
pub type CurrentWork = [u64; 4];

/// The heartbeat of one loop.
#[derive(Debug, Default)]
pub struct Heartbeat {
    turns: AtomicU64,
    work: [AtomicU64; 4],
    /// A guard of that work exists.
    working: AtomicBool,
    ended: AtomicBool,
}

impl Heartbeat {
    /// Turns of the loop so far. When it does not rise, the loop is stuck.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns.load(Relaxed)
    }

    /// The current work of the loop; zeros if none is recorded. Exact only while the loop is stuck.
    #[must_use]
    pub fn work(&self) -> CurrentWork {
        if self.working.load(Relaxed) { self.last_work() } else { CurrentWork::default() }
    }

    /// The latest work of this turn, also if it is done: a turn may be long because of many pieces of work,
    /// and not of one. Zeros if there was none.
    #[must_use]
    pub fn last_work(&self) -> CurrentWork {
        self.work.each_ref().map(|word| word.load(Relaxed))
    }

    /// Whether the loop has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Records that the loop has ended.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    /// Records the current work until the guard is dropped. Do not hold it over an await: other tasks run
    /// there.
    #[must_use]
    pub fn begin(&self, work: CurrentWork) -> Working<'_> {
        self.set(work);
        Working(self)
    }

    /// Only the loop's thread calls it, so a load and a store suffice instead of an atomic addition.
    pub(crate) fn beat(&self) {
        self.turns.store(self.turns.load(Relaxed).wrapping_add(1), Relaxed);
        self.work[0].store(0, Relaxed); // names the kind of work: 0 is none
    }

    fn set(&self, work: CurrentWork) {
        self.working.store(true, Relaxed);
        self.work.iter().zip(work).for_each(|(word, value)| word.store(value, Relaxed));
    }
}

/// See [`Heartbeat::begin`].
#[derive(Debug)]
pub struct Working<'h>(&'h Heartbeat);

impl Working<'_> {
    /// Replaces the recorded work.
    pub fn on(&self, work: CurrentWork) {
        self.0.set(work);
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_work_is_visible_until_turn_ends() {
        let heartbeat = Heartbeat::default();
        drop(heartbeat.begin([1, 2, 3, 4]));
        assert_eq!((heartbeat.work(), heartbeat.last_work()), (CurrentWork::default(), [1, 2, 3, 4]));
        heartbeat.beat();
        assert_eq!(heartbeat.last_work()[0], 0);
    }

    #[test]
    fn work_is_visible_until_guard_is_dropped() {
        let heartbeat = Heartbeat::default();
        let working = heartbeat.begin([1, 2, 3, 4]);
        assert_eq!(heartbeat.work(), [1, 2, 3, 4]);
        working.on([5, 6, 7, 8]);
        assert_eq!(heartbeat.work(), [5, 6, 7, 8]);
        drop(working);
        assert_eq!(heartbeat.work(), CurrentWork::default());
    }
}
