//! When a core stays awake for a lone sender.
//!
//! A sender that waits for each answer is as fast as the disk's flush and the wake-ups around it: of the core when the
//! request comes, of the kernel's worker, of the core when the flush is done. On a processor that went to sleep they take as
//! long as a quick flush (p50 254 µs asleep, 157 µs awake, the flush itself 100 µs). So while at most [`LONE_MAX`] senders wait
//! for a quick flush, and while the next request of such a sender is about to come, the core looks instead of sleeping. What it
//! costs is processor time that nobody else wanted: it is given away between two looks.

use std::time::Duration;

use ring::Tick;

use super::limits::{LONE_MAX, NEXT_REQUEST_MAX, QUICK_FLUSH_MAX};

/// What is known of the flushes so far.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    began: Tick,
    ended: Tick,
    /// How long the last flush took, and the one before: a single slow one says nothing of the next.
    took: [Duration; 2],
    is_active: bool,
    /// The flush began soon after the one before: its sender waits for each answer, and then goes on at once.
    is_prompt: bool,
}

impl BusyPoll {
    /// A flush begins now, and so many senders wait for it. Until when the core stays awake.
    pub(super) fn start(&mut self, now: Tick, waiting: usize) -> Tick {
        self.is_active = (1..=LONE_MAX).contains(&waiting) && self.took.iter().any(|took| *took <= QUICK_FLUSH_MAX);
        self.is_prompt = now - self.ended <= NEXT_REQUEST_MAX;
        self.began = now;
        if self.is_active { now + QUICK_FLUSH_MAX } else { now }
    }

    /// It is done.
    pub(super) fn end(&mut self, now: Tick) -> Tick {
        (self.took, self.ended) = ([now - self.began, self.took[0]], now);
        if self.is_active && self.is_prompt { now + NEXT_REQUEST_MAX } else { now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(100);

    /// Flushes of (pause before it, time it takes, senders that wait), and for each how long the core is to stay awake during
    /// and after it.
    fn kept(flushes: &[(Duration, Duration, usize)]) -> Vec<(Duration, Duration)> {
        let (mut vigil, mut now) = (BusyPoll::default(), Tick::from_nanos(1_000_000_000));
        let each = flushes.iter().map(|(pause, takes, waiting)| {
            now = now + *pause;
            let during = vigil.start(now, *waiting) - now;
            now = now + *takes;
            (during, vigil.end(now) - now)
        });
        each.collect()
    }

    #[test]
    fn a_lone_sender_is_waited_for_and_a_crowd_is_not() {
        let (none, pause, late) = (Duration::ZERO, NEXT_REQUEST_MAX / 2, NEXT_REQUEST_MAX * 2);
        let flush = QUICK_FLUSH_MAX;
        for (flushes, expected) in [
            // The second comes at once after the first, so a third is likely.
            (vec![(late, QUICK, 1), (pause, QUICK, 1)], vec![(flush, none), (flush, NEXT_REQUEST_MAX)]),
            // Events that come now and then.
            (vec![(late, QUICK, 1), (late, QUICK, 1)], vec![(flush, none), (flush, none)]),
            // Many senders: while one waits, another's request is there. Bookmarks: nobody waits.
            (vec![(pause, QUICK, LONE_MAX + 1), (pause, QUICK, 0)], vec![(none, none), (none, none)]),
            // Beside a slow disk a wake-up is nothing. A single slow flush is waited for no longer than a quick one, and not
            // held against the next.
            (
                vec![(late, QUICK, 1), (late, flush * 9, 1), (late, flush * 9, 1), (late, QUICK, 1), (late, QUICK, 1)],
                vec![(flush, none), (flush, none), (flush, none), (none, none), (flush, none)],
            ),
        ] {
            assert_eq!(kept(&flushes), expected, "{flushes:?}");
        }
    }
}
