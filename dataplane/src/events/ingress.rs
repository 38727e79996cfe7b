//! The door: which requests are events for a stream, and what the others are told.
//!
//! Values in, values out; [`super::house`] appends what passes. A loop through a broker is cut by
//! counting hops (`knativebrokerttl`, EV-RTE-13, X-BRK-04): an event may say how many it may still
//! make, else [`HOPS_MAX`]; each entry takes one, and at none the event is refused. What we send to a stream of our own
//! says it in a header ([`HOPS_HEADER`]): beside the event, so that it is the same in both modes and no subscriber of a
//! channel sees what its sender did not say.

use std::sync::Arc;

use bytes::Bytes;
use wal::AppendError;

use super::Answer;
use super::admission::{BadToken, Stranger};
use super::cloudevent::{
    Carriage, Event, Malformed, binary, carriage, content_type, is_compressed, structured,
};
use super::limits::{HOPS_MAX, RETRY_AFTER_S};
use super::record::{Companion, encode_head};
use crate::load::Quota;
use crate::table::{Stream, Table};

/// What a stream may be asked.
const METHODS: &str = "POST, OPTIONS";

/// The extension that carries the hops left. It is kept beside the event in the log and not shown
/// to subscribers.
pub const HOPS_ATTRIBUTE: &str = "knativebrokerttl";

/// The header that carries them from one of our streams to another, channels too.
pub const HOPS_HEADER: &str = "Sluicegate-Hops-Left";

/// The header by which a stream knows what another one of this process sends on: [`Table::inside_key`].
pub const INSIDE_HEADER: &str = "Sluicegate-Inside";

/// The header with the namespace of whose subscription an event is (X-DLV-10).
pub const NAMESPACE_HEADER: &str = "Kn-Namespace";

/// A request that passed.
#[derive(Debug)]
pub struct Intake<'a> {
    pub stream: &'a Arc<Stream>,
    /// Several only in a batch; stored together or not at all.
    pub events: Vec<Entering<'a>>,
    /// Its headers had bytes that are no UTF-8.
    pub is_latin1: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Entering<'a> {
    pub event: Event<'a>,
    /// 0 on a stream without loop guard, unless the event came from one of our streams.
    pub hops_left: u8,
}

impl Entering<'_> {
    #[must_use]
    pub fn head(&self, beside: &[Companion<'_>]) -> Vec<u8> {
        encode_head(&self.event, beside, self.hops_left)
    }
}

/// Why a request was turned away. The sender must act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not an error: OPTIONS is answered with what is possible here.
    #[error("")]
    Options,
    #[error("there is no broker or channel at this path")]
    UnknownPath,
    #[error(
        "events are not taken {} here: see status.addresses of the object, and transport-encryption in ConfigMap \
         config-features",
        if *by_tls { "by TLS" } else { "in the clear" }
    )]
    WrongDoor { by_tls: bool },
    #[error("only POST and OPTIONS are possible here")]
    Method,
    #[error("{0}")]
    Stranger(#[from] Stranger),
    #[error("{subject} may not send this event here: no EventPolicy or default mode lets it in")]
    Forbidden { subject: Box<str> },
    #[error("not a CloudEvent: {0}")]
    Malformed(#[from] Malformed),
    #[error("this CloudEvents format is not read here: use binary mode or application/cloudevents+json")]
    Format,
    #[error(
        "a Content-Encoding is not undone here, and subscribers are not told of it: send the event as it is"
    )]
    Encoded,
    #[error("the event has {bytes} bytes, this stream takes {max}")]
    TooLarge { bytes: usize, max: u32 },
    #[error("the event has made too many hops ({HOPS_ATTRIBUTE}): a loop is likely")]
    TooManyHops,
}

/// The stream at a request's path; a query and a trailing slash do not matter.
#[must_use]
pub fn find<'t>(table: &'t Table, path: &str) -> Option<&'t Arc<Stream>> {
    let path = path.split('?').next().unwrap_or_default();
    table.streams.get(path).or_else(|| table.streams.get(path.strip_suffix('/')?))
}

/// The stream that a request is for, if it can be for one.
pub fn addressed<'a>(method: &str, stream: Option<&'a Arc<Stream>>) -> Result<&'a Arc<Stream>, Refusal> {
    let stream = stream.filter(|stream| !stream.is_closed).ok_or(Refusal::UnknownPath)?;
    match method {
        "POST" => Ok(stream),
        "OPTIONS" => Err(Refusal::Options),
        _ => Err(Refusal::Method),
    }
}

/// Reads a request that [`addressed`] let pass; judges it by everything but the log.
pub fn read<'a>(
    stream: &'a Arc<Stream>,
    headers: &'a [(&'a str, &'a [u8])],
    body: &'a [u8],
) -> Result<Intake<'a>, Refusal> {
    if is_compressed(headers.iter().copied()) {
        return Err(Refusal::Encoded);
    }
    let carriage = carriage(content_type(headers.iter().copied())?);
    let is_latin1 = carriage == Carriage::Binary && binary::has_latin1(headers.iter().copied());
    let events = match carriage {
        Carriage::Binary => vec![binary::parse(headers.iter().copied(), body)?],
        Carriage::Structured => vec![structured::parse(body)?],
        Carriage::Batch => structured::parse_batch(body)?,
        Carriage::Unknown => return Err(Refusal::Format),
    };
    let carried = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(HOPS_HEADER));
    let carried = carried.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse::<u8>().ok());
    let events = events.into_iter().map(|event| admit(stream, event, carried)).collect::<Result<_, _>>()?;
    Ok(Intake { stream, events, is_latin1 })
}

/// The namespace from which one of our own streams sends this on, if it is so.
#[must_use]
pub fn from_inside<'a>(table: &Table, headers: &[(&'a str, &'a [u8])]) -> Option<&'a str> {
    let value =
        |name: &str| headers.iter().find(|field| field.0.eq_ignore_ascii_case(name)).map(|field| field.1);
    let key = value(INSIDE_HEADER)?;
    let is_ours = !table.inside_key.is_empty() && key == table.inside_key.as_bytes();
    is_ours
        .then(|| value(NAMESPACE_HEADER).and_then(|name| std::str::from_utf8(name).ok()).unwrap_or_default())
}

/// `carried`: the hops that the event had left where it comes from, if that is one of our streams.
fn admit<'a>(stream: &Stream, mut event: Event<'a>, carried: Option<u8>) -> Result<Entering<'a>, Refusal> {
    let (bytes, max) = (event.bytes(), stream.event_bytes_max);
    if bytes > max as usize {
        return Err(Refusal::TooLarge { bytes, max });
    }
    let said = if stream.guards_loops { event.take(HOPS_ATTRIBUTE) } else { None };
    let said = said.map(|given| given.value.parse::<i32>()).transpose();
    let said = said.map_err(|_| Malformed::attribute(HOPS_ATTRIBUTE, "is not an integer"))?;
    let hops_left = match said.into_iter().chain(carried.map(i32::from)).min() {
        Some(given) => u8::try_from(given.saturating_sub(1).clamp(0, HOPS_MAX.into())).unwrap_or(HOPS_MAX),
        None if stream.guards_loops => HOPS_MAX,
        None => return Ok(Entering { event, hops_left: 0 }),
    };
    if hops_left == 0 {
        return Err(Refusal::TooManyHops);
    }
    Ok(Entering { event, hops_left })
}

/// 202 with nothing in it (AMB-48).
#[must_use]
pub fn accepted() -> Answer {
    answer(202, "")
}

/// What a refusal looks like to its sender (DP-ACK-04, -05, -06, -07, DP-PROTO-11, -13, X-BRK-02, -03).
#[must_use]
pub fn refused(refusal: &Refusal) -> Answer {
    let status = match refusal {
        Refusal::Options => 200,
        // Senders try a 404 again, and the switch reaches everybody at another moment.
        Refusal::UnknownPath | Refusal::WrongDoor { .. } => 404,
        Refusal::Method => 405,
        Refusal::Stranger(Stranger::Bad(BadToken::NoKeys)) => return unavailable(&refusal.to_string()),
        Refusal::Stranger(_) => 401,
        Refusal::Forbidden { .. } => 403,
        Refusal::Malformed(_) | Refusal::TooManyHops => 400,
        Refusal::Format | Refusal::Encoded => 415,
        Refusal::TooLarge { .. } => 413,
    };
    let mut answer = answer(status, &refusal.to_string());
    if *refusal == Refusal::Encoded {
        answer.headers.push(("Accept-Encoding".into(), Bytes::from_static(b"identity"))); // RFC 9110 section 15.5.16
    }
    if *refusal == Refusal::Options {
        for name in ["WebHook-Allowed-Origin", "WebHook-Allowed-Rate"] {
            answer.headers.push((name.into(), Bytes::from_static(b"*")));
        }
    }
    if let Refusal::Stranger(why) = refusal {
        answer.headers.push(("WWW-Authenticate".into(), challenge(why)));
    }
    answer
}

/// What a stranger is told to bring (RFC 6750): who said nothing is told nothing of errors.
fn challenge(why: &Stranger) -> Bytes {
    match why {
        Stranger::Silent { .. } => Bytes::from_static(b"Bearer realm=\"events\""),
        why => {
            let why = why.to_string().replace('"', "'");
            format!("Bearer realm=\"events\", error=\"invalid_token\", error_description=\"{why}\"").into()
        }
    }
}

/// The log did not take it (DP-ACK-10).
#[must_use]
pub fn not_stored(why: &AppendError) -> Answer {
    match why {
        AppendError::TooLarge { .. } => answer(413, &why.to_string()),
        _ => unavailable(&why.to_string()),
    }
}

/// 429: the sender's namespace, or all together, keep too much; passes when consumers get on.
#[must_use]
pub fn over_quota(quota: &Quota) -> Answer {
    let (used, max, whose) = (quota.used(), quota.bytes_max, &quota.name);
    let why = format!("undelivered events take {used} of {max} bytes, the quota of {whose}");
    let mut answer = answer(429, &why);
    answer.headers.push(("Retry-After".into(), RETRY_AFTER_S.to_string().into()));
    answer
}

/// 503: it may work later.
#[must_use]
pub fn unavailable(why: &str) -> Answer {
    let mut answer = answer(503, why);
    answer.headers.push(("Retry-After".into(), RETRY_AFTER_S.to_string().into()));
    answer
}

/// What is on every answer, though it is given before anybody looked for a stream (X-BRK-03).
#[must_use]
pub fn with_methods(answer: Answer) -> Answer {
    answer.with("Allow", METHODS)
}

fn answer(status: u16, text: &str) -> Answer {
    let mut headers = vec![("Allow".into(), Bytes::from_static(METHODS.as_bytes()))];
    if text.is_empty() {
        return Answer { status, headers, body: Bytes::new() };
    }
    headers.push(("Content-Type".into(), Bytes::from_static(b"text/plain; charset=utf-8")));
    Answer { status, headers, body: format!("{text}\n").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DP-ACK-05, DP-ACK-06, DP-ACK-09, DP-ACK-14: each refusal has its code; 409 is nobody's.
    #[test]
    fn each_refusal_has_its_code() {
        let malformed = Malformed::Request { why: "no" };
        for (refusal, status) in [
            (Refusal::Options, 200),
            (Refusal::WrongDoor { by_tls: true }, 404),
            (Refusal::UnknownPath, 404),
            (Refusal::Method, 405),
            (Stranger::Silent { audience: "a".into() }.into(), 401),
            (Stranger::Bad(BadToken::Unknown).into(), 401),
            (Stranger::Bad(BadToken::NoKeys).into(), 503),
            (Refusal::Forbidden { subject: "me".into() }, 403),
            (Refusal::Malformed(malformed), 400),
            (Refusal::Format, 415),
            (Refusal::Encoded, 415),
            (Refusal::TooLarge { bytes: 2, max: 1 }, 413),
            (Refusal::TooManyHops, 400),
        ] {
            let answer = refused(&refusal);
            assert_eq!(answer.status, status, "{refusal:?}");
            assert!(answer.header("allow").is_some());
            assert_eq!(answer.header("www-authenticate").is_some(), status == 401, "{refusal:?}");
        }
        let astray = refused(&Stranger::Astray { audience: "a".into() }.into());
        assert_eq!(
            astray.header("www-authenticate").unwrap(),
            b"Bearer realm=\"events\", error=\"invalid_token\", \
              error_description=\"the token is not made out for 'a'\""
        );
        assert_eq!(unavailable("full").status, 503);
        assert!(unavailable("full").header("retry-after").is_some());
    }
}
