//! A point in time on a ring's own clock.

use std::num::NonZeroU64;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since the ring began. Lasts 584 years; arithmetic saturates rather than wraps.
///
/// Holds one more than the nanoseconds, so that an `Option<Tick>` takes eight bytes: every connection has a dozen of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(NonZeroU64);

impl Tick {
    pub const ZERO: Self = Self(NonZeroU64::MIN);

    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }
}

impl Default for Tick {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Add<Duration> for Tick {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Tick {
    type Output = Duration;

    /// Zero when `earlier` is the later one.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_tick_takes_eight_bytes() {
        assert_eq!(size_of::<Option<Tick>>(), 8);
        assert_eq!((Tick::ZERO.as_nanos(), Tick::default()), (0, Tick::from_nanos(0)));
        assert_eq!(Tick::from_nanos(7).as_nanos(), 7);
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let early = Tick::from_nanos(5);
        let late = early + Duration::from_nanos(7);
        assert_eq!(late - early, Duration::from_nanos(7));
        assert_eq!(early - late, Duration::ZERO);
        assert_eq!(late + Duration::MAX, Tick::from_nanos(u64::MAX));
    }
}
