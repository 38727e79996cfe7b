//! Local replies for gRPC clients: a gRPC status in a head without a body. They would take an HTTP reply with a text
//! body for a broken message.

use std::fmt::Write as _;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response};

/// Bytes of a message to a client: it is sent in a header field.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Whether a message is gRPC, by its content type.
#[must_use]
pub fn is_named(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| is_content_type(kind.as_bytes()))
}

/// Whether a content type is that of gRPC.
#[must_use]
pub fn is_content_type(kind: &[u8]) -> bool {
    kind.strip_prefix(b"application/grpc").is_some_and(|rest| rest.is_empty() || matches!(rest[0], b'+' | b';'))
}

/// The whole response (trailers-only in gRPC terms) to a call that gets this HTTP status.
#[must_use]
pub fn grpc_response(status: u16, sentence: &str) -> Response<()> {
    let mut answer = Response::new(());
    *answer.headers_mut() = self::status(status, sentence);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    answer
}

/// The trailers that end a call with this HTTP status.
#[must_use]
pub fn status(status: u16, sentence: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(HeaderName::from_static("grpc-status"), code(status).into());
    if let Ok(message) = HeaderValue::try_from(encoded(sentence)) {
        fields.insert(HeaderName::from_static("grpc-message"), message);
    }
    fields
}

/// The mapping of gRPC's `http-grpc-status-mapping`, with DEADLINE_EXCEEDED for timeouts.
fn code(status: u16) -> u16 {
    match status {
        400 | 408 | 413 | 417 => 13, // INTERNAL
        401 => 16,                   // UNAUTHENTICATED
        403 => 7,                    // PERMISSION_DENIED
        404 => 12,                   // UNIMPLEMENTED
        504 => 4,                    // DEADLINE_EXCEEDED
        429 | 502 | 503 => 14,       // UNAVAILABLE
        _ => 2,                      // UNKNOWN
    }
}

/// Percent-encoded, except for printable bytes.
fn encoded(sentence: &str) -> String {
    let mut out = String::with_capacity(sentence.len());
    for byte in sentence.trim_end().bytes().take(MESSAGE_BYTES_MAX) {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}"); // writing to a String cannot fail
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_call_is_recognised_by_content_type() {
        for (kind, is_call) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;x=y", true),
            ("application/grpc-web", false),
            ("text/plain", false),
        ] {
            let request = http::Request::post("/").header("content-type", kind).body(()).unwrap();
            assert_eq!(is_named(request.headers()), is_call, "{kind}");
        }
    }

    #[test]
    fn grpc_reply_is_a_status_and_encoded_message() {
        let answer = grpc_response(503, "100 % f\u{fc}ll\n");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["grpc-status"], "14");
        assert_eq!(answer.headers()["grpc-message"], "100 %25 f%C3%BCll");
        assert_eq!(answer.headers()["content-type"], "application/grpc");
    }
}
