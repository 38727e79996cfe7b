//! Compresses responses: which of them, with what head, and the encoders (RFC 9110 8.4).
//!
//! On the core: a piece is at most a receive buffer, which takes well below a millisecond.

use std::cell::Cell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use ::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, VARY,
};
use ::http::{HeaderMap, HeaderValue, Response};
use brotli::CompressorWriter;
use bytes::Bytes;
use codec::http::{RequestView, has_token};
use contract::table::{COMPRESSED_BYTES_MIN, ContentCoding, is_compressible};
use flate2::Compression;
use flate2::write::GzEncoder;
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder as ZstdEncoder;

use super::{Proxy, SelectedEndpoint};

/// Responses that one core compresses at the same time; more go as they are. An encoder has up to 1 MiB.
const COMPRESSIONS_MAX: usize = 128;
/// Levels with the most bytes saved for the time: the next ones take twice as long for a few percent.
const GZIP_LEVEL: u32 = 2;
const ZSTD_LEVEL: i32 = 1;
const BROTLI_QUALITY: u32 = 3;
/// Bits of the window: 128 KiB, with which an encoder has a fifth of the memory of the default.
const WINDOW_BITS: u32 = 17;
/// Where brotli collects its output before it is written.
const BROTLI_BUFFER_BYTES: usize = 4096;

/// Fields that are about the bytes as the backend has sent them: with them the response is not changed.
const DIGESTS: [&str; 3] = ["content-digest", "digest", "content-md5"];

/// The coding for the response to a request, by the route and the client.
pub(super) fn negotiated(selected: &SelectedEndpoint, request: RequestView<'_>) -> Option<ContentCoding> {
    let policy = selected.filters.as_ref()?.compression.as_ref()?;
    let fields = request.fields().filter(|(name, _)| name.eq_ignore_ascii_case("accept-encoding"));
    let accepted: Vec<_> = fields.map(|(_, value)| value).collect(); // only on routes that compress
    policy.negotiate(&accepted)
}

/// Whether a response may be compressed.
pub(super) fn is_eligible(answer: &Response<()>) -> bool {
    let (status, headers) = (answer.status().as_u16(), answer.headers());
    let has_body = status >= 200 && !matches!(status, 204 | 205 | 206 | 304);
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let no_transform = headers.get_all(CACHE_CONTROL).iter().any(|value| has_token(value.as_bytes(), "no-transform"));
    has_body
        && length.is_none_or(|length| length >= COMPRESSED_BYTES_MIN)
        && is_compressible(content_type)
        && !no_transform
        && !headers.contains_key(CONTENT_ENCODING)
        && !headers.contains_key(CONTENT_RANGE)
        && DIGESTS.iter().all(|name| !headers.contains_key(*name))
}

/// Tells caches that the response depends on what the client accepts.
pub(super) fn mark_varying(headers: &mut HeaderMap) {
    let varies = |value: &HeaderValue| {
        let value = value.as_bytes();
        has_token(value, "*") || has_token(value, "accept-encoding")
    };
    if !headers.get_all(VARY).iter().any(varies) {
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// Changes the head to that of the compressed response.
pub(super) fn mark_compressed(headers: &mut HeaderMap, coding: ContentCoding) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    headers.remove(CONTENT_LENGTH);
    headers.remove(ACCEPT_RANGES); // ranges would be of other bytes
    let etag = headers.get(ETAG).map(|etag| etag.as_bytes().to_vec());
    // Only weak tags may name several representations (RFC 9110 8.8.1).
    if let Some(etag) = etag.filter(|etag| !etag.starts_with(b"W/"))
        && let Ok(weak) = HeaderValue::from_bytes(&[b"W/".as_slice(), &etag].concat())
    {
        headers.insert(ETAG, weak);
    }
}

/// One of [`COMPRESSIONS_MAX`].
pub(super) struct CompressionGuard(Rc<Cell<usize>>);

impl CompressionGuard {
    /// `None`: all are taken.
    pub(super) fn take(proxy: &Proxy) -> Option<Self> {
        let count = proxy.compressing.get();
        if count >= COMPRESSIONS_MAX {
            proxy.counters.compression.skipped.fetch_add(1, Relaxed);
            return None;
        }
        proxy.compressing.set(count + 1);
        Some(Self(Rc::clone(&proxy.compressing)))
    }
}

impl Drop for CompressionGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// A body that is being compressed. Boxed: most responses have none.
pub(super) enum BodyEncoder {
    Gzip(Box<GzEncoder<Vec<u8>>>),
    Zstd(Box<ZstdEncoder<'static, Vec<u8>>>),
    /// `None` after its end.
    Brotli(Option<Box<CompressorWriter<Vec<u8>>>>),
}

impl BodyEncoder {
    /// # Errors
    ///
    /// There is no memory.
    pub(super) fn new(coding: ContentCoding) -> io::Result<Self> {
        Ok(match coding {
            ContentCoding::Gzip => Self::Gzip(Box::new(GzEncoder::new(Vec::new(), Compression::new(GZIP_LEVEL)))),
            ContentCoding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.set_parameter(CParameter::WindowLog(WINDOW_BITS))?;
                Self::Zstd(Box::new(encoder))
            }
            ContentCoding::Brotli => {
                let encoder = CompressorWriter::new(Vec::new(), BROTLI_BUFFER_BYTES, BROTLI_QUALITY, WINDOW_BITS);
                Self::Brotli(Some(Box::new(encoder)))
            }
        })
    }

    /// Returns what there is of the encoded body after `bytes`: with `flushes` so much that the client can decode all of
    /// them, with `ends` the end too.
    ///
    /// # Errors
    ///
    /// There is no memory, or the body has ended.
    pub(super) fn encode(&mut self, bytes: &[u8], flushes: bool, ends: bool) -> io::Result<Bytes> {
        let flushes = flushes && !bytes.is_empty();
        let encoded = match self {
            Self::Gzip(encoder) => {
                encoder.write_all(bytes)?;
                if flushes {
                    encoder.flush()?;
                }
                if ends {
                    encoder.try_finish()?;
                }
                std::mem::take(encoder.get_mut())
            }
            Self::Zstd(encoder) => {
                encoder.write_all(bytes)?;
                if flushes {
                    encoder.flush()?;
                }
                if ends {
                    encoder.do_finish()?;
                }
                std::mem::take(encoder.get_mut())
            }
            Self::Brotli(slot) => {
                let encoder = slot.as_mut().ok_or(io::ErrorKind::InvalidInput)?;
                encoder.write_all(bytes)?;
                if flushes {
                    encoder.flush()?;
                }
                match slot.take_if(|_| ends) {
                    Some(encoder) => encoder.into_inner(),
                    None => slot.as_mut().map(|encoder| std::mem::take(encoder.get_mut())).unwrap_or_default(),
                }
            }
        };
        Ok(encoded.into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;
    use http::StatusCode;

    use super::*;

    fn decoded(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match coding {
            ContentCoding::Gzip => GzDecoder::new(bytes).read_to_end(&mut out),
            ContentCoding::Zstd => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut out),
            ContentCoding::Brotli => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
        }
        .unwrap();
        out
    }

    #[test]
    fn body_is_the_same_after_decoding_in_any_pieces() {
        let text: Vec<u8> = (0..200_000_u32).flat_map(|n| (n / 7 % 100).to_string().into_bytes()).collect();
        for coding in ContentCoding::ALL {
            for piece in [1_000, 65_536, text.len()] {
                let mut encoder = BodyEncoder::new(coding).unwrap();
                let mut all = Vec::new();
                for bytes in text.chunks(piece) {
                    all.extend_from_slice(&encoder.encode(bytes, false, false).unwrap());
                }
                all.extend_from_slice(&encoder.encode(b"", false, true).unwrap());
                assert!(all.len() < text.len() / 3, "{coding:?}: {} of {}", all.len(), text.len());
                assert!(decoded(coding, &all) == text, "{coding:?} {piece}");
            }
        }
    }

    #[test]
    fn flushed_piece_can_be_decoded_before_the_next() {
        for coding in ContentCoding::ALL {
            let mut encoder = BodyEncoder::new(coding).unwrap();
            let first = encoder.encode(b"data: 1\n\n", true, false).unwrap();
            let mut out = [0; 9];
            match coding {
                ContentCoding::Gzip => GzDecoder::new(&first[..]).read_exact(&mut out),
                ContentCoding::Zstd => zstd::stream::read::Decoder::new(&first[..]).unwrap().read_exact(&mut out),
                ContentCoding::Brotli => brotli::Decompressor::new(&first[..], 4096).read_exact(&mut out),
            }
            .unwrap();
            assert_eq!(&out, b"data: 1\n\n", "{coding:?}");
            let rest = encoder.encode(b"data: 2\n\n", false, true).unwrap();
            assert_eq!(decoded(coding, &[first, rest].concat()), b"data: 1\n\ndata: 2\n\n");
        }
    }

    fn response(status: u16, lines: &[(&'static str, &'static str)]) -> Response<()> {
        let mut answer = Response::new(());
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in lines {
            answer.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        answer
    }

    #[test]
    fn only_whole_large_texts_are_compressed() {
        let text = ("content-type", "text/plain");
        for (status, lines, wanted) in [
            (200, &[text][..], true),
            (404, &[text, ("content-length", "1024")], true),
            (200, &[text, ("content-length", "1023")], false),
            (200, &[text, ("content-encoding", "br")], false),
            (200, &[text, ("cache-control", "public"), ("cache-control", "max-age=1, No-Transform")], false),
            (200, &[text, ("content-digest", "sha-256=:a:")], false),
            (206, &[text, ("content-range", "bytes 0-1/2")], false),
            (304, &[text], false),
            (204, &[text], false),
            (200, &[("content-type", "image/png")], false),
            (200, &[], false),
        ] {
            assert_eq!(is_eligible(&response(status, lines)), wanted, "{status} {lines:?}");
        }
    }

    /// RFC 9110 8.8.1, 12.5.5.
    #[test]
    fn head_says_what_was_done() {
        let lines = [("content-length", "5000"), ("etag", "\"a\""), ("accept-ranges", "bytes"), ("vary", "Origin")];
        let mut headers = response(200, &lines).headers().clone();
        mark_varying(&mut headers);
        mark_compressed(&mut headers, ContentCoding::Brotli);
        assert_eq!(headers[CONTENT_ENCODING], "br");
        assert_eq!(headers[ETAG], "W/\"a\"");
        assert!(!headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(ACCEPT_RANGES));
        assert_eq!(headers.get_all(VARY).iter().collect::<Vec<_>>(), ["Origin", "Accept-Encoding"]);
        let before = headers.clone();
        mark_varying(&mut headers);
        mark_compressed(&mut headers, ContentCoding::Brotli);
        assert_eq!(headers, before);
    }
}
