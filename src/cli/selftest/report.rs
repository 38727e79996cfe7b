//! The findings of a campaign, in numbers.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::acknowledged::ChildRun;
use super::check::Violation;
use super::content::batch_records;

/// Violations that are reported one by one; the rest is counted.
const REPORTED_MAX: usize = 20;
/// If half of the flushes are faster than this, they did not wait for any disk: even the fastest need some
/// 10 µs.
const TOO_GOOD: Duration = Duration::from_micros(8);
/// Buckets of flush times, each 5 % wider than the one before, starting at 1 µs: the last is at 4 minutes.
const BUCKETS: usize = 400;
const BUCKET_GROWTH: f64 = 1.05;

#[derive(Debug)]
pub(super) struct SelftestReport {
    kills: u64,
    pub(super) torn: u64,
    pub(super) torn_bytes: u64,
    pub(super) flips: u64,
    pub(super) flips_detected: u64,
    records: u64,
    lost: u64,
    violations: u64,
    reported: Vec<String>,
    bytes: u64,
    time: Duration,
    flushes: u64,
    flush_times: Box<[u64; BUCKETS]>,
}

impl Default for SelftestReport {
    fn default() -> Self {
        Self {
            kills: 0,
            torn: 0,
            torn_bytes: 0,
            flips: 0,
            flips_detected: 0,
            records: 0,
            lost: 0,
            violations: 0,
            reported: Vec::new(),
            bytes: 0,
            time: Duration::ZERO,
            flushes: 0,
            flush_times: Box::new([0; BUCKETS]),
        }
    }
}

impl SelftestReport {
    pub(super) const fn is_clean(&self) -> bool {
        self.violations == 0
    }

    /// A child has ended.
    pub(super) fn killed(&mut self, work: &ChildRun, seed: u64) {
        self.kills += 1;
        self.records += work.batches.clone().map(|batch| u64::from(batch_records(seed, batch))).sum::<u64>();
        self.bytes += work.bytes;
        self.time += work.time;
        self.flushes += work.flushes.len() as u64;
        for flush in &work.flushes {
            self.flush_times[bucket(*flush)] += 1;
        }
    }

    pub(super) fn violated(&mut self, after: &str, folder: &Path, violations: Vec<Violation>) {
        for Violation { lost, what } in violations {
            self.violations += 1;
            self.lost += lost;
            if self.reported.len() < REPORTED_MAX {
                self.reported.push(format!("after {after}, in {}: {what}", folder.display()));
            }
        }
    }

    pub(super) fn progress(&self) -> String {
        let Self { kills, torn, flips, records, lost, .. } = self;
        format!("{kills} kills, {torn} torn copies, {flips} flipped; {records} records acknowledged, {lost} lost")
    }

    pub(super) fn table(&self, seed: u64, folder: &Path) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<22}{value}"); // writing to a String cannot fail
        };
        row("disk under", format!("{}, seed {seed}", folder.display()));
        row("kills", format!("{}", self.kills));
        row("torn copies", format!("{}, {} bytes lost or spoilt in them", self.torn, self.torn_bytes));
        row("flipped copies", format!("{}, {} found and named", self.flips, self.flips_detected));
        row("records acknowledged", format!("{}", self.records));
        row("records lost", format!("{}", self.lost));
        let seconds = self.time.as_secs_f64().max(f64::MIN_POSITIVE);
        let [p50, p99] = [0.5, 0.99].map(|share| micros(self.quantile(share)));
        let rate = self.flushes as f64 / seconds;
        row("flushes", format!("{}, {rate:.0}/s, p50 {p50}, p99 {p99}", self.flushes));
        row("appended", format!("{:.1} MiB/s", self.bytes as f64 / f64::from(1 << 20) / seconds));
        if self.flushes > 0 && self.quantile(0.5) < TOO_GOOD {
            row("note", "flushes are too fast for a disk: this folder is in memory, or the disk reports flushes it did not make".to_owned());
        }
        for violation in &self.reported {
            row("VIOLATION", violation.clone());
        }
        let verdict = if self.is_clean() { "nothing that was acknowledged was lost" } else { "a promise was broken" };
        row("verdict", verdict.to_owned());
        text
    }

    /// The time that this share of the flushes did not exceed.
    fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.flushes as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (nth, count) in self.flush_times.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                return Duration::from_secs_f64(BUCKET_GROWTH.powf(nth as f64) / 1e6);
            }
        }
        Duration::ZERO
    }
}

fn bucket(time: Duration) -> usize {
    let micros = (time.as_secs_f64() * 1e6).max(1.0);
    let nth = micros.ln() / BUCKET_GROWTH.ln();
    (nth as usize).min(BUCKETS - 1)
}

fn micros(time: Duration) -> String {
    format!("{} µs", time.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_one_bucket() {
        let flushes = (1..=1000).map(|n| Duration::from_micros(n * 10)).collect();
        let work = ChildRun { flushes, ..ChildRun::default() };
        let mut report = SelftestReport::default();
        report.killed(&work, 1);
        for (share, wanted) in [(0.5, 5000.0), (0.99, 9900.0)] {
            let found = report.quantile(share).as_secs_f64() * 1e6;
            assert!((found / wanted - 1.0).abs() < 0.06, "{share}: {found}");
        }
        assert_eq!(bucket(Duration::from_secs(86_400)), BUCKETS - 1);
    }

    #[test]
    fn violation_is_reported_and_losses_counted() {
        let mut report = SelftestReport::default();
        assert!(report.is_clean());
        let lost = Violation { lost: 3, what: "batch 7".to_owned() };
        report.violated("a kill", Path::new("/d"), vec![lost]);
        assert!(!report.is_clean());
        let table = report.table(1, Path::new("/d"));
        assert!(table.contains("after a kill, in /d: batch 7") && table.contains("records lost          3"), "{table}");
    }
}
