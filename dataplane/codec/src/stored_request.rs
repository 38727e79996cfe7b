//! An HTTP request as a log record, and the response to it: how requests are stored that are sent to a Service later.
//!
//! Both are records of an event ([`record`](crate::record)), so that they are kept, traced and retried like one. Method, target
//! and host of a request, and the status of a response, are attributes. The header fields of both are the record's extension
//! headers, and the body is its data, unchanged.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use crate::cloudevent::{AttributeKind, CloudEvent, CloudEventAttribute, ContentMode, EventData};
use crate::encode::EncodedEvent;
use crate::hop_fields::is_hop_field;
use crate::http::LocalResponse;
use crate::record::{EventRecord, ExtensionHeader, encode_head, is_of_a_copy};

/// The type of a request's record.
pub const REQUEST_TYPE: &str = "dev.sluicegate.http.request";
/// The type of a response's record.
pub const RESPONSE_TYPE: &str = "dev.sluicegate.http.response";

const METHOD: &str = "httpmethod";
const TARGET: &str = "httptarget";
const HOST: &str = "httphost";
const STATUS: &str = "httpstatus";

/// Results are below this path, at each host of the Service.
pub const RESULTS_PATH: &str = "/.sluicegate/requests/";

/// The name of a stored request: 128 random bits, because a client that knows it may read the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u128);

impl RequestId {
    const DIGITS: usize = 32;

    #[must_use]
    pub fn of_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// As [`fmt::Display`] writes it, and nothing else: an id has one name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = text.len() == Self::DIGITS && text.bytes().all(is_digit);
        is_id.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The methods of requests that are stored: those that are not safe (RFC 9110, 9.2.1) and have no meaning for one connection only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredMethod {
    Post,
    Put,
    Patch,
    Delete,
}

impl StoredMethod {
    pub const ALL: [Self; 4] = [Self::Post, Self::Put, Self::Patch, Self::Delete];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == name)
    }
}

/// A client's request.
#[derive(Debug, Clone, Copy)]
pub struct RequestToStore<'a> {
    pub id: RequestId,
    /// The Service that it is for, as a URI reference.
    pub source: &'a str,
    pub method: StoredMethod,
    /// Path and query.
    pub target: &'a str,
    /// The client's Host.
    pub host: &'a str,
    pub headers: &'a [(&'a str, &'a [u8])],
}

/// The part of a request's record before its body.
#[must_use]
pub fn encode_request(request: &RequestToStore<'_>) -> Vec<u8> {
    let id = request.id.to_string();
    let attributes = [
        ("specversion", "1.0"),
        ("id", &id),
        ("source", request.source),
        ("type", REQUEST_TYPE),
        (METHOD, request.method.as_str()),
        (TARGET, request.target),
        (HOST, request.host),
    ];
    encode_head(&event(&attributes), &stored_fields(request.headers.iter().copied()), 0)
}

/// The part of a response's record before its body.
#[must_use]
pub fn encode_response(id: RequestId, source: &str, response: &LocalResponse) -> Vec<u8> {
    let (id, status) = (id.to_string(), response.status.to_string());
    let attributes =
        [("specversion", "1.0"), ("id", &*id), ("source", source), ("type", RESPONSE_TYPE), (STATUS, &status)];
    let fields = response.headers.iter().map(|(name, value)| (&**name, &**value));
    encode_head(&event(&attributes), &stored_fields(fields), 0)
}

/// Bytes that the fields of a message take in its record.
#[must_use]
pub fn fields_bytes(headers: &[(&str, &[u8])]) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

fn event<'a>(attributes: &[(&'static str, &'a str)]) -> CloudEvent<'a> {
    let attribute = |(name, value): &(&'static str, &'a str)| CloudEventAttribute {
        name: (*name).into(),
        value: (*value).into(),
        kind: AttributeKind::String,
    };
    let attributes = attributes.iter().map(attribute).collect();
    CloudEvent { mode: ContentMode::Binary, attributes, data: EventData::Bytes(Cow::Borrowed(&[])) }
}

/// The fields that are stored: none of the connection's, and none that a record cannot hold.
fn stored_fields<'a>(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<ExtensionHeader<'a>> {
    let is_stored = |name: &str, value: &[u8]| {
        !is_hop_field(name) && u8::try_from(name.len()).is_ok() && u16::try_from(value.len()).is_ok()
    };
    fields
        .filter(|(name, value)| is_stored(name, value))
        .map(|(name, value)| ExtensionHeader { name: name.to_ascii_lowercase().into(), value: value.into() })
        .collect()
}

/// A request from its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRequest {
    pub id: RequestId,
    pub method: StoredMethod,
    pub target: Box<str>,
    pub host: Box<str>,
}

impl StoredRequest {
    /// `None`: it is no record of a request.
    #[must_use]
    pub fn read(record: &EventRecord) -> Option<Self> {
        if record.attribute("type") != Some(REQUEST_TYPE) {
            return None;
        }
        Some(Self {
            id: id(record)?,
            method: StoredMethod::parse(record.attribute(METHOD)?)?,
            target: record.attribute(TARGET)?.into(),
            host: record.attribute(HOST)?.into(),
        })
    }
}

/// The id of a request's or response's record.
#[must_use]
pub fn id(record: &EventRecord) -> Option<RequestId> {
    RequestId::parse(record.attribute("id")?)
}

#[must_use]
pub fn is_response(record: &EventRecord) -> bool {
    record.attribute("type") == Some(RESPONSE_TYPE)
}

/// Header fields and body of a stored request, as they are sent.
#[must_use]
pub fn encode(record: &EventRecord) -> EncodedEvent {
    let mut out = EncodedEvent { fields: Vec::new(), body: record.data_bytes() };
    for ExtensionHeader { name, value } in record.extension_headers().filter(|field| !is_of_a_copy(&field.name)) {
        out.push(&name, &value);
    }
    out
}

/// A response from its record.
#[must_use]
pub fn read_response(record: &EventRecord) -> Option<LocalResponse> {
    let status = record.attribute(STATUS).filter(|_| is_response(record))?.parse().ok()?;
    let headers = record
        .extension_headers()
        .map(|field| (Box::from(&*field.name), Bytes::copy_from_slice(&field.value)))
        .collect();
    Some(LocalResponse { status, headers, body: record.data_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::addressed;

    fn record(mut head: Vec<u8>, body: &[u8]) -> EventRecord {
        head.extend(body);
        EventRecord::decode(head.into()).unwrap()
    }

    fn request<'a>(headers: &'a [(&'a str, &'a [u8])]) -> RequestToStore<'a> {
        RequestToStore {
            id: RequestId::of_bits(7),
            source: "/ns/app",
            method: StoredMethod::Patch,
            target: "/a?b=c",
            host: "app.ns.localhost",
            headers,
        }
    }

    #[test]
    fn request_is_read_as_it_was_stored() {
        let headers: [(&str, &[u8]); 6] = [
            ("Content-Type", b"text/plain"),
            ("Connection", b"close"),
            ("Content-Length", b"4"),
            ("Sluicegate-Internal", b"key"),
            ("X-One", b"1"),
            ("x-one", b"\xff"),
        ];
        let stored = record(encode_request(&request(&headers)), b"body");
        let read = StoredRequest::read(&stored).unwrap();
        assert_eq!((read.id, read.method), (RequestId::of_bits(7), StoredMethod::Patch));
        assert_eq!((&*read.target, &*read.host), ("/a?b=c", "app.ns.localhost"));
        let sent = encode(&stored);
        assert_eq!(sent.fields, b"content-type: text/plain\r\nx-one: 1\r\nx-one: \xff\r\n");
        assert_eq!(&*sent.body, b"body");
        assert!(read_response(&stored).is_none() && !is_response(&stored));
        let copy = EventRecord::decode(addressed(&stored, "one", (0, 1)).into()).unwrap();
        assert_eq!((encode(&copy), StoredRequest::read(&copy)), (sent, Some(read)), "a redrive sends the same");
    }

    #[test]
    fn response_is_read_as_it_was_stored() {
        let response = LocalResponse { status: 201, headers: Vec::new(), body: Bytes::new() }
            .with("location", "/x")
            .with("Transfer-Encoding", "chunked");
        let stored = record(encode_response(RequestId::of_bits(8), "/ns/app", &response), b"done");
        let read = read_response(&stored).unwrap();
        assert_eq!((read.status, &*read.body), (201, &b"done"[..]));
        assert_eq!(read.headers, [("location".into(), Bytes::from_static(b"/x"))]);
        assert_eq!(id(&stored), Some(RequestId::of_bits(8)));
        assert!(StoredRequest::read(&stored).is_none());
    }

    #[test]
    fn id_has_one_text() {
        let id = RequestId::of_bits(0xabc);
        assert_eq!(RequestId::parse(&id.to_string()), Some(id));
        let text = id.to_string();
        for wrong in ["", &text[1..], &text.to_uppercase(), &format!("{text}0"), &format!("+{}", &text[1..])] {
            assert_eq!(RequestId::parse(wrong), None, "{wrong}");
        }
    }
}
