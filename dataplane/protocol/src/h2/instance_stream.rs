//! A request on a connection to an instance, and its response.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http2::{StreamGone, StreamKey};

use super::shared_streams::{MessagePart, ReceivedHead, SharedStreams, StreamFailure};

/// A stream to an instance. One task uses it. Dropped before both messages have ended, it is cancelled.
pub struct InstanceStream {
    shared: Rc<SharedStreams>,
    key: StreamKey,
}

impl InstanceStream {
    pub(super) fn new(shared: &Rc<SharedStreams>, key: StreamKey) -> Self {
        Self { shared: Rc::clone(shared), key }
    }

    /// The next head of the response: interim ones, then the final one.
    pub fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Result<ReceivedHead, StreamFailure>> {
        self.shared.poll_head(self.key, cx)
    }

    /// The next part of the response, after its final head. [`InstanceStream::release`] its bytes when they were forwarded.
    pub fn poll_body(&self, cx: &mut Context<'_>) -> Poll<Result<MessagePart, StreamFailure>> {
        self.shared.poll_part(self.key, cx)
    }

    /// Whether the whole response was read, and it has no trailers.
    #[must_use]
    pub fn is_body_complete(&self) -> bool {
        self.shared.is_body_complete(self.key)
    }

    /// Bytes of the response were forwarded: the instance may send as many more.
    pub fn release(&self, bytes: usize) {
        if !self.shared.is_closed() {
            self.shared.with_codec(|codec| codec.release(self.key, bytes));
        }
    }

    /// Sends all of `bytes`, as the instance accepts them. `ends`: the request ends with them.
    pub fn poll_send(&self, cx: &mut Context<'_>, bytes: &mut Bytes, ends: bool) -> Poll<Result<(), StreamGone>> {
        self.shared.poll_send(self.key, cx, bytes, ends)
    }

    /// Ends the request with trailers.
    pub fn send_trailers(&self, trailers: &HeaderMap) -> Result<(), StreamGone> {
        self.shared.send_trailers(self.key, trailers)
    }
}

impl Drop for InstanceStream {
    fn drop(&mut self) {
        self.shared.detach(self.key);
    }
}
