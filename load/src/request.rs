//! The request that is sent again and again.

use bytes::Bytes;
use codec::http::Method as CodecMethod;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, TE, TRANSFER_ENCODING, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};

use crate::error::LoadTestError;
use crate::limits::{REQUEST_BODY_BYTES_MAX, REQUEST_HEAD_BYTES_MAX};
use crate::target::LoadTarget;

/// Where an event's id is in the text of a request; each request gets its own of the same length.
const EVENT_ID_TEMPLATE: &str = "00000000-0000-0000000000000000";
/// Digits of the number in an event's id.
const EVENT_NUMBER_DIGITS: usize = 16;
const PRODUCT: &str = concat!("sluicegate-load/", env!("CARGO_PKG_VERSION"));
/// Of an event, unless the user says otherwise.
const EVENT_SOURCE: &str = "/sluicegate/load";
const EVENT_DATA: &[u8] = br#"{"hello":"world"}"#;

/// What the user asks for.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// GET, or POST with a body.
    pub method: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// The type of a CloudEvent in binary mode.
    pub event_type: Option<String>,
    /// The body is a message of gRPC.
    pub is_grpc: bool,
}

/// A checked request, ready to be sent in either protocol.
#[derive(Debug, Clone)]
pub(crate) struct RequestTemplate {
    pub(crate) method: Method,
    uri: Uri,
    headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The whole HTTP/1.1 message, and the position of the event's id in it.
    http1: Bytes,
    event_id_at: Option<usize>,
    is_event: bool,
}

impl RequestTemplate {
    pub(crate) fn new(target: &LoadTarget, options: &RequestOptions) -> Result<Self, LoadTestError> {
        let body = body(options)?;
        let method = method(options, !body.is_empty())?;
        let mut headers = HeaderMap::new();
        headers.insert(HOST, value("host", &target.authority)?);
        headers.insert(USER_AGENT, HeaderValue::from_static(PRODUCT));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        if let Some(kind) = &options.event_type {
            event_headers(&mut headers, kind)?;
        }
        if options.is_grpc {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        add_headers(&mut headers, &options.headers)?;
        if !body.is_empty() || method == Method::POST || method == Method::PUT {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        let (http1, event_id_at) = http1_message(&method, &target.path, &headers, &body)?;
        let scheme = if target.is_tls { "https" } else { "http" };
        let host = headers.remove(HOST).and_then(|host| host.to_str().ok().map(str::to_owned));
        let uri =
            Uri::builder().scheme(scheme).authority(host.unwrap_or_default()).path_and_query(target.path.as_str());
        let uri =
            uri.build().map_err(|why| LoadTestError::Invalid(format!("header \"host\": {why}; write HOST:PORT")))?;
        let is_event = options.event_type.is_some();
        Ok(Self { method, uri, headers, body, http1, event_id_at: event_id_at.filter(|_| is_event), is_event })
    }

    /// The bytes of an HTTP/1.1 request. All requests share them, unless each has an id.
    #[inline]
    pub(crate) fn http1(&self, ids: &mut EventIds) -> Bytes {
        match self.event_id_at {
            None => self.http1.clone(),
            Some(at) => {
                let mut message = self.http1.to_vec(); // one allocation a request: each has its own id
                ids.write_next(&mut message[at..at + EVENT_ID_TEMPLATE.len()]);
                message.into()
            }
        }
    }

    /// The head of an HTTP/2 request.
    pub(crate) fn http2(&self, ids: &mut EventIds) -> Request<()> {
        let mut request = Request::new(());
        *request.version_mut() = Version::HTTP_2;
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        if self.is_event {
            let mut id = EVENT_ID_TEMPLATE.as_bytes().to_vec();
            ids.write_next(&mut id);
            if let Ok(id) = HeaderValue::from_maybe_shared(Bytes::from(id)) {
                request.headers_mut().insert("ce-id", id);
            }
        }
        request
    }

    /// How the response parser names the method.
    pub(crate) fn codec_method(&self) -> CodecMethod {
        if self.method == Method::HEAD { CodecMethod::Head } else { CodecMethod::Get }
    }
}

fn body(options: &RequestOptions) -> Result<Bytes, LoadTestError> {
    let body = match &options.body {
        none if none.is_empty() && options.event_type.is_some() => Bytes::from_static(EVENT_DATA),
        body => body.clone(),
    };
    if body.len() > REQUEST_BODY_BYTES_MAX {
        return Err(LoadTestError::Invalid(format!(
            "the body has {} bytes, and the limit is {REQUEST_BODY_BYTES_MAX}; use a smaller one",
            body.len()
        )));
    }
    if !options.is_grpc {
        return Ok(body);
    }
    // A message of gRPC: not compressed, and its length.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    Ok([&[0], &length[..], &body].concat().into())
}

fn method(options: &RequestOptions, has_body: bool) -> Result<Method, LoadTestError> {
    let posts = has_body || options.is_grpc || options.event_type.is_some();
    let Some(name) = &options.method else { return Ok(if posts { Method::POST } else { Method::GET }) };
    let method = Method::from_bytes(name.as_bytes());
    let method =
        method.map_err(|_| LoadTestError::Invalid(format!("method {name:?}: it is not a token; write GET or POST")))?;
    if method == Method::CONNECT {
        return Err(LoadTestError::Invalid(
            "method CONNECT: it opens a tunnel, which has no response; use GET".to_owned(),
        ));
    }
    Ok(method)
}

fn event_headers(headers: &mut HeaderMap, kind: &str) -> Result<(), LoadTestError> {
    if kind.is_empty() {
        return Err(LoadTestError::Invalid(
            "the type of the event is empty; write one like com.example.test".to_owned(),
        ));
    }
    headers.insert("ce-specversion", HeaderValue::from_static("1.0"));
    headers.insert("ce-type", value("ce-type", kind)?);
    headers.insert("ce-source", HeaderValue::from_static(EVENT_SOURCE));
    headers.insert("ce-id", HeaderValue::from_static(EVENT_ID_TEMPLATE));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(())
}

/// The first of a name replaces the default, and further ones are added.
fn add_headers(headers: &mut HeaderMap, given: &[(String, String)]) -> Result<(), LoadTestError> {
    let mut replaced = HeaderMap::new();
    for (name, text) in given {
        let key = HeaderName::try_from(name.as_str()).map_err(|_| {
            LoadTestError::Invalid(format!("header {name:?}: it is not a field name; write NAME: VALUE"))
        })?;
        if key == CONTENT_LENGTH || key == TRANSFER_ENCODING {
            return Err(LoadTestError::Invalid(format!("header {name:?}: the body decides it; leave it out")));
        }
        replaced.append(key, value(name, text)?);
    }
    for key in replaced.keys() {
        headers.remove(key);
        for value in replaced.get_all(key) {
            headers.append(key, value.clone());
        }
    }
    Ok(())
}

fn value(name: &str, text: &str) -> Result<HeaderValue, LoadTestError> {
    HeaderValue::from_str(text).map_err(|_| {
        LoadTestError::Invalid(format!("header {name:?}: its value has a forbidden byte; use printable ASCII"))
    })
}

fn http1_message(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(Bytes, Option<usize>), LoadTestError> {
    let mut message = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
    let mut event_id_at = None;
    for (name, value) in headers {
        message.extend_from_slice(name.as_str().as_bytes());
        message.extend_from_slice(b": ");
        if name.as_str() == "ce-id" && value.as_bytes() == EVENT_ID_TEMPLATE.as_bytes() {
            event_id_at = Some(message.len());
        }
        message.extend_from_slice(value.as_bytes());
        message.extend_from_slice(b"\r\n");
    }
    message.extend_from_slice(b"\r\n");
    if message.len() > REQUEST_HEAD_BYTES_MAX {
        return Err(LoadTestError::Invalid(format!(
            "the request head has {} bytes, and the limit is {REQUEST_HEAD_BYTES_MAX}; use fewer headers",
            message.len()
        )));
    }
    message.extend_from_slice(body);
    Ok((message.into(), event_id_at))
}

/// Ids of events, unique over all threads and tests.
#[derive(Debug)]
pub(crate) struct EventIds {
    /// The test and the thread.
    prefix: [u8; EVENT_ID_TEMPLATE.len() - EVENT_NUMBER_DIGITS],
    next: u64,
}

impl EventIds {
    pub(crate) fn new(test: u32, thread: usize) -> Self {
        let mut prefix = [b'-'; EVENT_ID_TEMPLATE.len() - EVENT_NUMBER_DIGITS];
        write_hex(&mut prefix[..8], u64::from(test));
        write_hex(&mut prefix[9..13], thread as u64);
        Self { prefix, next: 0 }
    }

    fn write_next(&mut self, into: &mut [u8]) {
        let (prefix, number) = into.split_at_mut(self.prefix.len());
        prefix.copy_from_slice(&self.prefix);
        write_hex(number, self.next);
        self.next += 1;
    }
}

/// The lowest hexadecimal digits of `number`, as many as fit.
fn write_hex(into: &mut [u8], mut number: u64) {
    for digit in into.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(options: &RequestOptions) -> Result<RequestTemplate, LoadTestError> {
        RequestTemplate::new(&LoadTarget::resolve("http://127.0.0.1:81/a?b").unwrap(), options)
    }

    fn text(options: &RequestOptions) -> String {
        let bytes = template(options).unwrap().http1(&mut EventIds::new(0xabc, 2));
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn plain_request_is_get_with_host() {
        let text = text(&RequestOptions::default());
        assert!(text.starts_with("GET /a?b HTTP/1.1\r\nhost: 127.0.0.1:81\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n") && !text.contains("content-length"), "{text}");
    }

    #[test]
    fn body_makes_it_a_post_with_its_length() {
        let text = text(&RequestOptions { body: "hello".into(), ..RequestOptions::default() });
        assert!(text.starts_with("POST ") && text.contains("content-length: 5\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\nhello"), "{text}");
    }

    #[test]
    fn headers_replace_defaults_and_repeat() {
        let headers =
            vec![header("Host", "shop.example"), header("X-A", "1"), header("x-a", "2"), header("accept", "a/b")];
        let options = RequestOptions { headers, ..RequestOptions::default() };
        let text = text(&options);
        for (part, count) in
            [("host: shop.example\r\n", 1), ("host:", 1), ("x-a: 1\r\n", 1), ("x-a: 2\r\n", 1), ("accept:", 1)]
        {
            assert_eq!(text.matches(part).count(), count, "{part} in {text}");
        }
        let head = template(&options).unwrap().http2(&mut EventIds::new(1, 1));
        assert_eq!(head.uri(), "http://shop.example/a?b");
        assert!(!head.headers().contains_key("host"));
    }

    #[test]
    fn each_event_has_its_own_id() {
        let options = RequestOptions { event_type: Some("a.b".to_owned()), ..RequestOptions::default() };
        let template = template(&options).unwrap();
        let mut ids = EventIds::new(0xabc, 2);
        let first = String::from_utf8(template.http1(&mut ids).to_vec()).unwrap();
        assert!(first.contains("ce-id: 00000abc-0002-0000000000000000\r\n"), "{first}");
        assert!(first.starts_with("POST ") && first.ends_with("\r\n\r\n{\"hello\":\"world\"}"), "{first}");
        let second = template.http2(&mut ids);
        assert_eq!(second.headers()["ce-id"], "00000abc-0002-0000000000000001");
        assert_eq!(second.headers()["ce-type"], "a.b");
    }

    #[test]
    fn grpc_message_has_its_length_in_front() {
        let options = RequestOptions { is_grpc: true, body: "abc".into(), ..RequestOptions::default() };
        let template = template(&options).unwrap();
        assert_eq!(&template.body[..], b"\0\0\0\0\x03abc");
        assert_eq!(template.http2(&mut EventIds::new(1, 1)).headers()["te"], "trailers");
        assert_eq!(template.method, Method::POST);
    }

    #[test]
    fn invalid_option_is_named() {
        let with = |options: RequestOptions| template(&options).unwrap_err().to_string();
        let headers =
            |name: &str, value: &str| RequestOptions { headers: vec![header(name, value)], ..Default::default() };
        for (why, part) in [
            (with(headers("a b", "c")), "a b"),
            (with(headers("a", "b\r\nc: d")), "forbidden byte"),
            (with(headers("Content-Length", "9")), "leave it out"),
            (with(headers("host", "a b")), "HOST:PORT"),
            (with(headers("big", &"x".repeat(REQUEST_HEAD_BYTES_MAX))), "fewer headers"),
            (with(RequestOptions { method: Some("G T".to_owned()), ..Default::default() }), "G T"),
            (with(RequestOptions { method: Some("CONNECT".to_owned()), ..Default::default() }), "tunnel"),
            (with(RequestOptions { event_type: Some(String::new()), ..Default::default() }), "type"),
            (with(RequestOptions { body: vec![0; REQUEST_BODY_BYTES_MAX + 1].into(), ..Default::default() }), "limit"),
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
