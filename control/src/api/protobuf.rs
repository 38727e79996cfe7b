//! Kubernetes' protobuf bodies for core kinds, turned into the JSON they stand for.
//!
//! Typed clients send them for core kinds without asking; answers are always JSON, which the same
//! clients accept. An envelope (`k8s\0`, then type and content) holds one message. Which number is
//! which field stands in [`super::protobuf_fields`]. Nesting is bounded by those tables, and where a message holds its
//! own kind, by [`SCHEMA_DEPTH_MAX`].

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::protobuf_definition;
use super::protobuf_fields::{ENVELOPE, Field, Place, Shape, message_of};

const MAGIC: &[u8] = b"k8s\0";
/// Levels of schemas in each other: each takes two of the levels that a stored object may have.
pub(super) const SCHEMA_DEPTH_MAX: usize = 60;

/// Messages in one body: each is an object of some 700 bytes, and takes two bytes in the body.
pub(super) const MESSAGES_MAX: usize = 60_000;

/// Why a body is no message of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The kind has no table here: the client has to send JSON.
    UnknownKind,
    Malformed,
    /// Schemas nest more than [`SCHEMA_DEPTH_MAX`] levels.
    TooDeep,
    /// There are more than [`MESSAGES_MAX`] messages in it.
    TooMany,
}

thread_local! {
    /// Messages that the body which is read on this thread may still have.
    static MESSAGES_LEFT: Cell<usize> = const { Cell::new(0) };
}

/// The object of kind `kind` in `body`. Kinds of several groups share a name: the envelope says which group it is.
pub(super) fn decode(kind: &str, body: &[u8]) -> Result<Value, Wrong> {
    MESSAGES_LEFT.set(MESSAGES_MAX);
    let envelope = body.strip_prefix(MAGIC).ok_or(Wrong::Malformed)?;
    let about = message(ENVELOPE, envelope, 0)?;
    let version = about["type"]["apiVersion"].as_str().unwrap_or("");
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let fields = message_of(group, kind).ok_or(Wrong::UnknownKind)?;
    let mut raw: &[u8] = &[];
    let mut reader = Reader { rest: envelope };
    while let Some((number, part)) = reader.next()? {
        if let (2, Part::Bytes(bytes)) = (number, part) {
            raw = bytes;
        }
    }
    let mut object = message(fields, raw, 0)?;
    for field in ["apiVersion", "kind"] {
        if let Some(value) = about["type"].get(field) {
            object[field] = value.clone();
        }
    }
    Ok(object)
}

/// `depth`: how many schemas it stands in.
pub(super) fn message(fields: &[Field], bytes: &[u8], depth: usize) -> Result<Value, Wrong> {
    MESSAGES_LEFT.set(MESSAGES_LEFT.get().checked_sub(1).ok_or(Wrong::TooMany)?);
    let mut object = Map::new();
    let mut reader = Reader { rest: bytes };
    while let Some((number, part)) = reader.next()? {
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        match (field.shape, part) {
            (shape, Part::Bytes(bytes)) if is_map(shape) => {
                let (key, value) = map_entry(shape, bytes, depth)?;
                let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                map[key] = value;
            }
            (shape, part) => {
                let value = plain(shape, part, depth)?;
                if field.many {
                    let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                    if let Value::Array(list) = list {
                        list.push(value.unwrap_or_else(|| zero(shape)));
                    }
                } else if let Some(value) = value {
                    object.insert(field.name.into(), value);
                }
            }
        }
    }
    Ok(Value::Object(object))
}

/// `None`: the zero that this encoding writes for a field that was left out.
fn plain(shape: Shape, part: Part<'_>, depth: usize) -> Result<Option<Value>, Wrong> {
    let value = match (shape, part) {
        (Shape::Text, Part::Bytes(bytes)) => {
            Some(text(bytes)?).filter(|text| !text.is_empty()).map(Value::String)
        }
        (Shape::Flag, Part::Number(0)) | (Shape::Number, Part::Number(0)) => None,
        (Shape::Bool | Shape::Flag, Part::Number(number)) => Some(Value::Bool(number != 0)),
        (Shape::Number | Shape::NumberOrNone, Part::Number(number)) => {
            Some(Value::from(number.cast_signed()))
        }
        (Shape::Double, Part::Bytes(bytes)) => {
            let bytes = <[u8; 8]>::try_from(bytes).map_err(|_| Wrong::Malformed)?;
            Some(double(f64::from_le_bytes(bytes))?)
        }
        (Shape::Bytes, Part::Bytes(bytes)) => {
            Some(bytes).filter(|bytes| !bytes.is_empty()).map(|bytes| STANDARD.encode(bytes).into())
        }
        (Shape::Message(fields), Part::Bytes(bytes)) => {
            let value = message(fields, bytes, depth)?;
            Some(value).filter(|value| value.as_object().is_some_and(|fields| !fields.is_empty()))
        }
        (Shape::MessageOrNone(fields), Part::Bytes(bytes)) => Some(message(fields, bytes, depth)?),
        (Shape::NumberOrText, Part::Bytes(bytes)) => number_or_text(bytes)?,
        (Shape::Time, Part::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        (Shape::MicroTime, Part::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S%.6fZ")?,
        (Shape::Schema(place), Part::Bytes(bytes)) => Some(protobuf_definition::read(place, bytes, depth)?),
        _ => return Err(Wrong::Malformed),
    };
    Ok(value)
}

/// Whole ones are written without a point, as Go does it.
fn double(number: f64) -> Result<Value, Wrong> {
    /// Beyond it not every whole number is a double.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= WHOLE_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and small enough")]
        return Ok((number as i64).into());
    }
    serde_json::Number::from_f64(number).map(Value::Number).ok_or(Wrong::Malformed)
}

/// What stands in a list where [`plain`] finds nothing: there it was not left out. The core group's name is empty.
fn zero(shape: Shape) -> Value {
    match shape {
        Shape::Text => Value::String(String::new()),
        Shape::Message(_) => Value::Object(Map::new()),
        _ => Value::from(0),
    }
}

/// `{ 1: 0 = number, 1 = text; 2: the number; 3: the text }`
fn number_or_text(bytes: &[u8]) -> Result<Option<Value>, Wrong> {
    let (mut is_text, mut number, mut words) = (false, 0, String::new());
    let mut reader = Reader { rest: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, Part::Number(kind)) => is_text = kind == 1,
            (2, Part::Number(value)) => number = value.cast_signed(),
            (3, Part::Bytes(bytes)) => words = text(bytes)?,
            _ => {}
        }
    }
    let value = if is_text { Value::String(words) } else { Value::from(number) };
    Ok(Some(value).filter(|value| *value != 0))
}

/// `{ 1: seconds; 2: nanoseconds }`, written as `format`.
fn time(bytes: &[u8], format: &str) -> Result<Option<Value>, Wrong> {
    let (mut seconds, mut nanoseconds) = (0, 0);
    let mut reader = Reader { rest: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, Part::Number(value)) => seconds = value.cast_signed(),
            (2, Part::Number(value)) => nanoseconds = i32::try_from(value).map_err(|_| Wrong::Malformed)?,
            _ => {}
        }
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let stamp = jiff::Timestamp::new(seconds, nanoseconds).map_err(|_| Wrong::Malformed)?;
    Ok(Some(stamp.strftime(format).to_string().into()))
}

fn is_map(shape: Shape) -> bool {
    matches!(shape, Shape::TextMap | Shape::BytesMap | Shape::Schema(Place::Map | Place::OrTextsMap))
}

fn map_entry(shape: Shape, bytes: &[u8], depth: usize) -> Result<(String, Value), Wrong> {
    let (mut key, mut content): (_, &[u8]) = (String::new(), &[]);
    let mut reader = Reader { rest: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, Part::Bytes(bytes)) => key = text(bytes)?,
            (2, Part::Bytes(bytes)) => content = bytes,
            _ => {}
        }
    }
    let value = match shape {
        Shape::BytesMap => STANDARD.encode(content).into(),
        Shape::Schema(place) => protobuf_definition::read(place, content, depth)?,
        _ => text(content)?.into(),
    };
    Ok((key, value))
}

pub(super) fn text(bytes: &[u8]) -> Result<String, Wrong> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Wrong::Malformed)
}

/// Content of one field on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes a message apart, field by field.
pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn next(&mut self) -> Result<Option<(u64, Part<'a>)>, Wrong> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let part = match tag & 7 {
            0 => Part::Number(self.varint()?),
            1 => Part::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Wrong::Malformed)?;
                Part::Bytes(self.take(length)?)
            }
            5 => Part::Bytes(self.take(4)?),
            _ => return Err(Wrong::Malformed),
        };
        Ok(Some((tag >> 3, part)))
    }

    fn varint(&mut self) -> Result<u64, Wrong> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Wrong::Malformed)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Wrong::Malformed)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Wrong::Malformed)?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
#[path = "protobuf_tests.rs"]
mod tests;
