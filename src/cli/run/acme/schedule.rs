//! When a certificate is ordered, renewed, and tried again after a failure. Values in, values out.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::limits::{ORDERS_PER_HOUR_MAX, RETRY_AFTER_DEFAULT, RETRY_AFTER_MAX, RETRY_DELAY_MAX, RETRY_DELAY_MIN};

/// The validity of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ValidityPeriod {
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

impl ValidityPeriod {
    /// Two thirds of its life: Let's Encrypt recommends to renew when a third is left.
    pub(super) fn renew_at(self) -> Timestamp {
        let life = self.not_after.as_second().saturating_sub(self.not_before.as_second()).max(0);
        let renew = self.not_before.as_second().saturating_add(life / 3 * 2);
        Timestamp::from_second(renew).unwrap_or(self.not_after)
    }
}

/// The failures of a host since its last certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FailedAttempts {
    count: u32,
    next: Timestamp,
}

/// Past orders and failures. It is stored, so that a restart does not begin again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OrderSchedule {
    #[serde(default)]
    failures: BTreeMap<String, FailedAttempts>,
    /// The begin of each order of the last hour, in order.
    #[serde(default)]
    orders: VecDeque<Timestamp>,
    /// The directory wants no order before this.
    #[serde(default)]
    paused_until: Option<Timestamp>,
}

impl OrderSchedule {
    /// The host to order for now: first those without a certificate, then those whose renewal is due longest.
    pub(super) fn next<'a>(
        &self,
        hosts: impl Iterator<Item = (&'a str, Option<ValidityPeriod>)>,
        now: Timestamp,
    ) -> Option<&'a str> {
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        if is_paused || self.recent_orders(now) >= ORDERS_PER_HOUR_MAX {
            return None;
        }
        let waits = |host: &str| self.failures.get(host).is_some_and(|failed| now < failed.next);
        let due = hosts.filter_map(|(host, validity)| {
            let due = validity.map_or(Timestamp::MIN, ValidityPeriod::renew_at);
            (due <= now && !waits(host)).then_some((due, host))
        });
        due.min().map(|(_, host)| host)
    }

    pub(super) fn order_began(&mut self, now: Timestamp) {
        let hour_ago = now - SignedDuration::from_hours(1);
        self.orders.retain(|began| *began > hour_ago && *began <= now);
        self.orders.push_back(now);
    }

    pub(super) fn succeeded(&mut self, host: &str) {
        self.failures.remove(host);
    }

    /// `random` is between 0 and 1. Returns the failures of the host in sequence, and when it is tried again.
    pub(super) fn failed(&mut self, host: &str, now: Timestamp, random: f64) -> (u32, Timestamp) {
        let count = self.failures.get(host).map_or(0, |failed| failed.count).saturating_add(1);
        let next = now + retry_delay(count, random);
        self.failures.insert(host.to_owned(), FailedAttempts { count, next });
        (count, next)
    }

    /// The directory answered 429 or 503. Returns until when no order is made.
    pub(super) fn rate_limited(&mut self, retry_after: Option<SignedDuration>, now: Timestamp) -> Timestamp {
        let until = now + retry_after.unwrap_or(RETRY_AFTER_DEFAULT).clamp(SignedDuration::ZERO, RETRY_AFTER_MAX);
        self.paused_until = Some(until);
        until
    }

    /// Forgets the failures of hosts that are gone.
    pub(super) fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        self.failures.retain(|host, _| is_known(host));
    }

    fn recent_orders(&self, now: Timestamp) -> usize {
        let hour_ago = now - SignedDuration::from_hours(1);
        self.orders.iter().filter(|began| **began > hour_ago && **began <= now).count()
    }
}

/// Doubles with each failure; up to a quarter more by chance, so that hosts that failed together are not tried together.
fn retry_delay(failures: u32, random: f64) -> SignedDuration {
    let doubled = RETRY_DELAY_MIN.checked_mul(1 << failures.saturating_sub(1).min(16)).unwrap_or(RETRY_DELAY_MAX);
    let delay = doubled.min(RETRY_DELAY_MAX);
    delay + delay.mul_f64(random.clamp(0.0, 1.0) / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn validity(from: i64, to: i64) -> Option<ValidityPeriod> {
        Some(ValidityPeriod { not_before: at(from), not_after: at(to) })
    }

    #[test]
    fn certificate_is_renewed_at_two_thirds_of_its_life() {
        let hosts = || [("a.org", validity(0, 90 * DAY))].into_iter();
        let schedule = OrderSchedule::default();
        assert_eq!(schedule.next(hosts(), at(60 * DAY - 1)), None);
        assert_eq!(schedule.next(hosts(), at(60 * DAY)), Some("a.org"));
        let backwards = ValidityPeriod { not_before: at(100), not_after: at(50) };
        assert_eq!(backwards.renew_at(), at(100));
    }

    #[test]
    fn host_without_certificate_comes_first() {
        let hosts = [("a.org", validity(0, 90 * DAY)), ("b.org", None), ("c.org", validity(0, DAY))];
        assert_eq!(OrderSchedule::default().next(hosts.into_iter(), at(80 * DAY)), Some("b.org"));
        assert_eq!(
            OrderSchedule::default().next(hosts[..1].iter().copied().chain([hosts[2]]), at(80 * DAY)),
            Some("c.org")
        );
    }

    #[test]
    fn failed_host_waits_twice_as_long_each_time_and_others_do_not() {
        let mut schedule = OrderSchedule::default();
        let hosts = || [("a.org", None), ("b.org", None)].into_iter();
        let mut now = at(0);
        for (count, seconds) in [(1, 120), (2, 240), (3, 480), (4, 960), (5, 1920)] {
            assert_eq!(schedule.failed("a.org", now, 0.0), (count, now + SignedDuration::from_secs(seconds)));
            assert_eq!(schedule.next(hosts(), now), Some("b.org"));
            now += SignedDuration::from_secs(seconds);
            assert_eq!(schedule.next(hosts(), now), Some("a.org"));
        }
        assert_eq!(retry_delay(u32::MAX, 0.0), RETRY_DELAY_MAX);
        assert_eq!(retry_delay(1, 1.0), RETRY_DELAY_MIN + RETRY_DELAY_MIN / 4);
        schedule.succeeded("a.org");
        assert_eq!(schedule.failed("a.org", now, 0.0).0, 1);
    }

    #[test]
    fn orders_of_an_hour_are_limited() {
        let mut schedule = OrderSchedule::default();
        let hosts = || [("a.org", None)].into_iter();
        for second in 0..i64::try_from(ORDERS_PER_HOUR_MAX).unwrap() {
            assert!(schedule.next(hosts(), at(second)).is_some());
            schedule.order_began(at(second));
        }
        assert_eq!(schedule.next(hosts(), at(3_599)), None);
        assert_eq!(schedule.next(hosts(), at(3_600)), Some("a.org"));
    }

    #[test]
    fn rate_limit_pauses_all_hosts_for_a_bounded_time() {
        let mut schedule = OrderSchedule::default();
        let hosts = || [("a.org", None)].into_iter();
        for (retry_after, seconds) in [(Some(30), 30), (None, 900), (Some(i64::MAX), DAY), (Some(-5), 0)] {
            let until = schedule.rate_limited(retry_after.map(SignedDuration::from_secs), at(0));
            assert_eq!(until, at(seconds), "{retry_after:?}");
            assert_eq!(schedule.next(hosts(), at(seconds - 1)), None);
            assert_eq!(schedule.next(hosts(), at(seconds)), Some("a.org"));
        }
    }

    #[test]
    fn stored_schedule_is_the_same() {
        let mut schedule = OrderSchedule::default();
        schedule.order_began(at(5));
        schedule.failed("a.org", at(6), 0.5);
        schedule.rate_limited(None, at(7));
        let text = serde_json::to_string(&schedule).unwrap();
        assert_eq!(serde_json::from_str::<OrderSchedule>(&text).unwrap(), schedule);
        schedule.retain(|host| host != "a.org");
        assert_eq!(schedule.failed("a.org", at(8), 0.0).0, 1);
    }
}
