//! Answers of our own as gRPC clients have to be given them: a status of theirs in a head without a body. One of
//! HTTP with a sentence in it they would take for a broken message.

use std::fmt::Write as _;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, request};

/// Bytes of a message that a client is told: it goes into a field.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Whether a request is a call of gRPC.
#[must_use]
pub fn is_grpc(parts: &request::Parts) -> bool {
    is_named(&parts.headers)
}

/// Whether a message, by its content type, is one of gRPC.
#[must_use]
pub fn is_named(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.and_then(|kind| kind.strip_prefix(b"application/grpc"))
        .is_some_and(|rest| rest.is_empty() || matches!(rest[0], b'+' | b';'))
}

/// The whole answer (trailers-only, in gRPC's words) to a call that gets this status of HTTP.
#[must_use]
pub fn grpc_response(status: u16, sentence: &str) -> Response<()> {
    let mut answer = Response::new(());
    *answer.headers_mut() = self::status(status, sentence);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    answer
}

/// How a call ends that gets this status of HTTP, as the fields after its messages.
#[must_use]
pub fn status(status: u16, sentence: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(HeaderName::from_static("grpc-status"), code(status).into());
    if let Ok(message) = HeaderValue::try_from(encoded(sentence)) {
        fields.insert(HeaderName::from_static("grpc-message"), message);
    }
    fields
}

/// As gRPC's `http-grpc-status-mapping` has it; and what is too late is so in gRPC's words.
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

/// Percent-encoded, but for what is printable.
fn encoded(sentence: &str) -> String {
    let mut out = String::with_capacity(sentence.len());
    for byte in sentence.trim_end().bytes().take(MESSAGE_BYTES_MAX) {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}"); // a String takes all
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_by_its_content_type() {
        for (kind, is_call) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;x=y", true),
            ("application/grpc-web", false),
            ("text/plain", false),
        ] {
            let request = http::Request::post("/").header("content-type", kind).body(()).unwrap();
            assert_eq!(is_grpc(&request.into_parts().0), is_call, "{kind}");
        }
    }

    #[test]
    fn a_refusal_is_a_status_and_an_encoded_message() {
        let answer = grpc_response(503, "100 % f\u{fc}ll\n");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["grpc-status"], "14");
        assert_eq!(answer.headers()["grpc-message"], "100 %25 f%C3%BCll");
        assert_eq!(answer.headers()["content-type"], "application/grpc");
    }
}
