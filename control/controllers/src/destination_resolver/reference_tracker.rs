//! Tracks which object refers to which, so that a change of one reconciles the other.

use std::collections::{HashMap, HashSet};

use contract::allocator;

use crate::work_queue::WorkItem;

/// An object that another refers to, whether it or its kind exists or not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TrackedReference {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Debug, Default)]
pub(super) struct ReferenceTracker {
    by_reference: HashMap<TrackedReference, HashSet<WorkItem>>,
    by_item: HashMap<WorkItem, HashSet<TrackedReference>>,
}

impl ReferenceTracker {
    pub(super) fn add(&mut self, item: &WorkItem, referent: TrackedReference) {
        if self.by_item.get(item).is_some_and(|known| known.contains(&referent)) {
            return;
        }
        // As long as the object: among short-lived data, each of these would keep a page.
        let _stays = allocator::long_lived();
        self.by_item.entry(item.clone()).or_default().insert(referent.clone());
        self.by_reference.entry(referent.clone()).or_default().insert(item.clone());
    }

    pub(super) fn forget(&mut self, item: &WorkItem) {
        for referent in self.by_item.remove(item).into_iter().flatten() {
            if let Some(items) = self.by_reference.get_mut(&referent) {
                items.remove(item);
                if items.is_empty() {
                    self.by_reference.remove(&referent);
                }
            }
        }
    }

    pub(super) fn items_for(&self, referent: &TrackedReference) -> Vec<WorkItem> {
        self.by_reference.get(referent).into_iter().flatten().cloned().collect()
    }

    pub(super) fn items_for_kind(&self, group: &str, kind: &str) -> Vec<WorkItem> {
        let same = |referent: &TrackedReference| referent.group == group && referent.kind == kind;
        self.by_reference.iter().filter(|(r, _)| same(r)).flat_map(|(_, items)| items).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work_queue::ControllerKind;

    #[test]
    fn removed_reference_is_not_notified() {
        let mut interests = ReferenceTracker::default();
        let item = WorkItem::new(ControllerKind::new("Trigger"), "ns", "t");
        let referent =
            TrackedReference { group: String::new(), kind: "X".into(), namespace: "ns".into(), name: "x".into() };
        interests.add(&item, referent.clone());
        assert_eq!(interests.items_for(&referent), std::slice::from_ref(&item));
        assert_eq!(interests.items_for_kind("", "X"), std::slice::from_ref(&item));
        interests.forget(&item);
        assert!(interests.items_for(&referent).is_empty());
        assert!(interests.by_reference.is_empty() && interests.by_item.is_empty());
    }
}
