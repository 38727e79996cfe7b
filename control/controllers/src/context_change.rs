//! Shared state that has changed, for controllers whose objects depend on it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// The changed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContextChange {
    /// The operator's settings or trust bundles, or this appliance has become the leader: a reconcile of any object
    /// may have another result now.
    Settings,
    /// The keys by which senders' tokens are verified.
    SenderKeys,
    /// The authorities by which backends of Ingresses are verified.
    BackendAuthorities,
    /// The certificates that the operator gave on the command line.
    OperatorCertificates,
    /// An object has given up hosts that another may have been refused.
    HostsReleased,
    /// The wall clock was set, or the host was suspended.
    ClockStepped,
}

/// Changes that no handler has seen yet. A change that comes twice meanwhile is handled once.
#[derive(Debug, Default)]
pub struct ContextChanges {
    pending: Mutex<BTreeSet<ContextChange>>,
    added: Notify,
}

impl ContextChanges {
    pub fn add(&self, change: ContextChange) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(change);
        self.added.notify_one();
    }

    /// Waits for changes, and takes them.
    pub async fn take(&self) -> BTreeSet<ContextChange> {
        loop {
            let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
            if !pending.is_empty() {
                return pending;
            }
            self.added.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn change_that_comes_twice_is_taken_once() {
        let changes = ContextChanges::default();
        for change in [ContextChange::Settings, ContextChange::HostsReleased, ContextChange::Settings] {
            changes.add(change);
        }
        let both = BTreeSet::from([ContextChange::Settings, ContextChange::HostsReleased]);
        assert_eq!(changes.take().await, both);
        changes.add(ContextChange::SenderKeys);
        assert_eq!(changes.take().await, BTreeSet::from([ContextChange::SenderKeys]));
    }
}
