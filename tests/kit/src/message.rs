//! HTTP/1.1 messages as fixtures see them: whole, in memory, from bytes in and to bytes out.
//!
//! Simple on purpose. The product's own codec is strict and streams; this one only has to record
//! exactly what was on the wire, so that it can be compared with the product's.

use std::fmt;

use serde_json::Value;

/// More headers than any test sends.
const HEADERS_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    pub method: String,
    /// As on the request line: path and query.
    pub target: String,
    pub headers: HttpHeaders,
    pub body: Vec<u8>,
    /// The body came chunked.
    pub chunked: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: HttpHeaders,
    pub body: Vec<u8>,
    /// The body came chunked.
    pub chunked: bool,
    /// Statuses of the 1xx answers that came before.
    pub interim: Vec<u16>,
}

/// Names as sent, values with invalid UTF-8 replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpHeaders(pub Vec<(String, String)>);

/// What was wrong with the bytes of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedMessage(pub String);

impl HttpHeaders {
    /// The first value of that name, in any case of letters.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub fn all<'h, 'n>(&'h self, name: &'n str) -> impl Iterator<Item = &'h str> + use<'h, 'n> {
        self.0.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    fn of(parsed: &[httparse::Header<'_>]) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self(parsed.iter().map(|h| (h.name.to_owned(), text(h.value))).collect())
    }

    fn framing(&self) -> Result<MessageFraming, MalformedMessage> {
        if let Some(coding) = self.get("transfer-encoding") {
            return match coding.to_ascii_lowercase().ends_with("chunked") {
                true => Ok(MessageFraming::Chunked),
                false => Err(MalformedMessage(format!("transfer-encoding {coding}"))),
            };
        }
        match self.get("content-length") {
            Some(text) => {
                text.parse().map(MessageFraming::Length).map_err(|_| MalformedMessage(format!("length {text}")))
            }
            None => Ok(MessageFraming::Absent),
        }
    }
}

impl HttpRequest {
    /// The path without the query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// A value of the query, as a number.
    #[must_use]
    pub fn query_number(&self, name: &str) -> Option<u64> {
        let query = self.target.split_once('?')?.1;
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(n, _)| *n == name).find_map(|(_, value)| value.parse().ok())
    }

    /// The head of a request at the start of `bytes` and its length.
    pub fn parse_head(bytes: &[u8]) -> Result<Option<(Self, usize)>, MalformedMessage> {
        let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut slots);
        let status = parsed.parse(bytes).map_err(|why| MalformedMessage(why.to_string()))?;
        let httparse::Status::Complete(length) = status else { return Ok(None) };
        let head = Self {
            method: parsed.method.unwrap_or_default().to_owned(),
            target: parsed.path.unwrap_or_default().to_owned(),
            headers: HttpHeaders::of(parsed.headers),
            body: Vec::new(),
            chunked: false,
        };
        Ok(Some((head, length)))
    }

    /// A whole request at the start of `bytes` and its length; `None` while bytes are missing.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, MalformedMessage> {
        let Some((mut request, head)) = Self::parse_head(bytes)? else { return Ok(None) };
        let framing = request.headers.framing()?;
        let Some((body, length)) = take_body(framing, &bytes[head..])? else { return Ok(None) };
        request.body = body;
        request.chunked = framing == MessageFraming::Chunked;
        Ok(Some((request, head + length)))
    }
}

impl HttpResponse {
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// Why the gateway answered itself, as a trusted client is told.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.header("sluicegate-reason").unwrap_or_default()
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; panics with the body if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(why) => panic!("no JSON ({why}) in {self}"),
        }
    }

    /// One answer, interim or final, at the start of `bytes` and its length. `to_head`: it answers
    /// HEAD, so no body follows. `closed`: no more bytes will come.
    pub fn parse(bytes: &[u8], to_head: bool, closed: bool) -> Result<Option<(Self, usize)>, MalformedMessage> {
        let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut slots);
        let status = parsed.parse(bytes).map_err(|why| MalformedMessage(why.to_string()))?;
        let httparse::Status::Complete(head) = status else { return Ok(None) };
        let mut response = Self {
            status: parsed.code.unwrap_or_default(),
            headers: HttpHeaders::of(parsed.headers),
            body: Vec::new(),
            chunked: false,
            interim: Vec::new(),
        };
        if to_head || response.status < 200 || matches!(response.status, 204 | 304) {
            return Ok(Some((response, head)));
        }

        let framing = response.headers.framing()?;
        let rest = &bytes[head..];
        let taken = match framing {
            MessageFraming::Absent => closed.then(|| (rest.to_vec(), rest.len())),
            framed => take_body(framed, rest)?,
        };
        let Some((body, length)) = taken else { return Ok(None) };
        response.body = body;
        response.chunked = framing == MessageFraming::Chunked;
        Ok(Some((response, head + length)))
    }
}

impl fmt::Display for HttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.status, self.headers.0, self.text())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageFraming {
    Length(usize),
    Chunked,
    Absent,
}

fn take_body(framing: MessageFraming, bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, MalformedMessage> {
    match framing {
        MessageFraming::Absent => Ok(Some((Vec::new(), 0))),
        MessageFraming::Length(length) => Ok(bytes.get(..length).map(|body| (body.to_vec(), length))),
        MessageFraming::Chunked => take_chunks(bytes),
    }
}

fn take_chunks(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, MalformedMessage> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let size = httparse::parse_chunk_size(&bytes[at..]).map_err(|_| MalformedMessage("chunk size".to_owned()))?;
        let httparse::Status::Complete((line, size)) = size else { return Ok(None) };
        let size = usize::try_from(size).map_err(|_| MalformedMessage(format!("chunk of {size} bytes")))?;
        at += line;
        if size == 0 {
            return Ok(end_of_trailers(&bytes[at..]).map(|length| (body, at + length)));
        }
        let end = at.checked_add(size).ok_or_else(|| MalformedMessage(format!("chunk of {size} bytes")))?;
        match bytes.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => body.extend_from_slice(&bytes[at..end]),
            Some(other) => return Err(MalformedMessage(format!("{other:?} behind a chunk"))),
        }
        at = end + 2;
    }
}

fn end_of_trailers(bytes: &[u8]) -> Option<usize> {
    if bytes.starts_with(b"\r\n") {
        return Some(2);
    }
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// The bytes as one chunk per piece, with the last chunk.
#[must_use]
pub fn chunks<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &[u8] =
        b"POST /a?n=7&m=x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\nGET";

    #[test]
    fn a_request_is_whole_only_when_its_last_byte_is_there() {
        let whole = CHUNKED.len() - 3; // the next request's first three bytes follow
        for cut in 0..whole {
            assert_eq!(HttpRequest::parse(&CHUNKED[..cut]), Ok(None), "cut at {cut}");
        }
        let (request, length) = HttpRequest::parse(CHUNKED).unwrap().unwrap();
        assert_eq!(length, whole);
        assert_eq!(request.body, b"abcde");
        assert!(request.chunked);
        assert_eq!((request.path(), request.query_number("n")), ("/a", Some(7)));
        assert_eq!(request.query_number("m"), None);
    }

    #[test]
    fn an_answer_without_length_ends_with_its_connection() {
        let bytes = b"HTTP/1.1 200 OK\r\n\r\nrest";
        assert_eq!(HttpResponse::parse(bytes, false, false), Ok(None));
        let (response, length) = HttpResponse::parse(bytes, false, true).unwrap().unwrap();
        assert_eq!((response.text().as_str(), length), ("rest", bytes.len()));
    }

    #[test]
    fn answers_that_have_no_body_end_with_their_head() {
        for (head, to_head) in [
            ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.1 100 Continue\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true),
        ] {
            let (response, length) = HttpResponse::parse(head.as_bytes(), to_head, false).unwrap().unwrap();
            assert_eq!((response.body.len(), length), (0, head.len()), "{head}");
        }
    }

    #[test]
    fn what_chunks_writes_is_read_back() {
        let body = chunks([b"ab".as_slice(), b"", b"cdefghijklmnopq"]);
        assert_eq!(take_chunks(&body), Ok(Some((b"abcdefghijklmnopq".to_vec(), body.len()))));
        assert!(take_chunks(b"2\r\nabXX0\r\n\r\n").is_err());
        assert!(take_chunks(b"-1\r\n").is_err());
    }
}
