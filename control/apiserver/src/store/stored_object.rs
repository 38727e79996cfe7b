//! An object in memory: its JSON, and the properties that are needed without parsing it.
//!
//! As a tree of maps the same object takes six times the size of its text (a map of one field is a node of 600
//! bytes), and compressed a tenth of it. Reading its fields means parsing it: some microseconds, and no longer than it
//! took to copy the tree before a change.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::Value;

use super::ObjectKey;
use super::object_head::{ObjectHead, StringTable};
use support::compressed::{CompressedText, DictionaryCache};

/// Lists of labels' names that are held once: kinds have some each, and clients' labels some more.
const LISTS_SHARED_MAX: usize = 4096;

/// The content of a Secret must not live on as a compression sample for others.
const NEVER_A_DICTIONARY: &str = "/secrets";

/// One version of one object. Never changes.
#[derive(Debug)]
pub struct StoredObject {
    pub key: ObjectKey,
    pub resource_version: u64,
    /// Shared by versions that have the same.
    pub head: Arc<ObjectHead>,
    /// Holds `metadata.resourceVersion`. Written out once for the disk, for every reader and every watcher.
    text: CompressedText,
}

/// Strings that objects share, stored once.
#[derive(Debug, Default)]
pub(super) struct SharedStrings {
    dictionaries: DictionaryCache<Arc<str>>,
    names: Mutex<HashSet<Arc<StringTable>>>,
}

/// An object with parsed fields.
#[derive(Debug, Clone)]
pub struct DecodedObject {
    pub stored: Arc<StoredObject>,
    pub value: Value,
}

impl StoredObject {
    /// One that is not kept: shown, sent or compared.
    #[must_use]
    pub fn new(key: ObjectKey, resource_version: u64, value: &Value) -> Self {
        let text = CompressedText::plain(value.to_string().into_bytes());
        Self { key, resource_version, head: Arc::new(ObjectHead::from_object(value)), text }
    }

    /// One that memory keeps, with the `head` of its `json`. `before` is the version before it.
    pub(super) fn compressed(
        key: ObjectKey,
        resource_version: u64,
        head: ObjectHead,
        json: &[u8],
        common: &SharedStrings,
        before: Option<&Self>,
    ) -> Self {
        let text = match &*key.resource {
            NEVER_A_DICTIONARY => CompressedText::plain(json),
            _ => common.dictionaries.compress(&key.resource, &head.values.0, json),
        };
        let same = before.filter(|before| *before.head == head);
        let head = match same {
            Some(before) => Arc::clone(&before.head),
            None => Arc::new(ObjectHead { label_keys: common.share_label_keys(head.label_keys), ..head }),
        };
        Self { key, resource_version, head, text }
    }

    /// One that was decompressed from a block. It is as large as its text: it must be compressed again to be stored.
    pub(super) fn from_json(key: ObjectKey, resource_version: u64, json: &[u8]) -> Self {
        let head = match ObjectHead::read(json) {
            Some((head, _)) => head,
            None => ObjectHead::from_object(&serde_json::from_slice(json).unwrap_or_default()),
        };
        Self { key, resource_version, head: Arc::new(head), text: CompressedText::plain(json) }
    }

    /// The same, as memory keeps it.
    pub(super) fn compress(self: Arc<Self>, common: &SharedStrings) -> Arc<Self> {
        if self.text.is_compressed() || &*self.key.resource == NEVER_A_DICTIONARY {
            return self;
        }
        let text = common.dictionaries.compress(&self.key.resource, &self.head.values.0, &self.json());
        let head = Arc::clone(&self.head);
        Arc::new(Self { key: self.key.clone(), resource_version: self.resource_version, head, text })
    }

    #[must_use]
    pub fn json(&self) -> Bytes {
        self.text.bytes(&self.head.values.0)
    }

    /// Bytes of the JSON.
    #[must_use]
    pub fn json_bytes(&self) -> usize {
        self.text.text_bytes()
    }

    /// Bytes that the JSON takes here.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.text.memory_bytes()
    }

    /// The fields, read from the text.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json()).unwrap_or_default() // we wrote it, within the depth that can be read
    }

    #[must_use]
    pub fn decode(self: &Arc<Self>) -> DecodedObject {
        DecodedObject { value: self.value(), stored: Arc::clone(self) }
    }
}

impl SharedStrings {
    /// The same names, where others have them already.
    fn share_label_keys(&self, names: Arc<StringTable>) -> Arc<StringTable> {
        let mut all = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&names) {
            return Arc::clone(known);
        }
        if all.len() == LISTS_SHARED_MAX {
            all.retain(|known| Arc::strong_count(known) > 1); // the others are unused
        }
        if all.len() < LISTS_SHARED_MAX {
            all.insert(Arc::clone(&names));
        }
        names
    }
}

impl Deref for DecodedObject {
    type Target = StoredObject;

    fn deref(&self) -> &StoredObject {
        &self.stored
    }
}

/// In a set that is searched by key. The set holds a pointer, not another copy of the key.
#[derive(Debug, Clone)]
pub(super) struct KeyOrderedObject(pub(super) Arc<StoredObject>);

impl PartialEq for KeyOrderedObject {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for KeyOrderedObject {}

impl PartialOrd for KeyOrderedObject {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyOrderedObject {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl Borrow<ObjectKey> for KeyOrderedObject {
    fn borrow(&self) -> &ObjectKey {
        &self.0.key
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_opened_is_what_was_stored() {
        let key = ObjectKey { resource: "/a".into(), namespace: "n".into(), name: "x".into() };
        let value = json!({ "metadata": { "uid": "u" }, "spec": { "list": [1, 1.5, "ü", null, true] } });
        let common = SharedStrings::default();
        let first = StoredObject::compressed(
            key.clone(),
            2,
            ObjectHead::from_object(&value),
            value.to_string().as_bytes(),
            &common,
            None,
        );
        let json = value.to_string();
        let stored =
            StoredObject::compressed(key, 3, ObjectHead::from_object(&value), json.as_bytes(), &common, Some(&first));
        let stored = Arc::new(stored);
        assert_eq!(stored.decode().value, value);
        assert!(stored.memory_bytes() < stored.json_bytes());
        assert!(Arc::ptr_eq(&stored.head, &first.head), "the same head is kept twice");
        assert_eq!(stored.decode().head.uid(), "u");
    }

    #[test]
    fn names_of_labels_are_held_once_and_not_for_ever() {
        let common = SharedStrings::default();
        let head = |name: &str, value: &str| {
            let head = ObjectHead::from_object(&json!({ "metadata": { "labels": { name: value } } }));
            (common.share_label_keys(head.label_keys), common.names.lock().unwrap().len())
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
        let key = ObjectKey { resource: NEVER_A_DICTIONARY.into(), namespace: "n".into(), name: "x".into() };
        let value = json!({ "data": { "key": "c2VjcmV0".repeat(40) } });
        let common = SharedStrings::default();
        for version in 1..4 {
            let json = value.to_string();
            let stored = StoredObject::compressed(
                key.clone(),
                version,
                ObjectHead::from_object(&value),
                json.as_bytes(),
                &common,
                None,
            );
            assert_eq!(stored.memory_bytes(), stored.json_bytes());
        }
    }
}
