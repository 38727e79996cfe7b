//! The properties of objects that are needed without parsing them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::Value;

/// The size of most objects' strings.
const STRINGS_BYTES: usize = 512;

/// The properties that selectors, owners and the collector read of every object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ObjectHead {
    /// The labels, in order. Most objects of a kind have the same, and share them.
    pub(super) label_keys: Arc<StringTable>,
    /// `metadata.uid` (empty in tests alone), then values of labels in the order of their names, then finalizers, then the
    /// uids in `ownerReferences`.
    pub(super) values: StringTable,
    pub(super) finalizers: u16,
    pub deleting: bool,
}

/// Words in one piece, each behind its length: a dozen boxes for a dozen words take more than the words. A length has seven
/// bits in a byte, the lowest first, and 128 more in each but the last.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct StringTable(pub(super) Box<[u8]>);

/// Looks for the metadata of an object and goes no further: spec and status come behind it, and are most of the text.
struct MetadataVisitor<'o, 'a>(&'o mut Option<HeadMetadata<'a>>);

impl<'a> Visitor<'a> for MetadataVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with metadata")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut fields: M) -> Result<(), M::Error> {
        while let Some(name) = fields.next_key::<&str>()? {
            if name == "metadata" {
                *self.0 = Some(fields.next_value()?);
                break;
            }
            fields.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HeadMetadata<'a> {
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    labels: BTreeMap<String, String>,
    finalizers: Vec<String>,
    #[serde(borrow)]
    owner_references: Vec<HeadOwner<'a>>,
    #[serde(borrow)]
    deletion_timestamp: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct HeadOwner<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
}

impl ObjectHead {
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let labels = metadata["labels"].as_object().into_iter().flatten();
        let owners = list(&metadata["ownerReferences"]).filter_map(|owner| owner["uid"].as_str());
        Self::build(
            metadata["uid"].as_str().unwrap_or_default(),
            labels.filter_map(|(name, value)| Some((&**name, value.as_str()?))).collect(),
            list(&metadata["finalizers"]).filter_map(Value::as_str),
            owners,
            metadata["deletionTimestamp"].is_string(),
        )
    }

    /// The head of an object and its version, from as much of its text as that takes: a start reads all objects, and a tree of
    /// each takes ten times as long. `None` if it is not one of this store's.
    pub(super) fn read(json: &[u8]) -> Option<(Self, u64)> {
        let mut found = None;
        let outcome = serde_json::Deserializer::from_slice(json).deserialize_map(MetadataVisitor(&mut found));
        let Some(metadata) = found else { return outcome.err().and_then(|_| Self::read_all(json)) };
        let owners = metadata.owner_references.iter().map(|owner| &*owner.uid);
        let head = Self::build(
            &metadata.uid,
            metadata.labels.iter().map(|(name, value)| (&**name, &**value)).collect(),
            metadata.finalizers.iter().map(|name| &**name),
            owners,
            metadata.deletion_timestamp.is_some(),
        );
        Some((head, metadata.resource_version.parse().ok()?))
    }

    /// The same where the metadata has something in it that is of another type than Kubernetes has it.
    fn read_all(json: &[u8]) -> Option<(Self, u64)> {
        let object: Value = serde_json::from_slice(json).ok()?;
        let version = object["metadata"]["resourceVersion"].as_str()?.parse().ok()?;
        Some((Self::from_object(&object), version))
    }

    fn build<'a>(
        uid: &str,
        mut labels: Vec<(&str, &str)>,
        finalizers: impl Iterator<Item = &'a str>,
        owners: impl Iterator<Item = &'a str>,
        deleting: bool,
    ) -> Self {
        labels.sort_unstable();
        // Written in room that is used again, and kept in no more than they take: what shrinks leaves a hole behind it.
        let (mut names, mut words) = (Vec::with_capacity(STRINGS_BYTES), Vec::with_capacity(STRINGS_BYTES));
        add(&mut words, uid);
        for (name, value) in labels {
            add(&mut names, name);
            add(&mut words, value);
        }
        let mut count = 0;
        for name in finalizers.take(usize::from(u16::MAX)) {
            add(&mut words, name);
            count += 1;
        }
        owners.for_each(|owner| add(&mut words, owner));
        let (names, words) = (Arc::new(StringTable(names.as_slice().into())), StringTable(words.as_slice().into()));
        Self { label_keys: names, values: words, finalizers: count, deleting }
    }

    #[must_use]
    pub fn uid(&self) -> &str {
        self.values.all().next().unwrap_or_default()
    }

    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let at = self.label_keys.all().position(|known| known == name)?;
        self.values.all().nth(1 + at)
    }

    /// All labels with their values.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.label_keys.all().zip(self.values.all().skip(1))
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
        self.values.all().skip(1 + self.label_keys.all().count())
    }
}

impl StringTable {
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
        let head = ObjectHead::from_object(&object);
        assert_eq!((head.uid(), head.label("a"), head.label("b")), ("u", Some("1"), Some("2")));
        assert!(head.label("odd").is_none() && head.label("c").is_none());
        assert!(head.deleting && head.has_finalizer("f") && !head.has_finalizer("g"));
        assert_eq!(head.owners().collect::<Vec<_>>(), ["o"]);
        // Labels of another type, an owner without a uid and the like are left out, in whatever way it is read.
        let mut stored = object.clone();
        stored["metadata"]["resourceVersion"] = "7".into();
        assert_eq!(ObjectHead::read(stored.to_string().as_bytes()), Some((ObjectHead::from_object(&object), 7)));
        let bare = ObjectHead::from_object(&Value::Null);
        assert!(bare.uid().is_empty() && !bare.deleting && bare.owners().next().is_none());
    }

    #[test]
    fn a_head_that_is_read_is_that_of_the_whole_object() {
        let of_kubernetes = json!({ "uid": "u \" \u{1F600}", "resourceVersion": "12", "generation": 3,
            "labels": { "b/c": "2", "a": "" }, "annotations": { "x": "{\"labels\":{}}" },
            "finalizers": ["f", "g"], "deletionTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{ "uid": "o", "name": "n" }, { "uid": "p" }], "managedFields": [{ "fieldsV1": {} }] });
        let nothing = json!({ "resourceVersion": "12", "labels": null, "finalizers": null });
        for metadata in [of_kubernetes, nothing, json!({ "resourceVersion": "12" })] {
            let object = json!({ "spec": { "metadata": { "uid": "other" } }, "metadata": metadata });
            assert_eq!(
                ObjectHead::read(object.to_string().as_bytes()),
                Some((ObjectHead::from_object(&object), 12)),
                "{metadata}"
            );
        }
        let others = [
            json!({ "metadata": {} }),
            json!({ "metadata": { "resourceVersion": 12 } }),
            json!({ "metadata": { "resourceVersion": "twelve" } }),
            json!([]),
            json!({}),
        ];
        for object in others {
            assert_eq!(ObjectHead::read(object.to_string().as_bytes()), None, "{object}");
        }
        assert_eq!(ObjectHead::read(b"{\"metadata\":{\"resourceVersion\":\"1\""), None, "it ends too early");
    }

    #[test]
    fn words_of_any_length_come_back() {
        let lengths = [0, 1, 127, 128, 300, 16_383, 16_384, 70_000, 0];
        let words: Vec<String> = lengths.iter().map(|length| "ü".repeat(*length)).collect();
        let mut bytes = Vec::new();
        words.iter().for_each(|word| add(&mut bytes, word));
        assert_eq!(StringTable(bytes.into()).all().collect::<Vec<_>>(), words);
    }
}
