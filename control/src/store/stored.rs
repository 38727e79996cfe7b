//! An object in memory: its JSON, and the little that is asked of objects without reading them.
//!
//! As a tree of maps the same object takes six times the room of its text (a map of one field is a node of 600
//! bytes), and readers want the text. Who wants the fields opens it: some microseconds, and no longer than it
//! took to copy the tree before a change.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::Key;

/// One version of one object. Never changes.
#[derive(Debug)]
pub struct Stored {
    pub key: Key,
    pub resource_version: u64,
    pub head: Head,
    /// Holds `metadata.resourceVersion`. Written out once for the disk, for every reader and every watcher.
    pub json: Bytes,
}

/// What selectors, owners and the collector ask of every object.
#[derive(Debug, Default)]
pub struct Head {
    /// `metadata.uid`; empty in tests alone.
    pub uid: Box<str>,
    /// In the order of their names.
    labels: Box<[(Box<str>, Box<str>)]>,
    finalizers: Box<[Box<str>]>,
    /// The uids in `ownerReferences`.
    owners: Box<[Box<str>]>,
    pub deleting: bool,
}

/// An object whose fields are at hand.
#[derive(Debug, Clone)]
pub struct Opened {
    pub stored: Arc<Stored>,
    pub value: Value,
}

impl Stored {
    #[must_use]
    pub fn new(key: Key, resource_version: u64, value: &Value) -> Self {
        // A boxed slice, because a vector that grew keeps up to as much again as it holds.
        let json = Bytes::from(value.to_string().into_bytes().into_boxed_slice());
        Self { key, resource_version, head: Head::of(value), json }
    }

    /// The fields, read from the text.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default() // we wrote it, within the depth that can be read
    }

    #[must_use]
    pub fn open(self: &Arc<Self>) -> Opened {
        Opened { value: self.value(), stored: Arc::clone(self) }
    }
}

impl Head {
    #[must_use]
    pub fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let uid = |reference: &Value| reference["uid"].as_str().map(Into::into);
        let text = |(name, value): (&String, &Value)| Some((name.as_str().into(), value.as_str()?.into()));
        let labels = metadata["labels"].as_object().into_iter().flatten();
        let mut labels: Box<[(Box<str>, Box<str>)]> = labels.filter_map(text).collect();
        labels.sort_unstable();
        Self {
            uid: metadata["uid"].as_str().unwrap_or("").into(),
            labels,
            finalizers: list(&metadata["finalizers"])
                .filter_map(|name| name.as_str().map(Into::into))
                .collect(),
            owners: list(&metadata["ownerReferences"]).filter_map(uid).collect(),
            deleting: metadata["deletionTimestamp"].is_string(),
        }
    }

    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let place = self.labels.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.labels[place].1)
    }

    #[must_use]
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|one| &**one == name)
    }

    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.owners.iter().map(|uid| &**uid)
    }
}

impl Deref for Opened {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        &self.stored
    }
}

/// In a set that is searched by key. The set holds a pointer, not another copy of the key.
#[derive(Debug, Clone)]
pub(super) struct ByKey(pub(super) Arc<Stored>);

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl Borrow<Key> for ByKey {
    fn borrow(&self) -> &Key {
        &self.0.key
    }
}

/// In a set that is searched by uid.
#[derive(Debug)]
pub(super) struct ByUid(pub(super) Arc<Stored>);

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.head.uid == other.0.head.uid
    }
}

impl Eq for ByUid {}

impl std::hash::Hash for ByUid {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (*self.0.head.uid).hash(state);
    }
}

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        &self.0.head.uid
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_head_says_what_the_object_says() {
        let object = json!({ "metadata": {
            "uid": "u", "labels": { "b": "2", "a": "1", "odd": 3 }, "finalizers": ["f"],
            "ownerReferences": [{ "uid": "o" }, {}], "deletionTimestamp": "2026-01-01T00:00:00Z",
        } });
        let head = Head::of(&object);
        assert_eq!((&*head.uid, head.label("a"), head.label("b")), ("u", Some("1"), Some("2")));
        assert!(head.label("odd").is_none() && head.label("c").is_none());
        assert!(head.deleting && head.has_finalizer("f") && !head.has_finalizer("g"));
        assert_eq!(head.owners().collect::<Vec<_>>(), ["o"]);
        let bare = Head::of(&Value::Null);
        assert!(bare.uid.is_empty() && !bare.deleting && bare.owners().next().is_none());
    }

    #[test]
    fn what_is_opened_is_what_was_stored() {
        let key = Key { resource: "/a".into(), namespace: "n".into(), name: "x".into() };
        let value = json!({ "metadata": { "uid": "u" }, "spec": { "list": [1, 1.5, "ü", null, true] } });
        let stored = Arc::new(Stored::new(key, 3, &value));
        assert_eq!(stored.open().value, value);
        assert_eq!(&*stored.open().head.uid, "u");
    }
}
