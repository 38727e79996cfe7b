//! The numbers of instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Gives each instance of this process a number that no other has. They name log files, so the first is above all of
/// the last run's.
#[derive(Debug, Clone)]
pub struct InstanceIds(Arc<AtomicU64>);

impl InstanceIds {
    #[must_use]
    pub fn starting_at(first: u64) -> Self {
        Self(Arc::new(AtomicU64::new(first)))
    }

    /// A number that was not given before.
    #[must_use]
    pub fn allocate(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl From<u64> for InstanceIds {
    fn from(first: u64) -> Self {
        Self::starting_at(first)
    }
}
