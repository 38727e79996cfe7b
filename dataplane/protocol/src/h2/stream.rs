//! A stream of a client's connection: the body of its request, and its response.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http2::{ErrorCode, FieldBlock, ServerConnection, StreamGone, StreamKey};

/// The next part of a request body.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestPart {
    Data(Bytes),
    /// The end, with the trailers.
    End(Option<HeaderMap>),
    /// The trailers are malformed (RFC 9113 8.1).
    MalformedTrailers,
}

/// How a request body ended.
enum BodyEnd {
    Complete(Option<HeaderMap>),
    MalformedTrailers,
}

/// What a connection keeps for one stream.
#[derive(Default)]
struct StreamBuffer {
    /// Content that was received and not read: within the window of the stream. Small frames are merged.
    received: BytesMut,
    end: Option<BodyEnd>,
    /// The stream was reset.
    gone: bool,
    /// The task of the stream.
    waker: Option<Waker>,
}

/// The state that a connection and its streams share.
pub(super) struct SharedStreams {
    pub(super) codec: RefCell<ServerConnection>,
    /// By the slot of the stream.
    buffers: RefCell<Vec<StreamBuffer>>,
    /// Streams that wait until more can be sent, in the order of arrival.
    waiting: RefCell<Vec<StreamKey>>,
    /// The task of the connection, which sends what the streams write.
    connection: RefCell<Option<Waker>>,
    closed: Cell<bool>,
}

impl SharedStreams {
    pub(super) fn new(codec: ServerConnection) -> Rc<Self> {
        Rc::new(Self {
            codec: RefCell::new(codec),
            buffers: RefCell::default(),
            waiting: RefCell::default(),
            connection: RefCell::default(),
            closed: Cell::new(false),
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

    /// A request has arrived. `ends`: it has no body.
    pub(super) fn open(self: &Rc<Self>, key: StreamKey, ends: bool) -> Http2Stream {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() <= key.slot() {
            buffers.resize_with(key.slot() + 1, StreamBuffer::default);
        }
        buffers[key.slot()].end = ends.then_some(BodyEnd::Complete(None));
        Http2Stream { shared: Rc::clone(self), key }
    }

    pub(super) fn received(&self, key: StreamKey, bytes: &[u8]) {
        // Copied: the ring has few receive buffers, and the instance may accept this late.
        self.update(key, |buffer| buffer.received.extend_from_slice(bytes));
    }

    pub(super) fn ended(&self, key: StreamKey) {
        self.update(key, |buffer| buffer.end = Some(BodyEnd::Complete(None)));
    }

    pub(super) fn trailers(&self, key: StreamKey, fields: Option<HeaderMap>) {
        let end = fields.map_or(BodyEnd::MalformedTrailers, |fields| BodyEnd::Complete(Some(fields)));
        self.update(key, |buffer| buffer.end = Some(end));
    }

    pub(super) fn reset(&self, key: StreamKey) {
        self.update(key, |buffer| buffer.gone = true);
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

    /// The connection has ended, and with it all of its streams.
    pub(super) fn close(&self) {
        self.closed.set(true);
        for buffer in &mut *self.buffers.borrow_mut() {
            buffer.gone = true;
            if let Some(waker) = buffer.waker.take() {
                waker.wake();
            }
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
    fn with_codec<T>(&self, send: impl FnOnce(&mut ServerConnection) -> T) -> T {
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

fn register(waker: &mut Option<Waker>, cx: &Context<'_>) {
    if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
        *waker = Some(cx.waker().clone());
    }
}

/// A stream of a client. One task uses it. Dropped before the response has ended, it is reset.
pub struct Http2Stream {
    shared: Rc<SharedStreams>,
    key: StreamKey,
}

impl Http2Stream {
    /// The next part of the request body. [`Http2Stream::release`] its bytes when they were forwarded.
    pub fn poll_body(&self, cx: &mut Context<'_>) -> Poll<Result<RequestPart, StreamGone>> {
        let buffers = &mut *self.shared.buffers.borrow_mut();
        let buffer = &mut buffers[self.key.slot()];
        if self.shared.closed.get() || buffer.gone {
            return Poll::Ready(Err(StreamGone));
        }
        if !buffer.received.is_empty() {
            return Poll::Ready(Ok(RequestPart::Data(buffer.received.split().freeze())));
        }
        match &mut buffer.end {
            Some(BodyEnd::Complete(trailers)) => Poll::Ready(Ok(RequestPart::End(trailers.take()))),
            Some(BodyEnd::MalformedTrailers) => Poll::Ready(Ok(RequestPart::MalformedTrailers)),
            None => {
                register(&mut buffer.waker, cx);
                Poll::Pending
            }
        }
    }

    /// Whether the whole request was read, and it has no trailers.
    #[must_use]
    pub fn is_body_complete(&self) -> bool {
        let buffer = &self.shared.buffers.borrow()[self.key.slot()];
        matches!(buffer.end, Some(BodyEnd::Complete(None))) && buffer.received.is_empty()
    }

    /// Bytes of the request were forwarded: the client may send as many more.
    pub fn release(&self, bytes: usize) {
        self.shared.with_codec(|codec| codec.release(self.key, bytes));
    }

    /// Ready when the client has cancelled its request, or its connection has ended.
    pub fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let buffers = &mut *self.shared.buffers.borrow_mut();
        let buffer = &mut buffers[self.key.slot()];
        if self.shared.closed.get() || buffer.gone {
            return Poll::Ready(());
        }
        register(&mut buffer.waker, cx);
        Poll::Pending
    }

    /// Ready when the connection has sent enough for another head.
    pub fn poll_capacity(&self, cx: &mut Context<'_>) -> Poll<Result<(), StreamGone>> {
        if self.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(StreamGone));
        }
        if self.shared.codec.borrow().has_output_capacity() {
            return Poll::Ready(Ok(()));
        }
        self.wait_to_send();
        Poll::Pending
    }

    /// Sends the head of a response; with a status below 200 an interim one. Fields of an HTTP/1 connection are left
    /// out (RFC 9113 8.2.2).
    pub fn send_head(&self, status: u16, headers: &HeaderMap, ends: bool) -> Result<(), StreamGone> {
        self.check_open()?;
        self.shared.with_codec(|codec| codec.send_head(self.key, status, fields(headers), ends))
    }

    /// Sends all of `bytes`, as the client accepts them. `ends`: the response ends with them.
    pub fn poll_send(&self, cx: &mut Context<'_>, bytes: &mut Bytes, ends: bool) -> Poll<Result<(), StreamGone>> {
        self.check_open()?;
        let sent = self.shared.with_codec(|codec| codec.send_data(self.key, bytes, ends))?;
        bytes.advance(sent);
        if bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if self.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(StreamGone));
        }
        self.wait_to_send();
        Poll::Pending
    }

    /// Ends the response with trailers.
    pub fn send_trailers(&self, trailers: &HeaderMap) -> Result<(), StreamGone> {
        self.check_open()?;
        self.shared.with_codec(|codec| codec.send_trailers(self.key, fields(trailers)))
    }

    /// Ends the stream. What was sent on it before still arrives.
    pub fn reset(&self, code: ErrorCode) {
        self.shared.with_codec(|codec| codec.reset(self.key, code));
    }

    fn check_open(&self) -> Result<(), StreamGone> {
        if self.shared.closed.get() { Err(StreamGone) } else { Ok(()) }
    }

    fn wait_to_send(&self) {
        let mut waiting = self.shared.waiting.borrow_mut();
        if !waiting.contains(&self.key) {
            waiting.push(self.key);
        }
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.shared.buffers.borrow_mut()[self.key.slot()]);
        drop(buffer);
        self.shared.waiting.borrow_mut().retain(|known| *known != self.key);
        if !self.shared.closed.get() {
            self.shared.with_codec(|codec| codec.detach(self.key));
        }
    }
}

/// The fields that may be sent.
fn fields(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let fields = headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    fields.filter(|(name, _)| {
        !matches!(*name, b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade")
    })
}

/// Trailers as they are forwarded. `None`: they are not well-formed.
pub(super) fn trailer_map(block: &FieldBlock) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(block.len());
    for (name, value) in block.fields() {
        let name = http::HeaderName::from_bytes(name).ok()?;
        map.append(name, http::HeaderValue::from_bytes(value).ok()?);
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use http2::frame::{self, FrameHeader, PREFACE};
    use http2::{ConnectionConfig, Event};

    use super::*;

    const CONFIG: ConnectionConfig = ConnectionConfig {
        streams_max: 8,
        slots_max: 8,
        stream_window: 1000,
        connection_window: 70_000,
        header_list_bytes_max: 1000,
        output_bytes_max: 100,
        tunnels: false,
    };
    /// `POST http://app/`.
    const POST: &[u8] = b"\x83\x86\x84\x41\x03app";

    /// Notes when it was woken, as the number of the wake among all.
    #[derive(Default)]
    struct WakeOrder(AtomicUsize);

    static WAKES: AtomicUsize = AtomicUsize::new(0);

    impl Wake for WakeOrder {
        fn wake(self: Arc<Self>) {
            self.0.store(WAKES.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        [&FrameHeader { length: payload.len(), kind, flags, stream }.encode()[..], payload].concat()
    }

    fn open() -> Rc<SharedStreams> {
        let streams = SharedStreams::new(ServerConnection::new(CONFIG, Duration::ZERO));
        receive(&streams, &[&PREFACE[..], &frame(frame::SETTINGS, 0, 0, &[])].concat());
        streams
    }

    /// Reads frames as the connection does; returns the streams that they open.
    fn receive(streams: &Rc<SharedStreams>, input: &[u8]) -> Vec<Http2Stream> {
        let (mut at, mut opened) = (0, Vec::new());
        loop {
            let event = streams.codec.borrow_mut().receive(input, &mut at, Duration::ZERO).unwrap();
            match event {
                None => break,
                Some(Event::Request { stream, ends }) => opened.push(streams.open(stream, ends)),
                Some(Event::Data { stream, bytes }) => streams.received(stream, &input[bytes]),
                Some(Event::Ended { stream }) => streams.ended(stream),
                Some(Event::Reset { stream, .. }) => streams.reset(stream),
                Some(Event::WindowGrew { stream }) => streams.window_grew(stream),
                Some(Event::Trailers { .. }) => {}
            }
        }
        streams.codec.borrow_mut().take_output();
        opened
    }

    fn request(streams: &Rc<SharedStreams>, stream: u32, more: &[u8]) -> Http2Stream {
        let block = [POST, more].concat();
        receive(streams, &frame(frame::HEADERS, frame::END_HEADERS, stream, &block)).remove(0)
    }

    #[test]
    fn small_frames_are_merged_and_the_end_is_after_them() {
        let streams = open();
        let mut cx = Context::from_waker(Waker::noop());
        let stream = request(&streams, 1, &[]);
        assert!(stream.poll_body(&mut cx).is_pending());
        for letter in [b"a", b"b", b"c"] {
            receive(&streams, &frame(frame::DATA, 0, 1, letter));
        }
        receive(&streams, &frame(frame::DATA, frame::END_STREAM, 1, b"d"));
        assert!(!stream.is_body_complete());
        assert_eq!(stream.poll_body(&mut cx), Poll::Ready(Ok(RequestPart::Data(Bytes::from_static(b"abcd")))));
        assert!(stream.is_body_complete());
        for _ in 0..2 {
            assert_eq!(stream.poll_body(&mut cx), Poll::Ready(Ok(RequestPart::End(None))));
        }
    }

    #[test]
    fn cancelled_stream_and_closed_connection_are_gone() {
        let streams = open();
        let mut cx = Context::from_waker(Waker::noop());
        let (first, second) = (request(&streams, 1, &[]), request(&streams, 3, &[]));
        receive(&streams, &frame(frame::DATA, 0, 1, b"x"));
        receive(&streams, &frame(frame::RST_STREAM, 0, 1, &[0, 0, 0, 8]));
        assert_eq!(first.poll_body(&mut cx), Poll::Ready(Err(StreamGone)));
        assert_eq!(first.send_head(200, &HeaderMap::new(), true), Err(StreamGone));
        assert!(second.poll_gone(&mut cx).is_pending());
        drop(first);
        // Its slot is used again, and what it left there is gone.
        let third = request(&streams, 5, &[]);
        assert!(third.poll_body(&mut cx).is_pending());
        streams.close();
        assert!(second.poll_gone(&mut cx).is_ready() && third.poll_capacity(&mut cx).is_ready());
        assert_eq!(second.send_head(200, &HeaderMap::new(), true), Err(StreamGone));
    }

    /// RFC 9218: who waits is woken in the order of urgency, then of arrival.
    #[test]
    fn urgent_streams_are_woken_first() {
        let streams = open();
        let low = b"\x00\x08priority\x03u=7";
        let high = b"\x00\x08priority\x03u=0";
        let all = [request(&streams, 1, low), request(&streams, 3, &[]), request(&streams, 5, high)];
        all[0].send_head(200, &HeaderMap::new(), false).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let full = all[0].poll_send(&mut cx, &mut Bytes::from_static(&[0; 200]), true);
        assert!(full.is_pending());

        let orders: Vec<_> = all
            .iter()
            .map(|stream| {
                let order = Arc::new(WakeOrder::default());
                let waker = Waker::from(Arc::clone(&order));
                assert!(stream.poll_capacity(&mut Context::from_waker(&waker)).is_pending());
                order
            })
            .collect();
        streams.codec.borrow_mut().take_output();
        streams.wake_waiting();
        let woken: Vec<_> = orders.iter().map(|order| order.0.load(Ordering::Relaxed)).collect();
        assert!(woken[2] > 0 && woken[2] < woken[1] && woken[1] < woken[0], "{woken:?}");
        assert!(all[1].poll_capacity(&mut cx).is_ready());
    }

    #[test]
    fn fields_of_an_http1_connection_are_not_sent() {
        let headers = HeaderMap::from_iter([
            (http::header::CONNECTION, http::HeaderValue::from_static("close")),
            (http::header::TRANSFER_ENCODING, http::HeaderValue::from_static("chunked")),
            (http::header::SERVER, http::HeaderValue::from_static("a")),
        ]);
        assert_eq!(fields(&headers).collect::<Vec<_>>(), [(&b"server"[..], &b"a"[..])]);
    }
}
