//! Outlier detection: instances that refuse connections are tried last, for longer each time, until one connects. Given addresses
//! that time out or fail in a row are tried last as well, for a fixed time: an address that fails most requests and answers some
//! would otherwise be ejected and taken back every few requests.
//!
//! Without it an instance that died would look the least loaded, and every request would try it first. An outlier is
//! never excluded for good: where all others are full or refuse as well, it is tried.

use std::time::Duration;

use ring::Tick;

/// After the first refusal; each further one in a row doubles it.
const EJECT_BASE: Duration = Duration::from_secs(1);

/// Upper bound: an instance that is back should get requests within the minute.
const EJECT_MAX: Duration = Duration::from_secs(60);

/// The first ejection of an address that times out or fails: Envoy's `base_ejection_time`. Each further one lasts as much longer.
const FAILURE_EJECT_BASE: Duration = Duration::from_secs(30);

/// Upper bound: Envoy's `max_ejection_time`.
const FAILURE_EJECT_MAX: Duration = Duration::from_secs(300);

/// Errors in a row that eject an address: Envoy's `consecutive_5xx`.
const ERRORS_MAX: u32 = 5;

/// Ejections and failures are forgotten after this time without a failure, counted from the end of the last ejection. Longer than
/// a response may take to begin, or each timeout would be the first.
const FORGET_FAILURES_AFTER: Duration = Duration::from_secs(300);

/// Refusals are forgotten after this time without one, counted from the end of the last ejection.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Outliers remembered; each lookup is a linear scan. Further ones are not recorded.
const OUTLIERS_MAX: usize = 64;

/// The outliers of one core. Pure: `now` is passed in.
#[derive(Debug, Default)]
pub struct OutlierDetector {
    list: Vec<ObservedEndpoint>,
}

/// How a request failed because of its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointFailure {
    /// No response in time: one is enough, as in nginx (`max_fails`).
    Timeout,
    /// A 5xx, or no valid response.
    ServerError,
}

impl EndpointFailure {
    /// In the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::ServerError => "errors_in_a_row",
        }
    }
}

#[derive(Debug)]
struct ObservedEndpoint {
    endpoint: u64,
    /// In a row. If there are some, `until` is the end of the ejection because of them.
    refusals: u32,
    /// In a row.
    errors: u32,
    /// Ejections because of failures.
    ejections: u32,
    until: Tick,
    forget_at: Tick,
}

impl OutlierDetector {
    /// An instance refused a connection. Returns how long it is tried last from now on.
    pub fn refused(&mut self, endpoint: u64, now: Tick) -> Duration {
        self.forget(now);
        let known = self.list.iter_mut().find(|outlier| outlier.endpoint == endpoint);
        let refusals = match &known {
            // Several requests may meet the same refusal; only one after the ejection counts as another.
            Some(outlier) if now < outlier.until => return outlier.until - now,
            Some(outlier) => outlier.refusals.saturating_add(1),
            None => 1,
        };
        let wait = EJECT_BASE.saturating_mul(1 << (refusals - 1).min(16)).min(EJECT_MAX);
        let until = now + wait;
        match known {
            Some(outlier) => {
                (outlier.refusals, outlier.until) = (refusals, until);
                outlier.forget_at = outlier.forget_at.max(until + FORGET_AFTER);
            }
            None => {
                self.record(ObservedEndpoint { refusals, until, forget_at: until + FORGET_AFTER, ..unknown(endpoint) })
            }
        }
        wait
    }

    /// A request failed because of its endpoint. Returns how long that is tried last from now on, if this failure ejects it.
    pub fn failed(&mut self, endpoint: u64, failure: EndpointFailure, now: Tick) -> Option<Duration> {
        self.forget(now);
        if !self.list.iter().any(|outlier| outlier.endpoint == endpoint) {
            self.record(ObservedEndpoint { until: now, ..unknown(endpoint) });
        }
        let outlier = self.list.iter_mut().find(|outlier| outlier.endpoint == endpoint)?;
        outlier.forget_at = outlier.forget_at.max(now + FORGET_FAILURES_AFTER);
        outlier.errors = outlier.errors.saturating_add(1);
        // Requests in flight meet the same failure.
        if now < outlier.until || (failure == EndpointFailure::ServerError && outlier.errors < ERRORS_MAX) {
            return None;
        }
        (outlier.errors, outlier.refusals) = (0, 0);
        outlier.ejections = outlier.ejections.saturating_add(1);
        let wait = FAILURE_EJECT_BASE.saturating_mul(outlier.ejections).min(FAILURE_EJECT_MAX);
        outlier.until = now + wait;
        outlier.forget_at = outlier.until + FORGET_FAILURES_AFTER;
        Some(wait)
    }

    /// An instance accepted a connection. One that hangs does so as well, so that failures still count.
    pub fn accepted(&mut self, endpoint: u64) {
        self.list.retain_mut(|outlier| outlier.endpoint != endpoint || outlier.clear_refusals());
    }

    /// An endpoint answered a request without an error. Its ejection lasts, and the next one is longer.
    pub fn answered(&mut self, endpoint: u64, now: Tick) {
        self.forget(now);
        self.list.retain_mut(|outlier| {
            if outlier.endpoint != endpoint {
                return true;
            }
            outlier.errors = 0;
            outlier.clear_refusals()
        });
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The instances to try last.
    pub fn avoided(&self, now: Tick) -> impl Iterator<Item = u64> {
        self.list.iter().filter(move |outlier| now < outlier.until).map(|outlier| outlier.endpoint)
    }

    fn forget(&mut self, now: Tick) {
        self.list.retain(|outlier| now < outlier.forget_at);
    }

    fn record(&mut self, outlier: ObservedEndpoint) {
        if self.list.len() < OUTLIERS_MAX {
            self.list.push(outlier);
        }
    }
}

impl ObservedEndpoint {
    /// Ends an ejection because of refusals. Returns whether there are failures to remember.
    fn clear_refusals(&mut self) -> bool {
        if self.refusals > 0 {
            (self.refusals, self.until) = (0, Tick::ZERO);
        }
        self.errors > 0 || self.ejections > 0
    }
}

fn unknown(endpoint: u64) -> ObservedEndpoint {
    ObservedEndpoint { endpoint, refusals: 0, errors: 0, ejections: 0, until: Tick::ZERO, forget_at: Tick::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn consecutive_refusals_double_the_ejection() {
        let mut outliers = OutlierDetector::default();
        let mut now = at(0);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let wait = outliers.refused(7, now);
            assert_eq!(wait, Duration::from_secs(seconds));
            assert_eq!(outliers.avoided(now).collect::<Vec<_>>(), [7]);
            // Requests in flight meet the same refusal.
            assert!(outliers.refused(7, now + Duration::from_millis(1)) < wait);
            now = now + wait;
            assert_eq!(outliers.avoided(now).count(), 0, "it may be tried again");
        }
    }

    #[test]
    fn connection_or_quiet_minute_resets_the_backoff() {
        let mut outliers = OutlierDetector::default();
        outliers.refused(7, at(0));
        outliers.refused(7, at(1));
        outliers.accepted(7);
        assert!(outliers.is_empty());
        assert_eq!(outliers.refused(7, at(2)), EJECT_BASE);
        assert_eq!(outliers.refused(7, at(63)), EJECT_BASE);
    }

    #[test]
    fn remembered_outliers_are_bounded() {
        let mut outliers = OutlierDetector::default();
        for endpoint in 0..1000 {
            outliers.refused(endpoint, at(0));
        }
        assert_eq!(outliers.avoided(at(0)).count(), OUTLIERS_MAX);
    }

    #[test]
    fn each_timeout_ejects_for_longer() {
        let mut outliers = OutlierDetector::default();
        let mut now = at(0);
        for seconds in [30, 60, 90] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(outliers.failed(7, EndpointFailure::Timeout, now), Some(wait));
            assert_eq!(outliers.failed(7, EndpointFailure::Timeout, now), None, "requests in flight");
            outliers.accepted(7);
            assert_eq!(outliers.avoided(now).collect::<Vec<_>>(), [7], "a server that hangs accepts connections");
            now = now + wait + Duration::from_secs(60);
            assert_eq!(outliers.avoided(now).count(), 0, "it may be tried again");
        }
        outliers.answered(7, now);
        assert_eq!(outliers.failed(7, EndpointFailure::Timeout, now), Some(Duration::from_secs(120)));
        now = now + Duration::from_secs(120) + FORGET_FAILURES_AFTER;
        outliers.answered(7, now);
        assert!(outliers.is_empty(), "a quiet time resets the back-off");
        assert_eq!(outliers.failed(7, EndpointFailure::Timeout, now), Some(Duration::from_secs(30)));
    }

    /// The log has a line for each ejection.
    #[test]
    fn answers_between_failures_do_not_repeat_the_ejection() {
        let mut outliers = OutlierDetector::default();
        let mut ejections = 0;
        for second in 0..30 {
            for _ in 0..10 {
                for _ in 0..ERRORS_MAX {
                    ejections += usize::from(outliers.failed(7, EndpointFailure::ServerError, at(second)).is_some());
                }
                outliers.answered(7, at(second));
                assert_eq!(outliers.avoided(at(second)).collect::<Vec<_>>(), [7]);
            }
        }
        assert_eq!(ejections, 1);
        assert_eq!(outliers.failed(7, EndpointFailure::Timeout, at(30)), Some(Duration::from_secs(60)));
    }

    #[test]
    fn connection_after_refusal_keeps_failures() {
        let mut outliers = OutlierDetector::default();
        outliers.failed(7, EndpointFailure::Timeout, at(0));
        outliers.refused(7, at(40));
        outliers.accepted(7);
        assert_eq!(outliers.avoided(at(40)).count(), 0, "it connects again");
        assert_eq!(outliers.failed(7, EndpointFailure::Timeout, at(41)), Some(Duration::from_secs(60)));
    }

    #[test]
    fn only_errors_in_a_row_eject() {
        let mut outliers = OutlierDetector::default();
        let fail = |outliers: &mut OutlierDetector| outliers.failed(7, EndpointFailure::ServerError, at(0));
        for _ in 0..3 {
            (1..ERRORS_MAX).for_each(|_| assert_eq!(fail(&mut outliers), None));
            outliers.answered(7, at(0));
        }
        (1..ERRORS_MAX).for_each(|_| assert_eq!(fail(&mut outliers), None));
        assert_eq!(fail(&mut outliers), Some(FAILURE_EJECT_BASE));
    }
}
