//! A request head: one result for any split, and the forwarded head is parsed by an instance as
//! the same request.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::codec::http::{
    BodyFraming, FieldName, Parsed, RequestHead, RequestView, is_authority, parse_request,
};
use sluicegate_dataplane::client_address::{ClientAddress, ClientScheme};
use sluicegate_dataplane::http::headers::put_request;

fuzz_target!(|bytes: &[u8]| {
    let mut head = RequestHead::default();
    let whole = parse_request(bytes, &mut head);
    // Every cut of a short head, some of a long one: the parser has no state, so each is a new question.
    let step = (bytes.len() / 256).max(1);
    let mut part = RequestHead::default();
    for cut in (0..bytes.len()).step_by(step) {
        match parse_request(&bytes[..cut], &mut part) {
            Parsed::NeedBytes => {
                if let Parsed::Head { bytes: end } = whole {
                    assert!(cut < end, "a head of {end} bytes is not seen in {cut}");
                }
            }
            decided => assert_eq!(decided, whole, "cut at {cut}"),
        }
    }

    if let Parsed::Head { bytes: end } = whole {
        assert!(end <= bytes.len());
        passed_on(head.view(&bytes[..end]));
    }
});

/// What an instance gets.
fn passed_on(request: RequestView<'_>) {
    assert!(request.authority().is_empty() || is_authority(request.authority().as_bytes()));
    let peer = ClientAddress::new(([192, 0, 2, 1], 7).into(), ClientScheme::Http);
    let mut out = BytesMut::new();
    put_request(&mut out, request, &peer, None, &mut fastrand::Rng::with_seed(1));

    let mut head = RequestHead::default();
    let parsed = parse_request(&out, &mut head);
    let text = String::from_utf8_lossy(&out);
    // What we add may pass a limit, never change the meaning.
    let Parsed::Head { bytes: end } = parsed else {
        let grown = request.head.fields.len() > 90 || out.len() > 30_000;
        let hostless = request.authority().is_empty(); // HTTP/1.0; refused before it is passed on
        assert!(grown || hostless, "{parsed:?}: {text}");
        return;
    };
    assert_eq!(end, out.len(), "a request hides in a head: {text}");
    let passed = head.view(&out);
    assert_eq!(passed.method(), request.method());
    assert_eq!(passed.path(), [request.root(), request.path()].concat());
    assert_eq!(passed.authority(), request.authority());
    assert_eq!(passed.head.framing, request.head.framing, "{text}");
    assert!(request.head.framing != BodyFraming::UntilClose);
    assert_eq!(passed.head.is_upgrade(), request.head.is_upgrade(), "{text}");
    // Without a list of protocols, only a WebSocket is requested from the next hop.
    let again = usize::from(request.head.is_upgrade());
    for (kind, count) in [
        (FieldName::Connection, again),
        (FieldName::Upgrade, again),
        (FieldName::HopByHop, 0),
        (FieldName::Internal, 0),
        (FieldName::Host, 1),
        (FieldName::Forwarded, 1),
        (FieldName::ForwardedFor, 1),
        (FieldName::TraceParent, 1),
    ] {
        assert_eq!(passed.values(kind).count(), count, "{kind:?}: {text}");
    }
    let chain = passed.values(FieldName::ForwardedFor).next().unwrap_or_default();
    assert!(chain.ends_with(b"192.0.2.1"), "{text}");
    let trace = passed.values(FieldName::TraceParent).next().unwrap_or_default();
    assert!(is_trace(trace), "{text}");
}

/// W3C trace context by the letter, written a second time.
fn is_trace(value: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(value) else { return false };
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let [version, trace, parent, flags, rest @ ..] = parts.as_slice() else { return false };
    let hex = |part: &str, length: usize| {
        part.len() == length && part.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
    };
    hex(version, 2)
        && hex(trace, 32)
        && hex(parent, 16)
        && hex(flags, 2)
        && *version != "ff"
        && (*version != "00" || rest.is_empty())
        && trace.contains(|c| c != '0')
        && parent.contains(|c| c != '0')
}
