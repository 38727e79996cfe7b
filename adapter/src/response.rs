//! What a response of the sink means, and when to try again.

use std::time::Duration;

use crate::error::SendError;
use crate::limits::{BACKOFF_FLOOR, BACKOFF_MAX, BACKOFF_MIN, RETRY_AFTER_MAX};

/// The response table. Events with a status that it does not name are held, so that no unexpected status loses an event.
pub(crate) fn verdict(status: u16, retry_after: Option<Duration>, message: String) -> Result<(), SendError> {
    let status_some = Some(status);
    match status {
        200..=299 => Ok(()),
        400 | 413 | 415 | 422 => Err(SendError::Rejected { status: status_some, message }),
        408 | 409 | 425 | 429 | 500..=599 => Err(SendError::Unavailable { status: status_some, message, retry_after }),
        _ => Err(SendError::Refused { status: status_some, message }),
    }
}

/// `Retry-After`: seconds or a date.
pub(crate) fn retry_after(value: &str, now: std::time::SystemTime) -> Option<Duration> {
    let seconds = value.trim().parse().ok().map(Duration::from_secs);
    let date = || httpdate::parse_http_date(value).ok().map(|at| at.duration_since(now).unwrap_or_default());
    seconds.or_else(date).map(|pause| pause.min(RETRY_AFTER_MAX))
}

/// Pauses between attempts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) linear: bool,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { first: BACKOFF_MIN, linear: false }
    }
}

impl Backoff {
    /// The pause after attempt number `attempt` (from 1), spread by up to a tenth so that adapters do not retry in step.
    pub(crate) fn pause(self, attempt: u32, rng: &mut fastrand::Rng) -> Duration {
        let factor = if self.linear { attempt.max(1) } else { 1 << attempt.saturating_sub(1).min(16) };
        let first = self.first.max(BACKOFF_FLOOR);
        let pause = first.saturating_mul(factor).min(BACKOFF_MAX.max(first));
        pause.mul_f64(0.9 + rng.f64() * 0.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_sorted_by_the_response_table() {
        let kind = |status| match verdict(status, None, String::new()) {
            Ok(()) => "accepted",
            Err(SendError::Unavailable { .. }) => "retry",
            Err(SendError::Refused { .. }) => "held",
            Err(SendError::Rejected { .. }) => "rejected",
        };
        for (wanted, statuses) in [
            ("accepted", &[200, 202, 204][..]),
            ("retry", &[408, 429, 500, 502, 503, 504]),
            ("held", &[301, 401, 403, 404, 410]),
            ("rejected", &[400, 413, 415, 422]),
        ] {
            for status in statuses {
                assert_eq!(kind(*status), wanted, "{status}");
            }
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = std::time::SystemTime::UNIX_EPOCH;
        assert_eq!(retry_after("7", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:00:09 GMT", now), Some(Duration::from_secs(9)));
        assert_eq!(retry_after("99999", now), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("soon", now), None);
    }

    #[test]
    fn pause_doubles_up_to_its_limit() {
        let mut rng = fastrand::Rng::with_seed(1);
        let backoff = Backoff::default();
        assert!(backoff.pause(1, &mut rng) <= BACKOFF_MIN);
        assert!(backoff.pause(2, &mut rng) > BACKOFF_MIN);
        assert!(backoff.pause(40, &mut rng) <= BACKOFF_MAX);
    }

    #[test]
    fn delay_of_zero_still_pauses() {
        let backoff = Backoff { first: Duration::ZERO, linear: true };
        assert!(backoff.pause(1, &mut fastrand::Rng::with_seed(1)) >= BACKOFF_FLOOR / 2);
    }
}
