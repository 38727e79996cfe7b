//! Two clocks: the monotonic one, which stops while the host is suspended, and the wall clock, which is set and steps.
//!
//! Tokens and certificates expire by the wall clock of the receiver, timers run by the monotonic one. A lifetime that
//! uses only one of them is wrong after a suspend or a step. [`Deadline`] uses both; [`StepWatch`] detects that
//! the clocks moved apart, so that sleeping timers are checked again. Tests set a [`WallClock`] of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A wall clock that is set back by less is not worth a renewal: receivers allow senders as much skew.
const STEP_BACK_MIN: SignedDuration = SignedDuration::from_secs(10);
/// The clocks moved apart by so much: more than what NTP slews in a minute, less than any lifetime.
const STEP_MIN: SignedDuration = SignedDuration::from_secs(10);
/// How often the two clocks are compared: after a suspend, a token that has ended is renewed within this time.
pub const STEP_LOOK_EVERY: Duration = Duration::from_secs(5);

/// The wall clock; in tests one that stands where it is set.
#[derive(Debug, Clone, Default)]
pub struct WallClock {
    /// Milliseconds since 1970.
    simulated: Option<Arc<AtomicI64>>,
}

impl WallClock {
    /// A clock that is at `at` until it is set.
    #[must_use]
    pub fn simulated(at: Timestamp) -> Self {
        Self { simulated: Some(Arc::new(AtomicI64::new(at.as_millisecond()))) }
    }

    /// Moves a simulated clock, forward or back; the system's is not ours to set.
    pub fn step(&self, by: SignedDuration) {
        if let Some(now) = &self.simulated {
            now.fetch_add(i64::try_from(by.as_millis()).unwrap_or(0), Relaxed);
        }
    }

    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.simulated {
            Some(now) => Timestamp::from_millisecond(now.load(Relaxed)).unwrap_or(Timestamp::UNIX_EPOCH),
            None => Timestamp::now(),
        }
    }

    /// The readings of both clocks.
    #[must_use]
    pub fn both(&self) -> Now {
        Now { monotonic: Instant::now(), wall: self.now() }
    }
}

/// A moment by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub monotonic: Instant,
    pub wall: Timestamp,
}

/// When something has to be renewed: once either clock is there, or the wall clock is before the moment of issue, because
/// what begins in the future is not valid either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    issued: Now,
    after: Duration,
}

impl Deadline {
    #[must_use]
    pub fn new(issued: Now, after: Duration) -> Self {
        Self { issued, after }
    }

    #[must_use]
    pub fn has_passed(&self, now: Now) -> bool {
        let by_wall = now.wall.duration_since(self.issued.wall);
        let after = SignedDuration::try_from(self.after).unwrap_or(SignedDuration::MAX);
        self.remaining(now).is_zero() || by_wall >= after || by_wall <= -STEP_BACK_MIN
    }

    /// How long a timer has to run. A step of the wall clock ends the wait earlier: see [`StepWatch`].
    #[must_use]
    pub fn remaining(&self, now: Now) -> Duration {
        self.after.saturating_sub(now.monotonic.saturating_duration_since(self.issued.monotonic))
    }
}

/// Notices that the wall clock moved otherwise than the monotonic one: it was set, or the host was suspended.
#[derive(Debug, Clone, Copy)]
pub struct StepWatch {
    base: Now,
}

impl StepWatch {
    #[must_use]
    pub fn new(now: Now) -> Self {
        Self { base: now }
    }

    /// How far the clocks moved apart since the last reported step.
    pub fn look(&mut self, now: Now) -> Option<SignedDuration> {
        let by_monotonic = now.monotonic.saturating_duration_since(self.base.monotonic);
        let by_monotonic = SignedDuration::try_from(by_monotonic).unwrap_or(SignedDuration::MAX);
        let step = now.wall.duration_since(self.base.wall).saturating_sub(by_monotonic);
        if step.abs() < STEP_MIN {
            return None;
        }
        self.base = now;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn start() -> Now {
        Now { monotonic: Instant::now(), wall: "2026-01-01T00:00:00Z".parse().unwrap() }
    }

    /// `start`, after so many seconds by each clock.
    fn after(start: Now, monotonic: u64, wall: i64) -> Now {
        Now { monotonic: start.monotonic + seconds(monotonic), wall: start.wall + SignedDuration::from_secs(wall) }
    }

    #[test]
    fn deadline_passes_by_the_clock_that_is_first() {
        let issued = start();
        let deadline = Deadline::new(issued, seconds(2_880));
        for (monotonic, wall, has_passed) in [
            (0, 0, false),
            (2_879, 2_879, false),
            (2_880, 2_880, true),
            (0, 7_200, true),   // a step ahead, or a suspend
            (2_880, 0, true),   // the wall clock stands still
            (60, 55, false),    // it is slewed
            (60, -3_600, true), // a step back: the token begins in the future
            (60, 60 - 86_400, true),
        ] {
            let found = deadline.has_passed(after(issued, monotonic, wall));
            assert_eq!(found, has_passed, "{monotonic} s by the monotonic clock, {wall} s by the wall");
        }
        assert_eq!(deadline.remaining(after(issued, 880, 0)), seconds(2_000));
        assert_eq!(deadline.remaining(after(issued, 9_000, 0)), Duration::ZERO);
    }

    #[test]
    fn step_of_wall_clock_is_reported_once() {
        let begin = start();
        let mut watch = StepWatch::new(begin);
        assert_eq!(watch.look(after(begin, 5, 5)), None);
        assert_eq!(watch.look(after(begin, 10, 12)), None);
        assert_eq!(watch.look(after(begin, 15, 7_215)), Some(SignedDuration::from_hours(2)));
        assert_eq!(watch.look(after(begin, 20, 7_220)), None);
        assert_eq!(watch.look(after(begin, 25, 25)), Some(SignedDuration::from_hours(-2)));
        // A fast clock is reported too, once it is far enough ahead.
        assert_eq!(watch.look(after(begin, 30, 39)), None);
        assert_eq!(watch.look(after(begin, 35, 46)), Some(SignedDuration::from_secs(11)));
        // One that stands still as well.
        assert_eq!(watch.look(after(begin, 45, 46)), Some(SignedDuration::from_secs(-10)));
    }

    #[test]
    fn simulated_clock_stands_until_it_is_set() {
        let clock = WallClock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        clock.step(SignedDuration::from_hours(-1));
        assert_eq!(clock.now().to_string(), "2025-12-31T23:00:00Z");
        assert_eq!(clock.clone().now(), clock.now());
    }
}
