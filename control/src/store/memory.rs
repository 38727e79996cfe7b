//! All objects in memory, in list order, with the ways in that readers need.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::iter::successors;
use std::sync::Arc;

use super::cold::Cold;
use super::history::{Event, Expired, Forgotten, History};
use super::listing::{Listing, Within};
use super::stored::ByKey;
use super::sums::{BySum, Rows, uid};
use super::{Key, Stored};
use crate::hands;

/// The state as of [`Memory::revision`], with the changes that led there.
#[derive(Debug)]
pub struct Memory {
    revision: u64,
    /// Objects that were written of late, or do not sleep. None of them is in `cold` too.
    pub(super) warm: BTreeSet<ByKey>,
    by_uid: BySum,
    /// Who names it in `ownerReferences`.
    by_owner: BySum,
    /// All others.
    pub(super) cold: Cold,
    pub(super) sums: RandomState,
    pub(super) history: History,
    /// The last change of each kind that changed since the start: as many as kinds were ever written.
    touched: HashMap<Arc<str>, u64>,
}

impl Memory {
    /// `objects` are in the order of their keys, and `rows` are theirs.
    pub(super) fn new(revision: u64, objects: Vec<Arc<Stored>>, rows: Rows, sums: RandomState) -> Self {
        let Rows { uids, owners } = rows;
        let others = || (objects.into_iter().map(ByKey).collect(), owners.into());
        let (by_uid, (warm, by_owner)) = hands::both(|| uids.into(), others);
        let (history, touched) = (History::starting_at(revision), HashMap::new());
        Self { revision, warm, by_uid, by_owner, cold: Cold::default(), sums, history, touched }
    }

    /// The newest resourceVersion.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The object of this key. One that sleeps is unfolded, which takes some 50 us.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        self.warm.get(key).map(|found| Arc::clone(&found.0)).or_else(|| self.cold.get(key))
    }

    /// The same key, with kind and namespace in the words of an object beside it: copies of them would take as much as
    /// an object's name does, twice.
    pub(super) fn shared(&self, key: Key) -> Key {
        let first = Key { name: "".into(), ..key.clone() };
        let warm = self.warm.range::<Key, _>(&first..).next().map(|one| &one.0.key);
        let cold = || self.cold.folds_from(&first).next().map(|(_, fold)| &fold.last);
        let is_beside = |one: &&Key| one.resource == key.resource && one.namespace == key.namespace;
        let Some(beside) = warm.filter(is_beside).or_else(|| cold().filter(is_beside)) else { return key };
        Key {
            resource: Arc::clone(&beside.resource),
            namespace: Arc::clone(&beside.namespace),
            name: key.name,
        }
    }

    /// Rises whenever an object of this kind changes; 0 before that.
    #[must_use]
    pub fn last_change(&self, resource: &str) -> u64 {
        self.touched.get(resource).copied().unwrap_or(0)
    }

    /// The object that carries this uid.
    #[must_use]
    pub fn by_uid(&self, uid: &str) -> Option<Arc<Stored>> {
        let sum = self.sums.hash_one(uid);
        let mut found = self.by_uid.find(sum).cloned().chain(self.cold.find(&self.cold.uids, sum));
        found.find(|object| object.head.uid() == uid)
    }

    /// The objects whose ownerReferences name `owner`.
    pub fn dependents(&self, owner: &str) -> impl Iterator<Item = Arc<Stored>> {
        let sum = self.sums.hash_one(owner);
        let found = self.by_owner.find(sum).cloned().chain(self.cold.find(&self.cold.owners, sum));
        found.filter(move |object| object.head.owners().any(|uid| uid == owner))
    }

    /// Every object of every kind.
    #[must_use]
    pub fn all(&self) -> Listing {
        let warm = self.warm.iter().map(|found| Arc::clone(&found.0)).collect();
        let cold =
            self.cold.folds_from(&Key::lowest()).map(|(_, fold)| (Arc::clone(&fold.block), fold.there));
        Listing { revision: self.revision, warm, cold: cold.collect(), within: Within::default() }
    }

    /// Every object of every kind in one namespace. Looks at these, and for each kind that has any object at one more.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = Arc<Stored>> {
        let behind = |kind: &Arc<str>| {
            // Nothing comes between a kind and the same with a zero behind it.
            self.kind_from(&Key { resource: format!("{kind}\0").into(), ..Key::lowest() })
        };
        let kinds = successors(self.kind_from(&Key::lowest()), behind);
        kinds.flat_map(move |kind| self.list(&kind, Some(namespace)))
    }

    /// The kind of the first object from there on. A block of which the first object is gone counts by that.
    fn kind_from(&self, first: &Key) -> Option<Arc<str>> {
        let warm = self.warm.range::<Key, _>(first..).next().map(|one| &one.0.key);
        let cold = self.cold.folds_from(first).next().map(|(_, fold)| &fold.last);
        let next = warm.into_iter().chain(cold).min_by_key(|key| &key.resource)?;
        Some(Arc::clone(&next.resource))
    }

    /// The objects of one kind, in one namespace or in all, as they are now.
    #[must_use]
    pub fn list(&self, resource: &Arc<str>, namespace: Option<&str>) -> Listing {
        let namespace: Option<Arc<str>> = namespace.map(Arc::from);
        let within = Within { resource: Some(Arc::clone(resource)), namespace, ..Within::default() };
        let first = within.first();
        let warm =
            self.warm.range::<Key, _>(&first..).map(|found| &found.0).take_while(|one| within.has(&one.key));
        let cold = self.cold.folds_from(&first).take_while(|(_, fold)| within.may_have(&fold.first));
        let warm = warm.cloned().collect();
        let cold = cold.map(|(_, fold)| (Arc::clone(&fold.block), fold.there)).collect();
        Listing { revision: self.revision, warm, cold, within }
    }

    /// How many there are. Asked for each event that is told.
    #[must_use]
    pub fn count(&self, resource: &Arc<str>, namespace: Option<&str>) -> usize {
        let namespace_word = namespace.map(Arc::from);
        let within =
            Within { resource: Some(Arc::clone(resource)), namespace: namespace_word, ..Within::default() };
        let first = within.first();
        let warm = self.warm.range::<Key, _>(&first..).take_while(|one| within.has(&one.0.key)).count();
        let folds = self.cold.folds_from(&first).take_while(|(_, fold)| within.may_have(&fold.first));
        let cold = folds.map(|(_, fold)| {
            // All of it, mostly: it need not be opened.
            let is_inside = within.has(&fold.first) && within.has(&fold.last);
            if is_inside { fold.there.count_ones() as usize } else { fold.count(resource, namespace) }
        });
        warm + cold.sum::<usize>()
    }

    /// The same as they were when `revision` was the newest, by undoing what came after.
    pub fn list_at(
        &self,
        resource: &Arc<str>,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Listing, Expired> {
        let mut listing = Listing { revision, ..self.list(resource, namespace) };
        let mut before = Vec::new();
        for event in self.history.after(revision, Some(resource), namespace)? {
            // Of several changes of an object the first has it as it was.
            let is_first = event.concerns(resource, namespace)
                && listing.within.without.insert(event.object.key.clone());
            before.extend(event.before.filter(|_| is_first));
        }
        listing.warm.retain(|object| !listing.within.without.contains(&object.key));
        listing.warm.extend(before);
        listing.warm.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(listing)
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
        for event in self.history.after(revision, resource, namespace)? {
            if resource.is_some_and(|resource| !event.concerns(resource, namespace)) {
                continue;
            }
            if found.len() == events_max {
                let reached = found.last().map_or(revision, Event::revision);
                return Ok((found, reached));
            }
            found.push(event);
        }
        Ok((found, self.revision.max(revision)))
    }

    /// Deletions after `revision`, which a [`super::Reader`] has reached, oldest first; however long they are ago.
    #[must_use]
    pub fn deaths(&self, resource: &Arc<str>, namespace: Option<&str>, revision: u64) -> Vec<Event> {
        self.history.deaths(resource, namespace, revision)
    }

    pub(super) fn apply(&mut self, event: Event) {
        let revision = event.revision();
        assert!(revision > self.revision, "revisions rise");
        self.revision = revision;
        match self.touched.get_mut(&event.object.key.resource) {
            Some(last) => *last = revision,
            None => drop(self.touched.insert(Arc::clone(&event.object.key.resource), revision)),
        }
        if let Some(before) = &event.before
            && !self.cool(before)
        {
            self.cold.remove(&before.key);
        }
        if !event.deleted {
            self.insert(Arc::clone(&event.object));
        }
        self.history.push(event);
    }

    /// Takes out of the history what happened up to `revision`, but for the last `kept` changes.
    pub(super) fn forget(&mut self, revision: u64, kept: usize) -> Forgotten {
        self.history.forget(revision, kept)
    }

    fn insert(&mut self, object: Arc<Stored>) {
        if let Some(uid) = uid(&object) {
            self.by_uid.insert(self.sums.hash_one(uid), &object);
        }
        for owner in object.head.owners() {
            self.by_owner.insert(self.sums.hash_one(owner), &object);
        }
        self.warm.replace(ByKey(object));
    }

    /// Takes an object out of those that are warm; whether it was one.
    pub(super) fn cool(&mut self, object: &Arc<Stored>) -> bool {
        let was_warm = self.warm.remove(&object.key);
        if was_warm {
            if let Some(uid) = uid(object) {
                self.by_uid.remove(self.sums.hash_one(uid), object);
            }
            for owner in object.head.owners() {
                self.by_owner.remove(self.sums.hash_one(owner), object);
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
