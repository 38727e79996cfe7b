//! Encodes an event as an outgoing HTTP request: headers and body, in binary or structured mode.
//!
//! The data is sent as it was received: in the received mode, a binary body is a slice of the log and JSON
//! data keeps its spacing. In the other mode the rules of the JSON event format apply: JSON data stays
//! JSON, all else is base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;

use super::cloudevent::structured::{decoded, is_json, json_string};
use super::cloudevent::{AttributeKind, CloudEventAttribute, ContentKind, ContentMode, carriage};
use super::limits::{BINARY_ATTRIBUTES_MAX, BINARY_FIELDS_BYTES_MAX};
use super::record::EventRecord;

/// Size of the header fields of most events, including tracing.
const FIELDS_USUAL_BYTES: usize = 512;
/// Size of the fields that an attempt adds to most events.
const FIELDS_ADDED_BYTES: usize = 192;

/// A request without its first line, Host and Content-Length, which the sender adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EncodedEvent {
    /// Header fields in wire format, each with its line end: one allocation for all of them.
    pub fields: Vec<u8>,
    pub body: Bytes,
}

impl EncodedEvent {
    /// Adds a field. Values come from parsed heads and checked attributes, so none contains a line end.
    pub fn push(&mut self, name: &str, value: &[u8]) {
        self.begin(&[name]);
        self.fields.extend_from_slice(value);
        self.end();
    }

    /// The fields in order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.split(|byte| *byte == b'\n').filter_map(|line| {
            let colon = memchr::memchr(b':', line)?;
            let name = std::str::from_utf8(&line[..colon]).ok()?;
            Some((name, line[colon + 1..].trim_ascii()))
        })
    }

    /// The first field of that name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// A copy with capacity for the fields that each attempt adds, so that it is one allocation.
    #[must_use]
    pub fn again(&self) -> Self {
        let mut fields = Vec::with_capacity(self.fields.len() + FIELDS_ADDED_BYTES);
        fields.extend_from_slice(&self.fields);
        Self { fields, body: self.body.clone() }
    }

    fn begin(&mut self, name: &[&str]) {
        for part in name {
            self.fields.extend_from_slice(part.as_bytes());
        }
        self.fields.extend_from_slice(b": ");
    }

    fn end(&mut self) {
        self.fields.extend_from_slice(b"\r\n");
    }
}

/// Encodes the event with `extra` attributes (which replace its own of the same name). Uses an envelope,
/// regardless of `mode`, where header fields cannot carry the event.
#[must_use]
pub fn encode(record: &EventRecord, mode: ContentMode, extra: &[CloudEventAttribute<'_>]) -> EncodedEvent {
    if mode == ContentMode::Binary && can_be_binary(record) {
        let out = binary(record, extra);
        if out.fields.len() <= BINARY_FIELDS_BYTES_MAX {
            return out;
        }
    }
    structured(record, extra)
}

/// Data with a Content-Type of an envelope would be taken for the event: the Content-Type determines the
/// mode.
fn can_be_binary(record: &EventRecord) -> bool {
    let media = record.attribute("datacontenttype");
    carriage(media.map(str::as_bytes)) == ContentKind::Binary
        && record.attributes_len() <= BINARY_FIELDS_BYTES_MAX // fields take as much
        && record.attributes().count() <= BINARY_ATTRIBUTES_MAX
}

fn attributes<'e>(
    record: &'e EventRecord,
    extra: &'e [CloudEventAttribute<'e>],
) -> impl Iterator<Item = CloudEventAttribute<'e>> {
    let own = record.attributes().filter(|own| extra.iter().all(|more| more.name != own.name));
    own.chain(extra.iter().cloned())
}

fn binary(record: &EventRecord, extra: &[CloudEventAttribute<'_>]) -> EncodedEvent {
    let mut out = EncodedEvent { fields: Vec::with_capacity(FIELDS_USUAL_BYTES), body: Bytes::new() };
    let (body, decoded) = binary_body(record);
    let mut typed = false;
    for CloudEventAttribute { name, value, .. } in attributes(record, extra) {
        if name == "datacontenttype" {
            typed = true;
            out.push("Content-Type", value.as_bytes());
        } else if !(decoded && name == "datacontentencoding") {
            out.begin(&["ce-", &name]);
            super::cloudevent::put_header_value(&mut out.fields, &value);
            out.end();
        }
    }
    if !typed && record.mode == ContentMode::Structured && !body.is_empty() {
        out.push("Content-Type", b"application/json"); // the default of an envelope without a type
    }
    out.body = body;
    out
}

/// The body in binary mode, and whether the base64 of a 0.3 event was decoded.
fn binary_body(record: &EventRecord) -> (Bytes, bool) {
    if !record.is_json() {
        return (record.data_bytes(), false); // the usual case
    }
    let event = record.event();
    let super::cloudevent::EventData::Json(text) = event.data else { return (record.data_bytes(), false) };
    if event.is_encoded()
        && let Some(bytes) = decoded(text)
    {
        return (bytes.into(), true);
    }
    let string = json_string(text);
    let is_text = event.attribute("datacontenttype").is_some_and(|media| !is_json_type(media));
    match string {
        Some(text) if is_text => (Bytes::from(text.into_owned()), false),
        _ => (record.data_bytes(), false),
    }
}

fn structured(record: &EventRecord, extra: &[CloudEventAttribute<'_>]) -> EncodedEvent {
    let data = record.data_bytes();
    let mut body = Vec::with_capacity(256 + data.len()); // the envelope is built here: one copy of the data
    body.push(b'{');
    for CloudEventAttribute { name, value, kind } in attributes(record, extra) {
        if body.len() > 1 {
            body.push(b',');
        }
        put_json_string(&mut body, &name);
        body.push(b':');
        match kind {
            AttributeKind::String => put_json_string(&mut body, &value),
            AttributeKind::Integer | AttributeKind::Boolean => body.extend(value.as_bytes()),
        }
    }
    put_data(&mut body, record, &data);
    body.push(b'}');
    let mut out = EncodedEvent { fields: Vec::with_capacity(FIELDS_USUAL_BYTES), body: body.into() };
    out.push("Content-Type", b"application/cloudevents+json");
    out
}

fn put_data(body: &mut Vec<u8>, record: &EventRecord, data: &[u8]) {
    let event = record.event();
    let as_json = match event.data {
        super::cloudevent::EventData::None => return,
        super::cloudevent::EventData::Json(_) => true,
        super::cloudevent::EventData::Bytes(_) => {
            // From an envelope it was base64 and stays so; from binary mode, JSON may be embedded as JSON.
            record.mode == ContentMode::Binary
                && event.attribute("datacontenttype").is_some_and(is_json_type)
                && is_json(data)
        }
    };
    if as_json {
        body.extend(b",\"data\":");
        body.extend(data);
    } else if event.attribute("specversion") == Some("0.3") {
        if event.attribute("datacontentencoding").is_none() {
            body.extend(b",\"datacontentencoding\":\"base64\"");
        }
        body.extend(b",\"data\":\"");
        body.extend(BASE64.encode(data).as_bytes());
        body.push(b'"');
    } else {
        body.extend(b",\"data_base64\":\"");
        body.extend(BASE64.encode(data).as_bytes());
        body.push(b'"');
    }
}

fn put_json_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string has a JSON form and a Vec takes all");
}

fn is_json_type(media: &str) -> bool {
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media == "application/json" || media == "text/json" || media.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::super::cloudevent::{CloudEvent, binary, structured};
    use super::super::record;
    use super::*;

    fn record(event: &CloudEvent<'_>) -> EventRecord {
        let mut bytes = record::encode_head(event, &[], 0);
        bytes.extend(event.data.bytes());
        EventRecord::decode(bytes.into()).unwrap()
    }

    const MINIMAL: [(&str, &[u8]); 4] =
        [("ce-specversion", b"1.0"), ("ce-id", b"1"), ("ce-source", b"/s"), ("ce-type", b"t")];

    /// EV-RTE-09: the body is byte for byte the received one, whatever is in it.
    #[test]
    fn binary_data_is_sent_unchanged() {
        for body in [&b""[..], b"\xff\xfe\x00", b"{ \"a\" :  1 }", b"plain"] {
            let mut input = MINIMAL.to_vec();
            input.push(("content-type", b"application/x-odd; q=\"%20\""));
            input.push(("ce-subject", b"50%25%20%E2%82%AC"));
            let event = binary::parse(input, body).unwrap();
            let out = encode(&record(&event), ContentMode::Binary, &[]);
            assert_eq!(out.body, body);
            assert_eq!(out.header("content-type").unwrap(), b"application/x-odd; q=\"%20\"");
            assert_eq!(binary::parse(out.headers(), &out.body).unwrap(), event);
        }
    }

    /// EV-RTE-09, AMB-45: typed extensions keep their type, JSON data its spacing.
    #[test]
    fn envelope_is_sent_with_same_members() {
        let envelope = br#"{"specversion":"1.0","id":"1","source":"/s","type":"t","n":-7,"b":true,
            "data": { "x" : [ 1.50, "\u00e9" ] } }"#;
        let event = structured::parse(envelope).unwrap();
        let out = encode(&record(&event), ContentMode::Structured, &[]);
        assert_eq!(structured::parse(&out.body).unwrap(), event);
        let text = std::str::from_utf8(&out.body).unwrap();
        assert!(text.contains(r#""n":-7,"b":true"#) && text.contains(r#""data":{ "x" : [ 1.50, "\u00e9" ] }"#));
    }

    #[test]
    fn base64_data_is_raw_only_in_binary_mode() {
        let envelope = br#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AP8="}"#;
        let event = structured::parse(envelope).unwrap();
        let kept = encode(&record(&event), ContentMode::Structured, &[]);
        assert_eq!(structured::parse(&kept.body).unwrap(), event);
        assert_eq!(encode(&record(&event), ContentMode::Binary, &[]).body, &b"\x00\xff"[..]);
    }

    #[test]
    fn json_string_is_text_only_for_text_type() {
        for (media, body) in [("text/plain", "a\n"), ("application/json", "\"a\\n\"")] {
            let envelope = format!(
                r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"{media}","data":"a\n"}}"#
            );
            let event = structured::parse(envelope.as_bytes()).unwrap();
            assert_eq!(encode(&record(&event), ContentMode::Binary, &[]).body, body);
        }
    }

    /// AMB-50: a 0.3 event stays one, with its own base64 attribute.
    #[test]
    fn old_event_changes_mode_but_not_version() {
        let envelope =
            br#"{"specversion":"0.3","id":"1","source":"/s","type":"t","datacontentencoding":"base64","data":"AP8="}"#;
        let event = structured::parse(envelope).unwrap();
        let out = encode(&record(&event), ContentMode::Binary, &[]);
        assert_eq!(out.body, &b"\x00\xff"[..]);
        assert_eq!(out.header("ce-datacontentencoding"), None);
        assert_eq!(out.header("ce-specversion").unwrap(), b"0.3");
        let event = binary::parse(out.headers(), &out.body).unwrap();
        let back = encode(&record(&event), ContentMode::Structured, &[]);
        assert_eq!(structured::parse(&back.body).unwrap().attribute("datacontentencoding"), Some("base64"));
    }

    #[test]
    fn extra_attribute_replaces_own_attribute() {
        let mut input = MINIMAL.to_vec();
        input.push(("ce-knativeerrorcode", b"1"));
        let event = binary::parse(input, b"").unwrap();
        let extra = [CloudEventAttribute {
            name: "knativeerrorcode".into(),
            value: "500".into(),
            kind: AttributeKind::Integer,
        }];
        for mode in [ContentMode::Binary, ContentMode::Structured] {
            let out = encode(&record(&event), mode, &extra);
            let event = match mode {
                ContentMode::Binary => binary::parse(out.headers(), &out.body),
                ContentMode::Structured => structured::parse(&out.body),
            };
            assert_eq!(event.unwrap().attribute("knativeerrorcode"), Some("500"));
        }
    }

    /// EV-RTE-09: in 1.0 `datacontentencoding` is an extension like any other.
    #[test]
    fn encoding_attribute_of_new_event_is_extension() {
        let envelope = br#"{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/plain","datacontentencoding":"base64","data":"aGk="}"#;
        let out = encode(&record(&structured::parse(envelope).unwrap()), ContentMode::Binary, &[]);
        assert_eq!((&*out.body, out.header("ce-datacontentencoding")), (&b"aGk="[..], Some(&b"base64"[..])));
    }

    /// EV-RTE-09: an event that would change as header fields, or make the head too large, is sent in an
    /// envelope.
    #[test]
    fn event_unfit_for_headers_stays_in_envelope() {
        let many: String = (0..BINARY_ATTRIBUTES_MAX).map(|n| format!(r#""x{n}":"","#)).collect();
        let long = format!(r#""long":"{}","#, "x".repeat(BINARY_FIELDS_BYTES_MAX));
        for more in [
            r#""datacontenttype":"application/cloudevents+json","#,
            r#""datacontenttype":"Application/CloudEvents-Batch+JSON; charset=utf-8","#,
            r#""datacontenttype":"application/cloudevents+avro","#,
            &many,
            &long,
        ] {
            let envelope = format!(r#"{{{more}"specversion":"1.0","id":"1","source":"/s","type":"t","data":[]}}"#);
            let event = structured::parse(envelope.as_bytes()).unwrap();
            let out = encode(&record(&event), ContentMode::Binary, &[]);
            assert_eq!(out.header("content-type").unwrap(), b"application/cloudevents+json");
            assert_eq!(structured::parse(&out.body).unwrap(), event, "{more}");
        }
    }
}
