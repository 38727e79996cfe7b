//! The deadlines of a response, from the timeouts of its route.

use std::time::Duration;

use contract::table::RequestTimeouts;
use protocol::http::buffers::earlier;
use ring::{Ring, Tick};

use super::activity::IdleTimeout;

/// How far a request is, for timeouts that count from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestSent {
    /// Its body is on the way.
    No,
    /// All of it was sent; the last bytes of its body came from the client at this tick.
    At(Tick),
}

/// The deadlines of a response.
#[derive(Clone, Copy)]
pub(super) struct ResponseDeadlines {
    pub(super) total: Option<Tick>,
    pub(super) first_byte: Option<Tick>,
    idle: IdleTimeout,
    /// Set if timeouts count from the end of the request: how long the first byte may take from there.
    after_request: IdleTimeout,
    started: Tick,
}

impl ResponseDeadlines {
    pub(super) fn new(started: Tick, timeouts: &RequestTimeouts) -> Self {
        let limit = |wait: Duration| (!wait.is_zero()).then_some(wait);
        let total = limit(timeouts.total).map(|wait| started + wait);
        let start = limit(timeouts.response_start).map(|wait| started + wait);
        let idle = limit(timeouts.idle);
        let first_byte = earlier(total, earlier(start, idle.map(|wait| started + wait)));
        let after_request = match (limit(timeouts.response_start), idle) {
            (Some(start), Some(idle)) => Some(start.min(idle)),
            (start, idle) => start.or(idle),
        };
        let after_request = after_request.filter(|_| timeouts.after_request).unwrap_or_default();
        let (idle, after_request) = (IdleTimeout::new(timeouts.idle), IdleTimeout::new(after_request));
        Self { total, first_byte, idle, after_request, started }
    }

    /// The response ends by `at` at the latest.
    pub(super) fn end_by(&mut self, at: Tick) {
        self.total = earlier(self.total, Some(at));
        self.first_byte = earlier(self.first_byte, Some(at));
    }

    /// Whether the total timeout has passed: bytes that arrive now cannot be sent any more.
    pub(super) fn is_over(&self, ring: &Ring) -> bool {
        self.total.is_some_and(|total| ring.now() >= total)
    }

    /// For the rest of a response head whose last bytes arrived at `last`, interim responses included. While the request is on
    /// its way, and the timeouts count from its end, this is when to look again.
    pub(super) fn head(&self, last: Option<Tick>, sent: RequestSent, now: Tick) -> Option<Tick> {
        let Some(after_request) = self.after_request.get() else {
            return last.map_or(self.first_byte, |last| self.after(last));
        };
        let wait = if last.is_some() { self.idle.get() } else { Some(after_request) };
        let from = match sent {
            RequestSent::No => now,
            RequestSent::At(sent) => sent.max(self.started).max(last.unwrap_or(Tick::ZERO)),
        };
        earlier(self.total, wait.map(|wait| from + wait))
    }

    /// For the next byte of a response that has begun.
    pub(super) fn next_byte(&self, ring: &Ring) -> Option<Tick> {
        self.after(ring.now())
    }

    /// Whether a response that is idle for too long belongs to a request that still moves, as an upload or a stream of a gRPC
    /// client does: bytes last passed at `last`, in either direction. Knative's timeouts count the response alone.
    pub(super) fn is_active(&self, last: Tick, now: Tick) -> bool {
        self.after_request.get().is_some()
            && self.total.is_none_or(|total| now < total)
            && self.idle.get().is_some_and(|idle| last + idle > now)
    }

    /// For the next byte of the instance in a tunnel, after one at `last`. A tunnel to a given address has its own idle timeout.
    pub(super) fn tunnel(&self, last: Tick) -> Option<Tick> {
        if self.after_request.get().is_some() { self.total } else { self.after(last) }
    }

    /// For the next byte after one at `last`.
    pub(super) fn after(&self, last: Tick) -> Option<Tick> {
        earlier(self.total, self.idle.get().map(|wait| last + wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick::ZERO + Duration::from_secs(seconds)
    }

    /// An upload may take longer than the response may take to begin.
    #[test]
    fn response_start_counts_from_the_end_of_the_request() {
        let due = ResponseDeadlines::new(at(100), &RequestTimeouts::EXTERNAL);
        assert_eq!(due.head(None, RequestSent::No, at(500)), Some(at(560)), "looked at again");
        assert_eq!(due.head(None, RequestSent::At(at(400)), at(500)), Some(at(460)));
        assert_eq!(due.head(None, RequestSent::At(Tick::ZERO), at(110)), Some(at(160)), "without a body");
        assert_eq!(
            due.head(Some(at(430)), RequestSent::At(at(400)), at(500)),
            Some(at(730)),
            "after an interim response"
        );
        assert_eq!(due.tunnel(at(500)), None);

        let own = RequestTimeouts { total: Duration::from_secs(10), ..RequestTimeouts::EXTERNAL };
        let due = ResponseDeadlines::new(at(100), &own);
        assert_eq!((due.head(None, RequestSent::No, at(105)), due.tunnel(at(105))), (Some(at(110)), Some(at(110))));
    }

    /// A client that uploads keeps the stream, up to the total timeout.
    #[test]
    fn idle_response_lives_while_the_request_moves() {
        let due = ResponseDeadlines::new(at(100), &RequestTimeouts::EXTERNAL);
        assert!(due.is_active(at(390), at(400)));
        assert!(!due.is_active(at(100), at(400)));
        let own = RequestTimeouts { total: Duration::from_secs(10), ..RequestTimeouts::EXTERNAL };
        assert!(!ResponseDeadlines::new(at(100), &own).is_active(at(109), at(110)));
        let of_instance = RequestTimeouts { idle: Duration::from_secs(300), ..RequestTimeouts::NONE };
        assert!(!ResponseDeadlines::new(at(100), &of_instance).is_active(at(390), at(400)));
    }

    /// Knative's timeouts count from the request's head.
    #[test]
    fn response_start_of_an_instance_counts_from_the_head() {
        let timeouts = RequestTimeouts { response_start: Duration::from_secs(60), ..RequestTimeouts::NONE };
        let due = ResponseDeadlines::new(at(100), &timeouts);
        for sent in [RequestSent::No, RequestSent::At(at(150))] {
            assert_eq!(due.head(None, sent, at(155)), Some(at(160)));
        }
    }
}
