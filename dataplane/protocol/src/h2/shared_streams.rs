//! What a connection and the tasks of its streams share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, Bytes, BytesMut};
use codec::http::MalformedHttp;
use http::{HeaderMap, Response};
use http2::{Connection, ErrorCode, FieldBlock, StreamGone, StreamKey};
use tokio::sync::Notify;

use crate::http::limits::INTERIM_MAX;

/// The next part of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum MessagePart {
    Data(Bytes),
    /// The end, with the trailers.
    End(Option<HeaderMap>),
    /// The trailers are malformed (RFC 9113 8.1).
    MalformedTrailers,
}

/// How a body ended.
pub(super) enum BodyEnd {
    Complete(Option<HeaderMap>),
    MalformedTrailers,
}

/// Why a stream ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFailure {
    /// The peer reset it.
    Reset(ErrorCode),
    /// The peer made a mistake on it.
    Violation(ErrorCode),
    /// The GOAWAY of the peer says that it did not process the stream.
    GoAway,
    /// The connection has ended because of a mistake of the peer.
    ConnectionViolation(ErrorCode),
    ConnectionClosed,
}

impl StreamFailure {
    /// Whether the peer did not process the request: it refused the stream (RFC 9113 8.7), or the stream is beyond the last
    /// one that its GOAWAY serves (6.8).
    #[must_use]
    pub fn is_unprocessed(self) -> bool {
        matches!(self, Self::GoAway | Self::Reset(ErrorCode::RefusedStream))
    }
}

/// The head of a response.
#[derive(Debug)]
pub enum ReceivedHead {
    Interim(Result<Response<()>, MalformedHttp>),
    Final(Result<Response<()>, MalformedHttp>),
}

/// What a connection keeps for one stream.
#[derive(Default)]
pub(super) struct StreamBuffer {
    /// The number of the stream.
    id: u32,
    /// Heads of a response that were received and not read.
    heads: VecDeque<ReceivedHead>,
    /// Content that was received and not read: within the window of the stream. Small frames are merged.
    received: BytesMut,
    end: Option<BodyEnd>,
    /// The stream has ended early.
    failure: Option<StreamFailure>,
    /// The task of the stream.
    waker: Option<Waker>,
}

impl StreamBuffer {
    fn next_part(&mut self) -> Option<MessagePart> {
        if !self.received.is_empty() {
            return Some(MessagePart::Data(std::mem::take(&mut self.received).freeze()));
        }
        match self.end.as_mut()? {
            BodyEnd::Complete(trailers) => Some(MessagePart::End(trailers.take())),
            BodyEnd::MalformedTrailers => Some(MessagePart::MalformedTrailers),
        }
    }
}

/// The state that a connection and its streams share.
pub(super) struct SharedStreams {
    pub(super) codec: RefCell<Connection>,
    /// By the slot of the stream.
    buffers: RefCell<Vec<StreamBuffer>>,
    /// Streams that wait until more can be sent, in the order of arrival.
    waiting: RefCell<Vec<StreamKey>>,
    /// The task of the connection, which sends what the streams write.
    connection: RefCell<Option<Waker>>,
    /// Why the connection has ended.
    closed: Cell<Option<StreamFailure>>,
    /// Requests that wait until another stream can be opened.
    opening: Cell<usize>,
    can_open: Notify,
}

impl SharedStreams {
    pub(super) fn new(codec: Connection) -> Rc<Self> {
        Rc::new(Self {
            codec: RefCell::new(codec),
            buffers: RefCell::default(),
            waiting: RefCell::default(),
            connection: RefCell::default(),
            closed: Cell::new(None),
            opening: Cell::new(0),
            can_open: Notify::new(),
        })
    }

    /// Called by each poll of the connection's task.
    pub(super) fn register_connection(&self, cx: &Context<'_>) {
        register(&mut self.connection.borrow_mut(), cx);
    }

    pub(super) fn wake_connection(&self) {
        if let Some(waker) = &*self.connection.borrow() {
            waker.wake_by_ref();
        }
    }

    /// A stream was opened. `end`: of a message without a body.
    pub(super) fn open(&self, key: StreamKey, end: Option<BodyEnd>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() <= key.slot() {
            buffers.resize_with(key.slot() + 1, StreamBuffer::default);
        }
        let buffer = &mut buffers[key.slot()];
        (buffer.id, buffer.end) = (key.id(), end);
    }

    pub(super) fn head(&self, key: StreamKey, head: ReceivedHead, ends: bool) {
        self.update(key, |buffer| {
            // One more than allowed: its reader rejects the response.
            if buffer.heads.len() <= usize::from(INTERIM_MAX) || matches!(head, ReceivedHead::Final(_)) {
                buffer.heads.push_back(head);
            }
            if ends {
                buffer.end = Some(BodyEnd::Complete(None));
            }
        });
    }

    pub(super) fn received(&self, key: StreamKey, bytes: &[u8]) {
        // Copied: the ring has few receive buffers, and the other side may accept this late.
        self.update(key, |buffer| match buffer.received.is_empty() {
            true => buffer.received = BytesMut::from(bytes),
            false => buffer.received.extend_from_slice(bytes),
        });
    }

    pub(super) fn ended(&self, key: StreamKey, end: BodyEnd) {
        self.update(key, |buffer| buffer.end = Some(end));
    }

    pub(super) fn failed(&self, key: StreamKey, failure: StreamFailure) {
        self.update(key, |buffer| buffer.failure = Some(failure));
    }

    /// The peer did not process the streams after this one.
    pub(super) fn went_away(&self, last: u32) {
        for buffer in self.buffers.borrow_mut().iter_mut().filter(|buffer| buffer.id > last) {
            buffer.failure.get_or_insert(StreamFailure::GoAway);
            if let Some(waker) = &buffer.waker {
                waker.wake_by_ref();
            }
        }
        self.can_open.notify_waiters();
    }

    /// More can be sent on this stream, or on all.
    pub(super) fn window_grew(&self, key: Option<StreamKey>) {
        match key {
            None => self.wake_waiting(),
            Some(key) if self.waiting.borrow().contains(&key) => {
                self.waiting.borrow_mut().retain(|known| *known != key);
                self.update(key, |_| {});
            }
            Some(_) => {}
        }
    }

    /// Wakes all streams that wait to send, the most urgent first.
    pub(super) fn wake_waiting(&self) {
        let mut waiting = self.waiting.take();
        if waiting.len() > 1 {
            let codec = self.codec.borrow();
            waiting.sort_by_key(|key| codec.priority(*key).urgency);
        }
        for key in waiting.drain(..) {
            self.update(key, |_| {});
        }
        *self.waiting.borrow_mut() = waiting; // its memory
    }

    /// Waits until another stream can be opened, in the order of arrival.
    pub(super) async fn can_open(&self) -> Result<(), StreamGone> {
        let mut is_first = self.opening.get() == 0;
        let _opening = OpeningGuard::count(&self.opening);
        loop {
            if self.closed.get().is_some() || self.codec.borrow().is_draining() {
                return Err(StreamGone);
            }
            if is_first && self.codec.borrow().can_send_request() {
                return Ok(());
            }
            self.can_open.notified().await;
            is_first = true;
        }
    }

    /// Wakes the next request that waits for a stream, if one can be opened.
    pub(super) fn wake_opening(&self) {
        if self.opening.get() > 0 && self.codec.borrow().can_send_request() {
            self.can_open.notify_one();
        }
    }

    /// The connection has ended, and with it all of its streams.
    pub(super) fn close(&self, failure: StreamFailure) {
        self.closed.set(Some(failure));
        for buffer in &mut *self.buffers.borrow_mut() {
            buffer.failure.get_or_insert(failure);
            if let Some(waker) = buffer.waker.take() {
                waker.wake();
            }
        }
        self.can_open.notify_waiters();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// What ended the stream early.
    pub(super) fn failure(&self, key: StreamKey) -> Option<StreamFailure> {
        self.buffers.borrow()[key.slot()].failure.or(self.closed.get())
    }

    /// The next head of a response, or the failure of a stream that gets no more.
    pub(super) fn poll_head(&self, key: StreamKey, cx: &Context<'_>) -> Poll<Result<ReceivedHead, StreamFailure>> {
        let buffer = &mut self.buffers.borrow_mut()[key.slot()];
        if let Some(head) = buffer.heads.pop_front() {
            return Poll::Ready(Ok(head));
        }
        self.poll_failure(buffer, cx).map(Err)
    }

    /// The next part of a body, or the failure of a stream that gets no more.
    pub(super) fn poll_part(&self, key: StreamKey, cx: &Context<'_>) -> Poll<Result<MessagePart, StreamFailure>> {
        let buffer = &mut self.buffers.borrow_mut()[key.slot()];
        match buffer.next_part() {
            Some(part) => Poll::Ready(Ok(part)),
            None => self.poll_failure(buffer, cx).map(Err),
        }
    }

    /// Ready when the stream has ended early.
    pub(super) fn poll_failed(&self, key: StreamKey, cx: &Context<'_>) -> Poll<StreamFailure> {
        self.poll_failure(&mut self.buffers.borrow_mut()[key.slot()], cx)
    }

    fn poll_failure(&self, buffer: &mut StreamBuffer, cx: &Context<'_>) -> Poll<StreamFailure> {
        match buffer.failure.or(self.closed.get()) {
            Some(failure) => Poll::Ready(failure),
            None => {
                register(&mut buffer.waker, cx);
                Poll::Pending
            }
        }
    }

    /// Whether all of the body was read, and it has no trailers.
    pub(super) fn is_body_complete(&self, key: StreamKey) -> bool {
        let buffer = &self.buffers.borrow()[key.slot()];
        matches!(buffer.end, Some(BodyEnd::Complete(None))) && buffer.received.is_empty()
    }

    /// Sends all of `bytes`, as the peer accepts them. `ends`: the message ends with them.
    pub(super) fn poll_send(
        &self,
        key: StreamKey,
        cx: &Context<'_>,
        bytes: &mut Bytes,
        ends: bool,
    ) -> Poll<Result<(), StreamGone>> {
        self.check_open()?;
        let sent = self.with_codec(|codec| codec.send_data(key, bytes, ends))?;
        bytes.advance(sent);
        if bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if self.poll_failed(key, cx).is_ready() {
            return Poll::Ready(Err(StreamGone));
        }
        self.wait_to_send(key);
        Poll::Pending
    }

    pub(super) fn send_trailers(&self, key: StreamKey, trailers: &HeaderMap) -> Result<(), StreamGone> {
        self.check_open()?;
        self.with_codec(|codec| codec.send_trailers(key, sendable_fields(trailers)))
    }

    pub(super) fn check_open(&self) -> Result<(), StreamGone> {
        if self.is_closed() { Err(StreamGone) } else { Ok(()) }
    }

    pub(super) fn wait_to_send(&self, key: StreamKey) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.contains(&key) {
            waiting.push(key);
        }
    }

    /// Ends the use of a stream.
    pub(super) fn detach(&self, key: StreamKey) {
        let buffer = std::mem::take(&mut self.buffers.borrow_mut()[key.slot()]);
        drop(buffer);
        self.waiting.borrow_mut().retain(|known| *known != key);
        if !self.is_closed() {
            self.with_codec(|codec| codec.detach(key));
            self.wake_opening();
        }
    }

    /// Changes what is kept for a stream, and wakes its task.
    fn update(&self, key: StreamKey, change: impl FnOnce(&mut StreamBuffer)) {
        let buffers = &mut *self.buffers.borrow_mut();
        let Some(buffer) = buffers.get_mut(key.slot()) else { return };
        change(buffer);
        if let Some(waker) = &buffer.waker {
            waker.wake_by_ref();
        }
    }

    /// Runs `send`, and wakes the connection if there is something to send.
    pub(super) fn with_codec<T>(&self, send: impl FnOnce(&mut Connection) -> T) -> T {
        let mut codec = self.codec.borrow_mut();
        let result = send(&mut codec);
        let has_output = codec.output_len() > 0;
        drop(codec);
        if has_output {
            self.wake_connection();
        }
        result
    }
}

/// A request that waits for a stream, counted until it is dropped.
struct OpeningGuard<'a>(&'a Cell<usize>);

impl<'a> OpeningGuard<'a> {
    fn count(opening: &'a Cell<usize>) -> Self {
        opening.set(opening.get() + 1);
        Self(opening)
    }
}

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
        *waker = Some(cx.waker().clone());
    }
}

/// The fields that may be sent.
pub(super) fn sendable_fields(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let fields = headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    fields.filter(|(name, _)| {
        !matches!(*name, b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade")
    })
}

/// The end of a body with trailers.
pub(super) fn end_with_trailers(block: &FieldBlock, is_malformed: bool) -> BodyEnd {
    let fields = if is_malformed { None } else { trailer_map(block) };
    fields.map_or(BodyEnd::MalformedTrailers, |fields| BodyEnd::Complete(Some(fields)))
}

/// Trailers as they are forwarded. `None`: they are not well-formed.
fn trailer_map(block: &FieldBlock) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(block.len());
    for (name, value) in block.fields() {
        let name = http::HeaderName::from_bytes(name).ok()?;
        map.append(name, http::HeaderValue::from_bytes(value).ok()?);
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_an_http1_connection_are_not_sent() {
        let headers = HeaderMap::from_iter([
            (http::header::CONNECTION, http::HeaderValue::from_static("close")),
            (http::header::TRANSFER_ENCODING, http::HeaderValue::from_static("chunked")),
            (http::header::SERVER, http::HeaderValue::from_static("a")),
        ]);
        assert_eq!(sendable_fields(&headers).collect::<Vec<_>>(), [(&b"server"[..], &b"a"[..])]);
    }
}
