//! When requests are due in an open loop: a rate over time, and the arrivals that it gives.
//!
//! Both kinds of arrivals are times of a counting process with unit rate, mapped through the inverse of the cumulated rate. So a
//! ramp works for Poisson arrivals as it does for constant ones.

use std::time::Duration;

use fastrand::Rng;

/// How the times between two requests are distributed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// Equal distances.
    #[default]
    Constant,
    /// Independent clients: exponential distances, with bursts.
    Poisson,
}

/// A part of the profile whose rate changes linearly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatePhase {
    /// Requests a second at its start and its end.
    pub from: f64,
    pub to: f64,
    pub length: Duration,
}

impl RatePhase {
    #[must_use]
    pub const fn constant(rate: f64, length: Duration) -> Self {
        Self { from: rate, to: rate, length }
    }

    fn slope(&self) -> f64 {
        let seconds = self.length.as_secs_f64();
        if seconds > 0.0 { (self.to - self.from) / seconds } else { 0.0 }
    }

    /// Requests due in the first `seconds` of it.
    fn count(&self, seconds: f64) -> f64 {
        self.from * seconds + self.slope() * seconds * seconds / 2.0
    }

    /// The seconds after which `count` requests are due. This form of the quadratic solution has no division by zero for a
    /// constant rate; at the start of a ramp from zero both are zero.
    fn seconds(&self, count: f64) -> f64 {
        let root = (self.from * self.from + 2.0 * self.slope() * count).max(0.0).sqrt();
        let divisor = self.from + root;
        if divisor > 0.0 { 2.0 * count / divisor } else { 0.0 }
    }
}

/// A rate over time.
#[derive(Debug, Clone, PartialEq)]
pub struct RateProfile {
    phases: Vec<RatePhase>,
}

impl RateProfile {
    #[must_use]
    pub fn new(phases: Vec<RatePhase>) -> Self {
        Self { phases }
    }

    #[must_use]
    pub fn length(&self) -> Duration {
        self.phases.iter().map(|phase| phase.length).sum()
    }

    /// Requests that are due before `at`.
    #[must_use]
    pub fn count_before(&self, at: Duration) -> f64 {
        let (mut left, mut count) = (at.as_secs_f64(), 0.0);
        for phase in &self.phases {
            let inside = left.min(phase.length.as_secs_f64());
            count += phase.count(inside);
            left -= inside;
        }
        count
    }

    /// When the cumulated rate passes `count`; `None` after the end.
    #[must_use]
    pub fn time_of(&self, count: f64) -> Option<Duration> {
        let (mut left, mut before) = (count, Duration::ZERO);
        for phase in &self.phases {
            let all = phase.count(phase.length.as_secs_f64());
            if left < all {
                return Some(before + Duration::from_secs_f64(phase.seconds(left).max(0.0)));
            }
            left -= all;
            before += phase.length;
        }
        None
    }
}

/// The times at which one of several threads sends.
#[derive(Debug)]
pub struct ArrivalTimes {
    profile: RateProfile,
    arrivals: Arrivals,
    threads: f64,
    /// Position of the next arrival in the process of unit rate.
    position: f64,
    rng: Rng,
}

impl ArrivalTimes {
    /// Threads share a constant rate in turn, so that together their distances are equal. Sums of Poisson processes are one.
    #[must_use]
    pub fn new(profile: RateProfile, arrivals: Arrivals, (thread, threads): (usize, usize), mut rng: Rng) -> Self {
        #[allow(clippy::cast_precision_loss)]
        let (first, threads) = (thread as f64, threads.max(1) as f64);
        let position = match arrivals {
            Arrivals::Constant => first,
            Arrivals::Poisson => threads * exponential(&mut rng),
        };
        Self { profile, arrivals, threads, position, rng }
    }

    /// Arrivals that are due before `at` and were not taken. For Poisson arrivals the expected number.
    #[must_use]
    pub fn overdue(&self, at: Duration) -> u64 {
        let left = (self.profile.count_before(at) - self.position) / self.threads;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let left = left.max(0.0).ceil() as u64;
        left
    }
}

impl Iterator for ArrivalTimes {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let at = self.profile.time_of(self.position)?;
        self.position += match self.arrivals {
            Arrivals::Constant => self.threads,
            Arrivals::Poisson => self.threads * exponential(&mut self.rng),
        };
        Some(at)
    }
}

/// Exponentially distributed with mean 1.
fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.f64()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn times(phases: &[RatePhase], arrivals: Arrivals, thread: (usize, usize)) -> Vec<f64> {
        let profile = RateProfile::new(phases.to_vec());
        ArrivalTimes::new(profile, arrivals, thread, Rng::with_seed(7 + thread.0 as u64))
            .map(|at| at.as_secs_f64())
            .collect()
    }

    #[test]
    fn constant_arrivals_have_equal_distances() {
        let times = times(&[RatePhase::constant(4.0, SECOND)], Arrivals::Constant, (0, 1));
        assert_eq!(times, [0.0, 0.25, 0.5, 0.75]);
    }

    #[test]
    fn threads_together_send_every_constant_arrival_once() {
        let phases = [RatePhase::constant(10.0, SECOND), RatePhase { from: 10.0, to: 40.0, length: SECOND }];
        let mut shares: Vec<_> = (0..3).flat_map(|thread| times(&phases, Arrivals::Constant, (thread, 3))).collect();
        shares.sort_by(f64::total_cmp);
        assert_eq!(shares, times(&phases, Arrivals::Constant, (0, 1)));
    }

    #[test]
    fn ramp_has_as_many_arrivals_as_its_mean_rate() {
        for (from, to, count) in [(0.0, 100.0, 50), (100.0, 0.0, 50), (50.0, 150.0, 100)] {
            let times = times(&[RatePhase { from, to, length: SECOND }], Arrivals::Constant, (0, 1));
            assert_eq!(times.len(), count, "{from} to {to}");
            assert!(times.is_sorted() && times.iter().all(|at| (0.0..1.0).contains(at)), "{from} to {to}");
            let first_half = times.iter().filter(|at| **at < 0.5).count();
            assert_eq!(first_half < count / 2, from < to, "{from} to {to}");
        }
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_its_variance() {
        let phases = [RatePhase::constant(1_000.0, SECOND * 50)];
        let times: Vec<_> = (0..2).flat_map(|thread| times(&phases, Arrivals::Poisson, (thread, 2))).collect();
        assert!((49_000..51_000).contains(&times.len()), "{}", times.len());
        // The number in an interval has its mean as variance.
        let mut counts = vec![0_f64; 500];
        times.iter().for_each(|at| counts[(at * 10.0) as usize] += 1.0);
        let mean = counts.iter().sum::<f64>() / 500.0;
        let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 499.0;
        assert!((0.7..1.4).contains(&(variance / mean)), "{variance} for {mean}");
    }

    #[test]
    fn overdue_arrivals_are_those_not_taken() {
        let profile = RateProfile::new(vec![RatePhase::constant(10.0, SECOND * 2)]);
        let mut times = ArrivalTimes::new(profile, Arrivals::Constant, (0, 1), Rng::with_seed(1));
        assert_eq!(times.overdue(Duration::ZERO), 0);
        assert_eq!(times.overdue(SECOND), 10);
        times.by_ref().take(4).for_each(drop);
        assert_eq!((times.overdue(SECOND), times.overdue(SECOND * 2)), (6, 16));
        times.by_ref().for_each(drop);
        assert_eq!(times.overdue(SECOND * 2), 0);
    }

    #[test]
    fn time_and_count_are_inverse() {
        let profile = RateProfile::new(vec![
            RatePhase::constant(20.0, SECOND),
            RatePhase { from: 20.0, to: 0.0, length: SECOND * 2 },
            RatePhase { from: 0.0, to: 30.0, length: SECOND },
        ]);
        assert_eq!(profile.length(), SECOND * 4);
        for count in 0..55 {
            let at = profile.time_of(f64::from(count)).unwrap();
            assert!((profile.count_before(at) - f64::from(count)).abs() < 1e-6, "{count} at {at:?}");
        }
        assert_eq!(profile.time_of(55.0), None);
    }
}
