//! Undelivered events of deleted streams and subscribers: counted, because no stream is left to count them
//! at, and reported by name so that control can tell the owners.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_queue::ArrayQueue;

use crate::limits::ABANDONED_REPORTED_MAX;

/// A deleted stream or subscriber, and its undelivered events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbandonedEvents {
    /// Its name in the log.
    pub stream: Box<str>,
    /// The whole stream was deleted, and not only one of its subscribers.
    pub is_whole: bool,
    /// Counted per subscriber. Above 0.
    pub events: u64,
}

/// Shared by all cores. Does not grow: what does not fit is counted, and logged by the core, but not
/// reported.
pub struct AbandonedEventsReport {
    events: AtomicU64,
    news: ArrayQueue<AbandonedEvents>,
}

impl Default for AbandonedEventsReport {
    fn default() -> Self {
        Self { events: AtomicU64::new(0), news: ArrayQueue::new(ABANDONED_REPORTED_MAX) }
    }
}

impl AbandonedEventsReport {
    /// Counts it, and keeps it for the next [`take`](Self::take).
    pub fn report(&self, left: AbandonedEvents) {
        self.events.fetch_add(left.events, Relaxed);
        let _ = self.news.push(left);
    }

    /// Total since the start.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(Relaxed)
    }

    /// Those reported since the last call.
    pub fn take(&self) -> impl Iterator<Item = AbandonedEvents> + '_ {
        std::iter::from_fn(|| self.news.pop())
    }
}

impl fmt::Debug for AbandonedEventsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeftBehind").field("events", &self.events).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_beyond_limit_are_still_counted() {
        let all = AbandonedEventsReport::default();
        let left = AbandonedEvents { stream: "broker/ns/b/1".into(), is_whole: true, events: 2 };
        (0..ABANDONED_REPORTED_MAX + 3).for_each(|_| all.report(left.clone()));
        assert_eq!(all.events(), 2 * (ABANDONED_REPORTED_MAX as u64 + 3));
        assert_eq!((all.take().count(), all.take().count()), (ABANDONED_REPORTED_MAX, 0));
    }
}
