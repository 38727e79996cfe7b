//! Converts Kubernetes' protobuf bodies of core kinds to JSON.
//!
//! Typed clients send them for core kinds by default; responses are always JSON, which the same
//! clients accept. An envelope (`k8s\0`, then type and content) holds one message. [`messages`] maps field
//! numbers to names. Nesting is bounded by those tables, and where a message holds its
//! own kind, by [`SCHEMA_DEPTH_MAX`].

mod definition;
mod field;
mod messages;
mod traffic;
mod wire;
mod workload_messages;

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use field::{ENVELOPE, FieldShape, ProtobufField, SchemaPosition};
use messages::message_of;
use wire::{ProtobufReader, WireValue, text};

pub(super) use wire::ProtobufError;

const MAGIC: &[u8] = b"k8s\0";
/// Levels of schemas in each other: each takes two of the levels that a stored object may have.
pub(super) const SCHEMA_DEPTH_MAX: usize = 60;

/// Messages in one body: each is an object of some 700 bytes, and takes two bytes in the body.
pub(super) const MESSAGES_MAX: usize = 60_000;

thread_local! {
    /// Messages that the body which is read on this thread may still have.
    static MESSAGES_LEFT: Cell<usize> = const { Cell::new(0) };
}

/// The object of kind `kind` in `body`. Kinds of several groups share a name: the envelope says which group it is.
pub(super) fn decode(kind: &str, body: &[u8]) -> Result<Value, ProtobufError> {
    MESSAGES_LEFT.set(MESSAGES_MAX);
    let envelope = body.strip_prefix(MAGIC).ok_or(ProtobufError::Malformed)?;
    let about = message(ENVELOPE, envelope, 0)?;
    let version = about["type"]["apiVersion"].as_str().unwrap_or("");
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let fields = message_of(group, kind).ok_or(ProtobufError::UnknownKind)?;
    let mut raw: &[u8] = &[];
    let mut reader = ProtobufReader { remaining: envelope };
    while let Some((number, part)) = reader.next()? {
        if let (2, WireValue::Bytes(bytes)) = (number, part) {
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

/// `depth`: how many schemas it is in.
fn message(fields: &[ProtobufField], bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
    MESSAGES_LEFT.set(MESSAGES_LEFT.get().checked_sub(1).ok_or(ProtobufError::TooMany)?);
    let mut object = Map::new();
    let mut reader = ProtobufReader { remaining: bytes };
    while let Some((number, part)) = reader.next()? {
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        match (field.shape, part) {
            (shape, WireValue::Bytes(bytes)) if is_map(shape) => {
                let (key, value) = map_entry(shape, bytes, depth)?;
                let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                map[key] = value;
            }
            (FieldShape::Inline(fields), WireValue::Bytes(bytes)) => {
                if let Value::Object(fields) = message(fields, bytes, depth)? {
                    object.extend(fields);
                }
            }
            (shape, part) => {
                let value = scalar(shape, part, depth)?;
                if field.repeated {
                    let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                    if let Value::Array(list) = list {
                        list.push(value.unwrap_or_else(|| zero_value(shape)));
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
fn scalar(shape: FieldShape, part: WireValue<'_>, depth: usize) -> Result<Option<Value>, ProtobufError> {
    let value = match (shape, part) {
        (FieldShape::Text, WireValue::Bytes(bytes)) => {
            Some(text(bytes)?).filter(|text| !text.is_empty()).map(Value::String)
        }
        (FieldShape::OptionalBool, WireValue::Number(0)) | (FieldShape::OptionalNumber, WireValue::Number(0)) => None,
        (FieldShape::Bool | FieldShape::OptionalBool, WireValue::Number(number)) => Some(Value::Bool(number != 0)),
        (FieldShape::OptionalNumber | FieldShape::Number, WireValue::Number(number)) => {
            Some(Value::from(number.cast_signed()))
        }
        (FieldShape::Double, WireValue::Bytes(bytes)) => {
            let bytes = <[u8; 8]>::try_from(bytes).map_err(|_| ProtobufError::Malformed)?;
            Some(json_double(f64::from_le_bytes(bytes))?)
        }
        (FieldShape::Bytes, WireValue::Bytes(bytes)) => {
            Some(bytes).filter(|bytes| !bytes.is_empty()).map(|bytes| STANDARD.encode(bytes).into())
        }
        (FieldShape::Message(fields), WireValue::Bytes(bytes)) => {
            let value = message(fields, bytes, depth)?;
            Some(value).filter(|value| value.as_object().is_some_and(|fields| !fields.is_empty()))
        }
        (FieldShape::MessageOrNone(fields), WireValue::Bytes(bytes)) => Some(message(fields, bytes, depth)?),
        (FieldShape::IntOrString, WireValue::Bytes(bytes)) => number_or_text(bytes)?,
        (FieldShape::Time, WireValue::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        (FieldShape::MicroTime, WireValue::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S%.6fZ")?,
        (FieldShape::Quantity, WireValue::Bytes(bytes)) => quantity(bytes)?,
        (FieldShape::Schema(place), WireValue::Bytes(bytes)) => Some(definition::read(place, bytes, depth)?),
        _ => return Err(ProtobufError::Malformed),
    };
    Ok(value)
}

/// Whole ones are written without a point, as Go does it.
fn json_double(number: f64) -> Result<Value, ProtobufError> {
    /// Beyond it not every whole number is a double.
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= WHOLE_MAX {
        #[expect(clippy::cast_possible_truncation, reason = "whole, and small enough")]
        return Ok((number as i64).into());
    }
    serde_json::Number::from_f64(number).map(Value::Number).ok_or(ProtobufError::Malformed)
}

/// What is in a list where [`plain`] finds nothing: there it was not left out. The core group's name is empty.
fn zero_value(shape: FieldShape) -> Value {
    match shape {
        FieldShape::Text => Value::String(String::new()),
        FieldShape::Message(_) => Value::Object(Map::new()),
        _ => Value::from(0),
    }
}

/// `{ 1: 0 = number, 1 = text; 2: the number; 3: the text }`
fn number_or_text(bytes: &[u8]) -> Result<Option<Value>, ProtobufError> {
    let (mut is_text, mut number, mut words) = (false, 0, String::new());
    let mut reader = ProtobufReader { remaining: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, WireValue::Number(kind)) => is_text = kind == 1,
            (2, WireValue::Number(value)) => number = value.cast_signed(),
            (3, WireValue::Bytes(bytes)) => words = text(bytes)?,
            _ => {}
        }
    }
    let value = if is_text { Value::String(words) } else { Value::from(number) };
    Ok(Some(value).filter(|value| *value != 0))
}

/// `{ 1: seconds; 2: nanoseconds }`, written as `format`.
fn time(bytes: &[u8], format: &str) -> Result<Option<Value>, ProtobufError> {
    let (mut seconds, mut nanoseconds) = (0, 0);
    let mut reader = ProtobufReader { remaining: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, WireValue::Number(value)) => seconds = value.cast_signed(),
            (2, WireValue::Number(value)) => {
                nanoseconds = i32::try_from(value).map_err(|_| ProtobufError::Malformed)?
            }
            _ => {}
        }
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let stamp = jiff::Timestamp::new(seconds, nanoseconds).map_err(|_| ProtobufError::Malformed)?;
    Ok(Some(stamp.strftime(format).to_string().into()))
}

/// `{ 1: text }`
fn quantity(bytes: &[u8]) -> Result<Option<Value>, ProtobufError> {
    let mut found = None;
    let mut reader = ProtobufReader { remaining: bytes };
    while let Some(field) = reader.next()? {
        if let (1, WireValue::Bytes(bytes)) = field {
            found = Some(text(bytes)?.into());
        }
    }
    Ok(found)
}

fn is_map(shape: FieldShape) -> bool {
    matches!(
        shape,
        FieldShape::TextMap
            | FieldShape::BytesMap
            | FieldShape::QuantityMap
            | FieldShape::Schema(SchemaPosition::Map | SchemaPosition::SchemaOrStringListMap)
    )
}

fn map_entry(shape: FieldShape, bytes: &[u8], depth: usize) -> Result<(String, Value), ProtobufError> {
    let (mut key, mut content): (_, &[u8]) = (String::new(), &[]);
    let mut reader = ProtobufReader { remaining: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, WireValue::Bytes(bytes)) => key = text(bytes)?,
            (2, WireValue::Bytes(bytes)) => content = bytes,
            _ => {}
        }
    }
    let value = match shape {
        FieldShape::BytesMap => STANDARD.encode(content).into(),
        FieldShape::QuantityMap => quantity(content)?.unwrap_or_else(|| "0".into()),
        FieldShape::Schema(place) => definition::read(place, content, depth)?,
        _ => text(content)?.into(),
    };
    Ok((key, value))
}

#[cfg(test)]
mod tests;
