//! Responses of the gateway itself: whole, small, with a length.

use std::fmt::Write as _;

use bytes::{BufMut, Bytes, BytesMut};

use super::status::put_status;

/// A second in header format: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub type DateText = [u8; 29];

/// One whole response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalResponse {
    pub status: u16,
    /// Without Date, Content-Length and Connection, which are computed.
    pub headers: Vec<(Box<str>, Bytes)>,
    pub body: Bytes,
}

impl LocalResponse {
    #[must_use]
    pub fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new() }
    }

    /// A plain-text body with one sentence.
    #[must_use]
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        let mut body: String = body.into();
        body.push('\n');
        let headers = vec![("Content-Type".into(), Bytes::from_static(b"text/plain; charset=utf-8"))];
        Self { status, headers, body: body.into() }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The first field of that name (any case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_ref())
    }

    /// Writes the whole response; a response to HEAD has the length but no body. `connection` is the value of the
    /// Connection header.
    pub fn put(&self, out: &mut BytesMut, to_head: bool, connection: Option<&str>, date: &DateText) {
        out.put_slice(b"HTTP/1.1 ");
        put_status(out, self.status);
        let reason = http::StatusCode::from_u16(self.status).ok().and_then(|s| s.canonical_reason());
        out.put_slice(b" ");
        out.put_slice(reason.unwrap_or_default().as_bytes());
        out.put_slice(b"\r\n");
        for (name, value) in &self.headers {
            out.put_slice(name.as_bytes());
            out.put_slice(b": ");
            out.put_slice(value);
            out.put_slice(b"\r\n");
        }
        out.put_slice(b"Date: ");
        out.put_slice(date);
        out.put_slice(b"\r\n");
        if self.status >= 200 && self.status != 204 {
            let _ = write!(out, "Content-Length: {}\r\n", self.body.len()); // writing to a BytesMut cannot fail
        }
        if let Some(connection) = connection {
            out.put_slice(b"Connection: ");
            out.put_slice(connection.as_bytes());
            out.put_slice(b"\r\n");
        }
        out.put_slice(b"\r\n");
        if !to_head && self.status != 204 && self.status != 304 {
            out.put_slice(&self.body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_response_has_length_and_connection_close() {
        let mut out = BytesMut::new();
        let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
        LocalResponse::text(503, "full").with("Retry-After", "1").put(&mut out, false, Some("close"), date);
        assert_eq!(
            out,
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n\
             Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 5\r\nConnection: close\r\n\r\nfull\n"
        );
        out.clear();
        LocalResponse::text(404, "no").put(&mut out, true, None, date);
        assert!(out.ends_with(b"Content-Length: 3\r\n\r\n"));
        out.clear();
        LocalResponse::empty(202).put(&mut out, false, None, date);
        assert_eq!(out, "HTTP/1.1 202 Accepted\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 0\r\n\r\n");
    }
}
