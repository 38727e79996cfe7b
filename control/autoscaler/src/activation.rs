//! The progress deadline of a revision that has never been ready: how long its instances are tried, and when they are tried anew.
//!
//! Without it a program that cannot start is restarted for ever. Upstream scales such a revision to zero
//! (`ProgressDeadlineExceeded`), and so does this; a request, a Route or another program begins a new activation.

use std::time::Duration;

use tokio::time::Instant;

use super::instance::LifecyclePhase;
use super::limits::ACTIVATION_BUFFER;
use super::revision_scaler::RevisionScaler;
use runtime::{ExitCause, InstanceExit};

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
    fn expire(&mut self, now: Instant, deadline: Duration, is_starting: bool) -> bool {
        let limit = if is_starting { deadline.saturating_add(ACTIVATION_BUFFER) } else { deadline };
        let expired = !self.exceeded && self.since.is_some_and(|since| now.duration_since(since) >= limit);
        self.exceeded |= expired;
        expired
    }
}

impl RevisionScaler {
    /// Forgets what failed: the next start is as good as the first.
    pub(super) fn retry(&mut self, now: Instant) {
        self.failures = 0;
        self.backoff_until = now;
        self.activation.reset();
    }

    /// Gives up a revision that was not ready within its progress deadline, unless a request waits for it.
    pub(super) fn expire(&mut self, now: Instant) {
        let deadline = self.plan.instance.startup_timeout;
        let is_starting = self.count(|phase| phase == LifecyclePhase::Starting) > 0;
        if self.load.demand() > 0 || !self.activation.expire(now, deadline, is_starting) {
            return;
        }
        let seconds = deadline.as_secs();
        tracing::warn!(revision = %self.key, seconds, "not ready within the progress deadline; scaled to zero");
        let hindrance = self.instances.iter().find_map(|member| member.not_ready_reason.clone());
        self.last_failure.get_or_insert_with(|| {
            let mut message = format!("no instance was ready within {seconds} s");
            hindrance.iter().for_each(|why| message.extend([": ", why]));
            InstanceExit { cause: ExitCause::NotReady, message }
        });
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
