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
use http2::{ConnectionConfig, ConnectionFault, Event, FieldBlock, ServerConnection};
use ring::{Chunk, Ring, Tick};

use super::io::IoState;
use super::limits;
use super::stream::{Http2Stream, SharedStreams, trailer_map};
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

/// Serves one connection, each stream in a task of `exchange`, until its client goes or the core stops. `exchange` is
/// called with the head of each request. `tunnels`: announces support for WebSockets (RFC 8441).
pub async fn serve<F>(opened: DetectedHttp2, tunnels: bool, exchange: impl Fn(&FieldBlock, bool, Http2Stream) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let DetectedHttp2 { ring, limits, counters, stream, held, guard, io_state } = opened;
    counters.http2_connections.fetch_add(1, Relaxed);
    let peer = stream.peer_addr().ok();
    let codec = ServerConnection::new(config(tunnels, &limits), ring.now() - Tick::ZERO);
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
    host.run(&stream, held, exchange).await;
    streams.close();
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
    async fn run<F>(
        self: &Rc<Self>,
        stream: &Transport,
        held: Chunk,
        exchange: impl Fn(&FieldBlock, bool, Http2Stream) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let mut reader = pin!(self.read(stream, held, exchange));
        let mut writer = pin!(self.write(stream));
        let (mut draining, mut slow_reader) = (false, SlowReader::default());
        loop {
            let event = self.event(reader.as_mut(), writer.as_mut(), draining);
            match by(&self.ring, Some(self.next_check(draining)), event).await.unwrap_or(ConnectionEvent::Quiet) {
                ConnectionEvent::Fault(fault) => {
                    self.note_fault(fault);
                    self.streams.close();
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
                    self.streams.close();
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
    async fn read<F>(
        self: &Rc<Self>,
        stream: &Transport,
        mut held: Chunk,
        exchange: impl Fn(&FieldBlock, bool, Http2Stream) -> F,
    ) -> ReadEnd
    where
        F: Future<Output = ()> + 'static,
    {
        loop {
            if let Err(fault) = self.receive(&held, &exchange) {
                return ReadEnd::Fault(fault);
            }
            self.io_state.received.set(self.io_state.received.get() + held.len() as u64);
            drop(std::mem::take(&mut held)); // the receive buffer is released
            // Answers to frames are sent before more frames are read; the writer wakes this task.
            poll_fn(|_| match self.streams.codec.borrow().output_len() < limits::UNSENT_BYTES_MAX {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            match stream.recv().await {
                Ok(chunk) if !chunk.is_empty() => held = chunk,
                Ok(_) | Err(_) => return ReadEnd::Closed,
            }
        }
    }

    fn receive<F>(
        self: &Rc<Self>,
        input: &[u8],
        exchange: &impl Fn(&FieldBlock, bool, Http2Stream) -> F,
    ) -> Result<(), ConnectionFault>
    where
        F: Future<Output = ()> + 'static,
    {
        let (streams, now, mut at) = (&self.streams, self.ring.now() - Tick::ZERO, 0);
        loop {
            let event = streams.codec.borrow_mut().receive(input, &mut at, now)?;
            match event {
                None => return Ok(()),
                Some(Event::Request { stream, ends }) => {
                    let stream = streams.open(stream, ends);
                    let exchange = exchange(streams.codec.borrow().fields(), ends, stream);
                    let open = OpenStreamGuard::count(self);
                    self.ring.spawn(async move {
                        exchange.await;
                        drop(open);
                    });
                }
                Some(Event::Data { stream, bytes }) => streams.received(stream, &input[bytes]),
                Some(Event::Ended { stream }) => streams.ended(stream),
                Some(Event::Trailers { stream, malformed }) => {
                    let fields = match malformed {
                        Some(_) => None,
                        None => trailer_map(streams.codec.borrow().fields()),
                    };
                    streams.trailers(stream, fields);
                }
                Some(Event::Reset { stream, .. }) => streams.reset(stream),
                Some(Event::WindowGrew { stream }) => streams.window_grew(stream),
            }
        }
    }

    /// Sends what the streams write: the frames of many streams leave in one send. There is no limit for a send: each
    /// stream has its own timeout, and the owner ends a connection without streams. So a client that pauses reading
    /// loses the streams that it does not read, but keeps its connection.
    async fn write(&self, stream: &Transport) -> io::Result<Infallible> {
        loop {
            poll_fn(|_| match self.streams.codec.borrow().output_len() {
                0 => Poll::Pending, // a stream wakes this task
                _ => Poll::Ready(()),
            })
            .await;
            let bytes = self.streams.codec.borrow_mut().take_output();
            self.io_state.sent.set(self.io_state.sent.get() + bytes.len() as u64);
            if bytes.len() >= limits::UNSENT_BYTES_MAX {
                self.streams.wake_connection(); // for the reader
            }
            self.streams.wake_waiting();
            if let Err(bytes) = stream.send_detached(bytes.into()) {
                self.io_state.sending.set(true);
                let sent = stream.send(bytes).await;
                self.io_state.sending.set(false);
                sent?;
            }
        }
    }

    /// Sends the rest and closes the connection.
    async fn finish(&self, stream: &Transport, mut writer: Pin<&mut impl Future<Output = io::Result<Infallible>>>) {
        let rest = poll_fn(|cx| {
            self.streams.register_connection(cx);
            if writer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(false);
            }
            let is_sent = self.streams.codec.borrow().output_len() == 0 && !self.io_state.sending.get();
            if is_sent { Poll::Ready(true) } else { Poll::Pending }
        });
        let end = async {
            if rest.await {
                let _ = stream.shutdown_write().await; // an error: the client is gone
            }
        };
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
struct OpenStreamGuard {
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
