//! A response that is compressed on its way to the client.

use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::Bytes;
use contract::table::ContentCoding;

use super::{ClientGone, ResponseWriter};
use crate::Proxy;
use crate::compression::{BodyEncoder, CompressionGuard, is_eligible, mark_compressed, mark_varying};

/// Passes a response on, compressed if its head allows it.
pub(super) struct CompressedResponse<'a, R> {
    reply: &'a mut R,
    proxy: &'a Proxy,
    /// That the client accepts.
    coding: Option<ContentCoding>,
    encoder: Option<(BodyEncoder, CompressionGuard)>,
    /// The end of the body is not known from the start, so that each piece may be all for a while.
    flushes: bool,
}

impl<'a, R> CompressedResponse<'a, R> {
    pub(super) fn new(reply: &'a mut R, proxy: &'a Proxy, coding: Option<ContentCoding>) -> Self {
        Self { reply, proxy, coding, encoder: None, flushes: false }
    }

    fn start(&mut self, answer: &mut Response<()>, ends: bool) {
        if !is_eligible(answer) {
            return;
        }
        mark_varying(answer.headers_mut());
        let Some(coding) = self.coding.filter(|_| !ends) else { return };
        let Some(guard) = CompressionGuard::take(self.proxy) else { return };
        // Without an encoder the response goes as it is.
        let Ok(encoder) = BodyEncoder::new(coding) else { return };
        self.flushes = !answer.headers().contains_key(::http::header::CONTENT_LENGTH);
        mark_compressed(answer.headers_mut(), coding);
        self.proxy.counters.compression.responses[coding as usize].fetch_add(1, Relaxed);
        self.encoder = Some((encoder, guard));
    }
}

impl<R: ResponseWriter> ResponseWriter for CompressedResponse<'_, R> {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), ClientGone> {
        self.reply.interim(answer).await
    }

    async fn head(&mut self, mut answer: Response<()>, ends: bool) -> Result<(), ClientGone> {
        self.start(&mut answer, ends);
        self.reply.head(answer, ends).await
    }

    async fn data(&mut self, bytes: Bytes, ends: bool) -> Result<(), ClientGone> {
        let Some((encoder, _)) = &mut self.encoder else { return self.reply.data(bytes, ends).await };
        let encoded = encoder.encode(&bytes, self.flushes && !ends, ends).map_err(|_| ClientGone)?;
        self.proxy.counters.compression.passed(bytes.len(), encoded.len());
        if ends {
            self.encoder = None;
        }
        if encoded.is_empty() && !ends { Ok(()) } else { self.reply.data(encoded, ends).await }
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), ClientGone> {
        if let Some((mut encoder, _guard)) = self.encoder.take() {
            let rest = encoder.encode(b"", false, true).map_err(|_| ClientGone)?;
            self.proxy.counters.compression.passed(0, rest.len());
            self.reply.data(rest, false).await?;
        }
        self.reply.end(trailers).await
    }

    async fn end_late(&mut self) -> Result<(), ClientGone> {
        self.reply.end_late().await
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.reply.poll_gone(cx)
    }
}
