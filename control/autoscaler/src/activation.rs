//! The progress deadline of a revision that has never been ready: how long its start is attempted, and when it is attempted again.
//!
//! Without it a program that cannot start is restarted forever. Upstream scales such a revision to zero
//! (`ProgressDeadlineExceeded`), and so does this; a request, a Route or a changed program starts a new activation.

use std::time::Duration;

use tokio::time::Instant;

use super::limits::ACTIVATION_BUFFER;

#[derive(Debug, Default)]
pub(super) struct Activation {
    /// When the first instance of this activation was started. `None`: nothing was started, or the revision was ready.
    since: Option<Instant>,
    /// The deadline passed: nothing is started until a new activation begins.
    pub(super) exceeded: bool,
}

impl Activation {
    pub(super) fn started(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// It succeeded, or another one begins.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Whether the deadline has just passed. An instance that `is_starting` at the deadline gets a little longer, because its
    /// own end says what it waited for.
    pub(super) fn expire(&mut self, now: Instant, deadline: Duration, is_starting: bool) -> bool {
        let limit = if is_starting { deadline.saturating_add(ACTIVATION_BUFFER) } else { deadline };
        let expired = !self.exceeded && self.since.is_some_and(|since| now.duration_since(since) >= limit);
        self.exceeded |= expired;
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(600);

    #[test]
    fn deadline_counts_from_the_first_start() {
        let begin = Instant::now();
        let mut activation = Activation::default();
        assert!(!activation.expire(begin + DEADLINE * 2, DEADLINE, false), "nothing was started");
        activation.started(begin);
        activation.started(begin + DEADLINE / 2);
        assert!(!activation.expire(begin + DEADLINE - Duration::from_millis(1), DEADLINE, false));
        assert!(activation.expire(begin + DEADLINE, DEADLINE, false));
        assert!(!activation.expire(begin + DEADLINE, DEADLINE, false), "it is told once");
        assert!(activation.exceeded);
        activation.reset();
        assert!(!activation.exceeded && !activation.expire(begin + DEADLINE * 2, DEADLINE, false));
    }

    #[test]
    fn starting_instance_gets_the_buffer() {
        let begin = Instant::now();
        let mut activation = Activation::default();
        activation.started(begin);
        assert!(!activation.expire(begin + DEADLINE, DEADLINE, true));
        assert!(activation.expire(begin + DEADLINE + ACTIVATION_BUFFER, DEADLINE, true));
    }
}
