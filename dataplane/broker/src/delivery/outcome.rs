//! Outcomes of an event for a subscriber, and the counters of each.

use std::sync::atomic::Ordering::Relaxed;

use contract::load::SubscriberCounters;

/// How an event ended for this subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventOutcome {
    Delivered,
    Filtered,
    DeadLettered,
    /// Dropped: there is no dead letter sink.
    Sinkless,
    /// Dropped: the dead letter sink rejected it.
    SinkRefused,
    /// Dropped by retention: too old, or too much data.
    Expired,
    /// Dropped: the disk changed it.
    Damaged,
    /// Dropped: a core stopped at it.
    Stalled,
}

impl EventOutcome {
    /// Counts this many events with this outcome; for drops also the reason.
    pub(super) fn count(self, events: u64, tally: &SubscriberCounters) {
        let (counter, reason) = match self {
            Self::Delivered => (&tally.delivered, None),
            Self::Filtered => (&tally.filtered, None),
            Self::DeadLettered => (&tally.dead_lettered, None),
            Self::Sinkless => (&tally.dropped, Some(&tally.sinkless)),
            Self::SinkRefused => (&tally.dropped, Some(&tally.sink_refused)),
            Self::Expired => (&tally.dropped, Some(&tally.expired)),
            Self::Damaged => (&tally.dropped, Some(&tally.damaged)),
            Self::Stalled => (&tally.dropped, Some(&tally.stalled_dropped)),
        };
        for counter in [Some(counter), reason].into_iter().flatten() {
            counter.fetch_add(events, Relaxed);
        }
    }
}
