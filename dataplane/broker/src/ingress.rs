//! The ingress: decides which requests are events for a stream, and how others are answered.
//!
//! Values in, values out; [`super::engine`] appends the accepted events. Loops through brokers are stopped
//! by a hop counter (`knativebrokerttl`, EV-RTE-13, X-BRK-04): an event may carry the number of hops left,
//! otherwise it is [`HOPS_MAX`]; each entry takes one, and at zero the event is rejected. Between our own
//! streams a header carries it ([`HOPS_HEADER`]): outside of the event, so that it is the same in both
//! modes and no subscriber of a channel sees an attribute that the sender did not set.

use std::sync::Arc;

use bytes::Bytes;
use codec::cloudevent::{
    CloudEvent, ContentKind, MalformedEvent, binary, carriage, content_type, is_compressed, structured,
};
use codec::hop_fields::INTERNAL_HEADER;
use codec::http::LocalResponse;
use codec::limits::ATTRIBUTES_BYTES_MAX;
use codec::record::{EventRecord, ExtensionHeader, encode_head};
use contract::event_response::{METHODS, answer, unavailable};
use contract::filter::steps::Steps;
use contract::filter::{EventFilter, matches};
use contract::load::ByteQuota;
use contract::stream_admission::{StreamAdmission, TokenError};
use contract::table::{EventStream, RoutingTable};
use wal::AppendError;

use super::auth::AuthError;
use super::limits::{HOPS_MAX, RETRY_AFTER_S};

/// The extension with the hops left. It is stored with the event in the log and not sent to subscribers.
pub const HOPS_ATTRIBUTE: &str = "knativebrokerttl";

/// The header that carries them from one of our streams to another, including channels.
pub const HOPS_HEADER: &str = "Sluicegate-Hops-Left";

/// The header with the namespace of the subscription that sends an event (X-DLV-10).
pub const NAMESPACE_HEADER: &str = "Kn-Namespace";

/// An accepted request.
#[derive(Debug)]
pub struct AcceptedRequest<'a> {
    pub stream: &'a Arc<EventStream>,
    /// Several only in a batch; stored together or not at all.
    pub events: Vec<IncomingEvent<'a>>,
    /// Its headers had bytes that are not valid UTF-8.
    pub is_latin1: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct IncomingEvent<'a> {
    pub event: CloudEvent<'a>,
    /// 0 on a stream without loop guard, unless the event came from one of our streams.
    pub hops_left: u8,
}

impl IncomingEvent<'_> {
    #[must_use]
    pub fn head(&self, extension_headers: &[ExtensionHeader<'_>]) -> Vec<u8> {
        encode_head(&self.event, extension_headers, self.hops_left)
    }
}

/// Whether `subject` may send all of `events`. Nothing is copied unless a rule has a filter.
///
/// `steps`: for the whole request, because a batch has a thousand events.
#[must_use]
pub fn admits(admission: &StreamAdmission, subject: &str, events: &[IncomingEvent<'_>], steps: &Steps) -> bool {
    match SubjectGrant::of(admission, subject) {
        SubjectGrant::Nothing => false,
        SubjectGrant::Everything => true,
        SubjectGrant::Filtered(filters) => passes(&filters, events, steps),
    }
}

/// The events that a sender may send.
#[derive(Debug)]
pub enum SubjectGrant<'a> {
    Nothing,
    Everything,
    /// Those that pass one of these.
    Filtered(Vec<&'a EventFilter>),
}

impl<'a> SubjectGrant<'a> {
    #[must_use]
    pub fn of(admission: &'a StreamAdmission, subject: &str) -> Self {
        let mut filters = Vec::new();
        for grant in admission.grants.iter().filter(|grant| grant.subjects.has(subject)) {
            if grant.filter == EventFilter::Everything {
                return Self::Everything;
            }
            filters.push(&grant.filter); // few, and only under policies with filters
        }
        if filters.is_empty() { Self::Nothing } else { Self::Filtered(filters) }
    }
}

/// Whether each event passes one of the filters.
#[must_use]
pub fn passes(filters: &[&EventFilter], events: &[IncomingEvent<'_>], steps: &Steps) -> bool {
    events.iter().all(|entering| {
        let mut bytes = entering.head(&[]);
        bytes.extend_from_slice(entering.event.data.bytes()); // an event is encoded as a whole
        EventRecord::decode(bytes.into())
            .is_ok_and(|record| filters.iter().any(|filter| matches(filter, &record, steps)))
    })
}

/// Why a request was rejected. The sender must act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IngressRejection {
    /// Not an error: OPTIONS is answered with the allowed methods.
    #[error("")]
    Options,
    #[error("there is no broker, channel or sink at this path")]
    UnknownPath,
    #[error(
        "events are not accepted {} here: see status.addresses of the object, and transport-encryption in ConfigMap \
         config-features",
        if *by_tls { "by TLS" } else { "in the clear" }
    )]
    WrongListener { by_tls: bool },
    #[error("only POST and OPTIONS are allowed here")]
    Method,
    #[error("{0}")]
    Unauthorized(#[from] AuthError),
    #[error("{subject} may not send this event here: no EventPolicy or default mode allows it")]
    Forbidden { subject: Box<str> },
    #[error("not a CloudEvent: {0}")]
    Malformed(#[from] MalformedEvent),
    #[error("this CloudEvents format is not supported here: use binary mode or application/cloudevents+json")]
    Format,
    #[error("a Content-Encoding is not decoded here, and subscribers do not learn of it: send the event unencoded")]
    Encoded,
    #[error("the event has {bytes} bytes, this stream accepts {max}")]
    TooLarge { bytes: usize, max: u32 },
    #[error(
        "the attributes of the event have {bytes} bytes, at most {ATTRIBUTES_BYTES_MAX} are accepted: move large \
         content to its data"
    )]
    AttributesTooLarge { bytes: usize },
    #[error("the event has made too many hops ({HOPS_ATTRIBUTE}): a loop is likely")]
    TooManyHops,
}

/// The stream at a request's path; a query and a trailing slash are ignored.
#[must_use]
pub fn find<'t>(table: &'t RoutingTable, path: &str) -> Option<&'t Arc<EventStream>> {
    let path = path.split('?').next().unwrap_or_default();
    table.streams.get(path).or_else(|| table.streams.get(path.strip_suffix('/')?))
}

/// The stream that a request addresses, if its method and path are valid.
pub fn addressed<'a>(
    method: &str,
    stream: Option<&'a Arc<EventStream>>,
) -> Result<&'a Arc<EventStream>, IngressRejection> {
    let stream = stream.filter(|stream| !stream.is_closed).ok_or(IngressRejection::UnknownPath)?;
    match method {
        "POST" => Ok(stream),
        "OPTIONS" => Err(IngressRejection::Options),
        _ => Err(IngressRejection::Method),
    }
}

/// Parses a request that passed [`addressed`]; checks everything but the log.
pub fn read<'a>(
    stream: &'a Arc<EventStream>,
    headers: &'a [(&'a str, &'a [u8])],
    body: &'a [u8],
) -> Result<AcceptedRequest<'a>, IngressRejection> {
    let (events, is_latin1) = parse(headers, body)?;
    let carried = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(HOPS_HEADER));
    let carried = carried.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse::<u8>().ok());
    let events = events.into_iter().map(|event| admit(stream, event, carried)).collect::<Result<_, _>>()?;
    Ok(AcceptedRequest { stream, events, is_latin1 })
}

/// The events of a request, and whether its headers had bytes that are not valid UTF-8.
pub fn parse<'a>(
    headers: &'a [(&'a str, &'a [u8])],
    body: &'a [u8],
) -> Result<(Vec<CloudEvent<'a>>, bool), IngressRejection> {
    if is_compressed(headers.iter().copied()) {
        return Err(IngressRejection::Encoded);
    }
    let carriage = carriage(content_type(headers.iter().copied())?);
    let is_latin1 = carriage == ContentKind::Binary && binary::has_latin1(headers.iter().copied());
    let events = match carriage {
        ContentKind::Binary => vec![binary::parse(headers.iter().copied(), body)?],
        ContentKind::Structured => vec![structured::parse(body)?],
        ContentKind::Batch => structured::parse_batch(body)?,
        ContentKind::Unknown => return Err(IngressRejection::Format),
    };
    Ok((events, is_latin1))
}

/// The namespace of our own stream that sends this request, if it is internal.
#[must_use]
pub fn is_internal<'a>(table: &RoutingTable, headers: &[(&'a str, &'a [u8])]) -> Option<&'a str> {
    let value = |name: &str| headers.iter().find(|field| field.0.eq_ignore_ascii_case(name)).map(|field| field.1);
    let key = value(INTERNAL_HEADER)?;
    let is_ours = !table.internal_key.is_empty() && key == table.internal_key.as_bytes();
    is_ours.then(|| value(NAMESPACE_HEADER).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default())
}

/// `carried`: the hops left according to the sender, if that is one of our streams.
fn admit<'a>(
    stream: &EventStream,
    mut event: CloudEvent<'a>,
    carried: Option<u8>,
) -> Result<IncomingEvent<'a>, IngressRejection> {
    let (bytes, max) = (event.bytes(), stream.event_bytes_max);
    if bytes > max as usize {
        return Err(IngressRejection::TooLarge { bytes, max });
    }
    let bytes = event.attribute_bytes();
    if bytes > ATTRIBUTES_BYTES_MAX {
        return Err(IngressRejection::AttributesTooLarge { bytes });
    }
    let said = if stream.guards_loops { event.take(HOPS_ATTRIBUTE) } else { None };
    let said = said.map(|given| given.value.parse::<i32>()).transpose();
    let said = said.map_err(|_| MalformedEvent::attribute(HOPS_ATTRIBUTE, "is not an integer"))?;
    let hops_left = match said.into_iter().chain(carried.map(i32::from)).min() {
        Some(given) => u8::try_from(given.saturating_sub(1).clamp(0, HOPS_MAX.into())).unwrap_or(HOPS_MAX),
        None if stream.guards_loops => HOPS_MAX,
        None => return Ok(IncomingEvent { event, hops_left: 0 }),
    };
    if hops_left == 0 {
        return Err(IngressRejection::TooManyHops);
    }
    Ok(IncomingEvent { event, hops_left })
}

/// 202 with an empty body (AMB-48).
#[must_use]
pub fn accepted() -> LocalResponse {
    answer(202, "")
}

/// The response to a rejected request (DP-ACK-04, -05, -06, -07, DP-PROTO-11, -13, X-BRK-02, -03).
#[must_use]
pub fn refused(refusal: &IngressRejection) -> LocalResponse {
    let status = match refusal {
        IngressRejection::Options => 200,
        // Senders retry a 404, and a table change reaches the cores at different times.
        IngressRejection::UnknownPath | IngressRejection::WrongListener { .. } => 404,
        IngressRejection::Method => 405,
        IngressRejection::Unauthorized(AuthError::Bad(TokenError::NoKeys)) => {
            return unavailable(&refusal.to_string());
        }
        IngressRejection::Unauthorized(_) => 401,
        IngressRejection::Forbidden { .. } => 403,
        IngressRejection::Malformed(_) | IngressRejection::TooManyHops => 400,
        IngressRejection::Format | IngressRejection::Encoded => 415,
        IngressRejection::TooLarge { .. } | IngressRejection::AttributesTooLarge { .. } => 413,
    };
    let mut answer = answer(status, &refusal.to_string());
    if *refusal == IngressRejection::Encoded {
        answer.headers.push(("Accept-Encoding".into(), Bytes::from_static(b"identity"))); // RFC 9110 section 15.5.16
    }
    if *refusal == IngressRejection::Options {
        for name in ["WebHook-Allowed-Origin", "WebHook-Allowed-Rate"] {
            answer.headers.push((name.into(), Bytes::from_static(b"*")));
        }
    }
    if let IngressRejection::Unauthorized(why) = refusal {
        answer.headers.push(("WWW-Authenticate".into(), challenge(why)));
    }
    answer
}

/// The challenge for an unauthenticated sender (RFC 6750): without a token in the request it names no
/// error.
fn challenge(why: &AuthError) -> Bytes {
    match why {
        AuthError::Silent { .. } => Bytes::from_static(b"Bearer realm=\"events\""),
        why => {
            let why = why.to_string().replace('"', "'");
            format!("Bearer realm=\"events\", error=\"invalid_token\", error_description=\"{why}\"").into()
        }
    }
}

/// The log rejected the append (DP-ACK-10).
#[must_use]
pub fn not_stored(why: &AppendError) -> LocalResponse {
    match why {
        AppendError::TooLarge { .. } => answer(413, &why.to_string()),
        _ => unavailable(&why.to_string()),
    }
}

/// 429: the sender's namespace, or all together, retain too much; resolves when consumers make progress.
#[must_use]
pub fn over_quota(quota: &ByteQuota) -> LocalResponse {
    let (used, max, owner) = (quota.used(), quota.bytes_max, &quota.name);
    let why = format!("undelivered events take {used} of {max} bytes, the quota of {owner}");
    let mut answer = answer(429, &why);
    answer.headers.push(("Retry-After".into(), RETRY_AFTER_S.to_string().into()));
    answer
}

/// On every response, even one sent before the stream is looked up (X-BRK-03).
#[must_use]
pub fn with_methods(answer: LocalResponse) -> LocalResponse {
    answer.with("Allow", METHODS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DP-ACK-05, DP-ACK-06, DP-ACK-09, DP-ACK-14: each rejection has its code; 409 is not used.
    #[test]
    fn each_rejection_has_its_status() {
        let malformed = MalformedEvent::Request { why: "no" };
        for (refusal, status) in [
            (IngressRejection::Options, 200),
            (IngressRejection::WrongListener { by_tls: true }, 404),
            (IngressRejection::UnknownPath, 404),
            (IngressRejection::Method, 405),
            (AuthError::Silent { audience: "a".into() }.into(), 401),
            (AuthError::Bad(TokenError::Unknown).into(), 401),
            (AuthError::Bad(TokenError::NoKeys).into(), 503),
            (IngressRejection::Forbidden { subject: "me".into() }, 403),
            (IngressRejection::Malformed(malformed), 400),
            (IngressRejection::Format, 415),
            (IngressRejection::Encoded, 415),
            (IngressRejection::TooLarge { bytes: 2, max: 1 }, 413),
            (IngressRejection::AttributesTooLarge { bytes: 1 << 20 }, 413),
            (IngressRejection::TooManyHops, 400),
        ] {
            let answer = refused(&refusal);
            assert_eq!(answer.status, status, "{refusal:?}");
            assert!(answer.header("allow").is_some());
            assert_eq!(answer.header("www-authenticate").is_some(), status == 401, "{refusal:?}");
        }
        let wrong_audience = refused(&AuthError::WrongAudience { audience: "a".into() }.into());
        assert_eq!(
            wrong_audience.header("www-authenticate").unwrap(),
            b"Bearer realm=\"events\", error=\"invalid_token\", \
              error_description=\"the token is not issued for 'a'\""
        );
        assert_eq!(unavailable("full").status, 503);
        assert!(unavailable("full").header("retry-after").is_some());
    }
}
