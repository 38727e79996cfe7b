//! The requests of a delivery, and the content of a response.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use codec::cloudevent::{
    ADDED, AttributeKind, CloudEvent, CloudEventAttribute, ContentKind, MalformedEvent, binary, carriage, content_type,
    is_compressed, structured,
};
use codec::encode::{EncodedEvent, encode};
use codec::hop_fields::INTERNAL_HEADER;
use codec::http::LocalResponse;
use codec::record::EventRecord;
use contract::post_error::PostError;
use contract::table::DeliveryTarget;
use fastrand::Rng;

use super::loaded_event::LoadedEvent;
use crate::extension_headers;
use crate::ingress::{HOPS_HEADER, NAMESPACE_HEADER};
use crate::limits::{ERROR_DATA_BYTES_MAX, HOPS_MAX};

/// Only a subscriber is asked for a reply (DP-REPLY-01 to -03).
pub fn request_reply(out: &mut EncodedEvent) {
    out.push("Prefer", b"reply");
}

/// A request that forwards a reply.
#[must_use]
pub fn to_reply_target(
    reply: &EventRecord,
    target: &DeliveryTarget,
    sender: &RequestOrigin<'_>,
    rng: &mut Rng,
) -> EncodedEvent {
    let mut out = encode(reply, reply.mode, &[]);
    complete(&mut out, reply, target, sender, rng);
    out
}

/// The original event with the failure (EV-DLV-10, X-DLV-08, AMB-36).
#[must_use]
pub(super) fn to_dead_letter_sink(
    loaded: &LoadedEvent,
    failure: &DeliveryFailure,
    sink: &DeliveryTarget,
    sender: &RequestOrigin<'_>,
    rng: &mut Rng,
) -> EncodedEvent {
    let attribute =
        |name: &'static str, value: String, kind| CloudEventAttribute { name: name.into(), value: value.into(), kind };
    let [_, dest, code, data] = ADDED;
    let mut extra = vec![
        attribute(dest, failure.url.to_string(), AttributeKind::String),
        attribute(code, failure.code.to_string(), AttributeKind::Integer),
        attribute(data, failure.data.clone(), AttributeKind::String),
    ];
    extra.extend(loaded.arrival());
    let mut out = encode(&loaded.record, loaded.record.mode, &extra);
    complete(&mut out, &loaded.record, sink, sender, rng);
    out
}

/// The sender of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestOrigin<'a> {
    pub namespace: &'a str,
    /// [`contract::table::RoutingTable::internal_key`]
    pub internal_key: &'a str,
}

/// Adds the fields of this attempt.
pub fn complete(
    out: &mut EncodedEvent,
    record: &EventRecord,
    target: &DeliveryTarget,
    sender: &RequestOrigin<'_>,
    rng: &mut Rng,
) {
    extension_headers::attach(record, out, rng);
    out.push(NAMESPACE_HEADER, sender.namespace.as_bytes());
    if target.is_stream {
        let left = if record.hops_left == 0 { HOPS_MAX } else { record.hops_left };
        out.push(HOPS_HEADER, itoa::Buffer::new().format(left).as_bytes());
        out.push(INTERNAL_HEADER, sender.internal_key.as_bytes());
    }
}

/// Why an event goes to the dead letter sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryFailure {
    /// The destination of the failed delivery.
    pub url: Box<str>,
    /// The status of the response, 500 when there was none.
    pub code: u16,
    /// Base64, truncated (X-DLV-08).
    pub data: String,
    /// For the log.
    pub reason: &'static str,
    /// Why there was no response.
    pub unanswered: Option<Box<str>>,
}

impl DeliveryFailure {
    #[must_use]
    pub fn answered(url: &str, answer: &LocalResponse, reason: &'static str) -> Self {
        // Three bytes become four characters: later bytes of the body would be truncated anyway.
        let seen = &answer.body[..answer.body.len().min(ERROR_DATA_BYTES_MAX)];
        Self { url: url.into(), code: answer.status, data: cut(BASE64.encode(seen)), reason, unanswered: None }
    }

    #[must_use]
    pub fn unanswered(url: &str, why: &str, reason: &'static str) -> Self {
        let data = cut(BASE64.encode(format!("dispatch error: {why}")));
        Self { url: url.into(), code: 500, data, reason, unanswered: Some(why.into()) }
    }

    #[must_use]
    pub fn of(url: &str, outcome: &Result<LocalResponse, PostError>, reason: &'static str) -> Self {
        match outcome {
            Ok(answer) => Self::answered(url, answer, reason),
            Err(error) => Self::unanswered(url, &error.to_string(), reason),
        }
    }
}

fn cut(mut data: String) -> String {
    data.truncate(ERROR_DATA_BYTES_MAX);
    data
}

/// The content of a 200.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplyBody<'a> {
    Nothing,
    /// A body that does not claim to be an event (AMB-33).
    NoEvent,
    Event(CloudEvent<'a>),
}

/// Whether the response claims to carry an event, valid or not.
#[must_use]
pub fn claims_reply(answer: &LocalResponse) -> bool {
    let names_format = |(name, value): (&str, &[u8])| {
        name.eq_ignore_ascii_case("content-type") && carriage(Some(value)) != ContentKind::Binary
    };
    answer.status == 200 && (fields(answer).any(names_format) || binary::is_claimed(fields(answer)))
}

fn fields(answer: &LocalResponse) -> impl Iterator<Item = (&str, &[u8])> {
    answer.headers.iter().map(|(name, value)| (&**name, &**value))
}

/// Parses a reply. An invalid event is an error (AMB-34, DP-REPLY-10).
pub fn carried(answer: &LocalResponse) -> Result<ReplyBody<'_>, MalformedEvent> {
    if !claims_reply(answer) {
        return Ok(if answer.body.is_empty() { ReplyBody::Nothing } else { ReplyBody::NoEvent });
    }
    if is_compressed(fields(answer)) {
        return Err(MalformedEvent::Request { why: "its Content-Encoding is not decoded here" });
    }
    match carriage(content_type(fields(answer))?) {
        ContentKind::Structured => structured::parse(&answer.body).map(ReplyBody::Event),
        ContentKind::Batch => Err(MalformedEvent::Request { why: "a reply is one event, not a batch" }),
        ContentKind::Unknown => {
            Err(MalformedEvent::Request { why: "the reply has a CloudEvents format that is not JSON" })
        }
        ContentKind::Binary => binary::parse(fields(answer), &answer.body).map(ReplyBody::Event),
    }
}

/// Whether the reply's attributes had bytes that are not valid UTF-8.
#[must_use]
pub fn is_latin1(answer: &LocalResponse) -> bool {
    binary::has_latin1(fields(answer))
}

/// A reply as a record, for a target that is not the log.
pub fn record_of(
    reply: &CloudEvent<'_>,
    answer: &LocalResponse,
    trace: Option<&[u8]>,
    hops_left: u8,
    rng: &mut Rng,
) -> Vec<u8> {
    let headers = extension_headers::select(fields(answer), trace, rng);
    codec::record::encode_head(reply, &headers, hops_left)
}

/// Head and data in one buffer.
#[must_use]
pub fn joined(mut head: Vec<u8>, reply: &CloudEvent<'_>) -> Bytes {
    head.extend(reply.data.bytes());
    head.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(headers: &[(&str, &str)], body: &'static str) -> LocalResponse {
        let headers = headers.iter().map(|(n, v)| ((*n).into(), Bytes::copy_from_slice(v.as_bytes()))).collect();
        LocalResponse { status: 200, headers, body: Bytes::from_static(body.as_bytes()) }
    }

    /// DP-REPLY-04 to -06, DP-REPLY-10: both modes, no payload, no event, an invalid event.
    #[test]
    fn reply_body_and_invalid_event_are_distinguished() {
        let binary = [("Ce-Specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t")];
        assert!(matches!(carried(&answer(&binary, "x")), Ok(ReplyBody::Event(_))));
        let envelope = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t"}"#;
        let structured = [("Content-Type", "application/cloudevents+json; charset=utf-8")];
        assert!(matches!(carried(&answer(&structured, envelope)), Ok(ReplyBody::Event(_))));

        assert_eq!(carried(&answer(&[], "")), Ok(ReplyBody::Nothing));
        assert_eq!(carried(&answer(&[("content-type", "text/plain")], "thanks")), Ok(ReplyBody::NoEvent));

        assert!(carried(&answer(&binary[..3], "x")).is_err());
        for bad in [
            &[("content-encoding", "gzip")][..],
            &[("content-type", "text/plain"), ("content-type", "application/cloudevents+json")],
        ] {
            assert!(carried(&answer(&[&binary[..], bad].concat(), "x")).is_err(), "{bad:?}");
        }
        for page in [("content-encoding", "gzip"), ("content-type", "text/html")] {
            assert_eq!(carried(&answer(&[page, ("content-type", "text/plain")], "x")), Ok(ReplyBody::NoEvent));
        }
        assert!(carried(&answer(&structured, "{}")).is_err());
        assert!(carried(&answer(&[("content-type", "application/cloudevents-batch+json")], "[]")).is_err());
    }

    /// X-DLV-08
    #[test]
    fn failure_keeps_bounded_part_of_response() {
        let long = LocalResponse { status: 503, headers: Vec::new(), body: vec![b'a'; 5000].into() };
        let failure = DeliveryFailure::answered("http://s/", &long, "refused");
        assert_eq!((failure.code, failure.data.len()), (503, ERROR_DATA_BYTES_MAX));
        assert!(BASE64.decode(&failure.data).unwrap().iter().all(|byte| *byte == b'a'));

        let failure = DeliveryFailure::unanswered("http://s/", "connection refused", "retries used up");
        assert_eq!((failure.code, failure.data), (500, BASE64.encode("dispatch error: connection refused")));
    }
}
