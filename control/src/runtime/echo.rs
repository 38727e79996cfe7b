//! How much of an instance's output the appliance's own log repeats.
//!
//! All of it is in the instance's log. The appliance's is one for everybody: who writes without end must not fill a
//! journal, or push the lines of others out of it.

use std::time::Instant;

use super::limits::{ECHO_BYTES_MAX, ECHO_LINE_BYTES_ADDED, ECHO_PERIOD};

/// Of one instance, or of one of its sidecars.
#[derive(Debug, Default)]
pub(super) struct Echo {
    /// When the present period began; `None` before the first line.
    began: Option<Instant>,
    /// Repeated since then.
    bytes: usize,
    /// Lines that were not repeated, and of which nobody was told yet.
    silent: u64,
}

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is repeated.
    Yes,
    /// It is repeated, and so many before it were not.
    Again { silent: u64 },
    /// There is no room for it now.
    Not,
}

impl Echo {
    /// Judges a line of so many bytes that came at `now`.
    pub(super) fn hear(&mut self, line_bytes: usize, now: Instant) -> Heard {
        if self.began.is_none_or(|began| now.duration_since(began) >= ECHO_PERIOD) {
            (self.began, self.bytes) = (Some(now), 0);
        }
        let bytes = self.bytes + line_bytes + ECHO_LINE_BYTES_ADDED;
        if bytes > ECHO_BYTES_MAX {
            self.silent += 1;
            return Heard::Not;
        }
        self.bytes = bytes;
        match self.silent() {
            0 => Heard::Yes,
            silent => Heard::Again { silent },
        }
    }

    /// Lines that nobody was told of; with this, somebody is.
    pub(super) fn silent(&mut self) -> u64 {
        std::mem::take(&mut self.silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RT-LIFE-09: a flood is repeated up to its bound in each period, and what is left out is counted.
    #[test]
    fn a_flood_is_repeated_up_to_a_bound_and_the_rest_is_counted() {
        let (start, mut echo) = (Instant::now(), Echo::default());
        let room = ECHO_BYTES_MAX / (ECHO_LINE_BYTES_ADDED + 1);
        let repeated = (0..room + 5).filter(|_| echo.hear(1, start) == Heard::Yes).count();
        assert_eq!(repeated, room);
        let next = start + ECHO_PERIOD;
        assert_eq!(echo.hear(1, next), Heard::Again { silent: 5 });
        assert_eq!(echo.hear(1, next), Heard::Yes);
        assert_eq!(echo.hear(ECHO_BYTES_MAX, next), Heard::Not);
        assert_eq!((echo.silent(), echo.silent()), (1, 0), "told once");
    }

    #[test]
    fn who_writes_now_and_then_is_always_repeated() {
        let (start, mut echo) = (Instant::now(), Echo::default());
        for second in 0..1000 {
            assert_eq!(echo.hear(16 * 1024, start + ECHO_PERIOD * second), Heard::Yes);
        }
    }
}
