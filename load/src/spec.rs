//! What a load test does: its target, its request, and how many are sent when.

use std::time::Duration;

use crate::error::LoadTestError;
use crate::limits::{
    CONNECTIONS_MAX, DURATION_MAX, RATE_MAX, RESPONSE_TIMEOUT, RESPONSE_TIMEOUT_MAX, STREAMS_MAX, THREADS_MAX,
};
use crate::profile::{Arrivals, RatePhase, RateProfile};
use crate::request::{RequestOptions, RequestTemplate};
use crate::target::LoadTarget;
use crate::tls::{TlsSettings, TlsTrust};

/// The protocol of the requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoadProtocol {
    #[default]
    Http1,
    /// Over TLS by ALPN, and without TLS by prior knowledge.
    Http2,
}

/// Requests a second in an open loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenLoopRate {
    pub from: f64,
    /// At the end; the rate changes linearly.
    pub to: f64,
    pub arrivals: Arrivals,
}

/// A load test. Fields are checked when it [starts](crate::run).
#[derive(Debug, Clone)]
pub struct LoadSpec {
    pub url: String,
    pub request: RequestOptions,
    pub protocol: LoadProtocol,
    pub trust: TlsTrust,
    pub connections: usize,
    /// Concurrent requests of each connection; more than one takes HTTP/2.
    pub streams: usize,
    pub threads: usize,
    /// `None`: a closed loop, in which each connection or stream sends its next request when the last one is answered.
    pub rate: Option<OpenLoopRate>,
    /// Without it and without `requests` a test lasts ten seconds.
    pub duration: Option<Duration>,
    /// Requests of the test, not counting the warm-up.
    pub requests: Option<u64>,
    /// Requests that begin in this time are sent, and not counted.
    pub warm_up: Duration,
    /// How long a response may take.
    pub timeout: Duration,
    /// The process whose processor time is measured beside.
    pub cpu_of: Option<u32>,
}

/// How long a test lasts that has no limit of its own.
const DURATION: Duration = Duration::from_secs(10);

impl LoadSpec {
    /// One connection that sends GET requests to `url` in a closed loop.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            request: RequestOptions::default(),
            protocol: LoadProtocol::Http1,
            trust: TlsTrust::System,
            connections: 1,
            streams: 1,
            threads: 1,
            rate: None,
            duration: None,
            requests: None,
            warm_up: Duration::ZERO,
            timeout: RESPONSE_TIMEOUT,
            cpu_of: None,
        }
    }

    /// Resolves names, and checks all fields against each other.
    pub(crate) fn check(&self) -> Result<CheckedSpec, LoadTestError> {
        let target = LoadTarget::resolve(&self.url)?;
        self.check_counts()?;
        self.check_times()?;
        let speaks_http2 = self.protocol == LoadProtocol::Http2;
        if self.request.is_grpc && !speaks_http2 {
            return Err(LoadTestError::Invalid("gRPC needs HTTP/2; choose it".to_owned()));
        }
        if self.streams > 1 && !speaks_http2 {
            return Err(LoadTestError::Invalid(format!(
                "{} streams a connection need HTTP/2; use --http2, or more connections",
                self.streams
            )));
        }
        let request = RequestTemplate::new(&target, &self.request)?;
        let tls = if target.is_tls { Some(TlsSettings::new(&self.trust, &target.host, speaks_http2)?) } else { None };
        let profile = self.rate.map(|rate| self.profile(rate)).transpose()?;
        let duration = match (&profile, self.duration, self.requests) {
            (Some(profile), _, _) => Some(profile.length().saturating_sub(self.warm_up)),
            (None, None, None) => Some(DURATION),
            (None, duration, _) => duration,
        };
        Ok(CheckedSpec { target, request, tls, profile, duration, spec: self.clone() })
    }

    fn check_counts(&self) -> Result<(), LoadTestError> {
        let counts = [
            ("connections", self.connections, CONNECTIONS_MAX),
            ("streams", self.streams, STREAMS_MAX),
            ("threads", self.threads, THREADS_MAX),
        ];
        for (what, count, max) in counts {
            if !(1..=max).contains(&count) {
                return Err(LoadTestError::Invalid(format!("{count} {what}: use 1 to {max}")));
            }
        }
        if self.threads > self.connections {
            return Err(LoadTestError::Invalid(format!(
                "{} threads for {} connections: each thread needs one; use fewer threads or more connections",
                self.threads, self.connections
            )));
        }
        if self.requests == Some(0) {
            return Err(LoadTestError::Invalid("0 requests: use at least 1".to_owned()));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), LoadTestError> {
        if self.timeout.is_zero() || self.timeout > RESPONSE_TIMEOUT_MAX {
            let max = RESPONSE_TIMEOUT_MAX.as_secs();
            return Err(LoadTestError::Invalid(format!(
                "timeout {:?}: use more than 0 and at most {max}s",
                self.timeout
            )));
        }
        if self.duration.is_some_and(|duration| duration.is_zero()) {
            return Err(LoadTestError::Invalid("duration 0: use a longer one, like 10s".to_owned()));
        }
        for (what, length) in [("duration", self.duration.unwrap_or_default()), ("warm-up", self.warm_up)] {
            if length > DURATION_MAX {
                let max = DURATION_MAX.as_secs();
                return Err(LoadTestError::Invalid(format!("{what} {length:?}: use at most {max}s")));
            }
        }
        Ok(())
    }

    /// The rate over time, with the warm-up in front at the first rate.
    fn profile(&self, rate: OpenLoopRate) -> Result<RateProfile, LoadTestError> {
        for each in [rate.from, rate.to] {
            if !(0.0..=RATE_MAX).contains(&each) {
                return Err(LoadTestError::Invalid(format!(
                    "rate {each}: use more than 0 and at most {RATE_MAX} a second"
                )));
            }
        }
        let mean = f64::midpoint(rate.from, rate.to);
        if mean <= 0.0 {
            return Err(LoadTestError::Invalid("rate 0: use more than 0 requests a second".to_owned()));
        }
        #[allow(clippy::cast_precision_loss)]
        let length = match (self.duration, self.requests) {
            (Some(duration), _) => duration,
            (None, Some(requests)) => Duration::try_from_secs_f64(requests as f64 / mean).unwrap_or(Duration::MAX),
            (None, None) => DURATION,
        };
        if length > DURATION_MAX {
            return Err(LoadTestError::Invalid(
                "the requests take more than a month at this rate; use fewer".to_owned(),
            ));
        }
        let warm_up = RatePhase::constant(if rate.from > 0.0 { rate.from } else { mean }, self.warm_up);
        Ok(RateProfile::new(vec![warm_up, RatePhase { from: rate.from, to: rate.to, length }]))
    }
}

/// A test whose fields are consistent.
#[derive(Debug)]
pub(crate) struct CheckedSpec {
    pub(crate) target: LoadTarget,
    pub(crate) request: RequestTemplate,
    pub(crate) tls: Option<TlsSettings>,
    /// Of an open loop.
    pub(crate) profile: Option<RateProfile>,
    /// Of the measured part; `None`: until all requests are answered.
    pub(crate) duration: Option<Duration>,
    pub(crate) spec: LoadSpec,
}

impl CheckedSpec {
    /// The part of `total` that belongs to one thread.
    pub(crate) fn share(&self, total: u64, thread: usize) -> u64 {
        let (threads, thread) = (self.spec.threads as u64, thread as u64);
        total / threads + u64::from(thread < total % threads)
    }

    /// Connections of one thread.
    pub(crate) fn connections(&self, thread: usize) -> usize {
        usize::try_from(self.share(self.spec.connections as u64, thread)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> LoadSpec {
        LoadSpec::new("http://127.0.0.1:81/")
    }

    fn rate(from: f64, to: f64) -> Option<OpenLoopRate> {
        Some(OpenLoopRate { from, to, arrivals: Arrivals::Constant })
    }

    #[test]
    fn inconsistent_option_is_rejected_with_a_remedy() {
        for (spec, part) in [
            (LoadSpec { connections: 0, ..spec() }, "use 1 to"),
            (LoadSpec { streams: STREAMS_MAX + 1, ..spec() }, "use 1 to"),
            (LoadSpec { threads: 2, ..spec() }, "fewer threads"),
            (LoadSpec { streams: 2, ..spec() }, "--http2"),
            (LoadSpec { requests: Some(0), ..spec() }, "at least 1"),
            (LoadSpec { duration: Some(Duration::ZERO), ..spec() }, "longer"),
            (LoadSpec { timeout: Duration::ZERO, ..spec() }, "timeout"),
            (LoadSpec { timeout: Duration::MAX, ..spec() }, "timeout"),
            (LoadSpec { rate: rate(-1.0, 1.0), ..spec() }, "rate -1"),
            (LoadSpec { rate: rate(0.0, 0.0), ..spec() }, "rate 0"),
            (LoadSpec { rate: rate(f64::NAN, 1.0), ..spec() }, "rate NaN"),
            (LoadSpec { request: RequestOptions { is_grpc: true, ..Default::default() }, ..spec() }, "HTTP/2"),
        ] {
            let why = spec.check().unwrap_err().to_string();
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn duration_follows_from_rate_and_requests() {
        let seconds = |spec: LoadSpec| spec.check().unwrap().duration.map(|duration| duration.as_secs());
        assert_eq!(seconds(spec()), Some(10));
        assert_eq!(seconds(LoadSpec { requests: Some(5), ..spec() }), None);
        assert_eq!(seconds(LoadSpec { requests: Some(600), rate: rate(100.0, 200.0), ..spec() }), Some(4));
        let warmed = LoadSpec { warm_up: Duration::from_secs(3), rate: rate(100.0, 100.0), ..spec() };
        assert_eq!(seconds(warmed), Some(10));
    }

    #[test]
    fn threads_share_requests_and_connections_whole() {
        let checked = LoadSpec { threads: 3, connections: 8, ..spec() }.check().unwrap();
        assert_eq!((0..3).map(|thread| checked.share(10, thread)).collect::<Vec<_>>(), [4, 3, 3]);
        assert_eq!((0..3).map(|thread| checked.connections(thread)).sum::<usize>(), 8);
    }
}
