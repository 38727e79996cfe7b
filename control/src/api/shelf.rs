//! Documents that stay the same until the kinds change: written out once, with a print that clients keep.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ring_crypto::digest::{SHA256, digest};

use crate::kind::Registry;

/// Seconds that a document under its own print may be kept: it never changes.
const KEEP_SECONDS: i64 = 365 * 24 * 3600;

/// One document.
#[derive(Debug)]
pub(super) struct Printed {
    body: Bytes,
    /// SHA-256 in hex.
    pub(super) print: String,
    media: &'static str,
}

/// What was written out of the present kinds.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    last: Mutex<Option<Last>>,
}

#[derive(Debug)]
struct Last {
    registry: Arc<Registry>,
    /// As many as there are groups and versions, and a few more.
    documents: HashMap<String, Arc<Printed>>,
}

impl Shelf {
    /// The document of this name, made by `write` if the kinds are others than last time. Names must come
    /// from the registry, not from clients.
    pub(super) fn take(
        &self,
        registry: &Arc<Registry>,
        name: &str,
        media: &'static str,
        write: impl FnOnce() -> Vec<u8>,
    ) -> Arc<Printed> {
        if let Some(found) = self.find(registry, name) {
            return found;
        }
        let body = write();
        let mut print = String::new();
        for byte in digest(&SHA256, &body).as_ref() {
            let _ = write!(print, "{byte:02X}"); // a String takes everything
        }
        let printed = Arc::new(Printed { body: body.into(), print, media });
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Last { registry: Arc::clone(registry), documents: HashMap::new() };
        let there = last.get_or_insert_with(fresh);
        if !Arc::ptr_eq(&there.registry, registry) {
            *there = fresh();
        }
        there.documents.insert(name.to_owned(), Arc::clone(&printed));
        printed
    }

    fn find(&self, registry: &Arc<Registry>, name: &str) -> Option<Arc<Printed>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref().filter(|last| Arc::ptr_eq(&last.registry, registry))?;
        last.documents.get(name).cloned()
    }
}

impl Printed {
    /// The document, or that the client's copy is still good.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        let mut response = if self.is_kept(headers) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            ([(header::CONTENT_TYPE, self.media)], self.body.clone()).into_response()
        };
        let tag = HeaderValue::try_from(format!("\"{}\"", self.print));
        response.headers_mut().extend(tag.ok().map(|tag| (header::ETAG, tag)));
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
        response
    }

    /// The same for a client that asked for just this print.
    pub(super) fn answer_for_good(&self, headers: &HeaderMap, now: jiff::Timestamp) -> Response {
        let mut response = self.answer(headers);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let ends = jiff::Timestamp::from_second(now.as_second() + KEEP_SECONDS).unwrap_or(now);
        let ends = HeaderValue::try_from(ends.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        headers.extend(ends.ok().map(|ends| (header::EXPIRES, ends)));
        response
    }

    fn is_kept(&self, headers: &HeaderMap) -> bool {
        let kept = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|kept| kept.to_str().ok());
        let mut tags = kept.flat_map(|kept| kept.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.trim_start_matches("W/").trim_matches('"') == self.print)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_written_once_for_each_set_of_kinds() {
        let shelf = Shelf::default();
        let (one, other) = (Arc::new(Registry::default()), Arc::new(Registry::default()));
        let take =
            |registry, text: &str| shelf.take(registry, "a", "text/plain", || text.into()).body.clone();
        assert_eq!(take(&one, "first"), "first");
        assert_eq!(take(&one, "second"), "first");
        assert_eq!(take(&other, "third"), "third");
        assert_eq!(take(&one, "fourth"), "fourth");
    }

    #[test]
    fn a_client_that_has_it_is_told_so() {
        let printed = Shelf::default().take(&Arc::default(), "a", "text/plain", || b"x".to_vec());
        let code = |kept: &str| {
            let headers = [(header::IF_NONE_MATCH, HeaderValue::from_str(kept).unwrap())];
            printed.answer(&headers.into_iter().collect()).status().as_u16()
        };
        let print = &printed.print;
        let cases = [
            (format!("\"{print}\""), 304),
            (format!("\"a\", W/\"{print}\""), 304),
            ("*".to_owned(), 304),
            ("\"a\"".to_owned(), 200),
            (String::new(), 200),
        ];
        for (kept, expected) in cases {
            assert_eq!(code(&kept), expected, "{kept}");
        }
    }
}
