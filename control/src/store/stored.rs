//! An object in memory: its JSON, and the little that is asked of objects without reading them.
//!
//! As a tree of maps the same object takes six times the room of its text (a map of one field is a node of 600
//! bytes), and packed a tenth of it. Who wants the fields opens it: some microseconds, and no longer than it
//! took to copy the tree before a change.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::Key;
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

/// What selectors, owners and the collector ask of every object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Of labels, in their order. Most objects of a kind have the same, and share them.
    names: Arc<Words>,
    /// `metadata.uid` (empty in tests alone), then values of labels in the order of their names, then finalizers, then the
    /// uids in `ownerReferences`.
    words: Words,
    finalizers: u16,
    pub deleting: bool,
}

/// Words in one piece, each behind its length: a dozen boxes for a dozen words take more than the words. A length has seven
/// bits in a byte, the lowest first, and 128 more in each but the last.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct Words(Box<[u8]>);

/// What objects have in common, and memory holds once.
#[derive(Debug, Default)]
pub(super) struct Common {
    samples: Samples<Arc<str>>,
    names: HashSet<Arc<Words>>,
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

    /// One that memory keeps. `json` is the text of `value`, and `before` the version before it.
    pub(super) fn kept(
        key: Key,
        resource_version: u64,
        value: &Value,
        json: Vec<u8>,
        common: &mut Common,
        before: Option<&Self>,
    ) -> Self {
        let head = Head::of(value);
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

impl Head {
    #[must_use]
    pub fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let text = |(name, value): (_, &Value)| value.is_string().then_some(name);
        let mut labels: Vec<&String> =
            metadata["labels"].as_object().into_iter().flatten().filter_map(text).collect();
        labels.sort_unstable();
        let mut words = Vec::new();
        add(&mut words, metadata["uid"].as_str().unwrap_or(""));
        let mut names = Vec::new();
        for name in labels {
            add(&mut names, name);
            add(&mut words, metadata["labels"][name.as_str()].as_str().unwrap_or(""));
        }
        let mut finalizers = 0;
        for name in list(&metadata["finalizers"]).filter_map(Value::as_str).take(usize::from(u16::MAX)) {
            add(&mut words, name);
            finalizers += 1;
        }
        for owner in list(&metadata["ownerReferences"]).filter_map(|reference| reference["uid"].as_str()) {
            add(&mut words, owner);
        }
        Self {
            names: Arc::new(Words(names.into())),
            words: Words(words.into()),
            finalizers,
            deleting: metadata["deletionTimestamp"].is_string(),
        }
    }

    #[must_use]
    pub fn uid(&self) -> &str {
        self.words.all().next().unwrap_or_default()
    }

    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let at = self.names.all().position(|known| known == name)?;
        self.words.all().nth(1 + at)
    }

    #[must_use]
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers().any(|known| known == name)
    }

    pub fn finalizers(&self) -> impl Iterator<Item = &str> {
        self.after_labels().take(self.finalizers.into())
    }

    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.after_labels().skip(self.finalizers.into())
    }

    fn after_labels(&self) -> impl Iterator<Item = &str> {
        self.words.all().skip(1 + self.names.all().count())
    }
}

impl Common {
    /// The same names, where others have them already.
    fn shared(&mut self, names: Arc<Words>) -> Arc<Words> {
        if let Some(known) = self.names.get(&names) {
            return Arc::clone(known);
        }
        if self.names.len() == LISTS_SHARED_MAX {
            self.names.retain(|known| Arc::strong_count(known) > 1); // nobody has them any more
        }
        if self.names.len() < LISTS_SHARED_MAX {
            self.names.insert(Arc::clone(&names));
        }
        names
    }
}

impl Words {
    fn all(&self) -> impl Iterator<Item = &str> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (mut length, mut shift) = (0, 0);
            while let Some((byte, after)) = rest.split_first() {
                rest = after;
                length |= usize::from(byte & 0x7f) << shift;
                shift += 7;
                if *byte < 0x80 {
                    let (word, after) = rest.split_at(length);
                    rest = after;
                    return str::from_utf8(word).ok();
                }
            }
            None
        })
    }
}

/// One more of [`Words`].
fn add(words: &mut Vec<u8>, word: &str) {
    let mut length = word.len();
    while length >= 0x80 {
        words.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    words.push(length as u8);
    words.extend_from_slice(word.as_bytes());
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

/// In a set that is searched by uid.
#[derive(Debug)]
pub(super) struct ByUid(pub(super) Arc<Stored>);

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.head.uid() == other.0.head.uid()
    }
}

impl Eq for ByUid {}

impl std::hash::Hash for ByUid {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.head.uid().hash(state);
    }
}

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        self.0.head.uid()
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
        assert_eq!((head.uid(), head.label("a"), head.label("b")), ("u", Some("1"), Some("2")));
        assert!(head.label("odd").is_none() && head.label("c").is_none());
        assert!(head.deleting && head.has_finalizer("f") && !head.has_finalizer("g"));
        assert_eq!(head.owners().collect::<Vec<_>>(), ["o"]);
        let bare = Head::of(&Value::Null);
        assert!(bare.uid().is_empty() && !bare.deleting && bare.owners().next().is_none());
    }

    #[test]
    fn words_of_any_length_come_back() {
        let lengths = [0, 1, 127, 128, 300, 16_383, 16_384, 70_000, 0];
        let words: Vec<String> = lengths.iter().map(|length| "ü".repeat(*length)).collect();
        let mut bytes = Vec::new();
        words.iter().for_each(|word| add(&mut bytes, word));
        assert_eq!(Words(bytes.into()).all().collect::<Vec<_>>(), words);
    }

    #[test]
    fn what_is_opened_is_what_was_stored() {
        let key = Key { resource: "/a".into(), namespace: "n".into(), name: "x".into() };
        let value = json!({ "metadata": { "uid": "u" }, "spec": { "list": [1, 1.5, "ü", null, true] } });
        let mut common = Common::default();
        let first = Stored::kept(key.clone(), 2, &value, value.to_string().into(), &mut common, None);
        let json = value.to_string().into();
        let stored = Arc::new(Stored::kept(key, 3, &value, json, &mut common, Some(&first)));
        assert_eq!(stored.open().value, value);
        assert!(stored.held_bytes() < stored.json_bytes());
        assert!(Arc::ptr_eq(&stored.head, &first.head), "the same head is kept twice");
        assert_eq!(stored.open().head.uid(), "u");
    }

    #[test]
    fn names_of_labels_are_held_once_and_not_for_ever() {
        let mut common = Common::default();
        let mut head = |name: &str, value: &str| {
            let head = Head::of(&json!({ "metadata": { "labels": { name: value } } }));
            (common.shared(Arc::clone(&head.names)), common.names.len())
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
        let mut common = Common::default();
        for version in 1..4 {
            let json = value.to_string().into();
            let stored = Stored::kept(key.clone(), version, &value, json, &mut common, None);
            assert_eq!(stored.held_bytes(), stored.json_bytes());
        }
    }
}
