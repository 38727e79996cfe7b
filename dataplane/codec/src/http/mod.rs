//! HTTP/1.1: decodes the bytes of a connection, and writes small whole responses.
//!
//! Heads are ranges into the caller's bytes; nothing is copied. Results do not depend on how the bytes were split.

mod body;
mod field_names;
mod host;
pub mod limits;
mod local_response;
mod malformed;
mod request;
mod response;
mod status;
mod transfer_coding;
mod upgrade;

pub use body::{BodyDecoder, BodyEvent, put_chunk_line, trailer_fields};
pub use field_names::{FieldName, has_token, tokens};
pub use host::is_authority;
pub use local_response::{DateText, LocalResponse};
pub use malformed::MalformedHttp;
pub use request::{Method, PlatformProbe, RequestHead, RequestView, UpgradeRequest, parse_request};
pub use response::{ResponseHead, ResponseView, parse_response};
pub use status::put_status;

/// What a head parser says about the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// The head takes the first `bytes` bytes.
    Head { bytes: usize },
    /// Valid so far, but not complete.
    NeedBytes,
    /// No further bytes can make this valid.
    Malformed(MalformedHttp),
}

/// A range of the head's bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteRange {
    pub start: u32,
    pub end: u32,
}

impl ByteRange {
    /// The range of `part`, a slice of `whole`, in it.
    fn of(part: &[u8], whole: &[u8]) -> Self {
        let start = part.as_ptr() as usize - whole.as_ptr() as usize;
        debug_assert!(start + part.len() <= whole.len());
        // Heads are bounded by HEAD_BYTES_MAX, far below 4 GiB.
        Self { start: start as u32, end: (start + part.len()) as u32 }
    }

    /// The bytes of the range; empty when `whole` is not the head it was made from.
    #[inline]
    #[must_use]
    pub fn in_bytes(self, whole: &[u8]) -> &[u8] {
        whole.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// Converts bytes that the parsers restrict to ASCII.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// One header field, classified once.
#[derive(Debug, Clone, Copy)]
pub struct HeaderField {
    pub kind: FieldName,
    pub name: ByteRange,
    pub value: ByteRange,
}

/// Where a body ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BodyFraming {
    #[default]
    Empty,
    Length(u64),
    Chunked,
    /// Responses only: at the end of the connection.
    UntilClose,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HttpVersion {
    Http10,
    #[default]
    Http11,
}

/// `HTTP/1.2` to `HTTP/1.9` must be read as the highest supported minor version (RFC 9110 2.5). The parser knows two,
/// so it gets a copy with `HTTP/1.1` in place of the version at `at`; all ranges are the same in both.
fn with_supported_version(window: &[u8], at: usize) -> Option<Vec<u8>> {
    let minor = at + b"HTTP/1.".len();
    let is_later = window.get(at..minor)? == b"HTTP/1." && matches!(window.get(minor)?, b'2'..=b'9');
    is_later.then(|| {
        let mut known = window.to_vec(); // only test clients send this
        known[minor] = b'1';
        known
    })
}

/// The position after empty lines that may precede a head.
fn first_line(window: &[u8]) -> Option<usize> {
    window.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))
}

/// The position of the first line feed without a carriage return before it.
fn bare_line_feed(bytes: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', bytes).find(|&at| at == 0 || bytes[at - 1] != b'\r')
}

/// Whether a whole head has no empty line before it and every line ends in CRLF, decided by where its fields begin: the
/// parser allows no line feed inside a line, so one can only stand between two lines. This checks each line end instead
/// of each byte. A `false` result is inconclusive.
fn is_cut_by_crlf(head: &[u8], fields: &[HeaderField]) -> bool {
    let begins = !matches!(head.first(), None | Some(b'\r' | b'\n'));
    let cut = begins && fields.iter().all(|field| head[..field.name.start as usize].ends_with(b"\r\n"));
    let cut = cut && head.ends_with(b"\r\n\r\n");
    debug_assert!(!cut || bare_line_feed(head).is_none());
    cut
}

/// `1*DIGIT` in range, and nothing else: no sign, no blank, no list.
pub fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}
