//! The Kafka binding of CloudEvents, and upstream's event for plain records.

use adapter::{Event, from_json};
use bytes::Bytes;
use krafka::ConsumerRecord;
use serde::Deserialize;

/// The label `kafkasources.sources.knative.dev/key-type` of upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeyType {
    #[default]
    String,
    Int,
    Float,
    ByteArray,
}

pub(super) fn event_of(record: &ConsumerRecord, source: &str, key_type: KeyType) -> Event {
    let header = |wanted: &str| {
        record
            .headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .and_then(|(_, value)| text(value.as_ref()))
    };
    let content_type = header("content-type");
    let format = content_type.as_deref().unwrap_or("").to_ascii_lowercase();
    let traceparent = header("traceparent");
    if format.starts_with("application/cloudevents") {
        let body = record.value.clone().unwrap_or_default();
        if !format.starts_with("application/cloudevents+json") {
            let mut event = Event::opaque(content_type.unwrap_or_default(), body);
            event.traceparent = traceparent;
            return event;
        }
        if let Ok(mut event) = from_json(&body) {
            event.traceparent = traceparent;
            return event;
        }
    }
    if header("ce_specversion").is_some()
        && let Some(mut event) = binary(record, content_type.as_deref())
    {
        event.traceparent = traceparent;
        return event;
    }
    let mut event = plain(record, source, key_type, content_type.as_deref());
    event.traceparent = traceparent;
    event
}

fn binary(record: &ConsumerRecord, content_type: Option<&str>) -> Option<Event> {
    let mut event = Event::default();
    for (name, value) in &record.headers {
        if let Some(attribute) = name.to_ascii_lowercase().strip_prefix("ce_") {
            event.set(attribute, text(value.as_ref())?);
        }
    }
    if let Some(content_type) = content_type {
        event.set("datacontenttype", content_type);
    }
    // A record without a value is an event without data.
    event.data.clone_from(&record.value);
    event.check().is_ok().then_some(event)
}

fn plain(record: &ConsumerRecord, source: &str, key_type: KeyType, content_type: Option<&str>) -> Event {
    let (partition, offset) = (record.partition, record.offset);
    let source = format!("{source}#{}", record.topic);
    let mut event = Event::new("dev.knative.kafka.event", source, format!("partition:{partition}/offset:{offset}"))
        .with("subject", format!("partition:{partition}#{offset}"));
    if let Ok(time) = jiff::Timestamp::from_millisecond(record.timestamp) {
        event.set("time", time.to_string());
    }
    if let Some(key) = &record.key {
        let key = key_text(key, key_type);
        event.set("partitionkey", key.as_str());
        event.set("key", key);
    }
    for (name, value) in &record.headers {
        let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        if let Some(value) = text(value.as_ref())
            && !name.is_empty()
        {
            event.set(&format!("kafkaheader{}", name.to_ascii_lowercase()), value);
        }
    }
    if let Some(value) = &record.value {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(value).is_ok();
        let guess = if is_json { "application/json" } else { "application/octet-stream" };
        event = event.with_data(content_type.unwrap_or(guess), value.clone());
    }
    event
}

fn key_text(key: &Bytes, key_type: KeyType) -> String {
    let number: Option<[u8; 4]> = key.as_ref().try_into().ok();
    let double: Option<[u8; 8]> = key.as_ref().try_into().ok();
    match (key_type, number, double) {
        (KeyType::Int, Some(bytes), _) => i32::from_be_bytes(bytes).to_string(),
        (KeyType::Float, Some(bytes), _) => f32::from_be_bytes(bytes).to_string(),
        (KeyType::Float, _, Some(bytes)) => f64::from_be_bytes(bytes).to_string(),
        (KeyType::ByteArray, ..) => key.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => String::from_utf8_lossy(key).into_owned(),
    }
}

fn text(value: Option<&Bytes>) -> Option<String> {
    value.map(|value| String::from_utf8_lossy(value).into_owned())
}
