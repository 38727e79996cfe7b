//! The last cold starts of a core, one by one: histograms say how long they take, and these what they consisted of.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::table::StartupDuration;

/// Cold starts that a core remembers: what a person looks at, some 100 bytes each.
pub const COLD_STARTS_MAX: usize = 16;

/// The first request that waited for the start of an instance, by phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdStart {
    /// The key of its backend.
    pub backend: Box<str>,
    /// When the first byte of the response came.
    pub answered_at: SystemTime,
    /// The whole time in the pending queue.
    pub queue: Duration,
    /// How long the instance took; it may have begun before the request came.
    pub start: StartupDuration,
    /// From the permit to the first byte of the response.
    pub first_byte: Duration,
}

/// Written by the core, read by control. The lock is taken by requests that waited for a start, and by no others.
#[derive(Debug, Default)]
pub struct RecentColdStarts(Mutex<VecDeque<ColdStart>>);

impl RecentColdStarts {
    /// Records a request. Further requests that waited for the same start are ignored.
    pub fn record(&self, one: ColdStart) {
        let mut recent = self.lock();
        if recent.iter().any(|known| known.backend == one.backend && known.start == one.start) {
            return;
        }
        if recent.len() == COLD_STARTS_MAX {
            recent.pop_front();
        }
        recent.push_back(one);
    }

    /// All of them, the newest last.
    #[must_use]
    pub fn list(&self) -> Vec<ColdStart> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ColdStart>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cold_start(backend: &str, spawn_ms: u64) -> ColdStart {
        ColdStart {
            backend: backend.into(),
            answered_at: SystemTime::UNIX_EPOCH,
            queue: Duration::from_millis(spawn_ms + 10),
            start: StartupDuration { spawn: Duration::from_millis(spawn_ms), listen: Duration::from_millis(9) },
            first_byte: Duration::from_millis(1),
        }
    }

    #[test]
    fn cold_start_is_recorded_once_for_each_instance() {
        let recent = RecentColdStarts::default();
        for one in [cold_start("ns/a", 1), cold_start("ns/a", 1), cold_start("ns/b", 1), cold_start("ns/a", 2)] {
            recent.record(one);
        }
        let listed: Vec<_> = recent.list().iter().map(|one| (one.backend.to_string(), one.start.spawn)).collect();
        let ms = Duration::from_millis;
        assert_eq!(listed, [("ns/a".into(), ms(1)), ("ns/b".into(), ms(1)), ("ns/a".into(), ms(2))]);
    }

    #[test]
    fn oldest_cold_start_makes_way_for_the_newest() {
        let recent = RecentColdStarts::default();
        let all = COLD_STARTS_MAX as u64 + 3;
        (0..all).for_each(|nth| recent.record(cold_start("ns/a", nth)));
        let listed = recent.list();
        assert_eq!(listed.len(), COLD_STARTS_MAX);
        assert_eq!(listed.last(), Some(&cold_start("ns/a", all - 1)));
    }
}
