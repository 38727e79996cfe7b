//! The JSON format of CloudEvents: one event and batches.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;

use crate::event::{Event, Value, is_json};

/// Reads one structured event.
pub fn from_json(body: &[u8]) -> Result<Event, String> {
    let event = serde_json::from_slice::<Wire>(body).map_err(|error| format!("structured event: {error}"))?.0;
    event.check()?;
    Ok(event)
}

/// Reads a batch. One bad event makes the whole batch bad.
pub fn from_batch(body: &[u8]) -> Result<Vec<Event>, String> {
    let events: Vec<Wire> = serde_json::from_slice(body).map_err(|error| format!("batch of events: {error}"))?;
    for (at, event) in events.iter().enumerate() {
        event.0.check().map_err(|error| format!("event {at} of the batch: {error}"))?;
    }
    Ok(events.into_iter().map(|event| event.0).collect())
}

pub fn to_json(event: &Event) -> Vec<u8> {
    serde_json::to_vec(&Out(event)).unwrap_or_default()
}

pub fn to_batch<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<u8> {
    let events: Vec<Out<'_>> = events.into_iter().map(Out).collect();
    serde_json::to_vec(&events).unwrap_or_default()
}

struct Out<'a>(&'a Event);

impl Serialize for Out<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.0.attributes() {
            match value {
                Value::Text(text) => map.serialize_entry(name, text)?,
                Value::Integer(number) => map.serialize_entry(name, number)?,
                Value::Boolean(truth) => map.serialize_entry(name, truth)?,
            }
        }
        if let Some(data) = &self.0.data {
            let content_type = self.0.text("datacontenttype");
            let text = std::str::from_utf8(data).ok();
            let raw =
                text.filter(|_| is_json(&content_type)).and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
            let is_text = content_type.starts_with("text/") || content_type.starts_with("application/xml");
            match (raw, text) {
                (Some(raw), _) => map.serialize_entry("data", raw)?,
                (None, Some(text)) if is_text && !is_json(&content_type) => map.serialize_entry("data", text)?,
                _ => map.serialize_entry("data_base64", &STANDARD.encode(data))?,
            }
        }
        map.end()
    }
}

struct Wire(Event);

impl<'de> Deserialize<'de> for Wire {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Wire, D::Error> {
        deserializer.deserialize_map(WireVisitor)
    }
}

struct WireVisitor;

impl<'de> Visitor<'de> for WireVisitor {
    type Value = Wire;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a CloudEvent as a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Wire, A::Error> {
        let mut event = Event::default();
        let mut data: Option<Box<RawValue>> = None;
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "data" => data = Some(map.next_value()?),
                "data_base64" => {
                    let text: Option<String> = map.next_value()?;
                    let decoded = text.map(|text| STANDARD.decode(text)).transpose();
                    event.data =
                        decoded.map_err(|error| A::Error::custom(format!("data_base64: {error}")))?.map(Bytes::from);
                }
                _ => match map.next_value::<serde_json::Value>()? {
                    serde_json::Value::Null => {}
                    serde_json::Value::String(text) => event.set(&name, text),
                    serde_json::Value::Bool(truth) => event.set(&name, Value::Boolean(truth)),
                    serde_json::Value::Number(number) => {
                        let number = number.as_i64().and_then(|number| i32::try_from(number).ok());
                        let number = number
                            .ok_or_else(|| A::Error::custom(format!("attribute {name} is not a 32-bit integer")))?;
                        event.set(&name, Value::Integer(number));
                    }
                    _ => return Err(A::Error::custom(format!("attribute {name} is an array or an object"))),
                },
            }
        }
        if let Some(data) = data {
            event.data = Some(data_bytes(&data, &event.text("datacontenttype")));
        }
        Ok(Wire(event))
    }
}

/// The bytes of `data`: a string of a text type is the text itself, everything else is JSON.
fn data_bytes(data: &RawValue, content_type: &str) -> Bytes {
    let text = data.get();
    if !is_json(content_type)
        && let Ok(string) = serde_json::from_str::<String>(text)
    {
        return Bytes::from(string);
    }
    Bytes::copy_from_slice(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structured_event_keeps_attributes_and_json() {
        let body = br#"{"specversion":"1.0","id":"1","source":"/s","type":"t","n":7,"b":true,"data":{"a": 1.50}}"#;
        let event = from_json(body).unwrap();
        assert_eq!(event.get("n"), Some(&Value::Integer(7)));
        assert_eq!(event.data.as_deref(), Some(&br#"{"a": 1.50}"#[..]));
        assert_eq!(from_json(&to_json(&event)).unwrap(), event);
    }

    #[test]
    fn data_of_each_type_survives_the_round_trip() {
        for (content_type, data) in [
            ("text/plain", &b"h\xc3\xa9"[..]),
            ("application/octet-stream", b"\0\xff"),
            ("application/json", b"not json"),
        ] {
            let event = Event::new("t", "/s", "1").with_data(content_type, data.to_vec());
            assert_eq!(from_json(&to_json(&event)).unwrap(), event, "{content_type}");
        }
    }

    #[test]
    fn bad_event_of_a_batch_is_named() {
        let error = from_batch(br#"[{"specversion":"1.0","id":"1","source":"/s","type":"t"},{"specversion":"1.0"}]"#)
            .unwrap_err();
        assert!(error.starts_with("event 1 of the batch"), "{error}");
    }
}
