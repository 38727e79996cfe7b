//! Whether and when a container is started again after its end.

use std::time::Duration;

use crate::limits::{
    RESTART_DELAY_MAX, RESTART_DELAY_MIN, RESTART_HEALTHY_AFTER, SIDECAR_HEALTHY_AFTER, SIDECAR_RESTART_MAX,
    SIDECAR_RESTART_MIN,
};

/// What follows the end of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RestartPolicy {
    /// The end of the container that serves ends the instance. A sidecar is started again, and its third failure in a row ends
    /// the instance. A failed init container ends the instance.
    #[default]
    EndsInstance,
    /// Another start, for as long as the instance runs.
    Always,
    /// Another start, unless it ended with exit code 0.
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Whether the container is started again while the others run on.
    #[must_use]
    pub fn restarts_after(self, succeeded: bool) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => !succeeded,
            Self::EndsInstance | Self::Never => false,
        }
    }

    /// Its ends in a row, after one more: the container had `ran` for this long.
    #[must_use]
    pub fn failures_after(self, failures: u32, ran: Duration) -> u32 {
        let healthy_after = if self == Self::EndsInstance { SIDECAR_HEALTHY_AFTER } else { RESTART_HEALTHY_AFTER };
        if ran >= healthy_after { 1 } else { failures.saturating_add(1) }
    }

    /// The delay before the next start, after so many ends in a row. In a Pod, the first follows at once, as in a kubelet.
    #[must_use]
    pub fn delay(self, failures: u32) -> Duration {
        let doubled = |first: Duration, times: u32| first.saturating_mul(1 << times.min(16));
        match (self, failures) {
            (Self::EndsInstance, _) => {
                doubled(SIDECAR_RESTART_MIN, failures.saturating_sub(1)).min(SIDECAR_RESTART_MAX)
            }
            (_, 0 | 1) => Duration::ZERO,
            _ => doubled(RESTART_DELAY_MIN, failures - 2).min(RESTART_DELAY_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_after_several_failures_comes_later_each_time() {
        let delays = |policy: RestartPolicy| [0, 1, 2, 3].map(|failures| policy.delay(failures));
        let (first, sidecar) = (RESTART_DELAY_MIN, SIDECAR_RESTART_MIN);
        assert_eq!(delays(RestartPolicy::Always), [Duration::ZERO, Duration::ZERO, first, first * 2]);
        assert_eq!(delays(RestartPolicy::EndsInstance), [sidecar, sidecar, sidecar * 2, sidecar * 4]);
        assert_eq!(RestartPolicy::OnFailure.delay(u32::MAX), RESTART_DELAY_MAX);
        assert_eq!(RestartPolicy::EndsInstance.delay(u32::MAX), SIDECAR_RESTART_MAX);
    }

    #[test]
    fn long_run_ends_a_row_of_failures() {
        let policy = RestartPolicy::Always;
        assert_eq!(policy.failures_after(7, Duration::from_secs(1)), 8);
        assert_eq!(policy.failures_after(7, RESTART_HEALTHY_AFTER), 1);
    }

    #[test]
    fn restart_policy_decides_what_follows_an_end() {
        let of = |policy: RestartPolicy| [true, false].map(|succeeded| policy.restarts_after(succeeded));
        assert_eq!(of(RestartPolicy::Always), [true, true]);
        assert_eq!(of(RestartPolicy::OnFailure), [false, true]);
        assert_eq!(of(RestartPolicy::Never), [false, false]);
        assert_eq!(of(RestartPolicy::EndsInstance), [false, false]);
    }
}
