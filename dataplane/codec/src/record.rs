//! One event as one log record.
//!
//! ```text
//! 0  version      u8   1
//! 1  mode         u8   0 binary, 1 structured; with 0x80: a copy for one subscriber only, named by the first extension
//!                 header ([`ADDRESSEE`]); the second ([`ORIGINAL`]) names the original event; older copies lack it
//! 2  hops left    u8   0 on a stream without loop guard, unless the event came from one of our streams
//! 3  data         u8   0 none, 1 bytes, 2 JSON text
//! 4  attributes   u16  count, little endian like all numbers here
//! 6  headers      u16  count of extension headers
//! 8  attributes   each: kind u8 (0 string, 1 integer, 2 boolean), name length u8, value length u32,
//!                 name, value (both UTF-8)
//!    headers      each: name length u8, value length u16, name (UTF-8), value
//!    data         the rest
//! ```
//! The data is last and unchanged, so that a delivery sends a slice of the log. Decoding checks
//! every length once and never panics, whatever the disk returns.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Range;

use bytes::Bytes;
use jiff::Timestamp;

use super::cloudevent::{ADDED, AttributeKind, CloudEvent, CloudEventAttribute, ContentMode, EventData};

/// The extension header that names the only subscriber of a replayed event. Never sent.
pub const ADDRESSEE: &str = "sluicegate-addressee";

/// The extension header with the original of a copy: `CORE:POSITION`. Never sent.
pub const ORIGINAL: &str = "sluicegate-original";

/// The extension with the time at which a broker accepted the event (X-BRK-05). It is no part of the
/// record: the log stores it.
pub const ARRIVAL_ATTRIBUTE: &str = ADDED[0];

/// Identifies an event: the number of the core whose log contains it, and its position.
pub type EventPosition = (usize, u64);

const VERSION: u8 = 1;
const ADDRESSED: u8 = 0x80;
const FIXED_BYTES: usize = 8;
const ATTRIBUTE_FIXED_BYTES: usize = 6;
const EXTENSION_HEADER_FIXED_BYTES: usize = 3;

/// A header that is forwarded with the event: tracing, `knative-*` (X-DLV-09).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionHeader<'a> {
    /// Lower case.
    pub name: Cow<'a, str>,
    pub value: Cow<'a, [u8]>,
}

/// The part of a record before the data; the caller appends the unchanged data.
#[must_use]
pub fn encode_head(event: &CloudEvent<'_>, headers: &[ExtensionHeader<'_>], hops_left: u8) -> Vec<u8> {
    let attributes: usize = event.attributes.iter().map(|a| ATTRIBUTE_FIXED_BYTES + a.name.len() + a.value.len()).sum();
    let header_bytes: usize = headers.iter().map(|c| EXTENSION_HEADER_FIXED_BYTES + c.name.len() + c.value.len()).sum();
    let mut out = Vec::with_capacity(FIXED_BYTES + attributes + header_bytes); // the record is built here
    let (mode, data) = (u8::from(event.mode == ContentMode::Structured), data_code(&event.data));
    out.extend([VERSION, mode, hops_left, data]);
    out.extend(short(event.attributes.len()).to_le_bytes());
    out.extend(short(headers.len()).to_le_bytes());
    for CloudEventAttribute { name, value, kind } in &event.attributes {
        let length = u32::try_from(value.len()).expect("a value came in a request, which is smaller than 4 GiB");
        out.extend([kind_code(*kind), byte(name.len())]);
        out.extend(length.to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(value.as_bytes());
    }
    for ExtensionHeader { name, value } in headers {
        out.push(byte(name.len()));
        out.extend(short(value.len()).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(&**value);
    }
    out
}

/// A copy of the event at `original` for one subscriber only, whatever other subscribers the stream has.
#[must_use]
pub fn addressed(record: &EventRecord, subscriber: &str, original: EventPosition) -> Vec<u8> {
    let (core, position) = original;
    let to = ExtensionHeader { name: ADDRESSEE.into(), value: subscriber.as_bytes().into() };
    let of = ExtensionHeader { name: ORIGINAL.into(), value: format!("{core}:{position}").into_bytes().into() };
    let others = record.extension_headers().filter(|extension_header| !is_of_a_copy(&extension_header.name));
    let headers: Vec<_> = [to, of].into_iter().chain(others).collect();
    let mut bytes = encode_head(&record.event(), &headers, record.hops_left);
    bytes[1] |= ADDRESSED;
    bytes.extend_from_slice(&record.data_bytes());
    bytes
}

/// Whether these bytes are a copy's, if they are a record: without decoding it.
#[must_use]
pub fn is_addressed(bytes: &[u8]) -> bool {
    bytes.get(1).is_some_and(|mode| mode & ADDRESSED != 0)
}

/// Whether an extension header is internal to copies and must not be sent.
#[must_use]
pub fn is_of_a_copy(extension_header: &str) -> bool {
    extension_header == ADDRESSEE || extension_header == ORIGINAL
}

/// A decoded record: views into the log.
#[derive(Debug, Clone)]
pub struct EventRecord {
    bytes: Bytes,
    pub mode: ContentMode,
    pub hops_left: u8,
    /// Whether it is for one subscriber only, [`EventRecord::addressee`].
    pub is_addressed: bool,
    data_code: u8,
    attributes: Range<usize>,
    extension_headers: Range<usize>,
    /// When a broker accepted it, in milliseconds since 1970.
    arrived_ms: Option<u64>,
    /// The same as a text, computed on first use.
    arrival: OnceCell<Option<Box<str>>>,
}

/// The record cannot be decoded: a newer version wrote it, or there is a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptRecord {
    #[error("the record has version {0}, this program reads 1")]
    Version(u8),
    #[error("the record ends early or has an unknown code")]
    Shape,
    /// It may be valid: a core stopped at it, so it is not decoded again.
    #[error("a core stopped at this event before the restart")]
    Stalled,
}

impl EventRecord {
    pub fn decode(bytes: Bytes) -> Result<Self, CorruptRecord> {
        let fixed: [u8; FIXED_BYTES] = *bytes.first_chunk().ok_or(CorruptRecord::Shape)?;
        let [version, mode, hops_left, data_code, a0, a1, c0, c1] = fixed;
        if version != VERSION {
            return Err(CorruptRecord::Version(version));
        }
        let (is_addressed, mode) = (mode & ADDRESSED != 0, mode & !ADDRESSED);
        if mode > 1 || data_code > 2 {
            return Err(CorruptRecord::Shape);
        }
        let mut rest = &bytes[FIXED_BYTES..];
        for _ in 0..u16::from_le_bytes([a0, a1]) {
            take_attribute(&mut rest).ok_or(CorruptRecord::Shape)?;
        }
        let attributes_end = bytes.len() - rest.len();
        for _ in 0..u16::from_le_bytes([c0, c1]) {
            take_extension_header(&mut rest).ok_or(CorruptRecord::Shape)?;
        }
        let headers_end = bytes.len() - rest.len();
        if (data_code == 0 && !rest.is_empty()) || (data_code == 2 && std::str::from_utf8(rest).is_err()) {
            return Err(CorruptRecord::Shape);
        }
        let mode = if mode == 1 { ContentMode::Structured } else { ContentMode::Binary };
        let (attributes, headers) = (FIXED_BYTES..attributes_end, attributes_end..headers_end);
        Ok(Self {
            bytes,
            mode,
            hops_left,
            is_addressed,
            data_code,
            attributes,
            extension_headers: headers,
            arrived_ms: None,
            arrival: OnceCell::new(),
        })
    }

    /// The event as its broker's subscribers see it: with [`ARRIVAL_ATTRIBUTE`], replacing a value set by
    /// its sender.
    #[must_use]
    pub fn arrived_at(self, ms: u64) -> Self {
        Self { arrived_ms: Some(ms), ..self }
    }

    /// The attributes in the order received.
    pub fn attributes(&self) -> impl Iterator<Item = CloudEventAttribute<'_>> {
        let mut rest = &self.bytes[self.attributes.clone()];
        std::iter::from_fn(move || take_attribute(&mut rest))
    }

    /// Size of all attributes in the record.
    #[must_use]
    pub fn attributes_len(&self) -> usize {
        self.attributes.len()
    }

    pub fn extension_headers(&self) -> impl Iterator<Item = ExtensionHeader<'_>> {
        let mut rest = &self.bytes[self.extension_headers.clone()];
        std::iter::from_fn(move || take_extension_header(&mut rest))
    }

    /// The only subscriber that it is for, if it is for one only.
    #[must_use]
    pub fn addressee(&self) -> Option<String> {
        if !self.is_addressed {
            return None;
        }
        let first = self.extension_headers().next().filter(|extension_header| extension_header.name == ADDRESSEE)?;
        String::from_utf8(first.value.into_owned()).ok()
    }

    /// The event that it is a copy of, if it is one with a known original.
    #[must_use]
    pub fn original(&self) -> Option<EventPosition> {
        if !self.is_addressed {
            return None;
        }
        let second = self.extension_headers().nth(1).filter(|extension_header| extension_header.name == ORIGINAL)?;
        let (core, position) = std::str::from_utf8(&second.value).ok()?.split_once(':')?;
        Some((core.parse().ok()?, position.parse().ok()?))
    }

    /// An attribute's canonical string form.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.attribute_bytes(name)?).ok()
    }

    /// The same for comparisons: valid UTF-8, as checked by [`EventRecord::decode`].
    #[must_use]
    pub fn attribute_bytes(&self, name: &str) -> Option<&[u8]> {
        if let Some(ms) = self.arrived_ms.filter(|_| name == ARRIVAL_ATTRIBUTE) {
            return self.arrival.get_or_init(|| time_text(ms)).as_ref().map(|text| text.as_bytes());
        }
        let mut rest = &self.bytes[self.attributes.clone()];
        loop {
            let (_, found, value) = split_attribute(&mut rest)?;
            if found == name.as_bytes() {
                return Some(value);
            }
        }
    }

    /// Whether the data came in an envelope, as JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.data_code == 2
    }

    /// Size of the whole record.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The payload without a copy.
    #[must_use]
    pub fn data_bytes(&self) -> Bytes {
        self.bytes.slice(self.extension_headers.end..)
    }

    /// The event as it was received.
    #[must_use]
    pub fn event(&self) -> CloudEvent<'_> {
        let data = &self.bytes[self.extension_headers.end..];
        let data = match self.data_code {
            0 => EventData::None,
            2 => EventData::Json(std::str::from_utf8(data).unwrap_or_default()), // checked by decode
            _ => EventData::Bytes(Cow::Borrowed(data)),
        };
        CloudEvent { mode: self.mode, attributes: self.attributes().collect(), data }
    }
}

/// Milliseconds since 1970 in RFC 3339 format; `None` if it is no valid date.
#[must_use]
pub fn time_text(ms: u64) -> Option<Box<str>> {
    let time = Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()?;
    Some(time.to_string().into())
}

fn take_attribute<'a>(rest: &mut &'a [u8]) -> Option<CloudEventAttribute<'a>> {
    let (kind, name, value) = split_attribute(rest)?;
    let kind = match kind {
        0 => AttributeKind::String,
        1 => AttributeKind::Integer,
        2 => AttributeKind::Boolean,
        _ => return None,
    };
    let (name, value) = (std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?);
    Some(CloudEventAttribute { name: name.into(), value: value.into(), kind })
}

fn split_attribute<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8], &'a [u8])> {
    let (fixed, tail) = rest.split_first_chunk::<ATTRIBUTE_FIXED_BYTES>()?;
    let [kind, name_length, v0, v1, v2, v3] = *fixed;
    let (name, tail) = tail.split_at_checked(name_length.into())?;
    let value_length = usize::try_from(u32::from_le_bytes([v0, v1, v2, v3])).ok()?;
    let (value, tail) = tail.split_at_checked(value_length)?;
    *rest = tail;
    Some((kind, name, value))
}

fn take_extension_header<'a>(rest: &mut &'a [u8]) -> Option<ExtensionHeader<'a>> {
    let (fixed, tail) = rest.split_first_chunk::<EXTENSION_HEADER_FIXED_BYTES>()?;
    let [name_length, v0, v1] = *fixed;
    let (name, tail) = tail.split_at_checked(name_length.into())?;
    let (value, tail) = tail.split_at_checked(u16::from_le_bytes([v0, v1]).into())?;
    let name = std::str::from_utf8(name).ok()?;
    *rest = tail;
    Some(ExtensionHeader { name: name.into(), value: value.into() })
}

const fn kind_code(kind: AttributeKind) -> u8 {
    match kind {
        AttributeKind::String => 0,
        AttributeKind::Integer => 1,
        AttributeKind::Boolean => 2,
    }
}

const fn data_code(data: &EventData<'_>) -> u8 {
    match data {
        EventData::None => 0,
        EventData::Bytes(_) => 1,
        EventData::Json(_) => 2,
    }
}

fn byte(length: usize) -> u8 {
    u8::try_from(length).expect("names are 255 bytes at most, checked where they are parsed")
}

fn short(length: usize) -> u16 {
    u16::try_from(length).expect("attributes and extension headers are bounded far below 65,536 where they are parsed")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute() -> impl Strategy<Value = CloudEventAttribute<'static>> {
        let kind = prop_oneof![Just(AttributeKind::String), Just(AttributeKind::Integer), Just(AttributeKind::Boolean)];
        ("[a-z0-9]{1,20}", "\\PC{0,40}", kind).prop_map(|(name, value, kind)| CloudEventAttribute {
            name: name.into(),
            value: value.into(),
            kind,
        })
    }

    fn data() -> impl Strategy<Value = EventData<'static>> {
        prop_oneof![
            Just(EventData::None),
            any::<Vec<u8>>().prop_map(|bytes| EventData::Bytes(bytes.into())),
            Just(EventData::Json("{ \"a\" :\t1 }")),
        ]
    }

    fn whole(event: &CloudEvent<'_>, headers: &[ExtensionHeader<'_>], hops_left: u8) -> Bytes {
        let mut bytes = encode_head(event, headers, hops_left);
        bytes.extend(event.data.bytes());
        bytes.into()
    }

    #[test]
    fn addressed_copy_is_event_with_addressee() {
        let event = CloudEvent {
            mode: ContentMode::Structured,
            attributes: vec![CloudEventAttribute { name: "id".into(), value: "1".into(), kind: AttributeKind::String }],
            data: EventData::Json("{ }"),
        };
        let header_bytes = ExtensionHeader { name: "x-request-id".into(), value: b"7"[..].into() };
        let first = EventRecord::decode(whole(&event, std::slice::from_ref(&header_bytes), 9)).unwrap();
        assert_eq!((first.addressee(), first.original()), (None, None));
        let copy = EventRecord::decode(addressed(&first, "one", (1, 77)).into()).unwrap();
        assert_eq!((copy.addressee().as_deref(), copy.hops_left, copy.event()), (Some("one"), 9, event));
        assert_eq!(copy.original(), Some((1, 77)));
        let again = EventRecord::decode(addressed(&copy, "two", (0, 8)).into()).unwrap();
        assert_eq!((again.addressee().as_deref(), again.original()), (Some("two"), Some((0, 8))));
        assert_eq!(again.extension_headers().skip(2).collect::<Vec<_>>(), [header_bytes]);
    }

    /// Earlier versions wrote copies without their original, and logs still contain such copies.
    #[test]
    fn copy_without_original_is_decoded() {
        let event = CloudEvent { mode: ContentMode::Binary, attributes: Vec::new(), data: EventData::None };
        for second in [None, Some((ORIGINAL, "")), Some((ORIGINAL, "x:1")), Some(("x-request-id", "0:1"))] {
            let extension_header = |(name, value): (&'static str, &'static str)| ExtensionHeader {
                name: name.into(),
                value: value.as_bytes().into(),
            };
            let header_bytes: Vec<_> =
                [Some((ADDRESSEE, "one")), second].into_iter().flatten().map(extension_header).collect();
            let mut bytes = whole(&event, &header_bytes, 0).to_vec();
            bytes[1] |= ADDRESSED;
            let copy = EventRecord::decode(bytes.into()).unwrap();
            assert_eq!((copy.addressee().as_deref(), copy.original()), (Some("one"), None), "{second:?}");
        }
    }

    /// X-BRK-05: filters see what subscribers are sent.
    #[test]
    fn record_at_broker_has_arrival_time() {
        let own =
            CloudEventAttribute { name: ARRIVAL_ATTRIBUTE.into(), value: "mine".into(), kind: AttributeKind::String };
        let event = CloudEvent { mode: ContentMode::Binary, attributes: vec![own], data: EventData::None };
        let record = EventRecord::decode(whole(&event, &[], 0)).unwrap();
        assert_eq!(record.attribute(ARRIVAL_ATTRIBUTE), Some("mine"));
        let arrived = record.clone().arrived_at(1_700_000_000_123);
        assert_eq!(arrived.attribute(ARRIVAL_ATTRIBUTE), Some("2023-11-14T22:13:20.123Z"));
        assert_eq!(arrived.event(), event, "it is no part of the record");
        assert_eq!(record.arrived_at(u64::MAX).attribute(ARRIVAL_ATTRIBUTE), None);
    }

    proptest! {
        /// EV-RTE-09: the log returns what was stored, data byte for byte.
        #[test]
        fn record_round_trip_keeps_event(
            structured: bool,
            attributes in proptest::collection::vec(attribute(), 0..12),
            data in data(),
            hops: u8,
            value in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let mode = if structured { ContentMode::Structured } else { ContentMode::Binary };
            let event = CloudEvent { mode, attributes, data };
            let headers = [ExtensionHeader { name: "traceparent".into(), value: value.into() }];
            let record = EventRecord::decode(whole(&event, &headers, hops)).unwrap();
            prop_assert_eq!(record.event(), event.clone());
            prop_assert_eq!(record.extension_headers().collect::<Vec<_>>(), headers);
            prop_assert_eq!(record.hops_left, hops);
            prop_assert_eq!(record.data_bytes(), event.data.bytes());
        }

        #[test]
        fn record_decoder_never_panics(mut bytes: Vec<u8>, ours: bool) {
            if let (true, Some(first)) = (ours, bytes.first_mut()) {
                *first = VERSION; // or most cases end at the first byte
            }
            if let Ok(record) = EventRecord::decode(bytes.into()) {
                let _ = (record.event(), record.attribute("id"));
            }
        }

        #[test]
        fn damaged_record_never_panics_decoder(cut in 0_usize..120, change: u8) {
            let attributes = vec![CloudEventAttribute { name: "id".into(), value: "1".into(), kind: AttributeKind::String }];
            let event = CloudEvent { mode: ContentMode::Binary, attributes, data: EventData::Json("[1]") };
            let bytes = whole(&event, &[], 3);
            let _ = EventRecord::decode(bytes.slice(..cut.min(bytes.len())));
            let mut changed = bytes.to_vec();
            let at = cut % changed.len();
            changed[at] = change;
            if let Ok(record) = EventRecord::decode(changed.into()) {
                let _ = record.event();
            }
        }
    }

    #[test]
    fn newer_record_version_is_rejected() {
        assert_eq!(EventRecord::decode(Bytes::from_static(&[2; 16])).unwrap_err(), CorruptRecord::Version(2));
        assert_eq!(EventRecord::decode(Bytes::new()).unwrap_err(), CorruptRecord::Shape);
    }
}
