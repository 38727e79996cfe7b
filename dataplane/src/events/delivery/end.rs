//! How events end for a subscriber, and in which counters each end shows.

use std::sync::atomic::Ordering::Relaxed;

use crate::load::SubscriberTally;

/// How an event ended for this subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Delivered,
    Filtered,
    DeadLettered,
    /// Dropped: there is no dead letter sink.
    Sinkless,
    /// Dropped: the dead letter sink did not take it.
    SinkRefused,
    /// Dropped: too old, or too much.
    Expired,
    /// Dropped: the disk changed it.
    Damaged,
    /// Dropped: a core stopped at it.
    Stalled,
}

impl End {
    /// Counts so many events that ended like this; of a drop also why.
    pub(super) fn count(self, events: u64, tally: &SubscriberTally) {
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
