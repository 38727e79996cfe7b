//! Redrives in progress: one per subscriber at a time, because two would each send all open dead letters.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The subscribers with a redrive in progress, by their durable names.
#[derive(Debug, Default)]
pub(crate) struct ActiveRedrives(Mutex<HashSet<Box<str>>>);

/// One of them; dropping it allows the next.
pub(super) struct RedriveGuard {
    all: Arc<ActiveRedrives>,
    subscriber: Box<str>,
}

impl ActiveRedrives {
    /// `None`: a redrive is already in progress.
    pub(super) fn acquire(self: &Arc<Self>, subscriber: &str) -> Option<RedriveGuard> {
        let is_first = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(subscriber.into());
        is_first.then(|| RedriveGuard { all: Arc::clone(self), subscriber: subscriber.into() })
    }
}

impl Drop for RedriveGuard {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.subscriber);
    }
}
