//! Reads JSON and YAML into a tree of values, with the fields that stand twice.
//!
//! The tree of YAML is bounded while it grows. An alias copies the value of its anchor: eight thousand aliases of a text of
//! 60 KB are 80 KB of YAML and 480 MB of text, which counting the values of the body would not detect. The lists of JSON
//! get the memory that they need at once, because the lengths are known.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::field_validation::{DocumentPath, DuplicateFields};
use super::integers;
use super::list_lengths::ListLengths;
use super::weight::{ENTRY_BYTES, OBJECT_BYTES, VALUE_BYTES, Weight};

/// Memory that aliases may add to a document, in bytes, in addition to as much again as the document is expected to take.
const ALIASES_BYTES_MAX: usize = 256 * 1024;

/// The document, and the fields that stand twice in it, as warnings. The last of them stays.
///
/// # Errors
/// The document is malformed, or its aliases make it too large.
pub(super) fn read_yaml(body: &[u8]) -> Result<(Value, Vec<String>), serde_norway::Error> {
    let context = TreeContext::bounded(2 * Weight::of_yaml(body).tree_bytes() + ALIASES_BYTES_MAX);
    let value = context.tree().deserialize(serde_norway::Deserializer::from_slice(body))?;
    Ok((value, context.duplicates.into_warnings()))
}

/// The same of JSON whose size is bounded already.
///
/// # Errors
/// The document is malformed.
pub(super) fn read_json(body: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let context = TreeContext { lengths: ListLengths::of_json(body), ..TreeContext::bounded(usize::MAX) };
    let mut text = serde_json::Deserializer::from_slice(body);
    let value = context.tree().deserialize(&mut text)?;
    text.end()?;
    Ok((value, context.duplicates.into_warnings()))
}

/// What is known of the document so far.
struct TreeContext {
    /// Bytes that the tree may still grow by.
    bytes_left: Cell<usize>,
    /// Lists that have begun.
    lists: Cell<u32>,
    lengths: ListLengths,
    duplicates: DuplicateFields,
}

impl TreeContext {
    fn bounded(bytes: usize) -> Self {
        let (bytes_left, lists) = (Cell::new(bytes), Cell::new(0));
        Self { bytes_left, lists, lengths: ListLengths::default(), duplicates: DuplicateFields::default() }
    }

    fn tree(&self) -> BoundedTree<'_> {
        BoundedTree { context: self, at: &DocumentPath::Root }
    }

    /// A list, with room for its items if their count is known.
    fn begin_list(&self) -> Vec<Value> {
        let nth = self.lists.get();
        self.lists.set(nth + 1);
        Vec::with_capacity(self.lengths.of(nth))
    }
}

#[derive(Clone, Copy)]
struct BoundedTree<'a> {
    context: &'a TreeContext,
    at: &'a DocumentPath<'a>,
}

impl BoundedTree<'_> {
    fn grow<E: de::Error>(self, bytes: usize) -> Result<(), E> {
        let left =
            self.context.bytes_left.get().checked_sub(bytes).ok_or_else(|| {
                E::custom("its aliases make the document too large: send JSON, or write the values out")
            })?;
        self.context.bytes_left.set(left);
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
        integers::whole(value).map_or_else(|| self.scalar(value), |whole| self.scalar(whole))
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
        let mut list = self.context.begin_list();
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
                self.context.duplicates.note(&at);
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
            assert_eq!(read_yaml(text.as_bytes()).map(|read| read.0).map_err(|why| why.to_string()), plain, "{text}");
        }
    }

    /// APP-37
    #[test]
    fn json_is_read_as_the_plain_parser_reads_it_but_whole_numbers_have_no_fraction() {
        for text in [
            r#"{"a":[1,-2,0.5,null,true,"x\u00e9\n",[],{}],"b":{"c":{"d":""}}}"#,
            "18446744073709551616",
            "[1,2",
            "[1] 2",
            "{\"a\":}",
            "",
        ] {
            let plain = serde_json::from_str::<Value>(text).map_err(|why| why.to_string());
            let read = read_json(text.as_bytes()).map(|read| read.0).map_err(|why| why.to_string());
            assert_eq!(read, plain, "{text}");
        }
        assert_eq!(read_json(b"[3.0,1e2,0.5]").unwrap().0, json!([3, 100, 0.5]));
        let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(read_json(nested.as_bytes()).is_err(), "the parser bounds the nesting");
    }

    /// A list that doubled would have room for 32,768.
    #[test]
    fn list_of_json_has_room_for_its_items_and_no_more() {
        let text = format!("{{\"a\":[[1],[{}]]}}", vec!["{}"; 20_000].join(","));
        let Value::Array(mut lists) = read_json(text.as_bytes()).unwrap().0["a"].take() else { panic!("a list") };
        let Value::Array(long) = lists.remove(1) else { panic!("a list") };
        assert_eq!((long.len(), long.capacity()), (20_000, 20_000));
    }

    #[test]
    fn json_field_that_stands_twice_is_named_with_its_path() {
        let text = br#"{"a": {"b": [1, {"c": 1, "d": null, "c": 2}]}, "e": true}"#;
        let (value, duplicates) = read_json(text).unwrap();
        assert_eq!(duplicates, [r#"duplicate field "a.b[1].c""#]);
        assert_eq!(value["a"]["b"][1], json!({ "c": 2, "d": null }));
        assert!(read_json(br#"{"a": {"b": 1}, "c": {"b": 1}, "d": [0.5, -1, "x"]}"#).unwrap().1.is_empty());
    }

    #[test]
    fn aliases_of_long_text_are_refused_as_they_grow() {
        let bomb = |length: usize, count: usize| {
            format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(length), vec!["*a"; count].join(","))
        };
        let why = read_yaml(bomb(54_000, 2_000).as_bytes()).unwrap_err().to_string();
        assert!(why.contains("aliases"), "{why}");
        let keys = format!("a: &a {}\nb: [{}]\n", "x".repeat(50_000), vec!["{*a : 1}"; 5_000].join(","));
        assert!(read_yaml(keys.as_bytes()).is_err());
        assert!(read_yaml(bomb(1_000, 100).as_bytes()).is_ok(), "what people write is read");
    }

    #[test]
    fn document_without_aliases_fits_however_it_is_shaped() {
        for item in ["- {a: {b: {c: {}}}}\n", "- a: b\n", "- []\n", "- {}\n", "- 1\n", "- a:\n    b:\n      c: 1\n"] {
            assert!(read_yaml(item.repeat(5_000).as_bytes()).is_ok(), "{item}");
        }
        assert_eq!(read_yaml(b"a: {b: [1]}").unwrap().0, json!({ "a": { "b": [1] } }));
    }

    #[test]
    fn field_that_stands_twice_is_named_and_its_last_value_stays() {
        let (value, duplicates) = read_yaml(b"a:\n- b: 1\n  c: {d: 1, d: 2}\n  b: 3\n").unwrap();
        assert_eq!(value, json!({ "a": [{ "b": 3, "c": { "d": 2 } }] }));
        assert_eq!(duplicates, [r#"duplicate field "a[0].c.d""#, r#"duplicate field "a[0].b""#]);
    }
}
