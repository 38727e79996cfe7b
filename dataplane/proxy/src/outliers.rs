//! Outlier detection: instances that refuse connections are tried last, for longer each time, until one connects.
//!
//! Without it an instance that died would look the least loaded, and every request would try it first. An outlier is
//! never excluded for good: where all others are full or refuse as well, it is tried.

use std::time::Duration;

use ring::Tick;

/// After the first refusal; each further one in a row doubles it.
const EJECT_BASE: Duration = Duration::from_secs(1);

/// Upper bound: an instance that is back should get requests within the minute.
const EJECT_MAX: Duration = Duration::from_secs(60);

/// Refusals are forgotten after this time without one, counted from the end of the last ejection.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Outliers remembered; each lookup is a linear scan. Further ones are not recorded.
const OUTLIERS_MAX: usize = 64;

/// The outliers of one core. Pure: `now` is passed in.
#[derive(Debug, Default)]
pub struct OutlierDetector {
    list: Vec<EjectedEndpoint>,
}

#[derive(Debug)]
struct EjectedEndpoint {
    endpoint: u64,
    /// In a row.
    refusals: u32,
    until: Tick,
}

impl OutlierDetector {
    /// An instance refused a connection. Returns how long it is tried last from now on.
    pub fn refused(&mut self, endpoint: u64, now: Tick) -> Duration {
        self.list.retain(|outlier| now < outlier.until + FORGET_AFTER);
        let known = self.list.iter().position(|outlier| outlier.endpoint == endpoint);
        let refusals = match known.map(|at| &self.list[at]) {
            // Several requests may meet the same refusal; only one after the ejection counts as another.
            Some(outlier) if now < outlier.until => return outlier.until - now,
            Some(outlier) => outlier.refusals.saturating_add(1),
            None => 1,
        };
        let wait = EJECT_BASE.saturating_mul(1 << (refusals - 1).min(16)).min(EJECT_MAX);
        let outlier = EjectedEndpoint { endpoint, refusals, until: now + wait };
        match known {
            Some(at) => self.list[at] = outlier,
            None if self.list.len() < OUTLIERS_MAX => self.list.push(outlier),
            None => {}
        }
        wait
    }

    /// An instance accepted a connection.
    pub fn accepted(&mut self, endpoint: u64) {
        self.list.retain(|outlier| outlier.endpoint != endpoint);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The instances to try last.
    pub fn avoided(&self, now: Tick) -> impl Iterator<Item = u64> {
        self.list.iter().filter(move |outlier| now < outlier.until).map(|outlier| outlier.endpoint)
    }
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
}
