//! Translates heads between HTTP/2 and HTTP/1.
//!
//! A request from an HTTP/2 client is written as an HTTP/1 head and parsed by the parser for all others, so host,
//! target, framing and forbidden bytes are checked in one place.

use base64::Engine as _;
use bytes::{BufMut, Bytes, BytesMut};
use codec::http::put_status;
use codec::http::{
    FieldName, MalformedHttp, Parsed, RequestHead, RequestView, ResponseView, content_length, has_token, parse_request,
};
use contract::client_address::ClientScheme;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Request, Response, Uri};

use crate::http::headers::ResponseContext;

/// A request of an HTTP/2 client, parsed like one of HTTP/1.
#[derive(Debug)]
pub struct TranslatedRequest {
    pub bytes: Bytes,
    pub head: RequestHead,
    /// It accepts trailers (`te: trailers`), which is forwarded only to HTTP/2 instances.
    pub wants_trailers: bool,
}

/// Translates a client's head. `ends`: no body follows.
pub fn from_client(parts: &http::request::Parts, ends: bool) -> Result<TranslatedRequest, MalformedHttp> {
    if parts.method == Method::CONNECT {
        // Recognised as CONNECT, whatever its target.
        let authority = authority(parts)?;
        return parsed(Bytes::from(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n")));
    }
    translate(parts, ends, parts.method.as_str(), "")
}

/// Translates the head of an extended CONNECT for a WebSocket (RFC 8441 5) into the handshake of RFC 6455. `key` is the
/// nonce that the instance answers.
pub fn websocket_from_client(parts: &http::request::Parts, key: [u8; 16]) -> Result<TranslatedRequest, MalformedHttp> {
    let key = base64::engine::general_purpose::STANDARD.encode(key);
    let handshake = format!("connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: {key}\r\n");
    if parts.headers.contains_key("sec-websocket-key") {
        return Err(MalformedHttp::FieldName); // this handshake has no key of the client, and two would be ambiguous
    }
    translate(parts, true, "GET", &handshake)
}

/// Writes a head and parses it. `further` holds additional header lines.
fn translate(
    parts: &http::request::Parts,
    ends: bool,
    method: &str,
    further: &str,
) -> Result<TranslatedRequest, MalformedHttp> {
    let authority = authority(parts)?;
    let mut out = BytesMut::with_capacity(1024);
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    put(&mut out, &[method.as_bytes(), b" ", path.as_bytes(), b" HTTP/1.1\r\nHost: "]);
    put(&mut out, &[authority.as_bytes(), b"\r\n", further.as_bytes()]);
    let mut has_length = false;
    let mut has_cookie = false;
    for (name, value) in &parts.headers {
        if is_padded(value) {
            return Err(MalformedHttp::FieldValue);
        }
        match name.as_str() {
            "host" => continue,
            // h2 lets a client split it; HTTP/1 has one (RFC 9113 8.2.3).
            "cookie" if has_cookie => continue,
            "cookie" => {
                has_cookie = true;
                let cookies: Vec<_> = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
                put(&mut out, &[b"cookie: ", &cookies.join(b"; ".as_slice()), b"\r\n"]);
                continue;
            }
            // Fields of one connection: h2 rejects them, but this check must not depend on that.
            "transfer-encoding" | "connection" | "upgrade" => return Err(MalformedHttp::CodingInvalid),
            "content-length" => {
                has_length = true;
                if ends && value.as_bytes().iter().any(|byte| *byte != b'0') {
                    return Err(MalformedHttp::LengthInvalid);
                }
            }
            _ => {}
        }
        put(&mut out, &[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    if !ends && !has_length {
        out.put_slice(b"transfer-encoding: chunked\r\n");
    } else if ends && !has_length && [Method::POST, Method::PUT, Method::PATCH].contains(&parts.method) {
        out.put_slice(b"content-length: 0\r\n"); // many servers require it
    }
    out.put_slice(b"\r\n");
    let wants_trailers = parts.headers.get_all("te").iter().any(|te| has_token(te.as_bytes(), "trailers"));
    Ok(TranslatedRequest { wants_trailers, ..parsed(out.freeze())? })
}

/// Whether a value has blanks around it. HTTP/1 drops them and HTTP/2 forbids them (RFC 9113 8.2.1): two proxies that
/// forward them differently would disagree about the value.
#[must_use]
pub fn is_padded(value: &HeaderValue) -> bool {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    blank(value.as_bytes().first()) || blank(value.as_bytes().last())
}

/// The one host of the request.
fn authority(parts: &http::request::Parts) -> Result<&str, MalformedHttp> {
    let mut hosts = parts.headers.get_all("host").iter();
    let host = hosts.next().map(|host| host.to_str().map_err(|_| MalformedHttp::HostInvalid)).transpose()?;
    if hosts.next().is_some() {
        return Err(MalformedHttp::HostRepeated);
    }
    match (parts.uri.authority(), host) {
        (Some(authority), Some(host)) if !are_one(authority.as_str(), host, parts.uri.scheme_str()) => {
            Err(MalformedHttp::HostRepeated)
        }
        (Some(authority), _) => Ok(authority.as_str()),
        (None, Some(host)) => Ok(host),
        (None, None) => Err(MalformedHttp::HostMissing),
    }
}

/// Whether both name the same host, where the default port of the scheme may be left out (RFC 9113 8.3.1).
fn are_one(authority: &str, host: &str, scheme: Option<&str>) -> bool {
    let usual = match scheme {
        Some("http") => ":80",
        Some("https") => ":443",
        _ => ":",
    };
    let [authority, host] = [authority, host].map(|name| name.strip_suffix(usual).unwrap_or(name));
    authority.eq_ignore_ascii_case(host)
}

fn parsed(bytes: Bytes) -> Result<TranslatedRequest, MalformedHttp> {
    let mut head = RequestHead::rewritten();
    match parse_request(&bytes, &mut head) {
        Parsed::Head { bytes: end } if end == bytes.len() => {
            Ok(TranslatedRequest { bytes, head, wants_trailers: false })
        }
        Parsed::Malformed(why) => Err(why),
        Parsed::Head { .. } | Parsed::NeedBytes => Err(MalformedHttp::RequestLine),
    }
}

/// Translates a head, as written by [`crate::http::headers::put_request`], for an instance that speaks HTTP/2.
pub fn for_instance(written: &[u8], wants_trailers: bool, scheme: ClientScheme) -> Result<Request<()>, MalformedHttp> {
    let mut head = RequestHead::rewritten();
    match parse_request(written, &mut head) {
        Parsed::Head { .. } => {}
        Parsed::NeedBytes => return Err(MalformedHttp::RequestLine),
        Parsed::Malformed(why) => return Err(why),
    }
    let view = head.view(written);
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(view.method().as_bytes()).map_err(|_| MalformedHttp::RequestLine)?;
    *request.uri_mut() = uri(view, scheme)?;
    *request.version_mut() = http::Version::HTTP_2;
    for field in &head.fields {
        if matches!(
            field.kind,
            FieldName::Host | FieldName::TransferEncoding | FieldName::Connection | FieldName::Upgrade
        ) {
            continue;
        }
        let name = HeaderName::from_bytes(field.name.in_bytes(written)).map_err(|_| MalformedHttp::FieldName)?;
        let value = HeaderValue::from_bytes(field.value.in_bytes(written)).map_err(|_| MalformedHttp::FieldValue)?;
        request.headers_mut().append(name, value);
    }
    if wants_trailers {
        request.headers_mut().insert(http::header::TE, HeaderValue::from_static("trailers"));
    }
    Ok(request)
}

fn uri(view: RequestView<'_>, scheme: ClientScheme) -> Result<Uri, MalformedHttp> {
    Uri::builder()
        .scheme(scheme.name())
        .authority(view.authority())
        .path_and_query(view.path())
        .build()
        .map_err(|_| MalformedHttp::Target)
}

/// Translates the response head of an HTTP/1 instance, without its connection fields.
pub fn from_instance(view: ResponseView<'_>) -> Result<Response<()>, MalformedHttp> {
    let mut answer = Response::new(());
    *answer.status_mut() = http::StatusCode::from_u16(view.head.status).map_err(|_| MalformedHttp::StatusLine)?;
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
pub fn from_h2_instance(parts: http::response::Parts) -> Result<Response<()>, MalformedHttp> {
    let mut answer = Response::new(());
    *answer.status_mut() = parts.status;
    let mut length = None;
    for (name, value) in &parts.headers {
        if is_padded(value) {
            return Err(MalformedHttp::FieldValue);
        }
        match FieldName::of(name.as_str().as_bytes()) {
            FieldName::Connection | FieldName::Upgrade | FieldName::HopByHop | FieldName::TransferEncoding => continue,
            FieldName::UnderscoreVariant => return Err(MalformedHttp::FieldName),
            FieldName::ContentLength => {
                let said = content_length(value.as_bytes()).ok_or(MalformedHttp::LengthInvalid)?;
                match length.replace(said) {
                    Some(before) if before == said => continue,
                    Some(_) => return Err(MalformedHttp::LengthRepeated),
                    None if has_no_length(parts.status.as_u16()) => continue,
                    None => {}
                }
            }
            _ => {}
        }
        answer.headers_mut().append(name.clone(), value.clone());
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

    fn request(build: http::request::Builder) -> http::request::Parts {
        build.body(()).unwrap().into_parts().0
    }

    fn post() -> http::request::Builder {
        Request::post("http://app.example:8080/a//b?x=%2F")
    }

    #[test]
    fn translated_request_keeps_target_fields_and_framing() {
        let parts = request(post().header("cookie", "a=1").header("x", "y").header("cookie", "b=2"));
        let translated = from_client(&parts, false).unwrap();
        let view = translated.head.view(&translated.bytes);
        assert_eq!((view.method(), view.path(), view.authority()), ("POST", "/a//b?x=%2F", "app.example:8080"));
        assert_eq!(translated.head.framing, BodyFraming::Chunked);
        assert_eq!(view.field("cookie"), Some(b"a=1; b=2".as_slice()));

        let sized = from_client(&request(post().header("content-length", "12")), false).unwrap();
        assert_eq!(sized.head.framing, BodyFraming::Length(12));
        assert_eq!(from_client(&parts, true).unwrap().head.framing, BodyFraming::Empty);
    }

    #[test]
    fn ambiguous_request_is_rejected() {
        for (parts, why) in [
            (post().header("host", "other"), MalformedHttp::HostRepeated),
            (post().header("host", "app.example:8080").header("host", "x"), MalformedHttp::HostRepeated),
            (Request::post("/x"), MalformedHttp::HostMissing),
            (Request::post("/x").header("host", "a/b"), MalformedHttp::HostInvalid),
            (Request::post("http://user@app/"), MalformedHttp::HostInvalid),
            (post().header("transfer-encoding", "chunked"), MalformedHttp::CodingInvalid),
            (post().header("content-length", "1").header("content-length", "1"), MalformedHttp::LengthRepeated),
            (post().header("content-length", "+1"), MalformedHttp::LengthInvalid),
            (post().header("x", " a"), MalformedHttp::FieldValue),
            (post().header("x", "a\t"), MalformedHttp::FieldValue),
            (post().header("cookie", "a=1").header("cookie", "b=2 "), MalformedHttp::FieldValue),
        ] {
            assert_eq!(from_client(&request(parts), false).unwrap_err(), why);
        }
        let lies = request(post().header("content-length", "5"));
        assert_eq!(from_client(&lies, true).unwrap_err(), MalformedHttp::LengthInvalid);
    }

    /// RFC 9113 8.3.1: hosts are compared with the default port of their scheme.
    #[test]
    fn default_port_does_not_change_the_host() {
        for (uri, host, one) in [
            ("http://app.example/", "app.example:80", true),
            ("http://app.example:80/", "APP.example", true),
            ("https://app.example/", "app.example:443", true),
            ("https://app.example/", "app.example:80", false),
            ("http://app.example/", "app.example:8080", false),
            ("http://app.example/", "app.example:80:80", false),
        ] {
            let read = from_client(&request(Request::get(uri).header("host", host)), true);
            assert_eq!(read.is_ok(), one, "{uri} and {host}");
        }
    }

    #[test]
    fn http2_instance_gets_the_same_request() {
        let written = b"POST /a?b HTTP/1.1\r\nHost: app:1\r\nX-Y: z\r\nTransfer-Encoding: chunked\r\n\r\n";
        let request = for_instance(written, true, ClientScheme::Http).unwrap();
        assert_eq!((request.method(), request.uri().to_string().as_str()), (&Method::POST, "http://app:1/a?b"));
        assert_eq!(request.headers().len(), 2);
        assert_eq!(request.headers()["te"], "trailers");
        assert_eq!(request.headers()["x-y"], "z");
    }
}
