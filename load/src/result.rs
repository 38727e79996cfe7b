//! The result of a test.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::FailureKind;
use crate::latency::LatencyHistogram;
use crate::profile::Arrivals;
use crate::recorder::{FailureCount, OutcomeCounts};
use crate::series::SeriesPoint;
use crate::spec::{LoadProtocol, LoadSpec};

/// What a test has measured. The warm-up is not in it.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// The URL.
    pub target: String,
    /// Protocol and load in a few words.
    pub description: String,
    /// Length of the measured part.
    pub measured: Duration,
    pub counts: OutcomeCounts,
    /// Responses that came before the end.
    pub in_time: u64,
    pub statuses: BTreeMap<u16, u64>,
    pub grpc_statuses: BTreeMap<u16, u64>,
    pub failures: BTreeMap<FailureKind, FailureCount>,
    /// From the time at which a request was due to the end of its response.
    pub latency: LatencyHistogram,
    pub series: Vec<SeriesPoint>,
    /// Requests of an open loop that were due and not sent.
    pub unsent: u64,
    /// Processor time of this process.
    pub generator_cpu: Duration,
    /// Of the process that was asked for.
    pub target_cpu: Option<Duration>,
    /// What a reader of the figures should know.
    pub notes: Vec<String>,
}

impl LoadResult {
    /// Responses a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        per_second(self.in_time, self.measured)
    }

    /// Received bytes a second.
    #[must_use]
    pub fn bytes_rate(&self) -> f64 {
        per_second(self.counts.bytes, self.measured)
    }

    /// Requests that got a response or failed.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.counts.responses + self.counts.failures
    }

    /// Microseconds of the generator's processor time for each response.
    #[must_use]
    pub fn generator_cpu_us(&self) -> f64 {
        micros_per(self.generator_cpu, self.counts.responses)
    }

    /// Microseconds of the target's processor time for each response.
    #[must_use]
    pub fn target_cpu_us(&self) -> Option<f64> {
        self.target_cpu.map(|cpu| micros_per(cpu, self.counts.responses))
    }

    /// Adds a later round of the same test.
    pub fn merge(&mut self, later: &Self) {
        let before = self.measured;
        self.measured += later.measured;
        self.counts.add(&later.counts);
        self.in_time += later.in_time;
        for (status, count) in &later.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (status, count) in &later.grpc_statuses {
            *self.grpc_statuses.entry(*status).or_default() += count;
        }
        for (kind, FailureCount { count, example }) in &later.failures {
            let own = self.failures.entry(*kind).or_insert_with(|| FailureCount { count: 0, example: example.clone() });
            own.count += count;
        }
        self.latency.merge(&later.latency);
        self.series.extend(later.series.iter().map(|point| SeriesPoint { end: before + point.end, ..point.clone() }));
        self.unsent += later.unsent;
        self.generator_cpu += later.generator_cpu;
        self.target_cpu = self.target_cpu.zip(later.target_cpu).map(|(own, others)| own + others);
        for note in &later.notes {
            if !self.notes.contains(note) {
                self.notes.push(note.clone());
            }
        }
    }
}

#[allow(clippy::cast_precision_loss)]
fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

#[allow(clippy::cast_precision_loss)]
fn micros_per(time: Duration, count: u64) -> f64 {
    if count == 0 { 0.0 } else { time.as_secs_f64() * 1e6 / count as f64 }
}

/// A test in a few words.
pub(crate) fn describe(spec: &LoadSpec) -> String {
    let protocol = match spec.protocol {
        _ if spec.request.is_grpc => "gRPC",
        LoadProtocol::Http1 => "HTTP/1.1",
        LoadProtocol::Http2 => "HTTP/2",
    };
    let event = if spec.request.event_type.is_some() { ", CloudEvents" } else { "" };
    let pacing = match spec.rate {
        None => "closed loop".to_owned(),
        Some(rate) => {
            let arrivals = match rate.arrivals {
                Arrivals::Constant => "constant",
                Arrivals::Poisson => "Poisson",
            };
            let rates =
                if rate.from == rate.to { format!("{}", rate.from) } else { format!("{} to {}", rate.from, rate.to) };
            format!("open loop, {rates} requests/s, {arrivals} arrivals")
        }
    };
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let streams = if spec.streams > 1 { format!(" with {} streams each", spec.streams) } else { String::new() };
    let (connections, threads) = (plural(spec.connections, "connection"), plural(spec.threads, "thread"));
    format!("{protocol}{event}, {pacing}, {connections}{streams}, {threads}")
}
