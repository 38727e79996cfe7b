//! Translates heads between HTTP/2 and HTTP/1.
//!
//! A request from an HTTP/2 client is written as an HTTP/1 head and parsed by the parser for all others, so host,
//! target, framing and forbidden bytes are checked in one place.

use base64::Engine as _;
use bytes::{BufMut, Bytes, BytesMut};
use codec::http::put_status;
use codec::http::{
    FieldName, MalformedHttp, Parsed, RequestHead, ResponseView, content_length, has_token, parse_request,
};
use contract::client_address::ClientScheme;
use http::Response;
use http::header::{HeaderName, HeaderValue};
use http2::FieldBlock;
use http2::hpack::RequestPseudoFields;

use super::grpc;
use crate::http::headers::ResponseContext;

/// Fields for which a head has room at first, so that few heads need more than one allocation.
const FIELDS_USUAL: usize = 16;

/// A request of an HTTP/2 client, parsed like one of HTTP/1.
#[derive(Debug)]
pub struct TranslatedRequest {
    pub bytes: BytesMut,
    pub head: RequestHead,
    /// It accepts trailers (`te: trailers`), which is forwarded only to HTTP/2 instances.
    pub wants_trailers: bool,
}

/// Translates a client's head. `ends`: no body follows.
pub fn from_client(request: &FieldBlock, ends: bool) -> Result<TranslatedRequest, MalformedHttp> {
    if request.method() == b"CONNECT" {
        // Recognised as CONNECT, whatever its target.
        let authority = authority(request)?;
        let mut out = BytesMut::new();
        put(&mut out, &[b"CONNECT ", authority, b" HTTP/1.1\r\nHost: ", authority, b"\r\n\r\n"]);
        return parsed(out);
    }
    translate(request, ends, request.method(), b"")
}

/// Whether a request asks for a WebSocket (RFC 8441 5).
#[must_use]
pub fn is_websocket(request: &FieldBlock) -> bool {
    request.protocol().is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

/// Translates the head of an extended CONNECT for a WebSocket (RFC 8441 5) into the handshake of RFC 6455. `key` is the
/// nonce that the instance answers.
pub fn websocket_from_client(request: &FieldBlock, key: [u8; 16]) -> Result<TranslatedRequest, MalformedHttp> {
    let key = base64::engine::general_purpose::STANDARD.encode(key);
    let handshake = format!("connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: {key}\r\n");
    if request.values(b"sec-websocket-key").next().is_some() {
        return Err(MalformedHttp::FieldName); // this handshake has no key of the client, and two would be ambiguous
    }
    translate(request, true, b"GET", handshake.as_bytes())
}

/// What a field takes in HTTP/1 beyond its name and value: `: ` and the line end.
const LINE_BYTES: usize = 4;
/// The request line, `Host` and a field for the framing, in lines of [`LINE_BYTES`].
const LINES_ADDED: usize = 16;

/// Writes a head and parses it. `further` holds additional header lines.
fn translate(
    request: &FieldBlock,
    ends: bool,
    method: &[u8],
    further: &[u8],
) -> Result<TranslatedRequest, MalformedHttp> {
    let authority = authority(request)?;
    let mut out = BytesMut::with_capacity(request.bytes() + LINE_BYTES * (request.len() + LINES_ADDED) + further.len());
    put(&mut out, &[method, b" ", request.path(), b" HTTP/1.1\r\nHost: ", authority, b"\r\n", further]);
    let (mut has_length, mut has_cookie, mut wants_trailers) = (false, false, false);
    for (name, value) in request.fields() {
        if has_blanks_around(value) {
            return Err(MalformedHttp::FieldValue);
        }
        match name {
            b"host" => continue,
            // HTTP/2 lets a client split it; HTTP/1 has one (RFC 9113 8.2.3).
            b"cookie" if has_cookie => continue,
            b"cookie" => {
                has_cookie = true;
                put_cookies(&mut out, request);
                continue;
            }
            // Fields of one connection: the codec rejects them, but this check must not depend on that.
            b"transfer-encoding" | b"connection" | b"upgrade" => return Err(MalformedHttp::CodingInvalid),
            b"content-length" => {
                has_length = true;
                if ends && value.iter().any(|byte| *byte != b'0') {
                    return Err(MalformedHttp::LengthInvalid);
                }
            }
            b"te" => wants_trailers |= has_token(value, "trailers"),
            _ => {}
        }
        put(&mut out, &[name, b": ", value, b"\r\n"]);
    }
    if !ends && !has_length {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    } else if ends && !has_length && matches!(method, b"POST" | b"PUT" | b"PATCH") {
        out.put_slice(b"content-length: 0\r\n"); // many servers require it
    }
    out.put_slice(b"\r\n");
    Ok(TranslatedRequest { wants_trailers, ..parsed(out)? })
}

/// Writes all cookies as one field.
fn put_cookies(out: &mut BytesMut, request: &FieldBlock) {
    let mut before: &[u8] = b"cookie: ";
    for cookie in request.values(b"cookie") {
        put(out, &[before, cookie]);
        before = b"; ";
    }
    out.put_slice(b"\r\n");
}

/// Whether the request is a gRPC call.
#[must_use]
pub fn is_grpc(request: &FieldBlock) -> bool {
    request.values(b"content-type").next().is_some_and(grpc::is_content_type)
}

/// Whether a value has blanks around it. HTTP/1 drops them and HTTP/2 forbids them (RFC 9113 8.2.1): two proxies that
/// forward them differently would disagree about the value.
#[must_use]
pub fn is_padded(value: &HeaderValue) -> bool {
    has_blanks_around(value.as_bytes())
}

fn has_blanks_around(value: &[u8]) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    blank(value.first()) || blank(value.last())
}

/// The one host of the request.
fn authority(request: &FieldBlock) -> Result<&[u8], MalformedHttp> {
    let mut hosts = request.values(b"host");
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(MalformedHttp::HostRepeated);
    }
    match (request.authority(), host) {
        (Some(authority), Some(host)) if !are_one(authority, host, request.scheme()) => {
            Err(MalformedHttp::HostRepeated)
        }
        (Some(authority), _) => Ok(authority),
        (None, Some(host)) => Ok(host),
        (None, None) => Err(MalformedHttp::HostMissing),
    }
}

/// Whether both name the same host, where the default port of the scheme may be left out (RFC 9113 8.3.1).
fn are_one(authority: &[u8], host: &[u8], scheme: &[u8]) -> bool {
    let usual: &[u8] = match scheme {
        b"http" => b":80",
        b"https" => b":443",
        _ => b":",
    };
    let [authority, host] = [authority, host].map(|name| name.strip_suffix(usual).unwrap_or(name));
    authority.eq_ignore_ascii_case(host)
}

fn parsed(bytes: BytesMut) -> Result<TranslatedRequest, MalformedHttp> {
    let mut head = RequestHead::rewritten();
    head.fields.reserve(FIELDS_USUAL);
    match parse_request(&bytes, &mut head) {
        Parsed::Head { bytes: end } if end == bytes.len() => {
            Ok(TranslatedRequest { bytes, head, wants_trailers: false })
        }
        Parsed::Malformed(why) => Err(why),
        Parsed::Head { .. } | Parsed::NeedBytes => Err(MalformedHttp::RequestLine),
    }
}

/// The head of a request for an instance that speaks HTTP/2.
#[derive(Debug)]
pub struct InstanceRequest {
    bytes: Bytes,
    head: RequestHead,
    wants_trailers: bool,
    scheme: ClientScheme,
}

impl InstanceRequest {
    /// Reads a head, as written by [`crate::http::headers::put_request`].
    ///
    /// # Errors
    /// The head is malformed.
    pub fn read(written: Bytes, wants_trailers: bool, scheme: ClientScheme) -> Result<Self, MalformedHttp> {
        let mut head = RequestHead::rewritten();
        head.fields.reserve(FIELDS_USUAL);
        match parse_request(&written, &mut head) {
            Parsed::Head { .. } => Ok(Self { bytes: written, head, wants_trailers, scheme }),
            Parsed::NeedBytes => Err(MalformedHttp::RequestLine),
            Parsed::Malformed(why) => Err(why),
        }
    }

    pub(super) fn pseudo_fields(&self) -> RequestPseudoFields<'_> {
        let view = self.head.view(&self.bytes);
        RequestPseudoFields {
            method: view.method().as_bytes(),
            scheme: self.scheme.name().as_bytes(),
            authority: view.authority().as_bytes(),
            path: view.path().as_bytes(),
        }
    }

    /// The other fields. Their names are as they were written.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.head.fields.iter().filter(|field| {
            !matches!(
                field.kind,
                FieldName::Host
                    | FieldName::TransferEncoding
                    | FieldName::Connection
                    | FieldName::Upgrade
                    | FieldName::HopByHop
            )
        });
        let fields = fields.map(|field| (field.name.in_bytes(&self.bytes), field.value.in_bytes(&self.bytes)));
        let fields = fields.filter(|(name, _)| !name.eq_ignore_ascii_case(b"te"));
        fields.chain(self.wants_trailers.then_some((&b"te"[..], &b"trailers"[..])))
    }
}

/// Fields that the proxy usually adds to a response: its date, or a cookie.
const HEADERS_ADDED: usize = 2;

/// Translates the response head of an HTTP/1 instance, without its connection fields.
pub fn from_instance(view: ResponseView<'_>) -> Result<Response<()>, MalformedHttp> {
    let mut answer = Response::new(());
    *answer.status_mut() = http::StatusCode::from_u16(view.head.status).map_err(|_| MalformedHttp::StatusLine)?;
    answer.headers_mut().reserve(view.head.fields.len() + HEADERS_ADDED);
    for field in &view.head.fields {
        let name = field.name.in_bytes(view.bytes);
        match field.kind {
            FieldName::Connection | FieldName::Upgrade | FieldName::HopByHop | FieldName::TransferEncoding => continue,
            FieldName::ContentLength if has_no_length(view.head.status) => continue,
            FieldName::Other | FieldName::ForwardedOther if view.head.nominates && is_nominated(view, name) => continue,
            _ => {}
        }
        let name = HeaderName::from_bytes(name).map_err(|_| MalformedHttp::FieldName)?;
        let value = HeaderValue::from_bytes(field.value.in_bytes(view.bytes)).map_err(|_| MalformedHttp::FieldValue)?;
        answer.headers_mut().append(name, value);
    }
    Ok(answer)
}

fn has_no_length(status: u16) -> bool {
    status < 200 || status == 204
}

fn is_nominated(view: ResponseView<'_>, name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| view.values(FieldName::Connection).any(|value| has_token(value, name)))
}

/// Checks the response head of an HTTP/2 instance and removes connection fields. As strict as for HTTP/1, except that a
/// repeated equal length is merged (RFC 9110 8.6): the frames delimit the body.
pub fn from_h2_instance(fields: &FieldBlock) -> Result<Response<()>, MalformedHttp> {
    let mut answer = Response::new(());
    let status = fields.status().and_then(|status| http::StatusCode::from_u16(status).ok());
    *answer.status_mut() = status.ok_or(MalformedHttp::StatusLine)?;
    let mut length = None;
    answer.headers_mut().reserve(fields.len() + HEADERS_ADDED);
    for (name, value) in fields.fields() {
        if has_blanks_around(value) {
            return Err(MalformedHttp::FieldValue);
        }
        match FieldName::of(name) {
            FieldName::Connection | FieldName::Upgrade | FieldName::HopByHop | FieldName::TransferEncoding => continue,
            FieldName::UnderscoreVariant => return Err(MalformedHttp::FieldName),
            FieldName::ContentLength => {
                let said = content_length(value).ok_or(MalformedHttp::LengthInvalid)?;
                match length.replace(said) {
                    Some(before) if before == said => continue,
                    Some(_) => return Err(MalformedHttp::LengthRepeated),
                    None if has_no_length(answer.status().as_u16()) => continue,
                    None => {}
                }
            }
            _ => {}
        }
        let name = HeaderName::from_bytes(name).map_err(|_| MalformedHttp::FieldName)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| MalformedHttp::FieldValue)?;
        answer.headers_mut().append(name, value);
    }
    Ok(answer)
}

/// Writes a response head for an HTTP/1 client, including the empty line.
pub fn put_answer(out: &mut BytesMut, answer: &Response<()>, client: ResponseContext) {
    out.put_slice(b"HTTP/1.1 ");
    put_status(out, answer.status().as_u16());
    let reason = answer.status().canonical_reason().unwrap_or_default();
    put(out, &[b" ", reason.as_bytes(), b"\r\n"]);
    for (name, value) in answer.headers() {
        put(out, &[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    if let Some(date) = client.date.filter(|_| !answer.headers().contains_key(http::header::DATE)) {
        put(out, &[b"date: ", &date, b"\r\n"]);
    }
    if client.chunked {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    }
    if client.close && answer.status().as_u16() >= 200 {
        out.put_slice(b"connection: close\r\n");
    } else if client.keep_alive && answer.status().as_u16() >= 200 {
        out.put_slice(b"connection: keep-alive\r\n");
    }
    out.put_slice(b"\r\n");
}

fn put(out: &mut BytesMut, parts: &[&[u8]]) {
    for part in parts {
        out.put_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::http::BodyFraming;

    /// A request to `http://app.example:8080/a//b?x=%2F`, whose fields with a colon replace the usual ones. An empty
    /// one is left out.
    fn request(method: &str, more: &[(&str, &str)]) -> FieldBlock {
        let usual =
            [(":method", method), (":scheme", "http"), (":authority", "app.example:8080"), (":path", "/a//b?x=%2F")];
        let mut block = FieldBlock::new(10_000);
        for (name, value) in usual {
            let value = more.iter().find(|(other, _)| *other == name).map_or(value, |(_, value)| *value);
            if !value.is_empty() {
                block.push(name.as_bytes(), value.as_bytes());
            }
        }
        let fields = more.iter().filter(|(name, _)| !name.starts_with(':'));
        fields.for_each(|(name, value)| block.push(name.as_bytes(), value.as_bytes()));
        block
    }

    #[test]
    fn translated_request_keeps_target_fields_and_framing() {
        let block = request("POST", &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2"), ("te", "trailers")]);
        let translated = from_client(&block, false).unwrap();
        let view = translated.head.view(&translated.bytes);
        assert_eq!((view.method(), view.path(), view.authority()), ("POST", "/a//b?x=%2F", "app.example:8080"));
        assert_eq!(translated.head.framing, BodyFraming::Chunked);
        assert_eq!(view.field("cookie"), Some(b"a=1; b=2".as_slice()));
        assert!(translated.wants_trailers);

        let sized = from_client(&request("POST", &[("content-length", "12")]), false).unwrap();
        assert_eq!(sized.head.framing, BodyFraming::Length(12));
        assert_eq!(from_client(&block, true).unwrap().head.framing, BodyFraming::Empty);
    }

    #[test]
    fn ambiguous_request_is_rejected() {
        for (fields, why) in [
            (&[("host", "other")][..], MalformedHttp::HostRepeated),
            (&[("host", "app.example:8080"), ("host", "x")], MalformedHttp::HostRepeated),
            (&[(":authority", "")], MalformedHttp::HostMissing),
            (&[(":authority", ""), ("host", "a/b")], MalformedHttp::HostInvalid),
            (&[(":authority", "user@app")], MalformedHttp::HostInvalid),
            (&[(":authority", "a\u{e9}")], MalformedHttp::HostInvalid),
            (&[("content-length", "1"), ("content-length", "1")], MalformedHttp::LengthRepeated),
            (&[("content-length", "+1")], MalformedHttp::LengthInvalid),
            (&[("x", " a")], MalformedHttp::FieldValue),
            (&[("x", "a\t")], MalformedHttp::FieldValue),
            (&[("cookie", "a=1"), ("cookie", "b=2 ")], MalformedHttp::FieldValue),
        ] {
            assert_eq!(from_client(&request("POST", fields), false).unwrap_err(), why, "{fields:?}");
        }
        let lies = request("POST", &[("content-length", "5")]);
        assert_eq!(from_client(&lies, true).unwrap_err(), MalformedHttp::LengthInvalid);
    }

    /// RFC 9113 8.3.1: hosts are compared with the default port of their scheme.
    #[test]
    fn default_port_does_not_change_the_host() {
        for (scheme, authority, host, one) in [
            ("http", "app.example", "app.example:80", true),
            ("http", "app.example:80", "APP.example", true),
            ("https", "app.example", "app.example:443", true),
            ("https", "app.example", "app.example:80", false),
            ("http", "app.example", "app.example:8080", false),
            ("http", "app.example", "app.example:80:80", false),
        ] {
            let fields = [(":scheme", scheme), (":authority", authority), ("host", host)];
            let read = from_client(&request("GET", &fields), true);
            assert_eq!(read.is_ok(), one, "{scheme} {authority} and {host}");
        }
    }

    #[test]
    fn http2_instance_gets_the_same_request() {
        let written = b"POST /a?b HTTP/1.1\r\nHost: app:1\r\nX-Y: z\r\nTransfer-Encoding: chunked\r\n\r\n";
        let request = InstanceRequest::read(Bytes::from_static(written), true, ClientScheme::Http).unwrap();
        let RequestPseudoFields { method, scheme, authority, path } = request.pseudo_fields();
        assert_eq!([method, scheme, authority, path], [&b"POST"[..], b"http", b"app:1", b"/a?b"]);
        let fields: Vec<_> = request.fields().collect();
        assert_eq!(fields, [(&b"X-Y"[..], &b"z"[..]), (b"te", b"trailers")]);
    }

    #[test]
    fn response_of_http2_instance_is_checked() {
        let read = |fields: &[(&str, &str)]| {
            let mut block = FieldBlock::new(10_000);
            fields.iter().for_each(|(name, value)| block.push(name.as_bytes(), value.as_bytes()));
            from_h2_instance(&block)
        };
        let answer = read(&[(":status", "201"), ("content-length", "3"), ("content-length", "3"), ("a", "b")]).unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers().len()), (201, 2));
        for (fields, why) in [
            (&[(":status", "200"), ("a", " b")][..], MalformedHttp::FieldValue),
            (&[(":status", "200"), ("content_length", "1")], MalformedHttp::FieldName),
            (&[(":status", "200"), ("content-length", "x")], MalformedHttp::LengthInvalid),
            (&[(":status", "200"), ("content-length", "1"), ("content-length", "2")], MalformedHttp::LengthRepeated),
        ] {
            assert_eq!(read(fields).unwrap_err(), why, "{fields:?}");
        }
    }
}
