//! One connection to an instance: a task that reads and writes its frames.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use http2::{Connection, ConnectionConfig, ConnectionFault, ErrorCode, Event, StreamGone};
use ring::{Ring, Tick};

use super::heads::{InstanceRequest, from_h2_instance};
use super::instance_stream::InstanceStream;
use super::io::{IoState, finish, until_sent, write_frames};
use super::limits;
use super::shared_streams::{BodyEnd, ReceivedHead, SharedStreams, StreamFailure, end_with_trailers};
use crate::http::buffers::by;
use crate::http::limits::HttpLimits;
use crate::tls::{ByteStream as _, Transport};

/// A connection, shared by its task, the pool and the requests on it.
pub(super) struct InstanceConnection {
    ring: Ring,
    limits: HttpLimits,
    io_state: IoState,
    streams: Rc<SharedStreams>,
    /// The connection has ended, or takes no more requests.
    closed: Cell<bool>,
    /// It has carried a request.
    used: Cell<bool>,
    /// Requests that have a permit for it.
    permits: Cell<usize>,
    idle_since: Cell<Tick>,
}

/// Why a connection ends.
enum InstanceConnectionEnd {
    Fault(ConnectionFault),
    /// The instance has closed its side, or the connection is broken.
    Closed,
    /// It takes no more requests, and the last one has ended.
    Unused,
}

fn config(http: &HttpLimits) -> ConnectionConfig {
    ConnectionConfig {
        streams_max: limits::INSTANCE_STREAMS_MAX as u32,
        slots_max: limits::INSTANCE_STREAM_SLOTS_MAX,
        stream_window: limits::STREAM_WINDOW_BYTES,
        connection_window: limits::INSTANCE_WINDOW_BYTES,
        header_list_bytes_max: limits::header_list_bytes_max(http.head),
        output_bytes_max: limits::WRITE_BYTES_MAX,
        tunnels: false,
    }
}

impl InstanceConnection {
    /// Starts the task of a connection.
    pub(super) fn start(ring: &Ring, http: &HttpLimits, stream: Transport) -> Rc<Self> {
        let connection = Rc::new(Self {
            ring: ring.clone(),
            limits: *http,
            io_state: IoState::default(),
            streams: SharedStreams::new(Connection::client(config(http), ring.now() - Tick::ZERO)),
            closed: Cell::new(false),
            used: Cell::new(false),
            permits: Cell::new(0),
            idle_since: Cell::new(ring.now()),
        });
        let task = Rc::clone(&connection);
        ring.spawn(async move { task.run(&stream).await });
        connection
    }

    /// Takes a permit for a request; whether the connection has carried one before.
    pub(super) fn acquire(&self) -> bool {
        self.permits.set(self.permits.get() + 1);
        self.used.replace(true)
    }

    pub(super) fn release(&self) {
        self.permits.set(self.permits.get() - 1);
        self.idle_since.set(self.ring.now());
        if self.closed.get() && self.permits.get() == 0 {
            self.streams.wake_connection();
        }
    }

    /// Keeps further requests off this connection. It ends with its last request.
    pub(super) fn retire(&self) {
        self.closed.set(true);
        self.streams.wake_connection();
    }

    /// Whether it takes requests.
    pub(super) fn is_open(&self) -> bool {
        !self.closed.get() && !self.streams.is_closed() && !self.streams.codec.borrow().is_draining()
    }

    pub(super) fn permits(&self) -> usize {
        self.permits.get()
    }

    /// Since when it has had no request.
    pub(super) fn idle_since(&self) -> Option<Tick> {
        (self.permits.get() == 0).then(|| self.idle_since.get())
    }

    /// Requests that it can carry at a time, as far as the instance has said.
    pub(super) fn streams_max(&self) -> usize {
        self.streams.codec.borrow().streams_max()
    }

    /// Opens a stream, once the instance allows another one. An error: it was not sent, and never will be on this
    /// connection.
    pub(super) async fn send_request(
        &self,
        request: &InstanceRequest,
        ends: bool,
    ) -> Result<InstanceStream, StreamGone> {
        let streams = &self.streams;
        streams.can_open().await?;
        let sent = streams.with_codec(|codec| codec.send_request(request.pseudo_fields(), request.fields(), ends));
        let key = sent?;
        streams.open(key, None);
        streams.wake_opening();
        Ok(InstanceStream::new(streams, key))
    }

    async fn run(&self, stream: &Transport) {
        let timeout = self.limits.stream_idle_timeout;
        let stall_max = (!timeout.is_zero()).then_some(timeout);
        let mut reader = pin!(self.read(stream));
        let mut writer = pin!(write_frames(&self.ring, stream, &self.streams, &self.io_state, stall_max));
        let end = poll_fn(|cx| {
            self.streams.register_connection(cx);
            if let Poll::Ready(end) = reader.as_mut().poll(cx) {
                return Poll::Ready(end);
            }
            if writer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(InstanceConnectionEnd::Closed);
            }
            let is_unused = self.closed.get() && self.permits.get() == 0;
            if is_unused { Poll::Ready(InstanceConnectionEnd::Unused) } else { Poll::Pending }
        });
        let end = end.await;
        self.closed.set(true);
        let failure = match end {
            InstanceConnectionEnd::Fault(fault) => {
                tracing::debug!(why = %fault, "a connection to an instance ended");
                self.streams.codec.borrow_mut().fail(fault);
                StreamFailure::ConnectionViolation(fault.code())
            }
            InstanceConnectionEnd::Closed => StreamFailure::ConnectionClosed,
            InstanceConnectionEnd::Unused => {
                self.streams.codec.borrow_mut().end(ErrorCode::NoError);
                StreamFailure::ConnectionClosed
            }
        };
        self.streams.close(failure);
        let rest = finish(stream, &self.streams, &self.io_state, writer);
        let _ = by(&self.ring, Some(self.ring.now() + self.limits.linger_max), rest).await; // a timeout ends it as well
    }

    /// Reads frames, and passes them to the requests.
    async fn read(&self, stream: &Transport) -> InstanceConnectionEnd {
        loop {
            until_sent(&self.streams).await;
            let input = match stream.recv().await {
                Ok(chunk) if !chunk.is_empty() => chunk,
                Ok(_) | Err(_) => return InstanceConnectionEnd::Closed,
            };
            self.io_state.received.set(self.io_state.received.get() + input.len() as u64);
            if let Err(fault) = self.receive(&input) {
                return InstanceConnectionEnd::Fault(fault);
            }
        }
    }

    fn receive(&self, input: &[u8]) -> Result<(), ConnectionFault> {
        let (streams, now, mut at) = (&self.streams, self.ring.now() - Tick::ZERO, 0);
        loop {
            let event = streams.codec.borrow_mut().receive(input, &mut at, now)?;
            match event {
                None => break,
                Some(Event::Head { stream, ends }) => {
                    let head = from_h2_instance(streams.codec.borrow().fields());
                    streams.head(stream, ReceivedHead::Final(head), ends);
                }
                Some(Event::Interim { stream }) => {
                    let head = from_h2_instance(streams.codec.borrow().fields());
                    streams.head(stream, ReceivedHead::Interim(head), false);
                }
                Some(Event::Data { stream, bytes }) => streams.received(stream, &input[bytes]),
                Some(Event::Ended { stream }) => streams.ended(stream, BodyEnd::Complete(None)),
                Some(Event::Trailers { stream, malformed }) => {
                    let end = end_with_trailers(streams.codec.borrow().fields(), malformed.is_some());
                    streams.ended(stream, end);
                }
                Some(Event::Reset { stream, code, by_peer: true }) => {
                    streams.failed(stream, StreamFailure::Reset(code));
                }
                Some(Event::Reset { stream, code, by_peer: false }) => {
                    streams.failed(stream, StreamFailure::Violation(code));
                }
                Some(Event::WindowGrew { stream }) => streams.window_grew(stream),
                Some(Event::GoAway { last, code }) => {
                    tracing::debug!(%code, last, "an instance closes its connection");
                    streams.went_away(last);
                }
            }
        }
        streams.wake_opening();
        Ok(())
    }
}
