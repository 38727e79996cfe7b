//! Parses a response head from an instance. As strict as for requests, except for blanks before a colon, which are
//! removed (RFC 9112 5.1): two parsers that disagree about where a response ends would mix up the responses of clients.

use std::mem::MaybeUninit;

use super::transfer_coding::TransferCoding;
use super::{
    BodyFraming, ByteRange, FieldName, HeaderField, HttpVersion, MalformedHttp, Method, Parsed, bare_line_feed,
    content_length, first_line, is_cut_by_crlf, text, tokens, with_supported_version,
};
use crate::http::limits::{EMPTY_LINES, FIELDS_CEILING, FIELDS_USUAL, HeadLimits};

/// A response head as ranges into its bytes; reused for the connection's next response.
#[derive(Debug, Default)]
pub struct ResponseHead {
    /// The maximum size.
    pub limits: HeadLimits,
    pub status: u16,
    pub version: HttpVersion,
    pub framing: BodyFraming,
    /// The connection can carry another request after this response.
    pub keep_alive: bool,
    /// `Connection` names fields beyond `close`, `keep-alive` and `upgrade`.
    pub nominates: bool,
    pub fields: Vec<HeaderField>,
    reason: ByteRange,
}

impl ResponseHead {
    #[must_use]
    pub fn view<'a>(&'a self, bytes: &'a [u8]) -> ResponseView<'a> {
        ResponseView { head: self, bytes }
    }

    /// 1xx, but not 101: another head follows.
    #[must_use]
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }
}

/// A head together with its bytes.
#[derive(Debug, Clone, Copy)]
pub struct ResponseView<'a> {
    pub head: &'a ResponseHead,
    pub bytes: &'a [u8],
}

impl<'a> ResponseView<'a> {
    #[must_use]
    pub fn reason(self) -> &'a [u8] {
        self.head.reason.in_bytes(self.bytes)
    }

    #[inline]
    pub fn fields(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let bytes = self.bytes;
        self.head.fields.iter().map(move |f| (text(f.name.in_bytes(bytes)), f.value.in_bytes(bytes)))
    }

    /// The first field of that name (any case).
    #[must_use]
    pub fn field(self, name: &str) -> Option<&'a [u8]> {
        self.fields().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All values of one kind, in order.
    #[inline]
    pub fn values(self, kind: FieldName) -> impl Iterator<Item = &'a [u8]> {
        let bytes = self.bytes;
        self.head.fields.iter().filter(move |f| f.kind == kind).map(move |f| f.value.in_bytes(bytes))
    }
}

/// Parses the head of the response to a request with method `asked` from the front of `bytes` into `head`.
#[must_use]
pub fn parse_response(bytes: &[u8], asked: Method, head: &mut ResponseHead) -> Parsed {
    let window = &bytes[..bytes.len().min(head.limits.bytes())];
    match lines(window, head) {
        Ok(Some(end)) => match check_fields(window, asked, head) {
            Ok(()) => Parsed::Head { bytes: end },
            Err(why) => Parsed::Malformed(why),
        },
        Ok(None) if window.len() == head.limits.bytes() => Parsed::Malformed(MalformedHttp::HeadTooLarge),
        Ok(None) => Parsed::NeedBytes,
        Err(why) => Parsed::Malformed(why),
    }
}

/// Splits the lines; `None` when the head is incomplete.
fn lines(window: &[u8], head: &mut ResponseHead) -> Result<Option<usize>, MalformedHttp> {
    if window.starts_with(EMPTY_LINES) {
        return Err(MalformedHttp::StatusLine);
    }
    let end = split(window, head);
    if let Ok(Some(end)) = end
        && is_cut_by_crlf(&window[..end], &head.fields)
    {
        return Ok(Some(end));
    }
    let read = end.as_ref().map_or(window.len(), |end| end.unwrap_or(window.len()));
    match bare_line_feed(&window[..read]) {
        None => end,
        Some(at) => split(&window[..at], head).and(Err(MalformedHttp::BareLineFeed)),
    }
}

fn split(window: &[u8], head: &mut ResponseHead) -> Result<Option<usize>, MalformedHttp> {
    match split_as_it_is(window, head) {
        Err(MalformedHttp::Version) => match first_line(window).and_then(|at| with_supported_version(window, at)) {
            Some(known) => split_as_it_is(&known, head),
            None => Err(MalformedHttp::Version),
        },
        split => split,
    }
    // The version is part of the status line, so the error is reported for that.
    .map_err(|why| if why == MalformedHttp::Version { MalformedHttp::StatusLine } else { why })
}

fn split_as_it_is(window: &[u8], head: &mut ResponseHead) -> Result<Option<usize>, MalformedHttp> {
    let mut slots = [const { MaybeUninit::uninit() }; FIELDS_USUAL];
    let usual = head.limits.fields().min(FIELDS_USUAL);
    match split_into(window, head, &mut slots[..usual]) {
        Err(MalformedHttp::TooManyFields) if head.limits.fields() > usual => split_with_many_fields(window, head),
        split => split,
    }
}

/// A separate function, so that the usual head uses less stack.
#[inline(never)]
fn split_with_many_fields(window: &[u8], head: &mut ResponseHead) -> Result<Option<usize>, MalformedHttp> {
    let mut slots = [const { MaybeUninit::uninit() }; FIELDS_CEILING as usize];
    let many = head.limits.fields().min(slots.len());
    split_into(window, head, &mut slots[..many])
}

fn split_into<'a>(
    window: &'a [u8],
    head: &mut ResponseHead,
    slots: &mut [MaybeUninit<httparse::Header<'a>>],
) -> Result<Option<usize>, MalformedHttp> {
    let mut response = httparse::Response::new(&mut []);
    let mut config = httparse::ParserConfig::default();
    config.allow_spaces_after_header_name_in_responses(true);
    let parsed = config.parse_response_with_uninit_headers(&mut response, window, slots);
    let end = match parsed {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::HeaderName) => return Err(MalformedHttp::FieldName),
        Err(httparse::Error::HeaderValue) => return Err(MalformedHttp::FieldValue),
        Err(httparse::Error::TooManyHeaders) => return Err(MalformedHttp::TooManyFields),
        Err(httparse::Error::Version) => return Err(MalformedHttp::Version),
        Err(_) => return Err(MalformedHttp::StatusLine),
    };

    let (Some(status), Some(version)) = (response.code, response.version) else {
        return Err(MalformedHttp::StatusLine);
    };
    head.status = status;
    head.version = if version == 0 { HttpVersion::Http10 } else { HttpVersion::Http11 };
    // httparse returns a static "" when there is no reason, or one with obs-text.
    head.reason = match response.reason {
        None | Some("") => ByteRange::default(),
        Some(reason) => ByteRange::of(reason.as_bytes(), window),
    };
    head.fields.clear();
    head.fields.extend(response.headers.iter().map(|header| HeaderField {
        kind: FieldName::of(header.name.as_bytes()),
        name: ByteRange::of(header.name.as_bytes(), window),
        value: ByteRange::of(header.value, window),
    }));
    Ok(Some(end))
}

/// Checks the fields against each other (RFC 9112 6.3).
fn check_fields(bytes: &[u8], asked: Method, head: &mut ResponseHead) -> Result<(), MalformedHttp> {
    if !(100..1000).contains(&head.status) {
        return Err(MalformedHttp::StatusLine);
    }

    let mut length = None;
    let mut coding = TransferCoding::None;
    let mut close = head.version == HttpVersion::Http10;
    head.nominates = false;
    for field in &head.fields {
        let value = field.value.in_bytes(bytes);
        match field.kind {
            FieldName::ContentLength if length.is_some() => return Err(MalformedHttp::LengthRepeated),
            FieldName::ContentLength => length = Some(content_length(value).ok_or(MalformedHttp::LengthInvalid)?),
            FieldName::TransferEncoding => coding.add(value),
            FieldName::UnderscoreVariant => return Err(MalformedHttp::FieldName),
            FieldName::Connection if value == b"keep-alive" => {} // the usual value, which changes nothing
            FieldName::Connection => {
                for token in tokens(value) {
                    close |= token.eq_ignore_ascii_case(b"close");
                    head.nominates |= ![b"close".as_slice(), b"keep-alive", b"upgrade"]
                        .iter()
                        .any(|known| token.eq_ignore_ascii_case(known));
                }
            }
            _ => {}
        }
    }

    let framing = match (coding, length) {
        (TransferCoding::None, None) => BodyFraming::UntilClose,
        (TransferCoding::None, Some(0)) => BodyFraming::Empty,
        (TransferCoding::None, Some(length)) => BodyFraming::Length(length),
        (_, Some(_)) => return Err(MalformedHttp::LengthAndCoding),
        (_, None) if head.version == HttpVersion::Http10 => return Err(MalformedHttp::CodingInOldVersion),
        (TransferCoding::Chunked, None) => BodyFraming::Chunked,
        (TransferCoding::Unknown, None) => return Err(MalformedHttp::CodingUnknown),
        (TransferCoding::Open | TransferCoding::Invalid, None) => return Err(MalformedHttp::CodingInvalid),
    };
    let bodiless = asked == Method::Head || matches!(head.status, 100..200 | 204 | 304);
    head.framing = if bodiless { BodyFraming::Empty } else { framing };
    head.keep_alive = !close && head.framing != BodyFraming::UntilClose;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str, asked: Method) -> Result<ResponseHead, MalformedHttp> {
        let mut head = ResponseHead::default();
        match parse_response(text.as_bytes(), asked, &mut head) {
            Parsed::Head { bytes } => {
                assert_eq!(bytes, text.len());
                Ok(head)
            }
            Parsed::Malformed(why) => Err(why),
            Parsed::NeedBytes => panic!("incomplete: {text:?}"),
        }
    }

    #[test]
    fn response_body_ends_where_rfc_9112_says() {
        use BodyFraming::{Chunked, Empty, Length, UntilClose};
        use Method::{Get, Head};
        for (asked, head, framing) in [
            (Get, "200 OK\r\nContent-Length: 5", Length(5)),
            (Get, "200 OK\r\nContent-Length: 0", Empty),
            (Get, "200\r\nTransfer-Encoding: Chunked", Chunked),
            (Get, "200 OK\r\nA: b", UntilClose),
            (Head, "200 OK\r\nContent-Length: 5", Empty),
            (Head, "200 OK\r\nTransfer-Encoding: chunked", Empty),
            (Get, "204 No Content\r\nContent-Length: 5", Empty),
            (Get, "304 Not Modified\r\nContent-Length: 5", Empty),
            (Get, "103 Early Hints\r\nLink: x", Empty),
        ] {
            let parsed = parse(&format!("HTTP/1.1 {head}\r\n\r\n"), asked).unwrap();
            assert_eq!(parsed.framing, framing, "{head}");
        }
    }

    #[test]
    fn ambiguous_response_is_rejected() {
        for (head, why) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5", MalformedHttp::LengthRepeated),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5", MalformedHttp::LengthInvalid),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1", MalformedHttp::LengthInvalid),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", MalformedHttp::LengthAndCoding),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity", MalformedHttp::CodingInvalid),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked", MalformedHttp::CodingUnknown),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked", MalformedHttp::CodingInOldVersion),
            ("HTTP/1.1 200 OK\r\n Content-Length: 5", MalformedHttp::FieldName),
            ("HTTP/1.1 200 OK\r\nContent Length : 5", MalformedHttp::FieldName),
            ("HTTP/1.1 200 OK\r\nContent-Length : 5\r\nContent-Length: 5", MalformedHttp::LengthRepeated),
            ("HTTP/1.1 200 OK\r\nContent_Length : 5", MalformedHttp::FieldName),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c", MalformedHttp::FieldName),
            ("HTTP/1.1 200 OK\nA: b", MalformedHttp::BareLineFeed),
            ("HTTP/1.1 200 OK\r\nA: b\nC: d", MalformedHttp::BareLineFeed),
            ("\nHTTP/1.1 200 OK\r\nA: b", MalformedHttp::BareLineFeed),
            ("\r\n\nHTTP/1.1 200 OK\r\nA: b", MalformedHttp::BareLineFeed),
            ("HTTP/1.1 200 OK\r\nA: b\rc", MalformedHttp::FieldValue),
            ("HTTP/1.1 20 OK", MalformedHttp::StatusLine),
            ("HTTP/1.1 099 OK", MalformedHttp::StatusLine),
            ("ICY 200 OK", MalformedHttp::StatusLine),
        ] {
            assert_eq!(parse(&format!("{head}\r\n\r\n"), Method::Get).unwrap_err(), why, "{head}");
        }
    }

    proptest! {
        /// Holds for both checks: of every byte, and only of the line ends.
        #[test]
        fn parsed_head_has_no_bare_line_feed(bytes in nearly_a_response()) {
            if let Parsed::Head { bytes: end } = parse_response(&bytes, Method::Get, &mut ResponseHead::default()) {
                prop_assert_eq!(bare_line_feed(&bytes[..end]), None);
            }
        }
    }

    /// Parts of responses in any order, with any line ends.
    fn nearly_a_response() -> impl Strategy<Value = Vec<u8>> {
        let ends = || prop_oneof![6 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just("")];
        let line = prop::sample::select(vec!["A: b", "A:", "Content-Length: 0", "", " c", "B:\tx "]);
        let lines = prop::collection::vec((line, ends()), 0..5);
        let status = prop::sample::select(vec!["HTTP/1.1 200 OK", "HTTP/1.1 200", "HTTP/1.0 404 No"]);
        (prop::collection::vec(ends(), 0..2), status, ends(), lines, ends()).prop_map(
            |(before, status, end, lines, last)| {
                let lines: String = lines.iter().map(|(line, end)| format!("{line}{end}")).collect();
                format!("{}{status}{end}{lines}{last}", before.concat()).into_bytes()
            },
        )
    }

    #[test]
    fn connection_is_kept_only_with_a_known_end() {
        for (head, kept) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: x, Close", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5", false),
            ("HTTP/1.1 200 OK\r\nA: b", false),
            ("HTTP/1.1 204 No Content", true),
        ] {
            assert_eq!(parse(&format!("{head}\r\n\r\n"), Method::Get).unwrap().keep_alive, kept, "{head}");
        }
    }

    /// RFC 9110 2.5: a response of a later minor version is read as the highest supported one, for any split.
    #[test]
    fn later_minor_version_is_read_as_http11() {
        for (text, framing, kept) in [
            ("HTTP/1.2 200 OK\r\nContent-Length: 5\r\n\r\n", BodyFraming::Length(5), true),
            ("\r\nHTTP/1.9 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", BodyFraming::Chunked, true),
            ("HTTP/1.2 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", BodyFraming::Length(5), false),
        ] {
            let head = parse(text, Method::Get).unwrap();
            assert_eq!((head.framing, head.keep_alive, head.version), (framing, kept, HttpVersion::Http11));
            assert_eq!(head.view(text.as_bytes()).reason(), b"OK");
            for end in 0..text.len() {
                let parsed = parse_response(&text.as_bytes()[..end], Method::Get, &mut ResponseHead::default());
                assert_eq!(parsed, Parsed::NeedBytes, "{end} bytes of {text:?}");
            }
        }
        for (text, why) in [
            ("HTTP/1.25 200 OK\r\n\r\n", MalformedHttp::StatusLine),
            ("HTTP/2.0 200 OK\r\n\r\n", MalformedHttp::StatusLine),
            ("HTTP/3 200 OK\r\n\r\n", MalformedHttp::StatusLine),
            ("HTTP/1.2 20 OK\r\n\r\n", MalformedHttp::StatusLine),
            ("HTTP/1.2 200 OK\nA: b\r\n\r\n", MalformedHttp::BareLineFeed),
            ("HTTP/1.2 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", MalformedHttp::LengthRepeated),
        ] {
            assert_eq!(parse(text, Method::Get).unwrap_err(), why, "{text:?}");
        }
    }

    /// RFC 9112 5.1: the blank belongs to neither name nor value.
    #[test]
    fn blank_before_the_colon_is_not_part_of_the_name() {
        for blank in [" ", "\t", " \t "] {
            let text = format!("HTTP/1.1 200 OK\r\nContent-Length{blank}: 5\r\nX-A{blank}:b\r\n\r\n");
            let head = parse(&text, Method::Get).unwrap();
            assert_eq!(head.framing, BodyFraming::Length(5), "{blank:?}");
            assert_eq!(head.view(text.as_bytes()).field("x-a"), Some(b"b".as_slice()));
        }
    }

    #[test]
    fn head_is_accepted_up_to_its_limits() {
        for (fields_max, fields, taken) in [(4, 4, true), (4, 5, false), (256, 256, true), (256, 257, false)] {
            let text = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(fields));
            let limits = HeadLimits { fields_max, ..HeadLimits::default() };
            let mut head = ResponseHead { limits, ..ResponseHead::default() };
            let parsed = parse_response(text.as_bytes(), Method::Get, &mut head);
            assert_eq!(parsed == Parsed::Head { bytes: text.len() }, taken, "{fields} of {fields_max}");
        }
        let text = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(60_000));
        assert!(parse(&text, Method::Get).is_ok());
        let limits = HeadLimits { bytes_max: 60_000, ..HeadLimits::default() };
        let mut head = ResponseHead { limits, ..ResponseHead::default() };
        let parsed = parse_response(text.as_bytes(), Method::Get, &mut head);
        assert_eq!(parsed, Parsed::Malformed(MalformedHttp::HeadTooLarge));
    }

    #[test]
    fn reason_phrase_is_kept_and_optional() {
        let text = "HTTP/1.1 418 I am a teapot\r\n\r\n";
        assert_eq!(parse(text, Method::Get).unwrap().view(text.as_bytes()).reason(), b"I am a teapot");
        let text = "HTTP/1.1 200 \r\n\r\n";
        assert_eq!(parse(text, Method::Get).unwrap().view(text.as_bytes()).reason(), b"");
    }
}
