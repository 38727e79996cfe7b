//! How long a request waited for an instance, by phase. The client gets it as `Server-Timing`, and histograms record
//! it.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use ::http::{HeaderName, HeaderValue, Response};
use bytes::BytesMut;
use contract::cold_starts::ColdStart;
use contract::counters::{ColdStartDurations, ColdStartPhase};
use contract::table::StartupDuration;
use protocol::http::headers::add_field;
use ring::Tick;

use super::Permit;

/// The name of the header (W3C Server Timing).
const NAME: &str = "server-timing";

/// Of one request that waited.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColdStartTiming {
    queue: Duration,
    /// How long its instance took to start, if the request waited for a start that was measured.
    start: Option<StartupDuration>,
    acquired: Tick,
}

impl ColdStartTiming {
    /// `None` for a request that got its permit at once.
    pub(super) fn of(permit: &Permit, started: Tick, now: Tick) -> Option<Self> {
        let start = permit.waited?;
        Some(Self { queue: now - started, start, acquired: now })
    }

    /// The phases in order, as far as they are known. Those of the instance lie within `queue`.
    fn phases(&self, answered: Tick) -> impl Iterator<Item = (ColdStartPhase, Duration)> {
        let start =
            self.start.map(|start| [(ColdStartPhase::Spawn, start.spawn), (ColdStartPhase::Listen, start.listen)]);
        let first = [(ColdStartPhase::Queue, self.queue)].into_iter();
        first.chain(start.into_iter().flatten()).chain([(ColdStartPhase::FirstByte, answered - self.acquired)])
    }

    pub(super) fn note(&self, counts: &ColdStartDurations, answered: Tick) {
        for (phase, took) in self.phases(answered) {
            counts.of(phase).note(took);
        }
    }

    /// The record of the start that it waited for, if that was measured.
    pub(super) fn cold_start(&self, backend: &str, answered: Tick, now: Tick) -> Option<ColdStart> {
        let start = self.start?;
        Some(ColdStart {
            backend: backend.into(),
            answered_at: SystemTime::now() - (now - answered),
            queue: self.queue,
            start,
            first_byte: answered - self.acquired,
        })
    }

    /// Appends the header to a head that ends with its empty line.
    pub(super) fn put(&self, out: &mut BytesMut, answered: Tick) {
        add_field(out, NAME, self.text(answered).as_bytes());
    }

    pub(super) fn add(&self, answer: &mut Response<()>, answered: Tick) {
        if let Ok(value) = HeaderValue::try_from(self.text(answered)) {
            answer.headers_mut().append(HeaderName::from_static(NAME), value);
        }
    }

    /// `queue;dur=12.345, spawn;dur=1.002`, in milliseconds as the specification requires.
    fn text(&self, answered: Tick) -> String {
        let mut text = String::with_capacity(96);
        for (phase, took) in self.phases(answered) {
            let comma = if text.is_empty() { "" } else { ", " };
            let us = took.as_micros();
            // writing to a String cannot fail
            let _ = write!(text, "{comma}{};dur={}.{:03}", phase.name(), us / 1000, us % 1000);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_in_order_without_unknown_ones() {
        let acquired = Tick::from_nanos(1_000_000_000);
        let answered = acquired + Duration::from_micros(1_005);
        let queue = Duration::from_micros(250_040);
        let start = StartupDuration { spawn: Duration::from_millis(3), listen: Duration::from_micros(200_500) };
        let known = ColdStartTiming { queue, start: Some(start), acquired };
        assert_eq!(
            known.text(answered),
            "queue;dur=250.040, spawn;dur=3.000, listen;dur=200.500, first-byte;dur=1.005"
        );
        let mut head = BytesMut::from("HTTP/1.1 200 OK\r\nA: b\r\n\r\n");
        ColdStartTiming { start: None, ..known }.put(&mut head, answered);
        assert_eq!(head, "HTTP/1.1 200 OK\r\nA: b\r\nserver-timing: queue;dur=250.040, first-byte;dur=1.005\r\n\r\n");
        let counts = ColdStartDurations::default();
        known.note(&counts, answered);
        assert_eq!(ColdStartPhase::ALL.map(|phase| counts.of(phase).count()), [1, 1, 1, 1]);
    }
}
