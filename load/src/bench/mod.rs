//! Benches of your own service with criterion: start it, warm it up, and measure requests a second and processor time a request.
//!
//! ```no_run
//! use criterion::{Criterion, Throughput};
//! use sluicegate_load::bench::{HttpBench, ServerProcess};
//!
//! # fn main() -> Result<(), sluicegate_load::LoadTestError> {
//! let server = ServerProcess::start(|port| {
//!     let mut command = std::process::Command::new("./my-service");
//!     command.env("PORT", port.to_string());
//!     command
//! })?;
//! let bench = HttpBench::new(server.url("/hello")).connections(32).cpu_of(server.pid());
//! bench.warm_up(1_000)?;
//! let mut criterion = Criterion::default();
//! let mut group = criterion.benchmark_group("my-service");
//! group.throughput(Throughput::Elements(1));
//! group.bench_function("hello", |b| b.iter_custom(|requests| bench.elapsed(requests).expect("a response")));
//! # Ok(())
//! # }
//! ```
//!
//! With [`RequestRate`] as criterion's measurement, reports say requests a second; with [`CpuPerRequest`], microseconds of processor
//! time, which depends less on what else the machine does.

mod measurement;
mod server_process;

pub use measurement::{CpuPerRequest, RequestRate};
pub use server_process::{ServerProcess, free_port};

use std::time::Duration;

use crate::error::{FailureKind, LoadTestError, RequestFailure};
use crate::result::LoadResult;
use crate::runner::run;
use crate::spec::LoadSpec;

/// Sends as many requests to one URL as criterion asks for.
#[derive(Debug, Clone)]
pub struct HttpBench {
    spec: LoadSpec,
}

impl HttpBench {
    /// One connection, GET requests.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { spec: LoadSpec::new(url) }
    }

    /// Any other load: the number of requests is criterion's.
    #[must_use]
    pub fn of(spec: LoadSpec) -> Self {
        Self { spec }
    }

    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.spec.connections = connections;
        self
    }

    /// The process whose processor time [`cpu`](Self::cpu) returns.
    #[must_use]
    pub fn cpu_of(mut self, pid: u32) -> Self {
        self.spec.cpu_of = Some(pid);
        self
    }

    /// Sends requests whose times do not count.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub fn warm_up(&self, requests: u64) -> Result<(), LoadTestError> {
        self.run(requests).map(drop)
    }

    /// Sends `requests` and waits for all responses. Connections are open before the first, and are not more than the requests.
    ///
    /// # Errors
    /// The test could not begin, or a request failed: a bench of failures measures something else.
    pub fn run(&self, requests: u64) -> Result<LoadResult, LoadTestError> {
        let connections = usize::try_from(requests).unwrap_or(usize::MAX).min(self.spec.connections).max(1);
        let threads = self.spec.threads.min(connections);
        let spec =
            LoadSpec { requests: Some(requests.max(1)), duration: None, connections, threads, ..self.spec.clone() };
        let result = run(&spec)?;
        let failed = |text: String| LoadTestError::Unreachable {
            target: result.target.clone(),
            failure: RequestFailure::new(FailureKind::Closed, text),
        };
        if let Some((kind, failure)) = result.failures.first_key_value() {
            return Err(failed(format!("{} requests failed ({}): {}", failure.count, kind.name(), failure.example)));
        }
        if result.counts.error_responses > 0 {
            return Err(failed(format!("{} responses have an error status", result.counts.error_responses)));
        }
        Ok(result)
    }

    /// The time that `requests` take: for `Bencher::iter_custom` with the wall clock or [`RequestRate`].
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub fn elapsed(&self, requests: u64) -> Result<Duration, LoadTestError> {
        self.run(requests).map(|result| result.measured)
    }

    /// The processor time that the process of [`cpu_of`](Self::cpu_of) spends on `requests`: for `Bencher::iter_custom` with
    /// [`CpuPerRequest`].
    ///
    /// # Errors
    /// See [`run`](Self::run). The process has ended, or none was named.
    pub fn cpu(&self, requests: u64) -> Result<Duration, LoadTestError> {
        let result = self.run(requests)?;
        let missing = || LoadTestError::Invalid("no processor time: name a running process with cpu_of".to_owned());
        result.target_cpu.ok_or_else(missing)
    }
}
