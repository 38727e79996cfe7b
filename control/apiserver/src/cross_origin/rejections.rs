//! Counts the rejected requests by listener and reason, for `/metrics` and the log.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Rejection;

/// A page can send requests without end, so each listener logs one of them in this time and says how many it left out.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A listener that trusts callers for where they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardedListener {
    Api,
    ApiSocket,
    Admin,
    Console,
}

impl GuardedListener {
    const ALL: [Self; 4] = [Self::Api, Self::ApiSocket, Self::Admin, Self::Console];

    fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::ApiSocket => "api-socket",
            Self::Admin => "admin",
            Self::Console => "console",
        }
    }
}

/// Counts of all listeners.
#[derive(Debug, Default)]
pub struct Rejections {
    listeners: [PerListener; GuardedListener::ALL.len()],
}

#[derive(Debug, Default)]
struct PerListener {
    by_reason: [AtomicU64; Rejection::REASONS.len()],
    log: Mutex<RejectionLogState>,
}

#[derive(Debug, Default)]
struct RejectionLogState {
    last: Option<Instant>,
    left_out: u64,
}

impl RejectionLogState {
    /// How many were left out since the last line; `None`: this one is left out too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Rejections {
    /// Every listener's name, every reason and its count.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        GuardedListener::ALL.into_iter().zip(&self.listeners).flat_map(|(listener, counts)| {
            let reasons = Rejection::REASONS.iter().zip(&counts.by_reason);
            reasons.map(move |(reason, count)| (listener.name(), *reason, count.load(Relaxed)))
        })
    }

    pub(super) fn record(&self, listener: GuardedListener, rejection: &Rejection) {
        let counts = &self.listeners[listener as usize];
        counts.by_reason[rejection.reason_index()].fetch_add(1, Relaxed);
        let admitted = counts.log.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        if let Some(left_out) = admitted {
            let listener = listener.name();
            tracing::warn!(listener, left_out, "rejected a request that a web page may have sent: {rejection}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_is_counted_by_listener_and_reason() {
        let rejections = Rejections::default();
        rejections.record(GuardedListener::Admin, &Rejection::CrossOrigin("null".into()));
        rejections.record(GuardedListener::Admin, &Rejection::CrossOrigin("null".into()));
        rejections.record(GuardedListener::Api, &Rejection::NoContentType);
        let counted: Vec<_> = rejections.counts().filter(|(_, _, count)| *count > 0).collect();
        assert_eq!(counted, [("api", "content-type", 1), ("admin", "origin", 2)]);
        assert_eq!(rejections.counts().count(), 16);
    }

    #[test]
    fn flood_of_rejections_is_one_line_an_interval() {
        let (mut log, start) = (RejectionLogState::default(), Instant::now());
        assert_eq!(log.admit(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.admit(start + LOG_INTERVAL / 2), None);
        }
        assert_eq!(log.admit(start + LOG_INTERVAL), Some(1000));
    }
}
