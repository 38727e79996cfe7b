//! Requests that must be rejected, accepted, or parsed the same for any split.

use proptest::prelude::*;

use super::*;
use crate::http::limits::{FIELDS_MAX, HEAD_BYTES_MAX};

fn parse(bytes: &[u8]) -> Result<(RequestHead, usize), MalformedHttp> {
    let mut head = RequestHead::default();
    match parse_request(bytes, &mut head) {
        Parsed::Head { bytes } => Ok((head, bytes)),
        Parsed::Malformed(why) => Err(why),
        Parsed::NeedBytes => panic!("incomplete: {:?}", String::from_utf8_lossy(bytes)),
    }
}

/// A less strict parser could read each as another request, or as two.
#[test]
fn ambiguous_request_is_rejected_with_its_reason() {
    use MalformedHttp::*;
    for (text, why) in [
        // Content-Length and Transfer-Encoding
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", LengthAndCoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", LengthAndCoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n", LengthAndCoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n", LengthAndCoding),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", LengthRepeated),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", LengthRepeated),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5,5\r\n\r\n", LengthInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5 5\r\n\r\n", LengthInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", LengthInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", LengthInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x5\r\n\r\n", LengthInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5.0\r\n\r\n", LengthInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", LengthInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n", LengthInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \"chunked\"\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked;q=1\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked,\r\n\r\n", CodingInvalid),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", FieldValue),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", CodingUnknown),
        ("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", CodingInOldVersion),
        // lines
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", BareLineFeed),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", BareLineFeed),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", BareLineFeed),
        ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", BareLineFeed),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: b\rY: c\r\n\r\n", FieldValue),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n", FieldValue),
        ("GET / HTTP/1.1\r\nHost: a\r\n X: b\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\tc\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", FieldName),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n", FieldName),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\n: empty\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n", FieldName),
        ("GET / HTTP/1.1\r\nHost: a\r\nX(y): b\r\n\r\n", FieldName),
        ("\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
        // the request line
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
        ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", RequestLine),
        ("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", Version),
        ("GET /\r\nHost: a\r\n\r\n", RequestLine),
        ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", RequestLine),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/1.25\r\nHost: a\r\n\r\n", RequestLine),
        ("GET / HTTP/1.2 \r\nHost: a\r\n\r\n", RequestLine),
        ("GET / HTTP/1.x\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/0.2\r\nHost: a\r\n\r\n", Version),
        ("GET / HTTP/1.2\r\n\r\n", HostMissing),
        ("GET / HTTP/1.2\nHost: a\r\n\r\n", BareLineFeed),
        ("POST / HTTP/1.2\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", LengthAndCoding),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", Version),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET /#f HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET /\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET http://u@a/x HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET ?x HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("GET http://?x HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        ("CONNECT /x HTTP/1.1\r\nHost: a\r\n\r\n", Target),
        // Host
        ("GET / HTTP/1.1\r\n\r\n", HostMissing),
        ("GET http://a/ HTTP/1.1\r\n\r\n", HostMissing),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", HostRepeated),
        ("GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", HostRepeated),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", HostInvalid),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", HostInvalid),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", HostInvalid),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", HostInvalid),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", HostInvalid),
        ("GET http://a/ HTTP/1.1\r\nHost: b/c\r\n\r\n", HostInvalid),
    ] {
        assert_eq!(parse(text.as_bytes()).map(|_| ()).unwrap_err(), why, "{text:?}");
    }
}

#[test]
fn malformed_request_has_one_status() {
    for (why, status) in [
        (MalformedHttp::HostMissing, 400),
        (MalformedHttp::LengthAndCoding, 400),
        (MalformedHttp::TargetTooLong, 414),
        (MalformedHttp::HeadTooLarge, 431),
        (MalformedHttp::TooManyFields, 431),
        (MalformedHttp::CodingUnknown, 501),
        (MalformedHttp::Version, 505),
    ] {
        assert_eq!(why.status(), status, "{why:?}");
    }
}

#[test]
fn valid_request_is_parsed_unchanged() {
    let text = b"\r\nPOST /a%2Fb/../c?d=|e| HTTP/1.1\r\nHost: App.example.com:8080\r\nX-Odd:  \tv\t \r\n\
        Content-Length: 3\r\nConnection: keep-alive, X-Odd\r\nExpect: 100-Continue\r\n\r\nabc";
    let (head, bytes) = parse(text).unwrap();
    let view = head.view(text);
    assert_eq!(&text[bytes..], b"abc");
    assert_eq!(view.method(), "POST");
    assert_eq!(view.path(), "/a%2Fb/../c?d=|e|");
    assert_eq!(view.authority(), "App.example.com:8080");
    assert_eq!(view.field("x-odd"), Some(b"v".as_slice()));
    assert_eq!(head.framing, BodyFraming::Length(3));
    assert!(head.keep_alive && head.expects_continue && head.nominates && !head.expects_more);
}

#[test]
fn absolute_target_overrides_the_host_header() {
    for (target, authority, path) in [
        ("http://b.example/x?y", "b.example", "/x?y"),
        ("HTTP://b.example:81", "b.example:81", "/"),
        ("https://[::1]:1/", "[::1]:1", "/"),
        ("http://b.example?y=/z", "b.example", "/?y=/z"),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, _) = parse(text.as_bytes()).unwrap();
        let view = head.view(text.as_bytes());
        let whole = [view.root(), view.path()].concat();
        assert_eq!((view.authority(), whole.as_str()), (authority, path), "{target}");
    }
}

#[test]
fn framing_and_persistence_follow_the_version() {
    for (text, framing, keep_alive) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", BodyFraming::Empty, true),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", BodyFraming::Empty, false),
        ("GET / HTTP/1.0\r\n\r\n", BodyFraming::Empty, false),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", BodyFraming::Empty, true),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n", BodyFraming::Chunked, true),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", BodyFraming::Empty, true),
        // RFC 9110 2.5: later minor versions are read as the highest supported one.
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", BodyFraming::Empty, true),
        ("\r\nPOST / HTTP/1.9\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", BodyFraming::Chunked, true),
    ] {
        let (head, _) = parse(text.as_bytes()).unwrap();
        assert_eq!((head.framing, head.keep_alive), (framing, keep_alive), "{text:?}");
    }
}

#[test]
fn head_is_bounded_in_fields_and_bytes() {
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(FIELDS_MAX.into()));
    assert_eq!(parse(many.as_bytes()).unwrap_err(), MalformedHttp::TooManyFields);
    let large = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(HEAD_BYTES_MAX as usize));
    assert_eq!(parse(large.as_bytes()).unwrap_err(), MalformedHttp::HeadTooLarge);
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "y".repeat(TARGET_BYTES_MAX));
    assert_eq!(parse(long.as_bytes()).unwrap_err(), MalformedHttp::TargetTooLong);
    let endless = vec![b'G'; HEAD_BYTES_MAX as usize];
    assert_eq!(parse(&endless).unwrap_err(), MalformedHttp::TargetTooLong);
}

/// RFC 9112 9.3: an HTTP/1.0 client has to ask for keep-alive, and `close` wins.
#[test]
fn http10_connection_is_kept_if_the_client_asks() {
    for (fields, kept) in [
        ("", false),
        ("Connection: keep-alive\r\n", true),
        ("Connection: x, Keep-Alive\r\n", true),
        ("Connection: keep-alive, close\r\n", false),
    ] {
        let (head, _) = parse(format!("GET / HTTP/1.0\r\nHost: a\r\n{fields}\r\n").as_bytes()).unwrap();
        assert_eq!(head.keep_alive, kept, "{fields:?}");
    }
}

/// A request line and fields with occasional errors.
fn nearly_a_request() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        Just("GET / HTTP/1.1\r\n"),
        Just("POST http://b/x HTTP/1.1\r\n"),
        Just("\r\nGET / HTTP/1.0\r\n"),
        Just("\r\n\r\n\r\n"),
        Just("GET / HTTP/1.1\n"),
        Just("GET / HTTP/1.7\r\n"),
        Just("\r\nGET / HTTP/1.77\r\n"),
        Just("GET  / HTTP/1.1\r\n"),
        Just("PRI * HTTP/2.0\r\n"),
    ];
    let field = prop_oneof![
        Just("Host: a\r\n".to_owned()),
        Just("Content-Length: 3\r\n".to_owned()),
        Just("Transfer-Encoding: chunked\r\n".to_owned()),
        Just("X: y\n".to_owned()),
        Just(" folded\r\n".to_owned()),
        Just("\r\n".to_owned()),
        "[ -~\r\n\t:]{0,20}",
    ];
    (line, proptest::collection::vec(field, 0..6))
        .prop_map(|(line, fields)| [line.as_bytes(), fields.concat().as_bytes(), b"\r\n"].concat())
}

proptest! {
    #[test]
    fn parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut head = RequestHead::default();
        let _ = parse_request(&bytes, &mut head);
    }

    /// Holds for both checks: of every byte, and only of the line ends.
    #[test]
    fn parsed_head_has_no_bare_line_feed(bytes in nearly_a_request()) {
        if let Parsed::Head { bytes: end } = parse_request(&bytes, &mut RequestHead::default()) {
            prop_assert_eq!(bare_line_feed(&bytes[..end]), None);
        }
    }

    #[test]
    fn parsing_does_not_depend_on_the_split(bytes in nearly_a_request()) {
        let mut head = RequestHead::default();
        let whole = parse_request(&bytes, &mut head);
        let first = (0..=bytes.len())
            .map(|end| parse_request(&bytes[..end], &mut head))
            .find(|parsed| *parsed != Parsed::NeedBytes)
            .unwrap_or(Parsed::NeedBytes);
        prop_assert_eq!(first, whole);
    }
}

/// X-KI-16, X-QP-06: the route probe takes precedence over the health probe, in any order of their fields.
#[test]
fn probes_are_distinguished_from_requests() {
    for (fields, probe) in [
        ("User-Agent: curl/8", PlatformProbe::No),
        ("K-Kubelet-Probe:", PlatformProbe::No),
        ("user-agent: kube-probe/1.34", PlatformProbe::Health),
        ("K-Kubelet-Probe: queue", PlatformProbe::Health),
        ("K-Network-Probe: queue", PlatformProbe::Health),
        ("K-Network-Probe: probe", PlatformProbe::Route),
        ("K-Network-Probe: probe\r\nUser-Agent: kube-probe/1", PlatformProbe::Route),
        ("User-Agent: kube-probe/1\r\nK-Network-Probe: probe", PlatformProbe::Route),
    ] {
        let bytes = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        assert_eq!(parse(bytes.as_bytes()).unwrap().0.probe, probe, "{fields}");
    }
}
