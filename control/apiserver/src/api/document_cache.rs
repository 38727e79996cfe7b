//! Caches documents that stay the same until the kinds change: serialized once, with an ETag.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ring_crypto::digest::{SHA256, digest};

use types::kind_registry::KindRegistry;

/// Seconds that a document under its own hash may be cached: it never changes.
const CACHE_MAX_AGE_SECONDS: i64 = 365 * 24 * 3600;

/// One document.
#[derive(Debug)]
pub(super) struct CachedDocument {
    body: Bytes,
    /// SHA-256 in hex.
    pub(super) etag: String,
    media: &'static str,
}

/// The documents of the current kinds.
#[derive(Debug, Default)]
pub(super) struct DocumentCache {
    last: Mutex<Option<DocumentCacheState>>,
}

#[derive(Debug)]
struct DocumentCacheState {
    registry: Arc<KindRegistry>,
    /// As many as groups and versions, and a few more.
    documents: HashMap<String, Arc<CachedDocument>>,
}

impl DocumentCache {
    /// The document of this name, created by `write` if the kinds have changed since. Names must come
    /// from the registry, not from clients.
    pub(super) fn get_or_render(
        &self,
        registry: &Arc<KindRegistry>,
        name: &str,
        media: &'static str,
        write: impl FnOnce() -> Vec<u8>,
    ) -> Arc<CachedDocument> {
        if let Some(found) = self.get(registry, name) {
            return found;
        }
        let body = write();
        let mut print = String::new();
        for byte in digest(&SHA256, &body).as_ref() {
            let _ = write!(print, "{byte:02X}"); // a String takes everything
        }
        let printed = Arc::new(CachedDocument { body: body.into(), etag: print, media });
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || DocumentCacheState { registry: Arc::clone(registry), documents: HashMap::new() };
        let there = last.get_or_insert_with(fresh);
        if !Arc::ptr_eq(&there.registry, registry) {
            *there = fresh();
        }
        there.documents.insert(name.to_owned(), Arc::clone(&printed));
        printed
    }

    fn get(&self, registry: &Arc<KindRegistry>, name: &str) -> Option<Arc<CachedDocument>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref().filter(|last| Arc::ptr_eq(&last.registry, registry))?;
        last.documents.get(name).cloned()
    }
}

impl CachedDocument {
    /// The document, or a 304 if the client's copy is current.
    pub(super) fn response(&self, headers: &HeaderMap) -> Response {
        let mut response = if self.matches_etag(headers) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            ([(header::CONTENT_TYPE, self.media)], self.body.clone()).into_response()
        };
        let tag = HeaderValue::try_from(format!("\"{}\"", self.etag));
        response.headers_mut().extend(tag.ok().map(|tag| (header::ETAG, tag)));
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
        response
    }

    /// The same for a request with this hash.
    pub(super) fn immutable_response(&self, headers: &HeaderMap, now: jiff::Timestamp) -> Response {
        let mut response = self.response(headers);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let ends = jiff::Timestamp::from_second(now.as_second() + CACHE_MAX_AGE_SECONDS).unwrap_or(now);
        let ends = HeaderValue::try_from(ends.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        headers.extend(ends.ok().map(|ends| (header::EXPIRES, ends)));
        response
    }

    fn matches_etag(&self, headers: &HeaderMap) -> bool {
        let kept = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|kept| kept.to_str().ok());
        let mut tags = kept.flat_map(|kept| kept.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.trim_start_matches("W/").trim_matches('"') == self.etag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_written_once_for_each_set_of_kinds() {
        let cache = DocumentCache::default();
        let (one, other) = (Arc::new(KindRegistry::default()), Arc::new(KindRegistry::default()));
        let take = |registry, text: &str| cache.get_or_render(registry, "a", "text/plain", || text.into()).body.clone();
        assert_eq!(take(&one, "first"), "first");
        assert_eq!(take(&one, "second"), "first");
        assert_eq!(take(&other, "third"), "third");
        assert_eq!(take(&one, "fourth"), "fourth");
    }

    #[test]
    fn client_with_current_document_gets_304() {
        let printed = DocumentCache::default().get_or_render(&Arc::default(), "a", "text/plain", || b"x".to_vec());
        let code = |kept: &str| {
            let headers = [(header::IF_NONE_MATCH, HeaderValue::from_str(kept).unwrap())];
            printed.response(&headers.into_iter().collect()).status().as_u16()
        };
        let print = &printed.etag;
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
