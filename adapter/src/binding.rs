//! The HTTP binding of CloudEvents. NATS and AMQP 0-9-1 use the same `ce-` headers.

use bytes::Bytes;

use crate::event::{Event, is_attribute_name};
use crate::json::{from_batch, from_json, to_batch, to_json};

/// How an event is a message of a protocol (CloudEvents, protocol bindings): its attributes in the headers, or all of it in the
/// body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MessageMode {
    #[default]
    Binary,
    Structured,
}

/// Headers of a message, as transports have them.
pub type Headers = Vec<(String, String)>;

const STRUCTURED: &str = "application/cloudevents";
const BATCH: &str = "application/cloudevents-batch";

/// Reads the events of an HTTP request.
pub fn from_http(headers: &http::HeaderMap, body: Bytes) -> Result<Vec<Event>, String> {
    let content_type = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or("");
    if media_type(content_type).starts_with(BATCH) {
        if media_type(content_type) != "application/cloudevents-batch+json" {
            return Err(format!(
                "batch format {content_type} is not supported; use application/cloudevents-batch+json"
            ));
        }
        return from_batch(&body);
    }
    let pairs =
        headers.iter().filter_map(|(name, value)| Some((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?)));
    match from_headers(pairs, Some(body).filter(|body| !body.is_empty()))? {
        Some(event) => Ok(vec![event]),
        None => {
            Err("the request is not a CloudEvent: it has neither ce-specversion nor a cloudevents content type"
                .to_owned())
        }
    }
}

/// Reads an event from `ce-` headers or a structured body. `None`: the message is not a CloudEvent.
pub fn from_headers<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: Option<Bytes>,
) -> Result<Option<Event>, String> {
    let mut event = Event::default();
    let mut content_type = None;
    let mut traceparent = None;
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            "content-type" => content_type = Some(value.to_owned()),
            "traceparent" => traceparent = Some(value.to_owned()),
            _ => {
                if let Some(attribute) = name.strip_prefix("ce-")
                    && is_attribute_name(attribute)
                {
                    event.set(attribute, decode_value(value));
                }
            }
        }
    }
    let format = content_type.as_deref().unwrap_or("");
    if media_type(format).starts_with(STRUCTURED) {
        let body = body.unwrap_or_default();
        let mut event = match media_type(format).as_str() {
            "application/cloudevents+json" | STRUCTURED => from_json(&body)?,
            _ => Event::opaque(format, body),
        };
        event.traceparent = traceparent;
        return Ok(Some(event));
    }
    if event.get("specversion").is_none() {
        return Ok(None);
    }
    if let Some(content_type) = content_type {
        event.set("datacontenttype", content_type);
    }
    event.data = body;
    event.traceparent = traceparent;
    event.check()?;
    Ok(Some(event))
}

/// The headers and the body of one event in binary mode.
pub(crate) fn to_binary(event: &Event) -> (Headers, Bytes) {
    if let Some(content_type) = &event.opaque {
        return (vec![("content-type".to_owned(), content_type.clone())], event.data.clone().unwrap_or_default());
    }
    let mut headers = Headers::new();
    for (name, value) in event.attributes() {
        if name == "datacontenttype" {
            headers.push(("content-type".to_owned(), value.to_string()));
        } else {
            headers.push((format!("ce-{name}"), encode_value(&value.to_string())));
        }
    }
    (headers, event.data.clone().unwrap_or_default())
}

/// One event in structured mode.
pub(crate) fn to_structured(event: &Event) -> (Headers, Bytes) {
    if event.opaque.is_some() {
        return to_binary(event);
    }
    (vec![("content-type".to_owned(), "application/cloudevents+json".to_owned())], to_json(event).into())
}

pub(crate) fn to_batched(events: &[&Event]) -> (Headers, Bytes) {
    let content_type = "application/cloudevents-batch+json".to_owned();
    (vec![("content-type".to_owned(), content_type)], to_batch(events.iter().copied()).into())
}

fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

/// Percent-encodes what a header cannot carry: space, double quote, percent and everything outside printable ASCII.
pub fn encode_value(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if matches!(byte, 0x21..=0x7e) && byte != b'"' && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Undoes [`encode_value`]. A malformed sequence stays as it is.
pub fn decode_value(value: &str) -> String {
    if !value.contains(['%', '"']) {
        return value.to_owned();
    }
    let value = value.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(value);
    let bytes = value.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        let hex = hex.filter(|hex| bytes[at] == b'%' && hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_value_is_encoded_and_decoded() {
        for (plain, encoded) in
            [("Euro €", "Euro%20%E2%82%AC"), ("100%", "100%25"), ("a\"b", "a%22b"), ("plain", "plain")]
        {
            assert_eq!(encode_value(plain), encoded);
            assert_eq!(decode_value(encoded), plain);
        }
        assert_eq!(decode_value("50%zz"), "50%zz");
        assert_eq!(decode_value("50%+1"), "50%+1");
    }

    #[test]
    fn binary_event_survives_the_round_trip() {
        let event = Event::new("t", "/s", "1").with("subject", "ä b").with_data("text/plain", "hello");
        let (headers, body) = to_binary(&event);
        let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        assert_eq!(from_headers(headers, Some(body)).unwrap().unwrap(), event);
    }

    #[test]
    fn unknown_format_is_forwarded_untouched() {
        let headers = [("Content-Type", "application/cloudevents+avro")];
        let event = from_headers(headers, Some(Bytes::from_static(b"\x01"))).unwrap().unwrap();
        let (headers, body) = to_structured(&event);
        assert_eq!(headers[0].1, "application/cloudevents+avro");
        assert_eq!(&body[..], b"\x01");
    }

    #[test]
    fn plain_message_is_no_cloud_event() {
        assert_eq!(from_headers([("content-type", "text/plain")], Some(Bytes::from_static(b"x"))).unwrap(), None);
    }
}
