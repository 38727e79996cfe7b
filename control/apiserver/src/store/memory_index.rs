//! All objects in memory, in list order, with the indexes that readers need.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::iter::successors;
use std::sync::Arc;

use super::change_event::ChangeEvent;
use super::cold_objects::ColdObjects;
use super::history::{ChangeHistory, RevisionExpired, TrimmedHistory};
use super::object_list::{ListScope, ObjectList};
use super::stored_object::KeyOrderedObject;
use super::uid_index::{WarmUidEntries, WarmUidIndex, uid};
use super::{ObjectKey, StoredObject};
use support::worker_threads;

/// The state as of [`MemoryIndex::revision`], with the changes that led there.
#[derive(Debug)]
pub struct MemoryIndex {
    revision: u64,
    /// Objects that were written lately, or are never compressed. None of them is in `cold` too.
    pub(super) warm: BTreeSet<KeyOrderedObject>,
    by_uid: WarmUidIndex,
    /// The objects that name it in `ownerReferences`.
    by_owner: WarmUidIndex,
    /// All others.
    pub(super) cold: ColdObjects,
    pub(super) hasher: RandomState,
    pub(super) history: ChangeHistory,
    /// The last change of each kind that changed since the start: as many as kinds were ever written.
    last_changes: HashMap<Arc<str>, u64>,
}

impl MemoryIndex {
    /// `objects` are in the order of their keys, and `rows` are theirs.
    pub(super) fn new(revision: u64, objects: Vec<Arc<StoredObject>>, rows: WarmUidEntries, sums: RandomState) -> Self {
        let WarmUidEntries { uids, owners } = rows;
        let others = || (objects.into_iter().map(KeyOrderedObject).collect(), owners.into());
        let (by_uid, (warm, by_owner)) = worker_threads::join(|| uids.into(), others);
        let (history, touched) = (ChangeHistory::starting_at(revision), HashMap::new());
        Self {
            revision,
            warm,
            by_uid,
            by_owner,
            cold: ColdObjects::default(),
            hasher: sums,
            history,
            last_changes: touched,
        }
    }

    /// The newest resourceVersion.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The object of this key. A compressed one is decompressed, which takes some 50 us.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<StoredObject>> {
        self.warm.get(key).map(|found| Arc::clone(&found.0)).or_else(|| self.cold.get(key))
    }

    /// The same key, with kind and namespace shared with a neighboring object: copies of them would take as much as
    /// an object's name does, twice.
    pub(super) fn share_key(&self, key: ObjectKey) -> ObjectKey {
        let first = ObjectKey { name: "".into(), ..key.clone() };
        let warm = self.warm.range::<ObjectKey, _>(&first..).next().map(|one| &one.0.key);
        let cold = || self.cold.blocks_from(&first).next().map(|(_, fold)| &fold.last);
        let is_neighbor = |one: &&ObjectKey| one.resource == key.resource && one.namespace == key.namespace;
        let Some(neighbor) = warm.filter(is_neighbor).or_else(|| cold().filter(is_neighbor)) else { return key };
        ObjectKey {
            resource: Arc::clone(&neighbor.resource),
            namespace: Arc::clone(&neighbor.namespace),
            name: key.name,
        }
    }

    /// Increases whenever an object of this kind changes; 0 before that.
    #[must_use]
    pub fn last_change(&self, resource: &str) -> u64 {
        self.last_changes.get(resource).copied().unwrap_or(0)
    }

    /// The object with this uid.
    #[must_use]
    pub fn by_uid(&self, uid: &str) -> Option<Arc<StoredObject>> {
        let sum = self.hasher.hash_one(uid);
        let mut found = self.by_uid.find(sum).cloned().chain(self.cold.find(&self.cold.uids, sum));
        found.find(|object| object.head.uid() == uid)
    }

    /// The objects whose ownerReferences name `owner`.
    pub fn dependents(&self, owner: &str) -> impl Iterator<Item = Arc<StoredObject>> {
        let sum = self.hasher.hash_one(owner);
        let found = self.by_owner.find(sum).cloned().chain(self.cold.find(&self.cold.owners, sum));
        found.filter(move |object| object.head.owners().any(|uid| uid == owner))
    }

    /// Every object of every kind.
    #[must_use]
    pub fn all(&self) -> ObjectList {
        let warm = self.warm.iter().map(|found| Arc::clone(&found.0)).collect();
        let cold = self.cold.blocks_from(&ObjectKey::lowest()).map(|(_, fold)| (Arc::clone(&fold.block), fold.present));
        ObjectList { revision: self.revision, warm, cold: cold.collect(), scope: ListScope::default() }
    }

    /// Every object of every kind in one namespace. Reads these, and one more for each kind that has any object.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = Arc<StoredObject>> {
        let behind = |kind: &Arc<str>| {
            // Nothing comes between a kind and the same with a zero behind it.
            self.next_kind(&ObjectKey { resource: format!("{kind}\0").into(), ..ObjectKey::lowest() })
        };
        let kinds = successors(self.next_kind(&ObjectKey::lowest()), behind);
        kinds.flat_map(move |kind| self.list(&kind, Some(namespace)))
    }

    /// The kind of the first object from there on. A block without its first object counts by its key.
    fn next_kind(&self, first: &ObjectKey) -> Option<Arc<str>> {
        let warm = self.warm.range::<ObjectKey, _>(first..).next().map(|one| &one.0.key);
        let cold = self.cold.blocks_from(first).next().map(|(_, fold)| &fold.last);
        let next = warm.into_iter().chain(cold).min_by_key(|key| &key.resource)?;
        Some(Arc::clone(&next.resource))
    }

    /// The objects of one kind, in one namespace or in all, as they are now.
    #[must_use]
    pub fn list(&self, resource: &Arc<str>, namespace: Option<&str>) -> ObjectList {
        let namespace: Option<Arc<str>> = namespace.map(Arc::from);
        let within = ListScope { resource: Some(Arc::clone(resource)), namespace, ..ListScope::default() };
        let first = within.first();
        let warm =
            self.warm.range::<ObjectKey, _>(&first..).map(|found| &found.0).take_while(|one| within.contains(&one.key));
        let cold = self.cold.blocks_from(&first).take_while(|(_, fold)| within.may_contain(&fold.first));
        let warm = warm.cloned().collect();
        let cold = cold.map(|(_, fold)| (Arc::clone(&fold.block), fold.present)).collect();
        ObjectList { revision: self.revision, warm, cold, scope: within }
    }

    /// Their number. Needed for each reported event.
    #[must_use]
    pub fn count(&self, resource: &Arc<str>, namespace: Option<&str>) -> usize {
        let namespace_word = namespace.map(Arc::from);
        let within =
            ListScope { resource: Some(Arc::clone(resource)), namespace: namespace_word, ..ListScope::default() };
        let first = within.first();
        let warm = self.warm.range::<ObjectKey, _>(&first..).take_while(|one| within.contains(&one.0.key)).count();
        let folds = self.cold.blocks_from(&first).take_while(|(_, fold)| within.may_contain(&fold.first));
        let cold = folds.map(|(_, fold)| {
            // All of it, mostly: it need not be opened.
            let is_inside = within.contains(&fold.first) && within.contains(&fold.last);
            if is_inside { fold.present.count_ones() as usize } else { fold.count(resource, namespace) }
        });
        warm + cold.sum::<usize>()
    }

    /// The same as of `revision`, by undoing later changes.
    pub fn list_at(
        &self,
        resource: &Arc<str>,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<ObjectList, RevisionExpired> {
        let mut listing = ObjectList { revision, ..self.list(resource, namespace) };
        let mut before = Vec::new();
        for event in self.history.after(revision, Some(resource), namespace)? {
            // Of several changes of an object the first has it as it was.
            let is_first =
                event.matches(resource, namespace) && listing.scope.excluded.insert(event.object.key.clone());
            before.extend(event.before.filter(|_| is_first));
        }
        listing.warm.retain(|object| !listing.scope.excluded.contains(&object.key));
        listing.warm.extend(before);
        listing.warm.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(listing)
    }

    /// Changes after `revision`, oldest first, at most `events_max`; and the last revision of them.
    pub fn changes(
        &self,
        resource: Option<&Arc<str>>,
        namespace: Option<&str>,
        revision: u64,
        events_max: usize,
    ) -> Result<(Vec<ChangeEvent>, u64), RevisionExpired> {
        let mut found = Vec::new();
        for event in self.history.after(revision, resource, namespace)? {
            if resource.is_some_and(|resource| !event.matches(resource, namespace)) {
                continue;
            }
            if found.len() == events_max {
                let reached = found.last().map_or(revision, ChangeEvent::revision);
                return Ok((found, reached));
            }
            found.push(event);
        }
        Ok((found, self.revision.max(revision)))
    }

    /// Deletions after `revision`, which a [`super::ChangeReader`] has reached, oldest first; however long they are ago.
    #[must_use]
    pub fn tombstones(&self, resource: &Arc<str>, namespace: Option<&str>, revision: u64) -> Vec<ChangeEvent> {
        self.history.tombstones(resource, namespace, revision)
    }

    pub(super) fn apply(&mut self, event: ChangeEvent) {
        let revision = event.revision();
        assert!(revision > self.revision, "revisions rise");
        self.revision = revision;
        match self.last_changes.get_mut(&event.object.key.resource) {
            Some(last) => *last = revision,
            None => drop(self.last_changes.insert(Arc::clone(&event.object.key.resource), revision)),
        }
        if let Some(before) = &event.before
            && !self.remove_warm(before)
        {
            self.cold.remove(&before.key);
        }
        if !event.deleted {
            self.insert(Arc::clone(&event.object));
        }
        self.history.push(event);
    }

    /// Removes changes up to `revision` from the history, except the last `kept`.
    pub(super) fn trim_history(&mut self, revision: u64, kept: usize) -> TrimmedHistory {
        self.history.trim(revision, kept)
    }

    fn insert(&mut self, object: Arc<StoredObject>) {
        if let Some(uid) = uid(&object) {
            self.by_uid.insert(self.hasher.hash_one(uid), &object);
        }
        for owner in object.head.owners() {
            self.by_owner.insert(self.hasher.hash_one(owner), &object);
        }
        self.warm.replace(KeyOrderedObject(object));
    }

    /// Removes an uncompressed object; returns whether it was one.
    pub(super) fn remove_warm(&mut self, object: &Arc<StoredObject>) -> bool {
        let was_warm = self.warm.remove(&object.key);
        if was_warm {
            if let Some(uid) = uid(object) {
                self.by_uid.remove(self.hasher.hash_one(uid), object);
            }
            for owner in object.head.owners() {
                self.by_owner.remove(self.hasher.hash_one(owner), object);
            }
        }
        was_warm
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_in_a_namespace_is_found_among_all_kinds_and_nothing_else() {
        let kinds = ["/a", "/a-b", "/ab", "/b", "a.dev/a", "z.dev/a"];
        let mut objects = Vec::new();
        for kind in kinds {
            for namespace in ["", "team", "team-b", "teal"] {
                for name in ["x", "y"] {
                    let key = ObjectKey { resource: kind.into(), namespace: namespace.into(), name: name.into() };
                    objects.push(Arc::new(StoredObject::new(key, 1, &json!({}))));
                }
            }
        }
        // A kind without objects there, and one with some only there.
        objects.retain(|one| &*one.key.resource != "/ab" || one.key.namespace.is_empty());
        objects.retain(|one| &*one.key.resource != "/b" || &*one.key.namespace == "team");
        let wanted: BTreeSet<ObjectKey> =
            objects.iter().filter(|one| &*one.key.namespace == "team").map(|one| one.key.clone()).collect();
        assert_eq!(wanted.len(), 10);
        let new = |objects: Vec<Arc<StoredObject>>| {
            MemoryIndex::new(1, objects, WarmUidEntries::default(), RandomState::new())
        };
        let memory = new(objects);
        let found: Vec<ObjectKey> = memory.in_namespace("team").map(|one| one.key.clone()).collect();
        assert_eq!(found, wanted.into_iter().collect::<Vec<_>>());
        assert_eq!(memory.in_namespace("nobody").count(), 0);
        assert_eq!(new(Vec::new()).in_namespace("team").count(), 0);
    }
}
