//! Extension headers: headers that are forwarded with an event (X-DLV-09), and its trace.

use std::borrow::Cow;

use codec::encode::EncodedEvent;
use codec::record::{EventRecord, ExtensionHeader, is_of_a_copy};
use fastrand::Rng;

use super::limits::EXTENSION_HEADERS_BYTES_MAX;
use super::trace;

/// Longest stored value, in bytes: its length is a `u16` in a record.
const VALUE_BYTES_MAX: usize = u16::MAX as usize;

/// Selects the forwarded headers of a request or a reply. Every event has a trace from here on.
pub fn select<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    parent: Option<&[u8]>,
    rng: &mut Rng,
) -> Vec<ExtensionHeader<'a>> {
    let mut kept: Vec<ExtensionHeader<'a>> = Vec::with_capacity(2);
    let (mut bytes, mut traced) = (0, false);
    for (name, value) in headers {
        let size = name.len() + value.len();
        let wanted = if name.eq_ignore_ascii_case("traceparent") {
            !std::mem::replace(&mut traced, trace::is_valid(value)) && traced
        } else {
            is_extension_header(name)
        };
        if wanted && name.len() <= 255 && value.len() <= VALUE_BYTES_MAX && bytes + size <= EXTENSION_HEADERS_BYTES_MAX
        {
            bytes += size;
            kept.push(ExtensionHeader { name: in_lower_case(name), value: value.into() });
        }
    }
    if !traced {
        kept.retain(|header| header.name != "tracestate"); // a state without its parent is meaningless
        let trace = trace::attempt(parent.unwrap_or_default(), rng);
        kept.push(ExtensionHeader { name: "traceparent".into(), value: trace.to_vec().into() });
    }
    kept
}

/// In any case; most names are rejected at their first letter.
fn is_extension_header(name: &str) -> bool {
    let begins = |with: &str| name.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with));
    match name.as_bytes().first().map(u8::to_ascii_lowercase) {
        Some(b't') => name.eq_ignore_ascii_case("tracestate"),
        Some(b'r') => name.eq_ignore_ascii_case("retry-after"),
        Some(b'k') => begins("knative-"),
        Some(b'x') => name.eq_ignore_ascii_case("x-request-id") || begins("x-b3-"),
        _ => false,
    }
}

/// Allocates only for HTTP/1 senders that use capitals, and only for forwarded headers.
fn in_lower_case(name: &str) -> Cow<'_, str> {
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) { name.to_ascii_lowercase().into() } else { name.into() }
}

/// The record's trace, if it has one.
#[must_use]
pub fn trace_of(record: &EventRecord) -> Option<Vec<u8>> {
    record.extension_headers().find(|header| header.name == "traceparent").map(|found| found.value.into_owned())
}

/// Adds them to a request; the trace gets a parent id of this attempt (DP-OBS-01, DP-RETRY-22).
pub fn attach(record: &EventRecord, out: &mut EncodedEvent, rng: &mut Rng) {
    for ExtensionHeader { name, value } in record.extension_headers() {
        if is_of_a_copy(&name) {
            continue;
        }
        if name == "traceparent" {
            out.push(&name, &trace::attempt(&value, rng));
        } else {
            out.push(&name, &value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(headers: &[(&str, &[u8])]) -> Vec<String> {
        let kept = select(headers.iter().copied(), None, &mut Rng::with_seed(3));
        kept.into_iter().map(|header| header.name.into_owned()).collect()
    }

    const TRACE: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    /// X-DLV-09
    #[test]
    fn only_extension_headers_are_forwarded() {
        let headers: [(&str, &[u8]); 8] = [
            ("X-Request-Id", b"1"),
            ("Retry-After", b"1"),
            ("Knative-Foo", b"1"),
            ("X-B3-TraceId", b"1"),
            ("Authorization", b"secret"),
            ("Cookie", b"secret"),
            ("traceparent", TRACE),
            ("TraceState", b"a=b"),
        ];
        let expected = ["x-request-id", "retry-after", "knative-foo", "x-b3-traceid", "traceparent", "tracestate"];
        assert_eq!(names(&headers), expected);
    }

    #[test]
    fn lower_case_name_is_not_copied() {
        let headers: [(&str, &[u8]); 4] =
            [("x-request-id", b"1"), ("knative-foo", b"1"), ("kn", b"1"), ("traceparent", TRACE)];
        let kept = select(headers, None, &mut Rng::with_seed(3));
        assert_eq!(kept.len(), 3);
        assert!(kept.iter().all(|header| matches!(header.name, Cow::Borrowed(_))));
    }

    #[test]
    fn event_without_valid_trace_gets_new_trace() {
        assert_eq!(names(&[]), ["traceparent"]);
        assert_eq!(names(&[("traceparent", b"junk"), ("tracestate", b"a=b")]), ["traceparent"]);
        assert_eq!(names(&[("traceparent", TRACE), ("traceparent", TRACE)]), ["traceparent"]);
    }

    #[test]
    fn headers_beyond_limit_are_dropped() {
        let large = vec![b'x'; EXTENSION_HEADERS_BYTES_MAX];
        assert_eq!(names(&[("knative-a", &large), ("knative-b", b"1")]), ["knative-b", "traceparent"]);
    }
}
