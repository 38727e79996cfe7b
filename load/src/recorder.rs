//! What one thread measures, and what all threads together have measured.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{FailureKind, RequestFailure};
use crate::latency::LatencyHistogram;
use crate::response::CompleteResponse;

/// Counts of outcomes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// Complete responses of any status.
    pub responses: u64,
    /// Responses whose status is an error: 4xx, 5xx, or a status of gRPC that is not OK.
    pub error_responses: u64,
    /// Requests without a complete response.
    pub failures: u64,
    /// Bytes received, with heads and framing, without TLS.
    pub bytes: u64,
}

impl OutcomeCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.responses += other.responses;
        self.error_responses += other.error_responses;
        self.failures += other.failures;
        self.bytes += other.bytes;
    }
}

/// Failures of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureCount {
    pub count: u64,
    /// The text of the first one.
    pub example: String,
}

/// Statuses of HTTP have three digits.
const STATUSES: usize = 1_000;

/// Totals of a thread or a test, other than latencies.
#[derive(Debug, Clone)]
pub(crate) struct Totals {
    statuses: Box<[u64]>,
    /// Statuses of gRPC, as numbers that servers choose: at most 65,536.
    pub(crate) grpc_statuses: BTreeMap<u16, u64>,
    pub(crate) failures: BTreeMap<FailureKind, FailureCount>,
    /// Responses that came before the end of the test.
    pub(crate) in_time: u64,
    /// From the start of the measured part to the last response.
    pub(crate) last_response: Duration,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            statuses: vec![0; STATUSES].into(),
            grpc_statuses: BTreeMap::new(),
            failures: BTreeMap::new(),
            in_time: 0,
            last_response: Duration::ZERO,
        }
    }
}

impl Totals {
    pub(crate) fn merge(&mut self, other: &Self) {
        for (own, others) in self.statuses.iter_mut().zip(&other.statuses) {
            *own += others;
        }
        for (status, count) in &other.grpc_statuses {
            *self.grpc_statuses.entry(*status).or_default() += count;
        }
        for (kind, FailureCount { count, example }) in &other.failures {
            let own = self.failures.entry(*kind).or_insert_with(|| FailureCount { count: 0, example: example.clone() });
            own.count += count;
        }
        self.in_time += other.in_time;
        self.last_response = self.last_response.max(other.last_response);
    }

    pub(crate) fn statuses(&self) -> BTreeMap<u16, u64> {
        (0..).zip(self.statuses.iter().copied()).filter(|(_, count)| *count > 0).collect()
    }
}

/// Latencies and counts of one interval of the time series.
#[derive(Debug, Default)]
pub(crate) struct IntervalResult {
    pub(crate) latency: LatencyHistogram,
    pub(crate) counts: OutcomeCounts,
}

impl IntervalResult {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.counts.add(&other.counts);
    }
}

/// The measurements of one thread.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    interval: IntervalResult,
    totals: Totals,
}

impl Recorder {
    /// A response `latency` after it was due, and `since_start` of the measured part.
    #[inline]
    pub(crate) fn record(
        &mut self,
        response: &CompleteResponse,
        latency: Duration,
        since_start: Duration,
        in_time: bool,
    ) {
        self.interval.latency.record(latency);
        let counts = &mut self.interval.counts;
        counts.responses += 1;
        counts.bytes += response.bytes;
        let is_error = response.status >= 400 || response.grpc_status.is_some_and(|status| status != 0);
        counts.error_responses += u64::from(is_error);
        if let Some(count) = self.totals.statuses.get_mut(usize::from(response.status)) {
            *count += 1;
        }
        if let Some(status) = response.grpc_status {
            *self.totals.grpc_statuses.entry(status).or_default() += 1;
        }
        self.totals.in_time += u64::from(in_time);
        self.totals.last_response = since_start;
    }

    pub(crate) fn record_failure(&mut self, failure: &RequestFailure) {
        self.interval.counts.failures += 1;
        let count = self
            .totals
            .failures
            .entry(failure.kind)
            .or_insert_with(|| FailureCount { count: 0, example: failure.text.clone() });
        count.count += 1;
    }

    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        self.interval.counts.bytes += bytes;
    }

    /// Ends the current interval.
    pub(crate) fn take_interval(&mut self) -> IntervalResult {
        std::mem::take(&mut self.interval)
    }

    pub(crate) fn take_totals(&mut self) -> Totals {
        std::mem::take(&mut self.totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, grpc_status: Option<u16>) -> CompleteResponse {
        CompleteResponse { status, bytes: 10, keep_alive: true, grpc_status }
    }

    #[test]
    fn merged_totals_equal_those_of_one_recorder() {
        let (mut left, mut right, mut all) = (Recorder::default(), Recorder::default(), Recorder::default());
        let ms = Duration::from_millis;
        for (at, status) in (1..=30).zip([200, 200, 404, 503, 999].into_iter().cycle()) {
            let response = response(status, (status == 200).then_some((at % 3) as u16));
            for recorder in [if at % 2 == 0 { &mut left } else { &mut right }, &mut all] {
                recorder.record(&response, ms(at), ms(at), at < 29);
                recorder.record_failure(&RequestFailure::timeout());
            }
        }
        let (mut merged, mut intervals) = (left.take_totals(), left.take_interval());
        merged.merge(&right.take_totals());
        intervals.merge(&right.take_interval());
        let (totals, interval) = (all.take_totals(), all.take_interval());
        assert_eq!(merged.statuses(), totals.statuses());
        assert_eq!(merged.statuses(), BTreeMap::from([(200, 12), (404, 6), (503, 6), (999, 6)]));
        assert_eq!((merged.grpc_statuses, merged.failures), (totals.grpc_statuses, totals.failures));
        assert_eq!((merged.in_time, merged.last_response), (28, ms(30)));
        assert_eq!((intervals.latency, intervals.counts), (interval.latency, interval.counts));
        assert_eq!(interval.counts, OutcomeCounts { responses: 30, error_responses: 26, failures: 30, bytes: 300 });
    }

    #[test]
    fn taken_interval_is_empty_again() {
        let mut recorder = Recorder::default();
        recorder.record(&response(200, None), Duration::from_millis(1), Duration::ZERO, true);
        assert_eq!(recorder.take_interval().latency.count(), 1);
        assert!(recorder.take_interval().latency.is_empty());
    }
}
