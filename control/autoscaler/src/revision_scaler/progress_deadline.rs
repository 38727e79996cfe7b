//! When the start of a revision that has never been ready is abandoned, and when it is attempted again.

use tokio::time::Instant;

use super::RevisionScaler;
use crate::instance::LifecyclePhase;
use runtime::{ExitCause, InstanceExit};

impl RevisionScaler {
    /// Forgets what failed: the next start is as good as the first.
    pub(crate) fn retry(&mut self, now: Instant) {
        self.failures = 0;
        self.backoff_until = now;
        self.activation.reset();
    }

    /// Gives up a revision that was not ready within its progress deadline, unless a request waits for it.
    pub(crate) fn expire(&mut self, now: Instant) {
        let deadline = self.plan.instance.startup_timeout;
        let is_starting = self.count(|phase| phase == LifecyclePhase::Starting) > 0;
        if self.load.demand() > 0 || !self.activation.expire(now, deadline, is_starting) {
            return;
        }
        let seconds = deadline.as_secs();
        tracing::warn!(revision = %self.key, seconds, "not ready within the progress deadline; scaled to zero");
        let not_ready_reason = self.instances.iter().find_map(|member| member.not_ready_reason.clone());
        self.last_failure.get_or_insert_with(|| {
            let mut message = format!("no instance was ready within {seconds} s");
            not_ready_reason.iter().for_each(|why| message.extend([": ", why]));
            InstanceExit { cause: ExitCause::NotReady, message }
        });
    }
}
