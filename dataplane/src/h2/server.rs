//! A client's HTTP/2 connection: takes its streams in, bounds it, and ends it politely, whatever it is served
//! with.

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
use ring::{Chunk, Ring, Tick};

use super::flood_guard::{FloodGuard, FloodViolation};
use super::io::{Http2Io, IoState};
use super::limits;
use crate::counters::CoreCounters;
use crate::http::buffers::by;
use crate::http::connection_tracker::ConnectionGuard;
use crate::http::limits::HttpLimits;
use crate::http::server::PREFACE;
use crate::tls::Transport;

/// A connection whose first bytes, in `held`, say that it speaks HTTP/2.
pub struct DetectedHttp2 {
    pub ring: Ring,
    pub limits: HttpLimits,
    pub counters: Arc<CoreCounters>,
    pub stream: Transport,
    pub held: Chunk,
    pub guard: ConnectionGuard,
    /// Where its bytes are counted, frames and all.
    pub facts: Rc<IoState>,
}

/// What a connection and its streams share.
struct StreamHost {
    ring: Ring,
    limits: HttpLimits,
    counters: Arc<CoreCounters>,
    peer: Option<SocketAddr>,
    /// Kept until the last stream is done.
    guard: ConnectionGuard,
    open: Cell<usize>,
    idle_since: Cell<Tick>,
}

/// What happens to a connection next.
enum ConnectionEvent {
    Stream(Box<(Request<RecvStream>, SendResponse<Bytes>)>),
    Breach(FloodViolation),
    Drain,
    /// Nothing for as long as was to be waited.
    Quiet,
    End,
}

/// Serves one connection, each stream by a task of `exchange`, until its client goes or the core stops. `tunnels`:
/// clients are told that they may ask for WebSockets (RFC 8441).
pub async fn serve<F>(
    opened: DetectedHttp2,
    tunnels: bool,
    exchange: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let DetectedHttp2 { ring, limits, counters, stream, held, guard: seat, facts } = opened;
    counters.http2_connections.fetch_add(1, Relaxed);
    let peer = stream.peer_addr().ok();
    let meter = FloodGuard::new(PREFACE.len(), ring.now());
    let io = Http2Io::new(&ring, stream, held, limits.stall_max).patient().metered(meter, &facts);
    let due = ring.now() + limits.head_max;
    if let Ok(Ok(connection)) = by(&ring, Some(due), builder(tunnels, &limits).handshake::<_, Bytes>(io)).await {
        let idle_since = Cell::new(ring.now());
        let host = StreamHost { ring, limits, counters, peer, guard: seat, open: Cell::new(0), idle_since };
        Rc::new(host).attend(connection, &facts, exchange).await;
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
    async fn attend<F>(
        self: Rc<Self>,
        mut connection: Connection<Http2Io, Bytes>,
        facts: &IoState,
        exchange: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let (mut leaving, mut stuck) = (false, Stuck::default());
        loop {
            let event = by(&self.ring, Some(self.next_look(leaving)), self.event(&mut connection, facts, leaving));
            match event.await.unwrap_or(ConnectionEvent::Quiet) {
                ConnectionEvent::Stream(both) => {
                    let (request, respond) = *both;
                    let (open, exchange) = (OpenStreamGuard::count(&self), exchange(request, respond));
                    self.ring.spawn(async move {
                        exchange.await;
                        drop(open);
                    });
                }
                ConnectionEvent::Breach(breach) => return self.cut(connection, breach).await,
                // Its last stream may have ended since the wait began.
                ConnectionEvent::Quiet if self.ring.now() < self.next_look(leaving) => {}
                ConnectionEvent::Quiet if stuck.is_patient(facts, &self.limits, self.ring.now()) => {
                    self.idle_since.set(self.ring.now());
                }
                ConnectionEvent::Quiet if leaving => return, // the client does not care
                ConnectionEvent::Quiet | ConnectionEvent::Drain => {
                    leaving = true;
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
        facts: &IoState,
        leaving: bool,
    ) -> ConnectionEvent {
        poll_fn(|cx| {
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok(both))) => return Poll::Ready(ConnectionEvent::Stream(Box::new(both))),
                Poll::Ready(Some(Err(why))) => {
                    self.note_end(&why, facts);
                    return Poll::Ready(ConnectionEvent::End);
                }
                Poll::Ready(None) => return Poll::Ready(ConnectionEvent::End),
                Poll::Pending => {}
            }
            if let Some(breach) = facts.breach.get() {
                return Poll::Ready(ConnectionEvent::Breach(breach)); // what came before it was taken in
            }
            if leaving { Poll::Pending } else { self.guard.poll_closing(cx).map(|()| ConnectionEvent::Drain) }
        })
        .await
    }

    async fn cut(&self, mut connection: Connection<Http2Io, Bytes>, breach: FloodViolation) {
        // Counted; not told, because a client can bring it about as often as it likes.
        let reason = match breach {
            FloodViolation::Flood(flood) => {
                self.counters.http2_floods[flood as usize].fetch_add(1, Relaxed);
                tracing::debug!(peer = ?self.peer, flood = flood.name(), "a connection is cut");
                Reason::ENHANCE_YOUR_CALM
            }
            FloodViolation::FrameSize => {
                self.counters.http2_violations.fetch_add(1, Relaxed);
                tracing::debug!(peer = ?self.peer, why = "a frame of no good length", "a connection is cut");
                Reason::FRAME_SIZE_ERROR
            }
        };
        connection.abrupt_shutdown(reason);
        let ended = poll_fn(|cx| connection.poll_closed(cx));
        let _ = by(&self.ring, Some(self.ring.now() + self.limits.linger_max), ended).await; // either way it ends
    }

    /// h2 found that the client broke the protocol, or one of h2's own limits.
    fn note_end(&self, why: &::h2::Error, facts: &IoState) {
        if why.is_library() && why.is_go_away() {
            let count = match why.reason() {
                Some(Reason::ENHANCE_YOUR_CALM) => &self.counters.http2_floods[facts.suspect.get() as usize],
                _ => &self.counters.http2_violations,
            };
            count.fetch_add(1, Relaxed);
            tracing::debug!(peer = ?self.peer, %why, "a connection is cut");
        }
    }

    /// When a connection without an event is worth a look.
    fn next_look(&self, leaving: bool) -> Tick {
        let wait = if leaving { self.limits.linger_max } else { self.limits.idle_max };
        if self.open.get() == 0 { self.idle_since.get() + wait } else { self.ring.now() + wait }
    }
}

/// Whether a connection without streams still has something to send: the end of an answer that its client reads slowly.
#[derive(Default)]
struct Stuck {
    /// Bytes sent when it was last looked at, and since when there are no more.
    seen: Option<(u64, Tick)>,
}

impl Stuck {
    /// A client may be as slow with the rest of an answer as with the answer.
    fn is_patient(&mut self, facts: &IoState, limits: &HttpLimits, now: Tick) -> bool {
        let sent = facts.sent.get();
        let since = self.seen.filter(|(seen, _)| *seen == sent).map_or(now, |(_, since)| since);
        self.seen = Some((sent, since));
        let timeout = limits.stream_idle_timeout;
        facts.sending.get() && (timeout.is_zero() || now - since < timeout)
    }
}

/// An open stream, however it ends.
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
