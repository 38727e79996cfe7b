//! Which failed requests are retried, and when.

use std::time::Duration;

use http::StatusCode;

use crate::limits::RequestLimits;

/// A request that brought no usable response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection, or one that broke.
    Unreachable(String),
    Timeout {
        what: &'static str,
        limit: Duration,
    },
    Status {
        status: StatusCode,
        retry_after: Option<Duration>,
    },
}

/// The pause before the next attempt, none if there is to be none. `attempt` counts from 1; `jitter` is in `0.0..1.0`.
pub(super) fn decide(failure: &Failure, attempt: u32, limits: &RequestLimits, jitter: f64) -> Option<Duration> {
    if attempt >= limits.attempts_max {
        return None;
    }
    let doubled = limits.backoff_min.saturating_mul(1 << (attempt - 1).min(16)).min(limits.backoff_max);
    // Half of it is by chance, so that many hosts do not come back in the same moment.
    let backoff = doubled.mul_f64(0.5 + jitter / 2.0);
    match failure {
        Failure::Unreachable(_) | Failure::Timeout { .. } => Some(backoff),
        Failure::Status { status, retry_after } => match (status.as_u16(), retry_after) {
            (429 | 503, Some(pause)) => (*pause <= limits.backoff_max).then_some((*pause).max(backoff)),
            (408 | 429 | 500 | 502 | 503 | 504, _) => Some(backoff),
            _ => None,
        },
    }
}

/// `Retry-After` in seconds or as a date.
pub(super) fn retry_after(value: &str, now: std::time::SystemTime) -> Option<Duration> {
    let value = value.trim();
    value.parse().map(Duration::from_secs).ok().or_else(|| {
        let date = httpdate::parse_http_date(value).ok()?;
        Some(date.duration_since(now).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn limits() -> RequestLimits {
        RequestLimits { attempts_max: 4, backoff_min: 100 * MS, backoff_max: 300 * MS, ..RequestLimits::default() }
    }

    fn status(code: u16, retry_after: Option<Duration>) -> Failure {
        Failure::Status { status: StatusCode::from_u16(code).expect("valid"), retry_after }
    }

    #[test]
    fn pause_doubles_up_to_its_limit() {
        let pause = |attempt| decide(&status(503, None), attempt, &limits(), 1.0);
        assert_eq!([pause(1), pause(2), pause(3), pause(4)], [Some(100 * MS), Some(200 * MS), Some(300 * MS), None]);
        assert_eq!(decide(&status(503, None), 1, &limits(), 0.0), Some(50 * MS));
    }

    #[test]
    fn refusal_is_not_tried_again() {
        for code in [400, 401, 403, 404, 416, 501] {
            assert_eq!(decide(&status(code, None), 1, &limits(), 0.0), None, "{code}");
        }
    }

    #[test]
    fn retry_after_is_honoured_up_to_the_limit() {
        assert_eq!(decide(&status(429, Some(250 * MS)), 1, &limits(), 0.0), Some(250 * MS));
        assert_eq!(decide(&status(429, Some(301 * MS)), 1, &limits(), 0.0), None);
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!(retry_after(" 7 ", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:00:09 GMT", now), Some(Duration::from_secs(9)));
        assert_eq!(retry_after("soon", now), None);
    }
}
