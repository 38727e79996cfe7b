//! The retry decision: what a response means and when to retry. Arithmetic only.
//!
//! | outcome | verdict |
//! |---|---|
//! | 200 | done; may carry a reply (DP-RETRY-02, AMB-31) |
//! | 202, other 2xx | done, never a reply (DP-RETRY-03, -04) |
//! | final 1xx, 3xx, 400, 401, 403, other 4xx | given up at once (DP-RETRY-01, -05 to -08, -13) |
//! | 404, 408, 409, 429, 5xx, 600 and up | retried (DP-RETRY-09 to -12, -14, -15) |
//! | no response: refused, reset, timeout, DNS | retried (DP-RETRY-16) |

use std::time::{Duration, SystemTime};

use codec::http::LocalResponse;
use contract::table::{BackoffPolicy, DeliveryPolicy};
use fastrand::Rng;

use crate::limits::{BACKOFF_MAX, BACKOFF_MIN};

/// What to do after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryVerdict {
    Done,
    /// Done if the body is no event; otherwise the reply must be stored or sent first.
    Reply,
    /// Retried after this long.
    RetryAt(Duration),
    GiveUp(GiveUpReason),
}

/// Why an event is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUpReason {
    /// According to the response another attempt would not help.
    Refused,
    /// All attempts failed.
    RetriesUsedUp,
}

impl GiveUpReason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::RetriesUsedUp => "retries used up",
        }
    }
}

/// What a response says about retrying.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetryHints {
    /// `None` when there was no response.
    pub status: Option<u16>,
    /// The requested wait.
    pub retry_after: Option<Duration>,
}

impl RetryHints {
    /// `wall` returns the calendar time, for responses with a date.
    #[must_use]
    pub fn of(answer: Option<&LocalResponse>, wall: impl Fn() -> SystemTime) -> Self {
        let Some(answer) = answer else { return Self::default() };
        let named = answer.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"));
        let retry_after = named.and_then(|(_, value)| std::str::from_utf8(value).ok());
        Self {
            status: Some(answer.status),
            retry_after: retry_after.and_then(|text| retry_after_of(text.trim(), &wall)),
        }
    }
}

/// Seconds, or an HTTP date (RFC 9110, 10.2.3); anything else is ignored.
fn retry_after_of(text: &str, wall: &impl Fn() -> SystemTime) -> Option<Duration> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX))); // more than any bound is at the bound
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(wall()).unwrap_or_default())
}

/// The verdict of an attempt. X-DLV-02: a 429 or 503 may request a longer wait than the back-off, up to the
/// subscriber's `retry_after_max`.
#[must_use]
pub fn judge(hints: RetryHints, attempt: u32, delivery: &DeliveryPolicy) -> RetryVerdict {
    match (verdict(hints.status, attempt, delivery), hints) {
        (RetryVerdict::RetryAt(wait), RetryHints { status: Some(429 | 503), retry_after: Some(asked) }) => {
            RetryVerdict::RetryAt(wait.max(asked.min(delivery.retry_after_max)))
        }
        (verdict, _) => verdict,
    }
}

/// The verdict of an attempt by its status, `None` when there was no response. `attempt` counts from 0.
#[must_use]
pub fn verdict(status: Option<u16>, attempt: u32, delivery: &DeliveryPolicy) -> RetryVerdict {
    match status {
        Some(200) => RetryVerdict::Reply,
        Some(201..=299) => RetryVerdict::Done,
        Some(404 | 408 | 409 | 429 | 500..) | None => failed(attempt, delivery),
        Some(_) => RetryVerdict::GiveUp(GiveUpReason::Refused),
    }
}

/// The verdict of an attempt with a temporary failure: also a reply that could not be stored (EV-RTE-11,
/// AMB-34).
#[must_use]
pub fn failed(attempt: u32, delivery: &DeliveryPolicy) -> RetryVerdict {
    if attempt >= delivery.retries_max {
        return RetryVerdict::GiveUp(GiveUpReason::RetriesUsedUp);
    }
    RetryVerdict::RetryAt(delay(attempt + 1, delivery.backoff))
}

/// The wait before the `retry`-th attempt after the first (1, 2, ...).
fn delay(retry: u32, backoff: BackoffPolicy) -> Duration {
    let wait = match backoff {
        BackoffPolicy::None => Duration::ZERO,
        BackoffPolicy::Linear(delay) => delay,
        BackoffPolicy::Exponential(delay) => {
            let factor = 1_u32.checked_shl(retry - 1).unwrap_or(u32::MAX);
            delay.saturating_mul(factor)
        }
    };
    wait.clamp(BACKOFF_MIN, BACKOFF_MAX)
}

/// The same wait, or up to a tenth more: events that failed together are not retried together.
pub fn spread(wait: Duration, rng: &mut Rng) -> Duration {
    let tenth = u64::try_from((wait / 10).as_nanos()).unwrap_or(u64::MAX);
    wait.saturating_add(Duration::from_nanos(rng.u64(0..=tenth)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn delivery(retries_max: u32, backoff: BackoffPolicy) -> DeliveryPolicy {
        DeliveryPolicy { retries_max, backoff, ..DeliveryPolicy::ONCE }
    }

    /// Requests made, and why no more, if it was given up.
    type DeliveryResult = (u32, Option<GiveUpReason>);

    fn verdicts(status: Option<u16>) -> DeliveryResult {
        let delivery = delivery(2, BackoffPolicy::None);
        for attempt in 0.. {
            match verdict(status, attempt, &delivery) {
                RetryVerdict::RetryAt(_) => {}
                RetryVerdict::GiveUp(reason) => return (attempt + 1, Some(reason)),
                RetryVerdict::Done | RetryVerdict::Reply => return (attempt + 1, None),
            }
        }
        unreachable!("attempts are bounded by retries_max")
    }

    /// DP-RETRY-01 to -17: the response table with `retry: 2`, as number of requests and outcome.
    #[test]
    fn every_row_of_response_table_holds() {
        let refused = Some(GiveUpReason::Refused);
        let used_up = Some(GiveUpReason::RetriesUsedUp);
        let rows: [(&[u16], DeliveryResult); 10] = [
            (&[100, 101, 103, 199], (1, refused)),
            (&[200], (1, None)),
            (&[202], (1, None)),
            (&[201, 203, 204, 206, 299], (1, None)),
            (&[300, 301, 302, 303, 304, 307, 308, 399], (1, refused)),
            (&[400, 401, 403], (1, refused)),
            (&[404, 408, 409, 429], (3, used_up)),
            (&[402, 405, 406, 407, 410, 411, 412, 413, 415, 418, 422, 425, 426, 428, 431, 451, 499], (1, refused)),
            (&[500, 501, 502, 503, 504, 511, 599], (3, used_up)),
            (&[600, 999, u16::MAX], (3, used_up)),
        ];
        for (statuses, expected) in rows {
            for status in statuses {
                assert_eq!(verdicts(Some(*status)), expected, "{status}");
            }
        }
        assert_eq!(verdicts(None), (3, used_up));
    }

    /// DP-RETRY-02, DP-REPLY-07, AMB-31: only a 200 may carry a reply.
    #[test]
    fn only_200_carries_reply() {
        let delivery = delivery(0, BackoffPolicy::None);
        for status in 0..=u16::MAX {
            assert_eq!(verdict(Some(status), 0, &delivery) == RetryVerdict::Reply, status == 200, "{status}");
        }
    }

    /// EV-DLV-03, AMB-26, AMB-27, AMB-28, DP-RETRY-20: and it is never zero.
    #[test]
    fn backoff_is_constant_or_doubles() {
        let ms = Duration::from_millis;
        let cases = [
            (BackoffPolicy::None, [10, 10, 10, 10]),
            (BackoffPolicy::Linear(Duration::ZERO), [10, 10, 10, 10]),
            (BackoffPolicy::Linear(ms(1000)), [1000, 1000, 1000, 1000]),
            (BackoffPolicy::Exponential(Duration::ZERO), [10, 10, 10, 10]),
            (BackoffPolicy::Exponential(ms(4)), [10, 10, 16, 32]),
            (BackoffPolicy::Exponential(ms(1000)), [1000, 2000, 4000, 8000]),
        ];
        for (backoff, waits) in cases {
            for (attempt, wait) in (0..).zip(waits) {
                let expected = RetryVerdict::RetryAt(ms(wait));
                assert_eq!(failed(attempt, &delivery(4, backoff)), expected, "{backoff:?} {attempt}");
            }
            assert_eq!(failed(4, &delivery(4, backoff)), RetryVerdict::GiveUp(GiveUpReason::RetriesUsedUp));
        }
    }

    /// X-DLV-02: the header lengthens the wait after 429 and 503 only, up to its bound, and never shortens
    /// it.
    #[test]
    fn retry_after_lengthens_wait_up_to_bound() {
        let wall = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let waits = |status: u16, header: &str, max: u64| {
            let headers = vec![("Retry-After".into(), header.to_owned().into())];
            let answer = LocalResponse { status, headers, body: Vec::new().into() };
            let delivery = DeliveryPolicy {
                retry_after_max: Duration::from_secs(max),
                ..delivery(3, BackoffPolicy::Linear(Duration::from_secs(2)))
            };
            match judge(RetryHints::of(Some(&answer), || wall), 0, &delivery) {
                RetryVerdict::RetryAt(wait) => wait.as_secs(),
                other => panic!("{other:?}"),
            }
        };
        for (status, header, max, wait) in [
            (429, "10", 60, 10),
            (503, "10", 60, 10),
            (503, "100", 60, 60),
            (503, "1", 60, 2),
            (503, "10", 0, 2),
            (500, "10", 60, 2),
            (404, "10", 60, 2),
            (429, "Sun, 06 Nov 1994 08:49:57 GMT", 60, 20),
            (429, "Sun, 06 Nov 1994 08:00:00 GMT", 60, 2),
            (429, "soon", 60, 2),
            (429, "-5", 60, 2),
            (429, "+5", 60, 2),
            (429, "5.5", 60, 2),
            (429, "", 60, 2),
            (429, "99999999999999999999", 60, 60),
        ] {
            assert_eq!(waits(status, header, max), wait, "{status} {header} {max}");
        }
    }

    /// DP-RETRY-20: events that failed together are not retried together, and none before its time.
    #[test]
    fn waits_are_spread_and_never_shortened() {
        let mut rng = fastrand::Rng::with_seed(1);
        assert_eq!(spread(Duration::ZERO, &mut rng), Duration::ZERO);
        for wait in [Duration::from_millis(200), BACKOFF_MAX, Duration::MAX] {
            let spread: Vec<_> = (0..100).map(|_| spread(wait, &mut rng)).collect();
            assert!(spread.iter().all(|one| *one >= wait && *one - wait <= wait / 10), "{wait:?}: {spread:?}");
            let (first, last) = (spread.iter().min().unwrap(), spread.iter().max().unwrap());
            assert!(wait == Duration::MAX || *last - *first > wait / 20, "{wait:?}: {first:?} to {last:?}");
        }
    }

    proptest! {
        /// DP-RETRY-20
        #[test]
        fn backoff_never_overflows_or_shrinks(attempt in 0..u32::MAX - 1, millis: u64) {
            let delivery = delivery(u32::MAX, BackoffPolicy::Exponential(Duration::from_millis(millis)));
            let wait = |attempt| match failed(attempt, &delivery) {
                RetryVerdict::RetryAt(wait) => wait,
                other => panic!("{other:?}"),
            };
            prop_assert!(wait(attempt) <= BACKOFF_MAX);
            prop_assert!(wait(attempt) <= wait(attempt + 1));
        }
    }
}
