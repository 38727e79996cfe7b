//! Requests that are events, and requests that are not, with the response to the sender.

mod oracle;

use proptest::prelude::*;

use super::*;
use crate::limits::ATTRIBUTES_MAX;

type TestHeaders<'a> = Vec<(&'a str, &'a [u8])>;

fn minimal() -> TestHeaders<'static> {
    vec![("ce-specversion", b"1.0"), ("ce-id", b"1"), ("ce-source", b"/s"), ("ce-type", b"t")]
}

fn with(name: &'static str, value: &'static [u8]) -> TestHeaders<'static> {
    let mut headers = minimal();
    headers.retain(|(found, _)| *found != name);
    headers.push((name, value));
    headers
}

/// EV-BRK-02, DP-PROTO-02: minimal attributes, extensions, any case, any data.
#[test]
fn binary_request_is_parsed() {
    let headers: TestHeaders<'_> = vec![
        ("Host", b"h"),
        ("Ce-SpecVersion", b"1.0"),
        ("CE-ID", b"\"a \\\"b\\\"\""),
        ("ce-source", b"urn:x:y"),
        ("ce-type", b"t"),
        ("ce-time", b"2018-04-05T17:31:00Z"),
        ("ce-dataschema", b"http://x/y"),
        ("ce-myext", b"%E2%82%AC"),
        ("Content-Type", b"text/plain"),
    ];
    let event = binary::parse(headers, b"\xff\x00").unwrap();
    assert_eq!(event.attribute("id"), Some("a \"b\""));
    assert_eq!(event.attribute("myext"), Some("€"));
    assert_eq!(event.attribute("datacontenttype"), Some("text/plain"));
    assert_eq!(event.attribute("host"), None);
    assert_eq!(event.data, EventData::Bytes(b"\xff\x00".into()));
    assert_eq!(binary::parse(minimal(), b"").unwrap().data, EventData::None);
}

/// Clients of Python and Node send characters up to U+00FF as single bytes, and URIs unencoded.
#[test]
fn header_without_percent_encoding_is_decoded() {
    let mut headers = with("ce-source", b"/a%2Fb");
    headers.extend([("ce-subject", b"Z\xfcrich".as_slice()), ("content-type", b"text/plain; name=\xe9")]);
    let event = binary::parse(headers.iter().copied(), b"").unwrap();
    let found = ["source", "subject", "datacontenttype"].map(|name| event.attribute(name));
    assert_eq!(found, [Some("/a%2Fb"), Some("Zürich"), Some("text/plain; name=é")]);
    assert!(binary::has_latin1(headers));
    assert!(!binary::has_latin1([("ce-subject", "Zürich".as_bytes()), ("x-other", b"\xfc")]));
}

/// DP-ACK-04: the response names the invalid attribute.
#[test]
fn bad_binary_request_names_invalid_attribute() {
    let cases: [(TestHeaders<'_>, &str, &str); 24] = [
        (vec![], "specversion", "missing"),
        (minimal().into_iter().filter(|(n, _)| *n != "ce-id").collect(), "id", "missing"),
        (minimal().into_iter().filter(|(n, _)| *n != "ce-source").collect(), "source", "missing"),
        (minimal().into_iter().filter(|(n, _)| *n != "ce-type").collect(), "type", "missing"),
        (with("ce-specversion", b"0.2"), "specversion", "1.0 or 0.3"),
        (with("ce-specversion", b"1"), "specversion", "1.0 or 0.3"),
        (with("ce-id", b""), "id", "empty"),
        (with("ce-source", b""), "source", "empty"),
        (with("ce-type", b" "), "type", "empty"),
        (with("ce-source", b"a b"), "source", "URI reference"),
        (with("ce-source", b"/a%zzb"), "source", "URI reference"),
        (with("ce-time", b"yesterday"), "time", "RFC 3339"),
        (with("ce-time", b""), "time", "empty"),
        (with("ce-subject", b""), "subject", "empty"),
        (with("ce-dataschema", b"/relative"), "dataschema", "absolute"),
        (with("ce-my-ext", b"1"), "my-ext", "a-z"),
        (with("ce-my_ext", b"1"), "my_ext", "a-z"),
        (with("ce-", b"1"), "", "a-z"),
        (with("ce-data", b"1"), "data", "payload"),
        (with("ce-datacontenttype", b"a/b"), "datacontenttype", "Content-Type"),
        (with("content-type", b"nonsense"), "datacontenttype", "media type"),
        (with("ce-ext", b"%ff"), "ext", "percent"),
        (with("ce-ext", b"%00"), "ext", "control"),
        (minimal().into_iter().chain([("CE-ID", &b"2"[..])]).collect(), "id", "twice"),
    ];
    for (headers, name, why) in cases {
        let error = binary::parse(headers.clone(), b"").unwrap_err();
        assert!(
            matches!(&error, MalformedEvent::Attribute { name: found, why: said } if **found == *name && said.contains(why)),
            "{headers:?}: {error}"
        );
    }
}

/// AMB-50: 0.3 has its own attributes; in it `dataschema` is just an extension, in 1.0 `schemaurl` is.
#[test]
fn each_version_has_its_own_rules() {
    let old = |name, value| {
        let mut headers = with("ce-specversion", b"0.3");
        headers.push((name, value));
        binary::parse(headers, b"").map(drop)
    };
    assert!(old("ce-schemaurl", b"/relative").is_ok());
    assert!(old("ce-schemaurl", b"a b").is_err());
    assert!(old("ce-dataschema", b"/relative").is_ok());
    assert!(old("ce-datacontentencoding", b"gzip").is_err());
    assert!(binary::parse(with("ce-schemaurl", b"a%20b"), b"").is_ok());
}

const ENVELOPE: &str = r#""specversion":"1.0","id":"1","source":"/s","type":"t""#;

/// DP-PROTO-03: types are kept, data is unchanged, base64 is decoded.
#[test]
fn envelope_is_parsed() {
    let body = format!(
        r#"{{{ENVELOPE}, "n":-0, "big":2147483647, "yes":true, "gone":null, "\u0065xt":"\u20ac", "data" : [1.0 , {{"id":2}}] }}"#
    );
    let event = structured::parse(body.as_bytes()).unwrap();
    let find = |name| event.attributes.iter().find(|a| a.name == name).map(|a| (&*a.value, a.kind));
    assert_eq!(find("n"), Some(("0", AttributeKind::Integer)));
    assert_eq!(find("big"), Some(("2147483647", AttributeKind::Integer)));
    assert_eq!(find("yes"), Some(("true", AttributeKind::Boolean)));
    assert_eq!(find("gone"), None);
    assert_eq!(find("ext"), Some(("€", AttributeKind::String)));
    assert_eq!(event.data, EventData::Json("[1.0 , {\"id\":2}]"));

    let body = format!(r#"{{{ENVELOPE},"data_base64":"\u0041P8="}}"#);
    assert_eq!(structured::parse(body.as_bytes()).unwrap().data, EventData::Bytes(b"\x00\xff".into()));
    for (members, data) in [
        (r#""data_base64":null"#, EventData::None),
        (r#""data_base64":null,"data":1"#, EventData::Json("1")),
        (r#""data":null"#, EventData::Json("null")),
    ] {
        let body = format!("{{{ENVELOPE},{members}}}");
        assert_eq!(structured::parse(body.as_bytes()).unwrap().data, data, "{members}");
    }
}

/// DP-ACK-04
#[test]
fn bad_envelope_is_rejected() {
    for (members, why) in [
        (r#""n":1.5"#, "\"n\" is a number but not an integer"),
        (r#""n":2147483648"#, "\"n\" is a number but not an integer"),
        (r#""o":{}"#, "\"o\" is an object"),
        (r#""o":[]"#, "\"o\" is an object"),
        (r#""id":"2""#, "\"id\" is given twice"),
        (r#""data":1,"data":2"#, "\"data\" is given twice"),
        (r#""data":1,"data_base64":"AA==""#, "is present together"),
        (r#""data_base64":"A""#, "base64"),
        (r#""data_base64":1"#, "base64"),
        (r#""Subject":"x""#, "a-z"),
        (r#""subject":7"#, "\"subject\" is not a string"),
        (r#""time":"x""#, "RFC 3339"),
        (r#""ext":"\u0000""#, "control"),
        (r#""ext":"\ud800""#, "valid JSON string"),
        (r#""x""#, "envelope"),
    ] {
        let body = format!("{{{ENVELOPE},{members}}}");
        let error = structured::parse(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{members}: {error}");
    }
    for body in [&b""[..], b"[]", b"null", b"{", b"\"\"", b"\xff", b"{} x"] {
        assert!(structured::parse(body).is_err());
    }
}

/// DP-ACK-04: base64 data of a 0.3 event is validated before the event is acknowledged. In 1.0 the same
/// attribute has no meaning.
#[test]
fn base64_of_old_event_is_validated() {
    let read = |version: &str, data: &str| {
        let body = format!(
            r#"{{"specversion":"{version}","id":"1","source":"/s","type":"t","datacontentencoding":"base64","data":{data}}}"#
        );
        structured::parse(body.as_bytes()).map(|event| event.is_encoded()).map_err(|why| why.to_string())
    };
    assert_eq!(read("0.3", r#""AP8=""#), Ok(true));
    for data in [r#""***""#, "{}", "7"] {
        assert!(read("0.3", data).unwrap_err().contains("\"data\" is not a string of base64"), "{data}");
        assert_eq!(read("1.0", data), Ok(false));
    }
}

/// EV-DLV-08: an event that was just accepted is accepted again when a stream forwards it, with the
/// attributes added by the stream.
#[test]
fn attributes_added_by_streams_do_not_count() {
    let added = r#""knativearrivaltime":"2026-11-21T15:00:00.000Z","knativeerrordest":"http://s/","knativeerrorcode":400,"knativeerrordata":"eA==""#;
    let many: String = (4..ATTRIBUTES_MAX).map(|n| format!(r#","x{n}":"""#)).collect();
    let read = |more: &str| match structured::parse(format!("{{{ENVELOPE}{more}}}").as_bytes()) {
        Ok(event) => Ok(event.bytes()),
        Err(why) => Err(why.to_string()),
    };
    let bytes = read(&many).unwrap();
    assert_eq!(read(&format!("{many},{added}")), Ok(bytes));
    assert!(read(&format!(r#"{many},"onemore":"""#)).unwrap_err().contains("256"));

    let much = format!(r#","knativeerrordata":"{}""#, "x".repeat(2 * ADDED_BYTES_MAX));
    assert!(read(&much).unwrap() > read("").unwrap() + ADDED_BYTES_MAX, "nor is it a way around the limit");
}

/// DP-PROTO-06, AMB-49: a batch is accepted as a whole or not at all, and the response says which event is
/// invalid.
#[test]
fn one_bad_event_rejects_batch() {
    let good = format!("[{{{ENVELOPE}}}, {{{ENVELOPE},\"data\":1}}]");
    assert_eq!(structured::parse_batch(good.as_bytes()).unwrap().len(), 2);
    assert_eq!(structured::parse_batch(b"[]").unwrap(), []);

    let bad = format!("[{{{ENVELOPE}}}, {{\"id\":\"1\"}}]");
    let error = structured::parse_batch(bad.as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "event 1 of the batch: attribute \"specversion\" is missing");
    assert!(structured::parse_batch(b"{}").is_err());
}

/// DP-PROTO-01, DP-PROTO-03
#[test]
fn content_type_alone_determines_mode() {
    for (value, expected) in [
        (None, ContentKind::Binary),
        (Some("application/json"), ContentKind::Binary),
        (Some("application/cloudevents+json"), ContentKind::Structured),
        (Some("Application/CloudEvents+JSON ; charset=utf-8"), ContentKind::Structured),
        (Some("application/cloudevents-batch+json"), ContentKind::Batch),
        (Some("application/cloudevents+avro"), ContentKind::Unknown),
        (Some("application/cloud"), ContentKind::Binary),
    ] {
        assert_eq!(carriage(value.map(str::as_bytes)), expected, "{value:?}");
    }
}

proptest! {
    #[test]
    fn binary_parser_never_panics(
        names in proptest::collection::vec("(ce-|CE-)?[a-z0-9%é-]{0,6}", 0..6),
        values in proptest::collection::vec(any::<Vec<u8>>(), 6),
    ) {
        let mut headers = minimal();
        headers.extend(names.iter().map(String::as_str).zip(values.iter().map(Vec::as_slice)));
        let _ = binary::parse(headers, &values[0]);
    }

    #[test]
    fn envelope_parser_never_panics(noise: Vec<u8>, json in "[\\[{}\\]:,\"a-z0-9\\\\ -]{0,60}") {
        let _ = (structured::parse(&noise), structured::parse(json.as_bytes()));
        let _ = structured::parse_batch(json.as_bytes());
        let close = format!("{{{ENVELOPE},\"{json}\":{json}}}");
        let _ = structured::parse(close.as_bytes());
    }
}
