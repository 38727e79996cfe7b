//! What deleted streams and subscribers had still to get when they were forgotten: counted, where no stream is left
//! to count it at, and told by name to whoever tells their owners.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_queue::ArrayQueue;

use super::limits::LEFT_TOLD_MAX;

/// What was forgotten, and with how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// By its name in the log.
    pub stream: Box<str>,
    /// All of the stream, and not only one of its subscribers.
    pub is_whole: bool,
    /// Each subscriber's are counted. Above 0.
    pub events: u64,
}

/// Of all cores. Does not grow: what does not fit is counted, and logged by the core, but not told.
pub struct LeftBehind {
    events: AtomicU64,
    news: ArrayQueue<Left>,
}

impl Default for LeftBehind {
    fn default() -> Self {
        Self { events: AtomicU64::new(0), news: ArrayQueue::new(LEFT_TOLD_MAX) }
    }
}

impl LeftBehind {
    /// Counts it, and keeps it for the next [`take`](Self::take).
    pub fn tell(&self, left: Left) {
        self.events.fetch_add(left.events, Relaxed);
        let _ = self.news.push(left);
    }

    /// All since the start.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// Those that came since the last call.
    pub fn take(&self) -> impl Iterator<Item = Left> + '_ {
        std::iter::from_fn(|| self.news.pop())
    }
}

impl fmt::Debug for LeftBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeftBehind").field("events", &self.events).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_room_for_is_counted_all_the_same() {
        let all = LeftBehind::default();
        let left = Left { stream: "broker/ns/b/1".into(), is_whole: true, events: 2 };
        (0..LEFT_TOLD_MAX + 3).for_each(|_| all.tell(left.clone()));
        assert_eq!(all.events(), 2 * (LEFT_TOLD_MAX as u64 + 3));
        assert_eq!((all.take().count(), all.take().count()), (LEFT_TOLD_MAX, 0));
    }
}
