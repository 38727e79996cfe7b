//! Structured mode: one JSON object contains attributes and data; a batch is an array of those.
//!
//! The data stays the slice of text that was sent: it is never parsed into a tree and printed again.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{ADDED, AttributeKind, CloudEvent, CloudEventAttribute, ContentMode, EventData, MalformedEvent, rules};
use crate::limits::{ATTRIBUTES_MAX, BATCH_EVENTS_MAX};

/// Parses an event from a JSON envelope (DP-PROTO-03).
pub fn parse(body: &[u8]) -> Result<CloudEvent<'_>, MalformedEvent> {
    let members: JsonMembers<'_> =
        serde_json::from_slice(body).map_err(|why| MalformedEvent::envelope(why.to_string()))?;
    read(members)
}

/// Parses all events of a batch, or none (DP-PROTO-06, AMB-49).
pub fn parse_batch(body: &[u8]) -> Result<Vec<CloudEvent<'_>>, MalformedEvent> {
    let JsonBatch(envelopes) = serde_json::from_slice(body).map_err(|why| MalformedEvent::envelope(why.to_string()))?;
    let Some(envelopes) = envelopes else {
        return Err(MalformedEvent::Request { why: "the batch has more than 1000 events" });
    };
    let events = envelopes.iter().enumerate().map(|(index, envelope)| {
        parse(envelope.get().as_bytes()).map_err(|why| MalformedEvent::InBatch { index, why: Box::new(why) })
    });
    events.collect()
}

/// Whether a text is one complete JSON value.
pub(crate) fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(bytes).is_ok()
}

/// The text of a JSON string, `None` if the value is something else.
pub(crate) fn json_string(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.starts_with('"') {
        return None;
    }
    match serde_json::from_str::<&str>(raw) {
        Ok(plain) => Some(Cow::Borrowed(plain)),
        Err(_) => serde_json::from_str::<String>(raw).ok().map(Cow::Owned),
    }
}

fn read(members: JsonMembers<'_>) -> Result<CloudEvent<'_>, MalformedEvent> {
    let JsonMembers(Some(members)) = members else {
        return Err(MalformedEvent::Request { why: "the event has more than 256 attributes" });
    };
    let mut attributes = Vec::with_capacity(members.len());
    let (mut json, mut base64) = (None, None);
    for (name, raw) in members {
        match &*name {
            "data" if json.is_some() => return Err(MalformedEvent::attribute("data", "is given twice")),
            "data" => json = Some(raw.get()),
            "data_base64" if base64.is_some() => {
                return Err(MalformedEvent::attribute("data_base64", "is given twice"));
            }
            "data_base64" => base64 = Some(raw.get()),
            _ => attributes.extend(attribute(name, raw.get())?),
        }
    }
    rules::check(&attributes)?;
    let event = CloudEvent { mode: ContentMode::Structured, attributes, data: data(json, base64)? };
    match event.data {
        EventData::Json(text) if event.is_encoded() && decoded(text).is_none() => {
            Err(MalformedEvent::attribute("data", "is not a string of base64, as datacontentencoding has it"))
        }
        _ => Ok(event),
    }
}

/// The decoded bytes of a JSON string of base64.
pub(crate) fn decoded(raw: &str) -> Option<Vec<u8>> {
    json_string(raw).and_then(|text| BASE64.decode(text.as_bytes()).ok())
}

/// `"data_base64": null` means absent, as in the format's JSON schema; `"data": null` is a value.
fn data<'a>(json: Option<&'a str>, base64: Option<&'a str>) -> Result<EventData<'a>, MalformedEvent> {
    match (json, base64.filter(|raw| *raw != "null")) {
        (None, None) => Ok(EventData::None),
        (Some(text), None) => Ok(EventData::Json(text)),
        (Some(_), Some(_)) => Err(MalformedEvent::attribute("data_base64", "is present together with \"data\"")),
        (None, Some(text)) => match decoded(text) {
            Some(bytes) => Ok(EventData::Bytes(Cow::Owned(bytes))),
            None => Err(MalformedEvent::attribute("data_base64", "is not a string of base64")),
        },
    }
}

/// `null` is the same as absent.
fn attribute<'a>(name: Cow<'a, str>, raw: &'a str) -> Result<Option<CloudEventAttribute<'a>>, MalformedEvent> {
    rules::check_name(&name)?;
    let (value, kind) = match raw.as_bytes().first() {
        Some(b'"') => {
            let Some(text) = json_string(raw) else {
                return Err(MalformedEvent::attribute(name, "is not a valid JSON string"));
            };
            (text, AttributeKind::String)
        }
        Some(b't' | b'f') => (Cow::Borrowed(raw), AttributeKind::Boolean),
        Some(b'n') => return Ok(None),
        Some(b'-' | b'0'..=b'9') => {
            let Ok(number) = raw.parse::<i32>() else {
                return Err(MalformedEvent::attribute(name, "is a number but not an integer of 32 bits"));
            };
            // `-0` is the only number with two representations.
            (if number == 0 { Cow::Borrowed("0") } else { Cow::Borrowed(raw) }, AttributeKind::Integer)
        }
        _ => return Err(MalformedEvent::attribute(name, "is an object or a list")),
    };
    Ok(Some(CloudEventAttribute { name, value, kind }))
}

/// A JSON object with unparsed values and with duplicates, so that they can be rejected. `None` if there
/// are more than an event can have: the rest of such a body is skipped, and nothing of it is kept.
struct JsonMembers<'a>(Option<Vec<(Cow<'a, str>, &'a RawValue)>>);

/// Members of an envelope: attributes, those that streams add, `data`, `data_base64`.
const MEMBERS_MAX: usize = ATTRIBUTES_MAX + ADDED.len() + 2;

impl<'de> Deserialize<'de> for JsonMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = JsonMembers<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::with_capacity(12); // seldom grows: most envelopes have fewer
        while let Some(JsonKey(name)) = map.next_key()? {
            if members.len() == MEMBERS_MAX {
                map.next_value::<IgnoredAny>()?;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(JsonMembers(None));
            }
            members.push((name, map.next_value()?));
        }
        Ok(JsonMembers(Some(members)))
    }
}

/// A JSON array with unparsed values; `None` if there are too many.
struct JsonBatch<'a>(Option<Vec<&'a RawValue>>);

impl<'de> Deserialize<'de> for JsonBatch<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BatchVisitor)
    }
}

struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = JsonBatch<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut envelopes = Vec::new(); // grows to the limit at most
        while let Some(envelope) = seq.next_element()? {
            if envelopes.len() == BATCH_EVENTS_MAX {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(JsonBatch(None));
            }
            envelopes.push(envelope);
        }
        Ok(JsonBatch(Some(envelopes)))
    }
}

/// A member's name, borrowed unless it has escapes.
struct JsonKey<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for JsonKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = JsonKey<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(JsonKey(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(JsonKey(Cow::Owned(name.to_owned())))
    }
}
