//! All objects in memory, in list order, with the ways in that readers need.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::Arc;

use super::history::{Event, Expired, History};
use super::stored::ByKey;
use super::sums::{BySum, Rows, uid};
use super::{Key, Stored};
use crate::hands;

/// The state as of [`Memory::revision`], with the changes that led there.
#[derive(Debug)]
pub struct Memory {
    revision: u64,
    objects: BTreeSet<ByKey>,
    by_uid: BySum,
    /// Who names it in `ownerReferences`.
    by_owner: BySum,
    sums: RandomState,
    history: History,
    /// The last change of each kind that changed since the start: as many as kinds were ever written.
    touched: HashMap<Arc<str>, u64>,
}

/// What one list request saw.
#[derive(Debug)]
pub struct Listing {
    pub revision: u64,
    pub items: Vec<Arc<Stored>>,
}

impl Memory {
    /// `objects` are in the order of their keys, and `rows` are theirs.
    pub(super) fn new(revision: u64, objects: Vec<Arc<Stored>>, rows: Rows, sums: RandomState) -> Self {
        let Rows { uids, owners } = rows;
        let others = || (objects.into_iter().map(ByKey).collect(), owners.into());
        let (by_uid, (objects, by_owner)) = hands::both(|| uids.into(), others);
        let (history, touched) = (History::starting_at(revision), HashMap::new());
        Self { revision, objects, by_uid, by_owner, sums, history, touched }
    }

    /// The newest resourceVersion.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        self.objects.get(key).map(|found| &found.0)
    }

    /// The same key, with kind and namespace in the words of an object beside it: copies of them would take as much as
    /// an object's name does, twice.
    pub(super) fn shared(&self, key: Key) -> Key {
        let beside = self.range(&key.resource, Some(&key.namespace)).next();
        let Some((resource, namespace)) = beside.map(|one| (&one.key.resource, &one.key.namespace)) else {
            return key;
        };
        Key { resource: Arc::clone(resource), namespace: Arc::clone(namespace), name: key.name }
    }

    /// Rises whenever an object of this kind changes; 0 before that.
    #[must_use]
    pub fn last_change(&self, resource: &str) -> u64 {
        self.touched.get(resource).copied().unwrap_or(0)
    }

    /// The object that carries this uid.
    #[must_use]
    pub fn by_uid(&self, uid: &str) -> Option<&Arc<Stored>> {
        self.by_uid.find(self.sums.hash_one(uid)).find(|object| object.head.uid() == uid)
    }

    /// The objects whose ownerReferences name `owner`.
    pub fn dependents(&self, owner: &str) -> impl Iterator<Item = &Arc<Stored>> {
        let found = self.by_owner.find(self.sums.hash_one(owner));
        found.filter(move |object| object.head.owners().any(|uid| uid == owner))
    }

    /// Every object of every kind.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.objects.iter().map(|found| &found.0)
    }

    /// Every object of every kind in one namespace. Looks at these, and for each kind that has any object at one more.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Stored>> {
        let kinds = std::iter::successors(self.objects.first(), |one| {
            // Nothing comes between a kind and the same with a zero behind it.
            let behind = format!("{}\0", one.0.key.resource).into();
            self.objects.range(Key { resource: behind, namespace: "".into(), name: "".into() }..).next()
        });
        kinds.flat_map(move |one| self.range(&one.0.key.resource, Some(namespace)))
    }

    /// The objects of one kind, in one namespace or in all, as they are now.
    #[must_use]
    pub fn list(&self, resource: &Arc<str>, namespace: Option<&str>) -> Listing {
        let items = self.range(resource, namespace).cloned().collect();
        Listing { revision: self.revision, items }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self, resource: &Arc<str>, namespace: Option<&str>) -> usize {
        self.range(resource, namespace).count()
    }

    /// The same as they were when `revision` was the newest, by undoing what came after.
    pub fn list_at(
        &self,
        resource: &Arc<str>,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Listing, Expired> {
        let mut items: BTreeMap<&Key, &Arc<Stored>> =
            self.range(resource, namespace).map(|object| (&object.key, object)).collect();
        for event in self.history.after(revision)?.rev() {
            if !event.concerns(resource, namespace) {
                continue;
            }
            match &event.before {
                Some(before) => items.insert(&before.key, before),
                None => items.remove(&event.object.key),
            };
        }
        Ok(Listing { revision, items: items.into_values().cloned().collect() })
    }

    /// Changes after `revision`, oldest first, at most `events_max`; and the revision they reach to.
    pub fn changes(
        &self,
        resource: Option<&Arc<str>>,
        namespace: Option<&str>,
        revision: u64,
        events_max: usize,
    ) -> Result<(Vec<Event>, u64), Expired> {
        let mut found = Vec::new();
        for event in self.history.after(revision)? {
            if resource.is_some_and(|resource| !event.concerns(resource, namespace)) {
                continue;
            }
            if found.len() == events_max {
                let reached = found.last().map_or(revision, Event::revision);
                return Ok((found, reached));
            }
            found.push(event.clone());
        }
        Ok((found, self.revision.max(revision)))
    }

    pub(super) fn apply(&mut self, event: Event) {
        let revision = event.revision();
        assert!(revision > self.revision, "revisions rise");
        self.revision = revision;
        match self.touched.get_mut(&event.object.key.resource) {
            Some(last) => *last = revision,
            None => drop(self.touched.insert(Arc::clone(&event.object.key.resource), revision)),
        }
        if let Some(before) = &event.before {
            self.remove(before);
        }
        if !event.deleted {
            self.insert(Arc::clone(&event.object));
        }
        self.history.push(event);
    }

    /// Takes out of the history what happened up to `revision`, but for the last `kept` changes.
    pub(super) fn forget(&mut self, revision: u64, kept: usize) -> Vec<Event> {
        self.history.forget(revision, kept)
    }

    fn insert(&mut self, object: Arc<Stored>) {
        if let Some(uid) = uid(&object) {
            self.by_uid.insert(self.sums.hash_one(uid), &object);
        }
        for owner in object.head.owners() {
            self.by_owner.insert(self.sums.hash_one(owner), &object);
        }
        self.objects.replace(ByKey(object));
    }

    fn remove(&mut self, object: &Arc<Stored>) {
        self.objects.remove(&object.key);
        if let Some(uid) = uid(object) {
            self.by_uid.remove(self.sums.hash_one(uid), object);
        }
        for owner in object.head.owners() {
            self.by_owner.remove(self.sums.hash_one(owner), object);
        }
    }

    pub(super) fn range<'a>(
        &'a self,
        resource: &'a Arc<str>,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Stored>> {
        let first = Key {
            resource: Arc::clone(resource),
            namespace: namespace.unwrap_or("").into(),
            name: "".into(),
        };
        self.objects.range((Bound::Included(first), Bound::Unbounded)).map(|found| &found.0).take_while(
            move |o| o.key.resource == *resource && namespace.is_none_or(|name| &*o.key.namespace == name),
        )
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
                    let key = Key { resource: kind.into(), namespace: namespace.into(), name: name.into() };
                    objects.push(Arc::new(Stored::new(key, 1, &json!({}))));
                }
            }
        }
        // A kind that has none there, and one that has some there alone.
        objects.retain(|one| &*one.key.resource != "/ab" || one.key.namespace.is_empty());
        objects.retain(|one| &*one.key.resource != "/b" || &*one.key.namespace == "team");
        let wanted: BTreeSet<Key> =
            objects.iter().filter(|one| &*one.key.namespace == "team").map(|one| one.key.clone()).collect();
        assert_eq!(wanted.len(), 10);
        let new = |objects: Vec<Arc<Stored>>| Memory::new(1, objects, Rows::default(), RandomState::new());
        let memory = new(objects);
        let found: Vec<Key> = memory.in_namespace("team").map(|one| one.key.clone()).collect();
        assert_eq!(found, wanted.into_iter().collect::<Vec<_>>());
        assert_eq!(memory.in_namespace("nobody").count(), 0);
        assert_eq!(new(Vec::new()).in_namespace("team").count(), 0);
    }
}
