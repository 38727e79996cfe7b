//! A client's HTTP/2 connection: accepts its streams, enforces its limits and shuts it down gracefully.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use ::h2::server::{Builder, Connection, SendResponse};
use ::h2::{Reason, RecvStream};
use ::http::Request;
use bytes::Bytes;
use contract::counters::CoreCounters;
use ring::{Chunk, Ring, Tick};

use super::flood_guard::{FloodGuard, FloodViolation};
use super::io::{Http2Io, IoState};
use super::limits;
use crate::http::buffers::by;
use crate::http::connection_tracker::ConnectionGuard;
use crate::http::limits::HttpLimits;
use crate::http::server::PREFACE;
use crate::tls::Transport;

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
}

/// The next event of a connection.
enum ConnectionEvent {
    Stream(Box<(Request<RecvStream>, SendResponse<Bytes>)>),
    Violation(FloodViolation),
    Drain,
    /// Nothing happened for the time waited.
    Quiet,
    End,
}

/// Serves one connection, each stream in a task of `exchange`, until its client goes or the core stops. `tunnels`:
/// announces support for WebSockets (RFC 8441).
pub async fn serve<F>(
    opened: DetectedHttp2,
    tunnels: bool,
    exchange: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let DetectedHttp2 { ring, limits, counters, stream, held, guard, io_state } = opened;
    counters.http2_connections.fetch_add(1, Relaxed);
    let peer = stream.peer_addr().ok();
    let flood_guard = FloodGuard::new(PREFACE.len(), ring.now());
    let io = Http2Io::new(&ring, stream, held, limits.stall_max)
        .without_send_timeout()
        .with_flood_guard(flood_guard, &io_state);
    let due = ring.now() + limits.head_max;
    if let Ok(Ok(connection)) = by(&ring, Some(due), builder(tunnels, &limits).handshake::<_, Bytes>(io)).await {
        let idle_since = Cell::new(ring.now());
        let host = StreamHost { ring, limits, counters, peer, guard, open: Cell::new(0), idle_since };
        Rc::new(host).run(connection, &io_state, exchange).await;
    }
}

fn builder(tunnels: bool, http: &HttpLimits) -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits::STREAMS_MAX)
        .initial_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits::header_list_bytes_max(http.head))
        .max_pending_accept_reset_streams(limits::RESET_BEFORE_ACCEPT_MAX)
        .max_local_error_reset_streams(Some(limits::RESET_BY_US_MAX))
        .max_concurrent_reset_streams(limits::RESET_STREAMS_MAX)
        .data_frame_budget(limits::SMALL_DATA_BYTES_MAX)
        .max_send_buffer_size(limits::SEND_BYTES_MAX);
    if tunnels {
        builder.enable_connect_protocol();
    }
    builder
}

impl StreamHost {
    async fn run<F>(
        self: Rc<Self>,
        mut connection: Connection<Http2Io, Bytes>,
        io_state: &IoState,
        exchange: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let (mut draining, mut slow_reader) = (false, SlowReader::default());
        loop {
            let event =
                by(&self.ring, Some(self.next_check(draining)), self.event(&mut connection, io_state, draining));
            match event.await.unwrap_or(ConnectionEvent::Quiet) {
                ConnectionEvent::Stream(both) => {
                    let (request, respond) = *both;
                    let (open, exchange) = (OpenStreamGuard::count(&self), exchange(request, respond));
                    self.ring.spawn(async move {
                        exchange.await;
                        drop(open);
                    });
                }
                ConnectionEvent::Violation(violation) => return self.cut(connection, violation).await,
                // Its last stream may have ended since the wait began.
                ConnectionEvent::Quiet if self.ring.now() < self.next_check(draining) => {}
                ConnectionEvent::Quiet if slow_reader.may_continue(io_state, &self.limits, self.ring.now()) => {
                    self.idle_since.set(self.ring.now());
                }
                ConnectionEvent::Quiet if draining => return, // the client ignores the GOAWAY
                ConnectionEvent::Quiet | ConnectionEvent::Drain => {
                    draining = true;
                    self.idle_since.set(self.ring.now());
                    connection.graceful_shutdown();
                }
                ConnectionEvent::End => return,
            }
        }
    }

    async fn event(
        &self,
        connection: &mut Connection<Http2Io, Bytes>,
        io_state: &IoState,
        draining: bool,
    ) -> ConnectionEvent {
        poll_fn(|cx| {
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok(both))) => return Poll::Ready(ConnectionEvent::Stream(Box::new(both))),
                Poll::Ready(Some(Err(why))) => {
                    self.note_end(&why, io_state);
                    return Poll::Ready(ConnectionEvent::End);
                }
                Poll::Ready(None) => return Poll::Ready(ConnectionEvent::End),
                Poll::Pending => {}
            }
            if let Some(violation) = io_state.violation.get() {
                return Poll::Ready(ConnectionEvent::Violation(violation)); // frames before it were processed
            }
            if draining { Poll::Pending } else { self.guard.poll_closing(cx).map(|()| ConnectionEvent::Drain) }
        })
        .await
    }

    async fn cut(&self, mut connection: Connection<Http2Io, Bytes>, violation: FloodViolation) {
        // Counted but not logged above debug, because a client can cause it as often as it likes.
        let reason = match violation {
            FloodViolation::Flood(flood) => {
                self.counters.http2_floods[flood as usize].fetch_add(1, Relaxed);
                tracing::debug!(peer = ?self.peer, flood = flood.name(), "connection closed");
                Reason::ENHANCE_YOUR_CALM
            }
            FloodViolation::FrameSize => {
                self.counters.http2_violations.fetch_add(1, Relaxed);
                tracing::debug!(peer = ?self.peer, why = "invalid frame length", "connection closed");
                Reason::FRAME_SIZE_ERROR
            }
        };
        connection.abrupt_shutdown(reason);
        let ended = poll_fn(|cx| connection.poll_closed(cx));
        // a timeout ends it as well
        let _ = by(&self.ring, Some(self.ring.now() + self.limits.linger_max), ended).await;
    }

    /// h2 reports that the client violated the protocol, or a limit of h2.
    fn note_end(&self, why: &::h2::Error, io_state: &IoState) {
        if why.is_library() && why.is_go_away() {
            let count = match why.reason() {
                Some(Reason::ENHANCE_YOUR_CALM) => &self.counters.http2_floods[io_state.suspect.get() as usize],
                _ => &self.counters.http2_violations,
            };
            count.fetch_add(1, Relaxed);
            tracing::debug!(peer = ?self.peer, %why, "connection closed");
        }
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
