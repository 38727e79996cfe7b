//! Responses to senders of events, the same from every part that answers them.

use bytes::Bytes;
use codec::http::LocalResponse;

use crate::limits::RETRY_AFTER_S;

/// Methods that a stream allows.
pub const METHODS: &str = "POST, OPTIONS";

/// 503: it may work later.
#[must_use]
pub fn unavailable(why: &str) -> LocalResponse {
    let mut answer = answer(503, why);
    answer.headers.push(("Retry-After".into(), RETRY_AFTER_S.to_string().into()));
    answer
}

/// With a plain-text body, unless `text` is empty.
#[must_use]
pub fn answer(status: u16, text: &str) -> LocalResponse {
    let mut headers = vec![("Allow".into(), Bytes::from_static(METHODS.as_bytes()))];
    if text.is_empty() {
        return LocalResponse { status, headers, body: Bytes::new() };
    }
    headers.push(("Content-Type".into(), Bytes::from_static(b"text/plain; charset=utf-8")));
    LocalResponse { status, headers, body: format!("{text}\n").into() }
}
