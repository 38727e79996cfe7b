//! How much of an instance's output the appliance's own log repeats.
//!
//! All of it is in the instance's log. The appliance's log is shared: an instance that writes without end must not fill a
//! journal, or push out the lines of others.

use std::time::Instant;

use crate::limits::{OUTPUT_BYTES_PER_PERIOD_MAX, OUTPUT_LIMIT_PERIOD, OUTPUT_LINE_OVERHEAD_BYTES};

/// The limiter of one instance, or of one of its sidecars.
#[derive(Debug, Default)]
pub(crate) struct OutputLimiter {
    /// When the present period began; `None` before the first line.
    period_started_at: Option<Instant>,
    /// Repeated since then.
    bytes: usize,
    /// Lines that were not repeated, and are not reported yet.
    dropped: u64,
}

/// The decision for a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputDecision {
    /// It is repeated.
    Log,
    /// It is repeated, and so many before it were not.
    LogAfterDrops { silent: u64 },
    /// There is no room for it now.
    Drop,
}

impl OutputLimiter {
    /// Judges a line of so many bytes that came at `now`.
    pub(crate) fn admit(&mut self, line_bytes: usize, now: Instant) -> OutputDecision {
        if self.period_started_at.is_none_or(|began| now.duration_since(began) >= OUTPUT_LIMIT_PERIOD) {
            (self.period_started_at, self.bytes) = (Some(now), 0);
        }
        let bytes = self.bytes + line_bytes + OUTPUT_LINE_OVERHEAD_BYTES;
        if bytes > OUTPUT_BYTES_PER_PERIOD_MAX {
            self.dropped += 1;
            return OutputDecision::Drop;
        }
        self.bytes = bytes;
        match self.take_dropped() {
            0 => OutputDecision::Log,
            silent => OutputDecision::LogAfterDrops { silent },
        }
    }

    /// Lines that are not reported yet. The caller reports them.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RT-LIFE-09: a flood is repeated up to its bound in each period, and what is left out is counted.
    #[test]
    fn a_flood_is_repeated_up_to_a_bound_and_the_rest_is_counted() {
        let (start, mut echo) = (Instant::now(), OutputLimiter::default());
        let capacity = OUTPUT_BYTES_PER_PERIOD_MAX / (OUTPUT_LINE_OVERHEAD_BYTES + 1);
        let repeated = (0..capacity + 5).filter(|_| echo.admit(1, start) == OutputDecision::Log).count();
        assert_eq!(repeated, capacity);
        let next = start + OUTPUT_LIMIT_PERIOD;
        assert_eq!(echo.admit(1, next), OutputDecision::LogAfterDrops { silent: 5 });
        assert_eq!(echo.admit(1, next), OutputDecision::Log);
        assert_eq!(echo.admit(OUTPUT_BYTES_PER_PERIOD_MAX, next), OutputDecision::Drop);
        assert_eq!((echo.take_dropped(), echo.take_dropped()), (1, 0), "told once");
    }

    #[test]
    fn who_writes_now_and_then_is_always_repeated() {
        let (start, mut echo) = (Instant::now(), OutputLimiter::default());
        for second in 0..1000 {
            assert_eq!(echo.admit(16 * 1024, start + OUTPUT_LIMIT_PERIOD * second), OutputDecision::Log);
        }
    }
}
