//! Whether this appliance is the leader; only the leader writes.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether this appliance is the leader and may write.
#[derive(Debug)]
pub struct Leadership {
    is_leader: AtomicBool,
    /// Whether the leader may be another follower, as far as is known: not an appliance that writes in its own API forever.
    is_contested: AtomicBool,
}

/// Another appliance writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another appliance holds the Lease and writes")]
pub struct NotLeader;

impl Leadership {
    #[must_use]
    pub fn new(ours: bool) -> Self {
        Self { is_leader: AtomicBool::new(ours), is_contested: AtomicBool::new(false) }
    }

    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.is_leader.load(Relaxed)
    }

    /// Whether a follower is the leader, this one or another.
    #[must_use]
    pub(crate) fn is_contested(&self) -> bool {
        self.is_contested.load(Relaxed)
    }

    pub(crate) fn set_contested(&self, contested: bool) {
        self.is_contested.store(contested, Relaxed);
    }

    /// # Errors
    /// This appliance is not the leader.
    pub fn check(&self) -> Result<(), NotLeader> {
        if self.is_leader() { Ok(()) } else { Err(NotLeader) }
    }

    /// Whether that is news.
    pub(crate) fn set(&self, ours: bool) -> bool {
        self.is_leader.swap(ours, Relaxed) != ours
    }
}
