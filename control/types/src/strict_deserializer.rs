//! Deserializes structs only from maps of field names.
//!
//! A struct's derived deserializer also accepts a list, its fields in order. Clients of Kubernetes never mean that, so
//! `delivery: []` is rejected with an error.

use serde::Deserializer;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// A value that is read as serde reads it, but for structs, which have to be objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StrictDeserializer<'v>(pub(crate) &'v Value);

impl<'de> IntoDeserializer<'de, Error> for StrictDeserializer<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for StrictDeserializer<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.iter().map(StrictDeserializer));
                let read = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(read)
            }
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.as_str(), StrictDeserializer(value)));
                let mut fields = MapDeserializer::new(fields);
                let read = visitor.visit_map(&mut fields)?;
                fields.end()?;
                Ok(read)
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(_) => self.deserialize_any(visitor),
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map identifier
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct OuterFixture {
        inner: Option<InnerFixture>,
        list: Vec<InnerFixture>,
        texts: BTreeMap<String, String>,
        any: Value,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct InnerFixture {
        number: i64,
        share: f64,
        text: Option<String>,
    }

    #[test]
    fn fields_are_read_by_their_names_alone() {
        let good = json!({ "inner": { "number": 1, "share": 2, "text": null }, "list": [{ "text": "x" }, {}],
            "texts": { "a": "b" }, "any": [null, { "x": [1] }] });
        assert_eq!(
            OuterFixture::deserialize(StrictDeserializer(&good)).unwrap(),
            OuterFixture::deserialize(&good).unwrap()
        );
        for bad in [
            json!([]),
            json!({ "inner": [] }),
            json!({ "inner": [1, 2.0, "x"] }),
            json!({ "list": [[1]] }),
            json!({ "texts": [] }),
            json!({ "inner": "x" }),
            json!({ "inner": { "number": "1" } }),
        ] {
            assert!(OuterFixture::deserialize(StrictDeserializer(&bad)).is_err(), "{bad}");
        }
        let why = OuterFixture::deserialize(StrictDeserializer(&json!({ "inner": [] }))).unwrap_err().to_string();
        assert_eq!(why, "invalid type: sequence, expected struct InnerFixture");
    }
}
