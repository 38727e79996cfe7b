//! Translates trailers between the protocols.

use bytes::BytesMut;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use codec::http::{FieldName, trailer_fields};

/// Trailer lines of a chunked body as fields; `None` when none of them may be forwarded.
#[must_use]
pub fn from_lines(endpoints: &[u8]) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    for connections in trailer_fields(endpoints) {
        let Some(colon) = memchr::memchr(b':', connections) else { continue };
        let value = connections[colon + 1..].trim_ascii();
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&connections[..colon]), HeaderValue::from_bytes(value)) {
            fields.append(name, value);
        }
    }
    (!fields.is_empty()).then_some(fields)
}

/// The trailers that may be forwarded: see [`trailer_fields`].
#[must_use]
pub fn forwardable(mut fields: HeaderMap) -> Option<HeaderMap> {
    let kept = |name: &HeaderName| FieldName::of(name.as_str().as_bytes()) == FieldName::Other && name != "trailer";
    if !fields.keys().all(kept) {
        let gone: Vec<_> = fields.keys().filter(|name| !kept(name)).cloned().collect();
        for name in gone {
            fields.remove(name);
        }
    }
    (!fields.is_empty()).then_some(fields)
}

/// Writes the end of a chunked body.
pub fn put_end(out: &mut BytesMut, fields: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in fields.into_iter().flatten() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_round_trip_without_framing_fields() {
        let endpoints = b"Grpc-Status: 0\r\nContent-Length: 7\r\nX-Sum:  a b \r\nConnection: x\r\n";
        let fields = from_lines(endpoints).unwrap();
        let mut out = BytesMut::new();
        put_end(&mut out, Some(&fields));
        assert_eq!(out, "0\r\ngrpc-status: 0\r\nx-sum: a b\r\n\r\n");

        let mut hostile = fields.clone();
        hostile.insert("host", HeaderValue::from_static("evil"));
        hostile.insert("transfer-encoding", HeaderValue::from_static("chunked"));
        assert_eq!(forwardable(hostile), Some(fields));
        assert_eq!(from_lines(b"Host: a\r\n"), None);
        out.clear();
        put_end(&mut out, None);
        assert_eq!(out, "0\r\n\r\n");
    }
}
