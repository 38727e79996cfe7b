//! When a core busy polls for a single sender.
//!
//! A sender that waits for each response is as fast as the disk's flush plus the wake-ups around it: of the
//! core when the request comes, of the kernel's worker, of the core when the flush is done. On a sleeping
//! processor they take as long as a fast flush (p50 254 µs sleeping, 157 µs polling, the flush itself 100
//! µs). So while at most [`LONE_MAX`] senders wait for a fast flush, and while the next request of such a
//! sender is expected, the core polls and does not sleep. It costs only processor time that nothing else
//! needs: the core yields between two polls.

use std::time::Duration;

use ring::Tick;

use super::limits::{LONE_MAX, NEXT_REQUEST_MAX, QUICK_FLUSH_MAX};

/// Statistics of the recent flushes.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    began: Tick,
    ended: Tick,
    /// Duration of the last flush and of the one before: a single slow one says nothing about the next.
    took: [Duration; 2],
    is_active: bool,
    /// The flush began soon after the one before: its sender waits for each response and continues at once.
    is_prompt: bool,
}

impl BusyPoll {
    /// A flush starts, with this many senders waiting for it. Returns until when the core polls.
    pub(super) fn start(&mut self, now: Tick, waiting: usize) -> Tick {
        self.is_active = (1..=LONE_MAX).contains(&waiting) && self.took.iter().any(|took| *took <= QUICK_FLUSH_MAX);
        self.is_prompt = now - self.ended <= NEXT_REQUEST_MAX;
        self.began = now;
        if self.is_active { now + QUICK_FLUSH_MAX } else { now }
    }

    /// The flush is done.
    pub(super) fn end(&mut self, now: Tick) -> Tick {
        (self.took, self.ended) = ([now - self.began, self.took[0]], now);
        if self.is_active && self.is_prompt { now + NEXT_REQUEST_MAX } else { now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(100);

    /// For flushes of (pause before it, duration, waiting senders) returns how long the core polls during
    /// and after each.
    fn kept(flushes: &[(Duration, Duration, usize)]) -> Vec<(Duration, Duration)> {
        let (mut busy_poll, mut now) = (BusyPoll::default(), Tick::from_nanos(1_000_000_000));
        let each = flushes.iter().map(|(pause, takes, waiting)| {
            now = now + *pause;
            let during = busy_poll.start(now, *waiting) - now;
            now = now + *takes;
            (during, busy_poll.end(now) - now)
        });
        each.collect()
    }

    #[test]
    fn core_busy_polls_only_for_single_sender() {
        let (none, pause, late) = (Duration::ZERO, NEXT_REQUEST_MAX / 2, NEXT_REQUEST_MAX * 2);
        let flush = QUICK_FLUSH_MAX;
        for (flushes, expected) in [
            // The second comes at once after the first, so a third is likely.
            (vec![(late, QUICK, 1), (pause, QUICK, 1)], vec![(flush, none), (flush, NEXT_REQUEST_MAX)]),
            // Occasional events.
            (vec![(late, QUICK, 1), (late, QUICK, 1)], vec![(flush, none), (flush, none)]),
            // Many senders: while one waits, another's request arrives. Cursors: no sender waits.
            (vec![(pause, QUICK, LONE_MAX + 1), (pause, QUICK, 0)], vec![(none, none), (none, none)]),
            // With a slow disk a wake-up does not matter. A single slow flush is polled for no longer than
            // a fast one, and does not affect the next.
            (
                vec![(late, QUICK, 1), (late, flush * 9, 1), (late, flush * 9, 1), (late, QUICK, 1), (late, QUICK, 1)],
                vec![(flush, none), (flush, none), (flush, none), (none, none), (flush, none)],
            ),
        ] {
            assert_eq!(kept(&flushes), expected, "{flushes:?}");
        }
    }
}
