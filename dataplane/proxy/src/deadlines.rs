//! The deadlines of a response, from the timeouts of its route.

use std::time::Duration;

use contract::table::RequestTimeouts;
use protocol::http::buffers::earlier;
use ring::{Ring, Tick};

/// The deadlines of a response.
#[derive(Clone, Copy)]
pub(super) struct ResponseDeadlines {
    pub(super) total: Option<Tick>,
    pub(super) first_byte: Option<Tick>,
    idle: Option<Duration>,
}

impl ResponseDeadlines {
    pub(super) fn new(started: Tick, timeouts: &RequestTimeouts) -> Self {
        let limit = |wait: Duration| (!wait.is_zero()).then_some(wait);
        let total = limit(timeouts.total).map(|wait| started + wait);
        let start = limit(timeouts.response_start).map(|wait| started + wait);
        let idle = limit(timeouts.idle);
        let first_byte = earlier(total, earlier(start, idle.map(|wait| started + wait)));
        Self { total, first_byte, idle }
    }

    /// Whether the total timeout has passed: bytes that arrive now cannot be sent any more.
    pub(super) fn is_over(&self, ring: &Ring) -> bool {
        self.total.is_some_and(|total| ring.now() >= total)
    }

    /// For the rest of a response head whose last bytes arrived at `last`, interim responses included.
    pub(super) fn head(&self, last: Option<Tick>) -> Option<Tick> {
        last.map_or(self.first_byte, |last| self.after(last))
    }

    /// For the next byte of a response that has begun.
    pub(super) fn next_byte(&self, ring: &Ring) -> Option<Tick> {
        self.after(ring.now())
    }

    /// For the next byte after one at `last`.
    pub(super) fn after(&self, last: Tick) -> Option<Tick> {
        earlier(self.total, self.idle.map(|wait| last + wait))
    }
}
