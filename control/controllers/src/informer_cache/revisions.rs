//! Resource versions of the objects in a cache of a remote API server, as numbers.

use std::collections::BTreeSet;

use kube::Resource;

/// Which versions a cache has seen, and which it holds.
#[derive(Debug, Default)]
pub(super) struct RevisionTracker {
    /// Of the objects that exist.
    live: BTreeSet<u64>,
    /// Of objects that were deleted since, too.
    newest_seen: u64,
}

impl RevisionTracker {
    /// An object was as `before`, and is as `after`.
    pub(super) fn note<K: Resource>(&mut self, before: Option<&K>, after: Option<&K>) {
        if let Some(before) = before.and_then(revision) {
            self.live.remove(&before);
        }
        if let Some(after) = after.and_then(revision) {
            self.live.insert(after);
            self.newest_seen = self.newest_seen.max(after);
        }
    }

    /// The newest version of an object that exists; 0 if there is none.
    pub(super) fn newest_live(&self) -> u64 {
        self.live.last().copied().unwrap_or(0)
    }

    pub(super) fn newest_seen(&self) -> u64 {
        self.newest_seen
    }
}

/// `None` for what is no number: such a version is never waited for.
fn revision<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    #[test]
    fn deleted_object_was_seen_and_is_not_live() {
        let map = |version: &str| {
            let mut map = ConfigMap::default();
            map.metadata.resource_version = Some(version.to_owned());
            map
        };
        let mut tracker = RevisionTracker::default();
        assert_eq!((tracker.newest_live(), tracker.newest_seen()), (0, 0));
        tracker.note(None, Some(&map("5")));
        tracker.note(None, Some(&map("9")));
        assert_eq!((tracker.newest_live(), tracker.newest_seen()), (9, 9));
        tracker.note(Some(&map("9")), Some(&map("12")));
        tracker.note(Some(&map("12")), None);
        assert_eq!((tracker.newest_live(), tracker.newest_seen()), (5, 12));
        tracker.note(None, Some(&map("no number")));
        assert_eq!((tracker.newest_live(), tracker.newest_seen()), (5, 12));
    }
}
