//! A response head: one result for any split, and the forwarded response ends where the
//! instance's response ended.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use sluicegate_dataplane::codec::http::{
    BodyFraming, Method, FieldName, Parsed, ResponseHead, ResponseView, parse_response,
};
use sluicegate_dataplane::http::headers::{ResponseContext, put_response};

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    let asked = [Method::Get, Method::Head, Method::Post, Method::Other][usize::from(choice % 4)];
    let mut head = ResponseHead::default();
    let whole = parse_response(bytes, asked, &mut head);
    let step = (bytes.len() / 256).max(1);
    let mut part = ResponseHead::default();
    for cut in (0..bytes.len()).step_by(step) {
        match parse_response(&bytes[..cut], asked, &mut part) {
            Parsed::NeedBytes => {
                if let Parsed::Head { bytes: end } = whole {
                    assert!(cut < end, "a head of {end} bytes is not seen in {cut}");
                }
            }
            decided => assert_eq!(decided, whole, "cut at {cut}"),
        }
    }

    if let Parsed::Head { bytes: end } = whole {
        passed_on(head.view(&bytes[..end]), asked, choice & 0x80 != 0);
    }
});

/// What the client gets.
fn passed_on(response: ResponseView<'_>, asked: Method, close: bool) {
    let chunked = matches!(response.head.framing, BodyFraming::Chunked | BodyFraming::UntilClose);
    let mut out = BytesMut::new();
    put_response(&mut out, response, ResponseContext { chunked, close, ..ResponseContext::INTERIM });
    let mut head = ResponseHead::default();
    let parsed = parse_response(&out, asked, &mut head);
    let text = String::from_utf8_lossy(&out);
    let Parsed::Head { bytes: end } = parsed else {
        assert!(response.head.fields.len() > 95 || out.len() > 32_000, "{parsed:?}: {text}");
        return;
    };
    assert_eq!(end, out.len(), "an answer hides in a head: {text}");
    assert_eq!(head.status, response.head.status);
    assert_eq!(head.view(&out).reason(), response.reason());
    let expected = if chunked { BodyFraming::Chunked } else { response.head.framing };
    assert_eq!(head.framing, expected, "{text}");
    assert_eq!(head.keep_alive, !(close && head.status >= 200), "{text}");
    for kind in [FieldName::Upgrade, FieldName::HopByHop] {
        assert_eq!(head.view(&out).values(kind).count(), 0, "{kind:?} belongs to one hop: {text}");
    }
}
