//! Limits how fast instances' output is read. A program that prints without end waits on its full pipe, as it would for a slow
//! disk; none of its output is lost, and it costs the appliance no processor time.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::limits::{OUTPUT_ALL_BYTES_PER_SECOND, OUTPUT_BURST, OUTPUT_BYTES_PER_SECOND, OUTPUT_THROTTLE_LOG_INTERVAL};

/// The read output of all instances, for the metrics.
#[derive(Debug, Default)]
pub struct OutputTally {
    /// As it is in the logs.
    pub bytes: AtomicU64,
    /// How long output that was ready was not read.
    pub throttled_us: AtomicU64,
}

/// State that all logs share.
#[derive(Debug, Default)]
pub(crate) struct Output {
    tally: Arc<OutputTally>,
    all: RefCell<Bucket>,
}

/// The pace of one log.
#[derive(Debug)]
pub(crate) struct OutputPace {
    output: Rc<Output>,
    own: Bucket,
    /// How long it was not read since that was last logged.
    unlogged: Duration,
    logged_at: Option<Instant>,
}

/// A token bucket: when what was taken will have been paid for at its rate.
#[derive(Debug, Default)]
struct Bucket {
    paid_at: Option<Instant>,
}

impl Output {
    pub(crate) fn new(tally: Arc<OutputTally>) -> Self {
        Self { tally, all: RefCell::default() }
    }
}

impl OutputPace {
    pub(crate) fn new(output: Rc<Output>) -> Self {
        Self { output, own: Bucket::default(), unlogged: Duration::ZERO, logged_at: None }
    }

    /// Counts `bytes` that were written at `now`: how long the next are to wait. A log that is within its own rate waits for
    /// no other.
    pub(crate) fn charge(&mut self, bytes: usize, now: Instant) -> Duration {
        let Output { tally, all } = &*self.output;
        tally.bytes.fetch_add(bytes as u64, Relaxed);
        let own = self.own.take(bytes, OUTPUT_BYTES_PER_SECOND, now);
        let all = all.borrow_mut().take(bytes, OUTPUT_ALL_BYTES_PER_SECOND, now);
        let wait = if own.is_zero() { own } else { own.max(all) };
        tally.throttled_us.fetch_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), Relaxed);
        self.unlogged += wait;
        wait
    }

    /// How long the output waited, when that is due to be logged.
    pub(crate) fn take_due_report(&mut self, now: Instant) -> Option<Duration> {
        let is_due =
            self.logged_at.is_none_or(|logged_at| now.duration_since(logged_at) >= OUTPUT_THROTTLE_LOG_INTERVAL);
        if self.unlogged.is_zero() || !is_due {
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl Bucket {
    /// Takes `bytes` at a rate per second, and a burst of [`OUTPUT_BURST`] at that rate for nothing: how long to wait then.
    fn take(&mut self, bytes: usize, rate: u64, now: Instant) -> Duration {
        let duration = Duration::from_nanos((bytes as u64).saturating_mul(1_000_000_000) / rate);
        let paid_at = self.paid_at.map_or(now, |paid_at| paid_at.max(now)) + duration;
        self.paid_at = Some(paid_at);
        paid_at.duration_since(now).saturating_sub(OUTPUT_BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace() -> OutputPace {
        OutputPace::new(Rc::default())
    }

    #[test]
    fn burst_is_free_and_flood_is_held_to_rate() {
        let (mut pace, mut now) = (pace(), Instant::now());
        let second = OUTPUT_BYTES_PER_SECOND as usize;
        let free = second * OUTPUT_BURST.as_secs() as usize;
        assert_eq!(pace.charge(free, now), Duration::ZERO);
        let began = now;
        for _ in 0..100 {
            now += pace.charge(second / 10, now);
        }
        assert_eq!((now - began).as_secs_f64().round(), 10.0, "ten seconds' worth beyond the burst");
        assert!(pace.take_due_report(now).is_some_and(|waited| waited.as_secs_f64().round() == 10.0));
        assert_eq!(pace.take_due_report(now), None, "told once");
    }

    #[test]
    fn quiet_log_waits_for_no_flood_of_others() {
        let output = Rc::<Output>::default();
        let now = Instant::now();
        let [mut flooding, mut quiet] = [(), ()].map(|()| OutputPace::new(Rc::clone(&output)));
        let flood = OUTPUT_ALL_BYTES_PER_SECOND as usize * 10;
        assert!(flooding.charge(flood, now) > Duration::from_secs(5));
        assert_eq!(quiet.charge(1000, now), Duration::ZERO);
    }

    #[test]
    fn many_floods_share_one_rate() {
        let output = Rc::<Output>::default();
        let now = Instant::now();
        let share = OUTPUT_BYTES_PER_SECOND as usize * (OUTPUT_BURST.as_secs() as usize + 1);
        let waits = (0..100).map(|_| OutputPace::new(Rc::clone(&output)).charge(share, now));
        let all = share * 100 / OUTPUT_ALL_BYTES_PER_SECOND as usize;
        assert_eq!(waits.max().unwrap().as_secs() + OUTPUT_BURST.as_secs(), all as u64);
    }
}
