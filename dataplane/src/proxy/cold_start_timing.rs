//! What a request that waited for an instance waited for: told to its client by `Server-Timing`, and kept in
//! histograms.

use std::fmt::Write as _;
use std::time::Duration;

use ::http::{HeaderName, HeaderValue, Response};
use bytes::BytesMut;
use ring::Tick;

use super::Permit;
use crate::counters::{ColdStartDurations, ColdStartPhase};
use crate::http::headers::add_field;
use crate::table::StartupDuration;

/// The name of the header (W3C Server Timing).
const NAME: &str = "server-timing";

/// Of one request that waited.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColdStartTiming {
    queue: Duration,
    /// How its instance came up, if that was what it waited for and somebody measured it.
    start: Option<StartupDuration>,
    placed: Tick,
}

impl ColdStartTiming {
    /// `None` for a request that had its place at once.
    pub(super) fn of(place: &Permit, started: Tick, now: Tick) -> Option<Self> {
        let start = place.waited?;
        Some(Self { queue: now - started, start, placed: now })
    }

    /// The phases in their order, as far as they are known. Those of the instance lie within `queue`.
    fn phases(&self, answered: Tick) -> impl Iterator<Item = (ColdStartPhase, Duration)> {
        let start =
            self.start.map(|start| [(ColdStartPhase::Spawn, start.spawn), (ColdStartPhase::Listen, start.listen)]);
        let first = [(ColdStartPhase::Queue, self.queue)].into_iter();
        first.chain(start.into_iter().flatten()).chain([(ColdStartPhase::FirstByte, answered - self.placed)])
    }

    pub(super) fn note(&self, counts: &ColdStartDurations, answered: Tick) {
        for (phase, took) in self.phases(answered) {
            counts.of(phase).note(took);
        }
    }

    /// Puts the header behind the others of a head that ends with its empty line.
    pub(super) fn put(&self, out: &mut BytesMut, answered: Tick) {
        add_field(out, NAME, self.text(answered).as_bytes());
    }

    pub(super) fn add(&self, answer: &mut Response<()>, answered: Tick) {
        if let Ok(value) = HeaderValue::try_from(self.text(answered)) {
            answer.headers_mut().append(HeaderName::from_static(NAME), value);
        }
    }

    /// `queue;dur=12.345, spawn;dur=1.002`: in milliseconds, as the specification has it.
    fn text(&self, answered: Tick) -> String {
        let mut text = String::with_capacity(96);
        for (phase, took) in self.phases(answered) {
            let comma = if text.is_empty() { "" } else { ", " };
            let us = took.as_micros();
            let _ = write!(text, "{comma}{};dur={}.{:03}", phase.name(), us / 1000, us % 1000); // a String takes all
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_stand_in_their_order_and_unknown_ones_are_left_out() {
        let placed = Tick::from_nanos(1_000_000_000);
        let answered = placed + Duration::from_micros(1_005);
        let queue = Duration::from_micros(250_040);
        let start = StartupDuration { spawn: Duration::from_millis(3), listen: Duration::from_micros(200_500) };
        let known = ColdStartTiming { queue, start: Some(start), placed };
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
