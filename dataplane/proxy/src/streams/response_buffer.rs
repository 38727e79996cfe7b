//! The bytes of a response body that an instance has sent and the client has not accepted yet.
//!
//! h2 keeps each DATA frame by itself, and counts the overhead of small ones for all streams of a connection together:
//! a few clients that do not read would end the connection for all requests that share it. So frames are taken out of
//! h2 as they arrive, and small ones are merged. The stream's window is the bound: the instance gets capacity only for
//! bytes that were forwarded to the client.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use ::h2::RecvStream;
use bytes::{Bytes, BytesMut};

use protocol::h2::limits::WHOLE_BYTES_MIN;

pub(super) struct BufferedResponseBody<'a> {
    body: &'a mut RecvStream,
    whole: VecDeque<Bytes>,
    /// Small ones, which arrived after `whole`.
    small_chunks: BytesMut,
    /// Its frames have ended, or broke off.
    ended: bool,
}

impl<'a> BufferedResponseBody<'a> {
    pub(super) fn new(body: &'a mut RecvStream) -> Self {
        Self { body, whole: VecDeque::new(), small_chunks: BytesMut::new(), ended: false }
    }

    /// The next bytes in order; `None` before the trailers. Cancel-safe: a dropped call loses nothing.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, ::h2::Error>> {
        match self.take_buffered() {
            Some(bytes) => Some(Ok(bytes)),
            None => self.body.data().await,
        }
    }

    /// Runs `passing` to its end, and buffers what arrives meanwhile.
    pub(super) async fn while_buffering<F: Future>(&mut self, passing: F) -> F::Output {
        let mut passing = pin!(passing);
        std::future::poll_fn(|cx| {
            let polled = passing.as_mut().poll(cx);
            if polled.is_pending() {
                self.buffer_frames(cx);
            }
            polled
        })
        .await
    }

    /// The body has ended, and there are no trailers.
    pub(super) fn is_over(&self) -> bool {
        self.whole.is_empty() && self.small_chunks.is_empty() && self.body.is_end_stream()
    }

    /// `bytes` were forwarded.
    pub(super) fn forwarded(&mut self, bytes: usize) -> Result<(), ::h2::Error> {
        self.body.flow_control().release_capacity(bytes)
    }

    fn take_buffered(&mut self) -> Option<Bytes> {
        let whole = self.whole.pop_front();
        whole.or_else(|| (!self.small_chunks.is_empty()).then(|| self.small_chunks.split().freeze()))
    }

    fn buffer_frames(&mut self, cx: &mut Context<'_>) {
        while !self.ended {
            match self.body.poll_data(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(bytes))) if bytes.len() < WHOLE_BYTES_MIN => {
                    self.small_chunks.extend_from_slice(&bytes);
                }
                Poll::Ready(Some(Ok(bytes))) => {
                    if !self.small_chunks.is_empty() {
                        self.whole.push_back(self.small_chunks.split().freeze());
                    }
                    self.whole.push_back(bytes);
                }
                // `next` returns it again, in order.
                Poll::Ready(Some(Err(_)) | None) => self.ended = true,
            }
        }
    }
}
