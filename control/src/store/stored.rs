//! An object in memory: its JSON, and the little that is asked of objects without reading them.
//!
//! As a tree of maps the same object takes six times the room of its text (a map of one field is a node of 600
//! bytes), and packed a tenth of it. Who wants the fields opens it: some microseconds, and no longer than it
//! took to copy the tree before a change.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::Value;

use super::Key;
use super::head::{Head, Words};
use crate::packed::{Samples, Text};

/// Lists of labels' names that are held once: kinds have some each, and clients' labels some more.
const LISTS_SHARED_MAX: usize = 4096;

/// What is in a Secret must not live on as what others are packed against.
const NEVER_A_SAMPLE: &str = "/secrets";

/// One version of one object. Never changes.
#[derive(Debug)]
pub struct Stored {
    pub key: Key,
    pub resource_version: u64,
    /// Shared by versions that have the same.
    pub head: Arc<Head>,
    /// Holds `metadata.resourceVersion`. Written out once for the disk, for every reader and every watcher.
    text: Text,
}

/// What objects have in common, and memory holds once.
#[derive(Debug, Default)]
pub(super) struct Common {
    samples: Samples<Arc<str>>,
    names: Mutex<HashSet<Arc<Words>>>,
}

/// An object whose fields are at hand.
#[derive(Debug, Clone)]
pub struct Opened {
    pub stored: Arc<Stored>,
    pub value: Value,
}

impl Stored {
    /// One that is not kept: shown, sent or compared.
    #[must_use]
    pub fn new(key: Key, resource_version: u64, value: &Value) -> Self {
        let text = Text::plain(value.to_string().into_bytes());
        Self { key, resource_version, head: Arc::new(Head::of(value)), text }
    }

    /// One that memory keeps, with the `head` of its `json`. `before` is the version before it.
    pub(super) fn kept(
        key: Key,
        resource_version: u64,
        head: Head,
        json: &[u8],
        common: &Common,
        before: Option<&Self>,
    ) -> Self {
        let text = match &*key.resource {
            NEVER_A_SAMPLE => Text::plain(json),
            _ => common.samples.pack(&key.resource, &head.words.0, json),
        };
        let same = before.filter(|before| *before.head == head);
        let head = match same {
            Some(before) => Arc::clone(&before.head),
            None => Arc::new(Head { names: common.shared(head.names), ..head }),
        };
        Self { key, resource_version, head, text }
    }

    /// One that is made again of what was folded. It is as large as its text: who keeps it packs it again.
    pub(super) fn of_text(key: Key, resource_version: u64, json: &[u8]) -> Self {
        let head = match Head::read(json) {
            Some((head, _)) => head,
            None => Head::of(&serde_json::from_slice(json).unwrap_or_default()),
        };
        Self { key, resource_version, head: Arc::new(head), text: Text::plain(json) }
    }

    /// The same, as memory keeps it.
    pub(super) fn packed(self: Arc<Self>, common: &Common) -> Arc<Self> {
        if self.text.is_packed() || &*self.key.resource == NEVER_A_SAMPLE {
            return self;
        }
        let text = common.samples.pack(&self.key.resource, &self.head.words.0, &self.json());
        let head = Arc::clone(&self.head);
        Arc::new(Self { key: self.key.clone(), resource_version: self.resource_version, head, text })
    }

    #[must_use]
    pub fn json(&self) -> Bytes {
        self.text.bytes(&self.head.words.0)
    }

    /// Bytes of the JSON.
    #[must_use]
    pub fn json_bytes(&self) -> usize {
        self.text.text_bytes()
    }

    /// Bytes that the JSON takes here.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.text.held()
    }

    /// The fields, read from the text.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json()).unwrap_or_default() // we wrote it, within the depth that can be read
    }

    #[must_use]
    pub fn open(self: &Arc<Self>) -> Opened {
        Opened { value: self.value(), stored: Arc::clone(self) }
    }
}

impl Common {
    /// The same names, where others have them already.
    fn shared(&self, names: Arc<Words>) -> Arc<Words> {
        let mut all = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&names) {
            return Arc::clone(known);
        }
        if all.len() == LISTS_SHARED_MAX {
            all.retain(|known| Arc::strong_count(known) > 1); // nobody has them any more
        }
        if all.len() < LISTS_SHARED_MAX {
            all.insert(Arc::clone(&names));
        }
        names
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
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl Borrow<Key> for ByKey {
    fn borrow(&self) -> &Key {
        &self.0.key
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_opened_is_what_was_stored() {
        let key = Key { resource: "/a".into(), namespace: "n".into(), name: "x".into() };
        let value = json!({ "metadata": { "uid": "u" }, "spec": { "list": [1, 1.5, "ü", null, true] } });
        let common = Common::default();
        let first =
            Stored::kept(key.clone(), 2, Head::of(&value), value.to_string().as_bytes(), &common, None);
        let json = value.to_string();
        let stored = Stored::kept(key, 3, Head::of(&value), json.as_bytes(), &common, Some(&first));
        let stored = Arc::new(stored);
        assert_eq!(stored.open().value, value);
        assert!(stored.held_bytes() < stored.json_bytes());
        assert!(Arc::ptr_eq(&stored.head, &first.head), "the same head is kept twice");
        assert_eq!(stored.open().head.uid(), "u");
    }

    #[test]
    fn names_of_labels_are_held_once_and_not_for_ever() {
        let common = Common::default();
        let head = |name: &str, value: &str| {
            let head = Head::of(&json!({ "metadata": { "labels": { name: value } } }));
            (common.shared(head.names), common.names.lock().unwrap().len())
        };
        let ((one, _), (other, _)) = (head("a", "1"), head("a", "2"));
        assert!(Arc::ptr_eq(&one, &other));
        for n in 0..LISTS_SHARED_MAX * 2 {
            assert!(head(&format!("x{n}"), "").1 <= LISTS_SHARED_MAX);
        }
        assert!(Arc::ptr_eq(&one, &head("a", "3").0), "it is still in use");
    }

    #[test]
    fn a_secret_is_nobodys_sample() {
        let key = Key { resource: NEVER_A_SAMPLE.into(), namespace: "n".into(), name: "x".into() };
        let value = json!({ "data": { "key": "c2VjcmV0".repeat(40) } });
        let common = Common::default();
        for version in 1..4 {
            let json = value.to_string();
            let stored = Stored::kept(key.clone(), version, Head::of(&value), json.as_bytes(), &common, None);
            assert_eq!(stored.held_bytes(), stored.json_bytes());
        }
    }
}
