//! Redrives that are under way: one for each subscriber at a time, because two would each send all that is open.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The subscribers whose letters are being sent again, by their durable names.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashSet<Box<str>>>);

/// One of them; its end makes room for the next.
pub(super) struct Turn {
    all: Arc<Turns>,
    subscriber: Box<str>,
}

impl Turns {
    /// `None`: there is one under way.
    pub(super) fn begin(self: &Arc<Self>, subscriber: &str) -> Option<Turn> {
        let is_first = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(subscriber.into());
        is_first.then(|| Turn { all: Arc::clone(self), subscriber: subscriber.into() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.subscriber);
    }
}
