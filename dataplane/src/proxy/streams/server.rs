//! A client's HTTP/2 connection: takes its streams in, bounds it, and ends it politely.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use ::h2::server::{Builder, Connection, SendResponse};
use ::h2::{Reason, RecvStream};
use ::http::Request;
use bytes::Bytes;
use ring::{Chunk, Tick};

use super::from_http2;
use crate::h2::io::{Facts, Io};
use crate::h2::limits;
use crate::h2::meter::{Flood, Meter};
use crate::http::headers::Peer;
use crate::http::roster::Seat;
use crate::http::server::PREFACE;
use crate::http::wire::by;
use crate::proxy::{Proxy, Refusal};
use crate::table::host_name;
use crate::tls::Wire;

/// What the streams of one connection share.
pub(super) struct Shared {
    pub(super) proxy: Rc<Proxy>,
    pub(super) peer: Peer,
    /// What the client asked for by TLS.
    server_name: Option<Box<str>>,
    /// Kept until the last stream is done.
    seat: Seat,
    open: Cell<usize>,
    idle_since: Cell<Tick>,
}

/// What happens to a connection next.
enum Event {
    Stream(Box<(Request<RecvStream>, SendResponse<Bytes>)>),
    Flood(Flood),
    Drain,
    /// Nothing for as long as was to be waited.
    Quiet,
    End,
}

/// Serves one connection until its client goes, or the core stops. `held` begins with the preface.
pub(in crate::proxy) async fn serve(proxy: Rc<Proxy>, stream: Wire, held: Chunk, seat: Seat, peer: Peer) {
    proxy.counters.http2_connections.fetch_add(1, Relaxed);
    let server_name = stream.server_name();
    let meter = Meter::new(PREFACE.len(), proxy.ring.now());
    let io = Io::new(&proxy.ring, stream, held, Some(meter), proxy.limits.stall_max);
    let facts = io.facts();
    let due = proxy.ring.now() + proxy.limits.head_max;
    if let Ok(Ok(connection)) = by(&proxy.ring, Some(due), builder().handshake::<_, Bytes>(io)).await {
        let idle_since = Cell::new(proxy.ring.now());
        let shared =
            Shared { proxy: Rc::clone(&proxy), peer, server_name, seat, open: Cell::new(0), idle_since };
        attend(connection, Rc::new(shared), &facts).await;
    }
    proxy.counters.bytes_received.fetch_add(facts.received.get(), Relaxed);
    proxy.counters.bytes_sent.fetch_add(facts.sent.get(), Relaxed);
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits::STREAMS_MAX)
        .initial_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(limits::RESET_BEFORE_ACCEPT_MAX)
        .max_local_error_reset_streams(Some(limits::RESET_BY_US_MAX))
        .max_send_buffer_size(limits::SEND_BYTES_MAX)
        .enable_connect_protocol();
    builder
}

async fn attend(mut connection: Connection<Io, Bytes>, shared: Rc<Shared>, facts: &Facts) {
    let proxy = &shared.proxy;
    let mut leaving = false;
    loop {
        let due = shared.next_look(leaving);
        let event = by(&proxy.ring, Some(due), event(&mut connection, &shared, facts, leaving));
        match event.await.unwrap_or(Event::Quiet) {
            Event::Stream(both) => {
                let (request, respond) = *both;
                let open = Open::count(&shared);
                let serving = from_http2::stream(Rc::clone(&shared), request, respond);
                proxy.ring.spawn(async move {
                    serving.await;
                    drop(open);
                });
            }
            Event::Flood(flood) => {
                proxy.counters.http2_floods[flood as usize].fetch_add(1, Relaxed);
                tracing::info!(peer = %shared.peer.address, flood = flood.name(), "a connection is cut");
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                let ended = poll_fn(|cx| connection.poll_closed(cx));
                let _ = by(&proxy.ring, Some(proxy.ring.now() + proxy.limits.linger_max), ended).await;
                return;
            }
            Event::Quiet if shared.open.get() > 0 => {}
            Event::Quiet if leaving => return, // the client does not care
            Event::Quiet | Event::Drain => {
                leaving = true;
                shared.idle_since.set(proxy.ring.now());
                connection.graceful_shutdown();
            }
            Event::End => return,
        }
    }
}

async fn event(
    connection: &mut Connection<Io, Bytes>,
    shared: &Shared,
    facts: &Facts,
    leaving: bool,
) -> Event {
    poll_fn(|cx| {
        let accepted = connection.poll_accept(cx);
        if let Some(flood) = facts.flood.get() {
            return Poll::Ready(Event::Flood(flood));
        }
        match accepted {
            Poll::Ready(Some(Ok(both))) => return Poll::Ready(Event::Stream(Box::new(both))),
            Poll::Ready(Some(Err(why))) => {
                shared.note_end(&why);
                return Poll::Ready(Event::End);
            }
            Poll::Ready(None) => return Poll::Ready(Event::End),
            Poll::Pending => {}
        }
        if leaving { Poll::Pending } else { shared.seat.poll_closing(cx).map(|()| Event::Drain) }
    })
    .await
}

impl Shared {
    /// A client may put requests for several hosts on one connection only if its certificate is for all of them
    /// (RFC 9113 9.1.1): otherwise it is told to open another (RFC 9110 15.5.20).
    pub(super) fn misdirected(&self, authority: &str) -> Option<Refusal> {
        let name = self.server_name.as_deref()?;
        let host = host_name(authority);
        let covered = self.proxy.with_table(|table| table.certificates.covers(name, host));
        (!covered).then(|| Refusal::Misdirected(host.chars().take(255).collect::<String>().into()))
    }

    /// When a connection without an event is worth a look.
    fn next_look(&self, leaving: bool) -> Tick {
        let limits = &self.proxy.limits;
        let wait: Duration = if leaving { limits.linger_max } else { limits.idle_max };
        if self.open.get() == 0 { self.idle_since.get() + wait } else { self.proxy.ring.now() + wait }
    }

    /// h2 found that the client broke the protocol, or one of h2's own limits.
    fn note_end(&self, why: &::h2::Error) {
        if why.is_library() && why.is_go_away() {
            self.proxy.counters.http2_violations.fetch_add(1, Relaxed);
            tracing::info!(peer = %self.peer.address, %why, "a connection is cut");
        }
    }
}

/// An open stream, however it ends.
struct Open {
    shared: Rc<Shared>,
}

impl Open {
    fn count(shared: &Rc<Shared>) -> Self {
        shared.open.set(shared.open.get() + 1);
        Self { shared: Rc::clone(shared) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.open.set(self.shared.open.get() - 1);
        self.shared.idle_since.set(self.shared.proxy.ring.now());
    }
}
