//! What criterion measures and how it prints it.

use std::time::{Duration, Instant};

use criterion::Throughput;
use criterion::measurement::{Measurement, ValueFormatter};

use crate::error::LoadTestError;
use crate::process_cpu::ProcessCpu;

/// Wall clock time, printed as requests a second.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestRate;

impl Measurement for RequestRate {
    type Intermediate = Instant;
    type Value = Duration;

    fn start(&self) -> Instant {
        Instant::now()
    }

    fn end(&self, begun: Instant) -> Duration {
        begun.elapsed()
    }

    fn add(&self, left: &Duration, right: &Duration) -> Duration {
        *left + *right
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &PerRequest { suffix: "", unit: "us/request", per_second: "requests/s" }
    }
}

/// Processor time of a process, all of its threads, printed as microseconds a request.
#[derive(Debug, Clone, Copy)]
pub struct CpuPerRequest {
    clock: ProcessCpu,
}

impl CpuPerRequest {
    /// # Errors
    /// There is no such process.
    pub fn of(pid: u32) -> Result<Self, LoadTestError> {
        ProcessCpu::of(pid).map(|clock| Self { clock })
    }
}

impl Measurement for CpuPerRequest {
    /// `None`: the process has ended.
    type Intermediate = Option<Duration>;
    type Value = Duration;

    fn start(&self) -> Option<Duration> {
        self.clock.now().ok()
    }

    fn end(&self, begun: Option<Duration>) -> Duration {
        let ended = self.clock.now().ok();
        ended.zip(begun).map_or(Duration::ZERO, |(ended, begun)| ended.saturating_sub(begun))
    }

    fn add(&self, left: &Duration, right: &Duration) -> Duration {
        *left + *right
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &PerRequest { suffix: "CPU ", unit: "CPU us/request", per_second: "requests/CPU s" }
    }
}

/// Values are nanoseconds for one request.
struct PerRequest {
    suffix: &'static str,
    unit: &'static str,
    per_second: &'static str,
}

const NANOS_PER_MICRO: f64 = 1e3;
const NANOS_PER_SECOND: f64 = 1e9;

impl ValueFormatter for PerRequest {
    fn scale_values(&self, _typical: f64, values: &mut [f64]) -> &'static str {
        values.iter_mut().for_each(|value| *value /= NANOS_PER_MICRO);
        self.unit
    }

    fn scale_throughputs(&self, _typical: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        // A request is the element; bytes keep their own unit.
        match throughput {
            Throughput::Bytes(bytes) | Throughput::BytesDecimal(bytes) => {
                values.iter_mut().for_each(|value| *value = *bytes as f64 * NANOS_PER_SECOND / *value / 1e6);
                if self.suffix.is_empty() { "MB/s" } else { "MB/CPU s" }
            }
            Throughput::Elements(count) => {
                values.iter_mut().for_each(|value| *value = *count as f64 * NANOS_PER_SECOND / *value);
                self.per_second
            }
            _ => {
                values.iter_mut().for_each(|value| *value = NANOS_PER_SECOND / *value);
                self.per_second
            }
        }
    }

    fn scale_for_machines(&self, _values: &mut [f64]) -> &'static str {
        "ns"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_microseconds_and_throughput_is_requests() {
        let mut values = [20_000.0];
        assert_eq!(RequestRate.formatter().scale_values(1.0, &mut values), "us/request");
        assert_eq!(values, [20.0]);
        let mut values = [20_000.0];
        let unit = RequestRate.formatter().scale_throughputs(1.0, &Throughput::Elements(1), &mut values);
        assert_eq!((unit, values), ("requests/s", [50_000.0]));
    }

    #[test]
    fn cpu_measurement_counts_this_process() {
        let cpu = CpuPerRequest::of(std::process::id()).unwrap();
        let begun = cpu.start();
        assert!((0..1_000_000_u64).fold(0, |sum, at| std::hint::black_box(sum ^ at)) < u64::MAX);
        let used = cpu.end(begun);
        assert!(used > Duration::ZERO && cpu.to_f64(&cpu.add(&used, &cpu.zero())) > 0.0);
        assert!(CpuPerRequest::of(0).is_err());
    }
}
