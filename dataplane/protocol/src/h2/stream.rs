//! A stream of a client's connection: the body of its request, and its response.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http2::{ErrorCode, StreamGone, StreamKey};

use super::shared_streams::{MessagePart, SharedStreams, sendable_fields};

/// A stream of a client. One task uses it. Dropped before the response has ended, it is reset.
pub struct Http2Stream {
    shared: Rc<SharedStreams>,
    key: StreamKey,
}

impl Http2Stream {
    pub(super) fn new(shared: &Rc<SharedStreams>, key: StreamKey) -> Self {
        Self { shared: Rc::clone(shared), key }
    }

    /// The next part of the request body. [`Http2Stream::release`] its bytes when they were forwarded.
    pub fn poll_body(&self, cx: &mut Context<'_>) -> Poll<Result<MessagePart, StreamGone>> {
        if self.shared.failure(self.key).is_some() {
            return Poll::Ready(Err(StreamGone)); // the client does not want a response
        }
        self.shared.poll_part(self.key, cx).map_err(|_| StreamGone)
    }

    /// Whether the whole request was read, and it has no trailers.
    #[must_use]
    pub fn is_body_complete(&self) -> bool {
        self.shared.is_body_complete(self.key)
    }

    /// Bytes of the request were forwarded: the client may send as many more.
    pub fn release(&self, bytes: usize) {
        self.shared.with_codec(|codec| codec.release(self.key, bytes));
    }

    /// Ready when the client has cancelled its request, or its connection has ended.
    pub fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.poll_failed(self.key, cx).map(|_| ())
    }

    /// Ready when the connection has sent enough for another head.
    pub fn poll_capacity(&self, cx: &mut Context<'_>) -> Poll<Result<(), StreamGone>> {
        if self.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(StreamGone));
        }
        if self.shared.codec.borrow().has_output_capacity() {
            return Poll::Ready(Ok(()));
        }
        self.shared.wait_to_send(self.key);
        Poll::Pending
    }

    /// Sends the head of a response; with a status below 200 an interim one. Fields of an HTTP/1 connection are left
    /// out (RFC 9113 8.2.2).
    pub fn send_head(&self, status: u16, headers: &HeaderMap, ends: bool) -> Result<(), StreamGone> {
        self.shared.check_open()?;
        self.shared.with_codec(|codec| codec.send_head(self.key, status, sendable_fields(headers), ends))
    }

    /// Sends all of `bytes`, as the client accepts them. `ends`: the response ends with them.
    pub fn poll_send(&self, cx: &mut Context<'_>, bytes: &mut Bytes, ends: bool) -> Poll<Result<(), StreamGone>> {
        self.shared.poll_send(self.key, cx, bytes, ends)
    }

    /// Sends what the client accepts at once of `bytes`; the number of bytes. `ends`: the response ends with the last one.
    pub fn send_now(&self, bytes: &[u8], ends: bool) -> Result<usize, StreamGone> {
        self.shared.check_open()?;
        self.shared.with_codec(|codec| codec.send_data(self.key, bytes, ends))
    }

    /// Ends the response with trailers.
    pub fn send_trailers(&self, trailers: &HeaderMap) -> Result<(), StreamGone> {
        self.shared.send_trailers(self.key, trailers)
    }

    /// Ends the stream. What was sent on it before still arrives.
    pub fn reset(&self, code: ErrorCode) {
        self.shared.with_codec(|codec| codec.reset(self.key, code));
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.shared.detach(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use http2::frame::{self, FrameHeader, PREFACE};
    use http2::{Connection, ConnectionConfig, Event};

    use super::super::shared_streams::{BodyEnd, StreamFailure};
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
        let streams = SharedStreams::new(Connection::server(CONFIG, Duration::ZERO));
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
                Some(Event::Head { stream, ends }) => {
                    streams.open(stream, ends.then_some(BodyEnd::Complete(None)));
                    opened.push(Http2Stream::new(streams, stream));
                }
                Some(Event::Data { stream, bytes }) => streams.received(stream, &input[bytes]),
                Some(Event::Ended { stream }) => streams.ended(stream, BodyEnd::Complete(None)),
                Some(Event::Reset { stream, code, .. }) => streams.failed(stream, StreamFailure::Reset(code)),
                Some(Event::WindowGrew { stream }) => streams.window_grew(stream),
                Some(Event::Trailers { .. } | Event::Interim { .. } | Event::GoAway { .. }) => {}
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
        assert_eq!(stream.poll_body(&mut cx), Poll::Ready(Ok(MessagePart::Data(Bytes::from_static(b"abcd")))));
        assert!(stream.is_body_complete());
        for _ in 0..2 {
            assert_eq!(stream.poll_body(&mut cx), Poll::Ready(Ok(MessagePart::End(None))));
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
        streams.close(StreamFailure::ConnectionClosed);
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
}
