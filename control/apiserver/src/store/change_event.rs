//! One change of one object, as watchers and the history see it.

use std::sync::Arc;

use super::StoredObject;

/// Changes kept for watchers. At 100 changes a second a watcher may be away for more than a minute
/// before it has to list again.
pub const HISTORY_EVENTS_MAX: usize = 10_000;

/// One change of one object.
#[derive(Debug, Clone)]
pub struct ChangeEvent {
    /// `None`: created.
    pub before: Option<Arc<StoredObject>>,
    /// The new version; of a deleted object, its last words.
    pub object: Arc<StoredObject>,
    pub deleted: bool,
}

impl ChangeEvent {
    /// The version that the store had by it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.object.resource_version
    }

    pub(super) fn matches(&self, resource: &Arc<str>, namespace: Option<&str>) -> bool {
        let key = &self.object.key;
        key.resource == *resource && namespace.is_none_or(|name| &*key.namespace == name)
    }
}
