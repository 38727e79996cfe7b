//! Reads YAML into a tree whose size is bounded while it grows.
//!
//! An alias copies the value of its anchor. Eight thousand aliases of a text of 60 KB are 80 KB of YAML and 480 MB of text, which
//! counting the values of the body would not detect. Duplicate fields are found in the same pass, because the
//! parser takes twenty times as long as the one for JSON.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::field_validation::{DocumentPath, DuplicateFields};
use super::weight::{ENTRY_BYTES, OBJECT_BYTES, VALUE_BYTES, Weight};

/// Memory that aliases may add to a document, in bytes, in addition to as much again as the document is expected to take.
const ALIASES_BYTES_MAX: usize = 256 * 1024;

/// The document, and the fields that stand twice in it, as warnings.
///
/// # Errors
/// The document is malformed, or its aliases make it too large.
pub(super) fn read(body: &[u8]) -> Result<(Value, Vec<String>), serde_norway::Error> {
    let left = Cell::new(2 * Weight::of_yaml(body).tree_bytes() + ALIASES_BYTES_MAX);
    let duplicates = DuplicateFields::default();
    let tree = BoundedTree { left: &left, at: &DocumentPath::Root, duplicates: &duplicates };
    let value = tree.deserialize(serde_norway::Deserializer::from_slice(body))?;
    Ok((value, duplicates.into_warnings()))
}

#[derive(Clone, Copy)]
struct BoundedTree<'a> {
    /// Bytes that the tree may still grow by.
    left: &'a Cell<usize>,
    at: &'a DocumentPath<'a>,
    duplicates: &'a DuplicateFields,
}

impl BoundedTree<'_> {
    fn grow<E: de::Error>(self, bytes: usize) -> Result<(), E> {
        let left =
            self.left.get().checked_sub(bytes).ok_or_else(|| {
                E::custom("its aliases make the document too large: send JSON, or write the values out")
            })?;
        self.left.set(left);
        Ok(())
    }

    fn scalar<E: de::Error>(self, value: impl Into<Value>) -> Result<Value, E> {
        self.grow(VALUE_BYTES)?;
        Ok(value.into())
    }
}

impl<'de> DeserializeSeed<'de> for BoundedTree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedTree<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        self.scalar(Number::from_i128(value).ok_or_else(|| E::custom("JSON number out of range"))?)
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        self.scalar(Number::from_u128(value).ok_or_else(|| E::custom("JSON number out of range"))?)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.grow(value.len())?;
        self.scalar(value)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        self.scalar(())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.scalar(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.grow(VALUE_BYTES)?;
        let mut list = Vec::new();
        while let Some(item) =
            items.next_element_seed(BoundedTree { at: &DocumentPath::Item(self.at, list.len()), ..self })?
        {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.grow(VALUE_BYTES)?;
        let mut fields = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            self.grow(if fields.is_empty() { OBJECT_BYTES } else { 0 } + ENTRY_BYTES + name.len())?;
            let at = DocumentPath::Field(self.at, &name);
            if fields.contains_key(&name) {
                self.duplicates.note(&at);
            }
            let value = entries.next_value_seed(BoundedTree { at: &at, ..self })?;
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn document_is_read_as_the_plain_parser_reads_it() {
        for text in [
            "a: 1\nb: [x, null, ~, 1.5, -3, true, '7']\nc: {}\nd: |\n  two\n  lines\n",
            "base: &b {x: 1}\nother: *b\nlist: [*b, *b]\n",
            "1: a\ntrue: b\n",
            "a: 18446744073709551616\n",
            "a: !tag b\n",
            "a: [",
            "",
        ] {
            let plain = serde_norway::from_str::<Value>(text).map_err(|why| why.to_string());
            assert_eq!(read(text.as_bytes()).map(|read| read.0).map_err(|why| why.to_string()), plain, "{text}");
        }
    }

    #[test]
    fn aliases_of_long_text_are_refused_as_they_grow() {
        let bomb = |length: usize, count: usize| {
            format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(length), vec!["*a"; count].join(","))
        };
        let why = read(bomb(54_000, 2_000).as_bytes()).unwrap_err().to_string();
        assert!(why.contains("aliases"), "{why}");
        let keys = format!("a: &a {}\nb: [{}]\n", "x".repeat(50_000), vec!["{*a : 1}"; 5_000].join(","));
        assert!(read(keys.as_bytes()).is_err());
        assert!(read(bomb(1_000, 100).as_bytes()).is_ok(), "what people write is read");
    }

    #[test]
    fn document_without_aliases_fits_however_it_is_shaped() {
        for item in ["- {a: {b: {c: {}}}}\n", "- a: b\n", "- []\n", "- {}\n", "- 1\n", "- a:\n    b:\n      c: 1\n"] {
            assert!(read(item.repeat(5_000).as_bytes()).is_ok(), "{item}");
        }
        assert_eq!(read(b"a: {b: [1]}").unwrap().0, json!({ "a": { "b": [1] } }));
    }

    #[test]
    fn field_that_stands_twice_is_named_and_its_last_value_stays() {
        let (value, duplicates) = read(b"a:\n- b: 1\n  c: {d: 1, d: 2}\n  b: 3\n").unwrap();
        assert_eq!(value, json!({ "a": [{ "b": 3, "c": { "d": 2 } }] }));
        assert_eq!(duplicates, [r#"duplicate field "a[0].c.d""#, r#"duplicate field "a[0].b""#]);
    }
}
