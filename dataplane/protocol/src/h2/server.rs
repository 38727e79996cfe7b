//! A client's HTTP/2 connection: accepts its streams, enforces its limits and shuts it down gracefully.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use contract::counters::{CoreCounters, FLOOD_KINDS};
use http2::{Connection, ConnectionConfig, ConnectionFault, Event, FieldBlock};
use ring::{Chunk, Ring, Tick};

use super::io::{IoState, finish, until_sent, write_frames};
use super::limits;
use super::shared_streams::{BodyEnd, SharedStreams, StreamFailure, end_with_trailers};
use super::stream::Http2Stream;
use crate::http::buffers::by;
use crate::http::connection_tracker::ConnectionGuard;
use crate::http::limits::HttpLimits;
use crate::tls::{ByteStream as _, Transport};

const _: () = assert!(FLOOD_KINDS == http2::frame_allowances::FLOOD_KINDS, "each kind has its counter");

/// A connection whose first bytes, in `held`, are the HTTP/2 preface.
pub struct DetectedHttp2 {
    pub ring: Ring,
    pub limits: HttpLimits,
    pub counters: Arc<CoreCounters>,
    pub stream: Transport,
    pub held: Chunk,
    pub guard: ConnectionGuard,
    /// Counts its bytes, including frame headers.
    pub io_state: Rc<IoState>,
}

/// The state that a connection and its streams share.
struct StreamHost {
    ring: Ring,
    limits: HttpLimits,
    counters: Arc<CoreCounters>,
    peer: Option<SocketAddr>,
    /// Held until the last stream is done.
    guard: ConnectionGuard,
    open: Cell<usize>,
    idle_since: Cell<Tick>,
    io_state: Rc<IoState>,
    streams: Rc<SharedStreams>,
}

/// The next event of a connection.
enum ConnectionEvent {
    Fault(ConnectionFault),
    Drain,
    /// Nothing happened for the time waited.
    Quiet,
    End,
}

/// Why a connection is not read any more.
enum ReadEnd {
    Fault(ConnectionFault),
    /// The client has closed its side, or the connection is broken.
    Closed,
}

/// A request whose head has arrived.
pub struct OpenedStream<'a> {
    pub head: &'a FieldBlock,
    /// No body follows.
    pub ends: bool,
    pub stream: Http2Stream,
    /// To be held until the end of the request.
    pub open: OpenStreamGuard,
}

/// Serves one connection until its client goes or the core stops. `spawn` is called with each request, and starts the task
/// that serves it: here its future would be moved several times, and it is large. `tunnels`: announces support for
/// WebSockets (RFC 8441).
pub async fn serve(opened: DetectedHttp2, tunnels: bool, spawn: impl Fn(OpenedStream<'_>)) {
    let DetectedHttp2 { ring, limits, counters, stream, held, guard, io_state } = opened;
    counters.http2_connections.fetch_add(1, Relaxed);
    let peer = stream.peer_addr().ok();
    let codec = Connection::server(config(tunnels, &limits), ring.now() - Tick::ZERO);
    let streams = SharedStreams::new(codec);
    let idle_since = Cell::new(ring.now());
    let host = Rc::new(StreamHost {
        ring,
        limits,
        counters,
        peer,
        guard,
        open: Cell::new(0),
        idle_since,
        io_state,
        streams: Rc::clone(&streams),
    });
    host.run(&stream, held, spawn).await;
    streams.close(StreamFailure::ConnectionClosed);
}

fn config(tunnels: bool, http: &HttpLimits) -> ConnectionConfig {
    ConnectionConfig {
        streams_max: limits::STREAMS_MAX,
        slots_max: limits::STREAM_SLOTS_MAX,
        stream_window: limits::STREAM_WINDOW_BYTES,
        connection_window: limits::CONNECTION_WINDOW_BYTES,
        header_list_bytes_max: limits::header_list_bytes_max(http.head),
        output_bytes_max: limits::WRITE_BYTES_MAX,
        tunnels,
    }
}

impl StreamHost {
    async fn run(self: &Rc<Self>, stream: &Transport, held: Chunk, spawn: impl Fn(OpenedStream<'_>)) {
        let mut reader = pin!(self.read(stream, held, spawn));
        // There is no limit for a send: each stream has its own timeout, and the loop below ends a connection without
        // streams. So a client that pauses reading loses the streams that it does not read, but keeps its connection.
        let mut writer = pin!(write_frames(&self.ring, stream, &self.streams, &self.io_state, None));
        let (mut draining, mut slow_reader) = (false, SlowReader::default());
        loop {
            let event = self.event(reader.as_mut(), writer.as_mut(), draining);
            match by(&self.ring, Some(self.next_check(draining)), event).await.unwrap_or(ConnectionEvent::Quiet) {
                ConnectionEvent::Fault(fault) => {
                    self.note_fault(fault);
                    self.streams.close(StreamFailure::ConnectionViolation(fault.code()));
                    self.streams.codec.borrow_mut().fail(fault);
                    return self.finish(stream, writer).await;
                }
                // Its last stream may have ended since the wait began.
                ConnectionEvent::Quiet if self.ring.now() < self.next_check(draining) => {}
                ConnectionEvent::Quiet if slow_reader.may_continue(&self.io_state, &self.limits, self.ring.now()) => {
                    self.idle_since.set(self.ring.now());
                }
                ConnectionEvent::Quiet if draining => return, // the client ignores the GOAWAY
                ConnectionEvent::Quiet | ConnectionEvent::Drain => {
                    draining = true;
                    self.idle_since.set(self.ring.now());
                    self.streams.codec.borrow_mut().shut_down();
                }
                ConnectionEvent::End => {
                    self.streams.close(StreamFailure::ConnectionClosed);
                    return self.finish(stream, writer).await;
                }
            }
        }
    }

    async fn event(
        &self,
        mut reader: Pin<&mut impl Future<Output = ReadEnd>>,
        mut writer: Pin<&mut impl Future<Output = io::Result<Infallible>>>,
        draining: bool,
    ) -> ConnectionEvent {
        poll_fn(|cx| {
            self.streams.register_connection(cx);
            match reader.as_mut().poll(cx) {
                Poll::Ready(ReadEnd::Fault(fault)) => return Poll::Ready(ConnectionEvent::Fault(fault)),
                Poll::Ready(ReadEnd::Closed) => return Poll::Ready(ConnectionEvent::End),
                Poll::Pending => {}
            }
            if writer.as_mut().poll(cx).is_ready() || self.streams.codec.borrow().is_finished() {
                return Poll::Ready(ConnectionEvent::End);
            }
            if draining { Poll::Pending } else { self.guard.poll_closing(cx).map(|()| ConnectionEvent::Drain) }
        })
        .await
    }

    /// Reads frames, and spawns a task for each request.
    async fn read(self: &Rc<Self>, stream: &Transport, mut held: Chunk, spawn: impl Fn(OpenedStream<'_>)) -> ReadEnd {
        loop {
            if let Err(fault) = self.receive(&held, &spawn) {
                return ReadEnd::Fault(fault);
            }
            self.io_state.received.set(self.io_state.received.get() + held.len() as u64);
            drop(std::mem::take(&mut held)); // the receive buffer is released
            until_sent(&self.streams).await;
            match stream.recv().await {
                Ok(chunk) if !chunk.is_empty() => held = chunk,
                Ok(_) | Err(_) => return ReadEnd::Closed,
            }
        }
    }

    fn receive(self: &Rc<Self>, input: &[u8], spawn: &impl Fn(OpenedStream<'_>)) -> Result<(), ConnectionFault> {
        let (streams, now, mut at) = (&self.streams, self.ring.now() - Tick::ZERO, 0);
        loop {
            let event = streams.codec.borrow_mut().receive(input, &mut at, now)?;
            match event {
                None => return Ok(()),
                Some(Event::Head { stream, ends }) => {
                    streams.open(stream, ends.then_some(BodyEnd::Complete(None)));
                    let (stream, open) = (Http2Stream::new(streams, stream), OpenStreamGuard::count(self));
                    spawn(OpenedStream { head: streams.codec.borrow().fields(), ends, stream, open });
                }
                Some(Event::Data { stream, bytes }) => streams.received(stream, &input[bytes]),
                Some(Event::Ended { stream }) => streams.ended(stream, BodyEnd::Complete(None)),
                Some(Event::Trailers { stream, malformed }) => {
                    let end = end_with_trailers(streams.codec.borrow().fields(), malformed.is_some());
                    streams.ended(stream, end);
                }
                Some(Event::Reset { stream, code, .. }) => streams.failed(stream, StreamFailure::Reset(code)),
                Some(Event::WindowGrew { stream }) => streams.window_grew(stream),
                Some(Event::Interim { .. } | Event::GoAway { .. }) => {} // of servers
            }
        }
    }

    /// Sends the rest and closes the connection.
    async fn finish(&self, stream: &Transport, writer: Pin<&mut impl Future<Output = io::Result<Infallible>>>) {
        let end = finish(stream, &self.streams, &self.io_state, writer);
        let _ = by(&self.ring, Some(self.ring.now() + self.limits.linger_max), end).await; // a timeout ends it as well
    }

    /// The client violated the protocol, or sent too much.
    fn note_fault(&self, fault: ConnectionFault) {
        // Counted but not logged above debug, because a client can cause it as often as it likes.
        let count = match fault {
            ConnectionFault::Flood(kind) => &self.counters.http2_floods[kind as usize],
            _ => &self.counters.http2_violations,
        };
        count.fetch_add(1, Relaxed);
        tracing::debug!(peer = ?self.peer, why = %fault, "connection closed");
    }

    /// When to check a connection without events.
    fn next_check(&self, draining: bool) -> Tick {
        let wait = if draining { self.limits.linger_max } else { self.limits.idle_max };
        if self.open.get() == 0 { self.idle_since.get() + wait } else { self.ring.now() + wait }
    }
}

/// Whether a connection without streams still has bytes to send: the end of a response that its client reads slowly.
#[derive(Default)]
struct SlowReader {
    /// Bytes sent at the last check, and the time since when they have not grown.
    seen: Option<(u64, Tick)>,
}

impl SlowReader {
    /// A client may read the rest of a response as slowly as the response.
    fn may_continue(&mut self, io_state: &IoState, limits: &HttpLimits, now: Tick) -> bool {
        let sent = io_state.sent.get();
        let since = self.seen.filter(|(seen, _)| *seen == sent).map_or(now, |(_, since)| since);
        self.seen = Some((sent, since));
        let timeout = limits.stream_idle_timeout;
        io_state.sending.get() && (timeout.is_zero() || now - since < timeout)
    }
}

/// An open stream, counted until it is dropped.
pub struct OpenStreamGuard {
    host: Rc<StreamHost>,
}

impl OpenStreamGuard {
    fn count(host: &Rc<StreamHost>) -> Self {
        host.open.set(host.open.get() + 1);
        Self { host: Rc::clone(host) }
    }
}

impl Drop for OpenStreamGuard {
    fn drop(&mut self) {
        self.host.open.set(self.host.open.get() - 1);
        self.host.idle_since.set(self.host.ring.now());
    }
}
