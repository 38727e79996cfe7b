//! Entries of a stream and the events that they are.

use adapter::{Event, from_json};
use redis::Value;

/// The field that holds a whole CloudEvent as JSON.
pub(super) const EVENT_FIELD: &str = "event";

pub(super) struct RedisEntry {
    pub(super) id: String,
    /// Names and values in turn. `None`: the entry was deleted.
    pub(super) fields: Option<Vec<String>>,
}

/// The entries in a reply to XREADGROUP of one stream.
pub(super) fn entries(reply: Value) -> Vec<RedisEntry> {
    let Value::Array(streams) = reply else { return Vec::new() };
    let Some(Value::Array(mut stream)) = streams.into_iter().next() else { return Vec::new() };
    let Some(Value::Array(entries)) = stream.pop() else { return Vec::new() };
    let entry = |value: Value| {
        let Value::Array(mut parts) = value else { return None };
        let fields = match parts.pop()? {
            Value::Array(fields) => Some(fields.iter().map(text).collect()),
            _ => None,
        };
        Some(RedisEntry { id: text(&parts.pop()?), fields })
    };
    entries.into_iter().filter_map(entry).collect()
}

/// Redis values are bytes; what is not UTF-8 is replaced.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

/// A CloudEvent in the field `event` stays as it is; other entries become upstream's event: an array of names and values.
pub(super) fn event_of(entry: &RedisEntry, source: &str) -> Event {
    let fields = entry.fields.as_deref().unwrap_or_default();
    if let [name, value] = fields
        && name == EVENT_FIELD
        && let Ok(event) = from_json(value.as_bytes())
    {
        return event;
    }
    let data = serde_json::to_vec(fields).unwrap_or_default();
    Event::new("dev.knative.sources.redisstream", source, entry.id.as_str()).with_data("application/json", data)
}
