//! All objects in memory, in list order, with the ways in that readers need.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;

use super::history::{Event, Expired, History};
use super::{Key, Stored};

/// The state as of [`Memory::revision`], with the changes that led there.
#[derive(Debug)]
pub struct Memory {
    revision: u64,
    objects: BTreeMap<Key, Arc<Stored>>,
    /// `metadata.uid` of each object.
    by_uid: HashMap<String, Key>,
    /// An owner's uid, and who names it in `ownerReferences`.
    by_owner: HashMap<String, BTreeSet<Key>>,
    history: History,
}

/// What one list request saw.
#[derive(Debug)]
pub struct Listing {
    pub revision: u64,
    pub items: Vec<Arc<Stored>>,
}

impl Memory {
    pub(super) fn new(revision: u64, objects: Vec<Arc<Stored>>) -> Self {
        let mut memory = Self {
            revision,
            objects: BTreeMap::new(),
            by_uid: HashMap::new(),
            by_owner: HashMap::new(),
            history: History::starting_at(revision),
        };
        for object in objects {
            memory.insert(object);
        }
        memory
    }

    /// The newest resourceVersion.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Arc<Stored>> {
        self.objects.get(key)
    }

    /// The object that carries this uid.
    #[must_use]
    pub fn by_uid(&self, uid: &str) -> Option<&Arc<Stored>> {
        self.by_uid.get(uid).and_then(|key| self.objects.get(key))
    }

    /// The objects whose ownerReferences name `owner`.
    pub fn dependents(&self, owner: &str) -> impl Iterator<Item = &Arc<Stored>> {
        self.by_owner.get(owner).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Every object of every kind.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Stored>> {
        self.objects.values()
    }

    /// Every object of every kind in one namespace. Looks at all objects.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<Stored>> {
        self.objects.values().filter(move |object| &*object.key.namespace == namespace)
    }

    /// The objects of one kind, in one namespace or in all, as they are now.
    #[must_use]
    pub fn list(&self, resource: &Arc<str>, namespace: Option<&str>) -> Listing {
        let items = self.range(resource, namespace).cloned().collect();
        Listing { revision: self.revision, items }
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
    ) -> Result<(Vec<Arc<Event>>, u64), Expired> {
        let mut found = Vec::new();
        for event in self.history.after(revision)? {
            if resource.is_some_and(|resource| !event.concerns(resource, namespace)) {
                continue;
            }
            if found.len() == events_max {
                let reached = found.last().map_or(revision, |last: &Arc<Event>| last.revision);
                return Ok((found, reached));
            }
            found.push(Arc::clone(event));
        }
        Ok((found, self.revision.max(revision)))
    }

    pub(super) fn apply(&mut self, event: Arc<Event>) {
        assert!(event.revision > self.revision, "revisions rise");
        self.revision = event.revision;
        if let Some(before) = &event.before {
            self.remove(before);
        }
        if !event.deleted {
            self.insert(Arc::clone(&event.object));
        }
        self.history.push(event);
    }

    fn insert(&mut self, object: Arc<Stored>) {
        if let Some(uid) = uid(&object.value) {
            self.by_uid.insert(uid.into(), object.key.clone());
        }
        for owner in owners(&object.value) {
            self.by_owner.entry(owner.into()).or_default().insert(object.key.clone());
        }
        self.objects.insert(object.key.clone(), object);
    }

    fn remove(&mut self, object: &Stored) {
        self.objects.remove(&object.key);
        if let Some(uid) = uid(&object.value) {
            self.by_uid.remove(uid);
        }
        for owner in owners(&object.value) {
            if let Some(owned) = self.by_owner.get_mut(owner) {
                owned.remove(&object.key);
                if owned.is_empty() {
                    self.by_owner.remove(owner);
                }
            }
        }
    }

    fn range<'a>(
        &'a self,
        resource: &'a Arc<str>,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Stored>> {
        let first = Key {
            resource: Arc::clone(resource),
            namespace: namespace.unwrap_or("").into(),
            name: "".into(),
        };
        self.objects.range((Bound::Included(first), Bound::Unbounded)).map(|(_, object)| object).take_while(
            move |o| o.key.resource == *resource && namespace.is_none_or(|name| &*o.key.namespace == name),
        )
    }
}

fn uid(object: &Value) -> Option<&str> {
    object["metadata"]["uid"].as_str()
}

/// The uids in an object's `ownerReferences`.
pub(super) fn owners(object: &Value) -> impl Iterator<Item = &str> {
    let references = object["metadata"]["ownerReferences"].as_array();
    references.into_iter().flatten().filter_map(|reference| reference["uid"].as_str())
}
