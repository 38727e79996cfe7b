//! Finds objects by a uid: their own, or that of an owner.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::StoredObject;
use super::stored_object::KeyOrderedObject;

/// By the sum of a uid: one set for all, because a set for each uid has more room than members, and sums because the words of
/// a uid are three looks into memory away. `None` comes before all others, and is in no set.
#[derive(Debug, Default)]
pub(super) struct WarmUidIndex(BTreeSet<WarmUidEntry>);

type WarmUidEntry = (u64, Option<KeyOrderedObject>);

/// Builds the sets of a [`super::Memory`]. Building all at once is three times as fast.
#[derive(Debug, Default)]
pub(super) struct WarmUidEntries {
    pub(super) uids: Vec<WarmUidEntry>,
    pub(super) owners: Vec<WarmUidEntry>,
}

impl WarmUidEntries {
    pub(super) fn add(&mut self, object: &Arc<StoredObject>, sums: &RandomState) {
        let row = |uid| (sums.hash_one(uid), Some(KeyOrderedObject(Arc::clone(object))));
        self.uids.extend(uid(object).map(row));
        self.owners.extend(object.head.owners().map(row));
    }

    pub(super) fn append(&mut self, others: Self) {
        self.uids.extend(others.uids);
        self.owners.extend(others.owners);
    }
}

impl From<Vec<WarmUidEntry>> for WarmUidIndex {
    fn from(rows: Vec<WarmUidEntry>) -> Self {
        Self(rows.into_iter().collect())
    }
}

impl WarmUidIndex {
    pub(super) fn insert(&mut self, sum: u64, object: &Arc<StoredObject>) {
        self.0.replace((sum, Some(KeyOrderedObject(Arc::clone(object)))));
    }

    pub(super) fn remove(&mut self, sum: u64, object: &Arc<StoredObject>) {
        self.0.remove(&(sum, Some(KeyOrderedObject(Arc::clone(object)))));
    }

    /// The objects of another uid with the same sum.
    pub(super) fn find(&self, wanted: u64) -> impl Iterator<Item = &Arc<StoredObject>> {
        let of_it = self.0.range((wanted, None)..).take_while(move |(sum, _)| *sum == wanted);
        of_it.filter_map(|(_, found)| Some(&found.as_ref()?.0))
    }
}

/// Only tests have none.
pub(super) fn uid(object: &StoredObject) -> Option<&str> {
    Some(object.head.uid()).filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::ObjectKey;

    #[test]
    fn who_has_the_same_sum_is_found_too_and_goes_alone() {
        let named = |name: &str| {
            let key = ObjectKey { resource: "/a".into(), namespace: "n".into(), name: name.into() };
            Arc::new(StoredObject::new(key, 1, &json!({ "metadata": { "uid": name } })))
        };
        let (one, other, third) = (named("one"), named("other"), named("third"));
        let mut found = WarmUidIndex::from(vec![(7, Some(KeyOrderedObject(Arc::clone(&one))))]);
        found.insert(7, &other);
        found.insert(8, &third);
        let names = |found: &WarmUidIndex, sum| found.find(sum).map(|one| one.key.name.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (names(&found, 6).len(), names(&found, 7), names(&found, 8)),
            (0, vec!["one".into(), "other".into()], vec!["third".into()])
        );
        found.remove(7, &one);
        assert_eq!(names(&found, 7), ["other"]);
    }
}
