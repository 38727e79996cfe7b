//! A load generator on io_uring for HTTP/1.1, HTTP/2, gRPC and CloudEvents.
//!
//! ```no_run
//! use std::time::Duration;
//! use sluicegate_load::{LoadSpec, Report, report, run};
//!
//! let spec = LoadSpec { connections: 64, duration: Some(Duration::from_secs(5)), ..LoadSpec::new("http://127.0.0.1:8080/") };
//! let result = run(&spec)?;
//! println!("{} requests/s", result.rate());
//! println!("{}", report::to_text(&Report::Tests(vec![result])));
//! # Ok::<(), sluicegate_load::LoadTestError>(())
//! ```
//!
//! In a **closed loop** each connection sends its next request when the last one is answered. That finds the highest rate. In an
//! **open loop** ([`OpenLoopRate`]) requests are due at their times whether the server is slow or not, and latency counts from when
//! a request was due. So a server that stalls shows in the latency of every request that the stall delayed.
//!
//! Read [`spec`](LoadSpec) first (what a test does), then `worker` (when a client sends), `http1` and `http2` (how), `recorder` and
//! `runner` (what becomes of the results). [`compare`] and [`report`] use results only. With the feature `criterion`, the module
//! `bench` has measurements and fixtures for `cargo bench`.
#![forbid(unsafe_code)]

#[cfg(feature = "criterion")]
pub mod bench;
mod comparison;
mod confidence;
mod deadline;
mod error;
mod http1;
mod http2;
mod latency;
pub mod limits;
mod process_cpu;
mod profile;
mod recorder;
pub mod report;
mod request;
mod response;
mod result;
mod runner;
mod series;
mod spec;
mod stream;
mod target;
mod thread;
mod tls;
mod worker;

pub use comparison::{Comparison, ComparisonRow, compare};
pub use confidence::RatioInterval;
pub use error::{FailureKind, LoadTestError, RequestFailure};
pub use latency::LatencyHistogram;
pub use process_cpu::ProcessCpu;
pub use profile::{ArrivalTimes, Arrivals, RatePhase, RateProfile};
pub use recorder::{FailureCount, OutcomeCounts};
pub use report::Report;
pub use request::RequestOptions;
pub use result::LoadResult;
pub use runner::{LoadProgress, StopHandle, run, run_observed};
pub use series::SeriesPoint;
pub use spec::{LoadProtocol, LoadSpec, OpenLoopRate};
pub use target::LoadTarget;
pub use tls::TlsTrust;
